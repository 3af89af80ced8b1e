"""Errors of results against the reference: over the tensor and in the worst tile."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import math

import torch

from bot.cells import Result
from bot.evidence import HUGE, ArmFigures, OutputFigures
from bot.wire import ROUNDING

__all__ = ["compare"]


def _finite(value: float) -> float:
    return min(value, HUGE) if math.isfinite(value) else HUGE


def _tile_mean_squares(error: torch.Tensor, tile: tuple[int, ...]) -> torch.Tensor:
    """Mean of error^2 over each tile; one entry per tile and axis, short last tiles included."""
    sums, counts = error * error, torch.ones_like(error)
    for axis, step in enumerate(tile):
        size = error.shape[axis]
        step = step or max(1, size)
        index = torch.arange(size) // step
        shape = list(sums.shape)
        shape[axis] = -(-size // step)
        sums = torch.zeros(shape, dtype=sums.dtype).index_add(axis, index, sums)
        counts = torch.zeros(shape, dtype=sums.dtype).index_add(axis, index, counts)
    return sums / counts


def _arm(error: torch.Tensor, scale: float) -> ArmFigures:
    rms = float((error * error).mean().sqrt()) if error.numel() else 0.0
    largest = float(error.abs().max()) if error.numel() else 0.0
    relative = rms / scale if scale else (0.0 if rms == 0 else HUGE)
    return ArmFigures(rms=_finite(relative), max_abs=_finite(largest))


def compare(
    result: Result, truth: torch.Tensor, head: torch.Tensor, base: torch.Tensor
) -> OutputFigures:
    """Figures of one result; all tensors are fp64 on the CPU.

    A tile's ratio is rms(head error) over the largest of: rms(base error) there, half the base's
    median tile, and half a rounding step of the reference there. The last two keep tiles where the
    base happens to be exact from turning honest rounding into a failure.
    """
    scale = float((truth * truth).mean().sqrt()) if truth.numel() else 0.0
    step = ROUNDING[result.dtype]
    errors = [
        torch.nan_to_num(t - truth, nan=HUGE**0.4, posinf=HUGE**0.4, neginf=HUGE**0.4)
        for t in (head, base)
    ]
    worst, at = 0.0, [0] * truth.ndim
    if truth.numel():
        own, other, size = (
            _tile_mean_squares(t, result.tile).sqrt() for t in (errors[0], errors[1], truth)
        )
        floor = torch.maximum(other, size * step).clamp_min(0.5 * float(other.median()))
        ratio = torch.where(own == 0, 0.0, own / floor)
        index = int(ratio.argmax())
        worst = float(ratio.flatten()[index])
        places = torch.unravel_index(torch.tensor(index), ratio.shape)
        at = [int(p) * (s or 1) for p, s in zip(places, result.tile, strict=True)]
    return OutputFigures(
        name=result.name,
        head=_arm(errors[0], scale),
        base=_arm(errors[1], scale),
        worst_tile=_finite(worst),
        worst_at=at,
    )
