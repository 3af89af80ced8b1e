# SPDX-License-Identifier: MIT
"""Seconds that the planner takes on real changes: `scope` and `plan`, with GitHub as the double.

`python benchmarks/github_planner.py CLONE --commits 5` takes a clone of flash-linear-attention and
writes to it: a policy and draft contracts on top of each commit's parent, then the commit's own
change as a pull request from a fork. It prints the seconds and API calls of each job.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bot.github.operate import EXECUTOR, PLANNER  # noqa: E402
from tests.github.double import Double  # noqa: E402

MAX_S, MAX_CALLS = 3.0, 15


def git(repository: Path, *argv: str) -> str:
    """Run git with an identity of its own."""
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@example.invalid")
    command = ["git", "-C", str(repository), *identity, *argv]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def cpu_s() -> float:
    """The processor time of all commands so far: what a busy machine does not change much."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fla_bot(*argv: str, env: Mapping[str, str]) -> float:
    """Run a command to its end; the seconds it took, process start included."""
    command = [str(Path(sys.executable).with_name("fla-bot")), *argv]
    began = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(argv[:2])} exited with {done.returncode}: {done.stderr}")
    return took


def build(origin: Path, commit: str) -> tuple[str, str]:
    """The gated branch and the head: the commit's own change on top of a policy."""
    git(origin, "switch", "--quiet", "--force-create", "main", f"{commit}^")
    git(origin, "clean", "--quiet", "--force", "-d")
    fla_bot("init", "--repo", str(origin), "--force", env=os.environ)
    git(origin, "add", "--all", "contracts")
    git(origin, "commit", "--quiet", "--message=Adopt fla-bot")
    base = git(origin, "rev-parse", "HEAD")
    git(origin, "switch", "--quiet", "--detach", base)
    git(origin, "cherry-pick", commit)
    head = git(origin, "rev-parse", "HEAD")
    git(origin, "update-ref", "refs/pull/1/head", head)
    git(origin, "switch", "--quiet", "main")
    return base, head


def measure(origin: Path, commit: str, scratch: Path) -> tuple[float, float, float, int, str]:
    """Seconds of both jobs, their processor time, calls of the second one, what came of it."""
    base, head = build(origin, commit)
    clone = scratch / "clone"
    if not clone.exists():
        subprocess.run(["git", "clone", "--quiet", str(origin), str(clone)], check=True)
    git(clone, "fetch", "--quiet", "origin")
    git(clone, "checkout", "--quiet", base)
    with Double() as github:
        world = github.world
        world.public = True
        world.workflow(PLANNER, inputs=("pr",))
        world.workflow(EXECUTOR, inputs=("plan",))
        books = sorted((origin / "contracts").glob("*.yaml"))
        kept = {f"contracts/{path.name}": path.read_bytes() for path in books}
        world.commit(kept, world.tip("main"), sha=base)
        world.push("main", sha=base)
        world.commit({"a": b"1"}, base, sha=head)
        pull = world.open_pull("alice", sha=head)
        (event,) = world.take_events("pull_request")
        payload, plan = scratch / "event.json", scratch / "plan.json"
        payload.write_text(json.dumps(github.bodies.payload(event)))
        token = {"actions": "write", "checks": "read", "contents": "read",
                 "pull-requests": "write", "statuses": "write"}  # fmt: skip
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(scratch),
            "GITHUB_REPOSITORY": world.full_name,
            "GITHUB_API_URL": github.url,
            "GITHUB_EVENT_NAME": "pull_request_target",
            "GITHUB_WORKFLOW_SHA": base,
            "GITHUB_TOKEN": world.job_token(token),
        }
        used = cpu_s()
        scope = fla_bot(
            "github", "scope", str(payload), "--repo", str(clone), "--out", str(plan), env=env
        )
        before = len(github.log)
        job = fla_bot("github", "plan", str(plan), "--event", str(payload), env=env)
        calls = len(github.log) - before
        github.check()
        states = [s for s in world.statuses_of(pull.sha) if s.context == "fla-bot/ready"]
        used = cpu_s() - used
        return scope, job, used, calls, f"{states[0].state}: {(states[0].description or '')[:60]}"


def main() -> int:
    """Measure some of the newest changes; 1 if one of them is too slow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clone", type=Path, help="a clone that may be written to")
    parser.add_argument("--commits", type=int, default=5)
    arguments = parser.parse_args()
    origin, slow = arguments.clone.resolve(), 0
    listed = git(origin, "log", "--no-merges", "--format=%H", "-n", str(arguments.commits * 3),
                 "origin/HEAD", "--", "fla/ops").split()  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="fla-bot-planner-") as scratch:
        for commit in listed[: arguments.commits]:
            for turn in ("cold", "warm"):
                scope, plan, used, calls, state = measure(origin, commit, Path(scratch))
                late = scope + plan > MAX_S or calls > MAX_CALLS
                slow += late and turn == "warm"
                words = f"scope {scope:.2f} s, plan {plan:.2f} s, {scope + plan:.2f} s in all"
                words += f" ({used:.2f} s of processor), {calls} calls; {state}"
                print(f"{commit[:12]} {turn}: {words}", flush=True)
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main())
