"""That a word counts for what was shown when it was typed: head, plan, role and code."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import zlib
from collections.abc import Iterator

import pytest

from bot.github.approvals import LATER
from bot.github.case import Standing
from bot.github.client import Client
from bot.github.ledger import READY
from bot.github.records import IssueEvent
from tests.conftest import ROOT
from tests.github.stage import AWAITED, KERNEL, RUNNING, Content, Stage
from tests.github.test_answers import reactions
from tests.github.test_results_stay import begin, cancel, end, leave, measured
from tests.github.test_second_look import codes
from tests.github.test_third_look import green, group, shown
from tests.github.test_trust import CONTRACT, jobs, red
from tests.github.world import Actor, Event, Pull

TIGHTER = ("fp32: 2.0e-7", "fp32: 1.0e-7")
WEAKER = ("fp32: 2.0e-7", "fp32: 2.0e-5")
LOOSER = CONTRACT.replace(*WEAKER)
NOTES: dict[str, Content] = {"docs/notes.md": "a note\n"}


def force(stage: Stage, pull: Pull, sha: str, who: str = "") -> None:
    """Push an earlier commit over the head."""
    stage.world.push(pull.head, owner=pull.owner, author=who or pull.author, sha=sha)
    stage.git.git("update-ref", f"refs/pull/{pull.number}/head", sha)


def waive(stage: Stage, pull: Pull, names: list[str]) -> list[int]:
    """A maintainer's waivers of all jobs: the ids of the comments."""
    return [
        stage.say(pull, "mona", f"/fla-bot waive {name} this head is fine").id for name in names
    ]


def leave_and_come_back(stage: Stage, pull: Pull) -> None:
    """Notes are pushed, and minutes later the head that was there is forced back."""
    first = pull.sha
    stage.push(pull, NOTES)
    stage.settle()
    stage.world.advance(minutes=5)
    force(stage, pull, first)
    stage.settle()


def news(stage: Stage) -> list[Event]:
    """What GitHub tells of pull requests; the rest is still to come."""
    taken = stage.world.take_events()
    stage.world.events += [event for event in taken if event.name != "pull_request"]
    return [event for event in taken if event.name == "pull_request"]


# Waivers and orders are for the head that was there.


def test_waiver_of_another_head_whose_push_is_told_late(stage: Stage) -> None:
    pull = red(stage)
    first, names = pull.sha, jobs(stage, pull)
    stage.world.advance(minutes=5)
    stage.push(pull, NOTES)
    stage.settle()
    waive(stage, pull, names)
    stage.settle()
    stage.world.advance(minutes=5)
    stage.push(pull, {"docs/notes.md": "another\n"})
    force(stage, pull, first)
    late, back = news(stage)
    stage.handle(back)
    stage.settle()
    assert stage.ready(pull) not in ("success", "none")
    stage.handle(late)
    stage.settle()
    assert stage.ready(pull) not in ("success", "none")
    assert stage.standing(pull).waivers == []


@pytest.mark.parametrize("told", ["in time", "late", "never"])
def test_waiver_that_is_read_after_the_head_was_pushed_back(stage: Stage, told: str) -> None:
    """No event and no comment of ours need say that the head was another one meanwhile."""
    pull = red(stage)
    first, names = pull.sha, jobs(stage, pull)
    stage.world.advance(minutes=5)
    stage.push(pull, NOTES)
    pushed = [] if told == "in time" else news(stage)
    stage.settle()
    stage.world.advance(minutes=5)
    comments = waive(stage, pull, names)
    force(stage, pull, first)
    pushed += [] if told == "in time" else news(stage)
    stage.settle()
    for event in pushed if told == "late" else []:
        stage.handle(event)
    stage.settle()
    assert stage.ready(pull) not in ("success", "none")
    if stage.has_app:
        assert {reactions(stage)[comment] for comment in comments} == {"-1"}


def test_waiver_typed_after_the_head_came_back_counts(gated: Stage) -> None:
    pull = red(gated)
    names = jobs(gated, pull)
    leave_and_come_back(gated, pull)
    gated.world.advance(minutes=5)
    waive(gated, pull, names)
    gated.settle()
    assert gated.ready(pull) == "success"


def test_push_that_is_told_twice_makes_no_word_void(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.push(pull, NOTES)
    (event,) = news(gated)
    gated.handle(event)
    gated.approve(pull)
    for run in gated.runs():
        gated.execute(run, rms=0.5)
    assert gated.ready(pull) == "failure"
    gated.world.advance(minutes=5)
    waive(gated, pull, jobs(gated, pull))
    gated.handle(event)
    gated.settle()
    assert gated.ready(pull) == "success"


def test_waiver_holds_when_its_head_comes_back(gated: Stage) -> None:
    pull = red(gated)
    gated.world.advance(minutes=5)
    waive(gated, pull, jobs(gated, pull))
    gated.settle()
    assert gated.ready(pull) == "success"
    leave_and_come_back(gated, pull)
    assert gated.ready(pull) == "success"


def test_order_for_another_head_starts_nothing(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    first = pull.sha
    for run in gated.runs():
        gated.world.begin(run)
        gated.publish(run, {})
        gated.world.finish(run)
    gated.world.advance(minutes=5)
    gated.push(pull, NOTES)
    gated.settle()
    gated.world.advance(minutes=5)
    comment = gated.say(pull, "alice", "/fla-bot rerun")
    force(gated, pull, first)
    gated.settle()
    assert gated.runs() == []
    assert reactions(gated)[comment.id] == "-1"


def test_push_while_we_look_for_pushes_is_found_later(
    gated: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that was rewound in that moment comes back with no forced push."""
    pull = red(gated)
    first, names = pull.sha, jobs(gated, pull)
    base = gated.world.ancestors(first)[1]
    gated.push(pull, NOTES)
    force(gated, pull, first)
    *_, back = news(gated)
    look = Client.force_pushes

    def rewinding(client: Client, number: int) -> list[IssueEvent]:
        if pull.sha == first:
            force(gated, pull, base)
        return look(client, number)

    with monkeypatch.context() as patch:
        patch.setattr(Client, "force_pushes", rewinding)
        gated.handle(back)
    assert pull.sha == base
    gated.world.advance(minutes=5)
    waive(gated, pull, names)
    force(gated, pull, first)
    news(gated)
    gated.settle()
    assert gated.ready(pull) == "failure"


def test_push_while_a_waiver_is_looked_at(gated: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    pull = red(gated)
    first, names = pull.sha, jobs(gated, pull)
    gated.world.advance(minutes=5)
    gated.push(pull, NOTES)
    waive(gated, pull, names)
    force(gated, pull, first)
    gated.world.take_events("pull_request")
    look = Client.force_pushes

    def moving(client: Client, number: int) -> list[IssueEvent]:
        found = look(client, number)
        if pull.sha == first:
            gated.push(pull, {"docs/notes.md": "another\n"})
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Client, "force_pushes", moving)
        gated.reap(pull)
    assert pull.sha != first
    assert gated.view(pull, first).standings[pull.number].waivers == []


def test_waiver_for_a_plan_that_was_replaced_before_it_was_read(gated: Stage) -> None:
    pull = red(gated)
    names = jobs(gated, pull)
    gated.world.advance(minutes=5)
    comments = waive(gated, pull, names)
    late = gated.world.take_events("issue_comment")
    hidden = [gated.world.comments.pop(number) for number in comments]
    gated.world.advance(minutes=5)
    gated.put("main", {"contracts/l2norm.yaml": CONTRACT.replace(*TIGHTER)})
    gated.reap()
    gated.settle()
    assert jobs(gated, pull) == names
    # GitHub shows what was typed only now.
    gated.world.comments |= {comment.id: comment for comment in hidden}
    for event in late:
        gated.handle(event)
    gated.settle()
    assert gated.standing(pull).waivers == []
    assert {reactions(gated)[number] for number in comments} == {"-1"}


# Acceptances are for those who may when they type.


def test_refused_acceptance_does_not_count_later(stage: Stage) -> None:
    pull = stage.open(files={"contracts/l2norm.yaml": LOOSER})
    stage.settle()
    (code,) = codes(stage, pull)
    stage.say(pull, "wes", f"/fla-bot accept {code}")
    stage.settle()
    stage.approve(pull)
    for run in stage.runs():
        stage.execute(run)
    stage.world.person("wes", "maintain")
    stage.say(pull, "wes", "/fla-bot status")
    stage.settle()
    assert stage.ready(pull) in AWAITED
    stage.push(pull, NOTES)
    stage.settle()
    stage.approve(pull)
    assert stage.standing(pull).accepts == []
    stage.say(pull, "wes", f"/fla-bot accept {code}")
    stage.settle()
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) == "success"


def test_acceptance_goes_with_its_digest_to_the_next_heads(stage: Stage) -> None:
    pull = stage.open(files={"contracts/l2norm.yaml": LOOSER})
    stage.settle()
    (code,) = codes(stage, pull)
    comment = stage.say(pull, "mona", f"/fla-bot accept {code}")
    stage.settle()
    for number in range(2):
        stage.push(pull, {f"docs/{number}.md": "x\n"})
        stage.settle()
    assert [word.comment for word in stage.standing(pull).accepts] == [comment.id]
    stage.approve(pull)
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) == "success"
    stage.world.delete_comment(comment, Actor("mona"))
    stage.reap()
    assert stage.ready(pull) in AWAITED


def test_refused_acceptance_does_not_count_in_a_group(gated: Stage) -> None:
    pull = gated.open(files={"contracts/l2norm.yaml": LOOSER})
    gated.settle()
    (code,) = codes(gated, pull)
    gated.say(pull, "wes", f"/fla-bot accept {code}")
    gated.settle()
    gated.say(pull, "mona", f"/fla-bot accept {code}")
    gated.settle()
    gated.turn_green(pull)
    gated.world.person("wes", "maintain")
    for comment in [c for c in gated.world.comments.values() if c.actor.login == "mona"]:
        if "accept" in comment.body:
            gated.world.delete_comment(comment, Actor("mona"))
    head = gated.enqueue(pull)
    gated.reap()
    gated.settle()
    assert gated.verdict(head) == "failure"


def owned(stage: Stage) -> str:
    """The contract, with an owner whose role may accept nothing."""
    own = re.sub(r"owners:.*", 'owners: ["@oona"]', CONTRACT)
    stage.merge({"contracts/l2norm.yaml": own})
    stage.world.person("oona", "write")
    stage.world.take_events()
    return own


def both_edit(stage: Stage, own: str) -> tuple[Pull, Pull]:
    """Two green pull requests, of whose edits a group makes a digest of its own."""
    bounds = own.replace("bounds: {B: 1024", "bounds: {B: 512")
    first = green(stage, "alice", {"contracts/l2norm.yaml": own.replace(*WEAKER)}, "oona")
    return first, green(stage, "bob", {"contracts/l2norm.yaml": bounds}, "oona")


def test_owner_may_accept_what_only_a_group_asks_for(stage: Stage) -> None:
    first, second = both_edit(stage, owned(stage))
    above = group(stage, first, second)
    (code,) = asked(stage, second, above)
    comment = stage.say(second, "oona", f"/fla-bot accept {code}")
    stage.settle()
    assert reactions(stage)[comment.id] == "eyes"
    assert [word.code for word in stage.standing(second).accepts or []][-1] == code
    if not stage.has_app:  # a status stands: it is queued again
        leave(stage, above)
        stage.put("main", {"docs/newer.md": "newer\n"})
        above = group(stage, first, second)
    assert stage.verdict(above) == "success"


def asked(stage: Stage, pull: Pull, head: str) -> list[str]:
    """The digests that the check of a group names."""
    return re.findall(r"/fla-bot accept ([0-9a-f]{16})", shown(stage, pull, head))


def test_who_owns_nothing_may_not_accept_for_a_group(gated: Stage) -> None:
    first, second = both_edit(gated, owned(gated))
    above = group(gated, first, second)
    (code,) = asked(gated, second, above)
    comment = gated.say(second, "wes", f"/fla-bot accept {code}")
    gated.settle()
    assert reactions(gated)[comment.id] == "-1"
    gated.world.person("wes", "maintain")
    gated.reap()
    gated.settle()
    assert gated.verdict(above) == "failure"


# Words that were refused while somebody waits for a machine.


def lost(stage: Stage, pull: Pull) -> None:
    """All runs have ended without a result."""
    for run in stage.runs():
        begin(stage, [run])
        stage.publish(run, {})
        stage.world.finish(run)
    stage.settle()


@contextlib.contextmanager
def busy(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """All machines are: an order waits, and nobody after it is done with."""
    with patch.context() as inner:
        inner.setattr("bot.github.lanes.held", lambda *_, **__: "queue: 9 runs are ahead")
        yield


@pytest.mark.parametrize("apart", [True, False], ids=["own comment", "with the order"])
def test_refused_acceptance_does_not_count_when_an_order_is_done(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    pull = stage.open("wes", {"contracts/l2norm.yaml": LOOSER}, fork=False)
    stage.world.person("wim", "write")
    stage.settle()
    (code,) = codes(stage, pull)
    stage.approve(pull)
    lost(stage, pull)
    line = f"/fla-bot accept {code}"
    with busy(monkeypatch):
        order = stage.say(pull, "wim", "/fla-bot rerun" if apart else f"/fla-bot rerun\n\n{line}")
        word = stage.say(pull, "wim", line) if apart else order
        stage.settle()
        assert stage.standing(pull).answered < word.id
        stage.world.person("wim", "maintain")
    stage.reap(pull)
    stage.settle()
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) in AWAITED
    assert reactions(stage)[word.id] == "-1"
    assert stage.standing(pull).accepts == []
    stage.say(pull, "wim", line)
    stage.settle()
    assert stage.ready(pull) == "success"


def test_refused_waiver_does_not_count_when_an_order_is_done(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    lost(stage, pull)
    with busy(monkeypatch):
        stage.say(pull, "alice", "/fla-bot rerun")
        for name in jobs(stage, pull):
            stage.say(pull, "wes", f"/fla-bot waive {name} this head is fine")
        stage.settle()
        stage.world.person("wes", "maintain")
    stage.reap(pull)
    stage.settle()
    assert stage.ready(pull) in RUNNING
    assert stage.standing(pull).waivers == []
    assert {reply.text for reply in stage.standing(pull).replies if reply.login == "wes"} == {LATER}


def test_refused_approval_does_not_count_when_an_order_is_done(
    gated: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated.world.person("rea", "read")
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    lost(gated, pull)
    with busy(monkeypatch):
        gated.say(pull, "alice", "/fla-bot rerun")
        word = gated.say(pull, "rea", f"/fla-bot approve {pull.sha}")
        gated.settle()
        assert gated.standing(pull).answered < word.id
        gated.world.person("rea", "maintain")
    gated.reap(pull)
    gated.settle()
    assert "rea" not in [grant.login for grant in gated.standing(pull).grants]
    assert reactions(gated)[word.id] == "-1"


# What a merge group merges fails later.


def test_late_fail_of_an_earlier_head_is_known_to_the_group(stage: Stage) -> None:
    pull, runs, found = measured(stage, 0.5)
    stage.push(pull, NOTES)
    stage.settle()
    stage.approve(pull)
    for run in stage.runs():
        if pull.sha in run.inputs["plan"]:
            stage.execute(run)
    above = stage.enqueue(pull)
    stage.reap()
    stage.settle()
    assert stage.verdict(above) == "success"
    end(stage, runs, found)
    stage.reap()
    stage.settle()
    assert stage.ready(pull) == "failure"
    assert stage.verdict(above) == "failure"


def test_late_fail_of_an_ended_run_is_known_to_the_group(gated: Stage) -> None:
    pull, runs, found = measured(gated, 0.5)
    cancel(gated, pull)
    gated.settle()
    gated.say(pull, "alice", "/fla-bot rerun")
    gated.settle()
    for run in gated.runs():
        if run not in runs:
            gated.execute(run)
    above = gated.enqueue(pull)
    gated.reap()
    gated.settle()
    assert gated.verdict(above) == "success"
    end(gated, runs, found)
    assert gated.ready(pull) == "failure"
    assert gated.verdict(above) == "failure"


# Who pushes.


def test_who_pushes_a_head_back_has_a_hand_in_it(stage: Stage) -> None:
    stage.world.person("ada", "maintain")
    pull = stage.open(files={"contracts/l2norm.yaml": LOOSER})
    stage.settle()
    first = pull.sha
    stage.push(pull, NOTES)
    stage.settle()
    force(stage, pull, first, "ada")
    stage.settle()
    (code,) = codes(stage, pull)
    stage.say(pull, "ada", f"/fla-bot accept {code}")
    stage.settle()
    stage.approve(pull)
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) in AWAITED
    if stage.has_app:
        assert stage.standing(pull).pushers == ["ada", "alice"]


def test_forced_push_that_nobody_was_told_of_is_known_to_github(stage: Stage) -> None:
    stage.world.person("ada", "maintain")
    pull = stage.open(files={"contracts/l2norm.yaml": LOOSER})
    stage.settle()
    first = pull.sha
    stage.push(pull, NOTES)
    stage.settle()
    force(stage, pull, first, "ada")
    stage.world.take_events()
    stage.reap(pull)
    stage.settle()
    (code,) = codes(stage, pull)
    stage.say(pull, "ada", f"/fla-bot accept {code}")
    stage.settle()
    stage.approve(pull)
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) in AWAITED


def test_who_pushed_a_head_that_was_gone_when_it_was_told(gated: Stage) -> None:
    gated.world.person("ada", "maintain")
    pull = gated.open(files={"contracts/l2norm.yaml": LOOSER})
    gated.settle()
    gated.push(pull, NOTES, "ada")
    gated.push(pull, {"docs/notes.md": "another\n"})
    first, second = news(gated)
    gated.handle(second)
    gated.handle(first)
    gated.settle()
    assert gated.standing(pull).pushers == ["ada", "alice"]


def test_pushers_that_are_too_many_leave_nobody_who_may(
    gated: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.github.reader.MAX_PUSHERS", 2)
    pull = gated.open(files={"contracts/l2norm.yaml": LOOSER})
    gated.settle()
    for name in ("zoe", "yann", "xena"):
        gated.push(pull, {f"docs/{name}.md": "x\n"}, name)
        gated.settle()
    assert gated.standing(pull).pushers == ["alice", "?"]
    (code,) = codes(gated, pull)
    comment = gated.say(pull, "mona", f"/fla-bot accept {code}")
    gated.settle()
    assert reactions(gated)[comment.id] == "-1"


# Suppressions are for the code on their line.

GOOD, BAD = "return l2norm(x)", "return l2norm(x, nothing=1)"
SILENT = "  # fla-bot: ignore[CAL001] it is fine"


def helper(line: str, note: str = SILENT) -> dict[str, Content]:
    return {KERNEL: (ROOT / KERNEL).read_text() + f"\n\ndef helper(x):\n    {line}{note}\n"}


def accepted(stage: Stage, files: dict[str, Content]) -> Pull:
    """A green pull request, all of whose digests are accepted."""
    pull = stage.open(files=files)
    stage.settle()
    for code in codes(stage, pull):
        stage.say(pull, "mona", f"/fla-bot accept {code}")
    stage.settle()
    stage.turn_green(pull)
    return pull


SPREAD = "return l2norm({note}\n        x{more},\n    )"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (helper(GOOD), helper(BAD)),
        (
            helper(SPREAD.format(note=SILENT, more=""), ""),
            helper(SPREAD.format(note=SILENT, more=", nothing=1"), ""),
        ),
    ],
    ids=["on its line", "in its statement"],
)
def test_accepted_suppression_is_void_when_its_code_changes(
    stage: Stage, before: dict[str, Content], after: dict[str, Content]
) -> None:
    pull = accepted(stage, before)
    old = codes(stage, pull)
    stage.push(pull, after)
    stage.settle()
    stage.approve(pull)
    for run in stage.runs():
        stage.execute(run)
    assert codes(stage, pull) != old
    assert stage.ready(pull) in AWAITED


def test_accepted_suppression_holds_when_other_code_changes(stage: Stage) -> None:
    pull = accepted(stage, helper(GOOD))
    old = codes(stage, pull)
    stage.push(pull, NOTES)
    stage.settle()
    assert codes(stage, pull) == old


def test_suppression_of_the_base_silences_nothing_new(stage: Stage) -> None:
    stage.merge(helper(GOOD))
    pull = stage.open(files=helper(BAD))
    stage.settle()
    assert len(codes(stage, pull)) == 1
    other = stage.open("bob", files=helper(GOOD.replace("(x)", "(x + 0)")))
    stage.settle()
    assert codes(stage, other) == []


def test_standing_of_an_earlier_version_can_be_read() -> None:
    old = {"number": 1, "base_ref": "main", "gated": True, "state": "success", "title": "Ready",
           "since": "2026-01-01T00:00:00Z", "answered": 7}  # fmt: skip
    standing = Standing.model_validate_json(json.dumps(old))
    assert (standing.accepts, standing.forced, standing.replaced) == (None, 0, None)
    assert standing.judged == 7


def as_before(stage: Stage, pull: Pull, code: str = "") -> None:
    """The ledger as the version before this one wrote it; `code`: of another bot."""
    found = stage.standing(pull).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for name in ("accepts", "forced", "replaced", "plans", "seen"):
        found.pop(name, None)
    if code:
        found["case"]["code"] = code
    text = stage.view(pull).shown[READY].text
    packed = text.partition(f"standing {pull.number} ")[2].partition(" ")[0]
    new = base64.b64encode(zlib.compress(json.dumps(found).encode())).decode()
    (check,) = (item for item in stage.world.latest_checks(pull.sha) if item.name == READY)
    check.output["text"] = check.output["text"].replace(packed, new)
    assert stage.standing(pull).accepts is None


def test_acceptance_that_an_earlier_version_took_counts_on(gated: Stage) -> None:
    pull = accepted(gated, {"contracts/l2norm.yaml": LOOSER})
    as_before(gated, pull, "0" * 16)
    gated.reap()
    gated.settle()
    gated.turn_green(pull)
    assert len(gated.standing(pull).accepts or []) == 1


def test_waiver_where_an_earlier_version_saw_a_forced_push(gated: Stage) -> None:
    """A push that was forced before the head was seen voids no word."""
    pull = gated.open()
    gated.settle()
    changed = {**gated.kernel(), "docs/other.md": "other\n"}
    first = gated.commit(changed, gated.world.tip("main") or "", "alice")
    force(gated, pull, first)
    gated.world.advance(minutes=1)
    gated.settle()
    gated.approve(pull)
    for run in gated.runs():
        gated.execute(run, rms=0.5)
    as_before(gated, pull)
    gated.world.advance(minutes=5)
    waive(gated, pull, jobs(gated, pull))
    gated.settle()
    assert gated.ready(pull) == "success"
    assert gated.standing(pull).waivers
