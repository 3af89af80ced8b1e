# SPDX-License-Identifier: MIT
"""Kimi Delta Attention over whole sequences, chunk by chunk, forward and backward."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from fla.ops.backends import dispatch
from fla.ops.kda import checks
from fla.ops.kda.chunk_bwd import kda_bwd_keys, kda_bwd_values
from fla.ops.kda.chunk_intra import kda_fwd_factors, kda_fwd_intra
from fla.ops.kda.chunk_output import kda_fwd_output
from fla.ops.kda.chunk_state import kda_bwd_state, kda_fwd_state
from fla.ops.kda.plan import ChunkPlan, Factors, KdaOptions, Scores
from fla.ops.utils.index import chunk_table, device_chunk_table
from fla.utils import autocast_custom_bwd, autocast_custom_fwd, input_guard

__all__ = ["chunk_kda", "run_chunk_kda"]

_SCORES = ("G", "b", "rq", "rk", "P", "S")
_FACTORS = ("W", "KE", "QD", "E")


def _chunk_plan(
    q: torch.Tensor,
    v: torch.Tensor,
    chunk_size: int,
    cu_seqlens: torch.Tensor | None,
    cu_seqlens_cpu: torch.Tensor | None,
    use_graph: bool,
    max_num_seqs: int | None,
) -> ChunkPlan:
    B, T, H, K = q.shape
    sizes = {"T": T, "H": H, "HV": v.shape[2], "K": K, "V": v.shape[3], "BT": chunk_size}
    if cu_seqlens is None:
        NT = -(-T // chunk_size)
        return ChunkPlan(**sizes, NT=NT, chunks=B * NT, sequences=B, dtype=q.dtype)
    sequences = cu_seqlens.shape[0] - 1
    if use_graph:
        table = device_chunk_table(cu_seqlens, chunk_size, T, max_num_seqs or sequences)
    else:
        table = chunk_table(cu_seqlens, chunk_size, T, cu_seqlens_cpu)
    return ChunkPlan(
        **sizes, NT=0, chunks=table[0].shape[0], sequences=sequences, dtype=q.dtype,
        cu_seqlens=cu_seqlens, chunk_indices=table[0], chunk_offsets=table[1], padded=use_graph,
    )  # fmt: skip


class _ChunkKda(torch.autograd.Function):
    """Autograd of chunked KDA: keeps inputs and score matrices, and states only on request."""

    @staticmethod
    @input_guard
    @autocast_custom_fwd
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        A_log: torch.Tensor | None,
        dt_bias: torch.Tensor | None,
        h0: torch.Tensor | None,
        plan: ChunkPlan,
        options: KdaOptions,
        output_final_state: bool,
        state_v_first: bool,
        keep_all: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        scores = kda_fwd_intra(plan, options, q, k, g, beta, A_log, dt_bias)
        factors, _ = kda_fwd_factors(plan, options, q, k, v, scores)
        h, ht = kda_fwd_state(
            plan, factors.KE, factors.W, scores.G, scores.b, factors.E, h0,
            output_final_state, state_v_first,
        )  # fmt: skip
        o = plan.output_like(v)
        kda_fwd_output(plan, factors.QD, scores.S, h, factors.E, scores.b, o)
        kept = [getattr(factors, x) for x in _FACTORS] + [h] if keep_all else []
        ctx.save_for_backward(
            q, k, v, g, beta, A_log, dt_bias, h0, o, *(getattr(scores, x) for x in _SCORES), *kept
        )
        ctx.plan, ctx.options, ctx.state_v_first = plan, options, state_v_first
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(h)
        return o, ht, h

    @staticmethod
    @input_guard
    @autocast_custom_bwd
    def backward(
        ctx: Any, do: torch.Tensor | None, dht: torch.Tensor | None, _dh: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        q, k, v, g, beta, A_log, dt_bias, h0, o, *rest = ctx.saved_tensors
        scores = Scores(*rest[: len(_SCORES)])
        kept = rest[len(_SCORES) :]
        plan, options = ctx.plan, ctx.options
        if do is None:
            do = torch.zeros_like(v)
        factors = Factors(*kept[:-1]) if kept else None
        factors, dU = kda_fwd_factors(plan, options, q, k, v, scores, factors, do)
        if kept:
            h = kept[-1]
        else:
            h, _ = kda_fwd_state(
                plan, factors.KE, factors.W, scores.G, scores.b, factors.E, h0,
                output_final_state=False, state_v_first=ctx.state_v_first,
            )  # fmt: skip
        dh, dh0 = kda_bwd_state(
            plan, factors.KE, factors.W, factors.QD, scores.G, scores.b, do, dU, dht,
            h0 is not None, ctx.state_v_first,
        )  # fmt: skip
        E = factors.E
        del factors, kept, rest
        values = kda_bwd_values(plan, options, v, o, do, beta, scores, E, dU)
        dq, dk, dg, dA, dbias = kda_bwd_keys(
            plan, options, q, k, g, do, A_log, dt_bias, scores, h, dh, E, values
        )
        return dq, dk, values.dv, dg, values.dbeta, dA, dbias, dh0, *[None] * 5


@dispatch("kda")
def run_chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    initial_state: torch.Tensor | None,
    options: KdaOptions,
    chunk_size: int,
    output_final_state: bool,
    state_v_first: bool,
    disable_recompute: bool,
    cu_seqlens: torch.Tensor | None,
    cu_seqlens_cpu: torch.Tensor | None,
    use_graph: bool,
    max_num_seqs: int | None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Chunked KDA on checked arguments: where backends take over from the Triton kernels.

    Args:
        q (torch.Tensor): `[B, T, H, K]`.
        k (torch.Tensor): `[B, T, H, K]`.
        v (torch.Tensor): `[B, T, HV, V]`.
        g (torch.Tensor): `[B, T, HV, K]`.
        beta (torch.Tensor): `[B, T, HV]`.
        A_log (torch.Tensor): HV elements or None.
        dt_bias (torch.Tensor): HV * K elements or None.
        initial_state (torch.Tensor): `[N, HV, K, V]` fp32 or None.
        options (KdaOptions): which parts run in the kernel.
        chunk_size (int): 32 or 64.
        output_final_state (bool): whether the last state is wanted.
        state_v_first (bool): states are `[N, HV, V, K]`.
        disable_recompute (bool): keep what the backward would compute again.
        cu_seqlens (torch.Tensor): `[N + 1]` or None.
        cu_seqlens_cpu (torch.Tensor): the same on the host or None.
        use_graph (bool): build tables on the device.
        max_num_seqs (int): bound on sequences under use_graph.

    Returns:
        o, the last state or None, and the states before each chunk `[chunks, HV, K, V]`.
    """
    plan = _chunk_plan(q, v, chunk_size, cu_seqlens, cu_seqlens_cpu, use_graph, max_num_seqs)
    return _ChunkKda.apply(
        q, k, v, g, beta, A_log, dt_bias, initial_state,
        plan, options, output_final_state, state_v_first, disable_recompute,
    )  # fmt: skip


def chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    cp_context: object | None = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    *,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    chunk_size: int = 64,
    transpose_state_layout: bool | None = None,
) -> tuple[torch.Tensor, ...]:
    """Kimi Delta Attention, a gated delta rule whose decay differs from channel to channel.

    Per value head `S_t = diag(exp(g_t)) S_{t-1}`, `S_t += beta_t k_t (v_t - S_t^T k_t)^T`,
    `o_t = scale * S_t^T q_t`, with S in `R^{K x V}`.

    Args:
        q (torch.Tensor): queries `[B, T, H, K]`, fp32, bf16 or fp16; K at most 256.
        k (torch.Tensor): keys `[B, T, H, K]` in q's dtype.
        v (torch.Tensor): values `[B, T, HV, V]` in q's dtype; HV is a multiple of H.
        g (torch.Tensor): natural-log decays `[B, T, HV, K]`, or raw gates under
            use_gate_in_kernel; fp32, bf16 or fp16.
        beta (torch.Tensor): write strengths `[B, T, HV]`, or their logits under
            use_beta_sigmoid_in_kernel; fp32, bf16 or fp16.
        scale (float): factor on the queries; `K ** -0.5` if None.
        initial_state (torch.Tensor): `[N, HV, K, V]` fp32, N = B or the number of sequences.
        output_final_state (bool): also return the last states.
        use_qk_l2norm_in_kernel (bool): divide rows of q and k by their norm (eps 1e-6).
        use_gate_in_kernel (bool): g is raw; lower_bound alone chooses the gate, see
            `fla.ops.kda.gate.fused_kda_gate`.
        use_beta_sigmoid_in_kernel (bool): beta is `sigmoid(beta)`, in fp32.
        allow_neg_eigval (bool): beta is `2 * sigmoid(beta)`.
        safe_gate (bool): promise that all decays lie in [-5, 0), for a faster path.
        lower_bound (float): chooses the bounded gate and bounds it.
        disable_recompute (bool): keep more in the forward, compute less in the backward.
        return_intermediate_states (bool): also return the states before each chunk.
        state_v_first (bool): all states are `[..., V, K]`.
        cu_seqlens (torch.Tensor): `[N + 1]` int32 or int64, for B = 1: starts of packed sequences.
        cu_seqlens_cpu (torch.Tensor): the same on the host, which spares a wait for the device.
        cp_context (object): context parallelism, not available.
        use_graph (bool): build chunk tables on the device, without waiting for it.
        max_num_seqs (int): bound on N under use_graph.
        A_log (torch.Tensor): HV elements in any shape, used under use_gate_in_kernel.
        dt_bias (torch.Tensor): HV * K elements, used under use_gate_in_kernel.
        chunk_size (int): 32 or 64.
        transpose_state_layout (bool): deprecated name of state_v_first.

    Returns:
        `o` `[B, T, HV, V]` in v's dtype and the last states `[N, HV, K, V]` fp32 or None; under
        return_intermediate_states also `[B, NT, HV, K, V]` in k's dtype.

    Raises:
        ValueError: a shape, device, head count, number of states or combination does not fit.
        TypeError: a dtype does not fit.
        NotImplementedError: cp_context is given.

    Gradients: q, k, v, g, beta, A_log, dt_bias and initial_state, each in its own shape and dtype.
    Numerics: matrix products take operands in q's dtype (fp32: three tf32 products) and accumulate
        in fp32; states, decays, beta and the triangular solve are fp32. Repeated calls agree bit
        for bit.
    Source: Kimi Linear (arXiv 2510.26692); chunked WY form after DeltaNet (arXiv 2406.06484).
    """
    if transpose_state_layout is not None:
        warnings.warn(
            "transpose_state_layout is deprecated, use state_v_first",
            DeprecationWarning,
            stacklevel=2,
        )
        if state_v_first:
            raise ValueError(
                "transpose_state_layout: expected None with state_v_first, got a value"
            )
        state_v_first = transpose_state_layout
    if cp_context is not None:
        raise NotImplementedError(
            "cp_context: expected None, got a context; KDA has no exchange of states between ranks"
        )
    if chunk_size not in (32, 64):
        raise ValueError(
            f"chunk_size: expected 32 or 64, got {chunk_size}: `chunk_size` must be either 32 or 64"
        )
    if return_intermediate_states and (disable_recompute or not torch.is_inference_mode_enabled()):
        raise ValueError(
            "return_intermediate_states: expected inference mode and disable_recompute=False, got "
            f"inference mode {torch.is_inference_mode_enabled()}, {disable_recompute=}"
        )
    checks.check_inputs(q, k, v, g, beta)
    checks.check_beta(use_beta_sigmoid_in_kernel, allow_neg_eigval)
    A_log, dt_bias = checks.check_gate(
        g, A_log, dt_bias, lower_bound, use_gate_in_kernel, safe_gate
    )
    sequences = checks.check_sequences(q, cu_seqlens, cu_seqlens_cpu)
    if max_num_seqs is not None and max_num_seqs < sequences:
        raise ValueError(f"max_num_seqs: expected at least {sequences}, got {max_num_seqs}")
    K, HV, V = q.shape[3], *v.shape[2:]
    layout = (V, K) if state_v_first else (K, V)
    checks.check_state(
        "initial_state", initial_state, (sequences, HV, *layout), q.device, (torch.float32,)
    )
    options = KdaOptions.of(
        q, scale, use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel,
        allow_neg_eigval, lower_bound, safe_gate,
    )  # fmt: skip
    o, final_state, h = run_chunk_kda(
        q, k, v, g, beta, A_log, dt_bias, initial_state, options, chunk_size,
        output_final_state, state_v_first, disable_recompute, cu_seqlens, cu_seqlens_cpu,
        use_graph, max_num_seqs,
    )  # fmt: skip
    if not return_intermediate_states:
        return o, final_state
    h = h.view(q.shape[0], -1, *h.shape[1:]) if h.shape[0] else h.new_empty(q.shape[0], 0, HV, K, V)
    return o, final_state, h.transpose(-1, -2).contiguous() if state_v_first else h
