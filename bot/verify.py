"""`fla-bot verify REF`: the loop of someone who makes a kernel faster.

REF is the gate, frozen: its policy, contracts, references and kernels. The work tree is what it is
held to: first correctness, and only where that is green the benchmark of the ops that it touches.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from bot import evidence as evidence_file
from bot.change import Repository
from bot.check import Analysis, Request, analyse, evidence_folder
from bot.errors import InfraError, UserError
from bot.evidence import Evidence, RowEvidence
from bot.globs import matches
from bot.judge import CORRECTNESS, judge
from bot.judge.benchmark import speed
from bot.model import Job, Plan, Row, Verdict
from bot.policy import Policy
from bot.run import run_plan

__all__ = ["Verification", "verify"]

# What tells that a machine has a device of a kind, and what people call it.
TOOLS = {"cpu": "sh", "cuda": "nvidia-smi", "npu": "npu-smi"}
DEVICES = {"cpu": "a CPU", "cuda": "a CUDA device", "npu": "an NPU"}


@dataclass(slots=True)
class Verification:
    """What was found: warnings, verdicts of both stages, rows with their times.

    `missing`: what this machine lacks to time the rows.
    """

    warnings: list[str] = field(default_factory=list)
    correctness: list[Row] = field(default_factory=list)
    benchmark: list[Row] = field(default_factory=list)
    times: list[RowEvidence] = field(default_factory=list)
    missing: str = ""

    @property
    def is_correct(self) -> bool:
        """Whether something was checked, and nothing is anything but green."""
        return bool(self.correctness) and all(r.verdict is Verdict.PASS for r in self.correctness)

    @property
    def is_green(self) -> bool:
        """Whether it is correct, and every row is proved no slower."""
        proved = bool(self.benchmark) and all(r.verdict is Verdict.PASS for r in self.benchmark)
        return self.is_correct and proved

    def lines(self) -> Iterator[str]:
        """One for each row, then the summary."""
        yield from (f"warning: {text}" for text in self.warnings)
        red = [row for row in self.correctness if row.verdict is not Verdict.PASS]
        green = len(self.correctness) - len(red)
        yield f"correctness: {green} of {len(self.correctness)} cells pass"
        yield from (
            f"{row.verdict:<10} {row.lane} {row.cell or row.op}: {row.reason}" for row in red
        )
        if not self.is_correct:
            yield "the gate is red: what is wrong is not timed"
            return
        for row in self.benchmark:
            yield f"{row.verdict:<10} {row.cell or row.op}: {row.reason}"
        yield self.summary()

    def summary(self) -> str:
        """Every row counts the same; one that got slower is named beside the mean.

        Times of a row that is red for anything but time stand for nothing.
        """
        void = {row.cell for row in self.benchmark if not _counts(row)}
        times = [row for row in self.times if row.row not in void]
        found = {row.row: s.ratio.mean for row in times if (s := speed(row))}
        if not found:
            return "no row was timed" if not void else "no row was timed whose times count"
        mean = math.fsum(found.values()) / len(found)
        worst = max(found, key=lambda name: found[name])
        slowest = f"{100 * math.expm1(found[worst]):+.1f}%"
        left = f"; {len(void)} left out" if void else ""
        return (
            f"mean {100 * math.expm1(mean):+.1f}% over {len(found)} rows, worst {slowest} {worst}"
            f"{left}"
        )


def _counts(row: Row) -> bool:
    """Whether a row's times were measured on calls that did their work."""
    slower = row.verdict is Verdict.FAIL and row.reason.startswith("slower: ")
    return slower or row.verdict in (Verdict.PASS, Verdict.NOT_PROVEN)


def verify(
    repository: Repository,
    reference: str,
    *,
    rows: Sequence[str],
    lanes: Sequence[str],
    evidence_dir: Path | None,
    progress: Callable[[str], None],
) -> Verification:
    """Correctness, then the benchmark; rows are patterns over `entry_point/row`."""
    request = Request(base=reference, head=None, trusted=reference)
    analysis = analyse(repository, request)
    found = Verification(warnings=list(_warnings(analysis)))
    policy = analysis.books.policy
    here = _here(policy, lanes)
    asked = [_chosen(job, rows) for job in analysis.plan.jobs if not lanes or job.lane in here]
    checks = [job for job in asked if _kind(job) in CORRECTNESS]
    timed = [job for job in asked if _kind(job) == "benchmark"]
    if rows and timed and not any(job.cells for job in timed):
        named = dict.fromkeys(row for job in _timing(analysis.plan) for row in job.cells)
        raise UserError(f"no row matches {', '.join(rows)}; there are {', '.join(named)}")
    first = [job for job in checks if job.lane in here]
    second = [job for job in timed if job.lane in here and job.cells]
    if checks and not first:
        raise InfraError(f"{_absent(policy, checks)}: nothing can be checked here")
    if not first:
        raise UserError(
            "no lane checks what the work tree changes; `fla-bot check` says what it touches"
        )
    if others := [job for job in checks if job.required and job.lane not in here]:
        found.warnings.append(f"{_absent(policy, others)}: a required lane was left out")
    found.correctness, _ = _run(repository, analysis, first, evidence_dir, progress)
    if not found.is_correct:
        return found
    if second:
        found.benchmark, found.times = _run(repository, analysis, second, evidence_dir, progress)
    elif elsewhere := [job for job in timed if job.cells and job.lane not in here]:
        found.missing = f"{_absent(policy, elsewhere)}: what is correct here was not timed"
    else:
        found.warnings.append(_untimed(analysis.plan))
    return found


def _timing(plan: Plan) -> list[Job]:
    return [job for job in plan.jobs if _kind(job) == "benchmark"]


def _absent(policy: Policy, jobs: Sequence[Job]) -> str:
    """The lanes of jobs that want a device which is not here."""
    wants = {job.lane: DEVICES[policy.lanes[job.lane].device] for job in jobs}
    return "; ".join(f"{lane} wants {device}, there is none here" for lane, device in wants.items())


def _untimed(plan: Plan) -> str:
    if lanes := sorted({job.lane for job in _timing(plan)}):
        return f"nothing is timed by the lanes that were asked for; {', '.join(lanes)} would"
    return "the contract names no benchmark lane for what changed: nothing is timed"


def _kind(job: Job) -> str:
    return job.lane.partition(":")[0]


def _here(policy: Policy, asked: Sequence[str]) -> set[str]:
    """The lanes that were asked for, or those whose device is here."""
    unknown = sorted(set(asked) - set(policy.lanes))
    if unknown:
        known = ", ".join(sorted(policy.lanes))
        raise UserError(f"no lane `{unknown[0]}`; the policy has {known}")
    return set(asked) or {n for n, lane in policy.lanes.items() if shutil.which(TOOLS[lane.device])}


def _chosen(job: Job, patterns: Sequence[str]) -> Job:
    """A benchmark job with the rows that are asked for."""
    if not patterns or _kind(job) != "benchmark":
        return job
    cells = [c for c in job.cells if any(p in c or fnmatchcase(c, p) for p in patterns)]
    return job.model_copy(update={"cells": cells})


def _run(
    repository: Repository,
    analysis: Analysis,
    jobs: list[Job],
    evidence_dir: Path | None,
    progress: Callable[[str], None],
) -> tuple[list[Row], list[RowEvidence]]:
    """Run these jobs as a plan of their own, and judge them."""
    planned = Plan.of(analysis.change, jobs, [], analysis.plan.judges)
    part = replace(analysis, plan=planned)
    folder = evidence_dir or evidence_folder(repository, planned)
    for lane in dict.fromkeys(job.lane for job in jobs):
        done = run_plan(repository, part, lane=lane, evidence_dir=folder, progress=progress)
        if done.failed:
            name, reason = next(iter(done.failed.items()))
            raise InfraError(f"{name}: {reason}")
    evidence: Mapping[str, Evidence | str | None] = {
        job.id: evidence_file.read(folder, job.id) for job in jobs
    }
    books = analysis.books
    rows = judge(planned, books.policy, books.contracts, evidence, books.anchors)
    return rows, [r for one in evidence.values() if isinstance(one, Evidence) for r in one.rows]


def _warnings(analysis: Analysis) -> Iterator[str]:
    """What the change edits of that which judges it; the gate does not use the edited form."""
    policy, change = analysis.books.policy, analysis.change
    paths = sorted({path for file in change.files for path in (file.path, file.old_path)})
    judges = (*policy.python.references, *policy.python.harness)
    for path in _first(paths, 5, lambda path: _judges(policy, path) or matches(path, judges)):
        yield f"{path} is part of what judges; the gate uses {change.trusted[:12]}'s"


def _judges(policy: Policy, path: str) -> bool:
    area = policy.place(path)[0]
    return area is not None and (area.guarded or area.area == "contract")


def _first(paths: Iterable[str], count: int, wanted: Callable[[str], bool]) -> list[str]:
    return [path for path in paths if wanted(path)][:count]
