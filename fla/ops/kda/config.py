# SPDX-License-Identifier: MIT
"""Tiles and schedules of the chunk kernels: one choice a kernel, by reasoning, without tuning."""

from __future__ import annotations

from dataclasses import dataclass

import triton

from fla.ops.kda.plan import ChunkPlan

__all__ = ["Tile", "tile"]


@dataclass(frozen=True, slots=True)
class Tile:
    """Columns of K and V that a program holds at once, and how it is scheduled."""

    BK: int
    BV: int
    num_warps: int
    num_stages: int = 1
    # Bound on registers a thread, where more programs side by side are worth some spills.
    max_registers: int | None = None

    @property
    def schedule(self) -> dict[str, int]:
        """Launch options."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        if self.max_registers is not None:
            options["maxnreg"] = self.max_registers
        return options


# A [64, 64] fp32 tile costs 32 registers a thread at 4 warps. `intra` and `keys` hold about eight
# such tiles. The state passes are serial in time: their latency counts, not their footprint, so
# they take narrow value blocks (more programs) and load two chunks ahead.
_HALF = {
    "intra": Tile(BK=64, BV=0, num_warps=4),
    "factors": Tile(BK=32, BV=64, num_warps=4),
    "state": Tile(BK=256, BV=32, num_warps=4, num_stages=3),
    "bwd_state": Tile(BK=256, BV=32, num_warps=4, num_stages=3),
    "output": Tile(BK=64, BV=128, num_warps=4, num_stages=2),
    "values": Tile(BK=0, BV=32, num_warps=4, num_stages=2, max_registers=168),
    "keys": Tile(BK=64, BV=64, num_warps=8),
}
# fp32 operands take twice the shared memory, and three products take more registers.
_SINGLE = {
    "intra": Tile(BK=32, BV=0, num_warps=4),
    "factors": Tile(BK=32, BV=32, num_warps=4),
    "state": Tile(BK=256, BV=16, num_warps=4),
    "bwd_state": Tile(BK=256, BV=16, num_warps=4),
    "output": Tile(BK=32, BV=64, num_warps=4),
    "values": Tile(BK=0, BV=32, num_warps=4),
    "keys": Tile(BK=32, BV=32, num_warps=4),
}


def tile(kernel: str, plan: ChunkPlan) -> Tile:
    """Tile of a kernel, no wider than the head needs and at least 16 for the matrix units."""
    base = (_SINGLE if plan.full_precision else _HALF)[kernel]
    # Of a state of 256 rows, shared memory holds one chunk ahead. (Not none: without a ring of
    # buffers, ptxas 12.8 loses the low half of matrix descriptors in both state passes.)
    stages = 2 if base.num_stages > 2 and plan.K > 128 else base.num_stages
    BK = min(base.BK, max(16, triton.next_power_of_2(plan.K)))
    BV = min(base.BV, max(16, triton.next_power_of_2(plan.V)))
    if kernel == "keys":
        # ptxas 12.8 loses them here too where value tiles are wider than key tiles, which gives
        # wrong dk and stray accesses; benchmarks/kda_cubins.py finds such code.
        BK = max(BK, 32)
        BV = min(BV, BK)
    return Tile(
        BK=BK,
        BV=BV,
        num_warps=base.num_warps,
        num_stages=stages,
        max_registers=base.max_registers,
    )
