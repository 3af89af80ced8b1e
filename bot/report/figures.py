"""The figures of single cells beside their limits, for whoever looks for a fault."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bot.anchors import Anchors
from bot.contract import Contract
from bot.evidence import CellEvidence, Evidence, OutputFigures
from bot.judge.correctness import OUTCOMES, Limits, limits, measures
from bot.model import Outcome
from bot.plan import find_cells
from bot.policy import Policy
from bot.text import printable

__all__ = ["describe"]


def describe(
    evidence: Evidence, contract: Contract, policy: Policy, anchors: Anchors | None
) -> tuple[list[str], bool]:
    """Lines, and whether every figure is within its limit."""
    known: Mapping[str, Mapping[str, float]] = {}
    if anchors is not None and evidence.lane in anchors.lanes:
        known = anchors.lanes[evidence.lane].cells
    lines, good = [], evidence.complete
    if not evidence.complete:
        lines.append(f"not complete: {evidence.note}")
    for found in evidence.cells:
        (cell,) = find_cells(contract, [found.cell])
        of_cell = limits(contract, cell, policy.margins, known.get(cell.id))
        said, fine = _cell(found, of_cell)
        lines, good = [*lines, *said], good and fine
    for kernel in evidence.kernels:
        lines.append(f"kernel {kernel.kernel}: changed {kernel.changed}, raised {kernel.raised}")
        good = good and kernel.changed is not False and kernel.raised is not False
    return [printable(line) for line in lines], good


def _cell(found: CellEvidence, known: Limits) -> tuple[list[str], bool]:
    number = "" if found.configuration is None else f", configuration {found.configuration}"
    lines = [f"{found.cell}{number}"]
    good = found.head is Outcome.RAN
    if not good:
        lines.append(f"  head: {found.head}: {OUTCOMES[found.head]}, seed {found.failed_seed}")
    base = "" if found.base is Outcome.RAN else f" ({found.base}); the reference stands in"
    lines.append(f"  base: {found.base_form}{base}")
    for draw in found.draws:
        lines.append(f"  seed {draw.seed}")
        table, fine = _table(draw.outputs, known)
        lines += [f"    {line}" for line in table]
        good = good and fine
    for held in found.properties:
        same = "equal" if held.equal else f"{held.error:.3g} apart"
        lines.append(f"  {held.name} of {held.output}: {same}; {held.note}")
    return lines, good


def _table(outputs: Sequence[OutputFigures], known: Limits) -> tuple[list[str], bool]:
    """A line for each output: figures of their limits, and the worst of them."""
    rows, good, heads = list[list[str]](), True, list[str]()
    for figures in outputs:
        found = measures(figures, known)
        worst = max(found, key=lambda m: m.value / m.limit if m.value else 0.0)
        over = [measure.name for measure in found if not measure.holds]
        place = f" at {list(worst.at)}" if worst.at else ""
        said = f"{worst.name}{place}" + (f"; OVER: {', '.join(over)}" if over else "")
        heads = heads or [measure.name for measure in found]
        cells = [f"{measure.value:.3g}/{measure.limit:.3g}" for measure in found]
        rows.append([figures.name, str(figures.elements), *cells, said])
        good = good and not over
    return list(_aligned([["output", "elements", *heads, "worst"], *rows])), good


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    count = max(map(len, rows))
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(count)]
    for row in rows:
        yield "  ".join(text.ljust(widths[i]) for i, text in enumerate(row)).rstrip()
