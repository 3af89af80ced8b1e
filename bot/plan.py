"""The jobs that a change needs."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Mapping

from bot.cells import cells, fits_lane
from bot.contract import Contract
from bot.model import Because, Cell, Change, Job, Plan
from bot.policy import Policy

__all__ = ["find_cells", "plan", "unproven"]


def plan(
    change: Change,
    policy: Policy,
    contracts: Mapping[str, Contract],
    because: Mapping[str, list[Because]],
) -> Plan:
    """One job for each op and lane that its contract names; the same input gives the same plan."""
    jobs = []
    for op in sorted(because):
        contract = contracts[op]
        wanted = {lane for point in contract.entry_points.values() for lane in point.lanes}
        for lane in sorted(wanted & set(policy.lanes)):
            chosen = [cell.id for cell in lane_cells(contract, policy, lane)]
            if chosen:
                job = Job(
                    id=f"{lane.replace(':', '-')}-{op}",
                    lane=lane,
                    op=op,
                    cells=chosen,
                    required=policy.lanes[lane].required and contract.status == "enforced",
                    because=because[op][:20],
                )
                jobs.append(job)
    return Plan.of(change, jobs)


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
    proven = {cell.id for lane in required for cell in lane_cells(contract, policy, lane)}
    return [
        c for name in contract.entry_points for c in cells(contract, name) if c.id not in proven
    ]
