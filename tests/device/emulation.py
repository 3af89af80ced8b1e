"""Chunked KDA with the roundings of a half kernel, and with the faults that such kernels have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fla.ops.kda.naive import naive_recurrent_kda

Tensor = torch.Tensor
Round = Callable[[Tensor], Tensor]


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def fp8(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 240
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


@dataclass(frozen=True, slots=True)
class Inputs:
    """Of one call; q, k and v are bf16 values."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    h0: Tensor


def draw(seed: int, *, slow: bool, T: int = 320, H: int = 6, D: int = 48) -> Inputs:
    """FLA's own kind of inputs, or slow gates and signs that make states matter."""
    torch.manual_seed(seed)
    uniform = torch.randn if slow else torch.rand
    q, k, v = (uniform(1, T, H, D) for _ in range(3))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    g = torch.nn.functional.logsigmoid(torch.randn(1, T, H, D) + (3 if slow else 0))
    return Inputs(
        bf16(q), bf16(k), bf16(v), g, torch.rand(1, T, H).sigmoid(), torch.randn(1, H, D, D)
    )


def stagnant(seed: int) -> Inputs:
    """No decay and tiny writes: a state that is kept in bf16 no longer moves."""
    plain = draw(seed, slow=True, T=512, H=2)
    return replace(plain, g=torch.zeros_like(plain.g), beta=torch.full_like(plain.beta, 2.0**-9))


def truth(given: Inputs) -> tuple[Tensor, Tensor]:
    """The recurrence in fp64."""
    q, k, v, g, beta, h0 = (getattr(given, name).double() for name in Inputs.__slots__)
    o, state = naive_recurrent_kda(q, k, v, g, beta, None, h0, output_final_state=True)
    assert state is not None
    return o, state


def kernel(
    given: Inputs,
    chunk: int = 64,
    *,
    operand: Round = bf16,
    state: Round = lambda S: S,
    future: bool = False,
    drop_state: bool = False,
    undecayed: bool = False,
) -> tuple[Tensor, Tensor]:
    """What a kernel gives: operands of products rounded, sums in fp32, results in bf16 and fp32.

    Faults of one head: `future` (the mask of its last chunk lets the next token in), `drop_state`
    (its last chunk forgets what came before), `undecayed` (one channel is not decayed).
    """
    q, k, v, g, b = (x.transpose(1, 2) for x in (given.q, given.k, given.v, given.g, given.beta))
    q = q * q.shape[-1] ** -0.5
    g = g.clone()
    if undecayed:
        g[:, 3, :, 5] = 0
    S, o, T = given.h0.clone(), [], q.shape[2]
    for start in range(0, T, chunk):
        at = slice(start, start + chunk)
        G, n = g[:, :, at].cumsum(2), min(chunk, T - start)
        last = start + chunk >= T
        lower = torch.ones(n, n).tril()
        D = (G[:, :, :, None] - G[:, :, None]).masked_fill(lower[..., None] == 0, -torch.inf).exp()
        if future and last:
            D[:, 3] = (G[:, 3, :, None] - G[:, 3, None]).clamp_max(0).exp()
        qc, kc, vc, bc = (x[:, :, at] for x in (q, k, v, b))
        A = torch.einsum("bhtk,bhtsk,bhsk->bhts", operand(kc), D, operand(kc)).tril(-1)
        B = torch.einsum("bhtk,bhtsk,bhsk->bhts", operand(qc), D, operand(kc))
        keep = torch.ones(n, n).tril()
        reach = torch.ones(n, n).tril(1)
        B = B * (torch.stack([reach if h == 3 else keep for h in range(B.shape[1])])
                 if future and last else keep)  # fmt: skip
        before = S.clone()
        if drop_state and last:
            before[:, 3] = 0
        M = torch.eye(n) + A * bc[:, :, None]
        right = vc - operand(G.exp() * kc) @ operand(before)
        U = bc[..., None] * torch.linalg.solve_triangular(M, right, upper=False, unitriangular=True)
        o.append(operand(G.exp() * qc) @ operand(before) + operand(B) @ operand(U))
        decay = G[:, :, -1:]
        write = operand((decay - G).exp() * kc).transpose(2, 3) @ operand(U)
        S = state(decay.exp().transpose(2, 3) * S + write)
    return bf16(torch.cat(o, dim=2).transpose(1, 2)), S
