"""bf16 in Triton's interpreter: fp32 arithmetic on its bits, rounded to nearest even.

The stock interpreter keeps bf16 as 16-bit integers and computes with those. Hardware widens to
fp32, computes, and rounds once; so does this. Loads, stores and shapes work on bits already.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

__all__ = ["install", "narrow", "widen"]

# Operations of the interpreter whose operands and result are numbers.
_ARITHMETIC = ("binary_op", "ternary_op", "unary_op", "create_fma", "create_rsqrt", "create_erf")


def widen(bits: Any) -> Any:
    """The fp32 values of bf16 bits."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def narrow(values: Any) -> Any:
    """The bf16 bits of numbers, rounded to nearest even; NaN stays NaN."""
    wide = np.asarray(values, dtype=np.float32)
    bits = wide.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(wide), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def install() -> None:
    """Mend the interpreter of this process, once."""
    interpreter = sys.modules["triton.runtime.interpreter"]
    builder = interpreter.InterpreterBuilder
    if hasattr(builder, "get_bf16"):
        return
    handle = interpreter.TensorHandle
    for name in _ARITHMETIC:
        setattr(builder, name, _widened(getattr(builder, name), handle))
    builder.create_dot = _dot(builder.create_dot, handle)
    builder.cast_impl = _cast(builder.cast_impl, handle)
    builder.create_fp_to_fp = _cast(builder.create_fp_to_fp, handle)
    builder.get_bf16 = lambda _, value: handle(narrow([value]), tl.bfloat16)
    for kind in (interpreter.ReduceOps, interpreter.ScanOps):
        kind.apply_impl = _reduced(kind.apply_impl, handle)


def _is_bf16(value: Any) -> bool:
    # By name: comparing types is slow, and this is asked for each operand of each operation.
    return getattr(getattr(getattr(value, "dtype", None), "scalar", None), "name", "") == "bf16"


def _wide(value: Any, handle: Any) -> Any:
    return handle(widen(value.data), tl.float32) if _is_bf16(value) else value


def _narrow(value: Any, handle: Any) -> Any:
    return handle(narrow(value.data), tl.bfloat16)


def _widened(original: Callable[..., Any], handle: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def operation(self: Any, *args: Any) -> Any:
        # A condition, or bits that are only moved (`select`), come in other types or need no sum.
        for arg in args:  # a loop, and no generator: this runs for each operation of a kernel
            if _is_bf16(arg):
                break
        else:
            return original(self, *args)
        found = original(self, *(_wide(arg, handle) for arg in args))
        if found.data.dtype == np.bool_:
            return handle(found.data, tl.int1)
        return _narrow(found, handle)

    return operation


def _dot(original: Callable[..., Any], handle: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        found = original(self, *(_wide(side, handle) for side in (a, b, d)), *rest)
        return _narrow(found, handle) if _is_bf16(d) else found

    return dot


def _cast(original: Callable[..., Any], handle: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def cast(self: Any, src: Any, dst_type: Any, *rest: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if target == tl.bfloat16 and source != tl.bfloat16:
            return handle(narrow(src.data), tl.bfloat16)
        if source == tl.bfloat16 and target != tl.bfloat16:
            src = handle(widen(src.data), tl.float32)
            return src if target == tl.float32 else self.cast_impl(src, dst_type)
        return original(self, src, dst_type, *rest)

    return cast


def _reduced(original: Callable[..., Any], handle: Any) -> Callable[..., Any]:
    """Sums are taken in fp32 and rounded once, as `tl.sum` of the compiler has it."""

    @functools.wraps(original)
    def apply(self: Any, given: Any) -> Any:
        if not any(_is_bf16(item.handle) for item in given):
            return original(self, given)
        wide = tuple(
            type(item)(_wide(item.handle, handle), _type(item.type, tl.float32))
            if _is_bf16(item.handle)
            else item
            for item in given
        )
        found = original(self, wide)
        several = isinstance(found, list | tuple)
        items = [
            type(item)(_narrow(item.handle, handle), _type(item.type, tl.bfloat16))
            if item.dtype == tl.float32
            else item
            for item in (found if several else [found])
        ]
        return items if several else items[0]

    return apply


def _type(kind: Any, scalar: Any) -> Any:
    return tl.block_type(scalar, kind.shape) if kind.is_block() else scalar
