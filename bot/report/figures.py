"""The figures of single cells beside their limits, for whoever looks for a fault."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bot.anchors import Anchors, frozen
from bot.contract import Contract
from bot.evidence import CellEvidence, Evidence, KernelEvidence, OutputFigures
from bot.judge.correctness import OUTCOMES
from bot.judge.limits import Limits, is_over, limits, measures, standing
from bot.model import Outcome
from bot.plan import find_cells
from bot.policy import Policy
from bot.text import printable

__all__ = ["describe"]

_COLUMNS = {
    "budget": "rms error relative to the reference, against the contract's cap",
    "tile": "error of the worst tile, in errors of the merge base there",
    "row": "error of the worst vector along the last axis, likewise",
    "tail": "error of the worst element, in half roundings of the dtype",
    "rms": "the error of `budget`, against the merge base's own on the same inputs",
    "slope": "a factor on all of the output",
    "anchor": "the error of `budget`, against the one that is frozen",
    "worst": "the figure that is nearest to its limit, and where it was taken",
}


def describe(
    evidence: Evidence, contract: Contract, policy: Policy, anchors: Anchors | None
) -> tuple[list[str], bool]:
    """Lines, those that explain the columns first, and whether every figure is within its limit."""
    known = frozen(anchors, evidence.lane)
    lines, good = list(_legend(evidence)), evidence.complete
    if not evidence.complete:
        lines.append(f"not complete: {evidence.note}")
    for found in evidence.cells:
        (cell,) = find_cells(contract, [found.cell])
        of_cell = limits(contract, cell, policy.margins, known.get(cell.id))
        said, fine = _cell(found, of_cell)
        lines, good = [*lines, *said], good and fine
    for kernel in evidence.kernels:
        lines.append(f"kernel {kernel.kernel}: {_tried(kernel)}")
        good = good and kernel.changed is not False and kernel.raised is not False
    return [printable(line) for line in lines], good


def _legend(evidence: Evidence) -> Iterator[str]:
    """What the columns of the tables mean."""
    if any(draw.outputs for cell in evidence.cells for draw in cell.draws):
        yield "columns are figure/limit; what is above its limit is named behind OVER:"
        width = max(map(len, _COLUMNS))
        yield from (f"  {name.ljust(width)}  {text}" for name, text in _COLUMNS.items())


def _tried(kernel: KernelEvidence) -> str:
    """What leaving a kernel out and making it fail did."""
    if kernel.share is not None:
        return f"not declared, {kernel.share:.0%} of the device time"
    without = {None: "not tried", True: "the results change", False: "the results are the same"}
    failing = {None: "not tried", True: "the call fails", False: "the call goes on"}
    return f"left out: {without[kernel.changed]}; made to fail: {failing[kernel.raised]}"


def _cell(found: CellEvidence, known: Limits) -> tuple[list[str], bool]:
    number = "" if found.configuration is None else f", configuration {found.configuration}"
    lines = [f"{found.cell}{number}"]
    good = found.head is Outcome.RAN
    if not good:
        lines.append(f"  head: {found.head}: {OUTCOMES[found.head]}, seed {found.failed_seed}")
    # A merge base that ran and gave what is not finite is no measure either.
    instead = f"the reference in its dtype ({found.base} at the merge base)"
    lines.append(f"  merge base: {'its kernel' if found.base_form == 'kernel' else instead}")
    for draw in found.draws:
        lines.append(f"  seed {draw.seed}")
        lines += [f"    {line}" for line in _table(draw.outputs, known)]
    stays = standing(found.draws, known)
    if stays is None and is_over(found.draws, known):
        lines.append(f"  over in one of {len(found.draws)} draws only, and not by much: chance")
    for held in found.properties:
        same = "equal" if held.equal else f"{held.error:.3g} apart"
        lines.append(f"  {held.name} of {held.output}: {same}; {held.note}")
    return lines, good and stays is None


def _table(outputs: Sequence[OutputFigures], known: Limits) -> Iterator[str]:
    """A line for each output: figures of their limits, and the worst of them."""
    rows, heads = list[list[str]](), list[str]()
    for figures in outputs:
        found = measures(figures, known)
        worst = max(found, key=lambda m: m.value / m.limit if m.value else 0.0)
        over = [measure.name for measure in found if not measure.holds]
        place = f" at {list(worst.at)}" if worst.at else ""
        said = f"{worst.name}{place}" + (f"; OVER: {', '.join(over)}" if over else "")
        heads = heads or [measure.name for measure in found]
        cells = [f"{measure.value:.3g}/{measure.limit:.3g}" for measure in found]
        rows.append([figures.name, str(figures.elements), *cells, said])
    return _aligned([["output", "elements", *heads, "worst"], *rows])


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    count = max(map(len, rows))
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(count)]
    for row in rows:
        yield "  ".join(text.ljust(widths[i]) for i, text in enumerate(row)).rstrip()
