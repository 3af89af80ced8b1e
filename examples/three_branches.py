"""The main job on a bundled change: three branches in a temporary repository, three endings.

`wrong` forgets the last, short tile of the l2norm kernel and must end red, naming the cell and the
changed line; `mended` must end green; `contract` also raises an error budget and must wait for a
person.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNEL, CONTRACT = "fla/modules/l2norm.py", "contracts/l2norm.yaml"
FILES = (
    *("fla/modules/__init__.py", "fla/modules/l2norm_naive.py", KERNEL),
    *("contracts/policy.yaml", CONTRACT),
)
WRONG = ("grid = (triton.cdiv(N, BN),)", "grid = (max(1, N // BN),)")
MENDED = ("min(32, TILE // columns)", "min(16, TILE // columns)")
LOOSER = ("fp32: 2.0e-7", "fp32: 2.0e-5")
ENDINGS = {"wrong": "failure", "mended": "success", "contract": "action_required"}


def git(repository: Path, *argv: str) -> str:
    """Run git with an identity of its own."""
    identity = ("-c", "user.name=example", "-c", "user.email=example@example.invalid")
    command = ["git", "-C", str(repository), *identity, *argv]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def edit(repository: Path, path: str, replacement: tuple[str, str]) -> None:
    """Replace the first occurrence of a text that must be there."""
    file = repository / path
    text = file.read_text()
    if replacement[0] not in text:
        raise SystemExit(f"{path} no longer holds {replacement[0]!r}; mend this example")
    file.write_text(text.replace(*replacement, 1))


def build(repository: Path) -> None:
    """`main` and the three branches."""
    git(repository.parent, "init", "--quiet", "--initial-branch=main", str(repository))
    for name in FILES:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, repository / name)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=Start")
    branches = {
        "wrong": [(KERNEL, WRONG)],
        "mended": [(KERNEL, MENDED)],
        "contract": [(KERNEL, MENDED), (CONTRACT, LOOSER)],
    }
    for name, edits in branches.items():
        git(repository, "switch", "--quiet", "--create", name, "main")
        for path, replacement in edits:
            edit(repository, path, replacement)
        git(repository, "commit", "--quiet", "--all", f"--message=Change on {name}")
    git(repository, "switch", "--quiet", "main")


def fla_bot(repository: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it."""
    command = [str(Path(sys.executable).with_name("fla-bot")), *argv]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)


def main() -> int:
    """Run all three; 0 if each ends as it must."""
    began, wrong = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="fla-bot-example-") as scratch:
        repository = Path(scratch) / "repository"
        build(repository)
        for branch, ending in ENDINGS.items():
            print(f"\n== {branch}: must end {ending}", flush=True)
            change = ("--base", "main", "--head", branch)
            run = fla_bot(repository, "run", *change)
            if run.returncode:
                print(run.stdout + run.stderr)
            judge = fla_bot(repository, "judge", *change)
            print(judge.stdout + judge.stderr, end="", flush=True)
            report = fla_bot(repository, "judge", *change, "--format", "json")
            state = json.loads(report.stdout)["state"]
            if state != ending or (judge.returncode == 0) != (ending == "success"):
                wrong.append(f"{branch} ended {state} with exit status {judge.returncode}")
    print(
        f"\n{len(ENDINGS) - len(wrong)} of {len(ENDINGS)} branches ended as they must, "
        f"{time.monotonic() - began:.0f} s"
    )
    for line in wrong:
        print(line)
    return bool(wrong)


if __name__ == "__main__":
    os.environ.pop("GIT_DIR", None)
    sys.exit(main())
