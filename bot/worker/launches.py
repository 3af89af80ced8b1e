"""What a call launches: counts, left-out and failing kernels, forced configurations, routes.

All of it is the worker's own word. The device process believes effects on results only.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from bot.wire import REPORT_BYTES

__all__ = ["Fault", "Watch"]

# Names beyond this many are left out of a report.
MOST = 200


class Fault(RuntimeError):
    """Stands for a launch that fails."""


class Watch:
    """What one call is asked to do differently, and what is seen of it while it is entered.

    Of the order: `without` is the kernel whose launches are left out, `failing` the kernel whose
    launches raise, `configuration` the one that every autotuner takes, counted round its list,
    `environment` holds for the call, `profile` asks for device times.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.without, self.failing = order.get("without"), order.get("failing")
        self.configuration: int | None = order.get("configuration")
        if self.configuration is None and os.environ.get("TRITON_INTERPRET") == "1":
            self.configuration = 0  # nothing is measured there, and an autotuner wants a driver
        self.launches: Counter[str] = Counter()
        self.configurations: dict[str, int] = {}
        self.unfit: dict[str, str] = {}
        self.device: dict[str, float] = {}
        self.routes: list[tuple[str, str, str]] = []
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> None:
        _patch()
        self.stack.enter_context(_environment(self.order.get("environment", {})))
        registry = getattr(sys.modules.get("fla.ops.backends.registry"), "REGISTRY", None)
        routes = getattr(registry, "routes", None)
        if routes is not None:
            routes.clear()
            self.stack.callback(self._take, routes)
        _current.append(self)
        self.stack.callback(_current.remove, self)
        if self.order.get("profile"):
            self.stack.enter_context(_profiled(self.device))

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def _take(self, routes: Iterable[Any]) -> None:
        for route in routes:
            refusals = (f"{name}={reason}".replace(";", ",") for name, reason in route.refusals)
            told = ";".join(refusals)[:400]
            self.routes.append((str(route.operation)[:80], str(route.backend)[:80], told))

    def launch(self, name: str, run: Callable[[], Any]) -> Any:
        """Launch a kernel, unless this call is about what happens if it is not."""
        self.launches[name] += 1
        if name == self.failing:
            raise Fault(f"the launch of {name} was made to fail")
        return None if name == self.without else run()

    def tuned(self, tuner: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an autotuned kernel in one configuration, without measuring any.

        What its own pruning drops, or the machine has no resources for, is not legal here: the
        next one takes its place, and the report says so.
        """
        name, configs = _name(tuner), list(tuner.configs)
        self.configurations[name] = len(configs)
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        legal = list(tuner.prune_configs(kwargs)) if len(configs) > 1 else configs
        wanted = (self.configuration or 0) % len(configs)
        for at in [*range(wanted, len(configs)), *range(wanted)]:
            if not any(config is configs[at] for config in legal):
                self.unfit[f"{name}[{at}]"] = "pruned"
                continue
            try:
                return _configured(tuner, configs[at], args, kwargs)
            except _out_of_resources() as error:
                self.unfit[f"{name}[{at}]"] = str(error)[:200]
        raise RuntimeError(f"{name} has no configuration that fits")

    def report(self) -> bytes:
        """JSON of what was seen, within the slot that is there for it."""
        seen = {
            "launches": dict(self.launches.most_common(MOST)),
            "configurations": dict(list(self.configurations.items())[:MOST]),
            "unfit": dict(list(self.unfit.items())[:MOST]),
            "device": dict(sorted(self.device.items(), key=lambda item: -item[1])[:MOST]),
            "routes": self.routes[-MOST:],
        }
        text = json.dumps(seen).encode()
        return text if len(text) <= REPORT_BYTES - 4 else b"{}"


# One call at a time is watched; kernels launched outside of one count for nobody.
_current: list[Watch] = []


@contextlib.contextmanager
def _environment(asked: dict[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in asked}
    os.environ.update(asked)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})


@contextlib.contextmanager
def _profiled(found: dict[str, float]) -> Iterator[None]:
    """Device time by kernel, microseconds."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        yield
        torch.cuda.synchronize()
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            name = event.name[:120]
            found[name] = found.get(name, 0.0) + float(event.self_device_time_total)


def _name(kernel: Any) -> str:
    """The name of the function under a kernel's decorators."""
    while not hasattr(kernel, "__name__"):
        kernel = kernel.fn
    return str(kernel.__name__)


def _configured(tuner: Any, config: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tuner.best_config = config
    if config.pre_hook is not None:
        config.pre_hook({**tuner.nargs, **kwargs, **config.all_kwargs()})
    found = tuner.fn.run(*args, **kwargs, **config.all_kwargs())
    tuner.nargs = None
    return found


def _out_of_resources() -> type[Exception]:
    found: type[Exception] = sys.modules["triton.runtime.errors"].OutOfResources
    return found


def _patch() -> None:
    """Put ourselves before the one place that every launch goes through, once triton is there."""
    jit = sys.modules.get("triton.runtime.jit")
    if jit is None:
        return
    kinds = [jit.JITFunction]
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is not None and os.environ.get("TRITON_INTERPRET") == "1":
        for name in ("interpreter", "lean"):
            importlib.import_module(f"bot.worker.{name}").install()
        kinds.append(interpreter.InterpretedFunction)
    for kind in kinds:
        if not hasattr(kind.run, "is_watched"):
            kind.run = _watching(kind.run)
    tuner = sys.modules["triton.runtime.autotuner"].Autotuner
    if not hasattr(tuner.run, "is_watched"):
        tuner.run = _forcing(tuner.run)


def _watching(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _current or kwargs.get("warmup"):
            return original(self, *args, **kwargs)
        return _current[-1].launch(_name(self), lambda: original(self, *args, **kwargs))

    run.is_watched = True  # type: ignore[attr-defined]
    return run


def _forcing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _current or kwargs.get("warmup"):
            return original(self, *args, **kwargs)
        watch = _current[-1]
        watch.configurations[_name(self)] = len(self.configs)
        if watch.configuration is None:
            return original(self, *args, **kwargs)
        return watch.tuned(self, args, kwargs)

    run.is_watched = True  # type: ignore[attr-defined]
    return run
