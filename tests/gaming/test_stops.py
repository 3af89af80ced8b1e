"""A run that is stopped or loses a process leaves nothing behind, passes nothing, and can go on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from bot.cli import main
from bot.lanes.processes import below, start_time
from tests.conftest import Workbench

KERNEL = "fla/modules/l2norm.py"
TOOL = str(Path(sys.executable).with_name("fla-bot"))
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Run:
    """`fla-bot run` on an honest change, in a process of its own."""

    def __init__(self, kernels: Workbench, scratch: Path) -> None:
        text = (kernels.path / KERNEL).read_text()
        self.head = kernels.commit(
            {KERNEL: text.replace("TILE = 4096", "TILE = 2048")}, branch="work"
        )
        self.scratch, self.kernels = scratch, kernels
        self.change = ["--repo", str(kernels.path), "--base", "main", "--head", "work"]
        self.process = self.start()

    def start(self, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start it; everything temporary goes to the scratch folder."""
        return subprocess.Popen(
            [TOOL, "run", "--lane", "interpret:cpu", *self.change],
            env={**os.environ, "TMPDIR": str(self.scratch)},
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )

    def processes(self, word: bytes = b"") -> set[tuple[int, int]]:
        """Everything that it has started and that has a word in its command."""
        return {(pid, start_time(pid)) for pid in below(self.process.pid) if word in command(pid)}

    def working(self) -> set[tuple[int, int]]:
        """Wait until code under test runs, and return its processes."""
        wait_for(lambda: len(self.workers()) >= 2 or self.process.poll() is not None)
        assert self.process.poll() is None
        return self.workers()

    def workers(self) -> set[tuple[int, int]]:
        """The processes themselves, not those that hold their sandboxes."""
        found = self.processes(b"-m\0bot.worker\0")
        return {p for p in found if command(p[0]).startswith(sys.executable.encode())}

    def evidence(self) -> list[Path]:
        """The files that a judge would read."""
        return list(self.kernels.path.rglob(".fla-bot/evidence/*/*.json"))


def command(pid: int) -> bytes:
    """What a process was started as."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; two minutes are longer than any machine needs."""
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a run that is not wanted."""
    process.terminate()
    process.wait(timeout=60)


def read_until(screen: IO[bytes], pattern: bytes) -> bytes:
    """What is written to a terminal, up to something."""
    said = b""
    while not re.search(pattern, said):
        said += screen.read(1 << 10)
    return said


@contextlib.contextmanager
def watched(run: Run) -> Iterator[IO[bytes]]:
    """Start it anew on a terminal, whose screen shows how far it is."""
    end(run.process)
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        run.process = run.start(stderr=theirs)
        os.close(theirs)
        yield screen


def gone(processes: set[tuple[int, int]]) -> bool:
    """Whether none of them lives on."""
    return all(start_time(pid) != start for pid, start in processes)


@pytest.fixture
def stopped(run: object, kernels: Workbench, tmp_path: Path) -> Iterator[Run]:
    """A run on the short contract that the fixture `run` puts on the main branch."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = Run(kernels, scratch)
    yield found
    found.process.kill()
    found.process.wait()


@pytest.mark.parametrize("number", STOPS)
def test_stopped_run_leaves_nothing(
    stopped: Run, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped.working()
    started = stopped.processes()
    stopped.process.send_signal(number)
    assert stopped.process.wait(timeout=60) == 128 + number
    assert gone(started)
    assert list(stopped.scratch.iterdir()) == []
    assert main(["judge", *stopped.change]) == 1
    assert "Waiting for evidence" in capsys.readouterr().out


@pytest.mark.parametrize("number", STOPS[:2])
def test_interrupted_run_keeps_whole_cells_and_the_next_measures_the_rest(
    stopped: Run, number: signal.Signals
) -> None:
    with watched(stopped) as screen:
        said = read_until(screen, rb"3/\d+ cells")
        started, workers = stopped.processes(), stopped.workers()
        stopped.process.send_signal(number)
        wait_for(lambda: bool(stopped.evidence()))
        assert gone(workers)  # before anything tells what the secret seeds were
        said += read_until(screen, rb"kept; run again to go on")
    assert stopped.process.wait(timeout=60) == 128 + number
    assert gone(started)
    (file,) = stopped.evidence()
    first = json.loads(file.read_text())
    kept = {cell["cell"]: cell for cell in first["cells"]}
    assert not first["complete"]
    assert number.name in first["note"]
    assert f"stopped; {first['job']}: {len(kept)} of ".encode() in said
    assert main(["judge", *stopped.change]) == 1
    assert stopped.start().wait(timeout=300) == 0
    whole = json.loads(file.read_text())
    assert whole["complete"]
    assert len(whole["cells"]) > len(kept) >= 2  # the third is told before it is kept
    # Its secret seeds are those of the first run: it was not measured again.
    assert [cell for cell in whole["cells"] if cell["cell"] in kept] == list(kept.values())
    assert main(["judge", *stopped.change]) == 0


def test_killed_host_takes_everything_along_and_the_next_run_goes_on(stopped: Run) -> None:
    stopped.working()
    started = stopped.processes()
    stopped.process.kill()
    stopped.process.wait()
    wait_for(lambda: gone(started))
    assert stopped.evidence() == []
    assert main(["judge", *stopped.change]) == 1
    assert list(stopped.scratch.glob("fla-bot-job-*"))
    assert stopped.start().wait(timeout=300) == 0
    assert list(stopped.scratch.glob("fla-bot-job-*")) == []
    assert [json.loads(file.read_text())["complete"] for file in stopped.evidence()] == [True]
    assert main(["judge", *stopped.change]) == 0


def test_killed_device_process_passes_nothing_and_is_measured_again(stopped: Run) -> None:
    stopped.working()
    started = stopped.processes()
    (device,) = stopped.processes(b"\0bot.device\0")
    os.kill(device[0], signal.SIGKILL)
    stopped.process.wait(timeout=60)
    assert gone(started)
    assert [json.loads(file.read_text())["complete"] for file in stopped.evidence()] in (
        [],
        [False],
    )
    assert main(["judge", *stopped.change]) == 1
    assert stopped.start().wait(timeout=300) == 0
    assert main(["judge", *stopped.change]) == 0


def test_workers_killed_before_they_begin_are_nobodys_fault(stopped: Run) -> None:
    for pid, _ in stopped.working():
        os.kill(pid, signal.SIGKILL)
    assert stopped.process.wait(timeout=300) == 3
    assert stopped.evidence() == []
    assert main(["judge", *stopped.change]) == 1


def test_killed_workers_pass_nothing(stopped: Run) -> None:
    with watched(stopped) as screen:
        read_until(screen, rb"[1-9]\d*/\d+ cells")
        for pid, _ in stopped.workers():
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):  # until nobody writes there any more
            read_until(screen, rb"$^")
    assert stopped.process.wait(timeout=300) == 0
    (file,) = stopped.evidence()
    outcomes = {cell["head"] for cell in json.loads(file.read_text())["cells"]}
    assert "worker-died" in outcomes
    assert main(["judge", *stopped.change]) == 1
