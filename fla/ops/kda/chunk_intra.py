# SPDX-License-Identifier: MIT
"""Forward of KDA inside a chunk: gate, scores, triangular solve, and the factors of the WY form."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fla.ops.common.tile import chunk_program
from fla.ops.kda.config import tile
from fla.ops.kda.gate import gate_tile
from fla.ops.kda.plan import ChunkPlan, Factors, KdaOptions, Scores
from fla.ops.utils.cumsum import cumsum_tile
from fla.ops.utils.solve_tril import solve_delta

__all__ = ["kda_fwd_factors", "kda_fwd_intra", "level_factors", "level_mask"]

# log2(e): decays are kept in base 2, whose exponential is one instruction.
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def level_factors(b_G, p_G, o_t, o_k, m_k, K, level, BT: tl.constexpr, MID_LEVEL: tl.constexpr):
    """Decay factors [BT, BK] with which one product gives the scores of all pairs of a level.

    At a level, blocks of 2m rows split into a lower half (columns) and an upper half (rows), and
    the offset is the last row of the lower half: exp(G_t - G_s) = exp(G_t - G_ref) exp(G_ref - G_s)
    with both exponents <= 0 for decays. m runs over BT/2, BT/4, ..., 1, so every pair t > s is met
    exactly once, at any gate strength; a factor is 0 where a row has no such role. At MID_LEVEL
    (m = 8, decays known to lie in [-5, 0)) all pairs of a block of 16 are served at once:
    |G_t - G_ref| <= 40 cannot overflow.

    b_G is the tile in base 2, p_G points to the chunk's rows [BT, K] in memory. Returns the factors
    of rows and of columns.
    """
    m = (BT // 2) >> level
    # A mask of the block's high bits, not a division: m is a power of two known only at run time.
    o_ref = (o_t & (-2 * m)) + m - 1
    b_ref = tl.load(p_G + o_ref[:, None] * K + o_k[None, :], mask=m_k[None, :], other=0.0)
    b_d = b_G - b_ref
    upper = (o_t & m) != 0
    mid = level == MID_LEVEL
    b_row = tl.exp2(tl.where((upper | mid)[:, None], b_d, float("-inf")))
    b_col = tl.exp2(tl.where((upper & (level != MID_LEVEL))[:, None], float("-inf"), -b_d))
    return b_row, b_col


@triton.jit
def level_mask(o_t, level, BT: tl.constexpr, MID_LEVEL: tl.constexpr):
    """Pairs [BT, BT] that a level serves: rows of sibling blocks, at MID_LEVEL of one block.

    Pairs s >= t are among them. An exact level's factors vanish for these; at MID_LEVEL the caller
    leaves them out. The tile is compared from row and column numbers that change with the level,
    lest a tile of them be computed ahead of the loop and held in registers.
    """
    mid = level == MID_LEVEL
    shift = tl.where(mid, 4, tl.full([], BT.bit_length() - 2, dtype=tl.int32) - level)
    sibling = tl.where(mid, 0, 1)
    return (o_t >> shift)[:, None] == ((o_t >> shift) ^ sibling)[None, :]


@triton.jit(do_not_specialize=["T", "NT", "H", "HV"])
def kda_fwd_intra_kernel(
    q, k, g, beta, A_log, dt_bias,
    G, b, rq, rk, P, S,
    cu_seqlens, chunk_indices,
    scale, lower_bound, T, NT,
    H, HV, K: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr,
    GATE: tl.constexpr, HAS_A: tl.constexpr, HAS_BIAS: tl.constexpr,
    NORM: tl.constexpr, SIGMOID: tl.constexpr, BETA_SCALE: tl.constexpr,
    LEVELS: tl.constexpr, MID_LEVEL: tl.constexpr, MATRIX_SUM: tl.constexpr,
    PRECISION: tl.constexpr, SOLVE_PRECISION: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    """One chunk of one value head: decays, norms and the two score matrices.

    Grid: (chunks * HV,). Writes, chunk-major [chunks, HV, BT, ...]: G fp32 (cumulative log2 decay),
    P (see solve_delta) and S (scaled lower query-key scores, diagonal included); b, rq, rk fp32 are
    the beta in force and the inverse norms [chunks, HV, BT]. Rows past the end are zero, or for G
    constant.
    """
    i_h, i_ch, first, rows = chunk_program(
        tl.program_id(0), HV, cu_seqlens, chunk_indices, T, NT, BT, VARLEN
    )
    if rows <= 0:
        return
    i_hk = i_h // (HV // H)
    o_t = tl.arange(0, BT)
    m_t = o_t < rows
    p_G = G + i_ch * BT * K
    # From a chunk's first element on, 32 bits reach all its rows, and cost half the registers.
    p_q = q + (first * H + i_hk) * K
    p_k = k + (first * H + i_hk) * K
    p_g = g + (first * HV + i_h) * K
    o_q = o_t * (H * K)
    o_g = o_t * (HV * K)
    DT: tl.constexpr = k.dtype.element_ty

    b_b = tl.load(beta + first * HV + i_h + o_t * HV, mask=m_t, other=0.0).to(tl.float32)
    if SIGMOID:
        b_b = tl.where(m_t, BETA_SCALE * tl.sigmoid(b_b), 0.0)
    tl.store(b + i_ch * BT + o_t, b_b)

    b_qk = tl.zeros([BT], dtype=tl.float32)
    b_qq = tl.zeros([BT], dtype=tl.float32)
    b_kk = tl.zeros([BT], dtype=tl.float32)
    for i_k in range(tl.cdiv(K, BK)):
        o_k = i_k * BK + tl.arange(0, BK)
        m_k = o_k < K
        m_tk = m_t[:, None] & m_k[None, :]
        b_g = tl.load(p_g + o_g[:, None] + o_k[None, :], mask=m_tk, other=0.0).to(tl.float32)
        b_q = tl.load(p_q + o_q[:, None] + o_k[None, :], mask=m_tk, other=0.0).to(tl.float32)
        b_k = tl.load(p_k + o_q[:, None] + o_k[None, :], mask=m_tk, other=0.0).to(tl.float32)
        b_g = gate_tile(b_g, A_log, dt_bias, i_h, o_k, m_k, lower_bound, K, GATE, HAS_A, HAS_BIAS)
        b_G = cumsum_tile(tl.where(m_tk, b_g * LOG2E, 0.0), BT, False, MATRIX_SUM)
        tl.store(p_G + o_t[:, None] * K + o_k[None, :], b_G, mask=m_k[None, :])
        b_qk += tl.sum(b_q * b_k, 1)
        if NORM:
            b_qq += tl.sum(b_q * b_q, 1)
            b_kk += tl.sum(b_k * b_k, 1)
    # Offsets are rows that other threads of this program have just written.
    tl.debug_barrier()

    b_A = tl.zeros([BT, BT], dtype=tl.float32)
    b_S = tl.zeros([BT, BT], dtype=tl.float32)
    for level in range(LEVELS):
        b_al = tl.zeros([BT, BT], dtype=tl.float32)
        b_sl = tl.zeros([BT, BT], dtype=tl.float32)
        for i_k in range(tl.cdiv(K, BK)):
            o_k = i_k * BK + tl.arange(0, BK)
            m_k = o_k < K
            m_tk = m_t[:, None] & m_k[None, :]
            b_q = tl.load(p_q + o_q[:, None] + o_k[None, :], mask=m_tk, other=0.0).to(tl.float32)
            b_k = tl.load(p_k + o_q[:, None] + o_k[None, :], mask=m_tk, other=0.0).to(tl.float32)
            b_G = tl.load(p_G + o_t[:, None] * K + o_k[None, :], mask=m_k[None, :], other=0.0)
            b_row, b_col = level_factors(b_G, p_G, o_t, o_k, m_k, K, level, BT, MID_LEVEL)
            b_c = tl.trans((b_k * b_col).to(DT))
            b_al = tl.dot((b_k * b_row).to(DT), b_c, b_al, input_precision=PRECISION)
            b_sl = tl.dot((b_q * b_row).to(DT), b_c, b_sl, input_precision=PRECISION)
        m_pair = level_mask(o_t, level, BT, MID_LEVEL)
        b_A += tl.where(m_pair, b_al, 0.0)
        b_S += tl.where(m_pair, b_sl, 0.0)

    b_qs = tl.full([BT], 1.0, dtype=tl.float32)
    b_ks = tl.full([BT], 1.0, dtype=tl.float32)
    if NORM:
        b_qs = tl.rsqrt(b_qq + 1e-6)
        b_ks = tl.rsqrt(b_kk + 1e-6)
        tl.store(rq + i_ch * BT + o_t, b_qs)
        tl.store(rk + i_ch * BT + o_t, b_ks)
    m_lower = o_t[:, None] > o_t[None, :]
    b_A = tl.where(m_lower, b_A * (b_ks[:, None] * b_ks[None, :]), 0.0)
    m_diag = o_t[:, None] == o_t[None, :]
    b_S = tl.where(m_lower, b_S, tl.where(m_diag, b_qk[:, None], 0.0))
    b_S = b_S * ((scale * b_qs)[:, None] * b_ks[None, :])
    b_P = solve_delta(b_A, b_b, BT, SOLVE_PRECISION)

    o_tt = o_t[:, None] * BT + o_t[None, :]
    tl.store(P + i_ch * (BT * BT) + o_tt, b_P.to(P.dtype.element_ty))
    tl.store(S + i_ch * (BT * BT) + o_tt, b_S.to(S.dtype.element_ty))


@triton.jit(do_not_specialize=["T", "NT", "H", "HV"])
def kda_fwd_factors_kernel(
    q, k, v, G, b, rq, rk, P, S, do,
    W, KE, QD, E, dU,
    cu_seqlens, chunk_indices,
    scale, T, NT,
    H, HV, K: tl.constexpr, V: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    NORM: tl.constexpr, BACKWARD: tl.constexpr, RECOMPUTE: tl.constexpr,
    PRECISION: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    """One chunk of one value head: everything the pass over the states reads.

    Grid: (chunks * HV,). With N = I - P diag(b), writes chunk-major W = N (exp(G) k) [BT, K],
    KE = exp(G_last - G) k, QD = scale exp(G) q and E = N v [BT, V]; under BACKWARD also
    dU = S^T do, and the former only if RECOMPUTE. G is in base 2.
    """
    i_h, i_ch, first, rows = chunk_program(
        tl.program_id(0), HV, cu_seqlens, chunk_indices, T, NT, BT, VARLEN
    )
    if rows <= 0:
        return
    i_hk = i_h // (HV // H)
    o_t = tl.arange(0, BT)
    m_t = o_t < rows
    p_q = q + (first * H + i_hk) * K
    p_k = k + (first * H + i_hk) * K
    p_v = v + (first * HV + i_h) * V
    o_q = o_t * (H * K)
    o_v = o_t * (HV * V)
    p_P = P + i_ch * (BT * BT)
    p_G = G + i_ch * (BT * K)
    o_tt = o_t[:, None] * BT + o_t[None, :]
    b_b = tl.load(b + i_ch * BT + o_t)
    DT: tl.constexpr = k.dtype.element_ty

    if RECOMPUTE:
        b_P = tl.load(p_P + o_tt)
        for i_k in range(tl.cdiv(K, BK)):
            o_k = i_k * BK + tl.arange(0, BK)
            m_k = o_k < K
            m_tk = m_t[:, None] & m_k[None, :]
            o_tk = o_t[:, None] * K + o_k[None, :]
            b_G = tl.load(p_G + o_tk, mask=m_k[None, :], other=0.0)
            b_last = tl.load(p_G + (BT - 1) * K + o_k, mask=m_k, other=0.0)
            b_q = tl.load(p_q + o_q[:, None] + o_k[None, :], mask=m_tk, other=0.0).to(tl.float32)
            b_k = tl.load(p_k + o_q[:, None] + o_k[None, :], mask=m_tk, other=0.0).to(tl.float32)
            if NORM:
                b_q = b_q * tl.load(rq + i_ch * BT + o_t)[:, None]
                b_k = b_k * tl.load(rk + i_ch * BT + o_t)[:, None]
            b_decay = tl.exp2(b_G)
            b_kd = b_k * b_decay
            b_w = b_kd - tl.dot(b_P, (b_b[:, None] * b_kd).to(DT), input_precision=PRECISION)
            tl.store(W + i_ch * (BT * K) + o_tk, b_w.to(DT), mask=m_k[None, :])
            b_ke = b_k * tl.exp2(b_last[None, :] - b_G)
            tl.store(KE + i_ch * (BT * K) + o_tk, b_ke.to(DT), mask=m_k[None, :])
            b_qd = scale * b_q * b_decay
            tl.store(QD + i_ch * (BT * K) + o_tk, b_qd.to(DT), mask=m_k[None, :])
    for i_v in range(tl.cdiv(V, BV)):
        o_d = i_v * BV + tl.arange(0, BV)
        m_d = o_d < V
        m_td = m_t[:, None] & m_d[None, :]
        o_td = o_t[:, None] * V + o_d[None, :]
        if RECOMPUTE:
            b_P = tl.load(p_P + o_tt)
            b_v = tl.load(p_v + o_v[:, None] + o_d[None, :], mask=m_td, other=0.0).to(tl.float32)
            b_e = b_v - tl.dot(b_P, (b_b[:, None] * b_v).to(DT), input_precision=PRECISION)
            tl.store(E + i_ch * (BT * V) + o_td, b_e.to(DT), mask=m_d[None, :])
        if BACKWARD:
            b_S = tl.load(S + i_ch * (BT * BT) + o_tt)
            b_do = tl.load(
                do + (first * HV + i_h) * V + o_v[:, None] + o_d[None, :], mask=m_td, other=0.0
            )
            b_du = tl.dot(tl.trans(b_S), b_do, input_precision=PRECISION)
            tl.store(dU + i_ch * (BT * V) + o_td, b_du.to(DT), mask=m_d[None, :])


def kda_fwd_intra(
    plan: ChunkPlan,
    options: KdaOptions,
    q: torch.Tensor,
    k: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
) -> Scores:
    """Compute decays, norms and the two score matrices of every chunk.

    Args:
        plan (ChunkPlan): sizes and chunk tables.
        options (KdaOptions): which parts run in the kernel.
        q (torch.Tensor): `[B, T, H, K]`.
        k (torch.Tensor): `[B, T, H, K]`.
        g (torch.Tensor): `[B, T, HV, K]`, natural-log decay, or the raw gate.
        beta (torch.Tensor): `[B, T, HV]`.
        A_log (torch.Tensor): HV elements or None.
        dt_bias (torch.Tensor): HV * K elements or None.

    Returns:
        Scores: see there.
    """
    tiles = (plan.chunks, plan.HV, plan.BT)
    rows = {"dtype": torch.float32, "device": q.device}
    scores = Scores(
        G=torch.empty(*tiles, plan.K, **rows),
        b=torch.empty(tiles, **rows),
        rq=torch.empty(tiles, **rows) if options.norm else None,
        rk=torch.empty(tiles, **rows) if options.norm else None,
        P=k.new_empty(*tiles, plan.BT),
        S=k.new_empty(*tiles, plan.BT),
    )
    levels, mid = plan.levels(options.safe)
    t = tile("intra", plan)
    if plan.chunks * plan.HV:
        kda_fwd_intra_kernel[(plan.chunks * plan.HV,)](
            q, k, g, beta, A_log, dt_bias,
            scores.G, scores.b, scores.rq, scores.rk, scores.P, scores.S,
            plan.cu_seqlens, plan.chunk_indices,
            options.scale, options.lower_bound, plan.T, plan.NT,
            H=plan.H, HV=plan.HV, K=plan.K, BT=plan.BT, BK=t.BK,
            GATE=options.gate, HAS_A=A_log is not None, HAS_BIAS=dt_bias is not None,
            NORM=options.norm, SIGMOID=options.sigmoid, BETA_SCALE=options.beta_scale,
            LEVELS=levels, MID_LEVEL=mid, MATRIX_SUM=plan.matrix_sum,
            PRECISION=plan.precision, SOLVE_PRECISION=plan.solve_precision, VARLEN=plan.varlen,
            **t.schedule,
        )  # fmt: skip
    return scores


def kda_fwd_factors(
    plan: ChunkPlan,
    options: KdaOptions,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scores: Scores,
    factors: Factors | None = None,
    do: torch.Tensor | None = None,
) -> tuple[Factors, torch.Tensor | None]:
    """Compute what the passes over the states read.

    Args:
        plan (ChunkPlan): sizes and chunk tables.
        options (KdaOptions): which parts run in the kernel.
        q (torch.Tensor): `[B, T, H, K]`.
        k (torch.Tensor): `[B, T, H, K]`.
        v (torch.Tensor): `[B, T, HV, V]`.
        scores (Scores): result of `kda_fwd_intra`.
        factors (Factors): kept from the forward, so that only dU is computed.
        do (torch.Tensor): `[B, T, HV, V]`, gradient of the output, where dU is wanted.

    Returns:
        The factors, and `dU = S^T do` `[chunks, HV, BT, V]` or None.
    """
    tiles = (plan.chunks, plan.HV, plan.BT)
    recompute = factors is None
    if factors is None:
        W, KE, QD = (k.new_empty(*tiles, plan.K) for _ in range(3))
        factors = Factors(W=W, KE=KE, QD=QD, E=k.new_empty(*tiles, plan.V))
    dU = None if do is None else k.new_empty(*tiles, plan.V)
    t = tile("factors", plan)
    if plan.chunks * plan.HV:
        kda_fwd_factors_kernel[(plan.chunks * plan.HV,)](
            q, k, v, scores.G, scores.b, scores.rq, scores.rk, scores.P, scores.S, do,
            factors.W, factors.KE, factors.QD, factors.E, dU,
            plan.cu_seqlens, plan.chunk_indices, options.scale, plan.T, plan.NT,
            H=plan.H, HV=plan.HV, K=plan.K, V=plan.V, BT=plan.BT, BK=t.BK, BV=t.BV,
            NORM=options.norm, BACKWARD=do is not None, RECOMPUTE=recompute,
            PRECISION=plan.precision, VARLEN=plan.varlen, **t.schedule,
        )  # fmt: skip
    return factors, dU
