"""Which cells of the contracts were really called, forward and backward, by which test."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bot import contract as contract_file
from bot import evidence as evidence_file
from bot.cells import axis_values, call, cells
from bot.contract import Contract
from bot.document import Strict
from bot.errors import UserError
from bot.evidence import CellEvidence, CellUse, Evidence
from bot.model import Cell, Job, Outcome
from bot.recording import MAX_LINE, CallLine, Recording, parse

__all__ = [
    "CellCoverage", "Coverage", "EntryCoverage", "OpCoverage", "Stray", "measure",
    "needs_backward", "read", "targets", "targets_of",
    "unexercised",
]  # fmt: skip

HOW = "python -m pytest -p bot.observe.plugin --fla-bot-coverage=cov.jsonl tests"
MAX_TESTS = 5  # that are named for a cell in evidence
MAX_FILE = 512 << 20


class CellCoverage(Strict):
    """A supported cell and the tests or lanes that called it."""

    cell: str
    needs_backward: bool
    forward: list[str]
    backward: list[str]

    @property
    def exercised(self) -> bool:
        """Whether something called it, and came back where it has gradients."""
        return bool(self.forward) and (bool(self.backward) or not self.needs_backward)


class Stray(Strict):
    """A call that is in no supported cell, one test that made it, and how many did."""

    why: str
    test: str
    tests: int


class EntryCoverage(Strict):
    """One entry point.

    `unseen`: axis values that no recorded call had. `blurred`: axes of which calls had several
    values at once, since their predicates tell them not apart; each then counts as called.
    """

    entry_point: str
    cells: list[CellCoverage]
    strays: list[Stray]
    unseen: dict[str, list[str]]
    blurred: dict[str, list[str]]
    calls: int


class OpCoverage(Strict):
    """One contract."""

    op: str
    status: Literal["draft", "enforced"]
    entry_points: list[EntryCoverage]

    @property
    def cells(self) -> list[CellCoverage]:
        """All cells."""
        return [cell for point in self.entry_points for cell in point.cells]

    @property
    def missing(self) -> list[CellCoverage]:
        """Cells that nothing exercises."""
        return [cell for cell in self.cells if not cell.exercised]


@dataclass(slots=True)
class _Use:
    """Names are keys: in order, each once."""

    forward: dict[str, None] = field(default_factory=dict)
    backward: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Point:
    """What is known of one entry point."""

    contract: Contract
    name: str
    uses: dict[str, _Use] = field(default_factory=dict)
    strays: dict[str, dict[str, None]] = field(default_factory=dict)
    seen: dict[str, dict[str, None]] = field(default_factory=dict)
    blurred: dict[str, dict[str, None]] = field(default_factory=dict)
    known: dict[str, tuple[list[Cell], str]] = field(default_factory=dict)
    calls: int = 0

    def take(self, line: CallLine) -> None:
        """Note a call under its cells, or as a stray."""
        self.calls += 1
        key = json.dumps(line.model_dump()["arguments"], sort_keys=True)
        if key not in self.known:
            self.known[key] = self._place(line.values())
        found, why = self.known[key]
        for cell in found:
            self.use(cell.id, line.test, backward=line.backward)
        if not found:
            self.strays.setdefault(why, {})[line.test] = None

    def use(self, cell: str, who: str, *, backward: bool) -> None:
        """Note who called a cell."""
        use = self.uses.setdefault(cell, _Use())
        use.forward[who] = None
        if backward:
            use.backward[who] = None

    def _place(self, arguments: Mapping[str, Any]) -> tuple[list[Cell], str]:
        """The cells that a call is in, or why it is in none."""
        values = axis_values(self.contract, self.name, arguments)
        for axis, found in values.items():
            self.seen.setdefault(axis, {}).update(dict.fromkeys(found))
            if len(found) > 1:
                self.blurred.setdefault(axis, {}).update(dict.fromkeys(found))
        none = [axis for axis, found in values.items() if not found]
        if none:
            return [], f"no value of {', '.join(f'`{axis}`' for axis in none)} fits"
        distances = {
            cell: [axis for axis, value in cell.values if value not in values[axis]]
            for cell in cells(self.contract, self.name)
        }
        inside = [cell for cell, axes in distances.items() if not axes]
        if inside or not distances:
            return inside, "" if inside else "the contract has no cells"
        nearest = min(distances, key=lambda cell: len(distances[cell]))
        wanted = ", ".join(f"{axis}={'/'.join(values[axis])}" for axis in distances[nearest])
        return [], f"no cell has {wanted} with the rest of it"


class Coverage:
    """Gathers recordings and evidence of lanes over a set of contracts."""

    def __init__(self, contracts: Mapping[str, Contract]) -> None:
        self.contracts = contracts
        self.points: dict[tuple[str, str], _Point] = {}
        self.targets: dict[str, list[_Point]] = {}
        for op, contract in contracts.items():
            for name, point in contract.entry_points.items():
                found = self.points[op, name] = _Point(contract, name)
                self.targets.setdefault(point.target, []).append(found)

    def record(self, recording: Recording) -> None:
        """Calls of the tests that passed."""
        for line in recording.passed_calls():
            for point in self.targets.get(line.target, ()):
                point.take(line)

    def take(self, evidence: Evidence) -> None:
        """Cells that a lane has run, and what its tests called."""
        owners = {cell.id: (op, cell) for op, cell in self._cells()}
        for measured in evidence.cells:
            if measured.cell in owners and measured.head is Outcome.RAN:
                op, cell = owners[measured.cell]
                backward = _has_gradients(self.contracts[op], cell, measured)
                point = self.points[op, cell.entry_point]
                point.use(cell.id, evidence.lane, backward=backward)
        for use in evidence.coverage:
            if use.cell in owners and use.arm == "head":
                op, cell = owners[use.cell]
                point = self.points[op, cell.entry_point]
                for test in use.forward:
                    point.use(cell.id, test, backward=test in use.backward)

    def _cells(self) -> Iterator[tuple[str, Cell]]:
        for op, name in self.points:
            for cell in cells(self.contracts[op], name):
                yield op, cell

    def uses(self, arm: Literal["base", "head"]) -> list[CellUse]:
        """For evidence: cells that were called, with a few of the tests."""
        return [
            CellUse(
                op=op,
                cell=cell,
                arm=arm,
                forward=[*{**use.backward, **use.forward}][:MAX_TESTS],
                backward=[*use.backward][:MAX_TESTS],
            )
            for (op, _), point in self.points.items()
            for cell, use in point.uses.items()
        ]

    def ops(self) -> list[OpCoverage]:
        """All of it by op and entry point, whatever order recordings came in."""
        return [
            OpCoverage(
                op=op,
                status=contract.status,
                entry_points=[
                    _entry(self.points[op, name]) for name in sorted(contract.entry_points)
                ],
            )
            for op, contract in sorted(self.contracts.items())
        ]


def _entry(point: _Point) -> EntryCoverage:
    axes = point.contract.entry_points[point.name].axes
    unseen = {
        axis: [value for value in spec.values if value not in point.seen.get(axis, {})]
        for axis, spec in axes.items()
    }
    uses = {cell: point.uses.get(cell.id, _Use()) for cell in cells(point.contract, point.name)}
    found = [
        CellCoverage(
            cell=cell.id,
            needs_backward=needs_backward(point.contract, cell),
            forward=sorted(use.forward),
            backward=sorted(use.backward),
        )
        for cell, use in uses.items()
    ]
    strays = [
        Stray(why=why, test=min(tests), tests=len(tests)) for why, tests in point.strays.items()
    ]
    return EntryCoverage(
        entry_point=point.name,
        # What is missing comes first, and of that what nothing calls at all.
        cells=sorted(found, key=lambda cell: (cell.exercised, bool(cell.forward), cell.cell)),
        strays=sorted(strays, key=lambda stray: (-stray.tests, stray.why)),
        unseen={axis: values for axis, values in unseen.items() if values and point.calls},
        blurred={
            axis: [value for value in spec.values if value in point.blurred[axis]]
            for axis, spec in axes.items()
            if axis in point.blurred
        },
        calls=point.calls,
    )


def _has_gradients(contract: Contract, cell: Cell, measured: CellEvidence) -> bool:
    """Whether the figures of some draw hold every gradient that the cell has."""
    due = {result.name for result in call(contract, cell, 0).gradients if result.present}
    return bool(due) and any(
        due <= {figures.name for figures in draw.outputs} for draw in measured.draws
    )


def needs_backward(contract: Contract, cell: Cell) -> bool:
    """Whether a cell is differentiated."""
    return bool(call(contract, cell, 0).gradients)


def unexercised(
    contract: Contract, names: Iterable[str], jobs: Iterable[Job], uses: Iterable[CellUse]
) -> list[str]:
    """Cells of entry points that no job holds and that no test of head called all the way."""
    called = {use.cell: use for use in uses if use.arm == "head" and use.op == contract.op}
    planned = {cell for job in jobs if job.op == contract.op for cell in job.cells}
    found = []
    for cell in (cell for name in names for cell in cells(contract, name)):
        use = called.get(cell.id)
        if cell.id in planned or (
            use and use.forward and (use.backward or not needs_backward(contract, cell))
        ):
            continue
        found.append(cell.id)
    return found


def measure(folder: Path, files: Iterable[Path], op: str | None) -> list[OpCoverage]:
    """What recordings and evidence show of the contracts of a folder, or of one of them."""
    contracts = _load(folder)
    if op is not None and op not in contracts:
        raise UserError(f"no contract of `{op}` in {folder}; there are {', '.join(contracts)}")
    found, count = Coverage({op: contracts[op]} if op else contracts), 0
    for file in files:
        for one in read(file):
            count += 1
            if isinstance(one, Recording):
                found.record(one)
            else:
                found.take(one)
    if not count:
        raise UserError(f"nothing to read; record with `{HOW}`, then `fla-bot coverage cov.jsonl`")
    return found.ops()


def _load(folder: Path) -> dict[str, Contract]:
    """The contracts of a folder; UserError carries all faults."""
    if not folder.is_dir():
        raise UserError(f"no contracts: {folder} is no folder")
    found, faults = {}, []
    for path in sorted(folder.glob("*.yaml")):
        if path.name == "policy.yaml":
            continue
        try:
            contract = contract_file.load(path.read_bytes(), str(path))
            found[contract.op] = contract
        except UserError as error:
            faults += error.faults
    if faults:
        raise UserError(faults=faults)
    return found


def targets(folder: Path) -> list[str]:
    """The functions that the contracts of a folder are about."""
    return targets_of(_load(folder))


def targets_of(contracts: Mapping[str, Contract]) -> list[str]:
    """The functions that contracts are about."""
    points = (point for contract in contracts.values() for point in contract.entry_points.values())
    return sorted({point.target for point in points if point.axes})


def read(path: Path) -> Iterator[Recording | Evidence]:
    """A recording, an evidence file, or all evidence of a folder; UserError says what is wrong."""
    try:
        if path.is_dir():
            for file in sorted(path.glob("*.json")):
                yield from read(file)
            return
        if path.stat().st_size > MAX_FILE:
            raise UserError(f"{path} is larger than {MAX_FILE} bytes")
        if path.suffix == ".json" and path.read_bytes()[:1] == b"{" and _is_evidence(path):
            yield evidence_file.parse(path.read_bytes())
            return
        recording = Recording(loose=True)
        with path.open("rb") as stream:
            while line := stream.readline(MAX_LINE + 1):
                if fault := recording.add(parse(line)):
                    raise UserError(f"{path}: {fault}")
        yield recording
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        reason = "it is neither a recording nor evidence"
        raise UserError(f"{path}: {reason} ({str(error).splitlines()[0]})") from error


def _is_evidence(path: Path) -> bool:
    with path.open("rb") as stream:
        return b'"fla-bot/evidence@' in stream.read(200)
