"""`contracts/anchors/<op>.json`: the errors that were once accepted, which no merge moves."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from bot.document import Strict
from bot.errors import Fault, UserError
from bot.model import Oid

__all__ = ["FOLDER", "Anchors", "Frozen", "Measured", "frozen", "load", "strictest"]

FOLDER = "contracts/anchors"
MAX_BYTES = 8 << 20
Rms = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# By cell and output.
Frozen = Mapping[str, Mapping[str, float]]


class Measured(Strict):
    """The rms errors of one lane's cells by output, when, at which commit and where taken."""

    measured: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    commit: Oid
    machine: Annotated[str, Field(max_length=200)]
    cells: dict[str, dict[str, Rms]]


class Anchors(Strict):
    """The whole file."""

    schema_id: Literal["fla-bot/anchor@1"] = Field("fla-bot/anchor@1", alias="schema")
    op: str
    lanes: dict[str, Measured]


def load(text: bytes, path: str, op: str) -> Anchors:
    """Read and check the anchors of an op."""
    if len(text) > MAX_BYTES:
        raise UserError(faults=[Fault(path, 0, 0, f"{len(text)} bytes; limit {MAX_BYTES}")])
    try:
        found = Anchors.model_validate_json(text)
    except ValidationError as error:
        items = error.errors(include_url=False, include_input=False)[:20]
        said = [f"`{'.'.join(map(str, item['loc']))}`: {item['msg']}" for item in items]
        faults = [Fault(path, 0, 0, text.removeprefix("``: ")) for text in said]
        raise UserError(faults=faults) from error
    if found.op != op:
        message = f"`op` is `{found.op}`; the file's name says `{op}`"
        raise UserError(faults=[Fault(path, 0, 0, message)])
    return found


def frozen(book: Anchors | None, lane: str) -> Frozen:
    """The frozen errors of a lane's cells."""
    return book.lanes[lane].cells if book and lane in book.lanes else {}


def strictest(trusted: Anchors | None, proposed: Anchors | None) -> Anchors | None:
    """The trusted anchors, with what a change adds to them or lowers."""
    if trusted is None or proposed is None:
        return trusted or proposed
    lanes = dict(proposed.lanes)
    for lane, measured in trusted.lanes.items():
        other = lanes[lane].cells if lane in lanes else {}
        lanes[lane] = measured.model_copy(update={"cells": _least(measured.cells, other)})
    return trusted.model_copy(update={"lanes": lanes})


def _least(
    one: Mapping[str, Mapping[str, float]], other: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    found = {cell: dict(values) for cell, values in other.items()}
    for cell, values in one.items():
        own = found.setdefault(cell, {})
        for name, value in values.items():
            own[name] = min(value, own.get(name, value))
    return found
