"""What an edit of a contract does: adds a promise, tightens one, or weakens the contract."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

from bot.anchors import Anchors
from bot.contract import Contract
from bot.document import Strict

__all__ = ["Edit", "anchor_edits", "edits"]

Kind = Literal["adds", "tighter", "weaker"]
Path = tuple[str, ...]


class Edit(Strict):
    """One difference of two contracts: `weaker` needs a person's word, the others do not."""

    place: str
    kind: Kind
    before: str
    after: str


_ORDER = {"n/a": 0, "within-budget": 1, "exact": 2, "draft": 0, "enforced": 1}


def _higher(before: Any, after: Any) -> bool:
    # A word and a mapping by dtype cannot be compared: not tighter.
    sides = [_ORDER.get(side) if isinstance(side, str) else None for side in (before, after)]
    return sides[0] is not None and sides[1] is not None and sides[1] > sides[0]


# Where a changed value has a direction. Everything that is not listed weakens: fail closed.
_TIGHTER: tuple[tuple[Path, Callable[[Any, Any], bool]], ...] = (
    (("entry_points", "*", "outputs", "*", "budget", "*"), lambda a, b: b < a),
    (("entry_points", "*", "gradients", "*", "budget", "*"), lambda a, b: b < a),
    (("bounds", "*"), lambda a, b: b > a),
    (("entry_points", "*", "properties", "repeat"), _higher),
    (("entry_points", "*", "properties", "repeat", "*"), _higher),
    (("entry_points", "*", "properties", "*", "exactness"), _higher),
    (("entry_points", "*", "properties", "*", "exactness", "*"), _higher),
    (("status",), _higher),
)
_PROPERTY_SETS: tuple[Path, ...] = (
    ("causal", "within"),
    ("linear", "inputs"),
    ("linear", "outputs"),
    ("permutation", "axes"),
    ("split", "carry"),
)
# What a contract may gain without anybody's word: more promises, more places that prove them.
_ADDITIONS: tuple[Path, ...] = (
    ("entry_points", "*"),
    ("entry_points", "*", "axes", "*", "values", "*"),
    ("entry_points", "*", "listed", "*"),
    ("entry_points", "*", "lanes", "*"),
    ("entry_points", "*", "properties", "*"),
    # More that may change, more that must follow.
    *(("entry_points", "*", "properties", *part, "*") for part in _PROPERTY_SETS),
    ("entry_points", "*", "properties", "split", "packed"),
    ("entry_points", "*", "dispatch", "kernels", "*"),
    ("entry_points", "*", "dispatch", "backends", "*", "kernels", "*"),
    ("entry_points", "*", "variables", "*"),
    ("entry_points", "*", "benchmarks", "*"),
    ("entry_points", "*", "dispatch", "backends", "*"),
    ("entry_points", "*", "dispatch", "backends", "*", "verifier", "*", "*"),
    ("sources", "*"),
    ("tests", "*"),
)
_SETS = (
    *("sources", "tests", "listed", "lanes", "constraints", "accepts", "rejects", "owners"),
    *("kernels", "within", "inputs", "outputs", "axes"),
)
# A restriction that goes is a promise more.
_RESTRICTIONS: tuple[Path, ...] = (("entry_points", "*", "constraints", "*"),)
# Lists whose order means something: the order of return, and what is computed from what.
_ORDERED = ("outputs", "derived", "args")


def _fits(place: Path, patterns: tuple[Path, ...]) -> bool:
    return any(
        len(place) == len(pattern)
        and all(want in ("*", part) for part, want in zip(place, pattern, strict=True))
        for pattern in patterns
    )


def edits(trusted: Contract, proposed: Contract) -> list[Edit]:
    """Every difference, with its direction. A draft promises nothing yet: nothing weakens it."""
    before, after = (c.model_dump(mode="json", by_alias=True) for c in (trusted, proposed))
    found = list(_differences(_keyed(before), _keyed(after), ()))
    if trusted.status == "draft":
        return [edit.model_copy(update={"kind": "adds"}) for edit in found]
    return found


def anchor_edits(trusted: Anchors | None, proposed: Anchors | None) -> list[Edit]:
    """What becomes of anchors: raised or removed ones are weaker. Provenance has no direction."""
    before, after = ({} if side is None else _flat(side) for side in (trusted, proposed))
    found = []
    for place in dict.fromkeys([*before, *after]):
        old, new = before.get(place), after.get(place)
        if old == new:
            continue
        kind: Kind = "adds" if old is None else "weaker"
        if old is not None and new is not None and new < old:
            kind = "tighter"
        sides = ["" if side is None else f"{side:.3g}" for side in (old, new)]
        found.append(Edit(place=place, kind=kind, before=sides[0], after=sides[1]))
    return found


def _flat(anchors: Anchors) -> dict[str, float]:
    return {
        f"anchors.{lane}.{cell}.{name}": value
        for lane, measured in anchors.lanes.items()
        for cell, outputs in measured.cells.items()
        for name, value in outputs.items()
    }


def _keyed(value: Any, name: str = "") -> Any:
    """Sets that are written as lists become mappings: an inserted item is one addition.

    All other lists (`dims`) are values: their order and their length mean something.
    """
    if isinstance(value, dict):
        # A property that is left out is written as null.
        optional = name in ("properties", "split")
        kept = (pair for pair in value.items() if not optional or pair[1] is not None)
        return {key: _keyed(item, key) for key, item in kept}
    if name == "outputs" and any(isinstance(item, dict) for item in value):
        return {item["name"]: _keyed(item) for item in value}
    return {str(item): item for item in value} if name in _SETS else value


def _differences(before: Any, after: Any, place: Path) -> Iterator[Edit]:
    shared = [key for key in after if key in before]
    moved = [key for key in before if key in after] != shared
    # The first value of an axis is the default of every listed cell.
    other_default = place[-1:] == ("values",) and list(before)[:1] != list(after)[:1]
    if (place[-1:] and place[-1] in _ORDERED and moved) or other_default:
        yield Edit(place=".".join(place), kind="weaker", before="order", after="other order")
    for key in [*before, *(key for key in after if key not in before)]:
        old, new = before.get(key, _ABSENT), after.get(key, _ABSENT)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, (*place, key))
        elif _differ(old, new):
            sides = ["" if side is _ABSENT else json.dumps(side) for side in (old, new)]
            kind = _kind(old, new, (*place, key))
            yield Edit(place=".".join((*place, key)), kind=kind, before=sides[0], after=sides[1])


_ABSENT = object()


def _differ(old: Any, new: Any) -> bool:
    """By what would be written: to Python, `0`, `0.0` and `false` are equal."""
    if old is _ABSENT or new is _ABSENT:
        return True
    return json.dumps(old) != json.dumps(new)


def _kind(old: Any, new: Any, place: Path) -> Kind:
    if old is _ABSENT:
        return "adds" if _fits(place, _ADDITIONS) else "weaker"
    if new is _ABSENT:
        return "adds" if _fits(place, _RESTRICTIONS) else "weaker"
    tighter = any(_fits(place, (pattern,)) and check(old, new) for pattern, check in _TIGHTER)
    return "tighter" if tighter else "weaker"
