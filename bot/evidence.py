"""What a job measured: strict schema, written whole or not at all, read as hostile input."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from bot.document import Strict
from bot.files import write_whole
from bot.model import Oid, Outcome

__all__ = [
    "ArmFigures", "Audit", "CellEvidence", "CellUse", "Costs", "Draw", "Environment", "Evidence",
    "KernelEvidence", "OutputFigures", "PropertyEvidence", "Protection", "Restart", "RouteEvidence",
    "RowEvidence", "TestEvidence", "merged", "parse", "read", "write",
]  # fmt: skip

MAX_BYTES = 32 << 20
# An error may be too large for a float; it is then written as this, never as NaN or infinity.
HUGE = 1e300
Figure = Annotated[float, Field(ge=0, le=HUGE, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", max_length=80)]
Text = Annotated[str, Field(max_length=2000)]
CellId = Annotated[str, Field(max_length=400)]
Place = Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=8)]
Protection = Literal["process", "user", "namespace"]


class ArmFigures(Strict):
    """Errors of one arm against the fp64 reference r.

    `rms`: rms(e) / rms(r). `max_abs`: max |e|. `tail`: max of |e| over the rms of r in its tile (at
    least half the median tile's) and half a rounding step of the declared dtype. `slope`: the
    largest |<y, r> / <r, r> - 1| over the whole and over each head, less five standard errors:
    what independent errors do not explain. The last two are None in evidence of schema 1. All are
    HUGE where the arm gave something that is not finite.
    """

    rms: Figure
    max_abs: Figure
    tail: Figure | None = None
    slope: Figure | None = None


class OutputFigures(Strict):
    """One output or gradient (`d` + input) of one draw.

    `worst_tile`, `worst_row`: the largest ratio of head's rms error to the merge base's over a
    tile of the contract, and over a vector along the last axis, each divided by what chance allows
    for its number of elements (not in schema 1). `..._at`: where the tile, row, element or head
    begins. `elements`: how many numbers the figures are taken over, `effective`: how many that is
    where a few of them outweigh the rest (0: not known, schema 1).
    """

    name: Name
    elements: Annotated[int, Field(ge=0)] = 0
    effective: Annotated[int, Field(ge=0)] = 0
    head: ArmFigures
    base: ArmFigures
    worst_tile: Figure
    worst_at: Place
    worst_row: Figure | None = None
    row_at: Place = []
    tail_at: Place = []
    slope_at: Place = []


class Draw(Strict):
    """One set of inputs. A secret seed was drawn after the workers had imported."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    secret: bool
    outputs: list[OutputFigures]


class PropertyEvidence(Strict):
    """What became of one output under one property of the contract.

    `equal`: the same bits. `error`: rms of the difference relative to the rms of what was due.
    """

    name: Name
    output: Name
    equal: bool
    error: Figure
    note: Annotated[str, Field(max_length=200)] = ""


class CellEvidence(Strict):
    """One cell: how each arm ended, and the figures where both ran.

    `base_form` says what stood on the base side: the merge base's own kernel or, where that
    cannot run the cell or gives something that is not finite, the reference computed in the
    declared dtypes. `configuration`: which of the autotuner's configurations was forced, None for
    its own choice. `kernels`: what the worker says it launched. `unfit`: configurations that were
    not taken, and why. `unprofiled`: why it is not known which kernels took the device's time.
    """

    cell: CellId
    configuration: Annotated[int, Field(ge=0)] | None = None
    head: Outcome
    base: Outcome
    base_form: Literal["kernel", "reference"]
    failed_seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    draws: list[Draw] = []
    properties: list[PropertyEvidence] = []
    backend: Annotated[str, Field(max_length=80)] = ""
    kernels: list[Annotated[str, Field(max_length=120)]] = []
    unfit: list[Annotated[str, Field(max_length=400)]] = []
    unprofiled: Annotated[str, Field(max_length=200)] = ""


class KernelEvidence(Strict):
    """A declared kernel in one cell that launches it, as far as bytes can show.

    `changed`: leaving its launches out changed a result. `raised`: making its launch fail made the
    call fail, instead of another path answering. None: not tried. `share`: part of the device time
    of a kernel that is not declared.
    """

    kernel: Annotated[str, Field(max_length=120)]
    cell: CellId
    changed: bool | None = None
    raised: bool | None = None
    share: Annotated[float, Field(ge=0, le=1)] | None = None


class RouteEvidence(Strict):
    """Who served a call for which the contract says what a backend's verifier must answer.

    `case`, `number`: which of the contract's; under `disabled` the environment turns dispatch off.
    `served`: as recorded by the tree's registry. `note`: why it refused.
    """

    entry_point: Name
    backend: Name
    case: Literal["accepts", "rejects", "disabled"]
    number: Annotated[int, Field(ge=0)]
    cell: CellId
    served: Annotated[str, Field(max_length=80)]
    outcome: Outcome
    note: Annotated[str, Field(max_length=200)] = ""


class TestEvidence(Strict):
    """One test of the repository, as the process under test reports it."""

    test: Annotated[str, Field(max_length=1000)]
    head: Literal["passed", "failed", "error", "skipped", "missing"]
    base: Literal["passed", "failed", "error", "skipped", "missing"] | None = None
    seconds: Figure = 0.0
    note: Text = ""


class CellUse(Strict):
    """Tests that passed and called a cell, as the process under test reports it; a few of them.

    `backward`: those in which autograd came back to a result of the call.
    """

    op: Name
    cell: CellId
    arm: Literal["base", "head"] = "head"
    forward: list[Annotated[str, Field(max_length=1000)]] = []
    backward: list[Annotated[str, Field(max_length=1000)]] = []


class Audit(Strict):
    """One timed call whose results were looked at afterwards; `error` as in PropertyEvidence."""

    restart: Annotated[int, Field(ge=0)]
    slot: Annotated[int, Field(ge=0)]
    against: Literal["base", "reference"]
    output: Name
    error: Figure
    limit: Figure


class Restart(Strict):
    """Block times of fresh processes, milliseconds a call; one entry a block, two a quad.

    `first`: which arm began; quads are ABBA and BAAB in turn. `dropped`: blocks of each arm left
    out because the machine changed its clocks meanwhile. `alone`: the merge base's times while no
    process of head was there. `inner`: an arm's median by its own events, `audit_ms`: how long it
    took to hand over results; both are shown, not judged.
    """

    first: Literal["base", "head"]
    base: list[Figure]
    head: list[Figure]
    dropped: Annotated[int, Field(ge=0)] = 0
    alone: list[Figure] = []
    inner: dict[Name, Figure] = {}
    audit_ms: dict[Name, Figure] = {}

    @property
    def is_whole(self) -> bool:
        """Whether there is a quad, and as many blocks of one arm as of the other."""
        times = (self.base, self.head)
        return len(self.base) == len(self.head) >= 2 and all(t > 0 for arm in times for t in arm)


class Costs(Strict):
    """What one eager call of an arm costs besides time; counts are exact, bytes are peaks."""

    launches: Annotated[int, Field(ge=0)]
    syncs: Annotated[int, Field(ge=0)]
    allocations: Annotated[int, Field(ge=0)]
    peak_bytes: Annotated[int, Field(ge=0)]
    first_call_s: Figure
    eager_ms: Figure
    configurations: dict[str, Annotated[int, Field(ge=0)]] = {}
    chosen: dict[str, Annotated[str, Field(max_length=400)]] = {}


class RowEvidence(Strict):
    """One benchmark row. `mode` is `eager` where the call cannot be captured, and `why` says so.

    `calls`: slots, each with inputs and results of its own. `launches`: how often a block runs all
    of them. `null_ms`: what an empty block takes. `fault`: the arm that failed, and how.
    `earlier`: log ratios of restarts that a publisher remembers of a run that proved nothing; what
    a lane writes there does not count.
    """

    row: CellId
    mode: Literal["graph", "eager", "failed"]
    why: Text = ""
    calls: Annotated[int, Field(ge=0)] = 0
    launches: Annotated[int, Field(ge=0)] = 0
    null_ms: Figure = 0.0
    restarts: list[Restart] = []
    earlier: list[Ratio] = []
    audits: list[Audit] = []
    fault: Annotated[str, Field(max_length=400)] = ""
    bytes: Figure = 0.0
    flops: Figure = 0.0
    base: Costs | None = None
    head: Costs | None = None


class Environment(Strict):
    """What the figures depend on besides the code.

    `protection` and `protections`: the sandbox, as a probe inside it found it. `before` and
    `after`: clocks, temperature and throttling of the device.
    """

    python: str
    torch: str
    triton: str
    driver: str = ""
    device: str
    interpreter: bool
    protection: Protection = "process"
    protections: list[str]
    before: dict[str, Figure] = {}
    after: dict[str, Figure] = {}

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """What has to be equal for figures to be put together."""
        software = (self.python, self.torch, self.triton, self.driver)
        return (*software, self.device, self.interpreter, self.protection)


class Evidence(Strict):
    """The result file of one job; which of the lists is filled depends on the lane's kind.

    `configurations`: how many of them are due in each cell of a lane that tries all, as the host
    counts them in the source. None: it cannot, or the lane is another one.
    """

    schema_id: Literal["fla-bot/evidence@1", "fla-bot/evidence@2"] = Field(
        "fla-bot/evidence@2", alias="schema"
    )
    plan: str
    job: str
    lane: str
    head: Oid
    merge_base: Oid
    trusted: Oid
    complete: bool
    note: Text = ""
    environment: Environment
    configurations: Annotated[int, Field(ge=0)] | None = None
    cells: list[CellEvidence] = []
    kernels: list[KernelEvidence] = []
    routes: list[RouteEvidence] = []
    tests: list[TestEvidence] = []
    coverage: list[CellUse] = []
    rows: list[RowEvidence] = []
    wall_s: Figure
    stages: dict[Name, Figure] = {}


def merged(old: Evidence, new: Evidence) -> Evidence:
    """What two runs of a job on equal machines measured, `new` being the later and maybe a part.

    Draws and restarts of cells and rows that both have add up; of what both looked at in the same
    way, the worse stays.
    """
    again = {cell.cell for cell in new.cells}
    earlier = {(cell.cell, cell.configuration): cell for cell in old.cells}
    cells = [cell for cell in old.cells if cell.cell not in again]
    for cell in new.cells:
        before = earlier.get((cell.cell, cell.configuration))
        cells.append(cell if before is None else _worse(before, cell))
    routes = {(r.entry_point, r.backend, r.case, r.number): r for r in (*old.routes, *new.routes)}
    rows = {row.row: row for row in old.rows}
    for row in new.rows:
        rows[row.row] = _pooled(rows[row.row], row) if row.row in rows else row
    stages = {k: old.stages.get(k, 0) + new.stages.get(k, 0) for k in {**old.stages, **new.stages}}
    kernels = {(k.kernel, k.cell): k for k in old.kernels if k.cell not in again or _is_bad(k)}
    for kernel in new.kernels:
        kernels.setdefault((kernel.kernel, kernel.cell), kernel)
    return new.model_copy(
        update={
            "cells": cells,
            "kernels": list(kernels.values()),
            "routes": list(routes.values()),
            "rows": list(rows.values()),
            "wall_s": old.wall_s + new.wall_s,
            "stages": stages,
        }
    )


def _worse(old: CellEvidence, new: CellEvidence) -> CellEvidence:
    """A cell that was measured twice: nothing is tried again until it passes."""
    if old.head is not Outcome.RAN and old.base is Outcome.RAN:
        return old
    if Outcome.RAN not in (old.head, old.base) or new.head is not Outcome.RAN:
        return new
    draws = {draw.seed: draw for draw in new.draws}
    for draw in old.draws:
        draws[draw.seed] = max(draw, draws.get(draw.seed, draw), key=_badness)
    held = {(p.name, p.output): p for p in old.properties}
    for found in new.properties:
        same = held.get((found.name, found.output), found)
        held[found.name, found.output] = max(found, same, key=lambda p: (not p.equal, p.error))
    update = {"draws": list(draws.values()), "properties": list(held.values())}
    return new.model_copy(update=update)


def _badness(draw: Draw) -> tuple[float, float]:
    figures = draw.outputs
    rms = max((one.head.rms for one in figures), default=0.0)
    return rms, max((one.worst_tile for one in figures), default=0.0)


def _is_bad(kernel: KernelEvidence) -> bool:
    return kernel.changed is False or kernel.raised is False


def _pooled(old: RowEvidence, new: RowEvidence) -> RowEvidence:
    """A row's restarts of both runs, if they measured the same thing."""
    if old.mode != new.mode:
        return new
    # Numbers have gaps where another row ended a restart.
    first = max([len(old.restarts), *(1 + audit.restart for audit in old.audits)])
    later = [a.model_copy(update={"restart": first + a.restart}) for a in new.audits]
    return new.model_copy(
        update={"restarts": [*old.restarts, *new.restarts], "audits": [*old.audits, *later]}
    )


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
        return parse(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"evidence breaks its schema at `{place}`: {first['msg']}"
    except (OSError, ValueError, RecursionError) as error:
        return f"evidence cannot be read: {error}"


def parse(text: bytes) -> Evidence:
    """Evidence of this schema or of the one before it; ValidationError or ValueError else."""
    data = json.loads(text)
    if isinstance(data, dict) and data.get("schema") == "fla-bot/evidence@1":
        text = json.dumps(_from_first(data)).encode()
    return Evidence.model_validate_json(text)


def _from_first(data: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 had one secret draw a cell, with `seed` and `outputs` beside the outcomes."""
    cells, given = [], data.get("cells") or []
    if not isinstance(given, list):
        raise ValueError("`cells` is no list")  # noqa: TRY004  # what `read` expects
    for cell in given:
        if not isinstance(cell, dict) or not {"seed", "outputs"} <= set(cell):
            raise ValueError("a cell of schema 1 lacks `seed` or `outputs`")
        kept = {key: value for key, value in cell.items() if key not in ("seed", "outputs")}
        draw = {"seed": cell["seed"], "secret": True, "outputs": cell["outputs"]}
        cells.append(kept | {"draws": [draw], "failed_seed": cell["seed"]})
    return data | {"cells": cells}
