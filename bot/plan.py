"""The jobs that a change needs: deterministic, hashed, no two of them prove the same."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from bot.anchors import Anchors
from bot.cells import cells, fits_lane
from bot.contract import Contract
from bot.impact import Index
from bot.model import Because, Cell, Change, Job, Plan, digest
from bot.policy import Policy

__all__ = ["Side", "find_cells", "lane_cells", "plan", "unproven"]

_MAX_BECAUSE = 20
# What measures and what judges, with all that they import: their code is part of every job's key.
_HARNESS = (
    *("device", "judge", "lanes", "observe", "worker"),
    *("anchors.py", "cells.py", "change.py", "contract.py", "coverage.py", "document.py"),
    *("errors.py", "evidence.py", "expression.py", "files.py", "globs.py", "impact.py"),
    *("kernels.py", "model.py", "plan.py", "policy.py", "process.py", "recording.py"),
    *("source.py", "statistics.py", "tree.py", "wire.py"),
)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the comparison: its index and the blob of every path."""

    index: Index
    blobs: Mapping[str, str]

    def closure(self, paths: Iterable[str]) -> str:
        """A digest of all sources that importing these paths runs."""
        found = sorted(self.index.sources_of(paths))
        return digest([(path, self.blobs.get(path, "")) for path in found])


def plan(
    change: Change,
    policy: Policy,
    contracts: Mapping[str, Contract],
    reached: Mapping[str, list[str]],
    because: Mapping[str, list[Because]],
    tests: Iterable[str],
    sides: tuple[Side, Side],
    anchors: Mapping[str, Anchors],
) -> Plan:
    """One job for each op and lane that its contract names, and the tests lanes for the rest.

    `reached`: affected entry points by op. `tests`: the repository's own tests to run, for what no
    enforced contract guards.
    """
    jobs = [
        job
        for op in sorted(reached)
        for lane in sorted(_lanes(contracts[op], reached[op]) & set(policy.lanes))
        for job in _cell_jobs(
            *(op, lane, policy, contracts[op], reached[op], because, sides), anchors.get(op)
        )
    ]
    chosen = sorted(set(tests))
    for lane in sorted(name for name in policy.lanes if name.startswith("tests:") and chosen):
        key = digest([chosen, lane, *(side.closure(chosen) for side in sides), _harness()])
        jobs.append(_job(policy, lane, "tests", chosen, because.get("", []), key, required=True))
    books = [[contracts[op].fingerprint, digest(anchors.get(op))] for op in sorted(reached)]
    judges = digest([policy.model_dump(mode="json"), *books])
    return Plan.of(change, jobs, _packs(jobs, policy.caps.packs), judges)


def _lanes(contract: Contract, names: list[str]) -> set[str]:
    return {lane for name in names for lane in contract.entry_points[name].lanes}


def _cell_jobs(
    op: str,
    lane: str,
    policy: Policy,
    contract: Contract,
    names: list[str],
    because: Mapping[str, list[Because]],
    sides: tuple[Side, Side],
    frozen: Anchors | None,
) -> list[Job]:
    if lane.startswith("benchmark:"):
        chosen = [
            f"{name}/{row}"
            for name in sorted(names)
            if lane in contract.entry_points[name].lanes
            for row in contract.entry_points[name].benchmarks
        ]
    else:
        chosen = [c.id for c in lane_cells(contract, policy, lane) if c.entry_point in names]
    if not chosen:
        return []
    index = sides[0].index, sides[1].index
    closures = [
        side.closure(filter(None, (own.modules.get(name) for name in _modules(contract, names))))
        for side, own in zip(sides, index, strict=True)
    ]
    spec = policy.lanes[lane].model_dump(mode="json")
    # What a result is judged by is part of it: under other limits it is another one.
    limits = [policy.margins.model_dump(mode="json"), digest(frozen)]
    key = digest([contract.fingerprint, sorted(names), lane, spec, *closures, _harness(), limits])
    enforced = contract.status == "enforced"
    return [_job(policy, lane, op, chosen, because.get(op, []), key, required=enforced)]


def _modules(contract: Contract, names: list[str]) -> list[str]:
    points = [contract.entry_points[name] for name in names]
    targets = [target for p in points for target in (p.target, p.reference) if target]
    return sorted({target.partition(":")[0] for target in targets})


def _job(
    policy: Policy,
    lane: str,
    op: str,
    chosen: list[str],
    because: list[Because],
    key: str,
    *,
    required: bool,
) -> Job:
    return Job(
        id=f"{lane.replace(':', '-')}-{op}",
        lane=lane,
        op=op,
        cells=chosen,
        required=policy.lanes[lane].required and required,
        because=because[:_MAX_BECAUSE],
        key=key,
    )


def _packs(jobs: list[Job], most: int) -> list[list[str]]:
    """Job ids in groups of one lane each, no more groups than one matrix may have."""
    lanes: dict[str, list[str]] = {}
    for job in jobs:
        lanes.setdefault(job.lane, []).append(job.id)
    each = max(1, most // max(1, len(lanes)))
    packs = []
    for ids in lanes.values():
        count = min(each, len(ids))
        packs += [ids[start::count] for start in range(count)]
    return packs


@cache
def _harness() -> str:
    root, state = Path(__file__).parent, sha256()
    for name in _HARNESS:
        path = root / name
        files = sorted(path.glob("*.py")) if path.is_dir() else [path]
        for file in files:
            place = str(file.relative_to(root)).encode()
            state.update(place + b"\0" + file.read_bytes())
    return state.hexdigest()[:16]


def lane_cells(contract: Contract, policy: Policy, lane: str) -> list[Cell]:
    """The cells of a contract that a lane can prove."""
    excludes = policy.lanes[lane].excludes
    return [
        cell
        for name, point in contract.entry_points.items()
        if lane in point.lanes
        for cell in cells(contract, name)
        if fits_lane(cell, excludes) is None
    ]


def find_cells(contract: Contract, ids: list[str]) -> list[Cell]:
    """The cells with these ids, in their order."""
    known = {cell.id: cell for name in contract.entry_points for cell in cells(contract, name)}
    return [known[cell] for cell in ids]


def unproven(contract: Contract, policy: Policy) -> list[Cell]:
    """Cells that no required lane proves."""
    required = [name for name, lane in policy.lanes.items() if lane.required]
    proving = [lane for lane in required if lane.partition(":")[0] in ("interpret", "correctness")]
    proven = {cell.id for lane in proving for cell in lane_cells(contract, policy, lane)}
    found = (cell for name in contract.entry_points for cell in cells(contract, name))
    return [cell for cell in found if cell.id not in proven]
