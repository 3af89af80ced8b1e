"""One call under test: its inputs, what is true of it, and what a worker made of it."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch

from bot.cells import Call, Result
from bot.device.arm import DTYPES, Arena, arena
from bot.device.inputs import cotangent, draw
from bot.evidence import HUGE
from bot.model import Outcome
from bot.wire import POISON, ROUNDING

__all__ = ["ONCE", "REPEATS", "Part", "Results", "Trial"]

Results = dict[str, torch.Tensor]
Pairs = list[tuple[Result, torch.Tensor]]
# The layouts that cotangents have in the calls of one draw: other strides, the same bits.
REPEATS = ("contiguous", "sliced", "transposed")
ONCE = ("contiguous",)
# How many times as far from the truth a part may be as the whole may, or is.
PART_MARGIN = 4.0


@dataclass(frozen=True, slots=True)
class Part:
    """What callers leave out: cotangents of outputs, and gradients of inputs that are frozen."""

    unseeded: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()

    @classmethod
    def of(cls, plan: Call) -> Part:
        """By the seed of a call; something is left of each."""
        chance = random.Random(plan.seed)  # noqa: S311  # who knows the seed knows the call
        if not plan.gradients:
            return cls()
        return cls(
            _some([r.name for r in plan.outputs if r.present], chance),
            _some([r.name for r in plan.gradients], chance),
        )

    def __bool__(self) -> bool:
        return bool(self.unseeded or self.frozen)

    def take_from(self, repeat: dict[str, Any]) -> None:
        """Leave it out of one repeat of an order."""
        names, slots = self.unseeded, repeat["gradients"]
        repeat["cotangents"] = [
            {"name": spec["name"]} if spec["name"] in names else spec
            for spec in repeat["cotangents"]
        ]
        repeat["gradients"] = [slot for slot in slots if slot["name"] not in self.frozen]
        repeat["frozen"] = sorted(name.removeprefix("d") for name in self.frozen)


def _some(names: Sequence[str], chance: random.Random) -> frozenset[str]:
    """Any set of several but none and all, each as likely as the others."""
    kept = chance.randrange(1, (1 << len(names)) - 1) if len(names) > 1 else 1
    return frozenset(name for place, name in enumerate(names) if not kept >> place & 1)


class Trial:
    """Draws the inputs of a call and computes its true results with the reference, in fp64.

    `expanded`: the cotangents are constant along one axis, and may be given with a stride of zero.
    `exact`: whether the same call must give the same bits; if not, `spread` says how far repeats
    were apart, relative to the size of what they gave.
    `partial`: the last of several calls leaves out what callers may leave out, too.
    """

    def __init__(
        self,
        plan: Call,
        reference: Callable[..., Any],
        device: str,
        *,
        expanded: bool = False,
        exact: bool = True,
        partial: bool = False,
    ) -> None:
        self.plan, self.reference, self.device, self.exact = plan, reference, device, exact
        self.spread: dict[str, float] = {}
        self.inputs = {spec.name: draw(spec) for spec in plan.tensors}
        present = [result for result in plan.outputs if result.present]
        self.directions = [
            cotangent(r, plan.seed + i + 1, expanded=expanded) for i, r in enumerate(present)
        ]
        self.part = Part.of(plan) if partial else Part()
        self._truth: tuple[Results, Results] | None = None
        self._lock = threading.Lock()

    @property
    def truth(self) -> Results:
        """The reference's results; where the lane has an accelerator, they are computed there."""
        return self._truths()[0]

    def stand_in(self) -> Results:
        """The reference in the declared dtypes, where no kernel of the merge base can run."""
        return self._reference(None, Part())[0]

    def _truths(self) -> tuple[Results, Results]:
        """All results, and the gradients of the part; who asks first computes them."""
        with self._lock:
            if self._truth is None:
                self._truth = self._reference(torch.float64, self.part)
            return self._truth

    def run(
        self, perform: Callable[[Arena], Outcome], seeds: Sequence[str] = ONCE
    ) -> tuple[Outcome, Results]:
        """Have somebody fill the slots, once a layout of the cotangents, and read them."""
        is_partial = bool(self.part) and len(seeds) > 1
        if is_partial and self.device != "cpu":
            seeds = (*seeds, seeds[0])  # the part costs no other call where calls are quick
        memory = arena(self.plan, self.device, seeds)
        if is_partial:
            self.part.take_from(memory.order["repeats"][-1])
        for spec in memory.order["tensors"]:
            memory.flat(spec, spec["storage"]).copy_(self.inputs[spec["name"]])
        for spec, direction in self._cotangents(memory):
            _stored(_strided(memory, spec)).copy_(_stored(direction, spec["strides"]))
        try:
            outcome = perform(memory)
            if outcome is not Outcome.RAN:
                return outcome, {}
            return self._collect(memory, is_partial=is_partial)
        finally:
            memory.close()

    def _cotangents(self, memory: Arena) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        for repeat in memory.order["repeats"]:
            if repeat["cotangents"]:
                pairs = zip(repeat["cotangents"], self.directions, strict=True)
                yield from ((spec, direction) for spec, direction in pairs if "offset" in spec)

    def _collect(self, memory: Arena, *, is_partial: bool) -> tuple[Outcome, Results]:
        """Read the slots; the first thing that is wrong with them decides."""
        if not memory.guards_hold():
            return Outcome.GUARD, {}
        if not self._inputs_hold(memory):
            return Outcome.INPUT_MUTATED, {}
        kept = [r.name for r in self.plan.results if r.name not in self.part.frozen]
        names = [r.name for r in self.plan.results]
        first, *others = [
            dict(zip(kept if len(flats) < len(names) else names, flats, strict=True))
            for flats in memory.results()
        ]
        if any(_poisoned(flat) for repeat in (first, *others) for flat in repeat.values()):
            return Outcome.POISON, {}
        part = others[-1] if is_partial else {}
        for other in others:
            for result in self.plan.results:
                if other is part and result in self.plan.gradients:
                    continue
                one, again = first[result.name], other[result.name]
                if _same_bits(one, again):
                    continue
                if self.exact:
                    return Outcome.REPEAT, {}
                apart = max(_apart(one.double(), again.double()), self.spread.get(result.name, 0.0))
                self.spread[result.name] = apart
        found = {r.name: first[r.name].double().view(r.shape) for r in self.plan.results}
        gradients = [r for r in self.plan.gradients if r.name in part]
        fit = all(self._fits(r, found[r.name], part[r.name].double()) for r in gradients)
        return (Outcome.RAN, found) if fit else (Outcome.PARTIAL, {})

    def _fits(self, result: Result, whole: torch.Tensor, part: torch.Tensor) -> bool:
        """Whether a gradient of the part is as near to the truth as the whole one is.

        Other code may give it, so it need not have the same bits.
        """
        all_true, part_true = (known[result.name].cpu() for known in self._truths())
        size, own = max(_rms(all_true), _rms(part_true)), _rms(whole - all_true)
        if not isfinite(own):
            return True  # the figures tell of that
        limit = max(own, size * max(result.budget or 0.0, ROUNDING.get(result.dtype, 0.0)))
        return _rms(part.view(result.shape) - part_true) <= PART_MARGIN * limit

    def _inputs_hold(self, memory: Arena) -> bool:
        kept = all(
            spec["written"]
            or _same_bits(memory.flat(spec, spec["storage"]), self.inputs[spec["name"]])
            for spec in memory.order["tensors"]
        )
        return kept and all(_same_bits(_strided(memory, s), d) for s, d in self._cotangents(memory))

    def _reference(self, dtype: torch.dtype | None, part: Part) -> tuple[Results, Results]:
        """Results of the reference, computed in a dtype or (None) in the declared ones.

        The second ones are gradients where a part is left out.
        """
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
        gradients = self._gradients(pairs, arguments, Part()) if plan.gradients else {}
        named |= gradients
        some = self._gradients(pairs, arguments, part) if part.unseeded else gradients
        kinds = {r.name: r for r in plan.results}
        whole, left = (
            {name: _declared(value, kinds[name], dtype) for name, value in values.items()}
            for values in (named, some)
        )
        return whole, left

    def _gradients(
        self, pairs: Pairs, arguments: Mapping[str, torch.Tensor], part: Part
    ) -> Results:
        """Gradients of all inputs, from the outputs that have a cotangent."""
        names = [r.name for r in self.plan.gradients]
        wanted = [arguments[name.removeprefix("d")] for name in names]
        aims = [
            (value, direction.to(value))
            for (result, value), direction in zip(pairs, self.directions, strict=True)
            if value.requires_grad and result.name not in part.unseeded
        ]
        if not aims and part.unseeded:
            return {name: torch.zeros_like(w) for name, w in zip(names, wanted, strict=True)}
        outputs, seeds = zip(*aims, strict=True)
        found = torch.autograd.grad(
            outputs,
            wanted,
            seeds,
            retain_graph=bool(self.part.unseeded),
            allow_unused=bool(part.unseeded),
            materialize_grads=bool(part.unseeded),
        )
        return dict(zip(names, found, strict=True))


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


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.double().square().mean().sqrt()) if tensor.numel() else 0.0


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
