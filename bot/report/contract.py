"""A contract for people: what it promises, and a draft to start a new one from."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from bot.cells import cells
from bot.contract import Contract, EntryPoint
from bot.errors import UserError

__all__ = ["describe", "template"]


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
    if point.axes:
        yield f"cells: {len(cells(contract, name))}"
    results = [(output.name, output.budget) for output in point.outputs]
    results += [(f"d{arg}", gradient.budget) for arg, gradient in point.gradients.items()]
    for result, budget in results:
        yield f"budget {result}: " + ", ".join(f"{k} {v:g}" for k, v in budget.items())
    yield from _checked(point)
    for row, spec_ in point.benchmarks.items():
        yield f"benchmark {row}: {spec_.margin}"
    if point.lanes:
        yield f"lanes: {', '.join(point.lanes)}"


def _checked(point: EntryPoint) -> Iterator[str]:
    """Properties and declared kernels."""
    for key in type(point.properties).model_fields:
        if held := getattr(point.properties, key):
            yield f"property {key}: {_held(held if key == 'repeat' else held.exactness)}"
    if point.dispatch and point.dispatch.kernels:
        yield f"kernels: {', '.join(point.dispatch.kernels)}"


def _held(spec: str | Mapping[str, str]) -> str:
    return spec if isinstance(spec, str) else ", ".join(f"{k} {v}" for k, v in spec.items())


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
