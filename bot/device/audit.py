"""Looking at results of calls that were timed."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from math import prod

import torch

from bot.cells import Result
from bot.device.arm import DTYPES
from bot.device.rows import RANGE, Row
from bot.device.runner import REPORT_BYTES, Runner
from bot.evidence import HUGE, Audit
from bot.wire import POISON

__all__ = ["Look", "differ", "keep_worst"]

# A vector that ignores fresh values differs by about its own size, an honest one by a few budgets.
VECTOR_LIMIT = 0.5


class Look:
    """An audit of the same call of both arms, chosen before and told after it was timed."""

    def __init__(self, row: Row, turn: int) -> None:
        self.row, self.turn = row, turn
        self.slot = secrets.randbelow(row.slots)
        self.ranges: list[tuple[int, int]] = []
        self.results: dict[str, list[torch.Tensor]] = {}

    def ask(self, runner: Runner, payload: bytes, turn: int, late: list[float]) -> None:
        """Have results handed over, if it is this block's turn, and all of them poisoned."""
        chosen = turn == self.turn
        if chosen and not self.ranges:
            self.ranges = list(self._ranges(payload))
        ranges = self.ranges if chosen else []
        order = {"do": "audit", "slot": self.slot, "ranges": ranges, "offset": REPORT_BYTES}
        seconds = runner.ask(order)
        if chosen:
            late.append(seconds)
            self.results[runner.name] = list(self._take(runner))

    def _ranges(self, payload: bytes) -> Iterator[tuple[int, int]]:
        """The part of each result that lies where the fresh values lie in their argument."""
        patch, share = self.row.patch, secrets.randbelow(1 << 20) / (1 << 20)
        if patch is not None:
            share = (patch.place(payload, self.slot) + patch.count / 2) / patch.storage
        for result in self.row.results:
            size, width = prod(result.shape), max(1, result.shape[-1] if result.shape else 1)
            count = size if size <= RANGE else max(1, RANGE // width) * width
            count = min(count, RANGE)
            start = int(share * size - count / 2) // width * width
            yield max(0, min(start, size - count)), count

    def _take(self, runner: Runner) -> Iterator[torch.Tensor]:
        assert runner.shared is not None
        offset = REPORT_BYTES
        for result, (_, count) in zip(self.row.results, self.ranges, strict=True):
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
                yield Audit(
                    restart=number,
                    slot=self.slot,
                    against="base",
                    output=name,
                    error=value,
                    limit=limit,
                )


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
