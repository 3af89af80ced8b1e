"""`fla-bot run`: execute the jobs of a plan on this machine and write their evidence."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bot import evidence
from bot.change import Repository
from bot.check import Analysis, evidence_folder
from bot.errors import InfraError, UserError
from bot.evidence import Evidence
from bot.lanes.job import Progress, run_job
from bot.model import Job, Plan

__all__ = ["Done", "run_plan"]


@dataclass(slots=True)
class Done:
    """What a run did: files written, jobs that had evidence, that failed, that are left to you."""

    written: list[Path] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left: list[Job] = field(default_factory=list)


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
        if job.op not in books.contracts:
            done.left.append(job)
            continue
        if _is_complete(folder, planned, job):
            done.kept.append(job.id)
            continue
        try:
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
        except (InfraError, OSError) as error:
            done.failed[job.id] = str(error)
    return done


def _is_complete(folder: Path, planned: Plan, job: Job) -> bool:
    found = evidence.read(folder, job.id)
    return isinstance(found, Evidence) and found.complete and found.plan == planned.hash
