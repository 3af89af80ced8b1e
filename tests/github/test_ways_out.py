"""What is red or refused names what to do, and whoever does that gets the change merged."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from bot.github.approvals import beyond, deciders
from bot.github.case import Case, Envelope, RowId
from bot.github.ledger import READY
from bot.github.merging import outdated
from bot.github.situation import Group
from tests.conftest import ROOT
from tests.github.stage import AWAITED, BOOKS, KERNEL, Stage, evidence_of
from tests.github.test_answers import reactions
from tests.github.test_results_stay import begin
from tests.github.test_third_look import OTHER, TEST, no_news, part_of, planners, shown
from tests.github.test_trust import CONTRACT, NAIVE, branch, merged
from tests.github.world import Actor, Pull

__all__ = ["no_news"]

QUEUE = "fla-bot-queue.yml"
ELSEWHERE = ("MAX_WIDTH = 8192", "MAX_WIDTH = 4096 * 2")  # the base has moved: all runs again


class Queued:
    """A pull request in the merge queue of the gated branch."""

    def __init__(self, stage: Stage, pull: Pull) -> None:
        """GitHub builds the group and runs its workflow, of whose end the planner hears."""
        self.stage, self.pull, world = stage, pull, stage.world
        tip = world.tip("main") or ""
        self.head = merged(stage, pull, tip)
        self.name = branch(stage, pull.number, tip, self.head)
        flow = world.workflows.get(QUEUE) or world.workflow(QUEUE, on=("merge_group",))
        run = world.start_run(flow, "merge_group", Actor("wes"), self.name, self.head)
        world.take_events()
        world.finish(run)
        for event in world.take_events("workflow_run"):
            if event.action == "completed":
                stage.handle(event)
        stage.settle()

    @property
    def verdict(self) -> str:
        return self.stage.verdict(self.head)

    @property
    def title(self) -> str:
        return shown(self.stage, self.pull, self.head)

    def leave(self) -> None:
        """A red group is taken out of the queue, and others merge meanwhile."""
        self.stage.git.git("update-ref", "-d", f"refs/heads/{self.name}")
        del self.stage.world.branches[self.stage.world.owner, self.name]
        self.stage.merge({f"docs/{self.head[:8]}.md": "x\n"})
        self.stage.world.take_events()

    def merge(self) -> None:
        """All that runs for the group passes, and GitHub lets it in."""
        for run in self.stage.runs():
            self.stage.execute(run)
        assert self.verdict == "success"
        assert self.stage.app
        self.stage.world.protect("main", (READY, self.stage.app.id))
        assert self.stage.world.satisfied("main", self.head)


def follow(stage: Stage, title: str, login: str = "mona") -> str:
    """Type what a title says, where it says it: the reaction."""
    found = re.search(r"on #([0-9]+) type (/fla-bot [a-z]+ [\w:]+)", title)
    assert found, title
    word = stage.say(stage.world.pulls[int(found[1])], login, found[2])
    stage.settle()
    return reactions(stage)[word.id]


def move_base(stage: Stage) -> None:
    """Another edit of the kernel merges: what was measured is so no more."""
    stage.merge({KERNEL: (ROOT / KERNEL).read_text().replace(*ELSEWHERE)})
    stage.world.take_events()


def upgrade(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bot is another one from now on."""
    monkeypatch.setattr("bot.github.actor.code_digest", lambda: "f" * 16)
    stage.world.advance(hours=1)


def proved(stage: Stage) -> Pull:
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    return pull


def told(stage: Stage, pull: Pull) -> str:
    return stage.comments(pull)[0].replace("\\", "")


# Merge groups.


@pytest.mark.usefixtures("no_news")
@pytest.mark.parametrize("stays", [True, False])
def test_group_after_an_upgrade_of_the_bot(
    gated: Stage, monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    pull = proved(gated)
    upgrade(gated, monkeypatch)
    move_base(gated)
    first = Queued(gated, pull)
    assert (first.verdict, gated.runs()) == ("failure", [])
    # The pull request has been planned by the new bot: a word for it reaches as far.
    assert gated.case(pull).code == "f" * 16
    assert gated.ready(pull) == "success"
    before = planners(gated)
    if stays:
        assert follow(gated, first.title) == "+1"
        assert planners(gated) == before + 1  # the group that is still there is planned anew
        first.merge()
        return
    first.leave()
    assert follow(gated, first.title) == "+1"
    assert planners(gated) == before
    Queued(gated, pull).merge()


def test_plan_of_an_old_bot_is_asked_for_once(gated: Stage) -> None:
    """While it is awaited, or cannot be made, the pull request says so itself."""
    pull = gated.open()
    gated.settle()
    part = part_of(gated, pull)
    assert part.standing
    assert outdated(Group(part, ()), gated.case(pull).code) == []
    assert outdated(Group(part, ()), "f" * 16) == [pull.number]
    awaited = replace(part, standing=part.standing.model_copy(update={"void": True}))
    assert outdated(Group(awaited, (part, awaited)), "f" * 16) == [pull.number]


SM100 = """  "correctness:sm100":
    machine: sm100
    device: cuda
    required: true
    runs_on: [self-hosted, linux, sm100]
    timeout_s: 600
    queue_wait_s: 3600
margins:"""
IMPORT = (
    "from torch import nn\n",
    "from torch import nn\n\nfrom fla.modules.l2norm import l2norm\n",
)
CALL = (r"(def other\(x.*?\n)(    return)", r"\1    l2norm(x, eps)\n\2")


def with_op_on_another_machine(stage: Stage) -> str:
    """An op beside l2norm that runs on another machine: its source."""
    source = (ROOT / KERNEL).read_text().replace("l2norm", "other")
    policy = (BOOKS / "policy.yaml").read_text()
    stage.merge(
        {
            "tests/test_l2norm.py": TEST,
            "contracts/policy.yaml": policy.replace("margins:", SM100, 1),
            "contracts/other.yaml": OTHER.replace('"correctness:sm90"', '"correctness:sm100"'),
            "fla/modules/other.py": source,
            "fla/modules/other_naive.py": (ROOT / NAIVE).read_text().replace("l2norm", "other"),
        }
    )
    stage.world.take_events()
    return source


def update_branch(stage: Stage, pull: Pull) -> None:
    """What GitHub's button does: the base branch is merged into the head."""
    head = merged(stage, pull, stage.world.tip("main") or "")
    stage.world.push(pull.head, owner=pull.owner, author=pull.author, sha=head)
    stage.git.git("update-ref", f"refs/pull/{pull.number}/head", head)
    stage.settle()


@pytest.mark.usefixtures("no_news")
def test_group_that_reaches_more_than_its_pull_request(gated: Stage) -> None:
    source = with_op_on_another_machine(gated)
    pull = proved(gated)
    uses = re.sub(*CALL, source.replace(*IMPORT, 1), flags=re.DOTALL)
    gated.merge({"fla/modules/other.py": uses})
    gated.world.take_events()
    group = Queued(gated, pull)
    assert group.verdict == "failure"
    assert f"update the branch of #{pull.number} and approve it there" in group.title
    assert "not for sm100; queue it again" in group.title
    group.leave()
    update_branch(gated, pull)
    gated.approve(pull)
    for run in gated.runs():
        begin(gated, [run])
        lane, case = RowId.parse(run.inputs["plan"]).lane, gated.case(pull)
        found = [evidence_of(case, lane, text=text) for text in (CONTRACT, OTHER)]
        gated.publish(run, found[0] | found[1])
        gated.world.finish(run)
    assert gated.ready(pull) == "success"
    Queued(gated, pull).merge()


# A lane that is broken.


def break_lanes(stage: Stage) -> None:
    """Infrastructure ends three runs of each lane, of another pull request."""
    other = stage.open("bob")
    stage.settle()
    stage.approve(other)
    for again in (True, True, False):
        for run in stage.runs():
            begin(stage, [run])
            stage.publish(run, {})
            stage.world.finish(run, "failure")
        stage.settle()
        if again:
            stage.say(other, "mona", "/fla-bot rerun")
            stage.settle()
    stage.world.edit_pull(other, Actor("bob"), state="closed")
    stage.settle()


@pytest.mark.usefixtures("no_news")
@pytest.mark.parametrize("stays", [True, False])
def test_broken_lane_runs_for_a_group_when_somebody_says_so(gated: Stage, stays: bool) -> None:
    pull = proved(gated)
    break_lanes(gated)
    move_base(gated)
    group = Queued(gated, pull)
    assert (group.verdict, gated.runs()) == ("failure", [])
    line = f"on #{pull.number} type /fla-bot run correctness:sm90 and 1 more; then queue it again"
    assert group.title == f"A lane is broken: once mended, {line}"
    if not stays:
        group.leave()
    assert follow(gated, group.title, "eve") == "-1"  # may not
    assert gated.runs() == []
    assert follow(gated, group.title) == "+1"
    assert "merge groups run correctness:sm90 again: queue it again" in told(gated, pull)
    assert follow(gated, group.title.replace("correctness:sm90", "interpret:cpu")) == "+1"
    (group if stays else Queued(gated, pull)).merge()


@pytest.mark.usefixtures("no_news")
def test_word_for_a_broken_lane_holds_until_it_breaks_again(gated: Stage) -> None:
    pull = proved(gated)
    break_lanes(gated)
    move_base(gated)
    word = gated.say(pull, "mona", "/fla-bot run")
    gated.settle()
    assert reactions(gated)[word.id] == "+1"
    group = Queued(gated, pull)
    gated.world.advance(minutes=1)
    runs = gated.runs()
    assert len(runs) == 2
    for run in runs:
        begin(gated, [run])
        gated.publish(run, {})
        gated.world.finish(run, "failure")
    group.leave()
    again = Queued(gated, pull)
    assert (again.verdict, gated.runs()) == ("failure", [])
    assert "on #1 type /fla-bot run correctness:sm90" in again.title


def test_whole_lane_is_not_run_again_where_all_is_proven(stage: Stage) -> None:
    pull = proved(stage)
    word = stage.say(pull, "mona", "/fla-bot run correctness:sm90")
    stage.settle()
    assert reactions(stage)[word.id] == "-1"


# Approvals that do not reach.


@pytest.mark.usefixtures("no_news")
def test_approval_for_the_plan_of_an_old_bot_is_refused_with_the_reason(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = stage.open()
    stage.settle()
    upgrade(stage, monkeypatch)
    line = f"/fla-bot approve {pull.sha}"
    why = "the approval was for another version of the bot"
    word = stage.say(pull, "mona", line)
    stage.settle()
    assert reactions(stage)[word.id] == "-1"
    assert f"{why}; for this plan type {line}" in told(stage, pull)
    assert why in stage.standing(pull).title
    assert stage.runs() == []
    again = stage.say(pull, "mona", line)
    stage.settle()
    assert reactions(stage)[again.id] == "+1"
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) == "success"


@pytest.mark.usefixtures("no_news")
def test_approval_between_a_retarget_and_its_plan(stage: Stage) -> None:
    stage.git.git("branch", "stable", "main")
    stage.world.push("stable", sha=stage.world.tip("main"))
    pull = stage.open()
    stage.settle()
    stage.world.edit_pull(pull, Actor("alice"), base="stable")
    line = f"/fla-bot approve {pull.sha}"
    word = stage.say(pull, "mona", line)
    stage.settle()
    assert reactions(stage)[word.id] == "-1"
    text = f"the approval was for the branch main; for this plan type {line}"
    assert text in told(stage, pull)
    stage.turn_green(pull)


@pytest.mark.usefixtures("no_news")
def test_push_before_an_upgrade_of_the_bot_says_why_it_is_no_approval(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = stage.open("wes", fork=False)
    stage.settle()
    for run in stage.runs():
        stage.world.begin(run)
    upgrade(stage, monkeypatch)
    for run in stage.runs():
        stage.gate(run)
        stage.publish(run, {}, lane="skipped")
        stage.world.finish(run)
    stage.settle()
    assert stage.ready(pull) in AWAITED
    assert "the approval was for another version of the bot" in stage.standing(pull).title
    assert f"/fla-bot approve {pull.sha}" in told(stage, pull)
    stage.turn_green(pull)


GIVEN = Envelope(machines=["cpu"], minutes=10, sensitive=[], code="a")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, ""),
        ({"minutes": 5}, ""),
        ({"code": "b", "minutes": 20}, "another version of the bot"),
        ({"machines": ["cpu", "sm100", "sm90"]}, "was not for sm100, sm90"),
        ({"minutes": 20}, "was for 10 minutes, the plan takes 20"),
        ({"sensitive": ["bot/b.py", "bot/a.py"]}, "was not for bot/a.py and 1 more"),
    ],
)
def test_what_an_approval_does_not_give_is_named(more: dict[str, object], text: str) -> None:
    found = beyond(GIVEN, GIVEN.model_copy(update=more))
    assert text in found
    assert bool(text) == bool(found)


# Who may.


def test_owner_is_named_only_where_an_owner_may(base: Case) -> None:
    assert deciders(base, ["admin"], "l2norm") == "admin or an owner of the contract"
    assert deciders(base, ["admin", "maintain"], "") == "admin, maintain"


def test_refusal_to_accept_what_is_of_no_op_names_no_owner(stage: Stage) -> None:
    policy = (BOOKS / "policy.yaml").read_text()
    pull = stage.open(files={"contracts/policy.yaml": f"{policy}# more\n"})
    stage.settle()
    items = stage.case(pull).report.checklist
    (code,) = [item.accept for item in items if item.id == "policy-change"]
    stage.say(pull, "olga", f"/fla-bot accept {code}")
    stage.settle()
    assert "olga: only admin, maintain may, and nobody who wrote or pushed it" in told(stage, pull)
