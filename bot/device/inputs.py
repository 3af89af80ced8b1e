"""The value families of contracts, drawn from a seed."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import torch

from bot.cells import Result, TensorArg
from bot.device.arm import DTYPES

__all__ = ["cotangent", "draw"]

_SCALES = {"normal": 1.0, "tiny": 1e-4, "large": 30.0, "zeros": 0.0}


def draw(spec: TensorArg) -> torch.Tensor:
    """The stored elements of an argument, flat, in its dtype."""
    generator = torch.Generator().manual_seed(spec.seed)
    values = torch.randn(spec.storage, generator=generator, dtype=torch.float64)
    return (values * _SCALES[spec.family]).to(DTYPES[spec.dtype])


def cotangent(result: Result, seed: int) -> torch.Tensor:
    """The direction in which an output is differentiated."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(result.shape, generator=generator, dtype=torch.float64)
    return values.to(DTYPES[result.dtype])
