"""What is kept about a head: its plan, how each pull request stands on it, what lanes found."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import base64
import re
import zlib
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from bot.document import Strict
from bot.errors import UserError
from bot.model import CheckState, Oid, Report, Row, Verdict
from bot.policy import Approvals, Caps, Lane, Policy

__all__ = [
    "Acceptance", "Case", "Envelope", "Grant", "LaneResult", "Merged", "Origin", "Reply", "RowId",
    "Standing", "Waiver", "code_digest", "pack", "seal", "unpack",
]  # fmt: skip

MAX_PACKED = 60_000  # characters; a check run takes 65,535
MAX_STANDING = 48_000  # of them for one pull request
MAX_UNPACKED = 16 << 20
MAX_TWINS = 4  # pull requests of one head whose digests a status has room for
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Model = TypeVar("Model", bound=BaseModel)
_ROW = re.compile(
    r"([1-9][0-9]{0,9})\.([0-9a-f]{40})\.([0-9a-f]{16})"
    r"\.([a-z]{1,20})-([a-z0-9]{1,20})\.(0|[1-9][0-9]{0,18})"
)


@dataclass(frozen=True, slots=True, order=True)
class RowId:
    """One run of one lane for one plan; what the executor gets as its only input.

    `nonce` is 0 for the run that an approval starts, else the id of the comment that asked for it,
    or a small number where one is started anew that was ended as nobody wanted it:
    asking again for the same row finds the same row.
    """

    number: int
    head: str
    plan: str
    lane: str
    nonce: int

    def __str__(self) -> str:
        lane = self.lane.replace(":", "-")
        return f"{self.number}.{self.head}.{self.plan}.{lane}.{self.nonce}"

    @classmethod
    def find(cls, text: str) -> RowId | None:
        """The id in a text that ends with one, such as a run's title."""
        match = _ROW.fullmatch(text.rpartition(" ")[2])
        if match is None:
            return None
        number, head, plan, kind, machine, nonce = match.groups()
        return cls(int(number), head, plan, f"{kind}:{machine}", int(nonce))

    @classmethod
    def parse(cls, text: str) -> RowId:
        """The id, or a UserError."""
        found = cls.find(text)
        if found is None or str(found) != text:
            raise UserError("a plan id looks like 7.HEAD.PLAN.correctness-sm90.0")
        return found


class Envelope(Strict):
    """How far an approval reaches: machines, minutes, sensitive paths, the bot's own code."""

    machines: list[str]
    minutes: int
    sensitive: list[str]
    code: str

    def covers(self, other: Envelope) -> bool:
        """Whether whoever approved this has approved the other, too."""
        return (
            set(other.machines) <= set(self.machines)
            and other.minutes <= self.minutes
            and set(other.sensitive) <= set(self.sensitive)
            and other.code == self.code
        )


class Origin(Strict):
    """Where a contract in force stands, and its fingerprint."""

    commit: Oid
    fingerprint: str


class Merged(Strict):
    """A pull request that a merge group merges, and its head."""

    number: Annotated[int, Field(ge=1)]
    head: Oid


class Case(Strict):
    """All that is known of one head in one pull request before any evidence.

    Made by `scope`, which parses what the pull request controls; `plan` checks what it can and
    fills in `bot` and `code`. `group`: the branch of a merge group, if the head is one; `merges`:
    what is in it, the pull request itself first.
    `books` is a digest of what judges it at trusted: policy, contracts and anchors of its `ops`,
    and `watched`, the references of the contracts in force. `late`: one of those is newer than the
    merge base. `shelf`: a digest of all contracts there; one of another op may concern it, too,
    once that was edited.
    `anchors`: digests of those in force. `hits`: errors and warnings by rule, of which the report
    holds only some.
    """

    schema_id: Literal["fla-bot/case@1"] = Field("fla-bot/case@1", alias="schema")
    number: Annotated[int, Field(ge=1)]
    base_ref: Annotated[str, Field(max_length=255)]
    group: Annotated[str, Field(max_length=400)] = ""
    merges: list[Merged] = []
    gated: bool
    books: Digest
    shelf: Digest
    late: bool
    report: Report
    policy: Policy
    contracts: dict[str, Origin]
    anchors: dict[str, str]
    owners: dict[str, list[str]]
    sensitive: list[str]
    watched: list[str] = []
    hits: dict[str, tuple[int, int]] = {}
    bot: str = ""
    code: str = ""

    @property
    def head(self) -> str:
        """The commit that it is about."""
        return self.report.change.head

    @property
    def plan(self) -> str:
        """The hash of its plan."""
        return self.report.plan.hash

    @property
    def ops(self) -> list[str]:
        """The ops that it touches or reaches, also those without a contract."""
        return sorted({*self.contracts, *self.report.scope.ops})

    @property
    def lanes(self) -> dict[str, Lane]:
        """All lanes of the policy."""
        return self.policy.lanes

    @property
    def approvals(self) -> Approvals:
        """Who may approve and accept."""
        return self.policy.approvals

    @property
    def caps(self) -> Caps:
        """Upper limits."""
        return self.policy.caps

    def planned_lanes(self) -> list[str]:
        """The lanes that the plan needs, in its order."""
        return list(dict.fromkeys(job.lane for job in self.report.plan.jobs))

    def is_required(self, lane: str) -> bool:
        """Whether the verdict needs a lane."""
        return any(job.lane == lane and job.required for job in self.report.plan.jobs)

    def minutes(self, lane: str) -> int:
        """The most that one run of a lane takes."""
        return -(-self.lanes[lane].timeout_s // 60)

    def envelope(self) -> Envelope:
        """What an approval of this case allows."""
        lanes = self.planned_lanes()
        return Envelope(
            machines=sorted({self.lanes[lane].machine for lane in lanes}),
            minutes=sum(self.minutes(lane) for lane in lanes),
            sensitive=self.sensitive,
            code=self.code,
        )

    def faults(self) -> list[str]:
        """What does not fit together; the one who made it read hostile content."""
        plan, found = self.report.plan, []
        if plan.compute_hash() != plan.hash:
            found.append("the plan's hash is not that of its content")
        change = self.report.change
        names = ("base", "head", "merge_base", "trusted")
        differ = (name for name in names if getattr(plan, name) != getattr(change, name))
        found += [f"plan and change differ in {name}" for name in differ]
        found += [f"lane {lane} is unknown" for lane in self.planned_lanes()
                  if lane not in self.lanes]  # fmt: skip
        ops = {job.op for job in plan.jobs if job.op != "tests"}
        found += [f"no contract of {op} is named" for op in sorted(ops - set(self.contracts))]
        ids = [job.id for job in plan.jobs]
        if len(set(ids)) != len(ids):
            found.append("two jobs have one id")
        if change.uncommitted:
            found.append("the head is no commit")
        return found


class Grant(Strict):
    """A person's word that machines may run this head; without a comment it is implicit.

    `edited`: its comment was, so that it counts no more.
    """

    comment: int
    login: str
    base_ref: str
    envelope: Envelope
    edited: bool = False


class Waiver(Strict):
    """A person's word that one row of one plan does not count on this head."""

    comment: int
    login: str
    target: str
    reason: str
    plan: str


class Acceptance(Strict):
    """A person's word that a digest may be; it holds on every head that asks for it."""

    comment: int
    code: str


class LaneResult(Strict):
    """What one run of a lane came to, as its publisher judged it.

    `keys`: by job. `samples`: log ratios of benchmark rows that are not proven, all that were
    measured so far, by job key, row and machine: who asks until it passes is held to all of them.
    """

    row: str
    run: int
    verdict: Verdict
    note: str
    keys: dict[str, str]
    rows: list[Row]
    samples: dict[str, list[float]] = {}


class Reply(Strict):
    """What somebody was told, apart from a reaction."""

    comment: int
    login: str
    text: str


class Standing(Strict):
    """How one pull request stands on one head.

    `since`: when the head was first seen, or seen again after another one; `forced`: the last
    forced push until then. `replaced`: when another plan of this head came into force. `pusher`:
    who GitHub said had pushed it first; empty when the reaper saw it first; `pushers`: all others
    who have pushed something here, as far as they are known. Grants, waivers and `accepts` are
    recorded as they were first seen, if they counted then, and count only as long as their
    comments do; without a list of `accepts`, which an earlier version wrote, a word of whoever may
    now counts. `void`: the plan here does not hold any more, whatever becomes of its
    reasons; only a new one does. `planning`: since when that is awaited. `fault`: why there is
    none, `fault_since` when jobs began to meet trouble, `fault_books` what judged at the base then.
    `answered`: all commands
    up to this comment have their answers, of which `replies` are the newest; `edits`: and so have
    those in comments that were edited up to this time. `seen`: words up to this comment were looked
    at, also where somebody before them has to wait for an answer. `untold`: why GitHub took no
    comment, reaction or body. `reused`: what other heads came to, and all that failed there.
    `plans`: those that are not in force any more, whose runs may still leave a verdict. `held`:
    lanes that a switch, a cap or the circuit breaker keeps from starting.
    """

    number: int
    base_ref: str
    gated: bool
    state: CheckState
    title: str
    since: datetime
    forced: int = 0
    replaced: datetime | None = None
    pusher: str = ""
    pushers: list[str] = []
    fault: str = ""
    fault_since: datetime | None = None
    fault_books: str = ""
    void: bool = False
    planning: datetime | None = None
    answered: int = 0
    seen: int = 0
    edits: datetime | None = None
    replies: list[Reply] = []
    untold: str = ""
    grants: list[Grant] = []
    waivers: list[Waiver] = []
    accepts: list[Acceptance] | None = None
    reused: list[LaneResult] = []
    plans: list[Case] = []
    held: list[str] = []
    case: Case | None = None

    @property
    def judged(self) -> int:
        """Up to which comment it is settled which words count: those that are recorded."""
        return max(self.seen, self.answered)


def pack(value: BaseModel) -> str:
    """A model as text that can stand in an HTML comment."""
    data = zlib.compress(value.model_dump_json(by_alias=True, exclude_defaults=True).encode(), 9)
    return base64.b64encode(data).decode()


def unpack(kind: type[Model], text: str) -> Model | None:
    """What was packed, None where it is not that."""
    try:
        pump = zlib.decompressobj()
        data = pump.decompress(base64.b64decode(text, validate=True), MAX_UNPACKED)
        return None if pump.unconsumed_tail else kind.model_validate_json(data)
    except (ValueError, zlib.error, ValidationError):
        return None


def seal(text: str) -> str:
    """A digest that ties a text to the place that names it."""
    return sha256(text.encode()).hexdigest()[:16]


@cache
def code_digest() -> str:
    """A digest of the bot's own sources: which bot planned, and which one runs."""
    root, state = Path(__file__).resolve().parent.parent, sha256()
    for path in sorted(root.rglob("*.py")):
        state.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return state.hexdigest()[:16]
