"""What a second reader of the planner found: merge groups, stale faults, previews, comments."""

from __future__ import annotations

import json
import subprocess
from copy import copy
from dataclasses import replace

import pytest

from bot.github.due import only_words
from bot.github.ledger import PREVIEW
from bot.github.records import File
from tests.github.stage import AWAITED, BOOKS, RUNNING, WORKFLOWS, Stage
from tests.github.test_trust import CONTRACT, branch, merged
from tests.github.world import Actor, Pull


def stacked(stage: Stage, first: Pull, second: Pull) -> str:
    """Both in the queue, one on top of the other: the commit of the upper group."""
    tip = stage.world.tip("main") or ""
    below = merged(stage, first, tip)
    branch(stage, first.number, tip, below)
    above = merged(stage, second, below)
    branch(stage, second.number, below, above)
    return above


def codes(stage: Stage, pull: Pull, head: str = "") -> list[str]:
    """What a person must accept."""
    case = stage.view(pull, head).standings[pull.number].case
    assert case is not None
    return [item.accept for item in case.report.checklist if item.accept]


def pushed_by(stage: Stage, pull: Pull, login: str) -> None:
    """Somebody pushes commits that another has written."""
    stage.push(pull, {f"docs/{pull.number}.md": "more\n"})
    stage.world.events.clear()
    stage.world.emit("pull_request", "synchronize", Actor(login), pull)
    stage.settle()


def test_nobody_accepts_their_own_push_in_a_merge_group(gated: Stage) -> None:
    for login in ("pia", "ada"):
        gated.world.person(login, "maintain")
    weaker = (("fp32: 2.0e-7", "fp32: 2.0e-5"), ("bounds: {B: 1024", "bounds: {B: 512"))
    pulls = []
    for author, edit in zip(("alice", "bob"), weaker, strict=True):
        pulls.append(gated.open(author, {"contracts/l2norm.yaml": CONTRACT.replace(*edit)}))
        gated.settle()
    first, second = pulls
    pushed_by(gated, first, "ada")
    pushed_by(gated, second, "pia")
    for pull in pulls:
        for code in codes(gated, pull):
            gated.say(pull, "mona", f"/fla-bot accept {code}")
        gated.settle()
        gated.turn_green(pull)
    above = stacked(gated, first, second)
    gated.reap()
    gated.settle()
    for login in ("pia", "ada", "mona"):
        assert gated.verdict(above) == "failure"
        for code in codes(gated, second, above):
            gated.say(second, login, f"/fla-bot accept {code}")
        gated.settle()
    for run in gated.runs():
        gated.execute(run)
    assert gated.verdict(above) == "success"


def test_group_behind_a_measured_kernel_needs_no_machine(stage: Stage) -> None:
    """The kernel ahead is in the group, and nobody approved it for the pull request of words."""
    kernel, words = stage.open("alice"), stage.open("bob", {"docs/b.md": "b\n"})
    stage.settle()
    stage.turn_green(kernel)
    above = stacked(stage, kernel, words)
    stage.reap()
    stage.settle()
    assert stage.verdict(above) == "success"
    assert stage.runs() == []


# Faults of another head.


@pytest.mark.parametrize("late", ["no plan", "a fault", "wrong plan"])
def test_fault_of_an_older_head_is_no_fault_of_this_one(stage: Stage, late: str) -> None:
    pull = stage.open("wes", {"docs/x.md": "x\n"}, fork=False)
    plan = stage.folder / "older.json"
    (older,) = stage.world.take_events("pull_request")
    older = replace(older, subject=copy(pull))  # what the event says is of its own time
    if late == "wrong plan":
        stage.scope(older, plan)
        data = json.loads(plan.read_text())
        data["cases"][0]["report"]["plan"]["hash"] = "0" * 16
        plan.write_text(json.dumps(data))
    elif late == "a fault":
        missing = {"number": pull.number, "head": pull.sha, "fault": "the contract is broken"}
        plan.write_text(json.dumps({"schema": "fla-bot/cases@1", "faults": [missing]}))
    stage.push(pull, {"docs/x.md": "y\n"}, "wes")
    stage.settle()
    assert stage.ready(pull) == "success"
    stage.plan(older, plan, SCOPE_RESULT="failure" if late == "no plan" else "success")
    assert stage.ready(pull) == "success"


def test_fault_of_nobody_knows_which_head_takes_no_plan_away(stage: Stage) -> None:
    """A dispatch names no head; where there is no plan, its fault is said."""
    planned = stage.open("alice", {"docs/a.md": "a\n"})
    stage.settle()
    new = stage.open("bob", {"docs/b.md": "b\n"})
    stage.world.take_events()
    stage.reap()
    (dispatch,) = stage.world.take_events("workflow_dispatch")
    for pull, state in ((planned, "success"), (new, "failure")):
        dispatch.subject.inputs["pr"] = str(pull.number)
        stage.plan(dispatch, stage.folder / "none.json", SCOPE_RESULT="failure")
        assert stage.ready(pull) == state


def test_fault_of_a_merge_group_that_was_built_anew(gated: Stage) -> None:
    pull = gated.open("alice", {"docs/a.md": "a\n"})
    gated.settle()
    tip, plan = gated.world.tip("main") or "", gated.folder / "older.json"
    wrong = gated.commit({"docs/z.md": "z\n"}, tip, "wes")
    branch(gated, pull.number, tip, wrong)
    gated.reap(pull)
    (dispatch,) = gated.world.take_events("workflow_dispatch")
    gated.scope(dispatch, plan)
    head = gated.enqueue(pull)
    gated.plan(dispatch, plan)
    assert gated.verdict(head) != "failure"


@pytest.mark.parametrize("hours", [0, 2])
def test_merge_group_that_lost_its_planner_is_planned_again(stage: Stage, hours: int) -> None:
    pull = stage.open("alice", {"docs/a.md": "a\n"})
    stage.settle()
    head = stage.enqueue(pull)
    for _ in range(2 + 6 * hours):
        stage.reap()
        # GitHub loses what was started, or its job `scope` dies.
        assert len(stage.world.take_events("workflow_dispatch")) == 1
        assert stage.verdict(head) in (AWAITED if hours else RUNNING) + RUNNING
        stage.world.advance(minutes=10)
    assert stage.verdict(head) in (("failure",) if hours else RUNNING)
    stage.reap()
    stage.settle()
    assert stage.verdict(head) == "success"
    stage.reap()
    assert stage.world.take_events("workflow_dispatch") == []


def test_merge_group_that_waits_writes_no_status_again_and_again(stage: Stage) -> None:
    pull = stage.open("alice", {"docs/a.md": "a\n"})
    stage.settle()
    head = stage.enqueue(pull)
    counts = []
    for _ in range(5):
        stage.reap()
        stage.world.advance(minutes=10, seconds=0.4)
        counts.append(len([item for item in stage.world.statuses if item.sha == head]))
    assert counts[1] == counts[-1]


# Previews, comments, the queue of writers.


def test_preview_holds_as_long_as_its_base_has_no_policy(stage: Stage) -> None:
    tip = stage.world.tip("main") or ""
    stage.world.push("old", sha=tip)
    stage.put("old", {"contracts/policy.yaml": None})
    stage.git.git("switch", "--quiet", "main")
    pull = stage.open("alice", base="old")
    stage.settle()
    shown = stage.ready(pull, PREVIEW)
    stage.world.advance(minutes=10)
    stage.reap(pull)
    assert stage.world.take_events("workflow_dispatch") == []
    assert stage.ready(pull, PREVIEW) == shown
    stage.put("old", {"contracts/policy.yaml": (BOOKS / "policy.yaml").read_text()})
    stage.reap(pull)
    assert len(stage.world.take_events("workflow_dispatch")) == 1


LATIN = "# -*- coding: latin-1 -*-"


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("@@ -40,2 +40,3 @@ def f():\n x = 1\n+    # used while decoding: see above\n y = 2", True),
        ("@@ -1,2 +1,3 @@\n+# used while decoding\n import a\n import b", True),
        (f"@@ -1,3 +1,4 @@\n # a\n # b\n+{LATIN}\n import a", True),
        (f"@@ -1,2 +1,3 @@\n # a\n+{LATIN}\n import a", False),
        (f"@@ -1,3 +1,2 @@\n-{LATIN}\n import a\n import b", False),
        (f"@@ -1,3 +1,2 @@\n # a\n-\n {LATIN}\n import a", False),
        (f"@@ -1,2 +1,4 @@\n+\n+\n {LATIN}\n import a", False),
        (f"@@ -1,3 +1,4 @@\n {LATIN}\n import a\n+# b\n import b", True),
        ("@@ -9,2 +9,3 @@\n x = 1\n+# a\rimport os\n y = 2", False),
        ("@@ -9,2 +9,3 @@\n x = 1\r\n+# a\r\n y = 2\r", True),
    ],
)
def test_comment_that_says_how_a_file_is_read(patch: str, *, words: bool) -> None:
    file = File(filename="fla/a.py", status="modified", sha="0" * 40, patch=patch)
    assert only_words(file) is words


def test_plan_of_a_merge_group_waits_for_the_writers_of_its_pull_request() -> None:
    """Also where there is only a fault: one pull request has one writer at a time."""
    steps = WORKFLOWS["fla-bot.yml"]["jobs"]["scope"]["steps"]
    (script,) = (step["run"] for step in steps if step.get("id") == "scope")
    filter_ = script.partition("jq '")[2].partition("'")[0]
    plans = {
        '{"cases": [{"number": 3}], "faults": [{"number": 4}]}': "3\n",
        '{"cases": [], "faults": [{"number": 4}]}': "4\n",
        '{"cases": [], "faults": []}': "",
        '{"cases": [{"number": "$(x)"}]}': "",
    }
    for plan, number in plans.items():
        done = subprocess.run(
            ["jq", filter_], input=plan, capture_output=True, text=True, check=True
        )
        assert done.stdout == number
