"""Run one job: the trees, a trusted device process, confined workers; collect evidence."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bot.anchors import Frozen
from bot.change import Repository
from bot.contract import Contract
from bot.errors import InfraError
from bot.evidence import CellEvidence, Evidence, KernelEvidence, RouteEvidence
from bot.kernels import most_configurations
from bot.lanes.result import evidence_of, finished, messages, told
from bot.lanes.session import Session
from bot.model import Job, Plan
from bot.plan import find_cells
from bot.policy import Lane, Policy

__all__ = ["ARMS", "START_TIMEOUT_S", "Keywords", "Progress", "count_pairs", "run_job"]

START_TIMEOUT_S = 120
ARMS = ("base", "head")
# Workers of one arm: a fresh one costs seconds, and on an accelerator half a gigabyte.
MOST_PAIRS, CELLS_A_PAIR = 4, 16
Progress = Callable[[str], None]
Keywords = Mapping[str, Mapping[str, str | None]]


def run_job(
    repository: Repository,
    plan: Plan,
    policy: Policy,
    contract: Contract,
    job: Job,
    *,
    logs: Path,
    progress: Progress,
    keywords: Keywords | None = None,
    frozen: Frozen | None = None,
    seed: int | None = None,
) -> Evidence:
    """Evidence of a job; what the workers printed goes to files in `logs`.

    `keywords`: what head calls the arguments of a target, where that differs from the contract.
    `frozen`: the errors that its cells must not exceed, which says what is drawn again.
    `seed`: the only draw of each cell, in place of a public and a secret one.
    """
    lane = policy.lanes[job.lane]
    began = time.monotonic()
    lines, due = list[dict[str, Any]](), None
    with Session(repository, lane, evidence=logs.parent) as session:
        session.export("trusted", plan.trusted, policy.source_roots)
        pairs = [_names(number) for number in range(count_pairs(lane, len(job.cells)))]
        for names in pairs:
            for name, commit in zip(names, (plan.merge_base, plan.head), strict=True):
                session.export(name, commit, policy.source_roots, confined=True)
        try:
            order = _order(session, policy, contract, job)
            order |= {"plan": plan.hash, "keywords": keywords or {}}
            order["frozen"] = {cell: dict((frozen or {}).get(cell, {})) for cell in job.cells}
            order |= {} if seed is None else {"seed": seed}
            if job.lane.startswith("configs:"):
                counted = most_configurations(session.trees["head"])
                order["configurations"] = counted.least
                due = counted.least if counted.is_complete else None
            lines += _drive(session, policy, order, job, pairs, progress)
        except KeyboardInterrupt as stop:
            session.stopped = str(stop) or "SIGINT"
        finally:
            session.kill()
            session.keep_logs(logs, job.id)
    found = _evidence(plan, job, lines, session, time.monotonic() - began)
    found = found.model_copy(update={"configurations": due})
    return finished(session, found)


def _names(number: int) -> tuple[str, str]:
    """The workers of a pair; those of the first are named like their arms."""
    base, head = (f"{arm}-{number}" if number else arm for arm in ARMS)
    return base, head


def count_pairs(lane: Lane, cells: int) -> int:
    """How many pairs of workers share the cells of a job.

    A call keeps one core busy, in an accelerator's lane that of the compiler. In the interpreter
    head has three times the calls of the merge base, so that there a pair is worth one core.
    """
    cores = len(os.sched_getaffinity(0))
    cores = cores if lane.interpreter else cores // 2
    return max(1, min(cores, MOST_PAIRS, cells // CELLS_A_PAIR))


def _drive(
    session: Session,
    policy: Policy,
    order: dict[str, Any],
    job: Job,
    pairs: Sequence[tuple[str, str]],
    progress: Progress,
) -> Iterator[dict[str, Any]]:
    """Start everything and hand on what the device process says, line by line."""

    def work(arm: str, end: socket.socket) -> None:
        session.start_worker(arm, end, "bot.worker", ",".join(policy.source_roots))

    def fresh(arm: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            work(arm, theirs)
        except BaseException:
            ours.close()
            raise
        return ours

    host, control = socket.socketpair()
    names = [name for pair in pairs for name in pair]
    channels = {name: socket.socketpair() for name in names}
    fds = {name: ours.fileno() for name, (ours, _) in channels.items()}
    device = session.start_device("bot.device", pass_fds=[control.fileno(), *fds.values()])
    order = order | {"pairs": pairs, "workers": fds, "control": control.fileno()}
    # From here on these ends are the device process' alone: either side sees the other's end.
    for end in (control, *(ours for ours, _ in channels.values())):
        end.close()
    session.confine()
    # Neither arm is always the first.
    for name in secrets.SystemRandom().sample(names, len(names)):
        work(name, channels[name][1])
    session.serve(host, fresh)
    for message in _listen(device, order, job, progress):
        if "unstarted" in message:
            raise InfraError(_unstarted(session, **message["unstarted"]))
        yield message


def _unstarted(session: Session, worker: str, outcome: str) -> str:
    """Why a merge base that does not even import is this machine's fault, and no change's."""
    session.stop(worker)
    said = session.logs[worker].last_line() or f"no message ({outcome})"
    return f"the worker of the merge base does not start here: {said}"


def _order(session: Session, policy: Policy, contract: Contract, job: Job) -> dict[str, Any]:
    cells = find_cells(contract, job.cells)
    return {
        "contract": contract.model_dump(mode="json", by_alias=True),
        "cells": [{"entry_point": cell.entry_point, "values": cell.values} for cell in cells],
        "trusted_tree": str(session.trees["trusted"]),
        "roots": policy.source_roots,
        "margins": policy.margins.model_dump(mode="json"),
        "device": session.lane.device,
        "interpreter": session.lane.interpreter,
        "call_timeout_s": session.lane.call_timeout_s,
        "start_timeout_s": START_TIMEOUT_S,
    }


def _listen(
    device: subprocess.Popen[bytes], order: dict[str, Any], job: Job, progress: Progress
) -> Iterator[dict[str, Any]]:
    assert device.stdin is not None
    assert device.stdout is not None
    with contextlib.suppress(BrokenPipeError), device.stdin:
        device.stdin.write(json.dumps(order).encode())
    done = 0
    for message in messages(device.stdout):
        done += "cell" in message
        progress(f"{job.lane} {job.op}: {done}/{len(job.cells)} cells")
        yield message


def _evidence(
    plan: Plan, job: Job, lines: list[dict[str, Any]], session: Session, wall_s: float
) -> Evidence:
    place = {cell: number for number, cell in enumerate(job.cells)}
    cells = told(lines, "cell", CellEvidence)
    return evidence_of(
        plan,
        job,
        lines,
        session,
        # In the plan's order, whichever pair of workers was first.
        cells=sorted(cells, key=lambda entry: place.get(entry.cell, len(place))),
        kernels=told(lines, "kernel", KernelEvidence),
        routes=told(lines, "route", RouteEvidence),
        wall_s=wall_s,
    )
