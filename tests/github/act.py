"""act runs the workflow files on this machine, in a copy without what act does not know."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

__all__ = ["WORKFLOWS", "Act", "copy"]

ACT = Path(sys.executable).parent / "act"
WORKFLOWS = ("fla-bot.yml", "fla-bot-executor.yml", "fla-bot-queue.yml")
# What act 0.2.89 does not know: keys, `$/` for this repository, and jobs that are skipped while
# their matrix comes from another skipped job, whose raw text it then parses.
UNKNOWN = (
    (r"^cache-mode: none\n", ""),
    (r"^      queue: max\n", ""),
    (r"^      deployment: false\n", ""),
    (r"uses: \$/(\S+)", r"uses: fla-org/fla-bot/\1@act"),
)
MATRIX = r"^    strategy:\n      fail-fast: false\n      max-parallel: 4\n      matrix:\n.*\n"
STUBS = {
    "checkout": 'if [ -n "$TO" ]; then mkdir -p "$TO"; fi',
    "setup-python": 'echo "python-path=$STUB_PYTHON" >> "$GITHUB_OUTPUT"',
    "upload-artifact": 'mkdir -p "$STUB_ARTIFACTS/$NAME" && cp -r "$TO" "$STUB_ARTIFACTS/$NAME"',
    "download-artifact": 'mkdir -p "$TO" && cp -r "$STUB_ARTIFACTS/$NAME/." "$TO"',
}
# Stands for `python -I -m venv --clear FOLDER`: the bot in it is the stand-in.
PYTHON = """\
#!/bin/bash
mkdir -p "${*: -1}/bin"
printf '#!/bin/sh\\n' > "${*: -1}/bin/python"
cp "$STUB_BOT" "${*: -1}/bin/fla-bot"
chmod +x "${*: -1}/bin/"*
"""


def copy(text: str, *, with_matrix: bool) -> str:
    """A workflow as act can read it."""
    for old, new in (*UNKNOWN, *(() if with_matrix else ((MATRIX, ""),))):
        text = re.sub(old, new, text, flags=re.MULTILINE)
    return text


class Act:
    """Runs events; `bot` is the program that stands where fla-bot is installed."""

    def __init__(self, folder: Path, bot: str, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.repository = folder / "repository"
        for name, text in (("python", PYTHON), ("bot", bot)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        texts = "".join(path.read_text() for path in (ROOT / ".github/workflows").iterdir())
        pins = dict(re.findall(r"actions/([a-z-]+)@(\w{40})", texts))
        self.replaced = {"fla-org/fla-bot@act": self.repository}
        for name, run in STUBS.items():
            (folder / name).mkdir()
            (folder / name / "action.yml").write_text(json.dumps(_stub(name, run)))
            self.replaced[f"actions/{name}@{pins[name]}"] = folder / name

    def prepare(self, *, with_matrix: bool) -> None:
        """Lay the workflows and our own actions into the repository."""
        target = self.repository / ".github"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(ROOT / ".github/actions", target / "actions")
        # A hosted lane would install torch; here it finds no host, which is a lost lane.
        (target / "actions/host/host.sh").write_text("#!/bin/bash\n")
        (target / "workflows").mkdir()
        for name in WORKFLOWS:
            text = (ROOT / ".github/workflows" / name).read_text()
            (target / "workflows" / name).write_text(copy(text, with_matrix=with_matrix))
        if not (self.repository / ".git").exists():
            self.git("init", "--quiet", "--initial-branch=main")
            self.git("remote", "add", "origin", "https://github.com/fla-org/fla-bot")
            self.git("add", "--all")
            self.git("commit", "--quiet", "--message=x")

    def git(self, *argv: str) -> None:
        """Git in the repository."""
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
        subprocess.run(["git", *identity, *argv], cwd=self.repository, check=True)

    def run(
        self,
        event: str,
        workflow: str,
        payload: Mapping[str, Any],
        *more: str,
        actor: str = "alice",
        **environment: str,
    ) -> str:
        """Run an event through a workflow; what act printed."""
        self.prepare(with_matrix=event == "schedule")
        names = {"default_branch": "main", "full_name": "fla-org/fla-bot"}
        path = self.folder / "event.json"
        path.write_text(json.dumps({**payload, "repository": names, "ref": "refs/heads/main"}))
        inside = {
            "STUB_PYTHON": str(self.folder / "python"),
            "STUB_BOT": str(self.folder / "bot"),
            "STUB_ARTIFACTS": str(self.folder / "artifacts"),
            **self.environment,
            **environment,
        }
        shutil.rmtree(self.folder / "artifacts", ignore_errors=True)
        done = subprocess.run(
            [ACT, event, "--workflows", f".github/workflows/{workflow}", "--eventpath", path,
             "--platform=ubuntu-24.04=-self-hosted", f"--actor={actor}", "--no-cache-server",
             "--secret=GITHUB_TOKEN=token", "--secret=FLA_BOT_APP_KEY=key",
             "--action-offline-mode", "--concurrent-jobs=1", *more,
             *(f"--local-repository={name}={place}" for name, place in self.replaced.items()),
             *(f"--env={name}={value}" for name, value in inside.items())],
            cwd=self.repository, capture_output=True, text=True, timeout=120,
            env={"HOME": str(self.folder), "PATH": os.environ["PATH"]},
        )  # fmt: skip
        return done.stdout + done.stderr


def _stub(name: str, run: str) -> dict[str, Any]:
    """An action of GitHub's as far as our workflows use it."""
    names = ("name", "path", "ref", "python-version")
    env = {"NAME": "${{ inputs.name }}", "TO": "${{ inputs.path }}"}
    return {
        "name": name,
        "inputs": {key: {"default": ""} for key in names},
        "outputs": {"python-path": {"value": "${{ steps.stub.outputs.python-path }}"}},
        "runs": {
            "using": "composite",
            "steps": [{"id": "stub", "shell": "bash", "run": run, "env": env}],
        },
    }
