"""Evidence in, verdicts out; pure, and every figure is compared again here."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bot.cells import call
from bot.contract import Contract
from bot.evidence import CellEvidence, Evidence, OutputFigures
from bot.model import Cell, Job, Outcome, Plan, Row, Verdict
from bot.plan import find_cells
from bot.policy import Lane, Margins, Policy
from bot.wire import ROUNDING

__all__ = ["judge"]


def judge(
    plan: Plan,
    policy: Policy,
    contracts: Mapping[str, Contract],
    evidence: Mapping[str, Evidence | str | None],
) -> list[Row]:
    """One row for each cell of each job, or one for the job where there is nothing to judge."""
    rows = []
    for job in plan.jobs:
        found = evidence.get(job.id)
        if found is None:
            rows.append(_row(job, "", Verdict.WAITING, "no evidence yet"))
        elif isinstance(found, str):
            rows.append(_row(job, "", Verdict.LOST, found))
        elif stranger := _stranger(plan, job, policy.lanes[job.lane], found):
            rows.append(_row(job, "", Verdict.LOST, stranger))
        else:
            rows += _cells(job, policy.margins, contracts[job.op], found)
    return rows


def _row(job: Job, cell: str, verdict: Verdict, reason: str) -> Row:
    suspect = ", ".join(str(place) for place in job.because[:3])
    return Row(
        job=job.id,
        lane=job.lane,
        op=job.op,
        cell=cell,
        verdict=verdict,
        reason=reason,
        because=suspect if verdict is Verdict.FAIL else "",
    )


def _stranger(plan: Plan, job: Job, lane: Lane, evidence: Evidence) -> str | None:
    """Why evidence is not about this job of this plan, or comes from another kind of machine."""
    environment = evidence.environment
    if environment.interpreter != lane.interpreter or (environment.device == "cpu") != (
        lane.device == "cpu"
    ):
        return f"evidence is from {environment.device}, not from the lane's {lane.device}"
    expected = {
        "plan": plan.hash,
        "job": job.id,
        "lane": job.lane,
        "head": plan.head,
        "merge_base": plan.merge_base,
        "trusted": plan.trusted,
    }
    for name, value in expected.items():
        if getattr(evidence, name) != value:
            return f"evidence is for {name} {getattr(evidence, name)[:16]}, not {value[:16]}"
    return None


def _cells(job: Job, margins: Margins, contract: Contract, evidence: Evidence) -> Iterator[Row]:
    measured = {cell.cell: cell for cell in evidence.cells}
    if len(measured) != len(evidence.cells) or set(measured) - set(job.cells):
        yield _row(job, "", Verdict.LOST, "evidence names a cell twice, or one not in the plan")
        return
    for cell in find_cells(contract, job.cells):
        found = measured.get(cell.id)
        if found is not None:
            fault = _fault(contract, cell, found, margins)
            verdict = Verdict.FAIL if fault else Verdict.PASS
            yield _row(job, cell.id, verdict, fault or _summary(found))
        elif evidence.complete:
            yield _row(job, cell.id, Verdict.FAIL, "missing-row: the job did not report this cell")
        else:
            reason = f"the job stopped before this cell: {evidence.note or 'no reason given'}"
            yield _row(job, cell.id, Verdict.LOST, reason)


def _summary(found: CellEvidence) -> str:
    worst = max(found.outputs, key=lambda figures: figures.worst_tile)
    return f"worst tile {worst.worst_tile:.3g}x in {worst.name}, rms {worst.head.rms:.2g}"


def _fault(contract: Contract, cell: Cell, found: CellEvidence, margins: Margins) -> str | None:
    """The first reason why a cell fails, or None."""
    if found.head is not Outcome.RAN:
        side = " (the merge base runs this cell)" if found.base is Outcome.RAN else ""
        return f"{found.head}: {_OUTCOMES[found.head]}{side}"
    expected = call(contract, cell, 0)
    names = [result.name for result in expected.results]
    if [figures.name for figures in found.outputs] != names:
        return f"missing-row: figures for {', '.join(names)} are due"
    point = contract.entry_points[cell.entry_point]
    budgets = {output.name: output.budget for output in point.outputs}
    budgets |= {f"d{name}": gradient.budget for name, gradient in point.gradients.items()}
    dtypes = {result.name: result.dtype for result in expected.results}
    for figures in found.outputs:
        limit = budgets[figures.name].get(expected.dtype)  # type: ignore[call-overload]
        if reason := _figure_fault(figures, limit, ROUNDING[dtypes[figures.name]], margins):
            return reason
    return None


def _figure_fault(
    figures: OutputFigures, limit: float | None, floor: float, margins: Margins
) -> str | None:
    name, rms = figures.name, figures.head.rms
    if limit is None:
        return f"budget: the contract has none for this dtype of {name}"
    if rms > limit:
        return f"budget: {name} rms error {rms:.3g}, limit {limit:.3g}"
    # The worst tile comes first: it says where to look.
    if figures.worst_tile > margins.tile:
        at = ", ".join(str(index) for index in figures.worst_at)
        ratio, most = figures.worst_tile, margins.tile
        return f"tile: {name} at [{at}] has {ratio:.3g}x the merge base's error, limit {most:g}x"
    allowed = margins.rms * max(figures.base.rms, floor)
    if rms > allowed:
        return f"rms: {name} error {rms:.3g}, limit {allowed:.3g} from the merge base's own"
    return None


_OUTCOMES = {
    Outcome.RAISED: "the call raised",
    Outcome.TIMEOUT: "the call did not end in time",
    Outcome.WORKER_DIED: "the process ended before it answered",
    Outcome.PROTOCOL: "the process answered with something else than one of the known words",
    Outcome.ARITY: "another number of results than the contract says",
    Outcome.TYPE: "a result is not a plain tensor of the declared dtype",
    Outcome.SHAPE: "a result has another shape than the contract says",
    Outcome.ALIAS: "a result shares memory with an input",
    Outcome.GRAD_MISSING: "a differentiable input got no gradient",
    Outcome.GUARD: "memory outside a tensor was written",
    Outcome.INPUT_MUTATED: "an input was changed",
    Outcome.POISON: "part of a result was never written",
    Outcome.REPEAT: "a second call gave other bits",
}
