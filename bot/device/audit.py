"""Looking at results of calls that were timed."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Iterator
from math import prod

import torch

from bot.cells import Result
from bot.device.arm import DTYPES
from bot.device.rows import RANGE, SAMPLE, Row
from bot.device.runner import REPORT_BYTES, Runner
from bot.evidence import HUGE, Audit
from bot.wire import POISON

__all__ = ["Look", "differ", "keep_worst"]

# A vector that ignores fresh values differs by about its own size, an honest one by a few budgets.
VECTOR_LIMIT = 0.5
# How much further off a few elements of a slot may be than whole results.
SAMPLE_SHARE = 4.0


class Look:
    """Audits of the same two blocks of both arms, told after each was timed.

    Of every slot and result some elements are read, of one slot in one of the blocks whole ranges.
    """

    def __init__(self, row: Row, turn: int) -> None:
        self.row, self.turn = row, turn
        self.slot = secrets.randbelow(row.slots)
        self.ranges: list[tuple[int, int]] = []
        self.places: dict[int, list[list[int]]] = {}
        self.results: dict[str, list[torch.Tensor]] = {}
        self.samples: dict[tuple[str, int], list[torch.Tensor]] = {}

    def ask(self, runner: Runner, turn: int, late: list[float]) -> None:
        """Have results handed over and all of them poisoned; who is asked first cannot know."""
        chosen = turn == self.turn
        if turn not in self.places:
            self.places[turn] = [_sample(prod(r.shape)) for r in self.row.results]
        if chosen and not self.ranges:
            self.ranges = list(self._ranges())
        places, ranges = self.places[turn], self.ranges if chosen else []
        order = {"do": "audit", "slot": self.slot, "slots": self.row.slots, "ranges": ranges}
        seconds = runner.ask({**order, "places": places, "offset": REPORT_BYTES})
        counts = [self.row.slots * len(found) for found in places]
        counts += [count for _, count in ranges]
        taken = list(self._take(runner, counts))
        self.samples[runner.name, turn] = taken[: len(places)]
        if chosen:
            late.append(seconds)
            self.results[runner.name] = taken[len(places) :]

    def _ranges(self) -> Iterator[tuple[int, int]]:
        for result in self.row.results:
            size, width = prod(result.shape), max(1, result.shape[-1] if result.shape else 1)
            count = size if size <= RANGE else max(1, RANGE // width) * width
            count = min(count, RANGE)
            yield secrets.randbelow((size - count) // width + 1) * width, count

    def _take(self, runner: Runner, counts: list[int]) -> Iterator[torch.Tensor]:
        assert runner.shared is not None
        offset, results = REPORT_BYTES, self.row.results
        for result, count in zip(itertools.cycle(results), counts, strict=False):
            dtype = DTYPES[result.dtype]
            flat = torch.empty(0, dtype=dtype)
            if count:
                flat = torch.frombuffer(runner.shared, dtype=dtype, count=count, offset=offset)
                flat = flat.clone()
            yield flat
            offset = (offset + count * dtype.itemsize + 63) // 64 * 64

    def audits(self, number: int, device: str) -> Iterator[Audit]:
        """How far head's results are from the merge base's, over all and in the worst vector.

        Both may be off by their budget, so twice that is allowed.
        """
        arms = self.results["head"], self.results["base"]
        for result, head, base in zip(self.row.results, *arms, strict=True):
            error, worst = differ(head.to(device), base.to(device), result)
            for name, value, limit in (
                (result.name, error, 2 * self.row.budgets.get(result.name, 0.0)),
                (f"{result.name}.vector", worst, VECTOR_LIMIT),
            ):
                yield self._audit(number, self.slot, name, value, limit)
        for turn in self.places:
            yield from self._every_slot(number, turn)

    def _every_slot(self, number: int, turn: int) -> Iterator[Audit]:
        """The slot whose elements differ most."""
        arms = self.samples["head", turn], self.samples["base", turn]
        for result, head, base in zip(self.row.results, *arms, strict=True):
            own, other = (t.view(self.row.slots, -1) for t in (head, base))
            errors = list(_errors(own, other, result))
            slot = max(range(len(errors)), key=errors.__getitem__)
            limit = SAMPLE_SHARE * 2 * self.row.budgets.get(result.name, 0.0)
            yield self._audit(number, slot, f"{result.name}.slots", errors[slot], limit)

    def _audit(self, number: int, slot: int, output: str, error: float, limit: float) -> Audit:
        return Audit(
            restart=number, slot=slot, against="base", output=output, error=error, limit=limit
        )


def _errors(head: torch.Tensor, base: torch.Tensor, result: Result) -> Iterator[float]:
    """Of each slot, relative to its own size or, if that is more, to that of all of them."""
    sizes = base.double().square().mean(1)
    shares = (sizes / sizes.mean()).sqrt().tolist()
    for own, other, share in zip(head, base, shares, strict=True):
        error, _ = differ(own, other, result)
        yield error * min(1.0, share) if 0 < error < HUGE else error


def _sample(size: int) -> list[int]:
    """Elements of a result: all of a small one."""
    if size <= SAMPLE:
        return list(range(size))
    return [secrets.randbelow(size) for _ in range(SAMPLE)]


def differ(head: torch.Tensor, base: torch.Tensor, result: Result) -> tuple[float, float]:
    """RMS of the difference relative to the RMS of base; the same in the worst vector.

    Poison and what is not finite differ without bound, in either arm.
    """
    if not head.numel():
        return 0.0, 0.0
    if not head.is_floating_point():
        same = float(not torch.equal(head, base))
        return HUGE * same, HUGE * same
    if any(_is_unwritten(t) or not bool(torch.isfinite(t).all()) for t in (head, base)):
        return HUGE, HUGE
    width = result.shape[-1] if result.shape else 1
    width = 1 if head.numel() % width else width
    own, other = (t.double().view(-1, width) for t in (head, base))
    square = (own - other).square()
    scale, total = (float(t.mean().sqrt()) for t in (other.square(), square))
    if not scale:
        return (HUGE, HUGE) if total else (0.0, 0.0)
    sizes = other.square().mean(1).sqrt().clamp_min(scale)
    worst = float((square.mean(1).sqrt() / sizes).max())
    return min(total / scale, HUGE), min(worst, HUGE)


def _is_unwritten(flat: torch.Tensor) -> bool:
    raw = flat.contiguous().view(torch.uint8).view(flat.numel(), -1)
    return bool((raw == POISON).all(1).any())


def keep_worst(kept: list[Audit], new: Iterable[Audit]) -> None:
    """Of each restart and output the audit that is nearest to its limit, or furthest beyond."""
    for audit in new:
        same = (audit.restart, audit.output, audit.against)
        places = [i for i, old in enumerate(kept) if (old.restart, old.output, old.against) == same]
        if not places:
            kept.append(audit)
        elif audit.error > kept[places[0]].error:
            kept[places[0]] = audit
