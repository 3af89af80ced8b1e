# SPDX-License-Identifier: MIT
"""KDA's decay gates: plain PyTorch forms, the tile functions of the kernels, and a fused op."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fla.utils import autocast_custom_bwd, autocast_custom_fwd, input_guard

__all__ = [
    "fused_kda_gate",
    "gate_bwd_tile",
    "gate_kind",
    "gate_tile",
    "naive_kda_gate",
    "naive_kda_lowerbound_gate",
]


def _heads(A_log: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return A_log.reshape(-1, 1).to(dtype).exp()


def naive_kda_gate(
    g: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Log decay `-exp(A_log) * softplus(g + dt_bias)`.

    Args:
        g (torch.Tensor): raw gate `[..., HV, K]`.
        A_log (torch.Tensor): HV elements in any shape.
        dt_bias (torch.Tensor): HV * K elements, or None.
        output_dtype (torch.dtype): dtype of the result; computed in fp32, or fp64 for fp64 inputs.

    Returns:
        Natural-log decay `[..., HV, K]`.

    Source: Kimi Linear (arXiv 2510.26692), with Mamba-2's parametrisation of the decay.
    """
    dtype = torch.promote_types(g.dtype, torch.float32)
    x = g.to(dtype)
    if dt_bias is not None:
        x = x + dt_bias.reshape(g.shape[-2:]).to(dtype)
    return (-_heads(A_log, dtype) * F.softplus(x)).to(output_dtype)


def naive_kda_lowerbound_gate(
    g: torch.Tensor,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float = -5.0,
    output_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Log decay `lower_bound * sigmoid(exp(A_log) * (g + dt_bias))`, never below lower_bound.

    Args:
        g (torch.Tensor): raw gate `[..., HV, K]`.
        A_log (torch.Tensor): HV elements in any shape; None stands for a factor of 1.
        dt_bias (torch.Tensor): HV * K elements, or None.
        lower_bound (float): the least log decay, negative.
        output_dtype (torch.dtype): dtype of the result; computed in fp32, or fp64 for fp64 inputs.

    Returns:
        Natural-log decay `[..., HV, K]`.
    """
    dtype = torch.promote_types(g.dtype, torch.float32)
    x = g.to(dtype)
    if dt_bias is not None:
        x = x + dt_bias.reshape(g.shape[-2:]).to(dtype)
    if A_log is not None:
        x = _heads(A_log, dtype) * x
    return (lower_bound * torch.sigmoid(x)).to(output_dtype)


def gate_kind(lower_bound: float | None) -> int:
    """Kernels' code of the in-kernel gate: 1 is softplus, 2 the bounded sigmoid (0 is no gate)."""
    return 1 if lower_bound is None else 2


@triton.jit
def softplus(b_x):
    """log(1 + exp(x)) with an exponential that cannot overflow."""
    return tl.maximum(b_x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(b_x)))


@triton.jit
def gate_tile(
    b_g, A_log, dt_bias, i_h, o_k, m_k, lower_bound, K: tl.constexpr,
    GATE: tl.constexpr, HAS_A: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Natural-log decay of a tile [BT, BK] of raw gates, fp32."""
    if HAS_BIAS:
        b_g += tl.load(dt_bias + i_h * K + o_k, mask=m_k, other=0.0).to(tl.float32)[None, :]
    if GATE == 1:
        b_a = tl.exp(tl.load(A_log + i_h).to(tl.float32))
        b_g = -b_a * softplus(b_g)
    elif GATE == 2:
        if HAS_A:
            b_g *= tl.exp(tl.load(A_log + i_h).to(tl.float32))
        b_g = lower_bound * tl.sigmoid(b_g)
    return b_g


@triton.jit
def gate_bwd_tile(
    b_g, b_dy, A_log, dt_bias, i_h, o_k, m_k, lower_bound, K: tl.constexpr,
    GATE: tl.constexpr, HAS_A: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile's raw gates and, element by element, of A_log, from that of the decay."""
    if HAS_BIAS:
        b_g += tl.load(dt_bias + i_h * K + o_k, mask=m_k, other=0.0).to(tl.float32)[None, :]
    b_a = 1.0
    if HAS_A:
        b_a = tl.exp(tl.load(A_log + i_h).to(tl.float32))
    if GATE == 1:
        b_dg = b_dy * (-b_a * tl.sigmoid(b_g))
        b_dA = b_dy * (-b_a * softplus(b_g))
    else:
        b_s = tl.sigmoid(b_a * b_g)
        b_dx = b_dy * (lower_bound * b_s * (1.0 - b_s))
        b_dg = b_dx * b_a
        b_dA = b_dg * b_g
    return b_dg, b_dA


@triton.jit
def gate_program(T, HV: tl.constexpr, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr):
    """Place a program of the grid (cdiv(T, BT) * HV) on BT tokens of one head.

    Returns the head, channels and their mask, and offsets and mask of the tile [BT, BK].
    """
    i_t, i_h = tl.program_id(0) // HV, tl.program_id(0) % HV
    o_t = i_t.to(tl.int64) * BT + tl.arange(0, BT)
    o_k = tl.arange(0, BK)
    m_k = o_k < K
    o_tk = (o_t * HV + i_h)[:, None] * K + o_k[None, :]
    return i_h, o_k, m_k, o_tk, (o_t < T)[:, None] & m_k[None, :]


@triton.jit(do_not_specialize=["T"])
def kda_fwd_gate_kernel(
    g, A_log, dt_bias, y, lower_bound, T,
    HV: tl.constexpr, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
    GATE: tl.constexpr, HAS_A: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Log decay y of raw gates g, both [T, HV, K]. Grid: (cdiv(T, BT) * HV,). BK covers K."""
    i_h, o_k, m_k, o_tk, m_tk = gate_program(T, HV, K, BT, BK)
    b_g = tl.load(g + o_tk, mask=m_tk, other=0.0).to(tl.float32)
    b_y = gate_tile(b_g, A_log, dt_bias, i_h, o_k, m_k, lower_bound, K, GATE, HAS_A, HAS_BIAS)
    tl.store(y + o_tk, b_y.to(y.dtype.element_ty), mask=m_tk)


@triton.jit(do_not_specialize=["T"])
def kda_bwd_gate_kernel(
    g, A_log, dt_bias, dy, dg, dA, dbias, lower_bound, T,
    HV: tl.constexpr, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
    GATE: tl.constexpr, HAS_A: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Gradients of raw gates, and sums over BT tokens for A_log [blocks, HV], bias [blocks, HV, K].

    Grid: (cdiv(T, BT) * HV,). BK covers K.
    """
    i_th = tl.program_id(0).to(tl.int64)
    i_h, o_k, m_k, o_tk, m_tk = gate_program(T, HV, K, BT, BK)
    b_g = tl.load(g + o_tk, mask=m_tk, other=0.0).to(tl.float32)
    b_dy = tl.load(dy + o_tk, mask=m_tk, other=0.0).to(tl.float32)
    b_dg, b_dA = gate_bwd_tile(
        b_g, b_dy, A_log, dt_bias, i_h, o_k, m_k, lower_bound, K, GATE, HAS_A, HAS_BIAS
    )
    tl.store(dg + o_tk, b_dg.to(dg.dtype.element_ty), mask=m_tk)
    if HAS_A:
        tl.store(dA + i_th, tl.sum(tl.where(m_tk, b_dA, 0.0)))
    if HAS_BIAS:
        tl.store(dbias + i_th * K + o_k, tl.sum(tl.where(m_tk, b_dg, 0.0), 0), mask=m_k)


class _FusedGate(torch.autograd.Function):
    """Autograd of the fused gate."""

    @staticmethod
    @input_guard
    @autocast_custom_fwd
    def forward(
        ctx: Any,
        g: torch.Tensor,
        A_log: torch.Tensor | None,
        dt_bias: torch.Tensor | None,
        lower_bound: float | None,
        output_dtype: torch.dtype,
    ) -> torch.Tensor:
        y = torch.empty_like(g, dtype=output_dtype)
        HV, K = g.shape[-2:]
        T, BT, BK = g.numel() // max(HV * K, 1), 32, max(16, triton.next_power_of_2(K))
        if g.numel():
            kda_fwd_gate_kernel[(triton.cdiv(T, BT) * HV,)](
                g, A_log, dt_bias, y, lower_bound or 0.0, T,
                HV=HV, K=K, BT=BT, BK=BK,
                GATE=gate_kind(lower_bound), HAS_A=A_log is not None, HAS_BIAS=dt_bias is not None,
                num_warps=4,
            )  # fmt: skip
        ctx.save_for_backward(g, A_log, dt_bias)
        ctx.lower_bound, ctx.sizes = lower_bound, (T, HV, K, BT, BK)
        return y

    @staticmethod
    @input_guard
    @autocast_custom_bwd
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        g, A_log, dt_bias = ctx.saved_tensors
        T, HV, K, BT, BK = ctx.sizes
        dg = torch.empty_like(g)
        blocks = triton.cdiv(T, BT) if g.numel() else 0
        dA = g.new_empty(blocks, HV, dtype=torch.float32) if A_log is not None else None
        db = g.new_empty(blocks, HV, K, dtype=torch.float32) if dt_bias is not None else None
        if blocks:
            kda_bwd_gate_kernel[(blocks * HV,)](
                g, A_log, dt_bias, dy, dg, dA, db, ctx.lower_bound or 0.0, T,
                HV=HV, K=K, BT=BT, BK=BK, GATE=gate_kind(ctx.lower_bound),
                HAS_A=A_log is not None, HAS_BIAS=dt_bias is not None, num_warps=4,
            )  # fmt: skip
        if A_log is not None:
            dA = dA.sum(0).reshape(A_log.shape).to(A_log.dtype)
        if dt_bias is not None:
            db = db.sum(0).reshape(dt_bias.shape).to(dt_bias.dtype)
        return dg, dA, db, None, None


def fused_kda_gate(
    g: torch.Tensor,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Log decay of KDA in one kernel: softplus gate, or bounded sigmoid if lower_bound is set.

    Without lower_bound `-exp(A_log) * softplus(g + dt_bias)`, else
    `lower_bound * sigmoid(exp(A_log) * (g + dt_bias))`, where A_log may be left out.

    Args:
        g (torch.Tensor): raw gate `[..., HV, K]`, fp32, bf16 or fp16.
        A_log (torch.Tensor): HV elements in any shape.
        dt_bias (torch.Tensor): HV * K elements, or None.
        lower_bound (float): least log decay (natural log), negative; None chooses softplus.
        output_dtype (torch.dtype): dtype of the result.

    Returns:
        Natural-log decay `[..., HV, K]`. Gradients flow to g, A_log and dt_bias in their own shape
        and dtype; all arithmetic is fp32, sums over tokens have a fixed order.

    Raises:
        ValueError: neither A_log nor lower_bound is given, or a size does not fit g.
    """
    HV, K = g.shape[-2:]
    if A_log is None and lower_bound is None:
        raise ValueError("A_log: expected a tensor where lower_bound is None, got None")
    if A_log is not None and A_log.numel() != HV:
        raise ValueError(f"A_log: expected {HV} elements, got {A_log.numel()}")
    if dt_bias is not None and dt_bias.numel() != HV * K:
        raise ValueError(f"dt_bias: expected {HV * K} elements, got {dt_bias.numel()}")
    return _FusedGate.apply(g, A_log, dt_bias, lower_bound, output_dtype)
