"""What a job measured: strict schema, written whole or not at all, read as hostile input."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from bot.document import Strict
from bot.files import write_whole
from bot.model import Oid, Outcome

__all__ = [
    "ArmFigures",
    "CellEvidence",
    "Environment",
    "Evidence",
    "OutputFigures",
    "read",
    "write",
]

MAX_BYTES = 8 << 20
# An error may be too large for a float; it is then written as this, never as NaN or infinity.
HUGE = 1e300
Figure = Annotated[float, Field(ge=0, le=HUGE, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", max_length=80)]


class ArmFigures(Strict):
    """Errors of one arm against the fp64 reference; relative to the reference's own RMS."""

    rms: Figure
    max_abs: Figure


class OutputFigures(Strict):
    """One output or gradient (`d` + input) of one cell."""

    name: Name
    head: ArmFigures
    base: ArmFigures
    worst_tile: Figure
    worst_at: list[int]


class CellEvidence(Strict):
    """One cell: how each arm ended, and the figures where both ran.

    `base_form` says what stood on the base side: the merge base's own kernel or, where that
    cannot run the cell, the reference computed in the declared dtypes.
    """

    cell: Annotated[str, Field(max_length=400)]
    head: Outcome
    base: Outcome
    base_form: Literal["kernel", "reference"]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    outputs: list[OutputFigures]


class Environment(Strict):
    """What the figures depend on besides the code."""

    python: str
    torch: str
    triton: str
    device: str
    interpreter: bool
    protections: list[str]


class Evidence(Strict):
    """The result file of one job."""

    schema_id: Literal["fla-bot/evidence@1"] = Field("fla-bot/evidence@1", alias="schema")
    plan: str
    job: str
    lane: str
    head: Oid
    merge_base: Oid
    trusted: Oid
    complete: bool
    note: Annotated[str, Field(max_length=2000)] = ""
    environment: Environment
    cells: list[CellEvidence]
    wall_s: Figure


def write(directory: Path, evidence: Evidence) -> Path:
    """Write atomically: a reader sees the whole file or none."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{evidence.job}.json"
    write_whole(target, evidence.model_dump_json(by_alias=True, indent=1).encode())
    return target


def read(directory: Path, job: str) -> Evidence | str | None:
    """The evidence of a job, None where there is none, or a sentence why it cannot be believed."""
    path = directory / f"{job}.json"
    try:
        if path.is_symlink() or not path.is_file():
            return None
        if path.stat().st_size > MAX_BYTES:
            return f"evidence file is larger than {MAX_BYTES} bytes"
        return Evidence.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"evidence breaks its schema at `{place}`: {first['msg']}"
    except (OSError, ValueError) as error:
        return f"evidence cannot be read: {error}"
