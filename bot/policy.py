"""`contracts/policy.yaml` as types: areas, lanes and margins of a repository."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pathspec.patterns.gitignore.basic import GitIgnoreBasicPattern
from pydantic import Field

from bot.document import Document, Strict, parse, validate
from bot.errors import Fault, UserError
from bot.expression import ExpressionError, expression

__all__ = ["Area", "Lane", "Margins", "Policy", "glob_match", "load"]

_CAPTURE = re.compile(r"\{([a-z]+)\}")
LaneName = Annotated[str, Field(pattern=r"^[a-z]+:[a-z0-9]+$")]


class Area(Strict):
    """Paths that belong together. `contract`: each op captured here needs an enforced one."""

    area: Annotated[str, Field(pattern=r"^[a-z][a-z_-]*$")]
    globs: Annotated[list[str], Field(min_length=1)]
    contract: Literal["required", "none"] = "none"


class Lane(Strict):
    """A place where jobs run. `excludes`: cells that it cannot prove, and why."""

    device: Literal["cpu", "cuda"]
    interpreter: bool
    required: bool
    timeout_s: Annotated[int, Field(ge=1, le=86400)]
    call_timeout_s: Annotated[int, Field(ge=1, le=3600)]
    excludes: dict[str, str] = {}


class Margins(Strict):
    """How many times the merge base's error head's may be: over a tensor, in its worst tile."""

    rms: Annotated[float, Field(ge=1, le=100)]
    tile: Annotated[float, Field(ge=1, le=100)]


class Policy(Strict):
    """The whole file."""

    schema_id: Literal["fla-bot/policy@1"] = Field(alias="schema")
    source_roots: Annotated[list[str], Field(min_length=1)]
    contracts: str
    areas: Annotated[list[Area], Field(min_length=1)]
    lanes: Annotated[dict[LaneName, Lane], Field(min_length=1)]
    margins: Margins

    def place(self, path: str) -> tuple[Area | None, str | None]:
        """The area that owns a path, and the op that its glob captured."""
        for area in self.areas:
            for glob in area.globs:
                captured = glob_match(glob, path)
                if captured is not None:
                    return area, captured.get("op")
        return None, None


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
    for i, area in enumerate(policy.areas):
        for j, glob in enumerate(area.globs):
            try:
                glob_match(glob, "")
            except (ValueError, re.error) as error:
                yield document.fault(("areas", i, "globs", j), f"`{glob}`: {error}")
    for name, lane in policy.lanes.items():
        for text in lane.excludes:
            try:
                expression(text)
            except ExpressionError as error:
                yield document.fault(("lanes", name, "excludes", text), str(error))


_compiled: dict[str, re.Pattern[str] | None] = {}


def glob_match(glob: str, path: str) -> dict[str, str] | None:
    """Match a gitignore-style glob; `{word}` captures one path segment or a part of it."""
    if glob not in _compiled:
        marked = _CAPTURE.sub(lambda found: f"XX{found[1]}XX", glob)
        regex, include = GitIgnoreBasicPattern.pattern_to_regex(marked)
        if regex is None or not include:
            raise ValueError("not a positive gitignore pattern")
        named = re.sub(r"XX([a-z]+)XX", r"(?P<\1>[^/]+?)", regex)
        _compiled[glob] = re.compile(named)
    found = _compiled[glob].match(path)  # type: ignore[union-attr]  # filled just above
    return found.groupdict() if found else None
