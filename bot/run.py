"""`fla-bot run`: execute the jobs of a plan on this machine and write their evidence."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bot import evidence
from bot.anchors import frozen
from bot.change import Repository
from bot.check import Analysis, evidence_folder
from bot.contract import Contract
from bot.errors import InfraError, UserError
from bot.evidence import Evidence, merged
from bot.judge import judge
from bot.lanes.benchmark import run_benchmark
from bot.lanes.job import Progress, run_job
from bot.lanes.protection import advice, sentence
from bot.lanes.result import Interrupted
from bot.lanes.tests import run_tests
from bot.model import Job, Plan, Row, Verdict
from bot.signature import keywords
from bot.trusted import Books

__all__ = ["Done", "run_cells", "run_plan"]


@dataclass(slots=True)
class Done:
    """What a run did: files written, jobs that had evidence, jobs that failed.

    `results`: how many cells of a job pass, fail and so on, as `judge` says it in full.
    `sandboxes`: what held code under test, and how to get something stronger, if anything.
    """

    written: list[Path] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
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

    What an earlier run settled is not measured again: what failed on this head stays failed, and
    what is not proven yet is added to.
    """
    books, planned = analysis.books, analysis.plan
    lanes = books.policy.lanes
    if lane is not None and lane not in lanes:
        raise UserError(f"no lane `{lane}`; the policy has {', '.join(sorted(lanes))}")
    wanted = [lane] if lane else [name for name, spec in lanes.items() if spec.required]
    folder = evidence_dir or evidence_folder(repository, planned)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"evidence goes to a folder, and {folder} is none")
    done = Done()
    for job in planned.jobs:
        if job.lane not in wanted:
            continue
        old = _earlier(folder, planned, job)
        rest = job.cells if old is None else _open_cells(analysis, job, old)
        if old is not None and not rest:
            done.kept.append(job.id)
            done.results[job.id] = _tally(_rows(analysis, job, old))
            continue
        try:
            found = _measure(repository, analysis, job, old, rest, folder, progress)
            done.written.append(evidence.write(folder, found))
            done.sandboxes[sentence(found.environment)] = advice(found.environment)
            done.results[job.id] = _tally(_rows(analysis, job, found))
        except (InfraError, OSError) as error:
            done.failed[job.id] = str(error)
    return done


def _measure(
    repository: Repository,
    analysis: Analysis,
    job: Job,
    old: Evidence | None,
    rest: list[str],
    folder: Path,
    progress: Progress,
) -> Evidence:
    """The rest of a job together with what an earlier run left, or all of it, where need be."""

    def run(cells: list[str], before: Evidence | None) -> Evidence:
        part = job.model_copy(update={"cells": cells})
        try:
            return _seen(job, cells, _run(repository, analysis, part, folder, progress))
        except Interrupted as stop:
            # Its workers are gone: the secret seeds in it are of no use to anybody any more.
            new = _seen(job, cells, stop.evidence)
            kept = _together(before, new) or (None if _has_failed(analysis, job, before) else new)
            raise KeyboardInterrupt(*stop.args, *_keep(folder, job, kept)) from None

    new = run(rest, old)
    found = _together(old, new)
    if rest == job.cells:
        return found or new
    if found is None and old is not None and _has_failed(analysis, job, old):
        progress(f"{job.id}: it failed on another machine, which stands; remove it to run it here")
        return old
    if found is None:
        progress(f"{job.id}: this machine is not what it was, all is measured again")
        return merged(new, run(job.cells, new))
    if found.complete and _lacks(analysis, job, found):
        progress(f"{job.id}: its parts do not show all that is due, all is measured again")
        return merged(found, run(job.cells, found))
    return found


def _seen(job: Job, cells: Sequence[str], found: Evidence) -> Evidence:
    """Without kernels that no cell launched, where not all cells were there to do it."""
    if cells == job.cells:
        return found
    kernels = [k for k in found.kernels if (k.changed, k.raised) != (False, None)]
    return found.model_copy(update={"kernels": kernels})


def _together(old: Evidence | None, new: Evidence) -> Evidence | None:
    """Two runs of a job as one, or None where they are not of one kind."""
    if old is None:
        return new
    return merged(old, new) if _fit(old, new) else None


def _keep(folder: Path, job: Job, found: Evidence | None) -> Iterator[str]:
    """Write what there is of a job that a signal ended, and say how much that is."""
    if found is None or not (found.cells or found.rows):
        return
    evidence.write(folder, found)
    names = {cell.cell for cell in found.cells} | {row.row for row in found.rows}
    what = "rows" if found.rows else "cells"
    yield f"{job.id}: {len(names)} of {len(job.cells)} {what} kept; run again to go on"


def _lacks(analysis: Analysis, job: Job, found: Evidence) -> bool:
    """Whether all that fails is that something was not shown by any cell."""
    failed = [row for row in _rows(analysis, job, found) if row.verdict is Verdict.FAIL]
    lacks = (not row.cell and row.reason.startswith("missing-row: ") for row in failed)
    return bool(failed) and all(lacks)


def _has_failed(analysis: Analysis, job: Job, found: Evidence | None) -> bool:
    rows = _rows(analysis, job, found) if found is not None else []
    return any(row.verdict is Verdict.FAIL for row in rows)


def _run(
    repository: Repository, analysis: Analysis, job: Job, folder: Path, progress: Progress
) -> Evidence:
    """Execute a job, by the kind of its lane."""
    books, planned = analysis.books, analysis.plan
    if job.lane.startswith("tests:"):
        return run_tests(
            repository,
            analysis.change,
            planned,
            books.policy,
            books.contracts,
            job,
            folder=folder,
            progress=progress,
        )
    _need_references(repository, planned, books.contracts[job.op])
    execute = (
        run_benchmark
        if job.lane.startswith("benchmark:")
        else partial(run_job, frozen=frozen(books.anchors.get(job.op), job.lane))
    )
    return execute(
        repository,
        planned,
        books.policy,
        books.contracts[job.op],
        job,
        logs=folder / "logs",
        progress=progress,
        keywords=_keywords(books, job.op),
    )


def _need_references(repository: Repository, planned: Plan, contract: Contract) -> None:
    """What is right is read from the trusted commit, which may not have the op yet."""
    tree = repository.tree(planned.trusted)
    for point in contract.entry_points.values():
        module = (point.reference or "").partition(":")[0]
        stem = module.replace(".", "/")
        if module and not {f"{stem}.py", f"{stem}/__init__.py"} & set(tree):
            raise InfraError(
                f"the reference {module} is not in the trusted commit {planned.trusted[:12]}: bring"
                " it there first; `--trusted HEAD` tries a committed one here"
            )


def _keywords(books: Books, op: str) -> dict[str, dict[str, str | None]]:
    """By target, what head calls arguments otherwise than the contract that judges."""
    points = books.contracts[op].entry_points
    own = books.proposed[op].entry_points if op in books.proposed else {}
    both = ((point, own[name]) for name, point in points.items() if name in own)
    return {old.target: names for old, new in both if (names := keywords(old, new))}


def _earlier(folder: Path, planned: Plan, job: Job) -> Evidence | None:
    """What an earlier run left of this very job."""
    found = evidence.read(folder, job.id)
    if not isinstance(found, Evidence):
        return None
    same = (found.plan, found.job, found.lane) == (planned.hash, job.id, job.lane)
    named = [cell.cell for cell in found.cells] + [row.row for row in found.rows]
    return found if same and set(named) <= set(job.cells) else None


def _fit(old: Evidence, new: Evidence) -> bool:
    """Whether two runs of a job may be put together: an older schema has fewer figures."""
    same = old.schema_id == new.schema_id
    return same and old.environment.fingerprint == new.environment.fingerprint


def _rows(analysis: Analysis, job: Job, found: Evidence) -> list[Row]:
    books, part = analysis.books, analysis.plan.model_copy(update={"jobs": [job]})
    return judge(part, books.policy, books.contracts, {job.id: found}, books.anchors)


def _tally(rows: Sequence[Row]) -> str:
    """How many cells of a job pass and fail, and how much else is said of it as a whole."""
    cells = Counter(row.verdict for row in rows if row.cell)
    whole = Counter(row.verdict for row in rows if not row.cell)
    counts = [f"{cells[verdict]} {verdict}" for verdict in Verdict if cells[verdict]]
    counts += [f"{whole[v]} {v} of the job as a whole" for v in Verdict if whole[v]]
    return ", ".join(counts)


def _open_cells(analysis: Analysis, job: Job, old: Evidence) -> list[str]:
    """Cells that neither passed nor failed; a fail stays, so that nothing is tried until it passes.

    All of them where something is open that is said of the job as a whole.
    """
    rows = _rows(analysis, job, old)
    settled = {row.cell for row in rows if row.verdict in (Verdict.PASS, Verdict.FAIL)}
    failed = any(row.verdict is Verdict.FAIL for row in rows)
    if job.lane.startswith("tests:"):
        return [] if failed or old.complete else job.cells
    if old.complete and (failed or all(row.cell in settled for row in rows)):
        return []
    rest = [cell for cell in job.cells if cell not in settled]
    return rest or ([] if failed else job.cells)


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
                keywords=_keywords(books, job.op),
                frozen=frozen(books.anchors.get(job.op), job.lane),
                seed=seed,
            )
        found.append((job, _seen(job, cells, evidence)))
    if not found:
        known = sorted({job.lane for job in planned.jobs})
        message = f"no cell of lane `{lane}` matches; the change has jobs for {', '.join(known)}"
        raise UserError(message if jobs else message.replace("no cell of", "no job of"))
    return found
