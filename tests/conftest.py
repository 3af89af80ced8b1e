"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

# Before anything imports triton: without a GPU the kernels run in its interpreter.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell ignores Ctrl-C for what it runs in the background, and what we start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
L2NORM = tuple(f"fla/modules/{name}.py" for name in ("__init__", "l2norm", "l2norm_naive"))
Write = Callable[[str, str], None]


class Workbench:
    """A small git repository that a test shapes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *argv: str) -> str:
        """Run git with an identity of its own."""
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")
        done = subprocess.run(
            ["git", *identity, *argv], cwd=self.path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def write(self, files: dict[str, str | bytes | None]) -> None:
        """Write files; None deletes."""
        for name, content in files.items():
            path = self.path / name
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def commit(self, files: dict[str, str | bytes | None], branch: str | None = None) -> str:
        """Write, commit (on a new branch off main if one is named) and return the commit."""
        if branch:
            self.git("switch", "--quiet", "--create", branch, "main")
        self.write(files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=change")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def workbench(tmp_path: Path) -> Workbench:
    """An empty repository."""
    path = tmp_path / "repository"
    path.mkdir()
    return Workbench(path)


@pytest.fixture
def kernels(workbench: Workbench) -> Workbench:
    """A repository whose main branch holds our l2norm, its contract and the policy."""
    for name in (*L2NORM, "contracts/l2norm.yaml", "contracts/policy.yaml"):
        (workbench.path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, workbench.path / name)
    workbench.commit({})
    return workbench


@pytest.fixture(scope="session")
def contract_text() -> bytes:
    """The contract of l2norm."""
    return (ROOT / "contracts" / "l2norm.yaml").read_bytes()
