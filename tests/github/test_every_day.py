"""Flows of every day end as docs/commands.md says, with a result that is judged anew or lost."""

from __future__ import annotations

import pytest

from tests.github.stage import BOOKS, KERNEL, Stage
from tests.github.test_results_stay import (
    MORE,
    RIGHT,
    SMALLER,
    WRONG,
    begin,
    both,
    lane,
    measure_again,
    push_back,
    two_ops,
)
from tests.github.test_second_look import codes
from tests.github.test_trust import jobs, red
from tests.github.test_words_bind import GOOD, accepted, helper
from tests.github.world import Pull

POLICY = (BOOKS / "policy.yaml").read_text()


def measure(stage: Stage, tile: float) -> None:
    """Every waiting lane gives this ratio to the merge base's error in its worst tile."""
    for run in stage.runs():
        begin(stage, [run])
        found = {
            name: data.replace(b'"worst_tile": 1.0', f'"worst_tile": {tile}'.encode())
            for name, data in stage.evidence(run).items()
        }
        stage.publish(run, found)
        stage.world.finish(run)


def rebase(stage: Stage, pull: Pull) -> None:
    """The change is put onto what is new in its base."""
    push_back(stage, pull, stage.commit(stage.kernel(), stage.world.tip("main"), pull.author))
    stage.settle()


@pytest.mark.parametrize(
    ("margin", "tile", "before", "after"),
    [("5.0", 4.0, "failure", "success"), ("2.0", 2.5, "success", "failure")],
)
def test_result_counts_under_the_limits_that_it_was_judged_by(
    stage: Stage, margin: str, tile: float, before: str, after: str
) -> None:
    """Other margins make it another job: neither a pass nor a fail is taken over."""
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    measure(stage, tile)
    assert stage.ready(pull) == before
    stage.put("main", {"contracts/policy.yaml": POLICY.replace("tile: 3.0", f"tile: {margin}")})
    stage.reap()
    stage.settle()
    rebase(stage, pull)
    stage.approve(pull)
    measure(stage, tile)
    stage.push(pull, MORE)
    stage.settle()
    stage.approve(pull)
    measure(stage, tile)
    assert stage.ready(pull) == after


def test_job_that_was_lost_beside_a_fail_can_be_run_again(stage: Stage) -> None:
    pull = two_ops(stage)
    for run in stage.runs():
        begin(stage, [run])
        is_gpu = lane(run).startswith("correctness")
        found = both(stage, pull, run, WRONG if is_gpu else RIGHT, None if is_gpu else RIGHT)
        stage.publish(run, found)
        stage.world.finish(run)
    stage.settle()
    for name in jobs(stage, pull):
        if name.startswith("correctness") and "l2norm" in name:
            stage.say(pull, "mona", f"/fla-bot waive {name} known")
    stage.settle()
    stage.say(pull, "alice", "/fla-bot rerun")
    stage.settle()
    measure_again(stage, pull, RIGHT)
    stage.settle()
    assert stage.ready(pull) == "success"  # by the waiver: the fail stands


def test_newest_fails_are_kept_where_there_is_no_room_for_all(
    gated: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.github.rows.MAX_FAILS", 2)
    pull = red(gated)  # two fails of other code
    gated.push(pull, gated.kernel(SMALLER))
    gated.settle()
    gated.approve(pull)
    for run in gated.runs():
        gated.execute(run, rms=WRONG)
    smallest = ("min(32, TILE // columns)", "min(4, TILE // columns)")
    for edit in (smallest, SMALLER):
        gated.push(pull, gated.kernel(edit))
        gated.settle()
    gated.approve(pull)
    assert not gated.runs()
    assert gated.ready(pull) == "failure"


def test_suppression_that_moves_down_stays_accepted(gated: Stage) -> None:
    pull = accepted(gated, helper(GOOD))
    moved = helper(GOOD)
    moved[KERNEL] = moved[KERNEL].replace("\n\ndef helper", "\n\n# a remark\n\n\ndef helper")
    old = codes(gated, pull)
    gated.push(pull, moved)
    gated.settle()
    assert codes(gated, pull) == old
    assert gated.case(pull).report.suppressions[0].line > 1
