# SPDX-License-Identifier: MIT
"""Inputs of KDA and what fp64 autograd of the recurrence makes of them, for the tests beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from fla.ops.kda import chunk_kda
from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate
from fla.ops.kda.naive import naive_recurrent_kda

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One call: sizes, layout, gate ("none", "softplus" or "bounded") and switches."""

    B: int = 1
    T: int = 70
    H: int = 1
    HV: int = 1
    K: int = 16
    V: int = 16
    gate: str = "none"
    gate_scale: float = 1.0
    norm: bool = False
    sigmoid: bool = False
    neg_eigval: bool = False
    state: bool = True
    chunk_size: int = 64
    cu_seqlens: tuple[int, ...] | None = None
    state_v_first: bool = False
    disable_recompute: bool = False
    use_graph: bool = False

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return self.B if self.cu_seqlens is None else len(self.cu_seqlens) - 1

    @property
    def name(self) -> str:
        """Id of the case: the fields that differ from the defaults."""
        base = Case()
        changed = {f: getattr(self, f) for f in self.__dataclass_fields__}
        parts = [f"{f}={v}" for f, v in changed.items() if v != getattr(base, f)]
        return ",".join(parts).replace(" ", "") or "default"


def inputs(case: Case, dtype: torch.dtype, seed: int = 0) -> Tensors:
    """Signed random operands; decays of a step or more where a gate scale is given."""
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=rng)

    B, T, H, HV, K, V = case.B, case.T, case.H, case.HV, case.K, case.V
    x = {"q": draw(B, T, H, K), "k": draw(B, T, H, K), "v": draw(B, T, HV, V)}
    if not case.norm:
        x["q"], x["k"] = F.normalize(x["q"], dim=-1), F.normalize(x["k"], dim=-1)
    x["g"], x["beta"] = draw(B, T, HV, K), draw(B, T, HV)
    if case.gate == "none":
        x["g"] = F.logsigmoid(x["g"]) * case.gate_scale
    else:
        x["A_log"], x["dt_bias"] = 0.5 * draw(1, 1, HV, 1), 0.5 * draw(HV * K)
    if not case.sigmoid:
        x["beta"] = x["beta"].sigmoid()
    if case.state:
        x["initial_state"] = draw(case.sequences, HV, K, V)
    half = ("q", "k", "v") if case.gate == "none" else ("q", "k", "v", "g")
    return {n: t.to(DEVICE, dtype if n in half else torch.float32) for n, t in x.items()}


def chunk_call(case: Case, x: Tensors, **extra: Any) -> tuple[torch.Tensor, ...]:
    """Call `chunk_kda`; states go in and come out as [K, V] whatever the layout."""
    x = dict(x)
    if case.state_v_first and "initial_state" in x:
        x["initial_state"] = x["initial_state"].transpose(-1, -2).contiguous()
    cu_seqlens = None
    if case.cu_seqlens is not None:
        cu_seqlens = torch.tensor(case.cu_seqlens, dtype=torch.int32, device=DEVICE)
    options = {
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": case.norm,
        "use_gate_in_kernel": case.gate != "none",
        "use_beta_sigmoid_in_kernel": case.sigmoid,
        "allow_neg_eigval": case.neg_eigval,
        "lower_bound": -5.0 if case.gate == "bounded" else None,
        "state_v_first": case.state_v_first,
        "disable_recompute": case.disable_recompute,
        "chunk_size": case.chunk_size,
        "cu_seqlens": cu_seqlens,
        "use_graph": case.use_graph,
    }
    o, state, *rest = chunk_kda(**x, **(options | extra))
    if case.state_v_first:
        state = state.transpose(-1, -2)
    return o, state, *rest


def reference_call(case: Case, x: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence in the dtype of x, sequence by sequence, with all in-kernel steps outside."""
    q, k, g, beta = x["q"], x["k"], x["g"], x["beta"]
    if case.norm:
        q, k = (t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    if case.gate == "softplus":
        g = naive_kda_gate(g, x["A_log"], x["dt_bias"], g.dtype)
    if case.gate == "bounded":
        g = naive_kda_lowerbound_gate(g, x["A_log"], x["dt_bias"], -5.0, g.dtype)
    if case.sigmoid:
        beta = beta.sigmoid() * (2 if case.neg_eigval else 1)
    state = x.get("initial_state")
    if case.cu_seqlens is None:
        return naive_recurrent_kda(q, k, x["v"], g, beta, None, state, True)
    outputs, states = [], []
    for i, (a, b) in enumerate(zip(case.cu_seqlens, case.cu_seqlens[1:], strict=False)):
        part = (t[:, a:b] for t in (q, k, x["v"], g, beta))
        one = None if state is None else state[i : i + 1]
        o, s = naive_recurrent_kda(*part, None, one, True)
        outputs.append(o)
        states.append(s)
    return torch.cat(outputs, 1), torch.cat(states, 0)


def errors(
    case: Case, dtype: torch.dtype, seed: int = 0, **changed: torch.Tensor
) -> dict[str, float]:
    """Relative RMS error of every output and gradient of `chunk_kda` against fp64."""
    x = inputs(case, dtype, seed) | changed
    x = {n: t.clone().requires_grad_() for n, t in x.items()}
    truth = {n: t.detach().double().requires_grad_() for n, t in x.items()}
    rng = torch.Generator().manual_seed(seed + 1)
    o, state = chunk_call(case, x)
    do = torch.randn(o.shape, generator=rng).to(o)
    ds = torch.randn(state.shape, generator=rng).to(state)
    got = torch.autograd.grad([o, state], list(x.values()), [do, ds])
    ro, rs = reference_call(case, truth)
    want = torch.autograd.grad([ro, rs], list(truth.values()), [do.double(), ds.double()])
    assert all(
        a.dtype == b.dtype and a.shape == b.shape for a, b in zip(got, x.values(), strict=True)
    )
    pairs = {"o": (o, ro), "state": (state, rs)}
    pairs |= {f"d{n}": (a, b) for n, a, b in zip(x, got, want, strict=True)}
    scale = {n: b.norm().item() for n, (_, b) in pairs.items()}
    if case.gate != "none":
        # A_log has one number a head, a sum whose terms may cancel: errors of terms add in squares.
        terms = log_terms(case, truth, dict(zip(x, want, strict=True))["g"])
        scale["dA_log"] = max(scale["dA_log"], terms.norm().item())
    return {n: (a.double() - b).norm().item() / max(scale[n], 1e-12) for n, (a, b) in pairs.items()}


def log_terms(case: Case, x: Tensors, dg: torch.Tensor) -> torch.Tensor:
    """Each element's part of the gradient of A_log, from that of the raw gate."""
    raw = x["g"] + x["dt_bias"].view(x["g"].shape[-2:])
    return dg * raw if case.gate == "bounded" else dg * F.softplus(raw) / raw.sigmoid()


def larger(case: Case) -> Case:
    """The same case at a size that fills matrix units, for a GPU."""
    if case.cu_seqlens is not None or max(case.K, case.V) >= 64:
        return case
    return replace(case, K=case.K * 4, V=case.V * 4, T=case.T * 3)
