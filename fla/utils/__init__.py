# SPDX-License-Identifier: MIT
"""Device helpers probed on first use, guards for op entry points, and a comparison for tests."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

__all__ = [
    "assert_close",
    "autocast_custom_bwd",
    "autocast_custom_fwd",
    "input_guard",
    "relative_rms",
]

Params = ParamSpec("Params")
Result = TypeVar("Result")


@functools.cache
def _platform() -> tuple[str, str]:
    """Device type as PyTorch names it, and vendor; the CPU stands for Triton's interpreter."""
    if torch.cuda.is_available():
        return "cuda", "amd" if torch.version.hip else "nvidia"
    for device, platform in (("xpu", "intel"), ("npu", "npu")):
        lib = getattr(torch, device, None)
        if lib is not None and lib.is_available():
            return device, platform
    return "cpu", "cpu"


@functools.cache
def _capability() -> tuple[int, int]:
    return torch.cuda.get_device_capability() if _platform()[1] == "nvidia" else (0, 0)


def _is_intel_alchemist() -> bool:
    return _platform()[1] == "intel" and "Arc(TM) A" in torch.xpu.get_device_name(0)


_PROBES: dict[str, Callable[[], Any]] = {
    "device": lambda: _platform()[0],
    "device_torch_lib": lambda: getattr(torch, _platform()[0]),
    "device_platform": lambda: _platform()[1],
    "IS_NVIDIA": lambda: _platform()[1] == "nvidia",
    "IS_NVIDIA_HOPPER": lambda: _capability()[0] == 9,
    "IS_NVIDIA_BLACKWELL": lambda: _capability()[0] in (10, 12),
    "IS_AMD": lambda: _platform()[1] == "amd",
    "IS_INTEL": lambda: _platform()[1] == "intel",
    "IS_INTEL_ALCHEMIST": _is_intel_alchemist,
    "IS_NPU": lambda: _platform()[1] == "npu",
}


def __getattr__(name: str) -> Any:
    """Probe the device when one of its facts is first asked for, not when `fla` is imported."""
    if name not in _PROBES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = _PROBES[name]()
    globals()[name] = value
    return value


def _device_of(values: list[Any]) -> torch.device | None:
    return next((x.device for x in values if isinstance(x, torch.Tensor)), None)


def input_guard(
    fn: Callable[Params, Result] | None = None, *, keep: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """Make tensor arguments contiguous and their device the current one during the call.

    Args:
        fn (Callable): the function to guard; left out, a decorator is returned.
        keep (tuple): names of parameters handed on as they are, because the function writes to
            them or takes their strides.
    """
    if fn is None:
        return functools.partial(input_guard, keep=keep)
    names = tuple(inspect.signature(fn).parameters)

    def prepared(name: str, x: Any) -> Any:
        return x.contiguous() if isinstance(x, torch.Tensor) and name not in keep else x

    @functools.wraps(fn)
    def guarded(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        device = _device_of([*args, *kwargs.values()])
        # A variadic last parameter lends its name to all that follow.
        padded = names + names[-1:] * (len(args) - len(names))
        args = tuple(prepared(name, x) for name, x in zip(padded, args, strict=False))
        kwargs = {name: prepared(name, x) for name, x in kwargs.items()}
        current = contextlib.nullcontext()
        if device is not None and device.type == "cuda":
            current = torch.cuda.device(device)
        elif device is not None and device.type == "xpu":
            current = torch.xpu.device(device)
        with current:
            return fn(*args, **kwargs)

    return guarded


def autocast_custom_fwd(fn: Callable[Params, Result]) -> Callable[Params, Result]:
    """`torch.amp.custom_fwd` for the device in use, chosen at the first call."""

    @functools.wraps(fn)
    def wrapped(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        return torch.amp.custom_fwd(fn, device_type=_platform()[0])(*args, **kwargs)

    return wrapped


def autocast_custom_bwd(fn: Callable[Params, Result]) -> Callable[Params, Result]:
    """`torch.amp.custom_bwd` for the device in use, chosen at the first call."""

    @functools.wraps(fn)
    def wrapped(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        return torch.amp.custom_bwd(fn, device_type=_platform()[0])(*args, **kwargs)

    return wrapped


def relative_rms(ref: torch.Tensor, tri: torch.Tensor) -> float:
    """Root mean square of the difference over that of ref, in fp64."""
    ref, tri = ref.detach().double(), tri.detach().double()
    error = (ref - tri).square().mean().sqrt()
    return (error / (ref.square().mean().sqrt() + 1e-8)).item()


def assert_close(
    prefix: str,
    ref: torch.Tensor,
    tri: torch.Tensor,
    ratio: float,
    warning: bool = False,
    err_atol: float = 1e-6,
) -> None:
    """Fail where two tensors differ by more than a relative RMS.

    Args:
        prefix (str): what is compared, for the message.
        ref (torch.Tensor): expected values.
        tri (torch.Tensor): values under test, of the same shape.
        ratio (float): limit of the RMS error over the RMS of ref.
        warning (bool): warn where the limit is passed, do not fail.
        err_atol (float): values whose greatest absolute error is at most this pass.

    Raises:
        AssertionError: shapes differ, a value is NaN, or the limit is passed.
    """
    if ref.shape != tri.shape:
        raise AssertionError(f"{prefix}: expected shape {tuple(ref.shape)}, got {tuple(tri.shape)}")
    for name, x in (("reference", ref), ("result", tri)):
        if torch.isnan(x).any():
            raise AssertionError(f"{prefix}: NaN in the {name}")
    if ref.numel() == 0:
        return
    error = (ref.detach().double() - tri.detach().double()).abs().max().item()
    if error <= err_atol:
        return
    rms = relative_rms(ref, tri)
    message = f"{prefix}: greatest error {error:.3e}, relative RMS {rms:.3e}, limit {ratio:.3e}"
    if rms < ratio:
        return
    if warning:
        warnings.warn(message, stacklevel=2)
        return
    raise AssertionError(message)
