"""Cells of a contract, the only builder of calls, and the predicates that recognise a real call."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import prod
from typing import Any

from bot.contract import WORDS, Arg, Contract, EntryPoint
from bot.errors import UserError
from bot.expression import ExpressionError, expression
from bot.model import Cell

__all__ = [
    "Call", "Result", "TensorArg", "TensorView", "axis_values", "call", "cells", "fits_lane",
]  # fmt: skip

MAX_ELEMENTS = 1 << 28


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A tensor to be made: a strided view of `storage` elements drawn from `family` by `seed`."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage: int
    dtype: str
    family: str
    requires_grad: bool
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """An output or gradient that a call must give; `tile` has one step per axis, 0 for whole."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    tile: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """Plain data: what to call with what, and what must come back."""

    cell: str
    target: str
    reference: str
    dtype: str
    tensors: tuple[TensorArg, ...]
    plain: dict[str, bool | int | float | str | None]
    outputs: tuple[Result, ...]
    gradients: tuple[Result, ...]
    seed: int

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


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


def cells(contract: Contract, entry_point: str) -> list[Cell]:
    """The cells that evidence must cover: every allowed pair of axis values, and the listed ones.

    The same contract gives the same cells in the same order.
    """
    return list(_cells(contract.entry_points[entry_point].model_dump_json(), entry_point))


@lru_cache(maxsize=64)
def _cells(point_json: str, name: str) -> tuple[Cell, ...]:
    point = EntryPoint.model_validate_json(point_json)
    rows = [_listed(point, row) for row in [{}, *point.listed]]
    rows += _pairwise(point)
    unique = {tuple(row.items()): Cell(name, tuple(row.items())) for row in rows}
    return tuple(cell for cell in unique.values() if _allowed(point, dict(cell.values)))


def _listed(point: EntryPoint, row: Mapping[str, str]) -> dict[str, str]:
    return {axis: row.get(axis, next(iter(spec.values))) for axis, spec in point.axes.items()}


def _allowed(point: EntryPoint, row: Mapping[str, str]) -> bool:
    return all(expression(text)(row) for text in point.constraints)


def _pairwise(point: EntryPoint) -> list[dict[str, str]]:
    axes = {axis: list(spec.values) for axis, spec in point.axes.items()}
    if len(axes) < 2:
        return [{axis: value} for axis, values in axes.items() for value in values]
    # covertable is slow to import and this path is cached; commands without cells never pay.
    from covertable import make, sorters

    constraints = [
        {
            "operator": "fn",
            "requires": sorted(expression(text).names),
            "evaluate": expression(text),
        }
        for text in point.constraints
    ]
    rows = make(axes, strength=2, sorter=sorters.hash, constraints=constraints)
    return [{axis: row[axis] for axis in axes} for row in rows]


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


def call(contract: Contract, cell: Cell, seed: int) -> Call:
    """Build the call of a cell; `seed` fixes all values in it."""
    point = contract.entry_points[cell.entry_point]
    variables = {**WORDS, **point.variables}
    for axis, value in cell.values:
        variables |= point.axes[axis].values[value].set
    try:
        return _build(point, cell, variables, seed)
    except ExpressionError as error:
        raise UserError(f"contract {contract.op}, cell {cell.id}: {error}") from error


def _build(point: EntryPoint, cell: Cell, variables: dict[str, Any], seed: int) -> Call:
    backward = bool(variables["backward"])
    tensors: list[TensorArg] = []
    plain: dict[str, bool | int | float | str | None] = {}
    for name, spec in point.args.items():
        if not expression(spec.present)(variables):
            plain[name] = None
        elif spec.dims is None:
            plain[name] = (
                expression(spec.value)(variables) if isinstance(spec.value, str) else spec.value
            )
        else:
            tensors.append(_tensor(name, spec, variables, seed, backward=backward))
    outputs = tuple(
        Result(
            output.name,
            _shape(output.dims, variables),
            expression(output.dtype)(variables),
            tuple(output.tile.get(letter, 0) for letter in output.dims),
        )
        for output in point.outputs
    )
    gradients = tuple(_gradient(point, tensor) for tensor in tensors if tensor.requires_grad)
    return Call(
        cell=cell.id,
        target=point.target,
        reference=point.reference,
        dtype=str(variables["dtype"]),
        tensors=tuple(tensors),
        plain=plain,
        outputs=outputs,
        gradients=gradients,
        seed=seed,
    )


def _shape(dims: list[str], variables: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(variables[letter]) for letter in dims)


def _tensor(
    name: str, spec: Arg, variables: Mapping[str, Any], seed: int, *, backward: bool
) -> TensorArg:
    assert spec.dims is not None
    shape = _shape(spec.dims, variables)
    strides, storage = _layout(expression(spec.layout)(variables), shape)
    if storage > MAX_ELEMENTS:
        raise ExpressionError(f"`{name}` would have {storage} elements; limit {MAX_ELEMENTS}")
    own_seed = hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7]
    return TensorArg(
        name=name,
        shape=shape,
        strides=strides,
        storage=storage,
        dtype=expression(spec.dtype)(variables),
        family=expression(spec.values)(variables),
        requires_grad=spec.grad and backward,
        seed=int.from_bytes(own_seed, "big"),
    )


def _layout(layout: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Strides and number of stored elements of a layout."""
    if layout == "sliced":  # as x[..., :D] of a tensor that is wider by 8
        wide = (*shape[:-1], shape[-1] + 8)
        return row_major(wide), prod(wide)
    if layout == "transposed":  # as y.transpose(1, 2)
        order = (0, 2, 1, *range(3, len(shape)))
        strides = row_major(tuple(shape[i] for i in order))
        return tuple(strides[i] for i in order), prod(shape)
    if layout == "contiguous":
        return row_major(shape), prod(shape)
    raise ExpressionError(f"unknown layout `{layout}`")


def _gradient(point: EntryPoint, tensor: TensorArg) -> Result:
    spec, dims = point.gradients[tensor.name], point.args[tensor.name].dims
    assert dims is not None
    tile = tuple(spec.tile.get(letter, 0) for letter in dims)
    return Result(f"d{tensor.name}", tensor.shape, tensor.dtype, tile)


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
