"""Errors of results against the reference: over the tensor, in tiles, rows and single elements."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch.nn.functional import pad

from bot.cells import Result
from bot.evidence import HUGE, ArmFigures, OutputFigures
from bot.statistics import UNIFORM, allowance, settled
from bot.wire import ROUNDING

__all__ = ["compare"]

# A bias counts as far as it exceeds this many standard errors of itself.
SURE = 5
# So many tiles to either side may lend a tile the merge base's error: a chunk of 64 tokens in all.
NEAR = 3
# Stands for an error that is not finite, and can still be squared and summed.
ENORMOUS = HUGE**0.4


class _Tiles:
    """A tensor's shape cut into tiles of given steps; a step of 0 is the whole axis."""

    def __init__(self, shape: Sequence[int], steps: Sequence[int]) -> None:
        self.steps = [step or max(1, size) for size, step in zip(shape, steps, strict=True)]
        self.counts = [-(-size // step) for size, step in zip(shape, self.steps, strict=True)]
        self.shape = tuple(shape)
        # `pad` wants before and after of each axis, the last axis first.
        beyond = [c * s - n for n, s, c in zip(shape, self.steps, self.counts, strict=True)]
        self.padding = [end for extra in reversed(beyond) for end in (0, extra)]
        self.view = [n for pair in zip(self.counts, self.steps, strict=True) for n in pair]
        self.inner = tuple(range(1, 2 * len(self.steps), 2))

    def _cut(self, values: torch.Tensor) -> torch.Tensor:
        values = pad(values, self.padding) if any(self.padding) else values
        return values.reshape(self.view)

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over each tile."""
        return self._cut(values).sum(self.inner)

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """The largest of non-negative values in each tile."""
        return self._cut(values).amax(self.inner)

    def sizes(self, like: torch.Tensor) -> torch.Tensor:
        """How many elements each tile has; those at the ends of axes may be short."""
        found = like.new_ones([1] * len(self.shape))
        for axis, (size, step) in enumerate(zip(self.shape, self.steps, strict=True)):
            lengths = [min(step, size - start) for start in range(0, size, step)]
            view = [1] * len(self.shape)
            view[axis] = len(lengths)
            found = found * like.new_tensor(lengths).view(view)
        return found

    def near(self, means: torch.Tensor) -> torch.Tensor:
        """The largest of a tile and those beside it along axes that are cut in tiles."""
        found = means
        for axis, (step, count) in enumerate(zip(self.steps, self.counts, strict=True)):
            if step == 1:
                continue  # heads and sequences do not lend each other anything
            of_axis = found.clone()
            for away in range(1, min(NEAR, count - 1) + 1):
                for start, other in ((away, 0), (0, away)):
                    part = of_axis.narrow(axis, start, count - away)
                    part.copy_(torch.maximum(part, found.narrow(axis, other, count - away)))
            found = of_axis
        return found

    def over_rows(self, means: torch.Tensor) -> torch.Tensor:
        """The mean over its tile for each vector along the last axis."""
        found = means.mean(-1, keepdim=True)
        for axis, step in enumerate(self.steps[:-1]):
            found = found.repeat_interleave(step, axis).narrow(axis, 0, self.shape[axis])
        return found

    def place(self, tile: int) -> list[int]:
        """Where a tile begins, by its index in the flattened results of the others."""
        found = torch.unravel_index(torch.tensor(tile), self.counts)
        return [int(index) * step for index, step in zip(found, self.steps, strict=True)]


@dataclass(slots=True)
class _Level:
    """Mean squares of both errors and of the truth over the parts of one division."""

    tiles: _Tiles
    size: torch.Tensor
    head: torch.Tensor
    base: torch.Tensor
    truth: torch.Tensor

    def worst(self, least: float, around: torch.Tensor) -> tuple[float, list[int]]:
        """The largest ratio of rms errors over what chance allows, and where.

        The base's error counts as at least half the base's median one, and as `least` of the truth
        there or in the median part: where the base happens to be exact, honest rounding is no
        failure. Nor is it one where the base's error `around` is like head's: sums grow along a
        chunk, and another chunk size begins them elsewhere.
        """
        own, other, due = (t.sqrt() for t in (self.head, self.base, self.truth))
        due = due.clamp_min(0.5 * float(due.median()))
        floor = torch.maximum(other, due * least).clamp_min(0.5 * float(other.median()))
        floor = torch.maximum(floor, 0.5 * around.sqrt())
        ratio = torch.where(own == 0, 0.0, own / floor) / _allowances(self.size)
        index = int(ratio.argmax())
        return float(ratio.flatten()[index]), self.tiles.place(index)


def _allowances(sizes: torch.Tensor) -> torch.Tensor:
    """Of each part, by its number of elements; there are few different ones."""
    found = torch.ones_like(sizes)
    for size in sizes.unique().tolist():
        found[sizes == size] = allowance(int(size))
    return found


class _Errors:
    """What one result is compared by; everything is fp64 and stays on one device."""

    def __init__(
        self, result: Result, truth: torch.Tensor, head: torch.Tensor, base: torch.Tensor
    ) -> None:
        shape, tile = (result.shape, result.tile) if result.shape else ((1,), (0,))
        self.truth = truth.reshape(shape)
        self.head, self.base = (
            (y.reshape(shape) - self.truth).nan_to_num(ENORMOUS, ENORMOUS, -ENORMOUS)
            for y in (head, base)
        )
        self.tiles = _Tiles(shape, tile)
        self.rows = _Tiles(shape, [1] * (len(shape) - 1) + [0])
        # Heads (and sequences) are the axes that the contract takes one at a time.
        heads = [1 if step == 1 else 0 for step in tile]
        self.groups = [_Tiles(shape, [0] * len(shape)), _Tiles(shape, heads)]

    def level(self, tiles: _Tiles) -> _Level:
        size = tiles.sizes(self.truth)
        means = (tiles.sums(x * x) / size for x in (self.head, self.base, self.truth))
        return _Level(tiles, size, *means)

    @cached_property
    def scale(self) -> float:
        return float((self.truth * self.truth).mean().sqrt())

    def effective(self) -> int:
        """How many equally large numbers would scatter as much as truth and base's errors do.

        One dominant token is most of an rms, however long the sequence. Head has no say in it.
        """
        found = [float(self.truth.numel())]
        for values in (self.truth, self.base):
            # Fourth powers: relative to the largest, nothing overflows.
            squares = (values / values.abs().max().clamp_min(1e-300)).square()
            fourths = float(squares.square().sum())
            if fourths:
                found.append(3 * float(squares.sum()) ** 2 / fourths)  # the number, if normal
        return max(1, int(min(found)))

    def tail(self, error: torch.Tensor, level: _Level, step: float) -> tuple[float, list[int]]:
        """The largest error in rounding steps of its tile, and the element."""
        due = level.truth.sqrt()
        due = due.clamp_min(0.5 * float(due.median()))
        most = level.tiles.largest(error.abs())
        ratio = torch.where(most == 0, 0.0, most / (due * step))
        tile = int(ratio.argmax())
        start = level.tiles.place(tile)
        inner = error
        for axis, (begin, steps) in enumerate(zip(start, level.tiles.steps, strict=True)):
            inner = inner.narrow(axis, begin, min(steps, inner.shape[axis] - begin))
        found = torch.unravel_index(inner.abs().argmax(), inner.shape)
        at = [begin + int(index) for begin, index in zip(start, found, strict=True)]
        return float(ratio.flatten()[tile]), at

    def slope(self, error: torch.Tensor) -> tuple[float, list[int]]:
        """The largest bias, as a share of the truth, that independent errors do not explain."""
        best: tuple[float, list[int]] = (0.0, [0] * error.ndim)
        product = error * self.truth
        for group in self.groups:
            due = group.sums(self.truth * self.truth)
            # Whatever the errors' sizes: the variance of their sum is the sum of their squares.
            scatter = group.sums(product * product).sqrt()
            sure = (group.sums(product).abs() - SURE * scatter).clamp_min(0)
            bias = torch.where(due == 0, 0.0, sure / due)
            index = int(bias.argmax())
            found = float(bias.flatten()[index])
            if found > best[0]:
                best = found, group.place(index)
        return best

    def figures(self, error: torch.Tensor, tail: float, slope: float) -> ArmFigures:
        rms = float((error * error).mean().sqrt())
        relative = rms / self.scale if self.scale else (0.0 if rms == 0 else HUGE)
        largest = float(error.abs().max())
        return ArmFigures(
            rms=_finite(relative),
            max_abs=_finite(largest),
            tail=_finite(tail),
            slope=_finite(slope),
        )


def _finite(value: float) -> float:
    return min(value, HUGE) if math.isfinite(value) else HUGE


def _not_finite(values: torch.Tensor) -> list[int] | None:
    """The first element that is NaN or infinite."""
    bad = ~values.isfinite()
    if not bool(bad.any()):
        return None
    return [int(index) for index in torch.unravel_index(bad.flatten().int().argmax(), bad.shape)]


_LOST = ArmFigures(rms=HUGE, max_abs=HUGE, tail=HUGE, slope=HUGE)


def compare(
    result: Result, truth: torch.Tensor, head: torch.Tensor, base: torch.Tensor
) -> OutputFigures:
    """Figures of one result; all tensors are fp64, and the work is done where the truth lies."""
    head, base = head.to(truth.device), base.to(truth.device)
    if not truth.numel():
        nothing, start = ArmFigures(rms=0.0, max_abs=0.0, tail=0.0, slope=0.0), [0] * truth.ndim
        return OutputFigures(
            name=result.name, head=nothing, base=nothing, worst_tile=0.0, worst_at=start,
            worst_row=0.0, row_at=start, tail_at=start, slope_at=start,
        )  # fmt: skip
    errors, step = _Errors(result, truth, head, base), ROUNDING[result.dtype]
    least = max(UNIFORM * step, settled(result.budget))
    level = errors.level(errors.tiles)
    around = errors.tiles.near(level.base)
    tile, tile_at = level.worst(least, around)
    row, row_at = errors.level(errors.rows).worst(least, errors.tiles.over_rows(around))
    arms, places = {}, {}
    for name, values, error in (("head", head, errors.head), ("base", base, errors.base)):
        (tail, tail_at), (slope, slope_at) = errors.tail(error, level, step), errors.slope(error)
        places[name] = tail_at, slope_at
        arms[name] = errors.figures(error, tail, slope)
        if (at := _not_finite(values)) is not None:
            arms[name] = _LOST
            if name == "head":
                tile, row, tile_at, row_at = HUGE, HUGE, at, at
                places[name] = at, at
    return OutputFigures(
        name=result.name,
        elements=truth.numel(),
        effective=errors.effective(),
        head=arms["head"],
        base=arms["base"],
        worst_tile=_finite(tile),
        worst_at=tile_at,
        worst_row=_finite(row),
        row_at=row_at,
        tail_at=places["head"][0],
        slope_at=places["head"][1],
    )
