"""What a change touches: areas, ops, backends, entry points and kernels, directly or by import."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bot.contract import Contract
from bot.globs import matches
from bot.impact import Impact, Index
from bot.model import AreaScope, Change, Scope
from bot.policy import Policy
from bot.trusted import FOLDER

__all__ = ["affected_entry_points", "owns", "scope"]


def owns(contract: Contract, path: str) -> bool:
    """Whether a path is one of the contract's sources."""
    return matches(path, contract.sources)


def scope(
    change: Change,
    policy: Policy,
    impact: Impact,
    reached: Mapping[str, list[str]],
) -> Scope:
    """Areas by the policy's globs; ops by glob, contract sources and affected entry points.

    `reached` are the contracts' entry points that the change affects, by op.
    """
    paths = sorted({path for file in change.files for path in (file.path, file.old_path)})
    areas: dict[str, list[str]] = {}
    unknown, ops, backends = [], set(reached), set()
    for path in paths:
        area, captured = policy.place(path)
        if area is None:
            unknown.append(path)
        else:
            areas.setdefault(area.area, []).append(path)
        ops |= {captured["op"]} if captured.get("op") else set()
        backends |= {captured["backend"]} if captured.get("backend") else set()
    ops |= _ops_of(policy, (item.path for item in impact.entry_points))
    points = {f"{op}.{name}" for op, names in reached.items() for name in names}
    points |= {f"{item.path}:{item.name}" for item in impact.entry_points}
    return Scope(
        areas=[AreaScope(area=area, paths=areas[area]) for area in sorted(areas)],
        ops=sorted(ops),
        backends=sorted(backends),
        entry_points=sorted(points),
        kernels=sorted({f"{item.path}:{item.name}" for item in impact.kernels}),
        unknown=unknown,
        widened=[f"{item.path}: {item.reason} ({item.scope})" for item in impact.widened],
    )


def _ops_of(policy: Policy, paths: Iterable[str]) -> set[str]:
    found = {policy.place(path)[1].get("op") for path in set(paths)}
    return {op for op in found if op}


def affected_entry_points(
    change: Change,
    contracts: Mapping[str, Contract],
    impact: Impact,
    sides: tuple[Index, Index],
) -> dict[str, list[str]]:
    """For each op with a contract, its entry points that the change may have changed.

    All of them where a source that is no Python, or the contract file itself, is in the change, and
    where the change is of a kind that may concern everything.
    """
    changed = {path for file in change.files for path in (file.path, file.old_path)}
    affected = {(item.path, item.name) for item in (*impact.definitions, *impact.changed)}
    touched = {item.path for item in impact.changed} | {item.path for item in impact.widened}
    # Python that could not be followed by definition concerns what imports it; any other file of
    # unknown use concerns everything.
    loose = {item.path for item in impact.widened if item.path.endswith(".py")}
    everything = {item.path for item in impact.widened if item.scope == "all"} - loose
    found = {}
    for op, contract in contracts.items():
        whole = f"{FOLDER}/{op}.yaml" in changed or any(
            owns(contract, path) and not path.endswith(".py") for path in changed
        )
        names = [
            name
            for name, point in contract.entry_points.items()
            if whole or everything or _is_affected(point.target, affected, loose, sides)
        ]
        # An edit of a source that reaches no entry point by name still concerns the op.
        if not names and any(owns(contract, path) for path in touched):
            names = list(contract.entry_points)
        if names:
            found[op] = names
    return found


def _is_affected(
    target: str,
    affected: set[tuple[str, str]],
    loose: set[str],
    sides: tuple[Index, Index],
) -> bool:
    module, _, name = target.partition(":")
    base, head = sides
    path = head.modules.get(module)
    found = head.origin(path, name) if path else None
    if path is None or found is None:
        # Gone, or hidden from us, is a change; what was never there is not one.
        before = base.modules.get(module)
        return before is not None and base.origin(before, name) is not None
    return found in affected or (bool(loose) and bool(loose & head.sources_of([path])))
