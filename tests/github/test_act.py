"""Which jobs an event starts, with which tokens, and what they call.

The bot is a stand-in that writes down each call. Roles are not asked for here: the owner and a
stranger start the same jobs, and it is the bot that tells them apart (test_act_flow.py).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.github.act import WORKFLOWS, Act, copy

PLAN = f"7.{'a' * 40}.{'b' * 16}.interpret-cpu.0"
BOT = """\
#!/bin/bash
printf '%s\\n' "$(basename "$GITHUB_JOB") key=${FLA_BOT_APP_KEY:+yes} token=${GITHUB_TOKEN:+yes}\
 scope=$SCOPE_RESULT gate=$GATE_RESULT lane=$LANE_RESULT argv=$*" >> "$STUB_LOG"
case $2 in
  scope) echo '{}' > "${*: -1}" ;;
  status) echo '{"due": [3, 5, "x"]}' ;;
  gate) printf '%s\\n' pr=7 bot= head="$(printf 'a%.0s' {1..40})" 'runs_on=["ubuntu-24.04"]' \
    timeout_minutes=5 >> "$GITHUB_OUTPUT" ;;
esac
[[ $2 != "$STUB_FAILS" ]]
"""


def test_the_copy_differs_only_in_what_act_does_not_know() -> None:
    counted = dict[str, int]()
    for name in WORKFLOWS:
        old = (ROOT / ".github/workflows" / name).read_text()
        new = copy(old, with_matrix=False)
        for line in difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0):
            if re.match(r"[-+](?![-+])", line):
                counted[line] = counted.get(line, 0) + 1
    action = ".github/actions/"
    assert counted == {
        "-cache-mode: none": 3,
        "-      queue: max": 3,
        "-      deployment: false": 3,
        f"-      - uses: $/{action}install": 6,
        f"+      - uses: fla-org/fla-bot/{action}install@act": 6,
        f"-      - uses: $/{action}host": 1,
        f"+      - uses: fla-org/fla-bot/{action}host@act": 1,
        "-    strategy:": 1,
        "-      fail-fast: false": 1,
        "-      max-parallel: 4": 1,
        "-      matrix:": 1,
        "-        pr: ${{ fromJSON(needs.due.outputs.pulls || '[]') }}": 1,
    }


@dataclass
class Calls:
    """What act did: the calls of the bot, job by job, and its own output."""

    lines: list[str]
    output: str

    def jobs(self) -> list[str]:
        """Jobs that called the bot."""
        return [line.split()[0] for line in self.lines]


Run = Callable[..., Calls]


@pytest.fixture
def act(tmp_path: Path) -> Run:
    """Run an event through a workflow, with a bot that only writes down what is asked of it."""
    log = tmp_path / "log"
    harness = Act(tmp_path, BOT, {"STUB_LOG": str(log)})

    def run(
        event: str, workflow: str, payload: dict[str, Any], *, actor: str = "alice", fails: str = ""
    ) -> Calls:
        output = harness.run(event, workflow, payload, actor=actor, STUB_FAILS=fails)
        return Calls(log.read_text().splitlines() if log.exists() else [], output)

    return run


def _pull(action: str = "opened", **head: Any) -> dict[str, Any]:
    repo = {"fork": True, "full_name": "stranger/fla-bot", **head}
    side = {"ref": "main", "sha": "a" * 40}
    return {
        "action": action,
        "number": 7,
        "pull_request": {"number": 7, "base": side, "head": {**side, "repo": repo}},
    }


def _comment(body: str, login: str, kind: str = "User", **issue: Any) -> dict[str, Any]:
    return {
        "action": "created",
        "issue": {"number": 7, "pull_request": {"url": "x"}, **issue},
        "comment": {"id": 1, "body": body, "user": {"login": login, "type": kind}},
    }


def _expect_planner(calls: Calls) -> None:
    """Two calls: one without a key, one with the key and what the first made."""
    assert calls.jobs() == ["scope", "plan"], calls.output
    scope, plan = calls.lines
    assert "key= token=yes" in scope
    assert "argv=github scope" in scope
    assert "--repo . --out" in scope
    assert "key=yes token=yes scope=success" in plan
    assert re.search(r"argv=github plan \S+/plan/plan.json --event \S+/event.json$", plan)


def test_pull_request_of_a_fork(act: Run) -> None:
    _expect_planner(act("pull_request_target", "fla-bot.yml", _pull(), actor="stranger"))


def test_plan_is_called_when_scope_fails(act: Run) -> None:
    calls = act("pull_request_target", "fla-bot.yml", _pull(), fails="scope")
    assert calls.jobs() == ["scope", "plan"]
    assert "scope=failure" in calls.lines[1]


@pytest.mark.parametrize("login", ["fla-org", "stranger"])
def test_command_of_owner_or_stranger(act: Run, login: str) -> None:
    calls = act("issue_comment", "fla-bot.yml", _comment("/fla-bot help", login), actor=login)
    assert calls.jobs() == ["plan"], calls.output
    assert "key=yes token=yes scope=skipped" in calls.lines[0]


def test_command_that_was_edited_away_is_looked_at(act: Run) -> None:
    payload = _comment("never mind", "alice")
    payload |= {"action": "edited", "changes": {"body": {"from": "/fla-bot cancel"}}}
    assert act("issue_comment", "fla-bot.yml", payload).jobs() == ["plan"]


def test_end_of_a_pull_request_needs_no_new_plan(act: Run) -> None:
    assert act("pull_request_target", "fla-bot.yml", _pull("closed")).jobs() == ["plan"]


@pytest.mark.parametrize(("changed", "jobs"), [("body", []), ("base", ["scope", "plan"])])
def test_edit_of_a_bot(act: Run, changed: str, jobs: list[str]) -> None:
    payload = _pull("edited")
    payload |= {"sender": {"type": "Bot"}, "changes": {changed: {"from": "x"}}}
    assert act("pull_request_target", "fla-bot.yml", payload).jobs() == jobs


@pytest.mark.parametrize(
    "payload",
    [
        _comment("/fla-bot help", "fla-bot[bot]", "Bot"),
        _comment("looks good to me", "fla-org"),
        _comment("/fla-bot help", "fla-org", pull_request=None),
    ],
    ids=["bot", "talk", "issue"],
)
def test_comment_that_is_no_command_starts_nothing(act: Run, payload: dict[str, Any]) -> None:
    calls = act("issue_comment", "fla-bot.yml", payload)
    assert calls.lines == []


def test_merge_group(act: Run) -> None:
    group = {"merge_group": {"head_ref": "refs/heads/gh-readonly-queue/main/pr-7-aa"}}
    queue = act("merge_group", "fla-bot-queue.yml", {"action": "checks_requested", **group})
    assert "the planner acts when this run ends" in queue.output
    assert queue.lines == []


@pytest.mark.parametrize(("event", "started"), [("merge_group", True), ("pull_request", False)])
def test_end_of_a_queue_run(act: Run, event: str, *, started: bool) -> None:
    run = {"event": event, "head_branch": "gh-readonly-queue/main/pr-7-aa", "head_sha": "a" * 40}
    calls = act("workflow_run", "fla-bot.yml", {"action": "completed", "workflow_run": run})
    assert calls.jobs() == (["scope", "plan"] if started else [])


def test_reaper_looks_at_each_pull_request_that_is_due(act: Run) -> None:
    calls = act("schedule", "fla-bot.yml", {"schedule": "7-59/10 * * * *"})
    assert calls.lines[0].startswith("due key= token=yes")
    assert sorted(line.partition("argv=")[2] for line in calls.lines[1:]) == [
        "github reconcile --pr 3", "github reconcile --pr 5",
    ]  # fmt: skip
    assert all("key=yes" in line for line in calls.lines[1:])


def test_executor_without_a_host_is_published_as_lost(act: Run) -> None:
    calls = act("workflow_dispatch", "fla-bot-executor.yml", {"inputs": {"plan": PLAN}})
    gate, publish = calls.lines
    assert gate.startswith("gate key= token=yes")
    assert gate.endswith(f"argv=github gate {PLAN}")
    assert publish.startswith("publish key=yes token=yes scope= gate=success lane=failure")
    assert f"argv=github publish {PLAN} --artifacts" in publish


def test_executor_that_is_refused_runs_no_lane(act: Run, tmp_path: Path) -> None:
    word = f"x; touch {tmp_path}/made"
    payload = {"inputs": {"plan": word}}
    calls = act("workflow_dispatch", "fla-bot-executor.yml", payload, fails="gate")
    assert calls.jobs() == ["gate", "publish"]
    assert calls.lines[0].endswith(f"argv=github gate {word}")
    assert "gate=failure lane=skipped" in calls.lines[1]
    assert not (tmp_path / "made").exists()
