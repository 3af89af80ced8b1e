"""What keeps a verdict where it is: void plans, closed and twin pull requests, locks, floods."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest

from bot.errors import UserError
from bot.github.case import MAX_STANDING, LaneResult, RowId, Standing, pack
from bot.github.combine import bounded, together
from bot.github.executor import AROUND_MIN
from bot.github.lanes import reused
from bot.github.ledger import READY
from bot.github.reader import Reader
from bot.github.situation import Decision
from bot.model import CheckState, Row, Verdict
from tests.conftest import ROOT
from tests.github.double import Fault
from tests.github.stage import AWAITED, BOOKS, RUNNING, Stage
from tests.github.world import Actor, Pull

STRICTER = ("fp32: 2.0e-7", "fp32: 1.0e-9")
LOCKED = "Unable to create comment because issue is locked."


def tighten(stage: Stage) -> None:
    text = (BOOKS / "l2norm.yaml").read_text()
    stage.put("main", {"contracts/l2norm.yaml": text.replace(*STRICTER)})


# A plan that does not hold any more.


def test_word_of_a_stranger_brings_no_old_contract_back(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    tighten(stage)
    stage.reap(pull)
    assert stage.ready(pull) in RUNNING
    stage.world.take_events()  # the planner is late
    stage.say(pull, "stranger", "/fla-bot status")
    stage.settle("issue_comment")
    assert stage.ready(pull) in RUNNING


def test_void_plan_stays_void_when_the_contract_comes_back(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.turn_green(pull)
    tighten(gated)
    gated.reap(pull)
    gated.world.take_events()
    gated.put("main", {"contracts/l2norm.yaml": (BOOKS / "l2norm.yaml").read_bytes()})
    gated.reap(pull)
    assert gated.ready(pull) in RUNNING
    gated.settle("workflow_dispatch")
    assert gated.ready(pull) == "success"  # a new plan with the old keys


def test_contract_that_nobody_told_of_is_seen_before_green(gated: Stage) -> None:
    """No reaper came by: the last lane's own publisher looks."""
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    first, last = gated.runs()
    gated.execute(first)
    gated.world.begin(last)
    gated.gate(last)
    evidence = gated.evidence(last)
    tighten(gated)
    gated.publish(last, evidence)
    assert gated.ready(pull) in RUNNING
    assert gated.standing(pull).void


def test_gate_lets_no_run_of_a_void_plan_go_on(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    run = gated.runs()[0]
    tighten(gated)
    gated.world.begin(run)
    assert gated.gate(run) == {"pr": str(pull.number)}
    assert gated.gate(run, "lane") == {"wanted": "no"}


def test_fault_of_scope_beats_an_old_plan(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    stage.world.edit_pull(pull, Actor("alice"), title="[L2Norm] Another title")
    event = stage.world.take_events("pull_request")[-1]
    path = stage.folder / "plan.json"
    path.unlink(missing_ok=True)
    stage.plan(event, path, SCOPE_RESULT="failure")
    assert stage.ready(pull) == "failure"
    stage.reap(pull)
    assert stage.ready(pull) in RUNNING  # another plan is awaited, the old one does not count
    stage.say(pull, "alice", "/fla-bot run")
    stage.settle()
    assert stage.ready(pull) == "success"


def test_alarm_counts_from_when_a_plan_was_first_missed(
    gated: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = gated.open()
    gated.settle()
    gated.turn_green(pull)
    gated.world.advance(hours=30)
    monkeypatch.setattr("bot.github.actor.code_digest", lambda: "f" * 16)
    gated.reap(pull)
    assert gated.ready(pull) in RUNNING
    asked = gated.say(pull, "mona", f"/fla-bot approve {pull.sha}")
    gated.world.take_events()
    gated.reap(pull)
    before = set(gated.world.reactions)
    gated.world.advance(minutes=61)
    gated.reap(pull)
    assert gated.ready(pull) == "failure"
    assert "no plan was made" in gated.standing(pull).title
    new = [r.comment for n, r in gated.world.reactions.items() if n not in before]
    assert new == [asked.id]


# Closed, and twins.


def test_closed_pull_request_leaves_no_green(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    stage.world.edit_pull(pull, Actor("alice"), state="closed")
    stage.settle()
    assert stage.ready(pull) == "failure"
    stage.world.edit_pull(pull, Actor("alice"), state="open")
    assert stage.ready(pull) == "failure"  # before any event
    stage.settle()
    assert stage.ready(pull) == "success"


def test_merged_pull_request_keeps_its_verdict(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    pull.state, pull.merged = "closed", True
    stage.world.emit("pull_request", "closed", Actor("mona"), pull)
    stage.settle()
    assert stage.ready(pull) == "success"


def twins(stage: Stage) -> tuple[Pull, Pull]:
    """Two pull requests of one head; one is green, the other lacks its last lane."""
    stage.git.git("branch", "stable", "main")
    stage.world.push("stable", sha=stage.world.tip("main"))
    one = stage.open()
    two = stage.world.open_pull("alice", base="stable", head=one.head)
    stage.git.git("update-ref", f"refs/pull/{two.number}/head", two.sha)
    stage.settle()
    stage.approve(two)
    for run in stage.runs():
        stage.execute(run)
    stage.approve(one)
    stage.execute(stage.runs()[0])
    return one, two


def test_twin_that_turned_red_meanwhile_is_not_overwritten(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = twins(stage)
    (run,) = stage.runs()
    stage.world.begin(run)
    stage.gate(run)
    evidence, real, done = stage.evidence(run), Reader.decide, []

    def decide(self: Reader) -> Decision:
        found = real(self)
        if self.number == one.number and found.state is CheckState.SUCCESS and not done:
            done.append(found)
            stage.world.set_draft(two, Actor("alice"), draft=True)
            stage.settle("pull_request")  # its own job, in its own group
        return found

    monkeypatch.setattr(Reader, "decide", decide)
    stage.publish(run, evidence)
    assert done
    assert stage.ready(one) in (*AWAITED, *RUNNING)
    if stage.has_app:
        assert stage.view(one).standings[two.number].state is CheckState.ACTION_REQUIRED


def test_twin_that_became_a_draft_counts_before_its_own_job_has_run(gated: Stage) -> None:
    one, two = twins(gated)
    gated.world.set_draft(two, Actor("alice"), draft=True)
    gated.world.take_events()
    gated.execute(gated.runs()[0])
    assert gated.ready(one) == "action_required"


# What the ledger can hold.


def test_words_that_do_not_count_are_not_kept(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    for number in range(30):
        text = "\n\n".join(f"/fla-bot waive X{number}{i} {'no ' * 90}" for i in range(5))
        gated.world.add_comment(pull.number, Actor(f"stranger{number}"), text)
        words = f"/fla-bot approve {pull.sha}"
        gated.world.add_comment(pull.number, Actor(f"stranger{number}"), words)
    gated.world.take_events()
    gated.reap(pull)
    found = gated.standing(pull)
    assert (found.waivers, [g for g in found.grants if g.comment]) == ([], [])
    # Refused once, a word does not count when its author is given a role.
    gated.world.person("stranger1", "maintain")
    gated.reap(pull)
    assert not [g for g in gated.standing(pull).grants if g.comment]
    gated.turn_green(pull)


def huge(standing: Standing) -> Standing:
    noise = "".join(sha256(str(i).encode()).hexdigest() for i in range(2000))
    return standing.model_copy(update={"title": noise})


def test_standing_that_is_too_large_is_red_and_says_so(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    small = gated.standing(pull)
    assert bounded(small) is small
    found = bounded(huge(small))
    assert found.state is CheckState.FAILURE
    assert "too large" in found.title
    assert len(pack(found)) < MAX_STANDING
    assert together(small, [small]) == [small, small]
    assert together(small, [huge(small)]) is None


def test_results_of_other_heads_are_kept_in_one_row_a_job(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    case = gated.case(pull)
    jobs = case.report.plan.jobs
    rows = [
        Row(job=job.id, lane=job.lane, op=job.op, cell=f"c{i}", verdict=word, reason="x" * 300)
        for job, word in zip(jobs, (Verdict.PASS, Verdict.FAIL), strict=True)
        for i in range(400)
    ]
    row = RowId(pull.number, "1" * 40, case.plan, jobs[0].lane, 0)
    keys = {job.id: job.key for job in jobs}
    result = LaneResult(row=str(row), run=1, verdict=Verdict.FAIL, note="", keys=keys, rows=rows)
    found = reused(None, [result], case)
    assert [(r.job, r.reason[:14]) for one in found for r in one.rows] == [
        (jobs[0].id, "400 rows pass"),
        (jobs[1].id, "400 rows fail:"),
    ]
    assert [set(one.keys) for one in found] == [{job.id} for job in jobs]


# What GitHub refuses.


def lock(stage: Stage) -> None:
    for operation in (
        "issues/create-comment", "issues/update-comment", "reactions/create-for-issue-comment"
    ):  # fmt: skip
        stage.github.fail(Fault(operation, 403, LOCKED, times=999))


def test_locked_conversation_stops_no_verdict(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    lock(gated)
    gated.approve(pull)
    for run in gated.runs():
        gated.execute(run)
    assert gated.ready(pull) == "success"
    shown = gated.view(pull).shown[READY]
    assert "issue is locked" in shown.text
    writes = len(gated.github.writes)
    gated.reap(pull)
    assert {w.operation for w in gated.github.writes[writes:]} <= {
        "issues/update-comment", "apps/create-installation-access-token"
    }  # fmt: skip


def test_locked_conversation_without_an_app_is_red_and_says_so(
    stage: Stage,
) -> None:
    if stage.has_app:
        return
    pull = stage.open()
    stage.settle()
    lock(stage)
    stage.say(pull, "mona", f"/fla-bot approve {pull.sha}")
    stage.settle()
    assert stage.ready(pull) == "failure"
    assert "ledger" in stage.view(pull).shown[READY].title


def test_missing_permission_is_told_after_the_verdict_is_written(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    *_, last = gated.runs()
    gated.execute(gated.runs()[0])
    words = "Resource not accessible by integration"
    gated.github.fail(Fault("issues/update-comment", 403, words, times=1))
    gated.world.begin(last)
    with pytest.raises(Exception, match="the token needs"):
        gated.publish(last, gated.evidence(last))
    assert gated.ready(pull) == "failure"
    assert "the token needs" in gated.view(pull).shown[READY].title
    gated.reap(pull)
    assert gated.ready(pull) == "success"


def test_comment_that_fails_keeps_no_verdict_back(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    first, last = gated.runs()
    gated.execute(first)
    fault = gated.github.fail(Fault.bad_gateway("issues/update-comment"))
    fault.times = 99
    gated.world.begin(last)
    with pytest.raises(Exception, match="502"):
        gated.publish(last, gated.evidence(last))
    assert gated.ready(pull) == "success"


# Runs that nobody wants any more.


def test_superseded_runs_are_no_failures_of_machines(gated: Stage) -> None:
    pull = gated.open("wes", fork=False)
    gated.settle()
    for i in range(3):
        old = gated.runs()
        assert len(old) == 2
        for run in old:
            gated.world.begin(run)
        gated.push(pull, gated.kernel(("min(32, TILE // columns)", f"min({i + 3}, 1)")), "wes")
        for run in old:
            assert gated.gate(run) == {"pr": str(pull.number)}  # no machine: the lane is skipped
            gated.publish(run, {})
            gated.world.finish(run, "success")
        gated.settle()
    other = gated.open("bob")
    gated.settle()
    gated.approve(other)
    assert {RowId.parse(run.inputs["plan"]).number for run in gated.runs()} == {1, other.number}
    assert "infrastructure" not in gated.comments(other)[0]


def test_run_of_an_older_plan_ends_well_and_closes_its_row(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    run = gated.runs()[0]
    gated.world.begin(run)
    gated.world.edit_pull(pull, Actor("alice"), state="closed")
    gated.world.take_events()
    assert gated.gate(run) == {"pr": str(pull.number)}
    gated.publish(run, {}, lane="skipped")
    (entry,) = [e for e in gated.view(pull).entries if str(e.id) == run.inputs["plan"]]
    assert entry.result
    assert entry.result.verdict is Verdict.SUPERSEDED


def test_refused_gate_says_whose_group_its_publisher_is_in(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    plan = gated.runs()[0].inputs["plan"]
    run = gated.world.dispatch(Actor("wes"), "fla-bot-executor.yml", "main", {"plan": plan})
    with pytest.raises(UserError, match="dispatched by wes"):
        gated.gate(run)
    assert (gated.folder / "output").read_text() == f"pr={pull.number}\n"


def test_job_limit_leaves_time_for_two_locks(gated: Stage) -> None:
    text = (ROOT / "runner" / "example.conf").read_text()
    match = re.search(r"^lock_wait_s = ([0-9]+)", text, re.MULTILINE)
    assert match
    assert 2 * int(match[1]) + 300 <= AROUND_MIN * 60


# Merge groups.


def test_merge_group_that_cannot_be_planned_is_red_at_once(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.turn_green(pull)
    gated.put("main", {"contracts/l2norm.yaml": "schema: fla-bot/contract@1\nop: [\n"})
    head = gated.enqueue(pull)
    gated.say(pull, "alice", "/fla-bot run")  # a word about the pull request, not the group
    gated.world.take_events("issue_comment")
    gated.reap(pull)
    gated.settle("workflow_dispatch")
    assert gated.verdict(head) == "failure"
    gated.world.advance(minutes=10)
    gated.reap(pull)
    assert gated.verdict(head) == "failure"
