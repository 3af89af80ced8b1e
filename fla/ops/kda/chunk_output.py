# SPDX-License-Identifier: MIT
"""KDA's output from the states before each chunk and the chunk's own writes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fla.ops.common.tile import chunk_program
from fla.ops.kda.config import tile
from fla.ops.kda.plan import ChunkPlan

__all__ = ["kda_fwd_output"]


@triton.jit(do_not_specialize=["T", "NT", "H", "HV"])
def kda_fwd_output_kernel(
    QD, S, h, E, b, o,
    cu_seqlens, chunk_indices, T, NT,
    HV, K: tl.constexpr, V: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    PRECISION: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    """O = QD h + S diag(b) E for one chunk of one value head and BV value columns.

    Grid: (chunks * HV * cdiv(V, BV),). Reads chunk-major QD [BT, K], S [BT, BT], h [K, V], E
    [BT, V] and b [BT]; writes o [B, T, HV, V].
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v = tl.program_id(0) % NV
    i_h, i_ch, first, rows = chunk_program(
        tl.program_id(0) // NV, HV, cu_seqlens, chunk_indices, T, NT, BT, VARLEN
    )
    if rows <= 0:
        return
    o_t = tl.arange(0, BT)
    o_d = i_v * BV + tl.arange(0, BV)
    m_d = o_d < V
    DT: tl.constexpr = h.dtype.element_ty

    b_o = tl.zeros([BT, BV], dtype=tl.float32)
    for i_k in range(tl.cdiv(K, BK)):
        o_k = i_k * BK + tl.arange(0, BK)
        m_k = o_k < K
        b_q = tl.load(
            QD + i_ch * (BT * K) + o_t[:, None] * K + o_k[None, :], mask=m_k[None, :], other=0.0
        )
        b_h = tl.load(
            h + i_ch * (K * V) + o_k[:, None] * V + o_d[None, :],
            mask=m_k[:, None] & m_d[None, :],
            other=0.0,
        )
        b_o += tl.dot(b_q, b_h, input_precision=PRECISION)
    b_S = tl.load(S + i_ch * (BT * BT) + o_t[:, None] * BT + o_t[None, :])
    b_e = tl.load(
        E + i_ch * (BT * V) + o_t[:, None] * V + o_d[None, :], mask=m_d[None, :], other=0.0
    )
    b_u = tl.load(b + i_ch * BT + o_t)[:, None] * b_e
    b_o += tl.dot(b_S, b_u.to(DT), input_precision=PRECISION)
    o_o = ((first + o_t) * HV + i_h)[:, None] * V + o_d[None, :]
    tl.store(o + o_o, b_o.to(o.dtype.element_ty), mask=(o_t < rows)[:, None] & m_d[None, :])


def kda_fwd_output(
    plan: ChunkPlan,
    QD: torch.Tensor,
    S: torch.Tensor,
    h: torch.Tensor,
    E: torch.Tensor,
    b: torch.Tensor,
    o: torch.Tensor,
) -> torch.Tensor:
    """Write `o = QD h + S diag(b) E`.

    Args:
        plan (ChunkPlan): sizes and chunk tables.
        QD (torch.Tensor): `[chunks, HV, BT, K]`, scaled queries with the decay from the start.
        S (torch.Tensor): `[chunks, HV, BT, BT]`, scaled lower scores.
        h (torch.Tensor): `[chunks, HV, K, V]`, states before each chunk.
        E (torch.Tensor): `[chunks, HV, BT, V]`, errors.
        b (torch.Tensor): `[chunks, HV, BT]` fp32, beta.
        o (torch.Tensor): `[B, T, HV, V]`, written in full.

    Returns:
        o.
    """
    t = tile("output", plan)
    grid = (plan.chunks * plan.HV * triton.cdiv(plan.V, t.BV),)
    if grid[0]:
        kda_fwd_output_kernel[grid](
            QD, S, h, E, b, o,
            plan.cu_seqlens, plan.chunk_indices, plan.T, plan.NT,
            HV=plan.HV, K=plan.K, V=plan.V, BT=plan.BT, BK=t.BK, BV=t.BV,
            PRECISION=plan.precision, VARLEN=plan.varlen, **t.schedule,
        )  # fmt: skip
    return o
