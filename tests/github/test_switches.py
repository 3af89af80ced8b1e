"""What was said under another value of FLA_BOT, or on another day, is looked at again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bot.github.case import Standing, pack, unpack
from bot.github.ledger import PREVIEW, READY
from bot.github.operate import PLANNER, TOMORROW
from bot.github.reconcile import REACTIONS
from bot.github.status import OFF_RUN
from tests.github.stage import AWAITED, BOOKS, RUNNING, WORKFLOWS, Stage
from tests.github.test_answers import reactions
from tests.github.test_results_stay import SMALLER
from tests.github.test_second_look import codes
from tests.github.test_third_look import LOOSER, twin
from tests.github.test_trust import CONTRACT
from tests.github.world import Actor, Pull

POLICY = (BOOKS / "policy.yaml").read_text()


@pytest.fixture
def no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reaper went through lately: nothing is news."""
    monkeypatch.setattr(
        "bot.github.status._last_look", lambda reconciler: reconciler.now() + timedelta(hours=1)
    )


def cap(stage: Stage, words: str) -> None:
    stage.put("main", {"contracts/policy.yaml": POLICY.replace("minutes: 240", words)})


def end(stage: Stage) -> None:
    """All runs pass."""
    for run in stage.runs():
        stage.execute(run)


def why(stage: Stage, pull: Pull) -> str:
    """Why the reaper looks at a pull request."""
    found: dict[int, str] = {item["number"]: item["due"] for item in stage.due()["pulls"]}
    return found[pull.number]


def switch(stage: Stage, mode: str) -> None:
    """Somebody sets FLA_BOT, and the reaper goes round."""
    stage.world.advance(minutes=10)
    stage.mode = mode
    stage.reap()
    stage.settle()


def title(stage: Stage, pull: Pull) -> str:
    return stage.view(pull).shown[READY].title


# Shadow mode.


@pytest.mark.usefixtures("no_news")
def test_verdict_gets_the_name_of_the_mode(stage: Stage) -> None:
    stage.mode = "shadow"
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    end(stage)
    assert stage.due()["due"] == []
    switch(stage, "on")
    assert stage.ready(pull) == "success"
    assert stage.due()["due"] == []
    switch(stage, "shadow")
    assert stage.ready(pull, PREVIEW) == "success"
    assert stage.ready(pull) == "failure"
    assert stage.due()["due"] == []


@pytest.mark.usefixtures("no_news")
def test_verdict_of_what_runs_nothing_gets_it_too(stage: Stage) -> None:
    """Without an App nothing is kept of it, so that only its name tells."""
    stage.mode = "shadow"
    pull = stage.open(files={"docs/a.md": "a\n"})
    stage.settle()
    switch(stage, "on")
    assert stage.ready(pull) == "success"
    assert stage.due()["due"] == []
    switch(stage, "shadow")
    assert stage.ready(pull, PREVIEW) == "success"
    assert stage.due()["due"] == []


@pytest.mark.usefixtures("no_news")
def test_shadow_that_is_switched_off_says_so_under_its_own_name(stage: Stage) -> None:
    stage.mode = "shadow"
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    switch(stage, "off")
    assert stage.ready(pull) == "none"
    assert stage.ready(pull, PREVIEW) in AWAITED
    end(stage)
    switch(stage, "shadow")
    assert stage.ready(pull, PREVIEW) == "success"


# Switched off.


@pytest.mark.usefixtures("no_news")
def test_planning_that_was_switched_off_goes_on(stage: Stage) -> None:
    pull = stage.open()
    stage.world.take_events()
    stage.reap()
    stage.world.take_events()
    assert stage.ready(pull) in RUNNING
    stage.mode = "off"
    stage.reap()
    assert stage.ready(pull) in AWAITED
    assert title(stage, pull).startswith("fla-bot is switched off")
    assert stage.due()["due"] == []
    switch(stage, "on")
    assert "approval of this commit" in title(stage, pull)
    assert stage.due()["due"] == []


@pytest.mark.usefixtures("no_news")
def test_what_is_known_outlives_the_switch(stage: Stage) -> None:
    """A word that counts stays one: the head was there all the time."""
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    before = stage.standing(pull)
    switch(stage, "off")
    assert stage.ready(pull) in AWAITED
    assert stage.standing(pull) == before
    switch(stage, "on")
    assert stage.ready(pull) in RUNNING
    end(stage)
    assert stage.ready(pull) == "success"


@pytest.mark.usefixtures("no_news")
def test_green_that_was_handed_over_for_another_of_its_head_is_looked_at(stage: Stage) -> None:
    """The verdict over both says why it is held, and not in these words."""
    stage.git.git("branch", "stable", "main")
    stage.world.push("stable", sha=stage.world.tip("main"))
    pull = stage.open()
    stage.settle()
    other = twin(stage, pull)
    stage.settle()
    stage.approve(pull)
    stage.approve(other)
    end(stage)
    assert stage.ready(pull) == "success"
    stage.mode = "off"
    stage.world.edit_pull(other, Actor("eve"), base="stable")
    stage.settle()
    assert stage.ready(pull) in AWAITED
    stage.mode = "on"
    stage.world.advance(hours=2)
    assert other.number in stage.due()["due"]
    for _ in range(2):
        stage.reap()
        stage.settle()
    assert "switched off" not in title(stage, pull)


@pytest.mark.usefixtures("no_news")
def test_group_that_was_switched_off_goes_on(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.turn_green(pull)
    gated.put("main", {"fla/modules/__init__.py": '"""Newer."""\n'})
    head = gated.enqueue(pull)
    gated.reap()
    gated.settle()
    assert gated.verdict(head) == "in_progress"
    gated.mode = "off"
    gated.reap()
    assert gated.verdict(head) == "action_required"
    assert pull.number not in gated.due()["due"]
    switch(gated, "on")
    assert gated.verdict(head) == "in_progress"
    end(gated)
    assert gated.verdict(head) == "success"


def rounds(stage: Stage, count: int) -> None:
    """The reaper goes round, and nobody has anything new for it."""
    for _ in range(count):
        stage.reap()
        stage.settle()
        stage.world.advance(minutes=10)
        stage.looked()


@pytest.mark.parametrize("days", [0, 9])
def test_word_while_all_is_off_is_heard_afterwards(stage: Stage, days: int) -> None:
    pull = stage.open()
    stage.settle()
    rounds(stage, 7)
    assert stage.due()["due"] == []
    stage.mode = "off"
    word = stage.say(pull, "mona", f"/fla-bot approve {pull.sha}")
    stage.settle()
    rounds(stage, 2)
    assert stage.due()["due"] == []  # it hears nobody, and looks at nothing in vain
    stage.world.advance(days=days)
    rounds(stage, 2)
    assert stage.runs() == []
    stage.mode = "on"
    assert why(stage, pull) == "news"
    rounds(stage, 1)
    assert reactions(stage)[word.id] == "+1"
    assert len(stage.runs()) == 2
    end(stage)
    rounds(stage, 4)
    assert stage.due()["due"] == []


def test_word_that_is_gone_while_all_is_off_counts_no_more(stage: Stage) -> None:
    stage.put("main", {"contracts/l2norm.yaml": CONTRACT})
    pull = stage.open(files={"contracts/l2norm.yaml": LOOSER})
    stage.settle()
    (code,) = codes(stage, pull)
    word = stage.say(pull, "mona", f"/fla-bot accept {code}")
    stage.settle()
    stage.turn_green(pull)
    rounds(stage, 7)
    assert stage.due()["due"] == []
    stage.mode = "off"
    stage.world.edit_comment(word, Actor("mona"), "on second thoughts")
    stage.settle()
    rounds(stage, 2)
    stage.mode = "on"
    rounds(stage, 1)
    assert stage.ready(pull) in AWAITED
    assert f"accept {code}" in title(stage, pull)


def test_run_of_the_reaper_tells_that_all_is_off() -> None:
    """Its name is all that is left of it."""
    name = WORKFLOWS[PLANNER]["run-name"]
    assert f"vars.FLA_BOT == 'off' && '{OFF_RUN}' || ''" in name
    assert "github.event_name == 'schedule' &&" in name


def test_looks_cost_the_same_in_every_mode(stage: Stage) -> None:
    """What `due` reads stays little."""
    stage.open()
    stage.settle()

    def calls() -> int:
        before = len(stage.github.log)
        stage.due()
        return len(stage.github.log) - before

    rounds(stage, 3)
    usual = calls()
    for mode in ("off", "shadow", "no-dispatch", "on"):
        stage.mode = mode
        assert calls() == usual
        stage.looked()
    assert usual <= 8


# No dispatch.


@pytest.mark.usefixtures("no_news")
def test_what_was_approved_runs_when_machines_may_be_started(stage: Stage) -> None:
    stage.mode = "no-dispatch"
    pull, other = stage.open(), stage.open("bob")
    stage.settle()
    stage.approve(pull)
    assert stage.standing(pull).held == ["correctness:sm90", "interpret:cpu"]
    assert stage.due()["due"] == []
    stage.mode = "on"
    assert stage.due()["due"] == [pull.number]  # nobody has approved the other one
    switch(stage, "on")
    assert stage.ready(pull) in RUNNING
    assert len(stage.runs()) == 2
    end(stage)
    assert stage.ready(pull) == "success"
    assert stage.due()["due"] == []
    assert stage.ready(other) in AWAITED


@pytest.mark.usefixtures("no_news")
def test_lane_that_need_not_pass_runs_then_too(stage: Stage) -> None:
    """The verdict waits for nothing, and so does not tell that a lane was held back."""
    policy = POLICY.replace("required: true", "required: false")
    stage.put("main", {"contracts/policy.yaml": policy})
    stage.mode = "no-dispatch"
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    assert stage.ready(pull) == "success"
    assert stage.due()["due"] == []
    switch(stage, "on")
    assert len(stage.runs()) == 2
    end(stage)
    assert stage.due()["due"] == []


# Caps and days.


def spent(stage: Stage) -> Pull:
    """A pull request whose next head needs more minutes than the day has left."""
    cap(stage, "minutes: 50")
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    end(stage)
    stage.push(pull, stage.kernel(SMALLER))
    stage.settle()
    stage.approve(pull)
    end(stage)
    return pull


@pytest.mark.usefixtures("no_news")
def test_minutes_of_another_day_are_used_without_a_word(stage: Stage) -> None:
    pull = spent(stage)
    assert stage.ready(pull) in AWAITED
    assert f"has used 50 of 50 minutes today; {TOMORROW}" in title(stage, pull)
    assert stage.due()["due"] == []
    stage.world.advance(hours=30)
    assert why(stage, pull) == "interpret:cpu was held back"
    stage.reap()
    assert len(stage.runs()) == 1
    end(stage)
    assert stage.ready(pull) == "success"
    assert stage.due()["due"] == []


@pytest.mark.usefixtures("no_news")
def test_order_over_the_cap_of_a_day_is_told_what_to_type_tomorrow(stage: Stage) -> None:
    cap(stage, "minutes: 45")
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    for run in stage.runs():
        stage.world.begin(run)
        stage.publish(run, {})
        stage.world.finish(run, "failure")
    word = stage.say(pull, "mona", "/fla-bot rerun")
    stage.settle()
    said = stage.comments(pull)[0].replace("\\", "")
    line = "/fla-bot run correctness:sm90"
    assert reactions(stage)[word.id] == "-1"
    assert f"minutes today; {TOMORROW}, then type {line}" in said
    stage.world.advance(hours=30)
    stage.reap()
    assert stage.runs() == []
    assert stage.due()["due"] == []
    stage.say(pull, "mona", line)
    stage.settle()
    assert len(stage.runs()) == 1


@pytest.mark.usefixtures("no_news")
def test_group_over_a_cap_says_when_it_is_queued_again(gated: Stage) -> None:
    cap(gated, "minutes: 50")
    pull = gated.open()
    gated.settle()
    gated.turn_green(pull)
    gated.put("main", {"fla/modules/__init__.py": '"""Newer."""\n'})
    head = gated.enqueue(pull)
    gated.reap()
    gated.settle()
    end(gated)
    assert gated.verdict(head) == "failure"
    shown = gated.view(pull, head).shown[READY].title
    assert shown.endswith(f"minutes today; {TOMORROW}; queue it again")


@pytest.mark.usefixtures("no_news")
@pytest.mark.parametrize("name", ["minutes", "day_minutes"])
def test_lane_that_no_day_has_room_for_waits_for_none(gated: Stage, name: str) -> None:
    cap(gated, f"{name}: 20")
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    end(gated)
    gated.world.advance(hours=30)
    assert gated.ready(pull) == "action_required"
    assert "interpret:cpu waits: it may take 30 minutes" in title(gated, pull)
    assert gated.due()["due"] == []


@pytest.mark.usefixtures("no_news")
def test_lane_that_works_again_starts_without_a_word(gated: Stage) -> None:
    pull, other = gated.open(), gated.open("bob")
    gated.settle()
    gated.approve(other)
    for _ in range(3):
        for run in gated.runs():
            gated.world.begin(run)
            gated.publish(run, {})
            gated.world.finish(run, "failure")
        gated.say(other, "mona", "/fla-bot rerun")
        gated.settle()
    for run in gated.runs():
        gated.world.finish(run, "cancelled")
    gated.approve(pull)
    assert gated.ready(pull) == "action_required"
    assert pull.number not in gated.due()["due"]
    gated.reap(other)
    gated.say(other, "mona", "/fla-bot rerun")
    gated.settle()
    end(gated)
    assert gated.ready(other) == "success"
    assert gated.due()["due"] == [pull.number]
    gated.reap()
    end(gated)
    assert gated.ready(pull) == "success"


def test_standing_of_an_earlier_version_is_read(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    old = stage.standing(pull)
    assert "held" not in old.model_dump(exclude_defaults=True)
    assert unpack(Standing, pack(old)) == old


# Reactions.


@pytest.mark.parametrize("first", [True, False])
def test_misspelt_line_beside_a_good_one_is_not_understood(stage: Stage, first: bool) -> None:
    pull = stage.open()
    stage.settle()
    lines = [f"/fla-bot aprove {pull.sha}", f"/fla-bot approve {pull.sha}"]
    word = stage.say(pull, "mona", "\n\n".join(lines if first else reversed(lines)))
    stage.settle()
    assert reactions(stage)[word.id] == "confused"
    assert len(stage.runs()) == 2


def test_refusal_is_the_worst_answer_of_all(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    lines = [f"/fla-bot approve {'0' * 40}", "/fla-bot aprove", "/fla-bot help"]
    for count, worst in ((3, "-1"), (2, "confused"), (1, "eyes")):
        word = stage.say(pull, "wes", "\n\n".join(lines[-count:]))
        stage.settle()
        assert reactions(stage)[word.id] == worst
    assert set(REACTIONS) == {"+1", "-1", "confused", "eyes"}
