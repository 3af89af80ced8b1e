"""The form of evidence: what is refused, and how the form before it is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from bot.evidence import HUGE, CellEvidence, Evidence, OutputFigures, parse

ARM = {"rms": 1e-8, "max_abs": 1e-7}
OUTPUT = {"name": "y", "head": ARM, "base": ARM, "worst_tile": 1.0, "worst_at": [0, 0]}


def first(**changes: Any) -> dict[str, Any]:
    cell = {
        "cell": "l2norm[a=b]",
        "head": "ran",
        "base": "ran",
        "base_form": "kernel",
        "seed": 7,
        "outputs": [OUTPUT],
    }
    environment = {
        "python": "3",
        "torch": "2",
        "triton": "3",
        "device": "cpu",
        "interpreter": True,
        "protections": [],
    }
    return {
        "schema": "fla-bot/evidence@1",
        "plan": "p",
        "job": "j",
        "lane": "interpret:cpu",
        **dict.fromkeys(("head", "merge_base", "trusted"), "0" * 40),
        "complete": True,
        "note": "",
        "environment": environment,
        "cells": [cell],
        "wall_s": 1.0,
        **changes,
    }


def read(data: object) -> Evidence:
    return parse(json.dumps(data).encode())


def test_first_schema_becomes_one_secret_draw() -> None:
    (cell,) = read(first()).cells
    (draw,) = cell.draws
    assert (draw.seed, draw.secret, cell.failed_seed) == (7, True, 7)
    (figures,) = draw.outputs
    assert figures.head.tail is None
    assert figures.worst_row is None
    assert figures.elements == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda cell: cell.pop("seed"),
        lambda cell: cell.pop("outputs"),
        lambda cell: cell.update(outputs=None),
        lambda cell: cell.update(outputs=7),
        lambda cell: cell.update(seed="x"),
        lambda cell: cell.update(seed=-1),
        lambda cell: cell.update(draws=[]),
        lambda cell: cell.update(head="passed"),
    ],
)
def test_broken_first_schema_is_refused(change: Any) -> None:
    data = first()
    change(data["cells"][0])
    if "draws" in data["cells"][0]:
        assert len(read(data).cells[0].draws) == 1  # nothing of a later schema is taken over
        return
    with pytest.raises(ValueError, match=r".+"):
        read(data)


@pytest.mark.parametrize("cells", [None, [], {}, [None], ["x"], 3])
def test_cells_of_any_type_are_read_or_refused(cells: object) -> None:
    try:
        found = read(first(cells=cells))
    except (ValueError, TypeError):
        return
    assert found.cells == []


@pytest.mark.parametrize(
    "change",
    [
        {"worst_tile": float("nan")},
        {"worst_tile": float("inf")},
        {"worst_tile": -1.0},
        {"worst_tile": 2 * HUGE},
        {"worst_tile": "1"},
        {"worst_at": [-1]},
        {"worst_at": [0] * 9},
        {"row_at": [1.5]},
        {"elements": -1},
        {"name": "a b"},
        {"verdict": "pass"},
        {"head": {**ARM, "tail": float("nan")}},
        {"head": {**ARM, "slope": -1e-9}},
    ],
)
def test_figures_that_are_no_figures(change: dict[str, Any]) -> None:
    OutputFigures.model_validate(OUTPUT)
    with pytest.raises(ValidationError):
        OutputFigures.model_validate_json(json.dumps({**OUTPUT, **change}))


@pytest.mark.parametrize("key", ["configuration", "failed_seed"])
def test_numbers_are_not_negative(key: str) -> None:
    cell = {"cell": "c", "head": "ran", "base": "ran", "base_form": "kernel", key: -1}
    with pytest.raises(ValidationError):
        CellEvidence.model_validate_json(json.dumps(cell))
