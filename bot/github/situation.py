"""What a decision is made from, and what it may say."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from bot.github.approvals import People
from bot.github.case import Case, LaneResult, RowId, Standing
from bot.github.operate import Mode, Traffic
from bot.github.records import Comment, Pull
from bot.model import CheckState, Report

__all__ = [
    "GROUP", "Answer", "Cancel", "Close", "Decision", "Entry", "Group", "Nothing", "Open", "Plan",
    "Reaction", "Situation", "Step",
]  # fmt: skip

GROUP = 1  # the nonce of a merge group's run; comments have larger ids
Reaction = Literal["+1", "-1", "confused", "eyes"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A ledgered run of a lane: open, or closed with what it came to."""

    id: RowId
    posted: datetime
    result: LaneResult | None


@dataclass(frozen=True, slots=True)
class Group:
    """For a merge group: how the head of its pull request stands, whose words it runs under."""

    pull: Pull
    standing: Standing | None


@dataclass(frozen=True, slots=True)
class Situation:
    """All that GitHub says about one pull request, as it is now.

    `fresh`: a plan that `scope` has just made, `fault` why it could not. `group`: the head is a
    merge group of this pull request. `reuse`: results of other heads. `forged`: checks of our name
    that are not ours. `waiting`: rows whose machine is late. `moved`: the contracts at the base
    have changed. `gated`: whether the base branch has a policy. `books`: a digest of what judges
    there, empty without a policy. None where it was not asked yet.
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
    entries: tuple[Entry, ...]
    traffic: Traffic
    people: People
    fresh: Case | None = None
    fault: str = ""
    pusher: str = ""
    pushers: tuple[str, ...] = ()
    group: Group | None = None
    reuse: tuple[LaneResult, ...] | None = None
    forged: tuple[str, ...] | None = None
    answered: int = 0
    waiting: frozenset[RowId] = frozenset()
    moved: bool | None = None
    gated: bool | None = None
    books: str | None = None
    pulls: tuple[Pull, ...] | None = None


class Nothing(Exception):
    """This pull request calls for no write."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Start the planner, which makes a case."""


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


Step = Plan | Open | Close | Cancel


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command came to, and the reaction that says so."""

    comment: int
    login: str
    reaction: Reaction
    text: str


@dataclass(slots=True)
class Decision:
    """What should be: how the head stands, the verdict over it, what is started and answered.

    `rows`: plan ids and their states. `approved`: whether machines may run this plan now; not
    asked, and so False, where none has anything to do.
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
