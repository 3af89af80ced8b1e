"""What a decision is made from, and what it may say."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from bot.github.approvals import Need, People
from bot.github.case import Acceptance, Case, LaneResult, RowId, Standing
from bot.github.operate import Mode, Traffic
from bot.github.records import Comment, Pull
from bot.model import CheckState, Report

__all__ = [
    "GROUP", "UNKNOWN", "Answer", "Cancel", "Close", "Decision", "Entry", "Group", "Nothing",
    "Open", "Part", "Plan", "Queue", "Reaction", "Situation", "Step",
]  # fmt: skip

UNKNOWN = -1  # nobody has looked which forced push was the last, or it was too late
GROUP = 1  # the nonce of a merge group's run; comments have larger ids
Reaction = Literal["+1", "-1", "confused", "eyes"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A ledgered run of a lane: open, or closed with what it came to."""

    id: RowId
    posted: datetime
    result: LaneResult | None


@dataclass(frozen=True, slots=True)
class Part:
    """A pull request that a merge group merges, as it stands on the head that is in it.

    `standing`: None where nothing is known of it, or where it has another head by now. `hands`:
    who made it (None: not read yet).
    """

    pull: Pull
    head: str
    standing: Standing | None
    entries: tuple[Entry, ...]
    comments: tuple[Comment, ...]
    hands: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """What a merge group merges: its own pull request, and what is ahead (None: not read yet)."""

    own: Part
    ahead: tuple[Part, ...] | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """All of it, the own pull request first."""
        if self.ahead is None:
            raise Need("ahead")
        return (self.own, *self.ahead)


@dataclass(frozen=True, slots=True)
class Situation:
    """All that GitHub says about one pull request, as it is now.

    `others`: how other pull requests stand on this head, `twins` the numbers of all that have a
    verdict there. `fresh`: a plan that `scope` has just made, `fault` why it could not. `group`:
    the head is a merge group of this pull request. `again`: an event says that the head has
    come after another one; `forced`: the last forced push, 0 if there is none, or UNKNOWN, and
    `forced_at` when. `accepts`: words for digests so far, None if an earlier version kept none.
    `seen`: up to which comment words were looked at. `reuse`: results of other heads, `against`:
    what other pull requests came to on this one, without what passes. `forged`:
    checks of our name that are not ours. `waiting`: rows whose machine is late. `moved`: what
    judges at the base has changed; `elsewhere`: contracts of other ops have. `gated`: whether the
    base branch has a policy. `books`: a digest of what judges there, empty without a policy. None
    where it was not asked yet. `before`: how the pull request stood on the heads before this one.
    `queue`: the heads of all merge groups. `pending`: the verdict over the head is an open one.
    """

    now: datetime
    mode: Mode
    us: str
    app: bool
    code: str
    pull: Pull
    comments: tuple[Comment, ...]
    standing: Standing | None
    others: tuple[Standing, ...]
    twins: frozenset[int]
    entries: tuple[Entry, ...]
    traffic: Traffic
    people: People
    fresh: Case | None = None
    fault: str = ""
    pusher: str = ""
    pushers: tuple[str, ...] = ()
    group: Group | None = None
    reuse: tuple[LaneResult, ...] | None = None
    against: tuple[LaneResult, ...] = ()
    forged: tuple[str, ...] | None = None
    again: bool = False
    forced: int | None = None
    forced_at: datetime | None = None
    accepts: tuple[Acceptance, ...] | None = ()
    answered: int = 0
    seen: int = 0
    edits: datetime | None = None
    waiting: frozenset[RowId] = frozenset()
    moved: bool | None = None
    elsewhere: bool = False
    gated: bool | None = None
    books: str | None = None
    pulls: tuple[Pull, ...] | None = None
    before: tuple[Standing, ...] = ()
    queue: frozenset[str] | None = None
    pending: bool = False


class Nothing(Exception):
    """This pull request calls for no write."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Start the planner, which makes a case; for another pull request if it has a number."""

    number: int = 0


@dataclass(frozen=True, slots=True)
class Open:
    """Write a row, unless it is there, and start its run."""

    id: RowId
    written: bool


@dataclass(frozen=True, slots=True)
class Close:
    """End a row with what it came to."""

    result: LaneResult


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a run."""

    run: int


@dataclass(frozen=True, slots=True)
class Queue:
    """Plan the merge groups anew that may wait for a word which has come."""


Step = Plan | Open | Close | Cancel | Queue


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command came to, and the reaction that says so.

    `counts`: it is a word that a merge group may wait for.
    """

    comment: int
    login: str
    reaction: Reaction
    text: str
    counts: bool = False


@dataclass(slots=True)
class Decision:
    """What should be: how the head stands, the verdict over it, what is started and answered.

    `rows`: plan ids and their states. `approved`: whether machines may run this plan now; not
    asked, and so False, where none has anything to do. `typed`: what people must type for a merge
    group, and where; None where the report says it.
    """

    standing: Standing
    state: CheckState
    title: str
    report: Report | None
    head: str
    steps: list[Step] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    rows: list[tuple[str, str]] = field(default_factory=list)
    approved: bool = False
    typed: list[tuple[int, str]] | None = None
