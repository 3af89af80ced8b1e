# SPDX-License-Identifier: MIT
"""Kimi Delta Attention in plain PyTorch: the reference that every kernel is measured against."""

from __future__ import annotations

import torch

__all__ = ["naive_chunk_kda", "naive_recurrent_kda"]


def _prepare(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None,
    initial_state: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """Bring all operands to `[B, HV, T, ...]` in the compute dtype and make the first state."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    groups = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(groups, dim=2) for x in (q, k))
    q, k, v, g, beta = (x.to(dtype).transpose(1, 2) for x in (q, k, v, g, beta))
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    S = v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])
    return q, k, v, g, beta, S if initial_state is None else S + initial_state.to(dtype)


def naive_recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Step the recurrence token by token, differentiable by autograd.

    `S_t = diag(exp(g_t)) S_{t-1}`, then `S_t += beta_t k_t (v_t - S_t^T k_t)^T`, and
    `o_t = scale * S_t^T q_t`.

    Args:
        q (torch.Tensor): queries `[B, T, H, K]`.
        k (torch.Tensor): keys `[B, T, H, K]`.
        v (torch.Tensor): values `[B, T, HV, V]`, HV a multiple of H.
        g (torch.Tensor): natural-log decays `[B, T, HV, K]`.
        beta (torch.Tensor): write strengths `[B, T, HV]`.
        scale (float): factor on the queries; `K ** -0.5` if None.
        initial_state (torch.Tensor): `[B, HV, K, V]`, or `[HV, K, V]` for every sequence.
        output_final_state (bool): also return the last state.

    Returns:
        `o` of shape `[B, T, HV, V]` in v's dtype and the state `[B, HV, K, V]` or None. Half inputs
        are computed in fp32, fp64 inputs in fp64.

    Source: Kimi Linear (arXiv 2510.26692), the KDA recurrence.
    """
    dtype = v.dtype
    q, k, v, g, beta, S = _prepare(q, k, v, g, beta, scale, initial_state)
    o = []
    for t in range(q.shape[2]):
        S = S * g[:, :, t].exp()[..., None]
        error = v[:, :, t] - torch.einsum("bhkv,bhk->bhv", S, k[:, :, t])
        S = S + torch.einsum("bhk,bhv->bhkv", beta[:, :, t, None] * k[:, :, t], error)
        o.append(torch.einsum("bhkv,bhk->bhv", S, q[:, :, t]))
    o = torch.stack(o, dim=1) if o else v.transpose(1, 2)
    return o.to(dtype), S if output_final_state else None


def naive_chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute the same function chunk by chunk in WY form, as the kernels do.

    With G the running sum of g in a chunk, `A[t, s] = <k_t, exp(G_t - G_s) k_s>` below the
    diagonal, `B[t, s] = <q_t, exp(G_t - G_s) k_s>` up to it, and S the state before the chunk, the
    errors `E = (I + A diag(beta))^-1 (V - (exp(G) k) S)` are what the deltas write, so that
    `O = (exp(G) q) S + B diag(beta) E` and `S' = exp(G_C) S + (exp(G_C - G) k)^T diag(beta) E`.

    Args:
        q (torch.Tensor): queries `[B, T, H, K]`.
        k (torch.Tensor): keys `[B, T, H, K]`.
        v (torch.Tensor): values `[B, T, HV, V]`.
        g (torch.Tensor): natural-log decays `[B, T, HV, K]`.
        beta (torch.Tensor): write strengths `[B, T, HV]`.
        scale (float): factor on the queries; `K ** -0.5` if None.
        initial_state (torch.Tensor): `[B, HV, K, V]` or `[HV, K, V]`.
        output_final_state (bool): also return the last state.
        chunk_size (int): tokens a chunk.

    Returns:
        As `naive_recurrent_kda`.

    Source: Kimi Linear (arXiv 2510.26692); the WY form is DeltaNet's (arXiv 2406.06484).
    """
    dtype = v.dtype
    q, k, v, g, beta, S = _prepare(q, k, v, g, beta, scale, initial_state)
    o = []
    for start in range(0, q.shape[2], chunk_size):
        at = slice(start, start + chunk_size)
        qc, kc, vc, b, G = (
            q[:, :, at],
            k[:, :, at],
            v[:, :, at],
            beta[:, :, at],
            g[:, :, at].cumsum(2),
        )
        lower = torch.ones(G.shape[2], G.shape[2], dtype=torch.bool, device=G.device).tril()
        D = (G[:, :, :, None] - G[:, :, None]).masked_fill(~lower[..., None], -torch.inf).exp()
        A = torch.einsum("bhtk,bhtsk,bhsk->bhts", kc, D, kc).tril(-1)
        B = torch.einsum("bhtk,bhtsk,bhsk->bhts", qc, D, kc)
        M = torch.eye(G.shape[2], dtype=G.dtype, device=G.device) + A * b[:, :, None]
        E = torch.linalg.solve_triangular(
            M, vc - (G.exp() * kc) @ S, upper=False, unitriangular=True
        )
        U = b[..., None] * E
        o.append((G.exp() * qc) @ S + B @ U)
        last = G[:, :, -1:]
        S = last.exp().transpose(2, 3) * S + ((last - G).exp() * kc).transpose(2, 3) @ U
    o = torch.cat(o, dim=2) if o else v
    return o.transpose(1, 2).to(dtype), S if output_final_state else None
