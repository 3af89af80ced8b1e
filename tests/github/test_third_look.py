"""What a third reader of the planner found: other ops' contracts, groups, edits, shared heads."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bot.github.approvals import People
from bot.github.case import Merged, Waiver
from bot.github.ledger import READY
from bot.github.merging import permitted, waived
from bot.github.operate import PLANNER
from bot.github.parts import read_part
from bot.github.situation import Group, Part
from bot.model import Confidence, Finding, Severity
from tests.conftest import ROOT
from tests.github.stage import AWAITED, KERNEL, RUNNING, Content, Stage
from tests.github.test_answers import reactions
from tests.github.test_second_look import codes, stacked
from tests.github.test_trust import ANCHORS, CONTRACT, NAIVE
from tests.github.world import Actor, Pull


@pytest.fixture
def no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reaper went through lately: nothing is news."""
    monkeypatch.setattr(
        "bot.github.status._last_look", lambda reconciler: reconciler.now() + timedelta(hours=1)
    )


# Contracts of ops that a change does not touch.

OTHER = CONTRACT.replace("l2norm", "other")
TIGHTER = ("fp32: 2.0e-7", "fp32: 1.0e-9")


TEST = "from fla.modules.l2norm import l2norm\n\n\ndef test_l2norm():\n    l2norm\n"


def with_other_op(stage: Stage) -> None:
    """Another op with a contract, and a test that tells whom an edit of ours reaches."""
    stage.merge(
        {
            "tests/test_l2norm.py": TEST,
            "contracts/other.yaml": OTHER,
            "fla/modules/other.py": (ROOT / KERNEL).read_text().replace("l2norm", "other"),
            "fla/modules/other_naive.py": (ROOT / NAIVE).read_text().replace("l2norm", "other"),
        }
    )


def names(stage: Stage) -> set[str]:
    return {run.inputs["plan"] for run in stage.runs()}


@pytest.mark.usefixtures("no_news")
def test_contract_of_another_op_ends_no_run_and_voids_no_approval(stage: Stage) -> None:
    with_other_op(stage)
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    runs = names(stage)
    assert len(runs) == 2
    stage.put("main", {"contracts/other.yaml": OTHER.replace(*TIGHTER)})
    stage.reap()
    assert stage.ready(pull) in RUNNING
    first, second = stage.runs()
    stage.execute(first)  # the planner has not looked yet, and the gate lets it go on
    stage.settle()
    assert names(stage) == runs - {first.inputs["plan"]}
    stage.execute(second)
    assert stage.ready(pull) == "success"
    assert stage.due()["due"] == []


@pytest.mark.usefixtures("no_news")
def test_green_waits_until_it_is_seen_that_another_contract_is_none_of_its_own(
    stage: Stage,
) -> None:
    with_other_op(stage)
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    plan = stage.case(pull).plan
    stage.put("main", {"contracts/anchors/other.json": ANCHORS.replace("l2norm", "other")})
    assert stage.due()["due"] == []
    stage.put("main", {"contracts/other.yaml": OTHER.replace(*TIGHTER)})
    assert stage.due()["due"] == [pull.number]
    stage.reap()
    assert stage.ready(pull) in RUNNING
    assert not stage.standing(pull).void
    stage.settle()
    assert stage.ready(pull) == "success"
    assert stage.case(pull).plan == plan
    assert stage.runs() == []


def test_contract_of_another_op_that_comes_to_concern_the_change(stage: Stage) -> None:
    with_other_op(stage)
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    wider = OTHER.replace("/fla/modules/other.py", "/fla/modules/l2norm.py")
    stage.put("main", {"contracts/other.yaml": wider})
    stage.reap()
    stage.settle()
    assert {job.op for job in stage.case(pull).report.plan.jobs} == {"l2norm", "other"}
    assert stage.ready(pull) not in ("success", "none")


def test_plan_that_comes_out_otherwise_is_the_one_in_force(gated: Stage) -> None:
    """What judges the op itself is the same; what is asked for is not."""
    with_other_op(gated)
    pull = gated.open()
    gated.settle()
    gated.turn_green(pull)
    gated.put("main", {"contracts/other.yaml": OTHER.replace(*TIGHTER)})
    gated.reap()
    (event,) = gated.world.take_events("workflow_dispatch")
    path = gated.folder / "plan.json"
    gated.scope(event, path)
    data = json.loads(path.read_text())
    data["cases"][0]["late"] = True
    path.write_text(json.dumps(data))
    gated.plan(event, path)
    assert gated.case(pull).late
    assert gated.ready(pull) == "failure"


def test_contract_of_the_own_op_ends_its_runs(stage: Stage) -> None:
    with_other_op(stage)
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    runs = names(stage)
    stage.put("main", {"contracts/l2norm.yaml": CONTRACT.replace(*TIGHTER)})
    stage.reap()
    assert stage.standing(pull).void
    stage.settle()
    assert not names(stage) & runs


@pytest.mark.usefixtures("no_news")
def test_plan_that_nobody_looks_at_again_is_red_in_the_end(gated: Stage) -> None:
    with_other_op(gated)
    pull = gated.open()
    gated.settle()
    gated.turn_green(pull)
    gated.put("main", {"contracts/other.yaml": OTHER.replace(*TIGHTER)})
    for _ in range(8):
        gated.reap()
        assert len(gated.world.take_events("workflow_dispatch")) == 1  # GitHub loses it
        gated.world.advance(minutes=10)
    assert gated.ready(pull) == "failure"
    gated.reap()
    gated.settle()
    assert gated.ready(pull) == "success"


# What a merge group needs of people.

LOOSER = CONTRACT.replace("fp32: 2.0e-7", "fp32: 2.0e-5")


def green(stage: Stage, author: str, files: dict[str, Content], *who: str) -> Pull:
    """A pull request whose digests are accepted, and which is proved."""
    pull = stage.open(author, files)
    stage.settle()
    for login in who:
        for code in codes(stage, pull):
            stage.say(pull, login, f"/fla-bot accept {code}")
    stage.turn_green(pull)
    return pull


def planners(stage: Stage) -> int:
    return sum(run.workflow.file == PLANNER for run in stage.world.runs.values())


def shown(stage: Stage, pull: Pull, head: str) -> str:
    return stage.view(pull, head).shown[READY].title


def group(stage: Stage, first: Pull, second: Pull) -> str:
    """Both in the queue, and the reaper has seen it."""
    above = stacked(stage, first, second)
    stage.reap()
    stage.settle()
    return above


def test_words_on_each_pull_request_hold_in_a_group_of_both(stage: Stage) -> None:
    """Each accepts what the other has written: neither had a hand in what was accepted."""
    for login in ("ada", "pia"):
        stage.world.person(login, "maintain")
    first = green(stage, "ada", {"contracts/l2norm.yaml": LOOSER}, "pia")
    second = green(stage, "pia", {"bot/x.py": "x = 1\n"}, "ada")
    above = group(stage, first, second)
    assert stage.verdict(above) == "success"
    assert stage.runs() == []


def test_group_that_needs_a_word_says_where_to_type_it_and_hears_it(stage: Stage) -> None:
    first = green(stage, "alice", {"contracts/l2norm.yaml": LOOSER}, "mona")
    bounds = CONTRACT.replace("bounds: {B: 1024", "bounds: {B: 512")
    second = green(stage, "bob", {"contracts/l2norm.yaml": bounds}, "mona")
    above = group(stage, first, second)
    line = re.search(r"on #(\d+) type (/fla-bot accept [0-9a-f]{16})", shown(stage, second, above))
    assert stage.verdict(above) == "failure"
    assert line
    assert int(line[1]) == second.number
    before = planners(stage)
    stage.say(second, "stranger", line[2])
    stage.settle()
    assert planners(stage) == before
    word = stage.say(second, "mona", line[2])
    stage.settle()
    assert planners(stage) == before + 1
    assert [r.content for r in stage.world.reactions.values() if r.comment == word.id] == ["eyes"]
    assert stage.verdict(above) == "success"


def test_word_for_what_is_ahead_is_heard_in_the_group_on_top(gated: Stage) -> None:
    first = green(gated, "alice", {"contracts/l2norm.yaml": LOOSER}, "mona")
    second = green(gated, "bob", {"docs/b.md": "b\n"})
    (word,) = [c for c in gated.world.comments.values() if "/fla-bot accept" in c.body][:1]
    gated.world.edit_comment(word, Actor("mona"), "not so fast")
    gated.settle()
    above = group(gated, first, second)
    assert gated.verdict(above) == "failure"
    title = shown(gated, second, above)
    assert title.startswith(
        f"Not ready: #{first.number}, which is ahead in the queue, is not green"
    )
    for code in codes(gated, first):
        gated.say(first, "mona", f"/fla-bot accept {code}")
    gated.settle()
    assert gated.verdict(above) == "success"


def test_group_runs_under_a_word_for_each_head_in_it(gated: Stage) -> None:
    """The kernel must be measured anew, and nobody has looked at the words beside it."""
    kernel = green(gated, "alice", gated.kernel())
    words = gated.open("bob", {"docs/b.md": "b\n"})
    gated.settle()
    assert gated.ready(words) == "success"
    gated.put("main", {"fla/modules/__init__.py": '"""Newer."""\n'})
    above = group(gated, kernel, words)
    assert gated.verdict(above) == "failure"
    assert f"on #{words.number} type /fla-bot approve {words.sha}" in shown(gated, words, above)
    asked = gated.say(words, "mona", f"/fla-bot approve {above}")
    gated.settle()
    (found,) = [r for r in gated.world.reactions.values() if r.comment == asked.id]
    assert found.content == "-1"
    assert [run for run in gated.runs() if above in run.inputs["plan"]] == []
    gated.approve(words)
    runs = [run for run in gated.runs() if above in run.inputs["plan"]]
    assert len(runs) == 2
    # What is ahead merges first, as it is for: the group on top goes on.
    kernel.state, kernel.merged = "closed", True
    gated.world.emit("pull_request", "closed", Actor("mona"), kernel)
    gated.settle()
    for run in runs:
        gated.world.begin(run)
        assert "runs_on" in gated.gate(run)
        gated.publish(run, gated.evidence(run))
        gated.world.finish(run)
    assert gated.verdict(above) == "success"


def part_of(stage: Stage, pull: Pull) -> Part:
    """A pull request as a merge group merges it."""
    reconciler = stage.reconciler()
    with reconciler.client:
        found = read_part(reconciler.ledger, Merged(number=pull.number, head=pull.sha))
    return replace(found, hands=frozenset({"alice"}))


PEOPLE = People({"mona": "maintain", "alice": "read"}, frozenset({"alice"}))


def test_group_reaches_no_further_than_its_words_together(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    part, case = part_of(gated, pull), gated.case(pull)
    both = Group(part, (part,))
    assert permitted(case, both, "us", PEOPLE)[0]
    larger = case.model_copy(update={"sensitive": ["bot/x.py"]})
    more = f"update the branch of #{pull.number} and approve it there: the approval was not for"
    assert permitted(larger, both, "us", PEOPLE) == (None, f"{more} bot/x.py")


def test_rule_is_waived_in_a_group_if_it_is_wherever_it_hits(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.say(pull, "mona", "/fla-bot waive CAL001 known, see #1")
    part = part_of(gated, pull)
    assert part.standing
    assert part.standing.case
    hit = finding()
    report = part.standing.case.report.model_copy(update={"findings": [hit]})
    case = part.standing.case.model_copy(update={"report": report, "hits": {hit.code: (1, 0)}})
    number = part.comments[-1].id
    word = Waiver(comment=number, login="mona", target=hit.code, reason="known", plan=case.plan)
    bare = replace(part, standing=part.standing.model_copy(update={"case": case}))
    assert waived(case, Group(bare, (part,)), "us", PEOPLE) == []  # nobody has looked at it yet
    known = part.standing.model_copy(update={"case": case, "waivers": [word]})
    hits = replace(part, standing=known)
    assert [w.target for w in waived(case, Group(hits, (part,)), "us", PEOPLE)] == [hit.code]
    silent = replace(hits, comments=())
    assert waived(case, Group(hits, (silent,)), "us", PEOPLE) == []


def finding() -> Finding:
    return Finding(
        code="CAL001",
        name="call-binding",
        path="fla/a.py",
        line=1,
        end_line=1,
        severity=Severity.ERROR,
        confidence=Confidence.HIGH,
        message="",
    )


def look_again(stage: Stage, pull: Pull) -> None:
    """Somebody starts the planner by hand."""
    stage.world.dispatch(Actor("wes"), PLANNER, "main", {"pr": str(pull.number)})
    stage.settle()


def test_group_of_what_nobody_has_accepted_is_red(stage: Stage) -> None:
    """Whoever may can put anything into the queue."""
    stage.world.person("ada", "maintain")
    pull = stage.open("ada", {"contracts/l2norm.yaml": LOOSER})
    stage.settle()
    stage.approve(pull)
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) in AWAITED
    head = stage.enqueue(pull)
    stage.reap(pull)
    stage.settle()
    (code,) = codes(stage, pull)
    assert stage.verdict(head) == "failure"
    assert f"on #{pull.number} type /fla-bot accept {code}" in shown(stage, pull, head)
    for login in ("wes", "ada"):
        stage.say(pull, login, f"/fla-bot accept {code}")
        stage.settle()
        look_again(stage, pull)
        assert stage.verdict(head) == "failure"
    stage.say(pull, "mona", f"/fla-bot accept {code}")
    stage.settle()
    assert stage.verdict(head) == stage.ready(pull) == "success"


def test_waiver_of_what_is_ahead_holds_in_the_group_on_top(gated: Stage) -> None:
    first = gated.open("alice")
    second = gated.open("bob", {"docs/b.md": "b\n"})
    gated.settle()
    for pull in (first, second):
        gated.approve(pull)
    for run in gated.runs():
        gated.execute(run, rms=0.5)
    for job in gated.case(first).report.plan.jobs:
        gated.say(first, "mona", f"/fla-bot waive {job.id} known, see #1")
    gated.settle()
    assert gated.ready(first) == "success"
    above = group(gated, first, second)
    assert gated.runs() == []  # what has failed is not measured again
    assert gated.verdict(above) == "success"


# Edited comments.


def test_command_that_its_author_mended_is_told_to_be_typed_anew(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    word = stage.say(pull, "mona", f"/fla-bot aprove {pull.sha}")
    stage.settle()
    stage.say(pull, "wes", "/fla-bot help")
    stage.settle()
    stage.world.advance(seconds=9)
    line = f"/fla-bot approve {pull.sha}"
    stage.world.edit_comment(word, Actor("mona"), line)
    stage.settle()
    assert reactions(stage)[word.id] == "confused"
    text = f"an edited comment commands nothing; type {line} in a new one"
    assert text in stage.comments(pull)[0]
    assert stage.runs() == []
    writes = len(stage.github.writes)
    stage.reap(pull)
    assert not [w for w in stage.github.writes[writes:] if "reactions" in w.operation]
    assert stage.comments(pull)[0].count(text) == 1
    stage.push(pull, {"docs/more.md": "more\n"})
    stage.settle()
    assert stage.comments(pull)[0].count(text) == 0  # and nobody is told again on the next head


def test_approval_whose_comment_was_edited_says_so(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    words = f"Looks good.\n\n/fla-bot approve {pull.sha}"
    word = stage.say(pull, "mona", words)
    stage.settle()
    assert len(stage.runs()) == 2
    stage.world.advance(seconds=9)
    stage.world.edit_comment(word, Actor("mona"), words.replace("good", "very good"))
    stage.settle()
    text = f"the approval in comment {word.id} was edited; type it again"
    for _ in range(2):
        assert stage.ready(pull) in AWAITED
        assert text in stage.standing(pull).title
        assert text in stage.comments(pull)[0]
        assert "runs_on" not in stage.gate(stage.runs()[0])
        stage.world.advance(minutes=10)
        stage.reap(pull)
    stage.approve(pull, "wes")
    assert text not in stage.comments(pull)[0]
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) == "success"


# Pull requests with the same head.


def twin(stage: Stage, pull: Pull, author: str = "eve", **more: Any) -> Pull:
    """Anybody can push the commits of another to a fork of their own."""
    found = stage.world.open_pull(author, sha=pull.sha, **more)
    stage.git.git("update-ref", f"refs/pull/{found.number}/head", found.sha)
    return found


@pytest.mark.parametrize("draft", [True, False])
def test_stranger_with_the_same_head_is_named_with_the_way_out(stage: Stage, draft: bool) -> None:
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    other = twin(stage, pull, draft=draft)
    words = f"Held by #{other.number} of eve, which has the same head: close it, or push another"
    stage.settle()
    assert stage.ready(pull) in AWAITED
    assert words in stage.view(pull).shown[READY].title
    stage.reap(pull)
    assert stage.ready(pull) in AWAITED
    assert words in stage.view(pull).shown[READY].title
    assert words in stage.comments(pull)[0].replace("\N{ZERO WIDTH JOINER}", "")
    stage.world.edit_pull(other, Actor("mona"), state="closed")
    stage.settle()
    assert stage.ready(pull) == "success"


def test_another_commit_leaves_a_stranger_with_the_old_head_behind(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    twin(stage, pull, draft=True)
    stage.settle()
    stage.push(pull, {"docs/again.md": "again\n"})
    stage.settle()
    stage.turn_green(pull)
    assert stage.ready(pull) == "success"


def merge_first(stage: Stage) -> Pull:
    """A pull request that was merged into the one gated branch; there is another one."""
    stage.git.git("branch", "stable", "main")
    stage.world.push("stable", sha=stage.world.tip("main"))
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    pull.state, pull.merged = "closed", True
    stage.world.emit("pull_request", "closed", Actor("mona"), pull)
    stage.settle()
    assert stage.ready(pull) == "success"
    return pull


def test_green_of_a_merged_head_is_none_for_another_branch(stage: Stage) -> None:
    pull = merge_first(stage)
    other = twin(stage, pull, base="stable")
    before = len(stage.github.writes)
    stage.settle()
    first = next(w for w in stage.github.writes[before:] if "installation" not in w.operation)
    assert first.operation in ("checks/update", "repos/create-commit-status")
    assert first.body.get("conclusion", first.body.get("state")) != "success"
    assert stage.ready(other) in AWAITED
    stage.turn_green(other)


@pytest.mark.parametrize("retarget", [True, False])
def test_green_of_a_merged_head_is_found_however_late(stage: Stage, retarget: bool) -> None:
    pull = merge_first(stage)
    if retarget:
        stage.world.push("old", sha=stage.world.tip("main"))
        stage.git.git("branch", "old", "main")
        stage.put("old", {"contracts/policy.yaml": None, "contracts/l2norm.yaml": None})
        stage.git.git("switch", "--quiet", "main")
    other = twin(stage, pull, base="old" if retarget else "stable")
    if retarget:
        stage.settle()
        stage.world.edit_pull(other, Actor("eve"), base="stable")
    assert stage.ready(other) == "success"
    stage.world.take_events()  # lost, and the reaper was off
    stage.world.advance(hours=30)
    assert stage.due()["due"] == [other.number]
    stage.reap()
    assert stage.ready(other) in RUNNING
    stage.settle()
    assert stage.ready(other) in AWAITED


def test_more_pull_requests_of_one_head_than_a_status_has_room_for(stage: Stage) -> None:
    if stage.has_app:
        return
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    others = [twin(stage, pull, f"eve{number}") for number in range(3)]
    stage.settle()
    plans = {other.number: stage.case(other).plan for other in (pull, *others)}
    late = twin(stage, pull, "zoe")
    for _ in range(2):
        stage.settle()
        assert stage.ready(late) == "failure"
        assert "close some of the pull requests with this head" in stage.comments(late)[0]
        assert late.number not in stage.view(late).standings
        assert plans == {o.number: stage.case(o).plan for o in (pull, *others)}
        before = planners(stage)
        stage.reap()
        assert planners(stage) == before
    stage.reap(pull)
    assert stage.ready(pull) == "failure"
    stage.world.edit_pull(others[0], Actor("mona"), state="closed")
    stage.settle()
    stage.reap()
    stage.settle()
    assert stage.case(late).number == late.number
    assert stage.case(pull).plan == plans[pull.number]
