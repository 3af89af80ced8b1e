"""Measured coverage for a terminal: what is missing first, all of it for one op."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from bot.coverage import CellCoverage, EntryCoverage, OpCoverage
from bot.text import printable

__all__ = ["show", "to_json"]

MAX_ROWS, MAX_TESTS = 5, 3


def to_json(found: Sequence[OpCoverage]) -> str:
    """All of it."""
    return json.dumps({"ops": [op.model_dump(mode="json") for op in found]}, indent=1)


def show(found: Iterable[OpCoverage], console: Console, *, everything: bool) -> None:
    """`everything`: each cell with its tests, not only what is missing."""
    most = None if everything else MAX_ROWS
    for op in found:
        _line(console, f"{op.op} ({op.status}): {_counts(op.cells)}")
        for point in op.entry_points:
            _point(console, point, most)


def _counts(cells: Sequence[CellCoverage]) -> str:
    back = [cell for cell in cells if cell.needs_backward]
    forward = sum(bool(cell.forward) for cell in cells)
    backward = sum(bool(cell.backward) for cell in back)
    return f"{forward} of {len(cells)} cells forward, {backward} of {len(back)} backward"


def _point(console: Console, point: EntryCoverage, most: int | None) -> None:
    _line(console, f"  {point.entry_point}: {_counts(point.cells)}; {point.calls} recorded calls")
    missing = [f"{cell.cell}{_half(cell)}" for cell in point.cells if not cell.exercised]
    _list(console, "not exercised", missing, most)
    unseen = [f"{axis}: {', '.join(values)}" for axis, values in point.unseen.items()]
    _list(console, "values that no recorded call has", unseen, most)
    blurred = [f"{axis}: {', '.join(values)}" for axis, values in point.blurred.items()]
    _list(console, "values that a call cannot tell apart, counted for each", blurred, most)
    shown = [f"{stray.tests} tests: {stray.why}; {stray.test}" for stray in point.strays]
    _list(console, "calls that match no cell", shown, most)
    if most is None:
        _called(console, [cell for cell in point.cells if cell.forward])


def _called(console: Console, cells: Sequence[CellCoverage]) -> None:
    """Cells and the tests or lanes that called them."""
    if cells:
        _line(console, f"    called ({len(cells)}):")
    for cell in cells:
        _line(console, f"      {cell.cell}")
        _line(console, f"          forward {_names(cell.forward)}")
        if cell.backward:
            _line(console, f"          backward {_names(cell.backward)}")


def _half(cell: CellCoverage) -> str:
    return " (forward only)" if cell.forward else ""


def _names(tests: Sequence[str]) -> str:
    more = f" and {len(tests) - MAX_TESTS} more" if len(tests) > MAX_TESTS else ""
    return ", ".join(tests[:MAX_TESTS]) + more


def _list(console: Console, title: str, rows: Sequence[str], most: int | None) -> None:
    if not rows:
        return
    _line(console, f"    {title} ({len(rows)}):")
    for row in rows[:most]:
        _line(console, f"      {row}")
    if most is not None and len(rows) > most:
        _line(console, f"      and {len(rows) - most} more, see --op or --format json")


def _line(console: Console, text: str) -> None:
    # Text, never markup: ids of tests come from the change.
    console.print(Text(printable(text.replace("\n", " "))), soft_wrap=True)
