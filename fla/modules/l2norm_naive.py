"""PyTorch reference of the L2 norm: the ground truth that the kernels are compared with."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import torch

__all__ = ["naive_l2norm"]


def naive_l2norm(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Return y = x / sqrt(sum(x^2) + eps) over the last axis, computed in the dtype of `x`."""
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)
