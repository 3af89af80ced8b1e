# SPDX-License-Identifier: MIT
"""Checks of KDA's arguments, made before any launch and without waiting for the device."""

from __future__ import annotations

import os

import torch

__all__ = ["check_beta", "check_gate", "check_inputs", "check_sequences", "check_state"]

HALF_OR_SINGLE = (torch.float32, torch.bfloat16, torch.float16)


def _dtypes(allowed: tuple[torch.dtype, ...]) -> str:
    return " or ".join(str(x).removeprefix("torch.") for x in allowed)


def _check_tensor(
    name: str,
    x: object,
    shape: tuple[int, ...] | None,
    device: torch.device,
    dtypes: tuple[torch.dtype, ...] = HALF_OR_SINGLE,
) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
    if shape is not None and tuple(x.shape) != shape:
        raise ValueError(f"{name}: expected shape {list(shape)}, got {list(x.shape)}")
    if x.device != device:
        raise ValueError(f"{name}: expected device {device}, got {x.device}")
    if x.dtype not in dtypes:
        raise TypeError(f"{name}: expected dtype {_dtypes(dtypes)}, got {x.dtype}")


def _values_checked() -> bool:
    return os.environ.get("FLA_CHECK_VALUES", "0") == "1"


def check_inputs(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> None:
    """Shapes, devices, dtypes and head counts of the five operands.

    Raises:
        TypeError: an operand is no tensor or has a wrong dtype.
        ValueError: a shape, device, head count, or under FLA_CHECK_VALUES=1 a value is wrong.
    """
    for name, x in (("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
    if q.dim() != 4:
        raise ValueError(f"q: expected shape [B, T, H, K], got {list(q.shape)}")
    B, T, H, K = q.shape
    if not 1 <= K <= 256:
        raise ValueError(f"q: expected a head dimension of 1 to 256, got {K}")
    if v.dim() != 4 or v.shape[:2] != q.shape[:2] or v.shape[3] < 1:
        raise ValueError(f"v: expected shape [{B}, {T}, HV, V], got {list(v.shape)}")
    HV = v.shape[2]
    if H < 1 or HV < 1 or HV % H:
        raise ValueError(f"v: expected a number of heads that is a multiple of {H}, got {HV}")
    _check_tensor("q", q, None, q.device)
    _check_tensor("k", k, (B, T, H, K), q.device, (q.dtype,))
    _check_tensor("v", v, None, q.device, (q.dtype,))
    _check_tensor("g", g, (B, T, HV, K), q.device)
    _check_tensor("beta", beta, (B, T, HV), q.device)
    if _values_checked():
        for name, x in (("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta)):
            if torch.isnan(x).any():
                raise ValueError(f"{name}: expected numbers, got NaN")


def check_gate(
    g: torch.Tensor,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    lower_bound: float | None,
    use_gate_in_kernel: bool,
    safe_gate: bool = False,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Parameters of the in-kernel gate; returns those in force: A_log and dt_bias, or two None.

    Raises:
        TypeError: A_log or dt_bias has a wrong dtype.
        ValueError: neither A_log nor lower_bound is given, a size or device is wrong, or the bound
            breaks the promise of safe_gate.
    """
    if not use_gate_in_kernel:
        return None, None
    if safe_gate and not (lower_bound is not None and -5 <= lower_bound < 0):
        raise ValueError(f"lower_bound: expected -5 <= lower_bound < 0, got {lower_bound}")
    HV, K = g.shape[-2:]
    if A_log is None and lower_bound is None:
        raise ValueError("A_log: expected a tensor where lower_bound is None, got None")
    for name, x, size in (("A_log", A_log, HV), ("dt_bias", dt_bias, HV * K)):
        if x is None:
            continue
        _check_tensor(name, x, None, g.device)
        if x.numel() != size:
            raise ValueError(f"{name}: expected {size} elements, got {x.numel()}")
    return A_log, dt_bias


def check_beta(use_beta_sigmoid_in_kernel: bool, allow_neg_eigval: bool) -> None:
    """Negative eigenvalues come from a doubled sigmoid, so they need one.

    Raises:
        ValueError: allow_neg_eigval without use_beta_sigmoid_in_kernel.
    """
    if allow_neg_eigval and not use_beta_sigmoid_in_kernel:
        raise ValueError(
            "allow_neg_eigval: expected use_beta_sigmoid_in_kernel=True with it, got False"
        )


def check_sequences(
    q: torch.Tensor, cu_seqlens: torch.Tensor | None, cu_seqlens_cpu: torch.Tensor | None = None
) -> int:
    """Packing of sequences; returns their number.

    Raises:
        TypeError: a table has no integer dtype.
        ValueError: a shape or device is wrong, or values where the host has them.
    """
    if cu_seqlens is None:
        if cu_seqlens_cpu is not None:
            raise ValueError("cu_seqlens: expected a tensor with cu_seqlens_cpu, got None")
        return q.shape[0]
    integers = (torch.int32, torch.int64)
    _check_tensor("cu_seqlens", cu_seqlens, None, q.device, integers)
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise ValueError(f"cu_seqlens: expected shape [N + 1], got {list(cu_seqlens.shape)}")
    if q.shape[0] != 1:
        raise ValueError(f"q: expected a batch of 1 with cu_seqlens, got {q.shape[0]}")
    known = cu_seqlens_cpu
    if cu_seqlens_cpu is not None:
        shape = tuple(cu_seqlens.shape)
        _check_tensor("cu_seqlens_cpu", cu_seqlens_cpu, shape, torch.device("cpu"), integers)
    elif _values_checked():
        known = cu_seqlens.cpu()
    if known is not None:
        steps = known.diff()
        if known[0] != 0 or known[-1] != q.shape[1] or (steps < 0).any():
            raise ValueError(
                f"cu_seqlens: expected rising numbers from 0 to {q.shape[1]}, got {known.tolist()}"
            )
    return cu_seqlens.shape[0] - 1


def check_state(
    name: str,
    state: torch.Tensor | None,
    shape: tuple[int, ...],
    device: torch.device,
    dtypes: tuple[torch.dtype, ...],
) -> None:
    """Shape, device and dtype of states.

    Raises:
        TypeError: the dtype is not among dtypes.
        ValueError: the number of states, another size, or the device is wrong.
    """
    if state is not None:
        _check_tensor(name, state, shape, device, dtypes)
        if _values_checked() and torch.isnan(state).any():
            raise ValueError(f"{name}: expected numbers, got NaN")
