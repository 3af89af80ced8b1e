"""The contract of KDA: its cells, the calls they build, and the reference on each of them."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import ast
import importlib
import inspect
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from bot.cells import Call, TensorView, axis_values, call, cells
from bot.contract import WORDS, Contract, load, parameters
from bot.expression import expression
from bot.model import Cell

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = load((ROOT / "contracts/kda.yaml").read_bytes(), "contracts/kda.yaml")
POINTS = tuple(CONTRACT.entry_points)
# Axes of values: a call does not show how its tensors were drawn.
UNSEEN = {"decay", "values"}


def allowed(point: str, row: dict[str, str]) -> bool:
    return all(expression(text)(row) for text in CONTRACT.entry_points[point].constraints)


def views(built: Call) -> dict[str, Any]:
    tensors = {
        t.name: TensorView(t.shape, t.strides, t.dtype, t.requires_grad) for t in built.tensors
    }
    return {**built.plain, **tensors}


def test_it_is_enforced_and_survives_a_round_trip() -> None:
    assert CONTRACT.status == "enforced"
    again = Contract.model_validate_json(CONTRACT.model_dump_json(by_alias=True))
    assert again.fingerprint == CONTRACT.fingerprint


@pytest.mark.parametrize("point", POINTS)
def test_there_are_few_cells_and_all_are_allowed(point: str) -> None:
    found = cells(CONTRACT, point)
    assert 20 <= len(found) <= 60
    assert len({cell.id for cell in found}) == len(found)
    assert all(allowed(point, dict(cell.values)) for cell in found)


@pytest.mark.parametrize("point", POINTS)
def test_every_allowed_pair_of_axis_values_is_in_some_cell(point: str) -> None:
    axes = CONTRACT.entry_points[point].axes
    rows = [dict(cell.values) for cell in cells(CONTRACT, point)]
    covered = {pair for row in rows for pair in combinations(row.items(), 2)}
    for one, other in combinations(axes, 2):
        for a in axes[one].values:
            for b in axes[other].values:
                pair = ((one, a), (other, b))
                assert pair in covered or not completable(point, dict(pair)), pair


def completable(point: str, row: dict[str, str]) -> bool:
    """Whether some allowed cell has these values; only axes that constraints read matter."""
    spec = CONTRACT.entry_points[point]
    for text in spec.constraints:
        names = expression(text).names
        if names <= set(row) and not expression(text)(row):
            return False
        if names & set(row) and not names <= set(row):
            axis = min(names - set(row))
            return any(completable(point, {**row, axis: v}) for v in spec.axes[axis].values)
    return True


@pytest.mark.parametrize("point", POINTS)
def test_a_built_call_shows_its_own_axis_values_and_no_others(point: str) -> None:
    for cell in cells(CONTRACT, point):
        found = axis_values(CONTRACT, point, views(call(CONTRACT, cell, 7)))
        for axis, value in cell.values:
            assert value in found[axis], (cell.id, axis)
            assert axis in UNSEEN or found[axis] == [value], (cell.id, axis)


@pytest.mark.parametrize("point", POINTS)
def test_benchmark_rows_build_and_move_at_least_their_tensors(point: str) -> None:
    spec = CONTRACT.entry_points[point]
    for name, row in spec.benchmarks.items():
        values = {axis: row.axes.get(axis, next(iter(s.values))) for axis, s in spec.axes.items()}
        assert allowed(point, values), name
        built = call(CONTRACT, Cell(point, tuple(values.items())), 1, row.set)
        found = axis_values(CONTRACT, point, views(built))
        assert all(value in found[axis] for axis, value in values.items()), name
        sizes = {"fp32": 4, "bf16": 2, "int32": 4, "int64": 8}
        tensors = [(t.shape, t.dtype) for t in (*built.tensors, *built.results)]
        least = sum(sizes[dtype] * product(shape) for shape, dtype in tensors)
        variables = known(point, values, row.set)
        # A backward pass reads inputs again; parameters and tables are not counted.
        assert 0.99 * least <= expression(row.bytes)(variables) <= 2 * least, name
        assert expression(row.flops)(variables) > 0


def product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def known(point: str, values: dict[str, str], overrides: Any) -> dict[str, Any]:
    spec = CONTRACT.entry_points[point]
    variables = {**WORDS, **spec.variables}
    for axis, value in values.items():
        variables |= spec.axes[axis].values[value].set
    variables |= overrides
    for name, text in spec.derived.items():
        variables[name] = expression(text)(variables)
    return variables


@pytest.mark.parametrize("point", POINTS)
def test_the_function_has_the_signature_that_the_contract_states(point: str) -> None:
    module, _, name = CONTRACT.entry_points[point].target.partition(":")
    function = getattr(pytest.importorskip(module, exc_type=ImportError), name, None)
    if function is None:
        pytest.skip(f"{module} has no {name}")
    compatibility = CONTRACT.entry_points[point].compatibility
    assert compatibility is not None
    stated = parameters(compatibility.signature)
    assert stated is not None
    positional = [argument.arg for argument in stated.args]
    defaults = dict(zip(reversed(positional), reversed(stated.defaults), strict=False))
    defaults |= {a.arg: d for a, d in zip(stated.kwonlyargs, stated.kw_defaults, strict=True) if d}
    found = inspect.signature(function).parameters.values()
    kinds = {p.name: p.kind for p in found}
    assert [p.name for p in found] == [*positional, *(a.arg for a in stated.kwonlyargs)]
    assert all(kinds[name] is inspect.Parameter.POSITIONAL_OR_KEYWORD for name in positional)
    assert all(kinds[a.arg] is inspect.Parameter.KEYWORD_ONLY for a in stated.kwonlyargs)
    actual = {p.name: p.default for p in found if p.default is not inspect.Parameter.empty}
    assert actual == {name: ast.literal_eval(value) for name, value in defaults.items()}


@pytest.mark.parametrize("point", POINTS)
def test_every_property_is_shown_by_several_cells(point: str) -> None:
    pytest.importorskip("torch")
    from bot.device.properties import Rotation, applicable

    every, shown = cells(CONTRACT, point), Counter[str]()
    rotation = Rotation(CONTRACT, every)
    for cell in every:
        shown.update(rotation.next(point, applicable(CONTRACT, cell)))
    assert set(shown) == {"causal", "linear", "permutation", "split"}
    assert min(shown.values()) >= (2 if point.endswith("_fwd") else 5), shown


@pytest.mark.parametrize("point", ["chunk_kda", "fused_recurrent_kda"])
def test_a_cell_stagnates_where_the_state_has_few_digits(point: str) -> None:
    wanted = {"decay": "zero", "values": "beta_tiny", "states": "both"}
    found = [cell for cell in cells(CONTRACT, point) if wanted.items() <= dict(cell.values).items()]
    assert {dict(cell.values)["dtype"] for cell in found} >= {"fp32", "bf16"}


@pytest.mark.parametrize("point", POINTS)
def test_declared_kernels_are_kernels_of_the_sources(point: str) -> None:
    dispatch = CONTRACT.entry_points[point].dispatch
    assert dispatch is not None
    text = "".join(path.read_text() for path in (ROOT / "fla/ops/kda").glob("*.py"))
    assert dispatch.kernels
    assert all(f"def {kernel}(" in text for kernel in dispatch.kernels)


@pytest.mark.parametrize("point", POINTS)
def test_the_reference_takes_every_cell_and_has_all_gradients(point: str) -> None:
    torch = pytest.importorskip("torch")
    from bot.device.inputs import cotangent, draw

    # Many small operations: more threads only wait for one another.
    torch.set_num_threads(1)
    module, _, name = str(CONTRACT.entry_points[point].reference).partition(":")
    reference = getattr(importlib.import_module(module), name)
    for cell in cells(CONTRACT, point):
        plan = call(CONTRACT, cell, 3)
        inputs = {}
        for spec in plan.tensors:
            tensor = draw(spec).as_strided(spec.shape, spec.strides)
            tensor = tensor.double() if tensor.is_floating_point() else tensor
            inputs[spec.name] = tensor.clone().requires_grad_(spec.requires_grad)
        returned = reference(**inputs, **plan.plain)
        assert len(returned) == len(plan.outputs), cell.id
        pairs = [(r, v) for r, v in zip(plan.outputs, returned, strict=True) if r.present]
        for result, value in [*pairs, *((r, inputs[r.name]) for r in plan.written if r.present)]:
            assert value is not None, (cell.id, result.name)
            assert tuple(value.shape) == result.shape, (cell.id, result.name)
            assert value.dtype == torch.float64
            assert bool(torch.isfinite(value).all()), (cell.id, result.name)
        if plan.gradients:
            wanted = [inputs[r.name.removeprefix("d")] for r in plan.gradients]
            aims = [cotangent(r, i).double() for i, (r, _) in enumerate(pairs)]
            gradients = torch.autograd.grad([v for _, v in pairs], wanted, aims)
            for result, gradient in zip(plan.gradients, gradients, strict=True):
                assert tuple(gradient.shape) == result.shape
                assert bool(torch.isfinite(gradient).all()), (cell.id, result.name)
                assert float(gradient.abs().max()) > 0, (cell.id, result.name)
