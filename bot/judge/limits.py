"""What a correctness lane's figures may be, and which of those above it are no chance.

Pure: the judge asks it what a draw comes to, the device process whether further draws would tell.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from bot.cells import Result, call
from bot.contract import Contract
from bot.evidence import HUGE, Draw, OutputFigures
from bot.model import Cell
from bot.policy import Margins
from bot.statistics import UNIFORM, allowance, settled
from bot.wire import ROUNDING

__all__ = [
    "CHANCE", "FURTHER", "Limits", "Measure", "cap", "is_open", "is_over", "limits", "measures",
    "standing",
]  # fmt: skip

# Two roundings of an element as large as its tile's rms: less is asked of nobody.
LEAST_TAIL = 2.0
# How much larger than their rms the largest errors are, where they grow along a chunk.
PEAK = 25.0
# Two steps of fp32. A factor that all of a row has in common, as its norm, is a few roundings: off
# by nothing in one kernel, by two steps in another that is as good.
COMMON = 2.0**-22
# A ratio of two errors that is over its limit by more than this is no chance.
CHANCE = 2.0
# How far a merge base may be over a budget by its inputs; what is further over it is broken.
HARD = 8.0
# Secret draws that have to hold the limit which one draw did not.
FURTHER = 3


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure and the most that it may be; `text` says what it means."""

    name: str
    value: float
    limit: float
    at: Sequence[int]
    text: str

    @property
    def holds(self) -> bool:
        """Whether the figure is within its limit."""
        return self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for the outputs of a cell: declared results and anchors, both by name."""

    results: Mapping[str, Result]
    anchors: Mapping[str, float]
    margins: Margins


def limits(
    contract: Contract, cell: Cell, margins: Margins, anchors: Mapping[str, float] | None = None
) -> Limits:
    """The limits of a cell."""
    expected = call(contract, cell, 0)
    return Limits({result.name: result for result in expected.results}, anchors or {}, margins)


def measures(figures: OutputFigures, known: Limits) -> list[Measure]:
    """All figures of an output beside their limits; those that say where to look come first.

    Ratios of two errors scatter where they are taken over few numbers, by an allowance that the
    figures of tiles and rows have in them already. The contract's budget has none. Where the merge
    base is over it on the same inputs, nobody is to blame who is no worse: of an output that is a
    small difference of large numbers, any kernel's error is large.
    """
    name, head, base = figures.name, figures.head, figures.base
    result, margins = known.results[name], known.margins
    count = prod(result.shape)
    chance, rounding, budget = allowance(count), ROUNDING[result.dtype], result.budget
    least = max(UNIFORM * rounding, settled(budget))
    found = []

    def add(kind: str, value: float, limit: float, at: Sequence[int], text: str) -> None:
        found.append(Measure(kind, value, limit, at, text))

    few = _few(figures, result)
    limit = base.rms if _is_hard(figures, known) else cap(figures, known)
    add("budget", head.rms, limit, (), "rms error {value:.3g}, limit {limit:.3g}")
    text = "{value:.3g}x the merge base's error, limit {limit:.3g}x"
    add("tile", figures.worst_tile, margins.tile, figures.worst_at, text)
    if figures.worst_row is not None:
        add("row", figures.worst_row, margins.row, figures.row_at, text)
    if head.tail is not None and base.tail is not None:
        limit = (
            margins.tail * chance * max(base.tail, LEAST_TAIL, PEAK * settled(budget) / rounding)
        )
        text = "one element is {value:.3g} half roundings off, limit {limit:.3g}"
        add("tail", head.tail, limit, figures.tail_at, text)
    limit = margins.rms * few * max(base.rms, least)
    rows = allowance(count // max(1, result.shape[-1] if result.shape else 1))
    limit = max(limit, min(COMMON, margins.rms * rows * base.rms))
    add("rms", head.rms, limit, (), "error {value:.3g}, limit {limit:.3g} by the merge base's own")
    if head.slope is not None and base.slope is not None:
        # Between two honest kernels in bf16 it was 0.12% and more; a factor of 1.003 is a fault.
        limit = max(margins.slope * base.slope, margins.slope_floor, rounding / 3)
        text = "a bias of {value:.2%}, limit {limit:.2%}"
        add("slope", head.slope, limit, figures.slope_at, text)
    if name in known.anchors:
        # Errors must not creep up from merge to merge; who is no worse than the merge base is not
        # to blame.
        limit = max(margins.anchor * few * max(known.anchors[name], least), base.rms)
        text = "error {value:.3g}, limit {limit:.3g} by what was once accepted"
        add("anchor", head.rms, limit, (), text)
    return found


def cap(figures: OutputFigures, known: Limits) -> float:
    """The contract's budget of an output; below zero where there is none.

    It is no less than what rounding the exact result may come to: no kernel can do better.
    """
    result = known.results[figures.name]
    if result.budget is None:
        return -1.0
    rounded = min(1.0, UNIFORM * _few(figures, result))
    return max(result.budget, ROUNDING[result.dtype] * rounded)


def _few(figures: OutputFigures, result: Result) -> float:
    """The allowance of an output, by how many of its numbers decide its figures."""
    count = prod(result.shape)
    return allowance(min(count, figures.effective or count))


def _is_hard(figures: OutputFigures, known: Limits) -> bool:
    """Whether the merge base itself is over the budget on these inputs, by what they may do."""
    own = cap(figures, known)
    return 0 <= own < figures.base.rms <= HARD * own


def standing(draws: Sequence[Draw], known: Limits) -> tuple[Draw, str] | None:
    """The first figure of a cell that is over its limit, by draw and reason, unless by chance.

    Two honest kernels round differently, and in some inputs few numbers decide a figure: one draw
    in thousands is a little over. What is wrong is over again when it is drawn again. So a ratio to
    the merge base's error counts as chance if it is over in one draw only, by less than CHANCE, and
    holds in FURTHER secret draws beside it. The contract's caps leave nothing to chance but where
    the merge base is over them, too, and where one figure is no chance none is.
    """
    over = list(_over(draws, known))
    if not over or (
        _may_all_be_chance(over, known) and all(_has_further(one, draws) for one in over)
    ):
        return None
    draw, figures, measure = over[0]
    return draw, _said(figures, measure, known)


def is_over(draws: Sequence[Draw], known: Limits) -> bool:
    """Whether any figure is over its limit, by chance or not."""
    return next(_over(draws, known), None) is not None


def is_open(draws: Sequence[Draw], known: Limits) -> bool:
    """Whether a figure is over its limit and FURTHER more draws can make that a chance."""
    over = list(_over(draws, known))
    return bool(over) and _may_all_be_chance(over, known)


_Over = tuple[Draw, OutputFigures, Measure]


def _over(draws: Sequence[Draw], known: Limits) -> Iterator[_Over]:
    for draw in draws:
        for figures in draw.outputs:
            for measure in measures(figures, known):
                if not measure.holds:
                    yield draw, figures, measure


def _may_all_be_chance(over: Sequence[_Over], known: Limits) -> bool:
    """Whether each is close, and the only one of its kind among the draws."""
    counts = Counter((figures.name, measure.name) for _, figures, measure in over)
    return max(counts.values()) == 1 and all(
        (measure.name != "budget" or _is_hard(figures, known))
        and measure.value <= CHANCE * measure.limit
        for _, figures, measure in over
    )


def _has_further(one: _Over, draws: Sequence[Draw]) -> bool:
    return sum(draw.secret for draw in draws if draw is not one[0]) >= FURTHER


def _said(figures: OutputFigures, measure: Measure, known: Limits) -> str:
    name = figures.name
    if known.results[name].budget is None:
        return f"budget: the contract has none for this dtype of {name}"
    if figures.head.rms >= HUGE and figures.head.max_abs >= HUGE:
        return f"budget: {name} at {_at(figures.worst_at)} is not finite"
    where = f" at {_at(measure.at)}:" if measure.at else ""
    said = measure.text.format(value=measure.value, limit=measure.limit)
    return f"{measure.name}: {name}{where} {said}"


def _at(place: Sequence[int]) -> str:
    return f"[{', '.join(map(str, place))}]"
