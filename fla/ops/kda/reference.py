# SPDX-License-Identifier: MIT
"""References of KDA's entry points: their keyword arguments, and the recurrence token by token."""

from __future__ import annotations

from itertools import pairwise

import torch

from fla.modules.l2norm_naive import naive_l2norm
from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate
from fla.ops.kda.naive import naive_recurrent_kda

__all__ = [
    "reference_chunk_kda",
    "reference_fused_recurrent_kda",
    "reference_fused_recurrent_kda_fwd",
]

Tensor = torch.Tensor


def _operands(
    q: Tensor,
    k: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
    *,
    norm: bool,
    gate: bool,
    sigmoid: bool,
    negative: bool,
) -> tuple[Tensor, ...]:
    """What the recurrence reads: q, k, log decays and write strengths, in fp32 or fp64."""
    if negative and not sigmoid:
        raise ValueError("allow_neg_eigval: expected use_beta_sigmoid_in_kernel with it")
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, k, beta = (x.to(dtype) for x in (q, k, beta))
    if norm:
        q, k = naive_l2norm(q), naive_l2norm(k)
    if not gate:
        g = g.to(dtype)
    elif lower_bound is not None:
        g = naive_kda_lowerbound_gate(g, A_log, dt_bias, lower_bound, output_dtype=dtype)
    elif A_log is not None:
        g = naive_kda_gate(g, A_log, dt_bias, output_dtype=dtype)
    else:
        raise ValueError("A_log: expected a tensor where lower_bound is None, got None")
    if sigmoid:
        beta = torch.sigmoid(beta) * (2.0 if negative else 1.0)
    return q, k, g, beta


def _scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    chunk_size: int,
    *,
    v_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """One recurrence a sequence: outputs, last states, and states before each chunk."""
    (B, T, HV, V), K = v.shape, q.shape[-1]
    ends = [0, T] if cu_seqlens is None else cu_seqlens.tolist()
    sequences = B if cu_seqlens is None else len(ends) - 1
    if initial_state is None:
        states = q.new_zeros(sequences, HV, K, V)
    else:
        states = (initial_state.transpose(-1, -2) if v_first else initial_state).to(q.dtype)
    o, last, before = [v[:, :0]], [], [states[:B, None][:, :0]]
    # Dense sequences run side by side; packed ones have a batch of one, one after another.
    for (start, end), S in zip(pairwise(ends), states.split(B), strict=True):
        for at in range(start, end, chunk_size):
            part = slice(at, min(at + chunk_size, end))
            before.append(S[:, None])
            operands = (x[:, part] for x in (q, k, v, g, beta))
            y, S = naive_recurrent_kda(*operands, scale, S, output_final_state=True)
            o.append(y)
        last.append(S)
    final, h = torch.cat(last), torch.cat(before, dim=1)
    if v_first:
        final, h = final.transpose(-1, -2), h.transpose(-1, -2)
    return torch.cat(o, dim=1), final, h


def reference_chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,  # noqa: ARG001
    lower_bound: float | None = None,
    disable_recompute: bool = False,  # noqa: ARG001
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,  # noqa: ARG001
    cp_context: object | None = None,
    use_graph: bool = False,  # noqa: ARG001
    max_num_seqs: int | None = None,  # noqa: ARG001
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, ...]:
    """Arguments and results of `chunk_kda`; what only chooses an implementation is not read.

    fp64 inputs are computed in fp64, others in fp32; autograd differentiates it.
    """
    if cp_context is not None:
        raise NotImplementedError("cp_context: expected None")
    q, k, g, beta = _operands(
        q, k, g, beta, A_log, dt_bias, lower_bound, norm=use_qk_l2norm_in_kernel,
        gate=use_gate_in_kernel, sigmoid=use_beta_sigmoid_in_kernel, negative=allow_neg_eigval,
    )  # fmt: skip
    o, final, h = _scan(
        q, k, v, g, beta, scale, initial_state, cu_seqlens, chunk_size, v_first=state_v_first
    )
    result = (o, final if output_final_state else None)
    return (*result, h.to(k.dtype)) if return_intermediate_states else result


def reference_fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Arguments and results of `fused_recurrent_kda`, as in `reference_chunk_kda`."""
    q, k, g, beta = _operands(
        q, k, g, beta, A_log, dt_bias, lower_bound, norm=use_qk_l2norm_in_kernel,
        gate=use_gate_in_kernel, sigmoid=use_beta_sigmoid_in_kernel, negative=allow_neg_eigval,
    )  # fmt: skip
    length = max(1, q.shape[1])
    o, final, _ = _scan(
        q, k, v, g, beta, scale, initial_state, cu_seqlens, length, v_first=state_v_first
    )
    return o, final if output_final_state else None


def reference_fused_recurrent_kda_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    initial_state: Tensor | None,
    scale: float | None,
    output_final_state: bool = False,
    inplace_final_state: bool = True,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Arguments, results and writes of `fused_recurrent_kda_fwd`.

    Sequence n owns slot `ssm_state_indices[n]` of the pool `initial_state`, or slot n. In place,
    the last state goes into that slot and the pool itself is the second result.

    With num_accepted_tokens the slots of a sequence are a row `[tokens]`: it begins with the state
    of the last accepted token, and each token's state goes into the token's slot, in place.
    """
    slots = slice(None) if ssm_state_indices is None else ssm_state_indices.long()
    first = slots
    if num_accepted_tokens is not None:
        first = slots.gather(1, num_accepted_tokens.long()[:, None] - 1)[:, 0]
    states = None if initial_state is None else initial_state[first]
    q, k, g, beta = _operands(
        q, k, g, beta, A_log, dt_bias, lower_bound, norm=use_qk_l2norm_in_kernel,
        gate=use_gate_in_kernel, sigmoid=use_beta_sigmoid_in_kernel, negative=allow_neg_eigval,
    )  # fmt: skip
    every = num_accepted_tokens is not None and inplace_final_state
    length = 1 if every else max(1, q.shape[1])
    o, final, before = _scan(
        q, k, v, g, beta, scale, states, cu_seqlens, length, v_first=state_v_first
    )
    if out is not None:
        o = out.copy_(o)
    if not inplace_final_state:
        return o, final if output_final_state else None
    if initial_state is None:
        raise ValueError("initial_state: expected a pool under inplace_final_state, got None")
    if every:
        _write_every(initial_state, slots, before, final, cu_seqlens)
    else:
        initial_state[slots] = final.to(initial_state.dtype)
    return o, initial_state


def _write_every(
    pool: Tensor, slots: Tensor, before: Tensor, final: Tensor, cu_seqlens: Tensor | None
) -> None:
    """The state after each token into the token's slot; a slot below zero is nobody's."""
    tokens = before.shape[1]
    ends = [0, tokens] if cu_seqlens is None else cu_seqlens.tolist()
    for n, row in enumerate(slots):
        batch, (start, end) = (n, ends) if cu_seqlens is None else (0, ends[n : n + 2])
        after = [*before[batch, start + 1 : end], final[n]]
        for slot, state in zip(row[: end - start].tolist(), after, strict=False):
            if slot >= 0:
                pool[slot] = state.to(pool.dtype)
