"""The value families of contracts, drawn from a seed."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch.nn.functional import logsigmoid, normalize

from bot.cells import Result, TensorArg
from bot.device.arm import DTYPES

__all__ = ["cotangent", "draw"]

Draw = Callable[[tuple[int, ...], torch.Generator], torch.Tensor]


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _unit(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def _collinear(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Vectors along one direction with a hundredth of noise: the ill-conditioned solve."""
    line = _normal(shape[-1:], generator)
    return line + 0.01 * _normal(shape, generator)


def _dominant(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """One token, a third of the way along the second axis, a hundred times as large."""
    values = _normal(shape, generator)
    if len(shape) > 1 and shape[1]:
        values[:, shape[1] // 3] *= 100
    return values


def _decay(shift: float) -> Draw:
    """Log decays logsigmoid(N + shift): a memory of 1 to 2 tokens at 0, of dozens at 3."""
    return lambda shape, generator: logsigmoid(_normal(shape, generator) + shift)


def _mixed_decay(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Slow and fast channels side by side."""
    shift = 3.0 - 6.0 * (torch.arange(shape[-1] if shape else 1) % 2)
    return logsigmoid(_normal(shape, generator) + shift)


FAMILIES: dict[str, Draw] = {
    "normal": _normal,
    "tiny": lambda s, g: 1e-4 * _normal(s, g),
    "large": lambda s, g: 30.0 * _normal(s, g),
    "zeros": lambda s, _: torch.zeros(s, dtype=torch.float64),
    "ones": lambda s, _: torch.ones(s, dtype=torch.float64),
    "unit": _unit,
    "direction": lambda s, g: normalize(_normal(s, g), dim=-1),
    "collinear": _collinear,
    "dominant": _dominant,
    "decay": _decay(0.0),
    "slow_decay": _decay(3.0),
    "fast_decay": lambda s, g: -20.0 * _unit(s, g),
    "safe_decay": lambda s, g: -5.0 * (1.0 - _unit(s, g)).clamp(1e-3, 0.999),
    "no_decay": lambda s, _: torch.zeros(s, dtype=torch.float64),
    "growth": lambda s, g: 0.02 * _unit(s, g),
    "mixed_decay": _mixed_decay,
    "beta": lambda s, g: torch.sigmoid(_normal(s, g)),
    "beta_tiny": lambda s, _: torch.full(s, 2.0**-9, dtype=torch.float64),
    "beta_one": lambda s, g: 1.0 - 1e-3 * _unit(s, g),
    "logit": _normal,
    "log_scale": lambda s, g: torch.log(1.0 + 15.0 * _unit(s, g)),
    "state": lambda s, g: 0.3 * _normal(s, g),
}


def draw(spec: TensorArg) -> torch.Tensor:
    """The stored elements of an argument, flat, in its dtype.

    Values have the argument's shape; where its layout stores more, the rest is like the values.
    """
    if spec.content is not None:
        return torch.tensor(spec.content, dtype=DTYPES[spec.dtype])
    generator = torch.Generator().manual_seed(spec.seed)
    if spec.storage == prod(spec.shape):
        values = FAMILIES[spec.family](spec.shape, generator)
        flat = torch.empty(spec.storage, dtype=torch.float64)
        flat.as_strided(spec.shape, spec.strides).copy_(values)
    else:
        flat = FAMILIES[spec.family]((spec.storage,), generator)
    return flat.to(DTYPES[spec.dtype])


def cotangent(result: Result, seed: int, *, expanded: bool = False) -> torch.Tensor:
    """The direction in which an output is differentiated; `expanded`: the same for all tokens."""
    generator = torch.Generator().manual_seed(seed)
    shape = list(result.shape)
    if expanded and shape:
        shape[min(1, len(shape) - 1)] = 1
    return _normal(tuple(shape), generator).to(DTYPES[result.dtype]).expand(result.shape)
