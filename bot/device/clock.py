"""The machine's own state and its ceilings, read by the trusted process."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Reading", "ceilings", "has_changed", "reader"]

Reading = dict[str, float]
# Power cap, hardware slowdown, software and hardware thermal slowdown, power brake.
THROTTLE = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
MAX_CLOCK_CHANGE = 0.03
_FIELDS = ("clocks.sm", "clocks.mem", "temperature.gpu", "clocks_throttle_reasons.active")
_NAMES = ("sm_mhz", "memory_mhz", "celsius", "throttle")


def has_changed(before: Reading, after: Reading) -> bool:
    """Whether times between two readings stand for nothing: slowed down, or at other clocks."""
    if int(before.get("throttle", 0)) & THROTTLE or int(after.get("throttle", 0)) & THROTTLE:
        return True
    first, last = before.get("sm_mhz", 0.0), after.get("sm_mhz", 0.0)
    return bool(first and abs(last / first - 1) > MAX_CLOCK_CHANGE)


def reader(device: str) -> Callable[[], Reading]:
    """What reads clocks, temperature and throttling; nothing where there is no way to."""
    if device != "cuda":
        return dict
    with contextlib.suppress(Exception):  # an optional library over an optional driver
        return _library()
    return _program


def _library() -> Callable[[], Reading]:
    import pynvml  # type: ignore[import-not-found]  # where the driver's python package is

    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())

    def read() -> Reading:
        clock = pynvml.nvmlDeviceGetClockInfo
        return {
            "sm_mhz": float(clock(handle, pynvml.NVML_CLOCK_SM)),
            "memory_mhz": float(clock(handle, pynvml.NVML_CLOCK_MEM)),
            "celsius": float(pynvml.nvmlDeviceGetTemperature(handle, 0)),
            "throttle": float(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        }

    read()
    return read


def _program() -> Reading:
    argv = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True)
        words = done.stdout.splitlines()[0].split(", ")
        return {name: float(int(w, 0)) for name, w in zip(_NAMES, words, strict=True)}
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return {}


def ceilings(device: str) -> Reading:
    """Bytes a second of a large copy (read plus written), FLOPs a second of a bf16 product."""
    if device != "cuda":
        return {}
    found = {"bytes_per_s": _copy_rate(device), "flops_per_s": _product_rate(device)}
    torch.cuda.empty_cache()
    return found


def _copy_rate(device: str) -> float:
    source = torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * int(source.numel()) / _seconds(lambda: target.copy_(source))


def _product_rate(device: str) -> float:
    left, right = (torch.randn(8192, 8192, device=device).bfloat16() for _ in range(2))
    return 2 * 8192**3 / _seconds(lambda: left @ right)


def _seconds(work: Callable[[], Any], count: int = 10) -> float:
    """The fastest of several, each by events."""
    best = float("inf")
    for _ in range(count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return best
