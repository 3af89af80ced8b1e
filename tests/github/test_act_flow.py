"""The workflow files with the bot itself and the double: from the event to what stands on GitHub.

Each job gets a token with exactly the permissions of its YAML. What comes between the workflow and
GitHub is real: act, bash, git, the command line, PyGithub, HTTP.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.github.act import Act
from tests.github.double import Double
from tests.github.stage import PRIVATE, WORKFLOWS, Stage
from tests.github.world import Actor, World

# The identity that a job has on GitHub comes from files, for act knows one secret for all jobs.
BOT = f"""\
#!/bin/bash
export GITHUB_TOKEN="$(cat "$STUB_SECRETS/$GITHUB_JOB")" FLA_BOT_APP_ID=$STUB_APP_ID
[[ -z $FLA_BOT_APP_KEY ]] || export FLA_BOT_APP_KEY="$(cat "$STUB_SECRETS/key")"
exec {Path(sys.executable).parent}/fla-bot "$@"
"""


class Played:
    """A repository on stage whose events go through act."""

    def __init__(self, github: Double, folder: Path) -> None:
        self.stage = Stage(github, folder / "stage", app=True)
        assert self.stage.app
        secrets = folder / "secrets"
        secrets.mkdir()
        (secrets / "key").write_text(PRIVATE)
        for workflow, content in WORKFLOWS.items():
            for job in content["jobs"]:
                (secrets / job).write_text(self.stage.token(workflow, job))
        environment = {
            "STUB_SECRETS": str(secrets),
            "STUB_APP_ID": str(self.stage.app.id),
            "GITHUB_API_URL": github.url,
        }
        (folder / "act").mkdir()
        self.act = Act(folder / "act", BOT, environment)
        origin = self.stage.git.path
        subprocess.run(["git", "clone", "--quiet", origin, self.act.repository], check=True)
        self.act.git("remote", "set-url", "origin", "https://github.com/fla-org/fla-bot")
        # What the workflow calls GitHub is the repository on stage.
        config = f'[url "{origin}"]\n\tinsteadOf = https://github.com/fla-org/fla-bot\n'
        (folder / "act/.gitconfig").write_text(config)

    def deliver(self, event: Any) -> str:
        """One event, as its workflow takes it."""
        name = {"pull_request": "pull_request_target"}.get(event.name, event.name)
        payload = self.stage.github.bodies.payload(event)
        return self.act.run(name, "fla-bot.yml", payload, actor=event.actor.login)

    def deliver_all(self) -> list[str]:
        """Everything that has happened, once."""
        names = ("pull_request", "issue_comment")
        return [self.deliver(event) for event in self.stage.world.take_events(*names)]


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    with Double(World("fla-org/fla-bot")) as github:
        yield Played(github, tmp_path)
        github.check()


def test_fork_stranger_owner_and_bot(played: Played) -> None:
    """A stranger's word starts nothing, a maintainer's does, a bot's is not even read."""
    stage = played.stage
    pull = stage.open("alice")
    (output,) = played.deliver_all()
    assert stage.ready(pull) == "action_required", output
    assert f"/fla-bot approve {pull.sha}" in stage.comments(pull)[0]

    stage.world.take_events()
    stage.say(pull, "mallory", f"/fla-bot approve {pull.sha}")
    (output,) = played.deliver_all()
    assert stage.runs() == [], output
    assert "may approve" in stage.comments(pull)[0]

    stage.world.take_events()
    before = len(stage.github.log)
    stage.world.add_comment(pull.number, Actor("helper[bot]"), f"/fla-bot approve {pull.sha}")
    played.deliver_all()
    assert len(stage.github.log) == before

    stage.world.take_events()
    stage.say(pull, "mona", f"/fla-bot approve {pull.sha}")
    (output,) = played.deliver_all()
    lanes = {run.inputs["plan"].split(".")[3] for run in stage.runs()}
    assert "interpret-cpu" in lanes, output
    assert stage.ready(pull) == "in_progress"


def test_merge_group_gets_its_own_verdict(played: Played) -> None:
    stage = played.stage
    pull = stage.open("alice")
    played.deliver_all()
    name = f"gh-readonly-queue/main/pr-{pull.number}-{stage.world.tip('main')}"
    sha = stage.commit({"README.md": "merged"}, pull.sha, "octo-org")
    stage.git.git("branch", name, sha)
    stage.world.branches[stage.world.owner, name] = sha
    group = {"event": "merge_group", "head_branch": name, "head_sha": sha}
    payload = {"action": "completed", "workflow_run": {**group, "id": 1}}
    output = played.act.run("workflow_run", "fla-bot.yml", payload)
    found = [check.name for check in stage.world.latest_checks(sha)]
    assert found == ["fla-bot/ready"], output
    # The head itself was looked at before, and the run of the group does not touch it.
    assert stage.ready(pull) == "action_required"
