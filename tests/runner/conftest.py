"""A host for the scripts of runner/: installed into a folder of root's, with a stand-in bot."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT

RUNNER = ROOT / "runner"
USER = "nobody"  # stands for the runner's account; every machine has it
UID = 65534
WORKER = 65105
PLAN = "0123456789abcdef"
ENVIRONMENT = {
    "GITHUB_REPOSITORY": "fla-org/fla-bot",
    "GITHUB_EVENT_NAME": "workflow_dispatch",
    "GITHUB_REF": "refs/heads/main",
    "GITHUB_WORKFLOW_REF": "fla-org/fla-bot/.github/workflows/fla-bot-executor.yml@refs/heads/main",
    "GITHUB_RUN_ATTEMPT": "1",
    "GITHUB_JOB": "lane",
}
# The stand-in writes down what it sees, does what the plan says, and leaves evidence.
BOT = """\
#!/bin/bash
out=${*: -1}
{ echo "argv $*"; echo "uid $(id -u)"; echo "pids $(ls -d /proc/[0-9]* | wc -l)"; env | sort; } \\
  > "$out/seen.json"
ls /dev > "$out/dev.json"
source "$out/../plan.json"
"""


@dataclass
class Host:
    """An installed host."""

    prefix: Path

    @property
    def conf(self) -> Path:
        """The configuration of the runner's user."""
        return self.prefix / "etc/fla-bot" / f"{USER}.conf"

    @property
    def libexec(self) -> Path:
        """Where the scripts are."""
        return self.prefix / "usr/local/libexec/fla-bot"

    @property
    def spool(self) -> Path:
        """What the runner's user hands over, and gets back."""
        return self.prefix / "var/lib/fla-bot" / USER

    @property
    def marker(self) -> Path:
        """There when the host is drained."""
        return self.prefix / "var/lib/fla-bot/drained"

    @property
    def evidence(self) -> Path:
        """What the lane gave back."""
        return self.spool / "out" / PLAN

    def set(self, **values: str | None) -> None:
        """Change the configuration; None takes a key away."""
        lines = [line for line in self.conf.read_text().splitlines()
                 if line.partition(" = ")[0] not in values]  # fmt: skip
        lines += [f"{key} = {value}" for key, value in values.items() if value is not None]
        self.conf.write_text("\n".join(lines) + "\n")

    def hand_over(self, script: str = "", commits: Path | None = None) -> None:
        """Put a plan (a script for the stand-in) and commits into the spool."""
        (self.spool / "in/plan.json").write_text(script)
        if commits:
            shutil.copy(commits, self.spool / "in/objects.bundle")

    def start_lane(
        self, *argv: str, plan: str = PLAN, sudo_uid: str | None = str(UID), **more: str
    ) -> subprocess.Popen[str]:
        """Start the wrapper as sudo would; `more` is what a careless sudo lets through."""
        env = {**more, **({} if sudo_uid is None else {"SUDO_UID": sudo_uid})}
        process = subprocess.Popen(
            [self.libexec / "fla-bot-lane", *argv], env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin
        process.stdin.write(f"{plan}\n")
        process.stdin.flush()
        return process

    def lane(
        self,
        *argv: str,
        plan: str = PLAN,
        sudo_uid: str | None = str(UID),
        timeout_s: int = 60,
        **more: str,
    ) -> Ended:
        """Run the wrapper to its end."""
        process = self.start_lane(*argv, plan=plan, sudo_uid=sudo_uid, **more)
        out, err = process.communicate(timeout=timeout_s)
        return Ended(process.returncode, out, err)

    def hook(self, changes: Mapping[str, str | None] = {}, **more: str) -> Ended:
        """Run the hook as the runner would for a job."""
        given = {**ENVIRONMENT, "GITHUB_WORKSPACE": str(self.work), **more, **changes}
        env = {key: value for key, value in given.items() if value is not None}
        argv = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups",
                "bash", "-e", self.libexec / "job-started.sh"]  # fmt: skip
        done = subprocess.run(argv, env={"PATH": os.environ["PATH"], **env}, text=True,
                              capture_output=True, timeout=30)  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)

    @property
    def work(self) -> Path:
        """The job's workspace."""
        return self.prefix / "home/_work/fla-bot/fla-bot"


@dataclass
class Ended:
    """How a script ended."""

    status: int
    out: str
    err: str


@pytest.fixture
def host() -> Iterator[Host]:
    """A host with one runner and no device."""
    if os.geteuid() != 0:
        pytest.skip("only root can install a host")
    with tempfile.TemporaryDirectory(prefix="fla-bot-host-") as folder:
        prefix = Path(folder).resolve()
        prefix.chmod(0o755)
        conf = prefix / "conf"
        conf.write_text((RUNNER / "example.conf").read_text())
        subprocess.run([RUNNER / "install.sh", USER, conf, prefix], check=True)
        host = Host(prefix)
        host.set(work=str(host.work.parent.parent), lock_wait_s="1", limit_s="30", settle_s="3",
                 worker_uids="65100-65110", devices=None, memory=None, read_only=None,
                 environment=None)  # fmt: skip
        host.work.mkdir(parents=True)
        for path in (host.work, host.work.parent, host.work.parent.parent):
            os.chown(path, UID, UID)
        bot = prefix / "opt/fla-bot/current/bin/fla-bot"
        bot.parent.mkdir(parents=True)
        bot.write_text(BOT)
        bot.chmod(0o755)
        yield host


@pytest.fixture(scope="session")
def commits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with one branch and the head of a change."""
    folder = tmp_path_factory.mktemp("commits")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    for argv in (
        ("init", "--quiet", "--initial-branch=main"),
        (*identity, "commit", "--quiet", "--allow-empty", "--message=x"),
        ("update-ref", "refs/fla-bot/head", "main"),
        ("bundle", "create", "--quiet", "objects.bundle", "--all"),
    ):
        subprocess.run(["git", *argv], cwd=folder, check=True)
    return folder / "objects.bundle"
