"""The words of fla-bot as types: change, scope, cell, finding, job, plan, verdict, report."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from bot.document import Strict

__all__ = [
    "AreaScope", "Because", "Cell", "Change", "ChangeSummary", "CheckState", "ChecklistItem",
    "Confidence", "ContractState", "FileChange", "Finding", "ImpactSummary", "ItemState", "Job",
    "Outcome", "Plan",
    "Report", "Row", "Scope", "Severity", "Suppression", "Verdict", "digest",
]  # fmt: skip

Oid = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]


def digest(value: BaseModel | Any) -> str:
    """SHA-256 of the canonical JSON of a model or of plain data, first 16 hex digits."""
    data = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Verdict(StrEnum):
    """Closed set. Green is pass, or waived with a live ledger entry for this head; nothing else."""

    PASS = "pass"  # noqa: S105
    WAIVED = "waived"
    FAIL = "fail"
    NOT_PROVEN = "not-proven"
    NOT_COMPARABLE = "not-comparable"
    LOST = "lost"
    UNREACHED = "unreached"
    SUPERSEDED = "superseded"
    WAITING = "waiting"


class CheckState(StrEnum):
    """What `fla-bot/ready` may be. neutral, skipped and cancelled are green on GitHub: left out."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    SUCCESS = "success"
    FAILURE = "failure"
    ACTION_REQUIRED = "action_required"


class ItemState(StrEnum):
    """State of a checklist row; only evidence or a computed fact makes it `done`."""

    DONE = "done"
    TODO = "todo"
    FAILED = "failed"
    WAITING = "waiting"
    NOT_APPLICABLE = "n/a"
    HUMAN = "human"


class Severity(StrEnum):
    """What a finding costs: an error is red, a warning is shown."""

    ERROR = "error"
    WARNING = "warning"


class Confidence(StrEnum):
    """How sure the rule is that the finding is real."""

    HIGH = "high"
    MEDIUM = "medium"


class Outcome(StrEnum):
    """What happened when one cell ran in one arm; everything but `ran` has no figures."""

    RAN = "ran"
    RAISED = "raised"
    TIMEOUT = "timeout"
    WORKER_DIED = "worker-died"
    PROTOCOL = "protocol"
    ARITY = "arity"
    TYPE = "type"
    SHAPE = "shape"
    ALIAS = "alias"
    GRAD_MISSING = "grad-missing"
    GUARD = "guard"
    INPUT_MUTATED = "input-mutated"
    POISON = "poison"
    REPEAT = "repeat"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class FileChange:
    """One path of a change. A blob is None where the path does not exist or holds no text."""

    path: str
    status: Literal["added", "deleted", "modified", "renamed", "type-changed"]
    old_path: str
    old_blob: str | None
    new_blob: str | None
    old_mode: str
    new_mode: str


@dataclass(frozen=True, slots=True)
class Change:
    """Base to head; head is a commit, or the tree of an uncommitted work tree."""

    base: str
    head: str
    merge_base: str
    trusted: str
    files: tuple[FileChange, ...]
    uncommitted: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of axis values of one entry point; the id is derived from them."""

    entry_point: str
    values: tuple[tuple[str, str], ...]

    @property
    def id(self) -> str:
        """`entry_point[axis=value,...]`, in the contract's axis order."""
        return f"{self.entry_point}[{','.join(f'{a}={v}' for a, v in self.values)}]"


class AreaScope(Strict):
    """The paths of a change that belong to one area."""

    area: str
    paths: list[str]


class Scope(Strict):
    """All that a change touches."""

    areas: list[AreaScope] = []
    ops: list[str] = []
    backends: list[str] = []
    entry_points: list[str] = []
    kernels: list[str] = []
    unknown: list[str] = []
    widened: list[str] = []


class ImpactSummary(Strict):
    """What the change reaches: tests by path, entry points and contracts by name."""

    tests: list[str] = []
    entry_points: list[str] = []
    contracts: list[str] = []


class Finding(Strict):
    """One hit of a rule."""

    code: str
    name: str
    path: str
    line: int
    end_line: int
    severity: Severity
    confidence: Confidence
    message: str
    witness: str = ""


class Suppression(Strict):
    """A comment that silences rules on its line.

    `covers`: a digest of the code that it stands in, and of what it silences there.
    """

    path: str
    line: int
    codes: list[str]
    reason: str
    covers: str = ""


class Because(Strict):
    """Why a job is needed: lines of a path that the change adds or edits."""

    path: str
    line: int
    end_line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class Job(Strict):
    """One lane for one op and a set of cells (of test files in a tests lane).

    Evidence of an equal `key` may be used again: same contract, sources, harness and lane.
    """

    id: str
    lane: str
    op: str
    cells: list[str]
    required: bool
    because: list[Because]
    key: str


class Plan(Strict):
    """All jobs that a change needs, packed for one matrix.

    `judges` names policy and contracts in force; `hash` covers everything else.
    """

    base: Oid
    head: Oid
    merge_base: Oid
    trusted: Oid
    jobs: list[Job]
    packs: list[list[str]]
    judges: str
    hash: str

    @classmethod
    def of(cls, change: Change, jobs: list[Job], packs: list[list[str]], judges: str) -> Plan:
        """A plan with its hash."""
        plan = cls(
            base=change.base,
            head=change.head,
            merge_base=change.merge_base,
            trusted=change.trusted,
            jobs=jobs,
            packs=packs,
            judges=judges,
            hash="",
        )
        return plan.model_copy(update={"hash": plan.compute_hash()})

    def compute_hash(self) -> str:
        """The hash that a plan of this content must carry."""
        return digest(self.model_dump(mode="json", exclude={"hash"}))


class Row(Strict):
    """The verdict over one cell (or over a whole job, `cell` empty) and the figure behind it."""

    job: str
    lane: str
    op: str
    cell: str
    verdict: Verdict
    reason: str
    because: str = ""


class ContractState(Strict):
    """A contract that the change needs; `missing` and `invalid` are red where one is required."""

    op: str
    path: str
    status: Literal["enforced", "draft", "missing", "invalid"]


class ChecklistItem(Strict):
    """One line of the checklist with what ticks it; `accept` is the digest a person may accept."""

    id: str
    state: ItemState
    text: str
    evidence: str = ""
    accept: str = ""


class ChangeSummary(Strict):
    """The change as the report names it."""

    base: Oid
    head: Oid
    merge_base: Oid
    trusted: Oid
    uncommitted: bool
    files: list[str]


class Report(Strict):
    """All that is known of a change; renderers compute nothing from it."""

    schema_id: Literal["fla-bot/report@1"] = Field("fla-bot/report@1", alias="schema")
    change: ChangeSummary
    scope: Scope
    impact: ImpactSummary
    contracts: list[ContractState]
    findings: list[Finding]
    suppressions: list[Suppression]
    plan: Plan
    rows: list[Row]
    checklist: list[ChecklistItem]
    verdict: Verdict
    state: CheckState
    headline: str
    next_step: str
    policy_source: str
