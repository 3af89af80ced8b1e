# SPDX-License-Identifier: MIT
"""Backends of operations: which there are, which may run a call, and which one did."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, ParamSpec, TypeVar

__all__ = ["BackendRegistry", "BaseBackend", "Route", "dispatch"]

logger = logging.getLogger(__name__)

Params = ParamSpec("Params")
Result = TypeVar("Result")

DEFAULT = "default"
_ROUTES_KEPT = 4096


class BaseBackend:
    """An implementation of an operation's functions on one kind of machine.

    A subclass has a method for each function that it takes over, with the function's name and
    parameters, and beside each a verifier `<function>_verifier` with the same parameters, which
    returns `(True, None)` or `(False, reason)`. A verifier that raises is a bug and is not caught.
    """

    name: ClassVar[str]
    # Higher priorities are asked first.
    priority: ClassVar[int] = 0
    # The package that the backend needs beside PyTorch and Triton, if any.
    vendor_package: ClassVar[str | None] = None
    # Environment variable that names the backend's state: "0" is off, "1" demands it.
    env_var: ClassVar[str | None] = None
    enabled_by_default: ClassVar[bool] = True

    @classmethod
    def is_available(cls) -> bool:
        """Whether the machine has what the backend needs.

        Only the absence of the vendor package itself counts as unavailable; a package that is
        there and fails to import is an error.
        """
        if cls.vendor_package is None:
            return True
        try:
            importlib.import_module(cls.vendor_package)
        except ModuleNotFoundError as error:
            if error.name is not None and cls.vendor_package.split(".")[0] == error.name:
                return False
            raise
        return True

    @classmethod
    def is_demanded(cls) -> bool:
        """Whether the environment asks for the backend by name."""
        return cls.env_var is not None and os.environ.get(cls.env_var) == "1"

    @classmethod
    def is_enabled(cls) -> bool:
        """Whether the environment lets the backend run."""
        value = os.environ.get(cls.env_var) if cls.env_var is not None else None
        return cls.enabled_by_default if value is None else value != "0"


@dataclass(frozen=True, slots=True)
class Route:
    """Where one call went, and why better-placed backends did not take it."""

    operation: str
    function: str
    backend: str
    refusals: tuple[tuple[str, str], ...] = ()


class BackendRegistry:
    """Backends by operation, in order of priority, and the routes that calls took."""

    def __init__(self) -> None:
        self._backends: dict[str, list[BaseBackend]] = {}
        self._logged: set[Route] = set()
        self.routes: deque[Route] = deque(maxlen=_ROUTES_KEPT)

    def register(self, operation: str, backend: BaseBackend) -> None:
        """Add a backend to an operation.

        Raises:
            ValueError: the name is taken.
            TypeError: a method of the backend has no verifier.
        """
        known = self._backends.setdefault(operation, [])
        if backend.name == DEFAULT or any(x.name == backend.name for x in known):
            raise ValueError(f"backend: expected a new name for {operation}, got {backend.name}")
        own = {name for name in vars(type(backend)) if not name.startswith("_")}
        known_names = set(dir(BaseBackend))
        for name in own - known_names:
            method = getattr(backend, name)
            if (
                callable(method)
                and not name.endswith("_verifier")
                and f"{name}_verifier" not in own
            ):
                raise TypeError(f"{backend.name}: expected a method {name}_verifier, got none")
        known.append(backend)
        known.sort(key=lambda x: -x.priority)

    def unregister(self, operation: str, name: str) -> None:
        """Remove a backend by name."""
        self._backends[operation] = [x for x in self.backends(operation) if x.name != name]

    def backends(self, operation: str) -> tuple[BaseBackend, ...]:
        """Backends of an operation, first choice first."""
        return tuple(self._backends.get(operation, ()))

    def record(self, route: Route) -> None:
        """Keep the route of a call, and log the first of its kind."""
        self.routes.append(route)
        if route not in self._logged:
            self._logged.add(route)
            refused = "".join(f"; {name} refused: {reason}" for name, reason in route.refusals)
            logger.info("%s.%s: %s%s", route.operation, route.function, route.backend, refused)

    def choose(
        self, operation: str, function: str, signature: inspect.Signature, args: Any, kwargs: Any
    ) -> tuple[BaseBackend | None, Route]:
        """The backend that takes a call, None for the decorated function, and the route.

        Raises:
            RuntimeError: a backend that the environment demands cannot run the call.
        """
        refusals = []
        if os.environ.get("FLA_DISABLE_BACKEND_DISPATCH") != "1":
            for backend in self.backends(operation):
                if not hasattr(backend, function):
                    continue
                reason = self._refusal(backend, function, signature, args, kwargs)
                if reason is None:
                    return backend, Route(operation, function, backend.name, tuple(refusals))
                if backend.is_demanded():
                    raise RuntimeError(
                        f"{backend.env_var}=1: expected {backend.name} to run {function}, got a "
                        f"refusal: {reason}"
                    )
                refusals.append((backend.name, reason))
        return None, Route(operation, function, DEFAULT, tuple(refusals))

    @staticmethod
    def _refusal(
        backend: BaseBackend, function: str, signature: inspect.Signature, args: Any, kwargs: Any
    ) -> str | None:
        if not backend.is_enabled():
            return "disabled"
        if not backend.is_available():
            return "unavailable"
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        verifier = getattr(backend, f"{function}_verifier")
        accepted, reason = verifier(*bound.args, **bound.kwargs)
        if accepted:
            return None
        return reason or "no reason given"


REGISTRY = BackendRegistry()


def dispatch(operation: str) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]:
    """Let backends of an operation take over a function, which is the fallback.

    Args:
        operation (str): the name that backends register under.
    """

    def decorate(fn: Callable[Params, Result]) -> Callable[Params, Result]:
        signature = inspect.signature(fn)
        name = fn.__name__

        @functools.wraps(fn)
        def routed(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            backend, route = REGISTRY.choose(operation, name, signature, args, kwargs)
            REGISTRY.record(route)
            return (fn if backend is None else getattr(backend, name))(*args, **kwargs)

        return routed

    return decorate
