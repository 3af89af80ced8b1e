"""Cells and the calls that are built from them."""

from __future__ import annotations

from itertools import combinations

import pytest

from bot.cells import TensorView, axis_values, call, cells, fits_lane
from bot.contract import Contract, load
from bot.errors import UserError
from tests.conftest import ROOT


@pytest.fixture
def contract(contract_text: bytes) -> Contract:
    return load(contract_text, "contracts/l2norm.yaml")


def test_every_allowed_pair_of_axis_values_is_in_some_cell(contract: Contract) -> None:
    found = [dict(cell.values) for cell in cells(contract, "l2norm")]
    axes = contract.entry_points["l2norm"].axes
    missing = [
        (one, a, other, b)
        for one, other in combinations(axes, 2)
        for a in axes[one].values
        for b in axes[other].values
        if not any(row[one] == a and row[other] == b for row in found)
    ]
    assert missing == [("rows", "one", "layout", "transposed")]


def test_cells_are_the_same_each_time_and_unique(contract: Contract) -> None:
    ids = [cell.id for cell in cells(contract, "l2norm")]
    again = Contract.model_validate_json(contract.model_dump_json(by_alias=True))
    assert ids == [cell.id for cell in cells(again, "l2norm")]
    assert len(set(ids)) == len(ids)


def test_a_built_call_satisfies_its_own_predicates(contract: Contract) -> None:
    for cell in cells(contract, "l2norm"):
        built = call(contract, cell, 7)
        views = {
            t.name: TensorView(t.shape, t.strides, t.dtype, t.requires_grad) for t in built.tensors
        }
        found = axis_values(contract, "l2norm", {**built.plain, **views})
        for axis, value in cell.values:
            assert value in found[axis], (cell.id, axis)
            assert axis == "values" or found[axis] == [value], (cell.id, axis)


def test_axis_whose_letter_is_none_is_not_there(contract_text: bytes) -> None:
    """A table of slots has a second axis in some calls only; so may a result and its gradient."""
    text = contract_text.replace(b"dims: [B, T, H, D]", b"dims: [B, T, H, D, P]")
    text = text.replace(b"backward: false, ", b"backward: false, P: null, ")
    text = text.replace(b"d64: {set: {D: 64}", b"d64: {set: {D: 64, P: 2}")
    contract = load(text.replace(b"H: 1}}", b"H: 1, P: 1}}"), "contracts/l2norm.yaml")
    ranks = set()
    for cell in cells(contract, "l2norm"):
        built = call(contract, cell, 1)
        rank = 5 if dict(cell.values)["width"] == "d64" else 4
        found = [built.tensors[0], *built.results]
        assert {len(one.shape) for one in found} == {rank}, cell.id
        assert {len(one.tile) for one in built.results} == {rank}, cell.id
        ranks.add(rank)
    assert ranks == {4, 5}


def test_seed_fixes_the_values_and_nothing_else(contract: Contract) -> None:
    cell = cells(contract, "l2norm")[0]
    one, same, other = (call(contract, cell, seed) for seed in (1, 1, 2))
    assert one == same
    assert one.tensors[0].seed != other.tensors[0].seed
    assert one.tensors[0].shape == other.tensors[0].shape


def test_tensor_beyond_the_cap_is_refused(contract_text: bytes) -> None:
    huge = contract_text.replace(b"{B: 2, T: 33", b"{B: 2000000, T: 33")
    contract = load(huge, "c.yaml")
    with pytest.raises(UserError, match="elements"):
        call(contract, cells(contract, "l2norm")[0], 0)


def test_lane_excludes_by_axis_value(contract: Contract) -> None:
    by_dtype = {dict(cell.values)["dtype"]: cell for cell in cells(contract, "l2norm")}
    excludes = {'dtype == "bf16"': "no", 'gate == "other contract"': "never"}
    assert fits_lane(by_dtype["bf16"], excludes) == "no"
    assert fits_lane(by_dtype["fp32"], excludes) is None


def test_no_pair_is_covered_by_zeros_alone() -> None:
    """A wrong gradient of zeros is zero, too: such a cell stands for nothing but itself."""
    path = ROOT / "contracts/l2norm.yaml"
    found = [dict(cell.values) for cell in cells(load(path.read_bytes(), "l2norm.yaml"), "l2norm")]
    assert any(row["values"] == "zeros" and row["direction"] == "backward" for row in found)
    pairs, seen = (
        {
            pair
            for row in rows
            for pair in combinations(row.items(), 2)
            if ("values", "zeros") not in pair
        }
        for rows in (found, [row for row in found if row["values"] != "zeros"])
    )
    assert pairs == seen
