# SPDX-License-Identifier: MIT
"""What the parts of chunked KDA hand to one another: sizes, options and intermediate tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fla.ops.kda.gate import gate_kind

__all__ = ["ChunkPlan", "Factors", "KdaOptions", "Scores", "ValueGradients", "state_strides"]


def state_strides(K: int, V: int, state_v_first: bool) -> dict[str, int]:
    """Strides of a head's state along keys and values, as the kernels take them."""
    return {"STATE_K": 1 if state_v_first else V, "STATE_V": K if state_v_first else 1}


@dataclass(frozen=True, slots=True)
class KdaOptions:
    """Choices of one call that the kernels are compiled for.

    gate is 0 (none), 1 (softplus) or 2 (bounded sigmoid); safe promises decays in [-5, 0) a step.
    sigmoid: beta is given as logits, and beta_scale times their sigmoid is used: 2 lets eigenvalues
    of the transition be negative.
    """

    scale: float
    gate: int
    lower_bound: float
    norm: bool
    sigmoid: bool
    beta_scale: float
    safe: bool

    @classmethod
    def of(
        cls,
        q: torch.Tensor,
        scale: float | None,
        use_qk_l2norm_in_kernel: bool,
        use_gate_in_kernel: bool,
        use_beta_sigmoid_in_kernel: bool,
        allow_neg_eigval: bool,
        lower_bound: float | None,
        safe_gate: bool = False,
    ) -> KdaOptions:
        """Options from the public arguments: what they leave open gets its value here.

        A bounded gate keeps the promise of safe_gate by itself where its bound does.
        """
        bounded = use_gate_in_kernel and lower_bound is not None and -5 <= lower_bound < 0
        return cls(
            scale=float(q.shape[3] ** -0.5 if scale is None else scale),
            gate=gate_kind(lower_bound) if use_gate_in_kernel else 0,
            lower_bound=float(lower_bound or 0.0),
            norm=use_qk_l2norm_in_kernel,
            sigmoid=use_beta_sigmoid_in_kernel,
            beta_scale=2.0 if allow_neg_eigval else 1.0,
            safe=safe_gate or bounded,
        )


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Sizes of one call and the tables that place chunks on tokens.

    Dense: NT chunks a batch entry, no tables. Varlen: chunk_indices `[chunks, 2]` (sequence, chunk
    in it) and chunk_offsets `[sequences + 1]`; padded says that chunk_indices may hold rows without
    a sequence, and that tokens may belong to none.
    """

    T: int
    H: int
    HV: int
    K: int
    V: int
    BT: int
    NT: int
    chunks: int
    sequences: int
    dtype: torch.dtype
    cu_seqlens: torch.Tensor | None = None
    chunk_indices: torch.Tensor | None = None
    chunk_offsets: torch.Tensor | None = None
    padded: bool = False

    @property
    def varlen(self) -> bool:
        """Whether sequences are packed."""
        return self.cu_seqlens is not None

    @property
    def full_precision(self) -> bool:
        """Whether operands are fp32, which halves the tiles that fit."""
        return self.dtype == torch.float32

    @property
    def precision(self) -> str:
        """How matrix units treat fp32 operands; half operands ignore it."""
        return "tf32x3" if self.full_precision else "tf32"

    @property
    def solve_precision(self) -> str:
        """The same for the triangular solve: tf32 is finer than a result kept in bf16."""
        return "tf32" if self.dtype == torch.bfloat16 else "tf32x3"

    @property
    def matrix_sum(self) -> bool:
        """Whether running sums are products of bf16 parts, which Triton's interpreter has wrong."""
        return self.dtype == torch.bfloat16

    def levels(self, safe: bool) -> tuple[int, int]:
        """Number of score levels, and the one whose offset lies in mid-block (-1: none).

        fp16 cannot hold the factors of the mid-block level, so it always takes the exact levels.
        """
        depth = self.BT.bit_length() - 1
        if safe and self.dtype != torch.float16:
            return depth - 3, depth - 4
        return depth, -1

    def output_like(self, x: torch.Tensor) -> torch.Tensor:
        """Memory for a result in x's shape: zero where tokens may belong to no sequence."""
        return torch.zeros_like(x) if self.padded else torch.empty_like(x)

    def new_state(self, device: torch.device, state_v_first: bool) -> torch.Tensor:
        """Uninitialised fp32 states of all sequences."""
        shape = (self.V, self.K) if state_v_first else (self.K, self.V)
        return torch.empty(self.sequences, self.HV, *shape, dtype=torch.float32, device=device)


@dataclass(slots=True)
class Scores:
    """Decays, norms and score matrices of all chunks, chunk-major `[chunks, HV, BT, ...]`.

    G is the cumulative decay in base 2 (fp32), b the beta in force, rq and rk the inverse norms of
    query and key rows, P = (I + A diag(b))^-1 A for the key scores A, S the scaled query scores.
    """

    G: torch.Tensor
    b: torch.Tensor
    rq: torch.Tensor | None
    rk: torch.Tensor | None
    P: torch.Tensor
    S: torch.Tensor


@dataclass(slots=True)
class Factors:
    """What the state passes read: W, KE, QD `[chunks, HV, BT, K]` and E `[chunks, HV, BT, V]`."""

    W: torch.Tensor
    KE: torch.Tensor
    QD: torch.Tensor
    E: torch.Tensor


@dataclass(slots=True)
class ValueGradients:
    """Gradients of values and beta, of the score matrices, and the norms' projections.

    dS and dA are strictly lower, diag is the diagonal of the first.
    """

    dv: torch.Tensor
    dbeta: torch.Tensor
    dS: torch.Tensor
    dA: torch.Tensor
    diag: torch.Tensor
    cq: torch.Tensor | None
    ck: torch.Tensor | None
