"""Correctness: every figure of every draw of every cell against the limits."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bot.anchors import Anchors, frozen
from bot.cells import Result, call, complete, public_seed
from bot.contract import PROPERTIES, Contract, Property
from bot.evidence import (
    HUGE,
    CellEvidence,
    Draw,
    Evidence,
    KernelEvidence,
    OutputFigures,
    RouteEvidence,
)
from bot.judge.limits import Limits, cap, is_over, limits, standing
from bot.judge.verdicts import Finding
from bot.model import Cell, Job, Outcome, Verdict
from bot.plan import find_cells
from bot.policy import Policy

__all__ = ["judge", "reproduce"]

# The contract in force asks for it, and a change cannot take it out of there for itself.
RENAMED = (
    "where it was renamed, fused or split: first a change that only takes it out of `dispatch` in"
    " the contract, which a person accepts; then the code, with its new kernels in `dispatch`"
)
# Part of a call's device time that kernels may take which the contract does not declare.
MOST_UNDECLARED = 0.05
REPEAT: Property = "repeat"
FIRST_SCHEMA = "fla-bot/evidence@1"
BOTH_RAISED = "raised in both arms: the machine or the merge base cannot run this cell"
# Configurations that are named one by one.
SHOWN = 5
# Ends of the merge base's process that say nothing of its code.
STOPPED = (Outcome.TIMEOUT, Outcome.WORKER_DIED, Outcome.PROTOCOL)


def reproduce(lane: str, cell: str, seed: int | None) -> str:
    """The command that runs one cell again, with the seed that failed."""
    seeded = "" if seed is None else f" --seed {seed}"
    return f"fla-bot run --lane {shlex.quote(lane)} --only {shlex.quote(cell)}{seeded}"


def judge(
    job: Job,
    policy: Policy,
    contract: Contract | None,
    evidence: Evidence,
    anchors: Anchors | None = None,
) -> Iterator[Finding]:
    """A verdict for each cell of the job, and for what no cell of it showed."""
    assert contract is not None  # a plan has such jobs for ops with a contract only
    entries, strange = _entries(job, evidence)
    if strange:
        yield ("", Verdict.LOST, strange)
        return
    known = frozen(anchors, job.lane)
    kernels: dict[str, list[KernelEvidence]] = {}
    for kernel in evidence.kernels:
        kernels.setdefault(kernel.cell, []).append(kernel)
    failed = set()  # entry points of which nothing more is asked
    for cell in find_cells(contract, job.cells):
        found = entries.get(cell.id, [])
        if found:
            of_cell = limits(contract, cell, policy.margins, known.get(cell.id))
            case = _Case(contract, cell, of_cell, evidence)
            verdict, reason = case.verdict(found, kernels.get(cell.id, []))
            if verdict is Verdict.FAIL or reason == BOTH_RAISED:
                failed.add(cell.entry_point)
            yield (cell.id, verdict, reason)
        elif evidence.complete:
            failed.add(cell.entry_point)
            yield (cell.id, Verdict.FAIL, "missing-row: the job did not report this cell")
        else:
            reason = f"the job stopped before this cell: {evidence.note or 'no reason given'}"
            yield (cell.id, Verdict.LOST, reason)
    if not evidence.complete:
        # All cells may be there; what is asked last, of kernels and backends, is not.
        reason = f"the job stopped before its end: {evidence.note or 'no reason given'}"
        yield ("", Verdict.LOST, reason)
    elif evidence.schema_id != FIRST_SCHEMA and not _is_configs(job.lane):
        yield from _untested(contract, job, entries, failed)
        yield from _untried(contract, entries, evidence, failed)
        yield from _routes(contract, entries, evidence)


def _is_impossible(entry: CellEvidence) -> bool:
    """Whether neither arm can run it: not green, since it is supported, but not head's fault."""
    return entry.head is Outcome.RAISED and entry.base is Outcome.RAISED


def _is_configs(lane: str) -> bool:
    return lane.startswith("configs:")


def _entries(job: Job, evidence: Evidence) -> tuple[dict[str, list[CellEvidence]], str]:
    """Evidence by cell, and why it cannot be about this job."""
    entries: dict[str, list[CellEvidence]] = {}
    for entry in evidence.cells:
        entries.setdefault(entry.cell, []).append(entry)
    for cell, found in entries.items():
        numbers = [entry.configuration for entry in found]
        if len(set(numbers)) != len(numbers):
            return {}, "evidence names a cell twice"
        if (None in numbers) == _is_configs(job.lane):
            return {}, f"evidence for {cell} is not of this kind of lane"
        # Where the merge base ran and is not finite, the reference stands in for it.
        if any(e.base is not Outcome.RAN and e.base_form == "kernel" for e in found):
            return {}, f"evidence for {cell} says that the merge base ran, and that it did not"
    named = {*entries, *(kernel.cell for kernel in evidence.kernels)}
    if named - set(job.cells):
        return {}, "evidence names a cell that is not in the plan"
    doubled = Counter((kernel.kernel, kernel.cell) for kernel in evidence.kernels)
    if any(count > 1 for count in doubled.values()):
        return {}, "evidence names a kernel twice for one cell"
    return entries, ""


@dataclass(frozen=True, slots=True)
class _Case:
    """One cell and what is known of it before its evidence."""

    contract: Contract
    cell: Cell
    limits: Limits
    evidence: Evidence

    def verdict(
        self, found: Sequence[CellEvidence], kernels: Sequence[KernelEvidence]
    ) -> tuple[Verdict, str]:
        """What its evidence comes to, and why."""
        if reason := self._fault(found, kernels):
            return Verdict.FAIL, reason
        if found[0].configuration is not None and (reason := self._count_fault(found)):
            if self.evidence.complete:
                return Verdict.FAIL, reason
            return Verdict.LOST, f"the job stopped before the last of them: {reason}"
        if any(map(_is_impossible, found)):
            return Verdict.NOT_PROVEN, BOTH_RAISED
        return self._doubt(found) or (Verdict.PASS, self._summary(found))

    def _fault(
        self, found: Sequence[CellEvidence], kernels: Sequence[KernelEvidence]
    ) -> str | None:
        """The first reason why the cell fails, or None."""
        for entry in found:
            if _is_impossible(entry):
                continue
            if reason := self._entry_fault(entry):
                number = entry.configuration
                return reason if number is None else f"configuration {number}: {reason}"
        if absent := [k.kernel for k in kernels if (k.changed, k.raised) == (False, None)]:
            return f"ghost: no cell launches {', '.join(absent)}; {RENAMED}"
        for kernel in kernels:
            if kernel.changed is False:
                return f"ghost: without launches of {kernel.kernel} the results are the same"
            if kernel.raised is False:
                return f"fallback: the call succeeds where {kernel.kernel} cannot be launched"
            if kernel.share is not None and kernel.share > MOST_UNDECLARED:
                said = f"{kernel.kernel} takes {kernel.share:.0%} of the device time"
                return f"undeclared-kernel: {said} and is not one of the contract's"
        return None

    def _doubt(self, found: Sequence[CellEvidence]) -> tuple[Verdict, str] | None:
        """Why the cell is not proved, though no figure of it is over its limit."""
        if stopped := [entry.base for entry in found if entry.base in STOPPED]:
            # Head shares the machine with it and may have had a hand in that.
            said = f"the merge base ended with {stopped[0]}, a person decides"
            return Verdict.NOT_PROVEN, said
        lost = (f.name for entry in found for f in _all(entry.draws) if _is_unlimited(f))
        if name := next(lost, ""):
            said = f"{name} of the merge base is not finite: there is nothing to compare with"
            return Verdict.NOT_COMPARABLE, said
        if unseen := [entry.unprofiled for entry in found if entry.unprofiled]:
            return Verdict.NOT_PROVEN, f"undeclared-kernel: not known, {unseen[0]}"
        if found[0].configuration is not None and self.evidence.configurations is None:
            said = "how many configurations are due cannot be read from the source"
            return Verdict.NOT_PROVEN, f"{said}: {len(found)} were tried; {self._summary(found)}"
        return None

    def _summary(self, found: Sequence[CellEvidence]) -> str:
        figures = [figures for entry in found for figures in _all(entry.draws)]
        worst = max(figures, key=lambda one: one.worst_tile)
        said = f"worst tile {worst.worst_tile:.3g}x in {worst.name}, rms {worst.head.rms:.2g}"
        if any(is_over(entry.draws, self.limits) for entry in found):
            said = f"{said}; a figure was over its limit in one draw and in no other"
        if over := sorted({f.name for f in figures if f.head.rms > cap(f, self.limits)}):
            said = f"{said}; the merge base is over the budget of {', '.join(over)}, too"
        unfit = list(dict.fromkeys(text for entry in found for text in entry.unfit))
        more = f" and {len(unfit) - SHOWN} more" if len(unfit) > SHOWN else ""
        return f"{said}; unfit: {', '.join(unfit[:SHOWN])}{more}" if unfit else said

    def _count_fault(self, found: Sequence[CellEvidence]) -> str | None:
        numbers = sorted(entry.configuration or 0 for entry in found)
        if numbers != list(range(len(numbers))):
            return f"missing-row: {len(numbers)} configurations, the last is {numbers[-1]}"
        due = self.evidence.configurations or 0
        return (
            f"missing-row: {len(numbers)} of {due} configurations" if len(numbers) < due else None
        )

    def _entry_fault(self, entry: CellEvidence) -> str | None:
        if entry.head is not Outcome.RAN:
            side = " (the merge base runs this cell)" if entry.base is Outcome.RAN else ""
            said = f"{entry.head}: {OUTCOMES[entry.head]}{side}"
            return self._again(said, entry.failed_seed)
        names = list(self.limits.results)
        if not entry.draws or any([f.name for f in d.outputs] != names for d in entry.draws):
            return f"missing-row: figures for {', '.join(names)} are due"
        if reason := self._draws_fault(entry):
            return f"missing-row: {reason}"
        if found := standing(entry.draws, self.limits):
            draw, reason = found
            return self._again(reason, draw.seed)
        return self._property_fault(entry)

    def _draws_fault(self, entry: CellEvidence) -> str | None:
        """Every cell has a secret draw, and one whose seed everybody can compute."""
        secret = [draw for draw in entry.draws if draw.secret]
        seeds = [draw.seed for draw in entry.draws if not draw.secret]
        if not secret:
            return "no draw was secret"
        if len({draw.seed for draw in entry.draws}) != len(entry.draws):
            return "a draw stands twice"
        if self.evidence.schema_id == FIRST_SCHEMA:
            return None
        due = public_seed(self.evidence.plan, self.cell.id)
        if not _is_configs(self.evidence.lane) and seeds != [due]:
            return "the public draw is not there, or has another seed"
        if any(_size(self.limits.results[f.name]) != f.elements for f in _all(entry.draws)):
            return "figures are over another number of elements"
        if any(None in _later(figures) for figures in _all(entry.draws)):
            return "a figure is left out"
        return None

    def _property_fault(self, entry: CellEvidence) -> str | None:
        point = self.contract.entry_points[self.cell.entry_point]
        dtype = call(self.contract, self.cell, 0).dtype
        for found in entry.properties:
            # `output` is no output where a derived call gave none.
            where = f"property: {found.name} of {found.output}"
            due = next((p for p in (*PROPERTIES, REPEAT) if p == found.name), None)
            exactness = "n/a" if due is None else point.properties.exactness(due, dtype)
            if exactness == "exact" and not found.equal:
                said = f"{where}: other bits, {found.error:.3g} apart; {found.note}"
                return self._again(said, None)
            due_of = self.limits.results.get(found.output)
            budget = (due_of and due_of.budget) or 0.0
            if exactness == "within-budget" and found.error > budget:
                said = f"{where}: {found.error:.3g} apart, limit {budget:.3g}; {found.note}"
                return self._again(said, None)
            if due_of is None:
                return f"missing-row: {where}, which is no result of this cell"
        return None

    def _again(self, reason: str, seed: int | None) -> str:
        command = reproduce(self.evidence.lane, self.cell.id, seed)
        return f"{reason.rstrip('; ')}; reproduce: {command}"


def _is_unlimited(figures: OutputFigures) -> bool:
    """Whether limits by the merge base's error are none; an exact head needs none."""
    return figures.base.rms >= HUGE and figures.head.rms > 0


def _all(draws: Sequence[Draw]) -> Iterator[OutputFigures]:
    for draw in draws:
        yield from draw.outputs


def _later(figures: OutputFigures) -> tuple[float | None, ...]:
    """What evidence of schema 1 does not have."""
    arms = (figures.head, figures.base)
    return (figures.worst_row, *(value for arm in arms for value in (arm.tail, arm.slope)))


def _size(result: Result) -> int:
    count = 1
    for size in result.shape:
        count *= size
    return count


def _untested(
    contract: Contract, job: Job, entries: Mapping[str, Sequence[CellEvidence]], failed: set[str]
) -> Iterator[Finding]:
    """Properties that the contract states for cells of the job and that none of them showed."""
    due: dict[tuple[str, Property], None] = {}
    for cell in find_cells(contract, job.cells):
        point, dtype = contract.entry_points[cell.entry_point], call(contract, cell, 0).dtype
        for name in PROPERTIES:
            if cell.entry_point not in failed and point.properties.exactness(name, dtype) != "n/a":
                due[cell.entry_point, name] = None
    shown = {
        (cell.partition("[")[0], found.name)
        for cell, group in entries.items()
        for entry in group
        for found in entry.properties
    }
    for entry_point, name in due:
        if (entry_point, name) not in shown:
            reason = f"missing-row: no cell of {entry_point} showed the property `{name}`"
            yield ("", Verdict.FAIL, reason)


def _untried(
    contract: Contract,
    entries: Mapping[str, Sequence[CellEvidence]],
    evidence: Evidence,
    failed: set[str],
) -> Iterator[Finding]:
    """Declared kernels of backends that served a cell, and of which nothing was shown."""
    tried = {
        (k.cell.partition("[")[0], k.kernel)
        for k in evidence.kernels
        # One that no cell launches is a ghost already.
        if k.changed is False or None not in (k.changed, k.raised)
    }
    for name in sorted({cell.partition("[")[0] for cell in entries} - failed):
        dispatch = contract.entry_points[name].dispatch
        if dispatch is None:
            continue
        served = {entry.backend for cell in entries for entry in entries[cell]}
        for other in sorted(served - {"", "default", *dispatch.backends}):
            yield ("", Verdict.FAIL, f"dispatch: {other} served {name}; the contract has none such")
        due = list(dispatch.kernels) if served & {"", "default"} else []
        due += [k for b, spec in dispatch.backends.items() if b in served for k in spec.kernels]
        for kernel in due:
            if (name, kernel) not in tried:
                yield ("", Verdict.FAIL, f"missing-row: nothing was shown of {kernel} of {name}")


def _routes(
    contract: Contract, entries: Mapping[str, Sequence[CellEvidence]], evidence: Evidence
) -> Iterator[Finding]:
    """Whether backends serve what the contract says, and nothing else."""
    found: dict[tuple[str, str, str, str], RouteEvidence] = {
        (r.entry_point, r.backend, r.case, r.cell): r for r in evidence.routes
    }
    # What no cell could run says nothing of who serves it.
    names = {
        c.partition("[")[0] for c, found in entries.items() if not all(map(_is_impossible, found))
    }
    for name in sorted(names):
        dispatch = contract.entry_points[name].dispatch
        for backend, spec in dispatch.backends.items() if dispatch else ():
            rows = [("accepts", row) for row in spec.verifier.accepts]
            rows += [("rejects", row) for row in spec.verifier.rejects]
            rows += [("disabled", row) for row in spec.verifier.accepts[:1]]
            for case, partial in rows:
                cell = complete(contract, name, partial)
                if cell is None:
                    continue
                route = found.get((name, backend, case, cell.id))
                if route is None:
                    yield ("", Verdict.FAIL, f"missing-row: {backend} {case} {cell.id}")
                elif case == "accepts" and route.note in ("unavailable", "disabled"):
                    said = f"dispatch: {backend} is {route.note} on this machine"
                    yield ("", Verdict.NOT_PROVEN, said)
                elif reason := _route_fault(route, dispatch.fallback if dispatch else ""):
                    yield ("", Verdict.FAIL, f"dispatch: {backend}: {reason}; {cell.id}")


def _route_fault(route: RouteEvidence, fallback: str) -> str | None:
    served = route.served or "nobody"
    if route.case == "accepts":
        if route.outcome is not Outcome.RAN:
            return f"a call that it must accept ended with {route.outcome}"
        told = f" ({route.note})" if route.note else ""
        return (
            f"{served} served a call that it must accept{told}" if served != route.backend else None
        )
    if served == route.backend:
        return (
            "it served a call that it must refuse"
            if route.case == "rejects"
            else ("it served a call although dispatch is turned off")
        )
    due = Outcome.RAISED if route.case == "rejects" and fallback == "error" else Outcome.RAN
    return f"without it the call ended with {route.outcome}" if route.outcome is not due else None


OUTCOMES = {
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
    Outcome.PARTIAL: "with fewer outputs differentiated or inputs frozen, the gradients are wrong",
}
