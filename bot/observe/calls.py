"""Watch calls of given functions: what they were called with, and whether gradients came back.

Only the standard library: this runs inside the process under test. Tensors are known by what they
have (`shape`, `stride()`, `dtype`, `requires_grad`), so nothing is imported for them.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import functools
import inspect
import json
import math
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["Watcher"]

MAX_CALLS = 200  # different calls of one test
MAX_TEXT = 150
_PLAIN = (bool, int, str, type(None))


class _Nested(threading.local):
    """Whether this thread is inside a watched call."""

    inside = False


class Watcher(MetaPathFinder):
    """Wraps each target as soon as its module is imported. `targets`: `module:function` texts."""

    def __init__(self, targets: Iterable[str]) -> None:
        self.waiting: dict[str, list[str]] = {}
        for target in targets:
            module, _, function = target.partition(":")
            self.waiting.setdefault(module, []).append(function)
        self.nested = _Nested()
        self.calls: dict[str, dict[str, Any]] = {}

    def install(self) -> None:
        """Begin; modules that are there already are wrapped at once."""
        sys.meta_path.insert(0, self)
        for name in list(self.waiting):
            if name in sys.modules:
                self._wrap(sys.modules[name])

    def remove(self) -> None:
        """Watch no further imports."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def take(self) -> list[dict[str, Any]]:
        """The calls since the last time."""
        found, self.calls = list(self.calls.values()), {}
        return found

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the others find, with our step after its execution."""
        if name not in self.waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None
            if find and finder is not self:
                spec = find(name, path, target)
            if spec is not None:
                self._hook(spec)
                return spec
        return None

    def _hook(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def execute_and_wrap(module: ModuleType) -> None:
            execute(module)
            self._wrap(module)

        # A loader that takes no attributes goes unwatched.
        try:
            loader.exec_module = execute_and_wrap
        except AttributeError:
            return

    def _wrap(self, module: ModuleType) -> None:
        """Put the wrapper wherever the function stands: other modules have imported it by name."""
        for name in self.waiting.pop(module.__name__, ()):
            function = getattr(module, name, None)
            if not callable(function) or inspect.isclass(function):
                continue
            wrapper = self._observed(f"{module.__name__}:{name}", function)
            for other in list(sys.modules.values()):
                names = getattr(other, "__dict__", None)
                if type(names) is dict:
                    for key in [key for key, value in names.items() if value is function]:
                        names[key] = wrapper

    def _observed(self, target: str, function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError):
            return function
        root, nested = target.partition(".")[0].partition(":")[0], self.nested
        compiler = getattr(sys.modules.get("torch"), "compiler", None)
        is_compiling = getattr(compiler, "is_compiling", bool)

        @functools.wraps(function)
        def observed(*args: Any, **kwargs: Any) -> Any:
            # A compiler traces the function itself; the package's own calls are not a user's.
            if is_compiling() or nested.inside or _package(sys._getframe(1)) == root:
                return function(*args, **kwargs)
            nested.inside = True
            try:
                # Before the call: it may change its arguments.
                arguments = _arguments(signature, args, kwargs)
                result = function(*args, **kwargs)
            finally:
                nested.inside = False
            if arguments is not None:
                self._record(target, arguments, result)
            return result

        return observed

    def _record(self, target: str, arguments: dict[str, Any], result: Any) -> None:
        key = json.dumps([target, arguments], sort_keys=True)
        call = self.calls.get(key)
        if call is None:
            if len(self.calls) >= MAX_CALLS:
                return
            call = {"target": target, "arguments": arguments, "backward": False}
            self.calls[key] = call
        if not call["backward"]:
            _note_backward(call, result)


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _arguments(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    """Name to plain data, defaults included; None for a call that does not bind."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    found = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            found.update(found.pop(name))
    return {name[:MAX_TEXT]: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value[:MAX_TEXT] if isinstance(value, str) else value
    if type(value) is float and math.isfinite(value):
        return value
    shape, stride = getattr(value, "shape", None), getattr(value, "stride", None)
    if shape is not None and callable(stride) and hasattr(value, "requires_grad"):
        try:
            return {
                "shape": [int(size) for size in shape],
                "strides": [int(step) for step in stride()],
                "dtype": str(value.dtype)[:MAX_TEXT],
                "requires_grad": bool(value.requires_grad),
            }
        except Exception:  # noqa: BLE001  # a sparse, symbolic or foreign tensor
            return {"other": type(value).__name__[:MAX_TEXT]}
    return {"other": type(value).__name__[:MAX_TEXT]}


def _note_backward(call: dict[str, Any], result: Any) -> None:
    """Ask each result for a word when its gradient arrives."""

    def arrived(_: Any) -> None:
        call["backward"] = True

    values = result.values() if isinstance(result, dict) else result
    for value in values if isinstance(result, tuple | list | dict) else (result,):
        # A leaf is an argument that was returned; its gradient may come from anywhere.
        if getattr(value, "requires_grad", False) is True and not value.is_leaf:
            try:
                value.register_hook(arrived)
            except Exception:  # noqa: BLE001, S112  # a tensor under vmap, say
                continue
