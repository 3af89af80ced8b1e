"""One call under test: its inputs, what is true of it, and what a worker made of it."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import isfinite
from typing import Any

import torch

from bot.cells import Call, Result
from bot.device.arm import DTYPES, Arena, arena
from bot.device.inputs import cotangent, draw
from bot.evidence import HUGE
from bot.model import Outcome
from bot.wire import POISON

__all__ = ["ONCE", "REPEATS", "Results", "Trial"]

Results = dict[str, torch.Tensor]
# The layouts that cotangents have in the calls of one draw: other strides, the same bits.
REPEATS = ("contiguous", "sliced", "transposed")
ONCE = ("contiguous",)


class Trial:
    """Draws the inputs of a call and computes its true results with the reference, in fp64.

    `expanded`: the cotangents are constant along one axis, and may be given with a stride of zero.
    `exact`: whether the same call must give the same bits; if not, `spread` says how far repeats
    were apart, relative to the size of what they gave.
    """

    def __init__(
        self,
        plan: Call,
        reference: Callable[..., Any],
        device: str,
        *,
        expanded: bool = False,
        exact: bool = True,
    ) -> None:
        self.plan, self.reference, self.device, self.exact = plan, reference, device, exact
        self.spread: dict[str, float] = {}
        self.inputs = {spec.name: draw(spec) for spec in plan.tensors}
        present = [result for result in plan.outputs if result.present]
        self.directions = [
            cotangent(r, plan.seed + i + 1, expanded=expanded) for i, r in enumerate(present)
        ]

    @cached_property
    def truth(self) -> Results:
        """The reference's results; where the lane has an accelerator, they are computed there."""
        return self._reference(torch.float64)

    def stand_in(self) -> Results:
        """The reference in the declared dtypes, where no kernel of the merge base can run."""
        return self._reference(None)

    def run(
        self, perform: Callable[[Arena], Outcome], seeds: Sequence[str] = ONCE
    ) -> tuple[Outcome, Results]:
        """Have somebody fill the slots, once a layout of the cotangents, and read them."""
        memory = arena(self.plan, self.device, seeds)
        for spec in memory.order["tensors"]:
            memory.flat(spec, spec["storage"]).copy_(self.inputs[spec["name"]])
        for spec, direction in self._cotangents(memory):
            _stored(_strided(memory, spec)).copy_(_stored(direction, spec["strides"]))
        try:
            outcome = perform(memory)
            return self._collect(memory) if outcome is Outcome.RAN else (outcome, {})
        finally:
            memory.close()

    def _cotangents(self, memory: Arena) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        for repeat in memory.order["repeats"]:
            if repeat["cotangents"]:
                yield from zip(repeat["cotangents"], self.directions, strict=True)

    def _collect(self, memory: Arena) -> tuple[Outcome, Results]:
        """Read the slots; the first thing that is wrong with them decides."""
        if not memory.guards_hold():
            return Outcome.GUARD, {}
        if not self._inputs_hold(memory):
            return Outcome.INPUT_MUTATED, {}
        first, *others = memory.results()
        if any(_poisoned(flat) for repeat in (first, *others) for flat in repeat):
            return Outcome.POISON, {}
        for other in others:
            for result, one, again in zip(self.plan.results, first, other, strict=True):
                if _same_bits(one, again):
                    continue
                if self.exact:
                    return Outcome.REPEAT, {}
                apart = max(_apart(one.double(), again.double()), self.spread.get(result.name, 0.0))
                self.spread[result.name] = apart
        values = zip(self.plan.results, first, strict=True)
        return Outcome.RAN, {r.name: flat.double().view(r.shape) for r, flat in values}

    def _inputs_hold(self, memory: Arena) -> bool:
        kept = all(
            spec["written"]
            or _same_bits(memory.flat(spec, spec["storage"]), self.inputs[spec["name"]])
            for spec in memory.order["tensors"]
        )
        return kept and all(_same_bits(_strided(memory, s), d) for s, d in self._cotangents(memory))

    def _reference(self, dtype: torch.dtype | None) -> Results:
        """Results of the reference, computed in a dtype or (None) in the declared ones."""
        plan, arguments = self.plan, {}
        for spec in plan.tensors:
            tensor = self.inputs[spec.name].as_strided(spec.shape, spec.strides)
            tensor = tensor.to("cpu" if spec.host else self.device)
            if tensor.is_floating_point() and dtype is not None:
                tensor = tensor.to(dtype)
            arguments[spec.name] = tensor.clone().requires_grad_(spec.requires_grad)
        returned = self.reference(**arguments, **plan.plain)
        values = list(returned) if isinstance(returned, tuple | list) else [returned]
        pairs = [(r, v) for r, v in zip(plan.outputs, values, strict=True) if r.present]
        named = {r.name: value for r, value in pairs}
        named |= {r.name: arguments[r.name] for r in plan.written}
        if plan.gradients:
            wanted = [arguments[r.name.removeprefix("d")] for r in plan.gradients]
            aims = [(v, d.to(v)) for (_, v), d in zip(pairs, self.directions, strict=True)]
            outputs, seeds = zip(*((v, d) for v, d in aims if v.requires_grad), strict=True)
            gradients = torch.autograd.grad(outputs, wanted, seeds)
            named |= dict(zip((r.name for r in plan.gradients), gradients, strict=True))
        kinds = {r.name: r for r in plan.results}
        return {name: _declared(value, kinds[name], dtype) for name, value in named.items()}


def _strided(memory: Arena, spec: dict[str, Any]) -> torch.Tensor:
    return memory.flat(spec, spec["storage"]).as_strided(spec["shape"], spec["strides"])


def _stored(tensor: torch.Tensor, strides: Sequence[int] | None = None) -> torch.Tensor:
    """One of the elements that share memory along an axis of stride zero."""
    for axis, stride in enumerate(tensor.stride() if strides is None else strides):
        if stride == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.ndim != 1 or tensor.stride(0) != 1:
        tensor = tensor.clone(memory_format=torch.contiguous_format).view(-1)
    return tensor.view(torch.uint8)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.equal(_bits(one), _bits(other)))


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    apart, size = (float(t.square().mean().sqrt()) for t in (one - other, one))
    return min(apart / size, HUGE) if size and isfinite(apart) and isfinite(size) else HUGE


def _poisoned(flat: torch.Tensor) -> bool:
    """Whether any element still has the bits that no kernel writes."""
    if not flat.numel():
        return False
    rows = _bits(flat).view(flat.numel(), -1)
    return bool((rows == POISON).all(1).any())


def _declared(value: torch.Tensor, result: Result, dtype: torch.dtype | None) -> torch.Tensor:
    value = value.detach()
    return (value if dtype is not None else value.to(DTYPES[result.dtype])).double()
