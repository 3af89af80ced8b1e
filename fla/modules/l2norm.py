"""L2 norm over the last axis in Triton, forward and backward."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn

__all__ = ["L2Norm", "l2norm"]

MAX_WIDTH = 8192
# Elements of one tile: 4 warps hold 64 fp32 values a thread at most, with room for the products.
TILE = 4096


@triton.jit
def l2norm_fwd_kernel(
    x, y, rstd, eps, N, stride_n, D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr
):
    """Rows [BN] of y = x * rstd, rstd = (sum(x^2) + eps)^-1/2 in fp32.

    Grid: cdiv(N, BN) on x. x [N, D] with row stride `stride_n`, y [N, D] and rstd [N] contiguous.
    """
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_d = tl.arange(0, BD)
    m_n = o_n < N
    m = m_n[:, None] & (o_d < D)[None, :]
    b_x = tl.load(x + o_n[:, None] * stride_n + o_d[None, :], mask=m, other=0.0).to(tl.float32)
    b_rstd = 1.0 / tl.sqrt(tl.sum(b_x * b_x, axis=1) + eps)
    b_y = b_x * b_rstd[:, None]
    tl.store(y + o_n[:, None] * D + o_d[None, :], b_y.to(y.dtype.element_ty), mask=m)
    tl.store(rstd + o_n, b_rstd, mask=m_n)


@triton.jit
def l2norm_bwd_kernel(
    x, rstd, dy, dx, N, stride_n, D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr
):
    """Rows [BN] of dx = rstd * (dy - n * sum(n * dy)) with n = x * rstd recomputed in fp32.

    Grid: cdiv(N, BN) on x. x [N, D] with row stride `stride_n`; dy, dx [N, D], rstd [N] contiguous.
    """
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_d = tl.arange(0, BD)
    m_n = o_n < N
    m = m_n[:, None] & (o_d < D)[None, :]
    b_rstd = tl.load(rstd + o_n, mask=m_n, other=0.0)[:, None]
    b_x = tl.load(x + o_n[:, None] * stride_n + o_d[None, :], mask=m, other=0.0).to(tl.float32)
    b_dy = tl.load(dy + o_n[:, None] * D + o_d[None, :], mask=m, other=0.0).to(tl.float32)
    b_n = b_x * b_rstd
    b_dx = b_rstd * (b_dy - b_n * tl.sum(b_n * b_dy, axis=1)[:, None])
    tl.store(dx + o_n[:, None] * D + o_d[None, :], b_dx.to(dx.dtype.element_ty), mask=m)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """`x` as [N, D] with unit stride along D; copied only where no such view exists."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    try:
        return x.view(-1, x.shape[-1])
    except RuntimeError:
        return x.contiguous().view(-1, x.shape[-1])


def _tile(width: int) -> tuple[int, int]:
    """Rows and columns of a tile."""
    columns = triton.next_power_of_2(width)
    return max(1, min(32, TILE // columns)), columns


class _L2Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, eps: float) -> torch.Tensor:
        rows = _rows(x)
        N, D = rows.shape
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        rstd = torch.empty(N, dtype=torch.float32, device=x.device)
        if x.numel():
            BN, BD = _tile(D)
            grid = (triton.cdiv(N, BN),)
            l2norm_fwd_kernel[grid](rows, y, rstd, eps, N, rows.stride(0), D=D, BN=BN, BD=BD)
        ctx.save_for_backward(x, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        x, rstd = ctx.saved_tensors
        rows, dy = _rows(x), dy.contiguous()
        N, D = rows.shape
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if x.numel():
            BN, BD = _tile(D)
            grid = (triton.cdiv(N, BN),)
            l2norm_bwd_kernel[grid](rows, rstd, dy, dx, N, rows.stride(0), D=D, BN=BN, BD=BD)
        return dx, None


def l2norm(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Scale every vector along the last axis to unit length: y = x / sqrt(sum(x^2) + eps).

    Args:
        x (torch.Tensor):
            `[..., D]` in fp32, fp16 or bf16, any strides, 1 <= D <= 8192.
        eps (float):
            Added to the squared length, > 0.

    Returns:
        `[..., D]`, contiguous, in the dtype of `x`.

    Raises:
        TypeError: `x` is not a tensor of a supported dtype.
        ValueError: `x` has no axis, or D or eps is out of range.

    Gradients: `x`, in its dtype. Numerics: sums and products in fp32; error budgets in
    contracts/l2norm.yaml.
    """
    if not isinstance(x, torch.Tensor) or x.dtype not in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
    ):
        got = getattr(x, "dtype", type(x).__name__)
        raise TypeError(f"x: expected a float32, float16 or bfloat16 tensor, got {got}")
    if x.ndim == 0 or not 1 <= x.shape[-1] <= MAX_WIDTH:
        raise ValueError(f"x: expected [..., D] with 1 <= D <= {MAX_WIDTH}, got {tuple(x.shape)}")
    if not eps > 0:
        raise ValueError(f"eps: expected a positive number, got {eps}")
    return _L2Norm.apply(x, eps)


class L2Norm(nn.Module):
    """`l2norm` as a module without parameters."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[..., D]` to `[..., D]`."""
        return l2norm(x, self.eps)
