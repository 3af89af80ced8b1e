"""Pull requests from the first event to the verdict, through every job and real git objects."""

from __future__ import annotations

from tests.github.stage import AWAITED, RUNNING, Stage


def test_fork_from_first_event_to_green(stage: Stage) -> None:
    pull = stage.open("alice", body="My change.\r\n")
    stage.settle()
    assert stage.ready(pull) in AWAITED
    assert f"/fla-bot approve {pull.sha}" in stage.comments(pull)[0]
    assert "fla-bot:begin" in (pull.body or "")
    assert stage.runs() == []
    stage.approve(pull)
    assert stage.ready(pull) in RUNNING
    assert {run.inputs["plan"].split(".")[3] for run in stage.runs()} == {
        "interpret-cpu",
        "correctness-sm90",
    }
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) == "success"
    assert len(stage.comments(pull)) == 1
