"""The contract's properties: calls derived from one call, whose results follow from its own."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import math
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from bot.cells import Call, Result, TensorArg, call, cell_variables, letters_of
from bot.contract import PROPERTIES, Contract, EntryPoint, Plain, Property
from bot.device.arm import DTYPES, Arena, arena
from bot.device.inputs import draw
from bot.errors import UserError
from bot.evidence import HUGE, PropertyEvidence
from bot.expression import expression
from bot.model import Cell, Outcome

__all__ = ["Derivation", "Rotation", "applicable"]

Tensors = Mapping[str, torch.Tensor]
Perform = Callable[[Arena], Outcome]
Span = tuple[int, int]


@dataclass(slots=True)
class Failed(Exception):
    """A derived call gave no results."""

    outcome: Outcome


class Rotation:
    """Chooses which properties a cell tests where all would take too long.

    `cells`: all that are to come. What few of them can show is not left to a later one.
    """

    def __init__(self, contract: Contract, cells: Sequence[Cell]) -> None:
        self.taken: Counter[tuple[str, Property]] = Counter()
        self.able = Counter(
            (cell.entry_point, name) for cell in cells for name in applicable(contract, cell)
        )
        self.lock = threading.Lock()

    def next(self, entry_point: str, names: Sequence[Property]) -> list[Property]:
        """The one that cells of this entry point tested least so far, of these the scarcest."""

        def rank(name: Property) -> tuple[int, int, int]:
            key = entry_point, name
            return self.taken[key], self.able[key], PROPERTIES.index(name)

        with self.lock:  # pairs of workers share it
            chosen = sorted(names, key=rank)[:1]
            self.taken.update((entry_point, name) for name in chosen)
        return chosen


def applicable(contract: Contract, cell: Cell) -> list[Property]:
    """The properties that a cell can show: promised in its dtype, and with something to change."""
    point = contract.entry_points[cell.entry_point]
    known, plan = cell_variables(point, cell), call(contract, cell, 0)
    cut = _Cut(point, cell, plan, known)
    holds: dict[Property, Callable[[], bool]] = {
        "causal": lambda: any(end - start > 1 for start, end in cut.causal_spans()),
        "linear": lambda: True,
        "permutation": lambda: bool(cut.groups()),
        "split": cut.has_parts,
    }
    return [
        name
        for name in PROPERTIES
        if point.properties.exactness(name, plan.dtype) != "n/a" and holds[name]()
    ]


@dataclass(slots=True)
class _Cut:
    """Where a cell's call can be cut or permuted, from its letters and index tensors."""

    point: EntryPoint
    cell: Cell
    plan: Call
    known: dict[str, Any]

    def spans(self, bounds: str | None, letter: str) -> list[Span]:
        """First and last token of each packed sequence; one span of all tokens if none is."""
        for spec in self.plan.tensors:
            if spec.name == bounds and spec.content is not None:
                return list(pairwise(spec.content))
        return [(0, self.known[letter])]

    def causal_spans(self) -> list[Span]:
        causal = self.point.properties.causal
        return self.spans(causal.bounds, causal.axis) if causal else []

    def step(self, given: int | str) -> int:
        return given if isinstance(given, int) else max(1, int(expression(given)(self.known)))

    def groups(self) -> list[list[str]]:
        """Groups of letters that have more than one step to permute."""
        permutation = self.point.properties.permutation
        groups = permutation.axes if permutation else []
        return [group for group in groups if self.known[group[0]] > 1]

    def is_packed(self) -> bool:
        split = self.point.properties.split
        bounds = split.packed.bounds if split and split.packed else None
        return any(spec.name == bounds for spec in self.plan.tensors)

    def edges(self) -> list[int]:
        """Chunk edges where a dense run can be cut."""
        split = self.point.properties.split
        if split is None:
            return []
        step = self.step(split.step)
        return list(range(step, self.known[split.axis], step))

    def has_parts(self) -> bool:
        if self.is_packed():
            return True
        indexed = any(spec.content is not None for spec in self.plan.tensors)
        return not indexed and bool(self.edges())


class Derivation:
    """Tests properties of one arm on the inputs of one call that it has run before."""

    def __init__(
        self,
        contract: Contract,
        cell: Cell,
        plan: Call,
        inputs: Tensors,
        directions: Sequence[torch.Tensor],
        results: Tensors,
        device: str,
        perform: Perform,
    ) -> None:
        """`inputs` are stored elements by name, `results` what the call gave, in fp64."""
        self.contract, self.cell, self.plan, self.device = contract, cell, plan, device
        self.point = contract.entry_points[cell.entry_point]
        self.known = cell_variables(self.point, cell)
        self.cut = _Cut(self.point, cell, plan, self.known)
        self.specs = {spec.name: spec for spec in plan.tensors}
        self.inputs = {
            name: inputs[name].as_strided(spec.shape, spec.strides)
            for name, spec in self.specs.items()
        }
        present = [result.name for result in plan.outputs if result.present]
        self.directions = dict(zip(present, directions, strict=True)) if directions else {}
        self.results, self.perform = results, perform

    def test(self, names: Sequence[Property]) -> list[PropertyEvidence]:
        """What became of each result under each property."""
        tests: dict[Property, Callable[[], Iterator[PropertyEvidence]]] = {
            "causal": self._causal,
            "linear": self._linear,
            "permutation": self._permutation,
            "split": self._split,
        }
        found: list[PropertyEvidence] = []
        for name in names:
            try:
                found += tests[name]()
            except Failed as failed:
                found.append(_nothing(name, f"a derived call ended with {failed.outcome}"))
            except UserError as error:
                found.append(_nothing(name, f"no call can be derived: {error}"))
        return found

    def _causal(self) -> Iterator[PropertyEvidence]:
        """Change everything from a token on, which nobody but us knows before.

        Once anywhere, and once in the last chunk: that is where masks and tails go wrong.
        """
        causal = self.point.properties.causal
        assert causal is not None
        step, spans = self.cut.step(causal.step), self.cut.causal_spans()
        several = any(end - start > step for start, end in spans)
        for is_late in (False, True) if several else (False,):
            yield from self._future(step, [(*s, _token(s, step, is_late=is_late)) for s in spans])

    def _future(self, step: int, spans: list[tuple[int, int, int]]) -> Iterator[PropertyEvidence]:
        causal = self.point.properties.causal
        assert causal is not None
        changed = dict(self.inputs)
        for name, spec in self.specs.items():
            axis = self._axis(name, causal.axis)
            if axis is None or not changed[name].is_floating_point():
                continue
            value, other = changed[name].clone(), _redraw(spec)
            for start, end, token in spans:
                edge = min(end, start + ((token - start) // step + 1) * step)
                if name in causal.within:
                    _part(value, axis, token, edge).copy_(_part(other, axis, token, edge))
                _part(value, axis, edge, end).fill_(math.nan)
            changed[name] = value
        plan = replace(self.plan, gradients=())
        found = self._call(plan, changed, {})
        for result in plan.results:
            axis = self._axis(result.name, causal.axis)
            if axis is None:
                continue
            due, got = self.results[result.name].clone(), found[result.name].clone()
            for _, end, token in spans:
                for side in (due, got):
                    _part(side, axis, token, end).zero_()
            cuts = ", ".join(str(token) for _, _, token in spans[:8])
            yield _evidence("causal", result, due, got, f"inputs changed from {cuts} on")

    def _linear(self) -> Iterator[PropertyEvidence]:
        linear = self.point.properties.linear
        assert linear is not None
        scaled = {n: 2 * t if n in linear.inputs else t for n, t in self.inputs.items()}
        directions = {name: 2 * direction for name, direction in self.directions.items()}
        grown = 4 if any(name in self.inputs for name in linear.inputs) else 2
        found = self._call(self.plan, scaled, directions)
        for result in self.plan.results:
            if result in self.plan.gradients:
                factor = 2 if result.name.removeprefix("d") in linear.inputs else grown
            elif result.name in linear.outputs:
                factor = 2
            else:
                continue
            # Doubling does not commute with rounding where numbers lose digits near zero.
            sides = (factor * self.results[result.name], found[result.name])
            least = 8 * torch.finfo(DTYPES[result.dtype]).tiny
            due, got = (torch.where(side.abs() < least, 0.0, side) for side in sides)
            yield _evidence("linear", result, due, got, f"{factor}x is due")

    def _permutation(self) -> Iterator[PropertyEvidence]:
        orders: dict[str, torch.Tensor] = {}
        groups = self.cut.groups()
        for group in groups:
            orders |= self._orders(group)
        moved = {n: self._permuted(n, tensor, orders) for n, tensor in self.inputs.items()}
        directions = {n: self._permuted(n, d, orders) for n, d in self.directions.items()}
        found = self._call(self.plan, moved, directions)
        letters = ", ".join(orders)
        for result in self.plan.results:
            # What is summed along a permuted axis is summed in another order now.
            if not all(set(group) & set(self._dims(result.name)) for group in groups):
                continue
            due = self._permuted(result.name, self.results[result.name], orders)
            yield _evidence("permutation", result, due, found[result.name], f"along {letters}")

    def _orders(self, group: Sequence[str]) -> dict[str, torch.Tensor]:
        """One secret permutation for each letter; a block of the next letter moves as a whole."""
        size = self.known[group[0]]
        order = _shuffled(size)
        orders = {group[0]: order}
        for letter in group[1:]:
            block = self.known[letter] // size
            order = (order[:, None] * block + torch.arange(block)).flatten()
            size = self.known[letter]
            orders[letter] = order
        return orders

    def _permuted(
        self, name: str, tensor: torch.Tensor, orders: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        for axis, letter in enumerate(self._dims(name)):
            if letter in orders:
                tensor = tensor.index_select(axis, orders[letter])
        return tensor

    def _split(self) -> Iterator[PropertyEvidence]:
        split = self.point.properties.split
        assert split is not None
        whole = replace(self.plan, gradients=())
        due = {result.name: self.results[result.name] for result in whole.results}
        got = {name: value.clone() for name, value in due.items()}
        note = self._one_by_one(got) if self.cut.is_packed() else self._handed_over(got)
        for result in whole.results:
            if result.name in self.placed:
                yield _evidence("split", result, due[result.name], got[result.name], note)

    def _one_by_one(self, got: dict[str, torch.Tensor]) -> str:
        split = self.point.properties.split
        assert split is not None
        assert split.packed is not None
        packed, self.placed = split.packed, set[str]()
        place: Counter[str] = Counter()
        for number, (start, end) in enumerate(self.cut.spans(packed.bounds, split.axis)):
            if start == end:
                continue
            part = self._part_plan({split.length: end - start, **packed.set})
            where = {split.axis: (start, end), packed.axis: (number, number + 1)}
            found = self._call(part, self._cut_inputs(part, where), {})
            self._place(found, got, part, place | Counter({split.axis: start, packed.axis: number}))
            place.update(self._advance(part, split.axis, packed.axis))
        return "each sequence alone"

    def _handed_over(self, got: dict[str, torch.Tensor]) -> str:
        split = self.point.properties.split
        assert split is not None
        edge, size = secrets.choice(self.cut.edges()), self.known[split.axis]
        # The cell may ask for no state at the end; the part that hands one over does.
        first = self._part_plan({split.length: edge, **split.first})
        found = self._call(first, self._cut_inputs(first, {split.axis: (0, edge)}), {})
        self.placed = set[str]()
        self._place(found, got, first, Counter())
        rest = self._part_plan({split.length: size - edge, **split.rest})
        inputs = self._cut_inputs(rest, {split.axis: (edge, size)})
        taking = {spec.name: spec for spec in rest.tensors}
        for output, arg in split.carry.items():
            if output not in found or arg not in taking:
                raise Failed(Outcome.ARITY)
            inputs[arg] = found[output].to(DTYPES[taking[arg].dtype])
        place = Counter({split.axis: edge}) | self._advance(first, split.axis)
        self._place(self._call(rest, inputs, {}), got, rest, place)
        return f"cut at {edge}"

    def _part_plan(self, setting: Mapping[str, Plain]) -> Call:
        """The call of a part, forward only: its gradients would need the other part's."""
        part = call(self.contract, self.cell, self.plan.seed, {**setting, "backward": False})
        return replace(part, gradients=())

    def _cut_inputs(self, part: Call, where: Mapping[str, Span]) -> dict[str, torch.Tensor]:
        """The whole call's inputs, cut along the given letters where the part is smaller."""
        found = {}
        for spec in part.tensors:
            value = self.inputs.get(spec.name)
            if value is None or spec.content is not None:
                found[spec.name] = draw(spec).as_strided(spec.shape, spec.strides)
                continue
            for axis, letter in enumerate(self._dims(spec.name)):
                if letter in where and value.shape[axis] != spec.shape[axis]:
                    value = _part(value, axis, *where[letter])
            found[spec.name] = value
        return found

    def _advance(self, part: Call, *known: str) -> Counter[str]:
        """How far a part fills letters that depend on the number of tokens (chunks)."""
        sizes: Counter[str] = Counter()
        for result in part.results:
            for letter, size in zip(self._dims(result.name), result.shape, strict=True):
                if letter not in known and size != self.known[letter]:
                    sizes[letter] = size
        return sizes

    def _place(
        self, found: Tensors, got: dict[str, torch.Tensor], part: Call, place: Mapping[str, int]
    ) -> None:
        """Write a part's outputs where they belong in the whole; what it changed is its own."""
        for result in part.outputs:
            if result.name not in got or result.name not in found:
                continue
            target = got[result.name]
            for axis, letter in enumerate(self._dims(result.name)):
                size = result.shape[axis]
                if size != target.shape[axis]:
                    target = _part(target, axis, place.get(letter, 0), place.get(letter, 0) + size)
            if target.shape == found[result.name].shape:
                target.copy_(found[result.name])
                self.placed.add(result.name)

    def _call(self, plan: Call, inputs: Tensors, directions: Tensors) -> dict[str, torch.Tensor]:
        """Results of a derived call, in fp64."""
        outcome, found = run(plan, inputs, directions, self.device, self.perform)
        if outcome is not Outcome.RAN:
            raise Failed(outcome)
        return found

    def _dims(self, name: str) -> list[str]:
        """The letters of an argument, an output or a gradient."""
        for output in self.point.outputs:
            if output.name == name:
                return letters_of(output.dims, self.known)
        spec = self.point.args.get(name) or self.point.args[name.removeprefix("d")]
        return letters_of(spec.dims or [], self.known)

    def _axis(self, name: str, letter: str) -> int | None:
        dims = self._dims(name)
        return dims.index(letter) if letter in dims else None


def run(
    plan: Call, inputs: Tensors, directions: Tensors, device: str, perform: Perform
) -> tuple[Outcome, dict[str, torch.Tensor]]:
    """Have a call filled in once; poison may stay, it equals nothing that is due."""
    memory = arena(plan, device)
    try:
        kept = []
        for spec in memory.order["tensors"]:
            _strided(memory, spec).copy_(inputs[spec["name"]])
            kept.append((spec, memory.flat(spec, spec["storage"]).clone()))
        for spec in memory.order["repeats"][0]["cotangents"]:
            _strided(memory, spec).copy_(directions[spec["name"]])
        outcome = perform(memory)
        if outcome is not Outcome.RAN:
            return outcome, {}
        if not memory.guards_hold():
            return Outcome.GUARD, {}
        if not all(
            spec["written"] or _same(memory.flat(spec, spec["storage"]), flat)
            for spec, flat in kept
        ):
            return Outcome.INPUT_MUTATED, {}
        values = zip(plan.results, memory.results()[0], strict=True)
        return Outcome.RAN, {r.name: flat.double().view(r.shape) for r, flat in values}
    finally:
        memory.close()


def _strided(memory: Arena, spec: dict[str, Any]) -> torch.Tensor:
    return memory.flat(spec, spec["storage"]).as_strided(spec["shape"], spec["strides"])


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.equal(one.view(torch.uint8), other.view(torch.uint8)))


def _part(tensor: torch.Tensor, axis: int, start: int, end: int) -> torch.Tensor:
    return tensor.narrow(axis, start, end - start)


def _token(span: Span, step: int, *, is_late: bool) -> int:
    """A secret place after the first token, or in the last chunk; the end where there is none."""
    start, end = span
    if end - start < 2:
        return end
    low = start + (end - start - 1) // step * step if is_late else start
    return low + 1 + secrets.randbelow(end - low - 1) if end - low > 1 else low


def _redraw(spec: TensorArg) -> torch.Tensor:
    """Other values of the same kind."""
    return draw(replace(spec, seed=secrets.randbits(48))).as_strided(spec.shape, spec.strides)


def _shuffled(size: int) -> torch.Tensor:
    """A secret permutation that moves something."""
    order = list(range(size))
    while order == sorted(order):
        secrets.SystemRandom().shuffle(order)
    return torch.tensor(order)


def _nothing(name: Property, note: str) -> PropertyEvidence:
    return PropertyEvidence(name=name, output="call", equal=False, error=HUGE, note=note[:200])


def _evidence(
    name: Property, result: Result, due: torch.Tensor, got: torch.Tensor, note: str
) -> PropertyEvidence:
    """Equal in every bit or not, and how far apart; both are fp64, which holds any dtype's bits."""
    due, got = due.contiguous(), got.contiguous()
    same = due.view(torch.int64) == got.view(torch.int64)
    equal = bool(same.all())
    error = 0.0
    if not equal:
        scale = float(due.square().mean().sqrt())
        error = float((got - due).square().mean().sqrt()) / scale if scale else HUGE
        first = torch.unravel_index((~same).flatten().int().argmax(), same.shape)
        at = ", ".join(str(int(index)) for index in first)
        note = f"{note}; {int((~same).sum())} of {same.numel()} differ, first [{at}]"
    error = min(error, HUGE) if math.isfinite(error) else HUGE
    return PropertyEvidence(
        name=name, output=result.name, equal=equal, error=error, note=note[:200]
    )
