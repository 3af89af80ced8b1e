"""Run one benchmark job: two confined arms that are restarted, and a trusted clock."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import json
import math
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bot.change import Repository
from bot.contract import Contract
from bot.evidence import Evidence, RowEvidence
from bot.lanes.job import ARMS, START_TIMEOUT_S, Keywords, Progress
from bot.lanes.result import evidence_of, finished, messages, told
from bot.lanes.session import Session
from bot.model import Job, Plan
from bot.policy import Margins, Policy
from bot.statistics import MOST

__all__ = ["edges", "run_benchmark"]

# A restart is one measurement: the interval is taken over them.
QUADS = 6


def run_benchmark(
    repository: Repository,
    plan: Plan,
    policy: Policy,
    contract: Contract,
    job: Job,
    *,
    logs: Path,
    progress: Progress,
    keywords: Keywords | None = None,
) -> Evidence:
    """As for a job of any kind; see `run_job`."""
    lane, began = policy.lanes[job.lane], time.monotonic()
    lines = list[dict[str, Any]]()
    with Session(repository, lane, evidence=logs.parent) as session:
        session.export("trusted", plan.trusted, policy.source_roots)
        for arm, commit in zip(ARMS, (plan.merge_base, plan.head), strict=True):
            session.export(arm, commit, policy.source_roots, confined=True)
        try:
            order = {
                "contract": contract.model_dump(mode="json", by_alias=True),
                "rows": job.cells,
                "trusted_tree": str(session.trees["trusted"]),
                "roots": policy.source_roots,
                "device": lane.device,
                "interpreter": lane.interpreter,
                "call_timeout_s": lane.call_timeout_s,
                "start_timeout_s": START_TIMEOUT_S,
                "keywords": keywords or {},
                "edges": edges(contract, policy.margins, job.cells),
                "restarts": MOST,
                "quads": QUADS,
            }
            lines += _drive(session, policy, order, job, progress)
        except KeyboardInterrupt as stop:
            session.stopped = str(stop) or "SIGINT"
        finally:
            session.kill()
            session.keep_logs(logs, job.id)
    return finished(session, _evidence(plan, job, lines, session, time.monotonic() - began))


def edges(contract: Contract, margins: Margins, rows: Sequence[str]) -> dict[str, float]:
    """By row, the log of how much slower it may get; nothing for rows that never gate."""
    found = {}
    for name in rows:
        entry, _, row = name.partition("/")
        margin = contract.entry_points[entry].benchmarks[row].margin
        if margin != "shown":
            found[name] = math.log1p(margins.share(margin))
    return found


def _drive(
    session: Session, policy: Policy, order: dict[str, Any], job: Job, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Start everything and hand on what the device process says, line by line."""
    channels = {arm: socket.socketpair() for arm in ARMS}
    fds = {arm: ours.fileno() for arm, (ours, _) in channels.items()}
    device = session.start_device("bot.device.bench", pass_fds=list(fds.values()))
    for ours, _ in channels.values():
        ours.close()
    session.confine()
    for arm in secrets.SystemRandom().sample(ARMS, len(ARMS)):
        roots = ",".join(policy.source_roots)
        session.start_worker(arm, channels[arm][1], "bot.worker.timing", roots)
    assert device.stdin is not None
    assert device.stdout is not None
    with contextlib.suppress(BrokenPipeError), device.stdin:
        device.stdin.write(json.dumps(order | {"arms": fds}).encode())
    for message in messages(device.stdout):
        if "progress" in message:
            done = message["progress"]
            progress(f"{job.lane} {job.op}: restart {done['restart']} of {done['of']}")
        yield message


def _evidence(
    plan: Plan, job: Job, lines: list[dict[str, Any]], session: Session, wall_s: float
) -> Evidence:
    rows = told(lines, "row", RowEvidence)
    ends = [message["end"] for message in lines if "end" in message]
    return evidence_of(
        plan,
        job,
        lines,
        session,
        # A row is told again after each restart, with all that is known of it.
        rows=list({row.row: row for row in rows}.values()),
        wall_s=wall_s,
        stages=ends[0].get("stages", {}) if ends else {},
    )
