"""Run one job of a tests lane: the repository's own tests at head, and what differs at the base.

All that comes back is told by the code under test itself. What the host knows on its own is small:
which tests each side collected, how its process ended, and what went wrong with its report.

An entry for a file, without `::`, stands for its collection, and `passed` for "there are tests".
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from bot.change import Repository
from bot.contract import Contract
from bot.coverage import Coverage, targets_of
from bot.errors import InfraError
from bot.evidence import CellUse, Environment, Evidence, TestEvidence
from bot.judge.tests import GONE
from bot.lanes.result import evidence
from bot.lanes.session import Session
from bot.model import Change, Job, Plan
from bot.policy import Lane, Policy
from bot.process import ProgramFailed, run
from bot.recording import MAX_LINE, ReadyLine, Recording, TestLine, parse

__all__ = ["run_tests"]

MAX_BYTES = 256 << 20  # of one report
ANSWER_TIMEOUT_S = 60.0
TICK_S = 0.5
Arm = Literal["base", "head"]
Outcome = Literal["passed", "failed", "error", "skipped", "missing"]
Progress = Callable[[str], None]
Choose = Callable[[Recording], Iterable[str] | None]
_MISSING = re.compile(r"No module named '([A-Za-z0-9_.]{1,80})'")


@dataclass(slots=True)
class _Run:
    """One side: what it told, and what the host saw of its process."""

    recording: Recording = field(default_factory=Recording)
    started: bool = False
    fault: str = ""
    timed_out: bool = False
    status: int | None = None
    log: str = ""
    seconds: float = 0.0

    @property
    def crash(self) -> str:
        """How it ended where it did not say that it ended, in words."""
        if self.recording.end is not None or self.timed_out:
            return ""
        where = f" in {self.recording.running}" if self.recording.running else ""
        return f"the process ended without a word{where} (status {self.status})"


@dataclass(slots=True)
class _Sides:
    """Both sides by the names that files have at head.

    `gone`: files that head no longer has. `edited`: files whose tests may differ.
    """

    cells: list[str]
    gone: set[str]
    old_names: Mapping[str, str]
    edited: set[str]
    head: _Run
    base: _Run

    def new_name(self, test: str) -> str:
        """A test of the base under the name that its file has now."""
        path, colons, rest = test.partition("::")
        return f"{self._renamed().get(path, path)}{colons}{rest}"

    def old_name(self, test: str) -> str:
        """The other way round."""
        path, colons, rest = test.partition("::")
        return f"{self.old_names.get(path, path)}{colons}{rest}"

    def _renamed(self) -> dict[str, str]:
        return {old: new for new, old in self.old_names.items()}


def run_tests(
    repository: Repository,
    change: Change,
    plan: Plan,
    policy: Policy,
    contracts: Mapping[str, Contract],
    job: Job,
    *,
    folder: Path,
    progress: Progress,
) -> Evidence:
    """Evidence of a job; logs go to `folder`/logs."""
    if find_spec("pytest") is None:
        raise InfraError("pytest is not installed beside fla-bot: pip install fla-bot[lanes]")
    lane = policy.lanes[job.lane]
    began = time.monotonic()
    environment = _environment(lane)
    trees = {arm: repository.tree(commit) for arm, commit in _commits(plan).items()}
    old_names = _old_names(change, job.cells)
    gone, edited = set(job.cells) - set(trees["head"]), _edited(change, policy, job.cells)
    sides = _Sides(job.cells, gone, old_names, edited, _Run(), _Run())
    old = [name for path in job.cells if (name := old_names.get(path, path)) in trees["base"]]
    order = {"targets": targets_of(contracts), "roots": policy.source_roots}
    with Session(repository, lane, evidence=folder) as session:
        for arm, commit in _commits(plan).items():
            tops = sorted({path.split("/")[0] for path in trees[arm]})
            session.export(arm, commit, tops, confined=True)
        environment = session.confine().into(environment)
        say = _progress(progress, job, "head")
        # Half of the time is the base's, so that a head that hangs can still be told apart.
        end = time.monotonic() + lane.timeout_s / 2
        # Without a name pytest would run all there is.
        if files := [path for path in job.cells if path not in gone]:
            sides.head = _run(session, "head", {**order, "files": files}, lambda _: None, end, say)
        _refuse_foreign(sides.head, trees.values())
        if old and not sides.head.fault:
            say = _progress(progress, job, "base")
            end = began + lane.timeout_s - 5
            chosen = _chooser(sides)
            sides.base = _run(session, "base", {**order, "files": old}, chosen, end, say)
        session.keep_logs(folder / "logs", job.id)
    if all(
        side.started and _is_silent(side) and not side.fault for side in (sides.head, sides.base)
    ):
        raise InfraError(f"pytest cannot start the tests here: {_last_line(sides.head.log)}")
    found = list(_compare(sides))
    note = _note(sides, found)
    return evidence(
        plan,
        job,
        note,
        environment,
        tests=found,
        coverage=_coverage(contracts, sides),
        wall_s=time.monotonic() - began,
        stages={"head": sides.head.seconds, "base": sides.base.seconds},
    )


def _commits(plan: Plan) -> dict[Arm, str]:
    return {"head": plan.head, "base": plan.merge_base}


def _progress(progress: Progress, job: Job, arm: Arm) -> Progress:
    return lambda text: progress(f"{job.lane} {arm}: {text}")


def _environment(lane: Lane) -> Environment:
    device, driver = _device(lane)
    return Environment(
        python=sys.version.split()[0],
        torch=_version("torch"),
        triton=_version("triton"),
        driver=driver,
        device=device,
        interpreter=lane.interpreter,
        protections=[],
    )


def _version(package: str) -> str:
    with suppress(PackageNotFoundError):
        return version(package)
    return "absent"


def _device(lane: Lane) -> tuple[str, str]:
    """Name and driver of the accelerator that the lane needs."""
    if lane.device == "cpu":
        return "cpu", ""
    if lane.device == "npu":
        if not any(Path("/dev").glob("davinci[0-9]*")):
            raise InfraError("the lane needs an NPU; there is none here")
        return "npu", ""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        lines = run(query, cwd=Path("/")).decode(errors="replace").strip().splitlines()
    except (InfraError, ProgramFailed) as error:
        raise InfraError("the lane needs a CUDA device; there is none here") from error
    name, _, driver = (lines or [""])[0].partition(", ")
    return name, driver


def _old_names(change: Change, cells: Iterable[str]) -> dict[str, str]:
    moved = {file.path: file.old_path for file in change.files if file.status == "renamed"}
    return {path: moved[path] for path in cells if path in moved}


def _edited(change: Change, policy: Policy, cells: Iterable[str]) -> set[str]:
    """Test files that the change edits, and those beside or below an edited helper or conftest."""
    changed = {path for file in change.files for path in (file.path, file.old_path)}
    roots = tuple(f"{root}/" for root in policy.source_roots)
    cells = set(cells)
    helpers = {
        path.rpartition("/")[0]
        for path in changed - cells
        if path.endswith(".py") and not path.startswith(roots)
    }
    return {
        path
        for path in cells
        if path in changed or any(f"/{path}".startswith(f"/{h}/" if h else "/") for h in helpers)
    }


def _run(
    session: Session, arm: Arm, order: dict[str, object], choose: Choose, end: float, say: Progress
) -> _Run:
    """Start the worker of an arm and listen until it is done, breaks the form or takes too long."""
    found, began = _Run(started=True), time.monotonic()
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(ANSWER_TIMEOUT_S)
        session.start_worker(arm, theirs, "bot.observe")
        process = session.workers[arm].process
        try:
            ours.sendall(json.dumps(order).encode() + b"\n")
            _listen(found, ours, process, choose, end, say)
        except (OSError, ValueError) as error:
            # A channel that breaks is a process that ends, and that is seen below.
            found.fault = str(error) if isinstance(error, ValueError) else ""
        found.timed_out |= session.timed_out
        with suppress(subprocess.TimeoutExpired):
            # Not told yet: it may take a moment to go, or be in no hurry.
            found.status = process.wait(1 if found.recording.end is None else 0)
        session.stop(arm)
    found.log, found.seconds = session.logs[arm].text(), time.monotonic() - began
    return found


def _listen(
    found: _Run,
    channel: socket.socket,
    process: subprocess.Popen[bytes],
    choose: Choose,
    end: float,
    say: Progress,
) -> None:
    """Lines until the end; ValueError for one that may not be."""
    recording, buffer, size = found.recording, b"", 0
    while recording.end is None:
        if time.monotonic() > end:
            found.timed_out = True
            return
        if not select.select([channel], [], [], TICK_S)[0]:
            # What it left running may hold the channel open.
            if process.poll() is not None:
                return
            continue
        piece = channel.recv(1 << 16)
        size += len(piece)
        if not piece:
            return
        *lines, buffer = (buffer + piece).split(b"\n")
        if size > MAX_BYTES or len(buffer) > MAX_LINE:
            raise ValueError("it is too long")
        for text in lines:
            _take(recording, text, channel, choose, say)


def _take(
    recording: Recording, text: bytes, channel: socket.socket, choose: Choose, say: Progress
) -> None:
    line = parse(text)
    if fault := recording.add(line):
        raise ValueError(fault)
    if isinstance(line, ReadyLine):
        wanted = choose(recording)
        answer = None if wanted is None else sorted(wanted)
        channel.sendall(json.dumps(answer).encode() + b"\n")
    elif isinstance(line, TestLine):
        say(f"{len(recording.tests)}/{len(recording.collected)} tests")


def _is_silent(side: _Run) -> bool:
    """Whether not even a file was looked at."""
    return not side.recording.ready and not side.recording.files


def _last_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "rror:" in line or line.startswith("E  ")]
    return (errors or lines or ["it printed nothing"])[-1].strip()[:300]


def _refuse_foreign(head: _Run, trees: Iterable[Mapping[str, object]]) -> None:
    """A package that is missing here, or used from elsewhere, is the machine's fault."""
    end = head.recording.end
    if end is not None and end.strays:
        message = "is imported from somewhere else than the tree under test"
        raise InfraError(f"`{end.strays[0]}` {message}")
    wanted = {line.path: line.module for line in head.recording.files.values() if line.module}
    if _is_silent(head) and (names := _MISSING.findall(head.log)):
        wanted[""] = names[-1]
    known = {
        part.removesuffix(".py") for tree in trees for path in tree for part in path.split("/")
    }
    for path, module in wanted.items():
        if module and module.partition(".")[0] not in known:
            subject = f"{path} needs" if path else "the tests need"
            raise InfraError(f"{subject} `{module}`, which is not installed here")


def _file(test: str) -> str:
    return test.partition("::")[0]


def _chooser(sides: _Sides) -> Choose:
    """What to run at the base: what head did not pass, what it lost, and all of edited files."""

    def choose(base: Recording) -> list[str]:
        head = sides.head.recording
        passed = {name for name, line in head.tests.items() if line.outcome == "passed"}
        whole = {_file(name) for name in head.collected}
        wanted = []
        for old in base.collected:
            new = sides.new_name(old)
            is_open = new not in passed and _file(new) in whole
            if is_open or _file(new) in sides.edited:
                wanted.append(old)
        return wanted

    return choose


def _compare(sides: _Sides) -> Iterator[TestEvidence]:
    """Every test of every file of the job, and files that have none."""
    head = sides.head.recording
    by_file: dict[str, list[str]] = {path: [] for path in sides.cells}
    for name in head.collected:
        by_file.setdefault(_file(name), []).append(name)
    gone: dict[str, list[str]] = {}
    for old in sides.base.recording.collected:
        new = sides.new_name(old)
        if new not in head.collected:
            gone.setdefault(_file(new), []).append(new)
    for path in sides.cells:
        if not by_file[path] or sides.head.fault:
            found = _whole_file(sides, path)
            if found is not None:
                yield found
            continue
        for name in [*by_file[path], *gone.get(path, ())]:
            found = _one(sides, name)
            if found is not None:
                yield found


def _whole_file(sides: _Sides, path: str) -> TestEvidence | None:
    """A file of which head has no test to tell of."""
    head, told = sides.head, _told(sides.head.recording, path)
    base = _collected(sides, path)
    if head.fault:
        return TestEvidence(
            test=path, head="error", note=f"its report broke the form: {head.fault}"
        )
    if path in sides.gone:
        return TestEvidence(test=path, head="missing", base=base, note=GONE)
    if told:
        return TestEvidence(test=path, head=told[0], base=base, note=told[1])
    if head.recording.ready:
        return TestEvidence(test=path, head="missing", base=base)
    if head.timed_out:
        return None
    note = head.crash or f"pytest ended with status {head.status}"
    return TestEvidence(test=path, head="error", base=base, note=f"{note}: {_last_line(head.log)}")


def _told(recording: Recording, path: str) -> tuple[Literal["error", "skipped"], str] | None:
    """What was said of a file, or of a folder above it."""
    for name, line in recording.files.items():
        if name in (path, "", ".") or path.startswith(f"{name}/"):
            return line.outcome, line.note
    return None


def _collected(sides: _Sides, path: str) -> Outcome | None:
    """How the base collects a file; None where it did not get there."""
    base, old = sides.base.recording, sides.old_name(path)
    if any(_file(name) == old for name in base.collected):
        return "passed"
    told = _told(base, old)
    if told:
        return told[0]
    if base.ready or not sides.base.started:
        return "missing"
    return None if sides.base.timed_out or sides.base.fault else "error"


def _one(sides: _Sides, name: str) -> TestEvidence | None:
    """One test on both sides; None for one that head's time did not suffice for."""
    head = sides.head
    line = head.recording.tests.get(name)
    outcome: Outcome
    if line is not None:
        outcome, note, seconds = line.outcome, line.note, line.seconds
    elif name not in head.recording.collected:
        outcome, note, seconds = "missing", "", 0.0
    elif head.timed_out and head.recording.running != name:
        return None
    elif head.timed_out:
        outcome, note, seconds = "error", "it still ran when the time was over", 0.0
    else:
        outcome, note, seconds = "error", f"it did not run: {head.crash or 'pytest stopped'}", 0.0
    base = None if outcome == "passed" else _at_base(sides, name)
    return TestEvidence(test=name, head=outcome, base=base, seconds=seconds, note=note)


def _at_base(sides: _Sides, name: str) -> Outcome | None:
    base, old = sides.base, sides.old_name(name)
    line = base.recording.tests.get(old)
    if line is not None:
        return line.outcome
    if old not in base.recording.collected:
        told = _collected(sides, _file(name))
        return "missing" if told == "passed" else told
    return None if base.timed_out or base.fault else "error"


def _note(sides: _Sides, found: Iterable[TestEvidence]) -> str:
    """Why the evidence is not complete, or nothing."""
    if sides.head.timed_out:
        return "the lane's time was over before all tests had run"
    if sides.head.fault:
        return ""
    open_ = [entry.test for entry in found if entry.head != "passed" and entry.base is None]
    if not open_:
        return ""
    reason = sides.base.fault or "the lane's time was over"
    return f"the merge base could not be compared with: {reason}"


def _coverage(contracts: Mapping[str, Contract], sides: _Sides) -> list[CellUse]:
    """Cells that tests which passed have called; at the base, only those of edited files."""
    enforced = {op: one for op, one in contracts.items() if one.status == "enforced"}
    head, base = Coverage(contracts), Coverage(enforced)
    head.record(sides.head.recording)
    whole = sides.base.recording
    whole.calls = [c for c in whole.calls if _file(sides.new_name(c.test)) in sides.edited]
    base.record(whole)
    return [*head.uses("head"), *base.uses("base")]
