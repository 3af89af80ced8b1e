# SPDX-License-Identifier: MIT
"""Backward of KDA inside a chunk: gradients of values and beta, then of queries, keys and gates."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fla.ops.common.tile import chunk_program
from fla.ops.kda.chunk_intra import level_factors, level_mask
from fla.ops.kda.config import tile
from fla.ops.kda.gate import gate_bwd_tile
from fla.ops.kda.plan import ChunkPlan, KdaOptions, Scores, ValueGradients
from fla.ops.utils.cumsum import cumsum_tile

__all__ = ["kda_bwd_keys", "kda_bwd_values"]


@triton.jit(do_not_specialize=["T", "NT", "H", "HV"])
def kda_bwd_values_kernel(
    v, o, do, b, P, E, dU,
    dv, dbeta, dS, dA, diag, cq, ck,
    cu_seqlens, chunk_indices, T, NT,
    HV, V: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr,
    NORM: tl.constexpr, SIGMOID: tl.constexpr, BETA_SCALE: tl.constexpr,
    PRECISION: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    """One chunk of one value head: everything that contracts over value columns alone.

    Grid: (chunks * HV,). With dX = dU - P^T diag(b) dU, the adjoint of the writes, writes
    dv = diag(b) dX, dbeta = <E, dX>, the score gradients dS = stril(do U^T), its diagonal apart,
    and dA = -stril(dv U^T) chunk-major, and under NORM the projections cq = <q, dq>, ck = <k, dk>
    on the normalised rows, which are <do, o> and <U, dX> - <dv, v - E>: the backward of the norm
    then needs no pass over all of K.
    """
    i_h, i_ch, first, rows = chunk_program(
        tl.program_id(0), HV, cu_seqlens, chunk_indices, T, NT, BT, VARLEN
    )
    if rows <= 0:
        return
    o_t = tl.arange(0, BT)
    m_t = o_t < rows
    # From a chunk's first element on, 32 bits reach all its rows, and cost half the registers.
    o_first = (first * HV + i_h) * V
    o_v = o_t * (HV * V)
    o_tt = o_t[:, None] * BT + o_t[None, :]
    DT: tl.constexpr = E.dtype.element_ty

    b_b = tl.load(b + i_ch * BT + o_t)
    b_Pt = tl.trans(tl.load(P + i_ch * (BT * BT) + o_tt))
    b_dS = tl.zeros([BT, BT], dtype=tl.float32)
    b_dA = tl.zeros([BT, BT], dtype=tl.float32)
    b_db = tl.zeros([BT], dtype=tl.float32)
    b_cq = tl.zeros([BT], dtype=tl.float32)
    b_ck = tl.zeros([BT], dtype=tl.float32)
    for i_v in range(tl.cdiv(V, BV)):
        o_d = i_v * BV + tl.arange(0, BV)
        m_d = o_d < V
        m_td = m_t[:, None] & m_d[None, :]
        o_row = o_v[:, None] + o_d[None, :]
        o_td = o_t[:, None] * V + o_d[None, :]
        b_e = tl.load(E + i_ch * (BT * V) + o_td, mask=m_d[None, :], other=0.0).to(tl.float32)
        b_du = tl.load(dU + i_ch * (BT * V) + o_td, mask=m_d[None, :], other=0.0).to(tl.float32)
        b_do = tl.load(do + o_first + o_row, mask=m_td, other=0.0)
        b_dx = b_du - tl.dot(b_Pt, (b_b[:, None] * b_du).to(DT), input_precision=PRECISION)
        b_dv = b_b[:, None] * b_dx
        b_u = b_b[:, None] * b_e
        tl.store(dv + o_first + o_row, b_dv.to(dv.dtype.element_ty), mask=m_td)
        b_db += tl.sum(b_e * b_dx, 1)
        b_ut = tl.trans(b_u.to(DT))
        b_dS += tl.dot(b_do, b_ut, input_precision=PRECISION)
        b_dA -= tl.dot(b_dv.to(DT), b_ut, input_precision=PRECISION)
        if NORM:
            b_v = tl.load(v + o_first + o_row, mask=m_td, other=0.0).to(tl.float32)
            b_o = tl.load(o + o_first + o_row, mask=m_td, other=0.0).to(tl.float32)
            b_cq += tl.sum(b_do.to(tl.float32) * b_o, 1)
            b_ck += tl.sum(b_u * b_dx - b_dv * (b_v - b_e), 1)
    if NORM:
        tl.store(cq + i_ch * BT + o_t, b_cq)
        tl.store(ck + i_ch * BT + o_t, b_ck)
    if SIGMOID:
        b_db *= b_b * (1.0 - b_b / BETA_SCALE)
    tl.store(dbeta + first * HV + i_h + o_t * HV, b_db.to(dbeta.dtype.element_ty), mask=m_t)
    m_lower = o_t[:, None] > o_t[None, :]
    b_diag = tl.sum(tl.where(o_t[:, None] == o_t[None, :], b_dS, 0.0), 1)
    tl.store(diag + i_ch * BT + o_t, b_diag)
    b_dS = tl.where(m_lower, b_dS, 0.0)
    b_dA = tl.where(m_lower, b_dA, 0.0)
    tl.store(dS + i_ch * (BT * BT) + o_tt, b_dS.to(DT))
    tl.store(dA + i_ch * (BT * BT) + o_tt, b_dA.to(DT))


@triton.jit
def key_rows(p_x, o_x, m_x, b_norm, NORM: tl.constexpr):
    """Query or key tile [BT, BK] fp32, normalised under NORM."""
    b_x = tl.load(p_x + o_x, mask=m_x, other=0.0).to(tl.float32)
    if NORM:
        b_x *= b_norm[:, None]
    return b_x


@triton.jit(do_not_specialize=["T", "NT", "H", "HV"])
def kda_bwd_keys_kernel(
    q, k, g, G, b, rq, rk, h, dh, E, dv, do, dS, dA, diag, cq, ck, A_log, dt_bias,
    dq, dk, dg, dA_log, dbias,
    cu_seqlens, chunk_indices,
    scale, lower_bound, T, NT,
    H, HV, K: tl.constexpr, V: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATE: tl.constexpr, HAS_A: tl.constexpr, HAS_BIAS: tl.constexpr, NORM: tl.constexpr,
    LEVELS: tl.constexpr, MID_LEVEL: tl.constexpr, MATRIX_SUM: tl.constexpr,
    PRECISION: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    """One chunk of one value head and BK key columns: gradients of queries, keys and gates.

    Grid: (chunks * HV * cdiv(K, BK),). A key has two roles, reading the state (kr) and writing to
    it (kc): dk is the sum of both, but the decay's gradient dG is q dq + k kr - k kc, summed from a
    row to the chunk's end. dq, dk [B, T, HV, K] (per value head), dg [B, T, HV, K] of the
    raw gate; dA_log [chunks, HV, NK] and dbias [chunks, HV, K] are this chunk's sums.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    i_k = tl.program_id(0) % NK
    i_h, i_ch, first, rows = chunk_program(
        tl.program_id(0) // NK, HV, cu_seqlens, chunk_indices, T, NT, BT, VARLEN
    )
    if rows <= 0:
        return
    i_hk = i_h // (HV // H)
    o_t = tl.arange(0, BT)
    m_t = o_t < rows
    o_k = i_k * BK + tl.arange(0, BK)
    m_k = o_k < K
    m_tk = m_t[:, None] & m_k[None, :]
    o_first = (first * HV + i_h) * V
    o_v = o_t * (HV * V)
    p_q = q + (first * H + i_hk) * K
    p_k = k + (first * H + i_hk) * K
    o_q = o_t[:, None] * (H * K) + o_k[None, :]
    o_firstg = (first * HV + i_h) * K
    o_g = o_t[:, None] * (HV * K) + o_k[None, :]
    p_dS = dS + i_ch * (BT * BT)
    p_dA = dA + i_ch * (BT * BT)
    o_tt = o_t[:, None] * BT + o_t[None, :]
    p_G = G + i_ch * BT * K
    DT: tl.constexpr = k.dtype.element_ty

    b_b = tl.load(b + i_ch * BT + o_t)
    b_dq = tl.zeros([BT, BK], dtype=tl.float32)
    b_kr = tl.zeros([BT, BK], dtype=tl.float32)
    b_kc = tl.zeros([BT, BK], dtype=tl.float32)
    b_hh = tl.zeros([BK], dtype=tl.float32)
    for i_v in range(tl.cdiv(V, BV)):
        o_d = i_v * BV + tl.arange(0, BV)
        m_d = o_d < V
        m_td = m_t[:, None] & m_d[None, :]
        o_row = o_v[:, None] + o_d[None, :]
        o_kd = o_k[:, None] * V + o_d[None, :]
        m_kd = m_k[:, None] & m_d[None, :]
        b_h = tl.load(h + i_ch * (K * V) + o_kd, mask=m_kd, other=0.0)
        b_dh = tl.load(dh + i_ch * (K * V) + o_kd, mask=m_kd, other=0.0)
        b_do = tl.load(do + o_first + o_row, mask=m_td, other=0.0)
        b_dv = tl.load(dv + o_first + o_row, mask=m_td, other=0.0)
        b_e = tl.load(
            E + i_ch * (BT * V) + o_t[:, None] * V + o_d[None, :], mask=m_d[None, :], other=0.0
        )
        b_hh += tl.sum(b_h.to(tl.float32) * b_dh.to(tl.float32), 1)
        b_ht = tl.trans(b_h)
        b_dq += tl.dot(b_do, b_ht, input_precision=PRECISION)
        b_kr -= tl.dot(b_dv, b_ht, input_precision=PRECISION)
        b_u = (b_b[:, None] * b_e).to(DT)
        b_kc += tl.dot(b_u, tl.trans(b_dh), input_precision=PRECISION)

    o_G = o_t[:, None] * K + o_k[None, :]
    b_rq = tl.load(rq + i_ch * BT + o_t) if NORM else b_b
    b_rk = tl.load(rk + i_ch * BT + o_t) if NORM else b_b
    b_G = tl.load(p_G + o_G, mask=m_k[None, :], other=0.0)
    b_last = tl.load(p_G + (BT - 1) * K + o_k, mask=m_k, other=0.0)
    b_decay = tl.exp2(b_G)
    b_dq *= b_decay * scale
    b_kr *= b_decay
    b_kc *= tl.exp2(b_last[None, :] - b_G)
    b_k = key_rows(p_k, o_q, m_tk, b_rk, NORM)
    b_tail = tl.exp2(b_last) * b_hh + tl.sum(b_k * b_kc, 0)
    b_dG = key_rows(p_q, o_q, m_tk, b_rq, NORM) * b_dq + b_k * (b_kr - b_kc)
    b_dk = b_kr + b_kc

    # Summed from a row to the end, a pair of later rows adds to dG at one and takes the same away
    # at the other. Both products therefore take the rounded factors that the matrix units see: then
    # what should cancel does. Two loops, though they share factors: together their tiles would not
    # fit into registers.
    for level in range(LEVELS):
        b_G = tl.load(p_G + o_G, mask=m_k[None, :], other=0.0)
        b_row, b_col = level_factors(b_G, p_G, o_t, o_k, m_k, K, level, BT, MID_LEVEL)
        b_k = key_rows(p_k, o_q, m_tk, b_rk, NORM)
        b_x = (b_k * b_col).to(DT)
        m_pair = level_mask(o_t, level, BT, MID_LEVEL)
        b_s = tl.where(m_pair, tl.load(p_dS + o_tt), 0.0)
        b_y = tl.dot(b_s, b_x, input_precision=PRECISION)
        b_dq += b_row * scale * b_y
        b_q = scale * key_rows(p_q, o_q, m_tk, b_rq, NORM)
        b_dG += (b_q * b_row).to(DT).to(tl.float32) * b_y
        b_a = tl.where(m_pair, tl.load(p_dA + o_tt), 0.0)
        b_y = tl.dot(b_a, b_x, input_precision=PRECISION)
        b_dk += b_row * b_y
        b_dG += (b_k * b_row).to(DT).to(tl.float32) * b_y
    # The diagonal score does not depend on decays, so it joins after them.
    b_diag = scale * tl.load(diag + i_ch * BT + o_t)
    b_q = key_rows(p_q, o_q, m_tk, b_rq, NORM)
    b_dq += b_diag[:, None] * key_rows(p_k, o_q, m_tk, b_rk, NORM)
    if NORM:
        b_dq = b_rq[:, None] * (b_dq - b_q * tl.load(cq + i_ch * BT + o_t)[:, None])
    tl.store(dq + o_firstg + o_g, b_dq.to(dq.dtype.element_ty), mask=m_tk)
    b_dk += b_diag[:, None] * b_q

    for level in range(LEVELS):
        b_G = tl.load(p_G + o_G, mask=m_k[None, :], other=0.0)
        b_row, b_col = level_factors(b_G, p_G, o_t, o_k, m_k, K, level, BT, MID_LEVEL)
        m_pair = level_mask(o_t, level, BT, MID_LEVEL)
        b_s = tl.where(m_pair, tl.load(p_dS + o_tt), 0.0)
        b_x = (scale * key_rows(p_q, o_q, m_tk, b_rq, NORM) * b_row).to(DT)
        b_y = tl.dot(tl.trans(b_s), b_x, input_precision=PRECISION)
        b_a = tl.where(m_pair, tl.load(p_dA + o_tt), 0.0)
        b_k = key_rows(p_k, o_q, m_tk, b_rk, NORM)
        b_x = (b_k * b_row).to(DT)
        b_y = tl.dot(tl.trans(b_a), b_x, b_y, input_precision=PRECISION)
        b_dk += b_col * b_y
        b_dG -= (b_k * b_col).to(DT).to(tl.float32) * b_y
    if NORM:
        b_k = key_rows(p_k, o_q, m_tk, b_rk, NORM)
        b_dk = b_rk[:, None] * (b_dk - b_k * tl.load(ck + i_ch * BT + o_t)[:, None])
    tl.store(dk + o_firstg + o_g, b_dk.to(dk.dtype.element_ty), mask=m_tk)

    b_dy = cumsum_tile(b_dG, BT, True, MATRIX_SUM) + b_tail[None, :]
    if GATE == 0:
        tl.store(dg + o_firstg + o_g, b_dy.to(dg.dtype.element_ty), mask=m_tk)
    else:
        b_g = tl.load(g + o_firstg + o_g, mask=m_tk, other=0.0).to(tl.float32)
        b_dg, b_dAe = gate_bwd_tile(
            b_g, b_dy, A_log, dt_bias, i_h, o_k, m_k, lower_bound, K, GATE, HAS_A, HAS_BIAS
        )
        tl.store(dg + o_firstg + o_g, b_dg.to(dg.dtype.element_ty), mask=m_tk)
        if HAS_A:
            tl.store(dA_log + i_ch * NK + i_k, tl.sum(tl.where(m_tk, b_dAe, 0.0)))
        if HAS_BIAS:
            b_sum = tl.sum(tl.where(m_tk, b_dg, 0.0), 0)
            tl.store(dbias + i_ch * K + o_k, b_sum, mask=m_k)


def kda_bwd_values(
    plan: ChunkPlan,
    options: KdaOptions,
    v: torch.Tensor,
    o: torch.Tensor,
    do: torch.Tensor,
    beta: torch.Tensor,
    scores: Scores,
    E: torch.Tensor,
    dU: torch.Tensor,
) -> ValueGradients:
    """Gradients that contract over value columns.

    Args:
        plan (ChunkPlan): sizes and chunk tables.
        options (KdaOptions): which parts run in the kernel.
        v (torch.Tensor): `[B, T, HV, V]`.
        o (torch.Tensor): `[B, T, HV, V]`, output of the forward.
        do (torch.Tensor): `[B, T, HV, V]`.
        beta (torch.Tensor): `[B, T, HV]` as given by the caller; its gradient has this dtype.
        scores (Scores): result of `kda_fwd_intra`.
        E (torch.Tensor): `[chunks, HV, BT, V]`, errors.
        dU (torch.Tensor): `[chunks, HV, BT, V]`, gradient of the writes.

    Returns:
        ValueGradients: see there.
    """
    tiles = (plan.chunks, plan.HV, plan.BT)
    rows = {"dtype": torch.float32, "device": v.device}
    out = ValueGradients(
        dv=plan.output_like(v),
        dbeta=plan.output_like(beta),
        dS=E.new_empty(*tiles, plan.BT),
        dA=E.new_empty(*tiles, plan.BT),
        diag=torch.empty(tiles, **rows),
        cq=torch.empty(tiles, **rows) if options.norm else None,
        ck=torch.empty(tiles, **rows) if options.norm else None,
    )
    t = tile("values", plan)
    if plan.chunks * plan.HV:
        kda_bwd_values_kernel[(plan.chunks * plan.HV,)](
            v, o, do, scores.b, scores.P, E, dU,
            out.dv, out.dbeta, out.dS, out.dA, out.diag, out.cq, out.ck,
            plan.cu_seqlens, plan.chunk_indices, plan.T, plan.NT,
            HV=plan.HV, V=plan.V, BT=plan.BT, BV=t.BV,
            NORM=options.norm, SIGMOID=options.sigmoid, BETA_SCALE=options.beta_scale,
            PRECISION=plan.precision, VARLEN=plan.varlen, **t.schedule,
        )  # fmt: skip
    return out


def kda_bwd_keys(
    plan: ChunkPlan,
    options: KdaOptions,
    q: torch.Tensor,
    k: torch.Tensor,
    g: torch.Tensor,
    do: torch.Tensor,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    scores: Scores,
    h: torch.Tensor,
    dh: torch.Tensor,
    E: torch.Tensor,
    values: ValueGradients,
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of queries, keys, gates and the gate's parameters.

    Args:
        plan (ChunkPlan): sizes and chunk tables.
        options (KdaOptions): which parts run in the kernel.
        q (torch.Tensor): `[B, T, H, K]`.
        k (torch.Tensor): `[B, T, H, K]`.
        g (torch.Tensor): `[B, T, HV, K]` as given by the caller.
        do (torch.Tensor): `[B, T, HV, V]`.
        A_log (torch.Tensor): HV elements or None.
        dt_bias (torch.Tensor): HV * K elements or None.
        scores (Scores): result of `kda_fwd_intra`.
        h (torch.Tensor): `[chunks, HV, K, V]`, states before each chunk.
        dh (torch.Tensor): `[chunks, HV, K, V]`, gradients of the states after each chunk.
        E (torch.Tensor): `[chunks, HV, BT, V]`, errors.
        values (ValueGradients): result of `kda_bwd_values`.

    Returns:
        dq, dk, dg, dA_log, ddt_bias, in their inputs' shapes and dtypes.
    """
    grouped = plan.HV != plan.H
    B, T = g.shape[:2]
    rows = {"dtype": torch.float32, "device": q.device}
    new = torch.zeros if plan.padded else torch.empty
    dq, dk = (new(g.shape, **rows) if grouped else plan.output_like(x) for x in (q, k))
    dg = plan.output_like(g)
    t = tile("keys", plan)
    NK = triton.cdiv(plan.K, t.BK)
    # Padding chunks of use_graph write nothing, so their sums have to be there beforehand.
    dA = new(plan.chunks, plan.HV, NK, **rows) if A_log is not None else None
    db = new(plan.chunks, plan.HV, plan.K, **rows) if dt_bias is not None else None
    levels, mid = plan.levels(options.safe)
    if plan.chunks * plan.HV:
        kda_bwd_keys_kernel[(plan.chunks * plan.HV * NK,)](
            q, k, g, scores.G, scores.b, scores.rq, scores.rk, h, dh, E, values.dv, do,
            values.dS, values.dA, values.diag, values.cq, values.ck, A_log, dt_bias,
            dq, dk, dg, dA, db,
            plan.cu_seqlens, plan.chunk_indices,
            options.scale, options.lower_bound, plan.T, plan.NT,
            H=plan.H, HV=plan.HV, K=plan.K, V=plan.V, BT=plan.BT, BK=t.BK, BV=t.BV,
            GATE=options.gate, HAS_A=A_log is not None, HAS_BIAS=dt_bias is not None,
            NORM=options.norm, LEVELS=levels, MID_LEVEL=mid, MATRIX_SUM=plan.matrix_sum,
            PRECISION=plan.precision, VARLEN=plan.varlen, **t.schedule,
        )  # fmt: skip
    if grouped:
        dq, dk = (
            x.view(B, T, plan.H, plan.HV // plan.H, plan.K).sum(3).to(like.dtype)
            for x, like in ((dq, q), (dk, k))
        )
    if A_log is not None:
        dA = dA.sum((0, 2)).reshape(A_log.shape).to(A_log.dtype)
    if dt_bias is not None:
        db = db.sum(0).reshape(dt_bias.shape).to(dt_bias.dtype)
    return dq, dk, dg, dA, db
