# SPDX-License-Identifier: MIT
"""KDA's pass over chunk states, forwards and backwards in time: the only serial part."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fla.ops.common.tile import sequence_span, state_program
from fla.ops.kda.config import tile
from fla.ops.kda.plan import ChunkPlan, state_strides

__all__ = ["kda_bwd_state", "kda_fwd_state"]


@triton.jit(do_not_specialize=["T", "NT", "CHUNKS", "HV"])
def kda_fwd_state_kernel(
    KE, W, G, b, E, h, h0, ht,
    cu_seqlens, chunk_offsets, T, NT, CHUNKS,
    HV, K: tl.constexpr, V: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    STATE_K: tl.constexpr, STATE_V: tl.constexpr,
    HAS_INITIAL: tl.constexpr, HAS_FINAL: tl.constexpr,
    PRECISION: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    """One block of BV value columns of one head's state through one sequence.

    Grid: (sequences * HV * cdiv(V, BV),). Reads KE, W [chunks, HV, BT, K], G (last row), b; turns E
    [chunks, HV, BT, V] from N v into N v - W S in place; writes h [chunks, HV, K, V], the state
    before each chunk, and ht fp32. STATE_K, STATE_V are the strides of h0 and ht. BK covers K.
    """
    i_n, i_h, o_k, o_d, o_state = state_program(HV, K, V, BK, BV, STATE_K, STATE_V)
    _, _, chunk, count = sequence_span(i_n, cu_seqlens, chunk_offsets, T, NT, CHUNKS, BT, VARLEN)
    o_t = tl.arange(0, BT)
    m_k, m_d = o_k < K, o_d < V
    m_kd = m_k[:, None] & m_d[None, :]
    DT: tl.constexpr = h.dtype.element_ty
    o_state += i_n * HV * (K * V)

    b_h = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_INITIAL:
        b_h = tl.load(h0 + o_state, mask=m_kd, other=0.0)
    for i_t in range(count):
        i_ch = (chunk + i_t) * HV + i_h
        o_tk = i_ch * (BT * K) + o_t[:, None] * K + o_k[None, :]
        o_td = i_ch * (BT * V) + o_t[:, None] * V + o_d[None, :]
        b_w = tl.load(W + o_tk, mask=m_k[None, :], other=0.0)
        b_ke = tl.load(KE + o_tk, mask=m_k[None, :], other=0.0)
        b_e = tl.load(E + o_td, mask=m_d[None, :], other=0.0).to(tl.float32)
        b_last = tl.load(G + i_ch * (BT * K) + (BT - 1) * K + o_k, mask=m_k, other=0.0)
        b_b = tl.load(b + i_ch * BT + o_t)
        b_hd = b_h.to(DT)
        tl.store(h + i_ch * (K * V) + o_k[:, None] * V + o_d[None, :], b_hd, mask=m_kd)
        b_e -= tl.dot(b_w, b_hd, input_precision=PRECISION)
        tl.store(E + o_td, b_e.to(DT), mask=m_d[None, :])
        b_h *= tl.exp2(b_last)[:, None]
        b_h += tl.dot(tl.trans(b_ke), (b_b[:, None] * b_e).to(DT), input_precision=PRECISION)
    if HAS_FINAL:
        tl.store(ht + o_state, b_h, mask=m_kd)


@triton.jit(do_not_specialize=["T", "NT", "CHUNKS", "HV"])
def kda_bwd_state_kernel(
    KE, W, QD, G, b, do, dU, dh, dh0, dht,
    cu_seqlens, chunk_offsets, T, NT, CHUNKS,
    HV, K: tl.constexpr, V: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    STATE_K: tl.constexpr, STATE_V: tl.constexpr,
    HAS_INITIAL: tl.constexpr, HAS_FINAL: tl.constexpr,
    PRECISION: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    """One block of BV value columns of one head's state gradient, last chunk first.

    Grid: (sequences * HV * cdiv(V, BV),). Turns dU [chunks, HV, BT, V] from S^T do into
    S^T do + KE dh in place; writes dh [chunks, HV, K, V], the gradient of the state after each
    chunk, and dh0 fp32. STATE_K, STATE_V are the strides of dh0 and dht. BK covers K.
    """
    i_n, i_h, o_k, o_d, o_state = state_program(HV, K, V, BK, BV, STATE_K, STATE_V)
    bos, length, chunk, count = sequence_span(
        i_n, cu_seqlens, chunk_offsets, T, NT, CHUNKS, BT, VARLEN
    )
    o_t = tl.arange(0, BT)
    m_k, m_d = o_k < K, o_d < V
    m_kd = m_k[:, None] & m_d[None, :]
    DT: tl.constexpr = dh.dtype.element_ty
    o_state += i_n * HV * (K * V)

    b_dh = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_FINAL:
        b_dh = tl.load(dht + o_state, mask=m_kd, other=0.0)
    for i in range(count):
        i_t = count - 1 - i
        i_ch = (chunk + i_t) * HV + i_h
        o_tk = i_ch * (BT * K) + o_t[:, None] * K + o_k[None, :]
        o_td = i_ch * (BT * V) + o_t[:, None] * V + o_d[None, :]
        b_ke = tl.load(KE + o_tk, mask=m_k[None, :], other=0.0)
        b_w = tl.load(W + o_tk, mask=m_k[None, :], other=0.0)
        b_qd = tl.load(QD + o_tk, mask=m_k[None, :], other=0.0)
        b_du = tl.load(dU + o_td, mask=m_d[None, :], other=0.0).to(tl.float32)
        m_do = (i_t * BT + o_t < length)[:, None] & m_d[None, :]
        o_do = ((bos + i_t * BT + o_t) * HV + i_h)[:, None] * V + o_d[None, :]
        b_do = tl.load(do + o_do, mask=m_do, other=0.0)
        b_last = tl.load(G + i_ch * (BT * K) + (BT - 1) * K + o_k, mask=m_k, other=0.0)
        b_b = tl.load(b + i_ch * BT + o_t)
        b_dhd = b_dh.to(DT)
        tl.store(dh + i_ch * (K * V) + o_k[:, None] * V + o_d[None, :], b_dhd, mask=m_kd)
        b_du += tl.dot(b_ke, b_dhd, input_precision=PRECISION)
        tl.store(dU + o_td, b_du.to(DT), mask=m_d[None, :])
        b_dh *= tl.exp2(b_last)[:, None]
        b_dh += tl.dot(tl.trans(b_qd), b_do, input_precision=PRECISION)
        b_dh -= tl.dot(tl.trans(b_w), (b_b[:, None] * b_du).to(DT), input_precision=PRECISION)
    if HAS_INITIAL:
        tl.store(dh0 + o_state, b_dh, mask=m_kd)


def _launch_options(
    kernel: str, plan: ChunkPlan, state_v_first: bool
) -> tuple[tuple[int], dict[str, Any]]:
    """Grid and constants of a pass over the states."""
    t = tile(kernel, plan)
    options = {
        "HV": plan.HV, "K": plan.K, "V": plan.V, "BT": plan.BT, "BK": t.BK, "BV": t.BV,
        "PRECISION": plan.precision, "VARLEN": plan.varlen,
    }  # fmt: skip
    options |= state_strides(plan.K, plan.V, state_v_first) | t.schedule
    return (plan.sequences * plan.HV * triton.cdiv(plan.V, t.BV),), options


def kda_fwd_state(
    plan: ChunkPlan,
    KE: torch.Tensor,
    W: torch.Tensor,
    G: torch.Tensor,
    b: torch.Tensor,
    E: torch.Tensor,
    h0: torch.Tensor | None,
    output_final_state: bool,
    state_v_first: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run the states through all chunks; E is finished in place.

    Args:
        plan (ChunkPlan): sizes and chunk tables.
        KE (torch.Tensor): `[chunks, HV, BT, K]`, keys decayed to the chunk's end.
        W (torch.Tensor): `[chunks, HV, BT, K]`, what the state takes from the errors.
        G (torch.Tensor): `[chunks, HV, BT, K]` fp32, cumulative log2 decay.
        b (torch.Tensor): `[chunks, HV, BT]` fp32, beta.
        E (torch.Tensor): `[chunks, HV, BT, V]`, errors without the state's part.
        h0 (torch.Tensor): `[N, HV, K, V]` fp32 (V, K if state_v_first) or None.
        output_final_state (bool): whether to return the last state.
        state_v_first (bool): layout of h0 and the last state.

    Returns:
        States before each chunk `[chunks, HV, K, V]` and the last state fp32 or None.
    """
    # Rows of padded tables are no chunk's, but may be shown to the caller.
    new = E.new_zeros if plan.padded else E.new_empty
    h = new(plan.chunks, plan.HV, plan.K, plan.V)
    ht = plan.new_state(E.device, state_v_first) if output_final_state else None
    grid, options = _launch_options("state", plan, state_v_first)
    if grid[0]:
        kda_fwd_state_kernel[grid](
            KE, W, G, b, E, h, h0, ht,
            plan.cu_seqlens, plan.chunk_offsets, plan.T, plan.NT, plan.chunks,
            HAS_INITIAL=h0 is not None, HAS_FINAL=output_final_state, **options,
        )  # fmt: skip
    return h, ht


def kda_bwd_state(
    plan: ChunkPlan,
    KE: torch.Tensor,
    W: torch.Tensor,
    QD: torch.Tensor,
    G: torch.Tensor,
    b: torch.Tensor,
    do: torch.Tensor,
    dU: torch.Tensor,
    dht: torch.Tensor | None,
    has_initial: bool,
    state_v_first: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run the state gradients back through all chunks; dU is finished in place.

    Args:
        plan (ChunkPlan): sizes and chunk tables.
        KE (torch.Tensor): `[chunks, HV, BT, K]`, keys decayed to the chunk's end.
        W (torch.Tensor): `[chunks, HV, BT, K]`.
        QD (torch.Tensor): `[chunks, HV, BT, K]`, scaled queries with the decay from the start.
        G (torch.Tensor): `[chunks, HV, BT, K]` fp32, cumulative log2 decay.
        b (torch.Tensor): `[chunks, HV, BT]` fp32, beta.
        do (torch.Tensor): `[B, T, HV, V]`.
        dU (torch.Tensor): `[chunks, HV, BT, V]`, gradient of the writes without the state's part.
        dht (torch.Tensor): gradient of the last state, fp32, or None.
        has_initial (bool): whether to return the gradient of the initial state.
        state_v_first (bool): layout of dht and dh0.

    Returns:
        Gradients of the states after each chunk `[chunks, HV, K, V]`, and dh0 fp32 or None.
    """
    dh = dU.new_empty(plan.chunks, plan.HV, plan.K, plan.V)
    dh0 = plan.new_state(dU.device, state_v_first) if has_initial else None
    grid, options = _launch_options("bwd_state", plan, state_v_first)
    if grid[0]:
        kda_bwd_state_kernel[grid](
            KE, W, QD, G, b, do, dU, dh, dh0, dht,
            plan.cu_seqlens, plan.chunk_offsets, plan.T, plan.NT, plan.chunks,
            HAS_INITIAL=has_initial, HAS_FINAL=dht is not None, **options,
        )  # fmt: skip
    return dh, dh0
