"""Pull requests from the first event to the verdict, through every job and real git objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.github.double import Double
from tests.github.stage import Stage


@pytest.fixture(params=["app", "token"])
def stage(
    request: pytest.FixtureRequest,
    github: Double,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Stage:
    """A repository with the bot in both of its modes."""
    return Stage(github, tmp_path / "stage", monkeypatch, app=request.param == "app")


def test_fork_from_first_event_to_green(stage: Stage) -> None:
    pull = stage.open("alice", body="My change.\r\n")
    stage.settle()
    assert stage.ready(pull) in ("action_required", "failure")
    assert f"/fla-bot approve {pull.sha}" in stage.comments(pull)[0]
    assert "fla-bot:begin" in (pull.body or "")
    assert stage.runs() == []
    stage.say(pull, "mona", f"/fla-bot approve {pull.sha}")
    stage.settle()
    assert stage.ready(pull) in ("in_progress", "pending")
    assert {run.inputs["plan"].split(".")[3] for run in stage.runs()} == {
        "interpret-cpu",
        "correctness-sm90",
    }
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) == "success"
    assert len(stage.comments(pull)) == 1
