"""Run one job: export the trees, start the device process and two workers, collect evidence."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from bot.change import Repository
from bot.contract import Contract
from bot.errors import InfraError
from bot.evidence import CellEvidence, Environment, Evidence
from bot.model import Job, Plan
from bot.plan import find_cells
from bot.policy import Lane, Policy
from bot.process import start

__all__ = ["run_job"]

LOG_BYTES = 64 << 10
START_TIMEOUT_S = 120
ARMS = ("base", "head")
Progress = Callable[[str], None]


class Log:
    """Keeps the first and the last of what a process prints, however much that is."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.head, self.tail, self.dropped = b"", b"", 0
        self.thread = threading.Thread(target=self._drain, args=(stream,), daemon=True)
        self.thread.start()

    def _drain(self, stream: IO[bytes]) -> None:
        with stream:
            self._keep(stream)

    def _keep(self, stream: IO[bytes]) -> None:
        while piece := stream.read1(1 << 16):  # type: ignore[attr-defined]  # a BufferedReader
            room = LOG_BYTES // 2 - len(self.head)
            self.head, rest = self.head + piece[:room], piece[room:] if room > 0 else piece
            self.dropped += max(0, len(self.tail) + len(rest) - LOG_BYTES // 2)
            self.tail = (self.tail + rest)[-LOG_BYTES // 2 :]

    def text(self) -> str:
        """What was kept, with the number of bytes that were not."""
        self.thread.join(timeout=1)
        gap = f"\n[{self.dropped} bytes left out]\n".encode() if self.dropped else b""
        return (self.head + gap + self.tail).decode(errors="replace")


@dataclass(slots=True)
class _Session:
    """The processes of a job; all that can be found of them are gone when it ends."""

    folder: Path
    lane: Lane
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    logs: dict[str, Log] = field(default_factory=dict)

    def environment(self, name: str) -> dict[str, str]:
        """Nothing of ours crosses: no token, no CI variable, no cache, no home."""
        home = self.folder / f"home-{name}"
        home.mkdir()
        kept = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH") if key in os.environ}
        interpreter = {"TRITON_INTERPRET": "1"} if self.lane.interpreter else {}
        return (
            kept
            | interpreter
            | {
                "HOME": str(home),
                "TMPDIR": str(home),
                "TRITON_CACHE_DIR": str(home / "triton"),
                "OMP_NUM_THREADS": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
            }
        )

    def kill(self) -> None:
        """End every process group that was started."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # A stop between a start and its bookkeeping, or a process that left its group.
        for pid in _below(self.folder):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _below(folder: Path) -> list[int]:
    """Processes whose working directory lies in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(folder):
                found.append(int(entry.name))
    return found


def _python(module: str, *argv: str) -> list[str]:
    # -I: neither the folder, nor PYTHON* variables, nor the user's site-packages count.
    return [sys.executable, "-I", "-m", module, *argv]


def run_job(
    repository: Repository,
    plan: Plan,
    policy: Policy,
    contract: Contract,
    job: Job,
    *,
    logs: Path,
    progress: Progress,
) -> Evidence:
    """Evidence of a job; what the workers printed goes to files in `logs`."""
    lane = policy.lanes[job.lane]
    began = time.monotonic()
    # A process that outlived its group may still write there.
    with tempfile.TemporaryDirectory(prefix="fla-bot-job-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch).resolve()
        commits = {"base": plan.merge_base, "head": plan.head, "trusted": plan.trusted}
        for name, commit in commits.items():
            (folder / name).mkdir()
            repository.export(commit, policy.source_roots, folder / name)
        session = _Session(folder, lane)
        watchdog = threading.Timer(lane.timeout_s, session.kill)
        watchdog.start()
        try:
            lines = list(_drive(session, policy, contract, job, progress))
        finally:
            watchdog.cancel()
            session.kill()
            _keep_logs(session, logs, job)
    return _evidence(plan, job, lines, session, time.monotonic() - began)


def _drive(
    session: _Session, policy: Policy, contract: Contract, job: Job, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Start everything and hand on what the device process says, line by line."""
    ends = {name: socket.socketpair() for name in ARMS}
    device_ends = {name: pair[0] for name, pair in ends.items()}
    for name, (_, worker_end) in ends.items():
        _start_worker(session, policy, name, worker_end)
    cells = find_cells(contract, job.cells)
    order = {
        "contract": contract.model_dump(mode="json", by_alias=True),
        "cells": [{"entry_point": cell.entry_point, "values": cell.values} for cell in cells],
        "trusted_tree": str(session.folder / "trusted"),
        "roots": policy.source_roots,
        "device": session.lane.device,
        "interpreter": session.lane.interpreter,
        "call_timeout_s": session.lane.call_timeout_s,
        "start_timeout_s": START_TIMEOUT_S,
        "protections": ["rlimit_core", "process-group"],
        "arms": {name: end.fileno() for name, end in device_ends.items()},
    }
    device = start(
        _python("bot.device"),
        cwd=session.folder,
        env=session.environment("device"),
        pass_fds=[end.fileno() for end in device_ends.values()],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    session.processes["device"] = device
    for end in device_ends.values():
        end.close()
    assert device.stdin is not None
    assert device.stdout is not None
    assert device.stderr is not None
    session.logs["device"] = Log(device.stderr)
    with contextlib.suppress(BrokenPipeError), device.stdin:
        device.stdin.write(json.dumps(order).encode())
    done = 0
    with device.stdout:
        for line in device.stdout:
            message = _message(line)
            done += "cell" in message
            progress(f"{job.lane} {job.op}: {done}/{len(job.cells)} cells")
            yield message


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError as error:
        raise InfraError("the device process wrote something unreadable") from error
    if not isinstance(message, dict):
        raise InfraError("the device process wrote something unreadable")
    if "refused" in message:
        raise InfraError(str(message["refused"].get("reason")))
    return message


def _start_worker(session: _Session, policy: Policy, name: str, end: socket.socket) -> None:
    argv = [str(end.fileno()), str(session.folder / name), ",".join(policy.source_roots)]
    worker = start(
        _python("bot.worker", *argv),
        cwd=session.folder / name,
        env=session.environment(name),
        pass_fds=[end.fileno()],
    )
    resource.prlimit(worker.pid, resource.RLIMIT_CORE, (0, 0))
    end.close()
    session.processes[name] = worker
    assert worker.stdout is not None
    session.logs[name] = Log(worker.stdout)


def _keep_logs(session: _Session, logs: Path, job: Job) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    for name, log in session.logs.items():
        (logs / f"{job.id}.{name}.log").write_text(log.text())


def _evidence(
    plan: Plan, job: Job, lines: list[dict[str, Any]], session: _Session, wall_s: float
) -> Evidence:
    try:
        environment = [
            Environment.model_validate(m["environment"]) for m in lines if "environment" in m
        ]
        cells = [
            CellEvidence.model_validate_json(json.dumps(m["cell"])) for m in lines if "cell" in m
        ]
    except ValidationError as error:
        raise InfraError(f"the device process wrote something unreadable: {error}") from error
    complete = any("end" in message for message in lines)
    if not environment:
        last = session.logs["device"].text().strip().splitlines()[-1:]
        raise InfraError(f"the device process did not start: {' '.join(last) or 'no message'}")
    note = "" if complete else "the device process ended early, or the lane's time was over"
    return Evidence(
        schema="fla-bot/evidence@1",
        plan=plan.hash,
        job=job.id,
        lane=job.lane,
        head=plan.head,
        merge_base=plan.merge_base,
        trusted=plan.trusted,
        complete=complete,
        note=note,
        environment=environment[0],
        cells=cells,
        wall_s=wall_s,
    )
