"""What mends itself: runs that were ended for nothing, queued orders, faults that were not ours."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bot.errors import UserError
from bot.github.case import RowId
from bot.github.operate import PLANNER
from tests.github.stage import BOOKS, RUNNING, Stage
from tests.github.world import Actor, Pull

LANE = "correctness:sm90"


def test_lanes_run_again_when_a_pull_request_is_opened_again(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    first = {run.inputs["plan"] for run in stage.runs()}
    stage.world.edit_pull(pull, Actor("alice"), state="closed")
    stage.settle()
    assert stage.runs() == []
    stage.world.edit_pull(pull, Actor("alice"), state="open")
    stage.settle()
    assert stage.ready(pull) in RUNNING
    again = {run.inputs["plan"] for run in stage.runs()}
    assert len(again) == len(first) == 2
    assert {RowId.parse(row).lane for row in again} == {RowId.parse(row).lane for row in first}
    assert not again & first
    stage.reap()
    assert {run.inputs["plan"] for run in stage.runs()} == again
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) == "success"


# Faults that are not the pull request's own.


@pytest.fixture
def real_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reaper went through lately: nothing is news."""
    monkeypatch.setattr(
        "bot.github.status._last_look", lambda reconciler: reconciler.now() + timedelta(hours=1)
    )


@pytest.mark.usefixtures("real_look")
def test_fault_of_the_base_is_gone_when_the_base_is_mended(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.put("main", {"contracts/l2norm.yaml": "schema: fla-bot/contract@1\nop: [\n"})
    stage.reap()
    stage.settle()
    fault = stage.standing(pull).fault
    assert fault
    assert not fault.startswith("infra:")
    assert stage.standing(pull).title.endswith("; type /fla-bot run")
    stage.world.advance(hours=3)
    stage.put("main", {"contracts/l2norm.yaml": (BOOKS / "l2norm.yaml").read_bytes()})
    stage.reap()
    stage.settle()
    assert not stage.standing(pull).fault
    assert stage.case(pull).planned_lanes()


@pytest.mark.usefixtures("real_look")
def test_trouble_of_a_job_is_tried_again_for_an_hour(gated: Stage) -> None:
    pull = gated.open()
    path = gated.folder / "plan.json"
    for _ in range(12):  # scope dies each time
        for event in gated.world.take_events("pull_request", "workflow_dispatch"):
            path.unlink(missing_ok=True)
            gated.plan(event, path, SCOPE_RESULT="failure")
        gated.world.advance(minutes=10)
        gated.reap()
    assert gated.ready(pull) == "failure"
    assert not gated.world.take_events("workflow_dispatch")
    started = [run for run in gated.world.runs.values() if run.workflow.file == PLANNER]
    assert 3 <= len(started) <= 6
    title = gated.standing(pull).title
    assert title.startswith("Not ready: infra: ")
    assert title.endswith("; type /fla-bot run")


@pytest.mark.usefixtures("real_look")
def test_trouble_of_a_job_heals(gated: Stage) -> None:
    pull = gated.open()
    event = gated.world.take_events("pull_request")[-1]
    path = gated.folder / "plan.json"
    path.unlink(missing_ok=True)
    gated.plan(event, path, SCOPE_RESULT="failure")
    assert gated.ready(pull) == "failure"
    gated.world.advance(minutes=10)
    gated.reap()
    gated.settle()
    assert gated.case(pull).planned_lanes()


# Orders that meet a full machine.


def _lose(stage: Stage, lane: str) -> None:
    """The lane's run leaves no evidence."""
    (run,) = [r for r in stage.runs() if RowId.parse(r.inputs["plan"]).lane == lane]
    stage.world.begin(run)
    stage.gate(run)
    stage.publish(run, {})
    stage.world.finish(run, "failure")


def _hold(stage: Stage, caps: str) -> tuple[Pull, Pull]:
    """A pull request that lost a lane, and another one that has the machine now."""
    text = (BOOKS / "policy.yaml").read_text()
    caps = text.replace("caps: {minutes: 240}", f"caps: {{{caps}}}")
    assert caps != text
    stage.put("main", {"contracts/policy.yaml": caps})
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    _lose(stage, LANE)
    other = stage.open("bob")
    stage.settle()
    stage.approve(other)
    return pull, other


@pytest.mark.usefixtures("real_look")
def test_rerun_that_meets_a_full_machine_is_carried_out_later(stage: Stage) -> None:
    pull, other = _hold(stage, "minutes: 240, open_runs: 1")
    asked = stage.say(pull, "alice", f"/fla-bot run {LANE}")
    stage.settle()
    assert not [r for r in stage.world.reactions.values() if r.comment == asked.id]
    assert stage.ready(pull) in RUNNING
    assert "runs are ahead" in stage.comments(pull)[0]
    for run in list(stage.runs()):
        stage.execute(run)
    stage.world.advance(minutes=10)
    stage.reap()
    (found,) = [r for r in stage.world.reactions.values() if r.comment == asked.id]
    assert found.content == "+1"
    assert f"runs {LANE}" in stage.comments(pull)[0].replace("\\", "")
    nonces = {RowId.parse(run.inputs["plan"]).nonce for run in stage.runs()}
    assert asked.id in nonces
    for run in list(stage.runs()):
        stage.execute(run)
    assert stage.ready(pull) == stage.ready(other) == "success"


def test_cancel_takes_back_an_order_that_waits(gated: Stage) -> None:
    pull, _ = _hold(gated, "minutes: 240, open_runs: 1")
    gated.say(pull, "alice", f"/fla-bot run {LANE}")
    gated.settle()
    gated.say(pull, "alice", "/fla-bot cancel")
    gated.settle()
    for run in list(gated.runs()):
        gated.execute(run)
    gated.reap(pull)
    assert gated.ready(pull) == "failure"
    assert pull.number not in {RowId.parse(run.inputs["plan"]).number for run in gated.runs()}


def test_order_over_a_cap_is_told_why(gated: Stage) -> None:
    pull, _ = _hold(gated, "minutes: 45")
    asked = gated.say(pull, "alice", f"/fla-bot run {LANE}")
    gated.settle()
    (found,) = [r for r in gated.world.reactions.values() if r.comment == asked.id]
    assert found.content == "-1"
    assert "does not run: this pull request has used" in gated.comments(pull)[0].replace("\\", "")


# Runs that nobody wants any more, and the breaker.


def test_runs_that_nobody_wants_open_no_breaker(gated: Stage) -> None:
    """Their approval was lost while they waited: before the gate, or between it and the lane."""
    for author, job in (("alice", "gate"), ("bob", "lane"), ("carl", "gate")):
        pull = gated.open(author)
        gated.settle()
        word = gated.say(pull, "mona", f"/fla-bot approve {pull.sha}")
        gated.settle()
        (run,) = [
            run
            for run in gated.runs()
            if (row := RowId.parse(run.inputs["plan"])).lane == LANE and row.number == pull.number
        ]
        gated.world.begin(run)
        if job == "lane":
            assert "runs_on" in gated.gate(run)
        gated.world.advance(seconds=5)
        gated.world.edit_comment(word, Actor("mona"), f"ok!\n\n/fla-bot approve {pull.sha}")
        found = gated.gate(run, job)
        assert found == ({"wanted": "no"} if job == "lane" else {"pr": str(pull.number)})
        gated.publish(run, {}, lane="skipped")
        gated.world.finish(run)
        assert gated.ready(pull) == "action_required"
        gated.approve(pull)
        assert gated.ready(pull) in RUNNING
        for again in gated.runs():
            gated.execute(again)
        assert gated.ready(pull) == "success"


def test_machine_that_lags_behind_is_no_run_that_nobody_wants(
    gated: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    run = gated.runs()[0]
    gated.world.begin(run)
    gated.gate(run)
    monkeypatch.setattr("bot.github.actor.code_digest", lambda: "f" * 16)
    with pytest.raises(UserError, match="another version of the bot"):
        gated.gate(run, "lane")


def test_run_whose_contract_moved_is_not_started_for_ever(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    run = gated.runs()[0]
    text = (BOOKS / "l2norm.yaml").read_text()
    gated.put("main", {"contracts/l2norm.yaml": text.replace("fp32: 2.0e-7", "fp32: 1.0e-9")})
    gated.world.begin(run)
    assert "runs_on" not in gated.gate(run)
    gated.publish(run, {}, lane="skipped")
    gated.world.finish(run)
    assert gated.standing(pull).void
    plans = {RowId.parse(run.inputs["plan"]).nonce for run in gated.runs()}
    assert plans == {0}
