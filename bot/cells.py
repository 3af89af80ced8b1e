"""Cells of a contract, the only builder of calls, and the predicates that recognise a real call."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from math import prod
from typing import Any

from bot.contract import DTYPES, FAMILIES, WORDS, Arg, Contract, EntryPoint, Output, Plain
from bot.errors import UserError
from bot.expression import Expression, ExpressionError, expression
from bot.model import Cell

__all__ = [
    "Call",
    "Result",
    "TensorArg",
    "TensorView",
    "axis_values",
    "call",
    "cell_variables",
    "cells",
    "check_cells",
    "complete",
    "fits_lane",
    "layout",
    "letters_of",
    "public_seed",
    "remember",
    "row_major",
]  # fmt: skip

Settings = Mapping[str, Plain]

MAX_ELEMENTS = 1 << 28


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A tensor to be made: a strided view of `storage` elements drawn from `family` by `seed`.

    `content` are its elements where the contract states them. `written`: the call changes it.
    `host`: it stays in the host's memory.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage: int
    dtype: str
    family: str
    content: tuple[int, ...] | None
    requires_grad: bool
    constant: bool
    written: bool
    host: bool
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """An output, a written argument or a gradient that a call must give.

    `tile` has one step per axis, 0 for whole. `present` is false where None is due, or where the
    argument `alias` is returned itself. `budget`: the contract's cap on the relative rms error,
    None where it has none for the cell's dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    tile: tuple[int, ...]
    present: bool = True
    alias: str = ""
    budget: float | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """Plain data: what to call with what, and what must come back."""

    cell: str
    target: str
    reference: str
    dtype: str
    tensors: tuple[TensorArg, ...]
    plain: dict[str, Plain]
    outputs: tuple[Result, ...]
    written: tuple[Result, ...]
    gradients: tuple[Result, ...]
    inference: bool
    seed: int

    @property
    def results(self) -> tuple[Result, ...]:
        """All tensors that are compared."""
        return tuple(r for r in (*self.outputs, *self.written, *self.gradients) if r.present)


@dataclass(frozen=True, slots=True)
class TensorView:
    """What a predicate may read of a tensor of a real call."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    requires_grad: bool

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        return self.strides == row_major(self.shape)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def cells(contract: Contract, entry_point: str) -> tuple[Cell, ...]:
    """The cells that evidence must cover: every allowed pair of axis values, and the listed ones.

    The same contract gives the same cells in the same order. A draft without axes has none.
    """
    key = (contract.fingerprint, entry_point)
    if key not in _known:
        _known[key] = _cells(contract.entry_points[entry_point], entry_point)
    return _known[key]


_known: dict[tuple[str, str], tuple[Cell, ...]] = {}


def remember(contract: Contract, entry_point: str, rows: list[list[list[str]]]) -> None:
    """Take over what an earlier process computed for the same contract."""
    found = tuple(Cell(entry_point, tuple((a, v) for a, v in row)) for row in rows)
    _known[contract.fingerprint, entry_point] = found


def _cells(point: EntryPoint, name: str) -> tuple[Cell, ...]:
    if not point.axes:
        return ()
    rows = [_listed(point, row) for row in [{}, *point.listed]]
    rows = [row for row in (*rows, *_pairwise(point)) if _allowed(point, row)]
    rows += _seen_again(point, rows)
    return tuple({tuple(row.items()): Cell(name, tuple(row.items())) for row in rows}.values())


def _seen_again(point: EntryPoint, rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Pairs that stand only beside an input of zeros, once more beside another.

    Where a factor of everything is zero, a wrong kernel is as right as any.
    """
    blind = {
        (axis, value)
        for axis, spec in point.axes.items()
        for value, chosen in spec.values.items()
        if "zeros" in chosen.set.values()
    }
    found = list[dict[str, str]]()
    shown = {p for row in rows if not blind & row.items() for p in combinations(row.items(), 2)}
    for row in (row for row in rows if blind & row.items()):
        choices = [
            [v for v in spec.values if (axis, v) not in blind]
            if (axis, row[axis]) in blind
            else [row[axis]]
            for axis, spec in point.axes.items()
        ]
        others = (dict(zip(point.axes, chosen, strict=True)) for chosen in product(*choices))
        other = next((o for o in others if _allowed(point, o)), None)
        if other and not shown.issuperset(combinations(other.items(), 2)):
            found.append(other)
            shown |= set(combinations(other.items(), 2))
    return found


def complete(contract: Contract, entry_point: str, partial: Mapping[str, str]) -> Cell | None:
    """The cell that a partial one stands for, defaults elsewhere; None if it is not allowed."""
    point = contract.entry_points[entry_point]
    row = _listed(point, partial)
    return Cell(entry_point, tuple(row.items())) if _allowed(point, row) else None


def _listed(point: EntryPoint, row: Mapping[str, str]) -> dict[str, str]:
    return {axis: row.get(axis, next(iter(spec.values))) for axis, spec in point.axes.items()}


def _allowed(point: EntryPoint, row: Mapping[str, str]) -> bool:
    return all(expression(text)(row) for text in point.constraints)


def check_cells(contract: Contract) -> list[tuple[str, str]]:
    """By entry point, what is wrong with its cells: a constraint or a call without a value.

    What is wrong with many cells is said once, of the first.
    """
    faults = dict[tuple[str, str], str]()
    for name, point in contract.entry_points.items():
        try:
            found = cells(contract, name)
        except ExpressionError as error:
            faults[name, str(error)] = "no cell can be chosen"
            continue
        if point.axes and not found:
            faults[name, "the constraints allow no cell at all"] = "drop or mend one"
        for cell in found:
            try:
                _build(point, cell, cell_variables(point, cell), 0)
            except ExpressionError as error:
                faults.setdefault((name, str(error)), f"so that {cell.id} cannot be called")
    return [(name, f"{fault}: {then}") for (name, fault), then in faults.items()]


def _pairwise(point: EntryPoint) -> list[dict[str, str]]:
    names, values = list(point.axes), [list(spec.values) for spec in point.axes.values()]
    if len(names) < 2:
        return [{names[0]: value} for value in values[0]]
    # covertable is slow to import and this path is cached; commands without cells never pay.
    from covertable import make, sorters

    constraints = [_constraint(expression(text), names) for text in point.constraints]
    rows = make(values, strength=2, sorter=sorters.hash, constraints=constraints)
    return [dict(zip(names, row, strict=True)) for row in rows]


def _constraint(rule: Expression, names: Sequence[str]) -> dict[str, Any]:
    """A constraint as the search asks it, a million times: by numbers of axes, each answer kept."""
    axes = sorted(map(names.index, rule.names))

    @cache
    def holds(*values: str) -> Any:
        return rule({names[axis]: value for axis, value in zip(axes, values, strict=True)})

    return {
        "operator": "fn",
        "requires": axes,
        "evaluate": lambda row: holds(*[row[axis] for axis in axes]),
    }


def fits_lane(cell: Cell, excludes: Mapping[str, str]) -> str | None:
    """The reason why a lane cannot prove a cell, or None.

    Keys are expressions over axis values; one that reads an axis which the cell does not have says
    nothing about it.
    """
    row = dict(cell.values)
    for text, reason in excludes.items():
        if expression(text).names <= set(row) and expression(text)(row):
            return reason
    return None


def call(contract: Contract, cell: Cell, seed: int, overrides: Settings | None = None) -> Call:
    """Build the call of a cell; `seed` fixes all values in it.

    `overrides` are variables set after the cell's own, as benchmark rows do.
    """
    point = contract.entry_points[cell.entry_point]
    try:
        return _build(point, cell, cell_variables(point, cell, overrides), seed)
    except ExpressionError as error:
        raise UserError(f"contract {contract.op}, cell {cell.id}: {error}") from error


def public_seed(plan: str, cell: str) -> int:
    """The seed of the draw of a cell that anybody can repeat: it follows from the plan's hash."""
    return int.from_bytes(hashlib.sha256(f"{plan}:{cell}".encode()).digest()[:7], "big")


def cell_variables(
    point: EntryPoint, cell: Cell, overrides: Settings | None = None
) -> dict[str, Any]:
    """What the letters and words of a contract stand for in a cell."""
    known: dict[str, Any] = {**WORDS, **point.variables}
    for axis, value in cell.values:
        known |= point.axes[axis].values[value].set
    known |= overrides or {}
    for name, text in point.derived.items():
        known[name] = expression(text)(known)
    return known


def _build(point: EntryPoint, cell: Cell, variables: dict[str, Any], seed: int) -> Call:
    backward = bool(variables["backward"])
    tensors: list[TensorArg] = []
    plain: dict[str, Plain] = {}
    for name, spec in point.args.items():
        if not expression(spec.present)(variables):
            plain[name] = None
        elif spec.dims is not None:
            tensors.append(_tensor(name, spec, variables, seed, backward=backward))
        elif isinstance(spec.value, str):
            plain[name] = expression(spec.value)(variables)
        else:
            plain[name] = spec.value
    written = {name for name, spec in point.args.items() if spec.written}
    results = [_result(output, variables) for output in point.outputs]
    returned = {o.name for o in point.outputs if expression(o.returned)(variables)} - written
    return Call(
        cell=cell.id,
        target=point.target,
        reference=point.reference or "",
        dtype=str(variables["dtype"]),
        tensors=tuple(tensors),
        plain=plain,
        outputs=tuple(result for result in results if result.name in returned),
        written=tuple(r for r in results if r.name in written and plain.get(r.name, r) is r),
        gradients=tuple(
            _gradient(point, tensor, variables) for tensor in tensors if tensor.requires_grad
        ),
        inference=bool(variables.get("inference", False)),
        seed=seed,
    )


def _result(output: Output, variables: Mapping[str, Any]) -> Result:
    taken = (arg for arg, when in output.alias.items() if expression(when)(variables))
    alias = next(taken, "")
    return Result(
        name=output.name,
        shape=_shape(output.dims, variables),
        dtype=_word(output.dtype, variables, DTYPES, "dtype"),
        tile=tuple(output.tile.get(letter, 0) for letter in letters_of(output.dims, variables)),
        present=not alias and bool(expression(output.present)(variables)),
        alias=alias,
        budget=output.budget.get(variables["dtype"]),
    )


def letters_of(dims: Sequence[str], variables: Mapping[str, Any]) -> list[str]:
    """The letters of the axes that a tensor has: one whose size is None is left out."""
    return [letter for letter in dims if variables[letter] is not None]


def _shape(dims: list[str], variables: Mapping[str, Any]) -> tuple[int, ...]:
    letters = letters_of(dims, variables)
    for letter in letters:
        size = variables[letter]
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ExpressionError(f"axis letter `{letter}` is {size!r}, not a size")
    return tuple(variables[letter] for letter in letters)


def _word(text: str, variables: Mapping[str, Any], known: tuple[str, ...], what: str) -> str:
    word = expression(text)(variables)
    if word not in known:
        raise ExpressionError(f"`{text}` is {word!r}, not a {what}")
    return str(word)


def _tensor(
    name: str, spec: Arg, variables: Mapping[str, Any], seed: int, *, backward: bool
) -> TensorArg:
    assert spec.dims is not None
    shape = _shape(spec.dims, variables)
    strides, storage = layout(expression(spec.layout)(variables), shape)
    if storage > MAX_ELEMENTS:
        raise ExpressionError(f"`{name}` would have {storage} elements; limit {MAX_ELEMENTS}")
    content = None if spec.content is None else expression(spec.content)(variables)
    if content is not None and len(content) != storage:
        raise ExpressionError(f"`{name}` has {storage} elements, `content` {len(content)}")
    own_seed = hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7]
    return TensorArg(
        name=name,
        shape=shape,
        strides=strides,
        storage=storage,
        dtype=_word(spec.dtype, variables, DTYPES, "dtype"),
        family=_word(spec.values, variables, FAMILIES, "family of values"),
        content=content,
        requires_grad=spec.grad and backward,
        constant=spec.constant,
        written=spec.written,
        host=spec.host,
        seed=int.from_bytes(own_seed, "big"),
    )


def layout(name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Strides and number of stored elements of a layout."""
    if name == "sliced":  # as x[..., :D] of a tensor that is wider by 8
        wide = (*shape[:-1], shape[-1] + 8)
        return row_major(wide), prod(wide)
    if name == "transposed" and len(shape) > 2:  # as y.transpose(1, 2)
        order = (0, 2, 1, *range(3, len(shape)))
        strides = row_major(tuple(shape[i] for i in order))
        return tuple(strides[i] for i in order), prod(shape)
    if name == "contiguous":
        return row_major(shape), prod(shape)
    raise ExpressionError(f"unknown layout `{name}` for {len(shape)} axes")


def _gradient(point: EntryPoint, tensor: TensorArg, variables: Mapping[str, Any]) -> Result:
    spec, dims = point.gradients[tensor.name], point.args[tensor.name].dims
    assert dims is not None
    tile = tuple(spec.tile.get(letter, 0) for letter in letters_of(dims, variables))
    budget = spec.budget.get(variables["dtype"])
    return Result(f"d{tensor.name}", tensor.shape, tensor.dtype, tile, budget=budget)


def axis_values(
    contract: Contract, entry_point: str, arguments: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Which values of each axis a real call has, by the predicates.

    `arguments` holds a TensorView for tensors, None for what is absent, plain values else.
    """
    point = contract.entry_points[entry_point]
    known = {**WORDS, **dict.fromkeys(point.args), **arguments}
    return {
        name: [value for value, spec in axis.values.items() if _holds(spec.when, known)]
        for name, axis in point.axes.items()
    }


def _holds(predicate: str, known: Mapping[str, Any]) -> bool:
    try:
        return bool(expression(predicate)(known))
    except ExpressionError:
        return False
