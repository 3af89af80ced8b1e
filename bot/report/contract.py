"""A contract for people: what it promises, what an edit does, and a draft to start a new one."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bot.amendment import Edit
from bot.cells import cells
from bot.contract import Contract, EntryPoint
from bot.errors import UserError

__all__ = ["describe", "sentences", "template"]

LONGEST = 60


def describe(contract: Contract) -> str:
    """Entry points, axes, cells, budgets and lanes."""
    lines = [f"{contract.op}: {contract.status}, {', '.join(contract.owners) or 'no owners'}"]
    lines.append(f"sources: {', '.join(contract.sources)}")
    if contract.bounds:
        lines.append("bounds: " + ", ".join(f"{k} <= {v}" for k, v in contract.bounds.items()))
    for name, point in contract.entry_points.items():
        lines += ["", f"{name} ({point.target})"]
        lines += [f"  {line}" for line in _entry_point(contract, name, point)]
    return "\n".join(lines)


def _entry_point(contract: Contract, name: str, point: EntryPoint) -> Iterator[str]:
    if point.open:
        yield f"not known yet: {', '.join(point.open)}"
    if point.reference:
        yield f"reference: {point.reference}"
    for axis, spec in point.axes.items():
        yield f"axis {axis}: {', '.join(spec.values)}"
    results = [(output.name, output.budget) for output in point.outputs]
    results += [(f"d{arg}", gradient.budget) for arg, gradient in point.gradients.items()]
    for result, budget in results:
        yield f"budget {result}: " + ", ".join(f"{k} {v:g}" for k, v in budget.items())
    yield from _checked(point)
    for row, spec_ in point.benchmarks.items():
        yield f"benchmark {row}: {spec_.margin}"
    if point.lanes:
        yield f"lanes: {', '.join(point.lanes)}"
    if point.axes:
        found = cells(contract, name)
        yield f"cells: {len(found)}, each runs alone with `fla-bot run --lane LANE --only CELL`"
        yield from (f"  {cell.id}" for cell in found)


def _checked(point: EntryPoint) -> Iterator[str]:
    """Properties and declared kernels."""
    for key in type(point.properties).model_fields:
        if held := getattr(point.properties, key):
            yield f"property {key}: {_held(held if key == 'repeat' else held.exactness)}"
    if point.dispatch and point.dispatch.kernels:
        yield f"kernels: {', '.join(point.dispatch.kernels)}"


def _held(spec: str | Mapping[str, str]) -> str:
    return spec if isinstance(spec, str) else ", ".join(f"{k} {v}" for k, v in spec.items())


def sentences(edits: Sequence[Edit]) -> list[tuple[str, str]]:
    """Each edit's kind and words; a new name of an argument is one edit, wherever it stands."""
    left, found = list(edits), list[tuple[str, str]]()
    for point, old, new in _renamed(edits):
        same = list(_following(left, point, old, new))
        left = [edit for edit in left if edit not in same]
        kind = "weaker" if any(edit.kind == "weaker" for edit in same) else same[0].kind
        # What stands under the name is an edit that goes and one that comes.
        others = sum(1 for edit in same if edit.before) - 1
        also = f", and so in {others} other place{'s' * (others > 1)}" if others else ""
        found.append((kind, f"{point}.args: renamed {old} -> {new}{also}"))
    return found + [(edit.kind, _sentence(edit)) for edit in left]


def _renamed(edits: Iterable[Edit]) -> Iterator[tuple[str, str, str]]:
    """Entry point, old name and new name of arguments that go while one declared alike comes."""
    come = [edit for edit in edits if not edit.before]
    for old in (edit for edit in edits if not edit.after):
        args, _, name = old.place.rpartition(".")
        alike = (n for n in come if n.place.startswith(f"{args}.") and n.after == old.before)
        if args.endswith(".args") and (new := next(alike, None)):
            come.remove(new)
            yield args.removesuffix(".args"), name, new.place.removeprefix(f"{args}.")


def _following(edits: Sequence[Edit], point: str, old: str, new: str) -> Iterator[Edit]:
    """Edits of an entry point that do nothing but put one name in place of another."""
    word = re.compile(rf"\b{re.escape(old)}\b")

    def moved(edit: Edit) -> set[tuple[str, str]]:
        # An axis, or a variable that a value reads, may have the argument's old name and keep it.
        places = {edit.place, point + word.sub(new, edit.place.removeprefix(point))}
        return {(p, text) for p in places for text in (edit.before, word.sub(new, edit.before))}

    own = [edit for edit in edits if edit.place.startswith(f"{point}.")]
    gone = {one for edit in own if not edit.after for one in moved(edit)}
    come = {(edit.place, edit.after) for edit in own if not edit.before}
    for edit in own:
        if not edit.before:
            follows = (edit.place, edit.after) in gone
        elif not edit.after:
            follows = bool(moved(edit) & come)
        else:
            follows = (edit.place, edit.after) in moved(edit)
        if follows:
            yield edit


def _sentence(edit: Edit) -> str:
    if not edit.after:
        return f"{edit.place}: removed{_plain(', was ', edit.before)}"
    if not edit.before:
        return f"{edit.place}: added{_plain(', ', edit.after)}"
    before, after = _apart(edit.before, edit.after)
    return f"{edit.place}: {before} -> {after}"


def _plain(joint: str, text: str) -> str:
    """A short value; a mapping says little here, and its place all that is needed."""
    return f"{joint}{text}" if len(text) <= LONGEST and not text.startswith("{") else ""


def _apart(before: str, after: str) -> tuple[str, str]:
    """Two values; of long ones, what follows the place where they part."""
    if max(len(before), len(after)) <= LONGEST:
        return before, after
    pairs = enumerate(zip(before, after, strict=False))
    parting = next((i for i, (one, other) in pairs if one != other), 0)
    start = max(0, parting - LONGEST // 4)
    one, other = (_cut(text, start) for text in (before, after))
    return one, other


def _cut(text: str, start: int) -> str:
    part = text[start : start + LONGEST]
    return f"{'...' * (start > 0)}{part}{'...' * (start + LONGEST < len(text))}"


def template(target: str) -> str:
    """A draft contract for `module:function`."""
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", target):
        raise UserError(f"`{target}` is not MODULE:FUNCTION, as fla.ops.gla:chunk_gla")
    module, _, function = target.partition(":")
    parts = module.split(".")
    op = parts[2] if len(parts) > 2 else parts[-1]
    source = "/".join(parts[:3])
    return f"""\
# A draft runs and shows, never ticks and never blocks. Fill in what `open` lists, then take it out
# of the list; with nothing open, `status: enforced` makes it a gate.
schema: fla-bot/contract@1
op: {op}
status: draft
owners: []
sources: ["/{source}/", "/{source}.py"]
entry_points:
  {function}:
    target: {target}
    open: [reference, args, outputs, axes, lanes, signature, budgets]
"""
