"""A run that is stopped leaves no process, no folder and no evidence that reads as whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bot.cli import main
from tests.conftest import Workbench

KERNEL = "fla/modules/l2norm.py"


def started_below(folder: Path) -> list[int]:
    """Processes whose working directory is in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(folder):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stopped_run_leaves_nothing(
    kernels: Workbench, tmp_path: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (kernels.path / KERNEL).read_text()
    kernels.commit({KERNEL: text.replace("TILE = 4096", "TILE = 2048")}, branch="work")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    change = ["--repo", str(kernels.path), "--base", "main", "--head", "work"]
    child = subprocess.Popen(
        [str(Path(sys.executable).with_name("fla-bot")), "run", *change],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 60
    while len(started_below(scratch)) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    assert len(started_below(scratch)) >= 3
    child.send_signal(number)
    assert child.wait(timeout=30) == 130
    assert started_below(scratch) == []
    assert list(scratch.iterdir()) == []
    assert main(["judge", *change]) == 1
    assert "Waiting for evidence" in capsys.readouterr().out


def test_killed_run_leaves_no_evidence(kernels: Workbench, tmp_path: Path) -> None:
    text = (kernels.path / KERNEL).read_text()
    kernels.commit({KERNEL: text.replace("TILE = 4096", "TILE = 2048")}, branch="work")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    change = ["--repo", str(kernels.path), "--base", "main", "--head", "work"]
    tool = str(Path(sys.executable).with_name("fla-bot"))
    child = subprocess.Popen(
        [tool, "run", *change],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 60
    while len(started_below(scratch)) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    child.kill()
    child.wait()
    # The workers see their channel close and end by themselves.
    while started_below(scratch) and time.monotonic() < end:
        time.sleep(0.05)
    assert started_below(scratch) == []
    assert not list(kernels.path.rglob(".fla-bot/**/*.json"))
    assert main(["judge", *change]) == 1
