# SPDX-License-Identifier: MIT
"""Kimi Delta Attention token by token in one kernel: short sequences and paged decoding."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fla.ops.backends import dispatch
from fla.ops.common.tile import sequence_bounds, state_program
from fla.ops.kda import checks
from fla.ops.kda.gate import gate_tile
from fla.ops.kda.plan import KdaOptions, state_strides
from fla.utils import input_guard

__all__ = ["fused_recurrent_kda", "fused_recurrent_kda_fwd"]


@triton.jit(do_not_specialize=["T", "TOKENS", "H", "HV", "SLOTS", "PER_SEQUENCE"])
def kda_fwd_recurrent_kernel(
    q, k, v, g, beta, A_log, dt_bias, o, h0, ht, cu_seqlens, state_indices, accepted,
    scale, lower_bound, T, TOKENS, H, HV, SLOTS, PER_SEQUENCE, READ_STRIDE, WRITE_STRIDE,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    STATE_K: tl.constexpr, STATE_V: tl.constexpr,
    GATE: tl.constexpr, HAS_A: tl.constexpr, HAS_BIAS: tl.constexpr,
    NORM: tl.constexpr, SIGMOID: tl.constexpr, BETA_SCALE: tl.constexpr,
    HAS_INITIAL: tl.constexpr, HAS_FINAL: tl.constexpr, PAGED: tl.constexpr,
    TO_SLOT: tl.constexpr, EVERY_TOKEN: tl.constexpr,
    HAS_ACCEPTED: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    """BV value columns of one head's state [BK, BV] through one sequence, fp32.

    Grid: (N * HV * cdiv(V, BV),). States h0, ht [slots, HV, K, V] with strides STATE_K, STATE_V.
    Under PAGED state_indices [N, PER_SEQUENCE] names slots: the first, or under HAS_ACCEPTED that
    of the last accepted token, is read. The last state goes to that slot under TO_SLOT, else to row
    n; under EVERY_TOKEN the state after token t goes to the t-th slot instead. Slots outside
    [0, SLOTS) are neither read nor written.
    """
    i_n, i_h, o_k, o_d, o_state = state_program(HV, K, V, BK, BV, STATE_K, STATE_V)
    i_hk = i_h // (HV // H)
    if VARLEN:
        bos, eos = sequence_bounds(i_n, cu_seqlens, TOKENS)
        length = (eos - bos).to(tl.int32)
    else:
        bos = i_n * T
        length = T
    m_k, m_d = o_k < K, o_d < V
    m_kd = m_k[:, None] & m_d[None, :]

    slot = i_n
    if PAGED:
        at = tl.full([], 0, dtype=tl.int32)
        if HAS_ACCEPTED:
            at = tl.load(accepted + i_n).to(tl.int32) - 1
            at = tl.minimum(tl.maximum(at, 0), PER_SEQUENCE - 1)
        slot = tl.load(state_indices + i_n * PER_SEQUENCE + at).to(tl.int64)
    m_slot = (slot >= 0) & (slot < SLOTS)
    b_h = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_INITIAL:
        p_h = h0 + slot * READ_STRIDE + o_state
        b_h = tl.load(p_h, mask=m_kd & m_slot, other=0.0).to(tl.float32)

    for i_t in range(length):
        i_row = bos + i_t
        o_q = (i_row * H + i_hk) * K + o_k
        o_v = (i_row * HV + i_h) * V + o_d
        b_q = tl.load(q + o_q, mask=m_k, other=0.0).to(tl.float32)
        b_k = tl.load(k + o_q, mask=m_k, other=0.0).to(tl.float32)
        b_v = tl.load(v + o_v, mask=m_d, other=0.0).to(tl.float32)
        b_g = tl.load(g + (i_row * HV + i_h) * K + o_k, mask=m_k, other=0.0).to(tl.float32)
        b_b = tl.load(beta + i_row * HV + i_h).to(tl.float32)
        if NORM:
            b_q *= tl.rsqrt(tl.sum(b_q * b_q) + 1e-6)
            b_k *= tl.rsqrt(tl.sum(b_k * b_k) + 1e-6)
        if SIGMOID:
            b_b = BETA_SCALE * tl.sigmoid(b_b)
        b_g = tl.reshape(
            gate_tile(
                b_g[None, :], A_log, dt_bias, i_h, o_k, m_k, lower_bound, K,
                GATE, HAS_A, HAS_BIAS,
            ),
            [BK],
        )  # fmt: skip
        b_h *= tl.exp(b_g)[:, None]
        b_e = b_b * (b_v - tl.sum(b_h * b_k[:, None], 0))
        b_h += b_k[:, None] * b_e[None, :]
        b_o = scale * tl.sum(b_h * b_q[:, None], 0)
        tl.store(o + o_v, b_o.to(o.dtype.element_ty), mask=m_d)
        if EVERY_TOKEN:
            at = tl.minimum(i_t, PER_SEQUENCE - 1)
            to = tl.load(state_indices + i_n * PER_SEQUENCE + at).to(tl.int64)
            m_to = (to >= 0) & (to < SLOTS) & (i_t < PER_SEQUENCE)
            p_t = ht + to * WRITE_STRIDE + o_state
            tl.store(p_t, b_h.to(ht.dtype.element_ty), mask=m_kd & m_to)
    if HAS_FINAL:
        to = tl.where(TO_SLOT, slot, i_n)
        p_t = ht + to * WRITE_STRIDE + o_state
        tl.store(p_t, b_h.to(ht.dtype.element_ty), mask=m_kd & (m_slot | (not TO_SLOT)))


def _check_slots(
    q: torch.Tensor,
    state: torch.Tensor | None,
    sequences: int,
    heads: tuple[int, ...],
    indices: torch.Tensor | None,
    accepted: torch.Tensor | None,
    inplace: bool,
) -> None:
    if indices is None:
        if accepted is not None:
            raise ValueError("num_accepted_tokens: expected None without ssm_state_indices")
        checks.check_state(
            "initial_state", state, (sequences, *heads), q.device, checks.HALF_OR_SINGLE
        )
    else:
        if state is None:
            raise ValueError("initial_state: expected a pool with ssm_state_indices, got None")
        for name, x in (("ssm_state_indices", indices), ("num_accepted_tokens", accepted)):
            if x is not None and x.dtype != torch.int32:
                raise TypeError(f"{name}: expected dtype int32, got {x.dtype}")
            if x is not None and (x.device != q.device or x.shape[:1] != (sequences,)):
                raise ValueError(
                    f"{name}: expected {sequences} rows on {q.device}, got {list(x.shape)} on "
                    f"{x.device}"
                )
        if indices.dim() not in (1, 2) or (accepted is not None and indices.dim() != 2):
            raise ValueError(
                "ssm_state_indices: expected shape [N], or [N, tokens] with num_accepted_tokens, "
                f"got {list(indices.shape)}"
            )
        slots = state.shape[:1]
        checks.check_state(
            "initial_state", state, (*slots, *heads), q.device, checks.HALF_OR_SINGLE
        )
    if state is not None and inplace and state.numel() and not state[0].is_contiguous():
        raise ValueError(f"initial_state: expected contiguous slots, got strides {state.stride()}")


@dispatch("kda")
def fused_recurrent_kda_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    initial_state: torch.Tensor | None,
    scale: float | None,
    output_final_state: bool = False,
    inplace_final_state: bool = True,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One or more tokens of KDA for each sequence against a pool of states, for serving.

    The recurrence is that of `fla.ops.kda.chunk_kda`.

    Args:
        q (torch.Tensor): `[B, T, H, K]`, fp32, bf16 or fp16; K at most 256.
        k (torch.Tensor): `[B, T, H, K]` in q's dtype.
        v (torch.Tensor): `[B, T, HV, V]` in q's dtype.
        g (torch.Tensor): `[B, T, HV, K]`, natural-log decays or raw gates.
        beta (torch.Tensor): `[B, T, HV]`, write strengths or their logits.
        A_log (torch.Tensor): HV elements, used under use_gate_in_kernel.
        dt_bias (torch.Tensor): HV * K elements, used under use_gate_in_kernel.
        initial_state (torch.Tensor): states `[N, HV, K, V]`, or with ssm_state_indices a pool
            `[slots, HV, K, V]`; fp32, bf16 or fp16.
        scale (float): factor on the queries; `K ** -0.5` if None.
        output_final_state (bool): return last states also where there is no initial_state.
        inplace_final_state (bool): write last states over initial_state; else into a new fp32
            tensor `[N, HV, K, V]`.
        state_v_first (bool): states are `[..., V, K]`.
        cu_seqlens (torch.Tensor): `[N + 1]` int32 or int64 for B = 1.
        ssm_state_indices (torch.Tensor): int32 `[N]`, the slot of each sequence, read and written;
            or `[N, tokens]`, where the state after token t is written to the t-th slot. Slots out
            of range stand for padding: nothing is read (the state is zero) or written.
        num_accepted_tokens (torch.Tensor): int32 `[N]`: the state read is that of the n-th slot.
        use_qk_l2norm_in_kernel (bool): divide rows of q and k by their norm (eps 1e-6).
        use_gate_in_kernel (bool): g is raw; lower_bound alone chooses the gate.
        use_beta_sigmoid_in_kernel (bool): beta is `sigmoid(beta)`.
        allow_neg_eigval (bool): beta is `2 * sigmoid(beta)`.
        lower_bound (float): chooses the bounded gate and bounds it.
        out (torch.Tensor): `[B, T, HV, V]` contiguous, receives o.

    Returns:
        o `[B, T, HV, V]` in v's dtype, and initial_state itself, the new states, or None.

    Raises:
        ValueError: a shape, device, head count, number of states or combination does not fit.
        TypeError: a dtype does not fit.

    Gradients: none.
    Numerics: fp32 throughout; a pool in half precision is rounded once a call.
    """
    checks.check_inputs(q, k, v, g, beta)
    checks.check_beta(use_beta_sigmoid_in_kernel, allow_neg_eigval)
    A_log, dt_bias = checks.check_gate(g, A_log, dt_bias, lower_bound, use_gate_in_kernel)
    sequences = checks.check_sequences(q, cu_seqlens)
    B, T, H, K = q.shape
    HV, V = v.shape[2:]
    heads = (HV, V, K) if state_v_first else (HV, K, V)
    _check_slots(
        q, initial_state, sequences, heads, ssm_state_indices, num_accepted_tokens,
        inplace_final_state,
    )  # fmt: skip
    if initial_state is not None and not inplace_final_state:
        initial_state = initial_state.contiguous()
    if out is not None and (
        out.shape != v.shape or out.dtype != v.dtype or not out.is_contiguous()
    ):
        raise ValueError(
            f"out: expected contiguous {v.dtype} {list(v.shape)}, got {out.dtype} {list(out.shape)}"
        )
    o = torch.empty_like(v, memory_format=torch.contiguous_format) if out is None else out
    if cu_seqlens is not None and out is None:
        # Tokens that no sequence holds belong to nobody's loop.
        o.zero_()
    final = initial_state if inplace_final_state else None
    if final is None and output_final_state:
        final = torch.empty(sequences, *heads, dtype=torch.float32, device=q.device)
    paged = ssm_state_indices is not None
    every_token = paged and ssm_state_indices.dim() == 2 and inplace_final_state
    options = KdaOptions.of(
        q, scale, use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel,
        allow_neg_eigval, lower_bound,
    )  # fmt: skip
    _launch(
        q, k, v, g, beta, A_log, dt_bias, o, initial_state, final, cu_seqlens,
        ssm_state_indices, num_accepted_tokens, sequences, options,
        T=T, TOKENS=B * T, H=H, HV=HV,
        SLOTS=sequences if initial_state is None else initial_state.shape[0],
        PER_SEQUENCE=ssm_state_indices.shape[1] if paged and ssm_state_indices.dim() == 2 else 1,
        K=K, V=V, **state_strides(K, V, state_v_first),
        HAS_FINAL=final is not None and not every_token, PAGED=paged,
        TO_SLOT=paged and inplace_final_state, EVERY_TOKEN=every_token,
    )  # fmt: skip
    return o, final


@input_guard(keep=("o", "h0", "ht"))
def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    o: torch.Tensor,
    h0: torch.Tensor | None,
    ht: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    state_indices: torch.Tensor | None,
    accepted: torch.Tensor | None,
    sequences: int,
    options: KdaOptions,
    **sizes: Any,
) -> None:
    # All of K is in registers. One token a sequence is a matter of memory: one warp a program needs
    # no barrier. More tokens are serial: four warps shorten each step.
    BK = max(16, triton.next_power_of_2(sizes["K"]))
    BV, num_warps = (16, 1) if sizes["TOKENS"] <= sequences else (32, 4)
    grid = (sequences * sizes["HV"] * triton.cdiv(sizes["V"], BV),)
    if grid[0]:
        kda_fwd_recurrent_kernel[grid](
            q, k, v, g, beta, A_log, dt_bias, o, h0, ht, cu_seqlens, state_indices, accepted,
            scale=options.scale, lower_bound=options.lower_bound, **sizes,
            READ_STRIDE=0 if h0 is None else h0.stride(0),
            WRITE_STRIDE=0 if ht is None else ht.stride(0),
            BK=BK, BV=BV, HAS_A=A_log is not None, HAS_BIAS=dt_bias is not None,
            GATE=options.gate, NORM=options.norm, SIGMOID=options.sigmoid,
            BETA_SCALE=options.beta_scale, HAS_INITIAL=h0 is not None,
            HAS_ACCEPTED=accepted is not None, VARLEN=cu_seqlens is not None, num_warps=num_warps,
        )  # fmt: skip


class _FusedRecurrentKda(torch.autograd.Function):
    """Forward without a backward, so that inputs which require gradients are not refused."""

    @staticmethod
    def forward(
        _ctx: Any, options: dict[str, Any], *tensors: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        names = ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "initial_state", "cu_seqlens")
        return fused_recurrent_kda_fwd(**dict(zip(names, tensors, strict=True)), **options)

    @staticmethod
    def backward(_ctx: Any, *_grads: torch.Tensor) -> tuple[None, ...]:
        raise NotImplementedError(
            "fused_recurrent_kda: expected no backward, got one; chunk_kda has gradients"
        )


def fused_recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Kimi Delta Attention token by token, for short sequences; forward only.

    The recurrence is that of `fla.ops.kda.chunk_kda`.

    Args:
        q (torch.Tensor): queries `[B, T, H, K]`, fp32, bf16 or fp16; K at most 256.
        k (torch.Tensor): keys `[B, T, H, K]` in q's dtype.
        v (torch.Tensor): values `[B, T, HV, V]` in q's dtype; HV is a multiple of H.
        g (torch.Tensor): natural-log decays `[B, T, HV, K]`, or raw gates.
        beta (torch.Tensor): write strengths `[B, T, HV]`, or their logits.
        A_log (torch.Tensor): HV elements, used under use_gate_in_kernel.
        dt_bias (torch.Tensor): HV * K elements, used under use_gate_in_kernel.
        scale (float): factor on the queries; `K ** -0.5` if None.
        initial_state (torch.Tensor): `[N, HV, K, V]`, left as it is.
        output_final_state (bool): also return the last states.
        use_qk_l2norm_in_kernel (bool): divide rows of q and k by their norm (eps 1e-6).
        use_gate_in_kernel (bool): g is raw; lower_bound alone chooses the gate.
        use_beta_sigmoid_in_kernel (bool): beta is `sigmoid(beta)`.
        allow_neg_eigval (bool): beta is `2 * sigmoid(beta)`.
        lower_bound (float): chooses the bounded gate and bounds it.
        state_v_first (bool): states are `[N, HV, V, K]`.
        cu_seqlens (torch.Tensor): `[N + 1]` int32 or int64 for B = 1.

    Returns:
        o `[B, T, HV, V]` in v's dtype and the last states `[N, HV, K, V]` fp32 or None.

    Raises:
        ValueError: a shape, device, head count, number of states or combination does not fit.
        TypeError: a dtype does not fit.
        NotImplementedError: in a backward through the outputs.

    Gradients: none.
    Numerics: fp32 throughout.
    Source: Kimi Linear (arXiv 2510.26692), the recurrence.
    """
    options = {
        "scale": scale,
        "output_final_state": output_final_state,
        "inplace_final_state": False,
        "state_v_first": state_v_first,
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_gate_in_kernel": use_gate_in_kernel,
        "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
        "allow_neg_eigval": allow_neg_eigval,
        "lower_bound": lower_bound,
    }
    return _FusedRecurrentKda.apply(
        options, q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens
    )
