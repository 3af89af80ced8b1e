"""`fla-bot run`: execute the jobs of a plan on this machine and write their evidence."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from pathlib import Path

from bot import evidence
from bot.change import Repository
from bot.check import Analysis, evidence_folder
from bot.errors import UserError
from bot.lanes.job import Progress, run_job

__all__ = ["run_plan"]


def run_plan(
    repository: Repository,
    analysis: Analysis,
    *,
    lane: str | None,
    evidence_dir: Path | None,
    progress: Progress,
) -> list[Path]:
    """Run the jobs of one lane, or of the required lanes; returns the files written."""
    lanes = analysis.policy.lanes
    if lane is not None and lane not in lanes:
        raise UserError(f"no lane `{lane}`; the policy has {', '.join(sorted(lanes))}")
    wanted = [lane] if lane else [name for name, spec in lanes.items() if spec.required]
    jobs = [job for job in analysis.plan.jobs if job.lane in wanted]
    folder = evidence_dir or evidence_folder(repository, analysis.plan)
    written = []
    for job in jobs:
        found = run_job(
            repository,
            analysis.plan,
            analysis.policy,
            analysis.contracts[job.op],
            job,
            logs=folder / "logs",
            progress=progress,
        )
        written.append(evidence.write(folder, found))
    return written
