"""Which kernels ran, whether they matter, and which backend answered.

What a worker reports is its own word, parsed as hostile text. What counts is what happens to the
results when launches are left out or made to fail.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bot.cells import Call, call, complete
from bot.contract import Contract, Dispatch
from bot.device.arm import Arena, Arm
from bot.device.inputs import cotangent, draw
from bot.device.properties import run
from bot.evidence import KernelEvidence, RouteEvidence
from bot.model import Cell, Outcome

__all__ = ["DEFAULT", "Kernels", "Report", "asking", "read_report", "undeclared", "unprofiled"]

# What a registry of backends calls the function that none took over.
DEFAULT = "default"
# PyTorch's own kernels that move, fill, cast and add numbers up: parts of device kernels' names.
HELPERS = (
    *("memcpy", "memset", "copy", "fill", "elementwise", "reduce_kernel", "catarray", "arange"),
    *("index_", "indexselect", "gather", "scatter", "searchsorted", "devicescan", "scan_"),
)
# Cells that a kernel is tried in before it counts as one that does not matter.
TRIES = 3
_STRANGE = re.compile(r"[^\w.<>:,\[\]()&*~ -]", re.ASCII)
_LONGEST = 120
_MOST = 200


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says of one call."""

    launches: Mapping[str, int] = field(default_factory=dict)
    configurations: Mapping[str, int] = field(default_factory=dict)
    unfit: Mapping[str, str] = field(default_factory=dict)
    device: Mapping[str, float] = field(default_factory=dict)
    routes: Sequence[tuple[str, str, str]] = ()

    def backend(self, dispatch: Dispatch | None) -> str:
        """Who served the contract's operation last; empty where nothing was recorded."""
        wanted = dispatch.operation if dispatch else ""
        named = [backend for operation, backend, _ in self.routes if operation == wanted]
        return named[-1] if named else ""

    def refusal(self, dispatch: Dispatch, backend: str) -> str:
        """Why a backend refused the last call of the operation."""
        texts = [text for operation, _, text in self.routes if operation == dispatch.operation]
        told = texts[-1].split(";") if texts else []
        reasons = [part.removeprefix(f"{backend}=") for part in told if part.startswith(backend)]
        return reasons[0] if reasons else ""


def read_report(text: bytes) -> Report:
    """The report of a call; what has not the form of one is not there."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return Report()
    if not isinstance(data, dict):
        return Report()
    return Report(
        launches={name: int(count) for name, count in _numbers(data.get("launches"))},
        configurations={name: int(n) for name, n in _numbers(data.get("configurations"))},
        unfit=_texts(data.get("unfit")),
        device=dict(_numbers(data.get("device"))),
        routes=_routes(data.get("routes")),
    )


def _name(value: str) -> str:
    """A name that can be shown; one that is strange is not left out, or it could hide."""
    return _STRANGE.sub("_", value[:_LONGEST])


def _numbers(value: object) -> Iterator[tuple[str, float]]:
    pairs = list(value.items())[:_MOST] if isinstance(value, dict) else []
    for name, number in pairs:
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        # Comparing first: an integer may be too large to be a float.
        if is_number and 0 <= number <= 1e12 and math.isfinite(number):
            yield _name(name), number


def _texts(value: object) -> dict[str, str]:
    pairs = list(value.items())[:_MOST] if isinstance(value, dict) else []
    return {
        _name(name): text[:200].encode("ascii", "replace").decode()
        for name, text in pairs
        if isinstance(text, str)
    }


def _routes(value: object) -> list[tuple[str, str, str]]:
    found = []
    for row in value[:_MOST] if isinstance(value, list) else []:
        texts = isinstance(row, list) and len(row) == 3 and all(isinstance(x, str) for x in row)
        if texts:
            found.append((_name(row[0])[:80], _name(row[1])[:80], row[2][:400]))
    return found


def asking(arm: Arm, **extra: Any) -> Callable[[Arena], Outcome]:
    """Calls of an arm with something more in their orders."""

    def perform(memory: Arena) -> Outcome:
        memory.order.update(extra)
        return arm.run(memory)

    return perform


def undeclared(report: Report, dispatch: Dispatch | None) -> dict[str, float]:
    """Device kernels that are neither the contract's nor helpers, and their share of the time.

    Helpers' time is not counted: most of it is the poison that we fill memory with.
    """
    declared = _declared(dispatch)
    if not declared:
        return {}
    work = {
        name: time
        for name, time in report.device.items()
        if not any(part in name.lower() for part in HELPERS)
    }
    total = sum(work.values())
    return {
        name: time / total
        for name, time in work.items()
        if total and not any(name.startswith(kernel) for kernel in declared)
    }


def unprofiled(outcome: Outcome, report: Report, dispatch: Dispatch | None) -> str:
    """Why a profiled call says nothing of undeclared kernels, where the contract declares some."""
    if not _declared(dispatch):
        return ""
    if outcome is not Outcome.RAN:
        return f"the profiled call ended with {outcome}"
    return "" if report.device else "the profiled call reported no device time"


def _declared(dispatch: Dispatch | None) -> set[str]:
    if dispatch is None:
        return set()
    own = (backend.kernels for backend in dispatch.backends.values())
    return {*dispatch.kernels, *(kernel for kernels in own for kernel in kernels)}


@dataclass(slots=True)
class _Seen:
    """A cell that ran: what it launched, for which backend, and how long it took."""

    cell: Cell
    launches: set[str]
    backend: str
    seconds: float


class Kernels:
    """Collects what cells launch, and then asks one arm about each declared kernel."""

    def __init__(self, contract: Contract, device: str, arm: Arm) -> None:
        self.contract, self.device, self.arm = contract, device, arm
        self.seen: list[_Seen] = []
        self.probes: dict[str, _Probe | None] = {}

    def saw(self, cell: Cell, report: Report, seconds: float) -> None:
        """Take note of a call that ran."""
        dispatch = self.contract.entry_points[cell.entry_point].dispatch
        backend = report.backend(dispatch) or DEFAULT
        self.seen.append(_Seen(cell, set(report.launches), backend, seconds))

    def evidence(self) -> Iterator[KernelEvidence]:
        """For each declared kernel: does it matter, and does its failure show?"""
        for entry_point in sorted({seen.cell.entry_point for seen in self.seen}):
            dispatch = self.contract.entry_points[entry_point].dispatch
            own = [seen for seen in self.seen if seen.cell.entry_point == entry_point]
            if dispatch is None:
                continue
            for backend, kernels in _kernels(dispatch):
                served = [seen for seen in own if seen.backend == backend]
                for kernel in kernels if served else []:
                    yield self._try(kernel, served)

    def _try(self, kernel: str, served: Sequence[_Seen]) -> KernelEvidence:
        """Try the cheapest cells that launch it; one where it matters is enough."""
        cells = sorted((s for s in served if kernel in s.launches), key=lambda s: s.seconds)
        if not cells:
            return KernelEvidence(kernel=kernel, cell=served[0].cell.id, changed=False)
        found = KernelEvidence(kernel=kernel, cell=cells[0].cell.id)
        for seen in cells[:TRIES]:
            probe = self._probe(seen.cell)
            if probe is None:
                continue
            changed = probe.changes(without=kernel)
            raised = probe.outcome(failing=kernel) is Outcome.RAISED
            found = KernelEvidence(kernel=kernel, cell=seen.cell.id, changed=changed, raised=raised)
            if changed or not raised:
                break
        return found

    def _probe(self, cell: Cell) -> _Probe | None:
        """A probe of a cell; kernels that the same cell launches share its plain run."""
        if cell.id not in self.probes:
            self.probes = {cell.id: _Probe.of(self.contract, cell, self.device, self.arm)}
        return self.probes[cell.id]

    def routes(self, entry_points: Sequence[str]) -> Iterator[RouteEvidence]:
        """Who serves the calls that verifiers must accept or refuse, and with dispatch off."""
        for entry_point in entry_points:
            dispatch = self.contract.entry_points[entry_point].dispatch
            for name, backend in dispatch.backends.items() if dispatch else ():
                rows = [("accepts", row) for row in backend.verifier.accepts]
                rows += [("rejects", row) for row in backend.verifier.rejects]
                rows += [("disabled", row) for row in backend.verifier.accepts[:1]]
                for number, (case, row) in enumerate(rows):
                    cell = complete(self.contract, entry_point, row)
                    if cell is not None:
                        yield self._route(cell, name, case, number)

    def _route(self, cell: Cell, backend: str, case: Any, number: int) -> RouteEvidence:
        dispatch = self.contract.entry_points[cell.entry_point].dispatch
        assert dispatch is not None
        plan = call(self.contract, cell, secrets.randbits(62))
        environment = {"FLA_DISABLE_BACKEND_DISPATCH": "1"} if case == "disabled" else {}
        probe = _Probe(plan, self.device, self.arm)
        outcome = probe.outcome(environment=environment)
        report = read_report(self.arm.report)
        return RouteEvidence(
            entry_point=cell.entry_point,
            backend=backend,
            case=case,
            number=number,
            cell=cell.id,
            served=report.backend(dispatch),
            outcome=outcome,
            note=report.refusal(dispatch, backend)[:200],
        )


def _kernels(dispatch: Dispatch) -> Iterator[tuple[str, Sequence[str]]]:
    yield DEFAULT, dispatch.kernels
    for name, backend in dispatch.backends.items():
        yield name, backend.kernels


class _Probe:
    """One set of secret inputs of a cell, to run in several ways."""

    def __init__(self, plan: Call, device: str, arm: Arm) -> None:
        self.plan, self.device, self.arm = plan, device, arm
        self.inputs = {s.name: draw(s).as_strided(s.shape, s.strides) for s in plan.tensors}
        present = [result for result in plan.outputs if result.present]
        self.directions = {
            result.name: cotangent(result, plan.seed + i + 1) for i, result in enumerate(present)
        }
        self.results: dict[str, torch.Tensor] = {}

    @classmethod
    def of(cls, contract: Contract, cell: Cell, device: str, arm: Arm) -> _Probe | None:
        """A probe whose plain run gave results."""
        probe = cls(call(contract, cell, secrets.randbits(62)), device, arm)
        outcome, probe.results = probe._run()
        return probe if outcome is Outcome.RAN else None

    def _run(self, **extra: Any) -> tuple[Outcome, dict[str, torch.Tensor]]:
        perform = asking(self.arm, **extra)
        return run(self.plan, self.inputs, self.directions, self.device, perform)

    def outcome(self, **extra: Any) -> Outcome:
        """How a run ends with something more in its order."""
        return self._run(**extra)[0]

    def changes(self, **extra: Any) -> bool:
        """Whether a run with something more in its order ends otherwise, or with other bits."""
        outcome, found = self._run(**extra)
        return outcome is not Outcome.RAN or any(
            not torch.equal(value.view(torch.int64), found[name].view(torch.int64))
            for name, value in self.results.items()
        )
