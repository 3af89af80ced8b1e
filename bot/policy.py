"""`contracts/policy.yaml` as types: areas, lanes, margins, bounds and words for pull requests."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import Field

from bot.document import Document, Place, Strict, parse, validate
from bot.errors import Fault, UserError
from bot.expression import ExpressionError, expression
from bot.globs import capture, glob_fault

__all__ = [
    "Approvals", "Area", "Caps", "Lane", "Margins", "Policy", "PullRequest", "Python", "load",
]  # fmt: skip

LaneName = Annotated[
    str,
    Field(pattern=r"^(tests|interpret|compile|execute|correctness|configs|benchmark):[a-z0-9]+$"),
]
Word = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]
Ratio = Annotated[float, Field(ge=1, le=100)]
Globs = Annotated[list[str], Field(min_length=1)]
Role = Literal["admin", "maintain", "write", "triage"]


class Area(Strict):
    """Paths that belong together.

    `contract`: whether each op that a glob captures here needs an enforced contract. `risk`: how
    much a change here can break; high ones ask for a person's approval before machines run.
    `guarded`: what judges or builds, so that an edit waits for a person's word.
    """

    area: Word
    globs: Globs
    risk: Literal["low", "normal", "high"] = "normal"
    guarded: bool = False
    contract: Literal["required", "none"] = "none"


class Python(Strict):
    """How the repository writes Python: where tests are, what dispatches, what needs no test.

    `inert`: files whose change selects no test unless something reaches them. `entry_points`:
    modules whose public names are the surface. `dispatchers`, `kernels` and `fixtures` are last
    parts of decorator names. What tests accept is decided by `references` (implementations that
    are right by definition), `harness` (conftest files, helpers) and by the functions that
    `comparisons` names. `ascend_backends`: values of `{backend}` that are Triton-Ascend.
    """

    tests: Globs
    inert: list[str] = []
    entry_points: list[str] = []
    dispatchers: list[str] = ["dispatch"]
    kernels: list[str] = ["jit"]
    fixtures: list[str] = ["fixture"]
    references: list[str] = []
    harness: list[str] = []
    comparisons: list[str] = ["assert_close", "allclose", "assert_allclose", "approx", "isclose"]
    ascend_backends: list[Word] = []


class Lane(Strict):
    """A place where jobs run. `excludes`: cells that it cannot prove, and why.

    `min_protection`: the weakest sandbox whose figures count. `queue_wait_s`: how long a job may
    wait for a runner before it is lost.
    """

    machine: Word
    device: Literal["cpu", "cuda", "npu"]
    interpreter: bool = False
    required: bool
    runs_on: list[str] = []
    image: str = ""
    timeout_s: Annotated[int, Field(ge=1, le=86400)]
    call_timeout_s: Annotated[int, Field(ge=1, le=3600)] = 60
    queue_wait_s: Annotated[int, Field(ge=1, le=604800)] = 7200
    min_protection: Literal["process", "user", "namespace"] = "process"
    excludes: dict[str, str] = {}


class Margins(Strict):
    """How many times the merge base's error head's may be, and how much slower a row may get.

    `rms`: over a tensor. `tile`, `row`: in its worst tile and worst vector along the last axis.
    `tail`: its worst element. `slope`: a factor on all of it, which may always be `slope_floor`.
    `anchor`: how many times the anchor's error. The others are shares, 0.01 for 1%.
    """

    rms: Ratio
    tile: Ratio
    row: Ratio = 8.0
    tail: Ratio = 4.0
    slope: Ratio = 3.0
    slope_floor: Annotated[float, Field(gt=0, le=0.1)] = 5e-4
    anchor: Ratio = 1.9
    chunked: Annotated[float, Field(gt=0, le=1)] = 0.01
    memory_bound: Annotated[float, Field(gt=0, le=1)] = 0.02

    def share(self, kind: str) -> float:
        """How much slower a row of this kind may get."""
        return self.memory_bound if kind == "memory_bound" else self.chunked


class Caps(Strict):
    """Upper limits. GitHub runs at most 256 jobs of one matrix.

    `minutes` of machines for one pull request a day, `job_minutes` for one run of a lane,
    `day_minutes` for all pull requests a day; `open_runs` at a time on one kind of machine.
    """

    packs: Annotated[int, Field(ge=1, le=256)] = 256
    minutes: Annotated[int, Field(ge=1)] = 240
    job_minutes: Annotated[int, Field(ge=1)] = 150
    day_minutes: Annotated[int, Field(ge=1)] = 2880
    open_runs: Annotated[int, Field(ge=1)] = 4


class Approvals(Strict):
    """Who may let machines run a change, and who may accept a weaker contract."""

    run: Annotated[list[Role], Field(min_length=1)] = ["admin", "maintain", "write"]
    accept: Annotated[list[Role], Field(min_length=1)] = ["admin", "maintain"]


class PullRequest(Strict):
    """What a pull request's own words must hold. `title`: a regular expression, searched for.

    `sections`: headings that must stand in the body with text below; by area, `*` for all.
    """

    title: str = ""
    title_help: str = ""
    sections: dict[str, list[str]] = {}


class Policy(Strict):
    """The whole file. `bounds`: largest sizes by axis letter where a contract is silent."""

    schema_id: Literal["fla-bot/policy@1"] = Field(alias="schema")
    bot_version: str = ">=0.1"
    source_roots: Annotated[list[str], Field(min_length=1)]
    python: Python
    areas: Annotated[list[Area], Field(min_length=1)]
    lanes: Annotated[dict[LaneName, Lane], Field(min_length=1)]
    margins: Margins
    bounds: dict[str, Annotated[int, Field(ge=1, lt=2**63)]] = {}
    caps: Caps = Caps()
    approvals: Approvals = Approvals()
    pull_request: PullRequest = PullRequest()

    def place(self, path: str) -> tuple[Area | None, dict[str, str]]:
        """The first area with a matching glob, and what the glob captured."""
        for area in self.areas:
            for glob in area.globs:
                captured = capture(glob, path)
                if captured is not None:
                    return area, captured
        return None, {}


def load(text: bytes, path: str) -> Policy:
    """Read and check a policy; UserError carries every fault with line and column."""
    document = parse(text, path)
    policy, faults = None, []
    try:
        policy = validate(document, Policy)
    except UserError as error:
        faults = error.faults
    if policy is not None:
        faults += _faults(policy, document)
    if faults or policy is None:
        raise UserError(faults=faults)
    return policy


def _faults(policy: Policy, document: Document) -> Iterator[Fault]:
    yield from _glob_faults(policy, document)
    for name, lane in policy.lanes.items():
        for text in lane.excludes:
            try:
                expression(text)
            except ExpressionError as error:
                yield document.fault(("lanes", name, "excludes", text), str(error))
    try:
        re.compile(policy.pull_request.title)
    except re.error as error:
        yield document.fault(("pull_request", "title"), f"not a regular expression: {error}")
    try:
        SpecifierSet(policy.bot_version)
    except InvalidSpecifier as error:
        yield document.fault(("bot_version",), str(error))
    known = {area.area for area in policy.areas} | {"*"}
    for area in sorted(set(policy.pull_request.sections) - known):
        yield document.fault(("pull_request", "sections", area), f"no area `{area}`")


def _glob_faults(policy: Policy, document: Document) -> Iterator[Fault]:
    globs: list[tuple[Place, list[str]]] = [
        (("areas", i, "globs"), area.globs) for i, area in enumerate(policy.areas)
    ]
    globs += [(("python", key), getattr(policy.python, key)) for key in _PYTHON_GLOBS]
    for place, group in globs:
        for i, glob in enumerate(group):
            if fault := glob_fault(glob):
                yield document.fault((*place, i), fault)


_PYTHON_GLOBS = ("tests", "inert", "entry_points", "references", "harness")
