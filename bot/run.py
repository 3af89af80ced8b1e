"""`fla-bot run`: execute the jobs of a plan on this machine and write their evidence."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from bot import evidence
from bot.change import Repository
from bot.check import Analysis, evidence_folder
from bot.errors import InfraError, UserError
from bot.evidence import Evidence
from bot.lanes.benchmark import run_benchmark
from bot.lanes.job import Progress, run_job
from bot.lanes.protection import advice, sentence
from bot.lanes.tests import run_tests
from bot.model import Job, Plan

__all__ = ["Done", "run_cells", "run_plan"]


@dataclass(slots=True)
class Done:
    """What a run did: files written, jobs that had evidence, jobs that failed.

    `sandboxes`: what held code under test, and how to get something stronger, if anything.
    """

    written: list[Path] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    sandboxes: dict[str, str] = field(default_factory=dict)


def run_plan(
    repository: Repository,
    analysis: Analysis,
    *,
    lane: str | None,
    evidence_dir: Path | None,
    progress: Progress,
) -> Done:
    """Run the jobs of one lane, or of the required lanes.

    A job with complete evidence is not run again: what failed on this head stays failed.
    """
    books, planned = analysis.books, analysis.plan
    lanes = books.policy.lanes
    if lane is not None and lane not in lanes:
        raise UserError(f"no lane `{lane}`; the policy has {', '.join(sorted(lanes))}")
    wanted = [lane] if lane else [name for name, spec in lanes.items() if spec.required]
    folder = evidence_dir or evidence_folder(repository, planned)
    done = Done()
    for job in planned.jobs:
        if job.lane not in wanted:
            continue
        if _is_complete(folder, planned, job):
            done.kept.append(job.id)
            continue
        try:
            if job.lane.startswith("tests:"):
                found = run_tests(
                    repository,
                    analysis.change,
                    planned,
                    books.policy,
                    books.contracts,
                    job,
                    folder=folder,
                    progress=progress,
                )
            elif job.lane.startswith("benchmark:"):
                found = run_benchmark(
                    repository,
                    planned,
                    books.policy,
                    books.contracts[job.op],
                    job,
                    logs=folder / "logs",
                    progress=progress,
                )
            else:
                found = run_job(
                    repository,
                    planned,
                    books.policy,
                    books.contracts[job.op],
                    job,
                    logs=folder / "logs",
                    progress=progress,
                )
            done.written.append(evidence.write(folder, found))
            done.sandboxes[sentence(found.environment)] = advice(found.environment)
        except (InfraError, OSError) as error:
            done.failed[job.id] = str(error)
    return done


def run_cells(
    repository: Repository,
    analysis: Analysis,
    *,
    lane: str,
    only: str,
    seed: int | None,
    progress: Progress,
) -> list[tuple[Job, Evidence]]:
    """Run single cells, those with this id or with this text in it; no evidence is written.

    `seed`: the only draw, in place of those that a job makes.
    """
    books, planned = analysis.books, analysis.plan
    jobs = [job for job in planned.jobs if job.lane == lane]
    if lane.partition(":")[0] not in ("interpret", "correctness", "configs"):
        raise UserError(f"--only: lane `{lane}` does not run cells")
    found = []
    for job in jobs:
        exact = [cell for cell in job.cells if cell == only]
        cells = exact or [cell for cell in job.cells if only in cell]
        if not cells:
            continue
        with TemporaryDirectory(prefix="fla-bot-cells-") as scratch:
            evidence = run_job(
                repository,
                planned,
                books.policy,
                books.contracts[job.op],
                job.model_copy(update={"cells": cells}),
                logs=Path(scratch) / "logs",
                progress=progress,
                seed=seed,
            )
        found.append((job, evidence))
    if not found:
        known = sorted({job.lane for job in planned.jobs})
        message = f"no cell of lane `{lane}` matches; the change has jobs for {', '.join(known)}"
        raise UserError(message if jobs else message.replace("no cell of", "no job of"))
    return found


def _is_complete(folder: Path, planned: Plan, job: Job) -> bool:
    found = evidence.read(folder, job.id)
    if not isinstance(found, Evidence) or not found.complete:
        return False
    return (found.plan, found.job, found.lane) == (planned.hash, job.id, job.lane)
