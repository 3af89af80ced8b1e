"""Triton's interpreter without work that it repeats: same results, bit for bit, in less time.

Most of its time goes into types of values, which are made anew for each operation, and into the
language, which it patches anew for each call of a device function. Nothing here computes.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.language import core

__all__ = ["install"]


def install() -> None:
    """Change the interpreter of this process, once; what another version lacks stays as it is."""
    interpreter: Any = sys.modules["triton.runtime.interpreter"]
    if hasattr(interpreter, "is_lean"):
        return
    interpreter.is_lean = True
    for change in (_patches, _members, _overflow, _numpy_types, _equality, _shapes):
        try:
            change(interpreter)
        except AttributeError:
            continue


def _patches(interpreter: Any) -> None:
    """One launch patches each module of the language once, not for every call inside it."""
    call, patch, scope = (
        interpreter.GridExecutor.__call__,
        interpreter._patch_lang,
        interpreter._LangPatchScope,
    )
    launches: list[tuple[set[int], set[Any]]] = []  # modules and functions, innermost last

    @functools.wraps(call)
    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        launches.append((set(), set()))
        try:
            return call(self, *args, **kwargs)
        finally:
            launches.pop()

    @functools.wraps(patch)
    def patch_once(function: Any) -> Any:
        modules, functions = launches[-1] if launches else (set(), set())
        if function in functions:
            return scope()
        names = function.__globals__.values()
        needed = {id(value) for value in names if value is tl or value is core}
        found = scope() if needed and needed <= modules else patch(function)
        modules |= needed
        functions.add(function)
        return found

    interpreter.GridExecutor.__call__ = launch
    interpreter._patch_lang = patch_once


def _members(interpreter: Any) -> None:
    """Members of the language get the builder without a copy of all keyword arguments."""
    interpreter._patch_attr  # noqa: B018  # only where it is there to be replaced
    semantics: dict[int, Any] = {}

    def patch_attr(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        if id(builder) not in semantics:
            semantics[id(builder)] = interpreter.TritonSemantic(builder)
        semantic = semantics[id(builder)]

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return member(*args, **kwargs)

        scope.set_attr(obj, name, call)

    interpreter._patch_attr = patch_attr


def _overflow(interpreter: Any) -> None:
    """No test of integers whose assertion is left out anyway, as it is outside of debug mode."""
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _numpy_types(interpreter: Any) -> None:
    """The table from Triton's types to numpy's is made once."""
    original: Callable[[Any], Any] = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def get_np_dtype(kind: Any) -> Any:
        element = kind.element_ty if isinstance(kind, core.block_type) else kind
        found = known.get(element.name)
        if found is None:
            found = known[element.name] = original(element)
        return found

    interpreter._get_np_dtype = get_np_dtype


def _equality(_: Any) -> None:
    """Types are mostly compared with themselves."""
    for kind in (core.dtype, core.pointer_type):
        original = kind.__eq__

        def equal(self: Any, other: Any, original: Callable[..., Any] = original) -> Any:
            if type(self) is type(other) is core.dtype:
                return self is other or self.name == other.name
            return self is other or original(self, other)

        kind.__eq__ = equal


def _shapes(_: Any) -> None:
    """Types and tensors of one shape share the objects that describe it."""
    block, tensor, semantic = core.block_type, core.tensor, tl.semantic.TritonSemantic
    known = _Shapes(block.__init__, tensor.__init__)
    broadcast = semantic.broadcast_impl_value

    def broadcast_value(self: Any, lhs: Any, rhs: Any) -> Any:
        one, other = lhs.type, rhs.type
        if isinstance(one, block) and isinstance(other, block) and one.shape is other.shape:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    block.__init__ = lambda self, element_ty, shape: known.block(self, element_ty, shape)
    tensor.__init__ = lambda self, handle, type: known.tensor(self, handle, type)  # noqa: A006
    semantic.broadcast_impl_value = broadcast_value


class _Shapes:
    """What was made for a shape before, by its numbers or by the identity of its first object.

    `blocks`, `tensors`: `shape` and `numel` of types and of tensors. All are kept, so that an
    identity stands for one object.
    """

    def __init__(self, make_block: Callable[..., None], make_tensor: Callable[..., None]) -> None:
        self.make_block, self.make_tensor = make_block, make_tensor
        self.blocks: dict[tuple[int, ...], tuple[Any, int]] = {}
        self.numbers: dict[int, tuple[int, ...]] = {}
        self.names: dict[tuple[str, tuple[int, ...]], str] = {}
        self.tensors: dict[int, tuple[Any, Any]] = {}

    def block(self, kind: Any, element: Any, shape: Any) -> None:
        """Stands for the constructor of a type of blocks."""
        sizes = self.numbers.get(id(shape)) or _sizes(shape)
        name = self.names.get((element.name, sizes))
        if name is not None:
            kind.element_ty, kind.name = element, name
            kind.shape, kind.numel = self.blocks[sizes]
            return
        self.make_block(kind, element, shape)
        if sizes:
            kind.shape, kind.numel = self.blocks.setdefault(sizes, (kind.shape, kind.numel))
            self.numbers[id(kind.shape)] = sizes
            self.names[element.name, sizes] = kind.name

    def tensor(self, value: Any, handle: Any, kind: Any) -> None:
        """Stands for the constructor of a tensor."""
        place = id(kind.shape) if isinstance(kind, core.block_type) else 0
        found = self.tensors.get(place)
        if found is not None:
            value.handle, value.type, value.dtype = handle, kind, kind.scalar
            value.shape, value.numel = found
            return
        self.make_tensor(value, handle, kind)
        if not place or place in self.numbers:
            self.tensors[place] = value.shape, value.numel


def _sizes(shape: Any) -> tuple[int, ...]:
    """The numbers of a shape; none where one is no integer: it is for Triton to refuse that."""
    found = tuple(s.value if isinstance(s, core.constexpr) else s for s in shape)
    return found if all(type(size) is int for size in found) else ()
