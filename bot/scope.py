"""What a change touches: areas, ops and entry points."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Mapping

from bot.contract import Contract
from bot.model import AreaScope, Change, Scope
from bot.policy import Policy, glob_match

__all__ = ["owns", "scope"]


def owns(contract: Contract, path: str) -> bool:
    """Whether a path is one of the contract's sources."""
    return any(glob_match(glob, path) is not None for glob in contract.sources)


def scope(change: Change, policy: Policy, contracts: Mapping[str, Contract]) -> Scope:
    """Areas by the policy's globs; ops by glob capture, contract sources and contract files."""
    areas: dict[str, list[str]] = {}
    ops: set[str] = set()
    unknown = []
    for path in sorted({path for file in change.files for path in (file.path, file.old_path)}):
        area, op = policy.place(path)
        if area is None:
            unknown.append(path)
        else:
            areas.setdefault(area.area, []).append(path)
        if op and area and area.contract == "required":
            ops.add(op)
        ops |= {
            name
            for name, contract in contracts.items()
            if owns(contract, path) or path == f"{policy.contracts}/{name}.yaml"
        }
    points = {f"{op}.{name}" for op in ops & set(contracts) for name in contracts[op].entry_points}
    return Scope(
        areas=[AreaScope(area=area, paths=paths) for area, paths in areas.items()],
        ops=sorted(ops),
        entry_points=sorted(points),
        unknown=unknown,
    )
