"""Reads what GitHub says of one pull request, and more of it as the decision asks for it."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from bot.github.actor import Bot, Hint, is_waiting
from bot.github.approvals import Need, People
from bot.github.books import books_digest, shelf_digest
from bot.github.case import (
    MAX_PACKED,
    MAX_TWINS,
    LaneResult,
    Merged,
    RowId,
    Standing,
    pack,
)
from bot.github.combine import CROWDED
from bot.github.connection import NotFound, Refused
from bot.github.decide import decide
from bot.github.ledger import PREVIEW, READY, View
from bot.github.operate import traffic
from bot.github.parts import hands, planned_since, read_part
from bot.github.publish import marked_head, own_comments
from bot.github.records import Branch, Pull, Run
from bot.github.situation import Decision, Entry, Group, Nothing, Part, Situation
from bot.model import digest

__all__ = ["Reader"]

MAX_PUSHERS = 50
FRESH_S = 3.0  # a text that was read longer ago is read again before it is replaced


class Reader:
    """What is read of GitHub for one decision; more is read when the decision needs it."""

    def __init__(
        self,
        owner: Bot,
        number: int,
        hint: Hint,
        group: Branch | None = None,
    ) -> None:
        client = self.client = owner.client
        self.owner, self.number, self.hint, self.group = owner, number, hint, group
        self.us = client.identity.login
        self.now = owner.now()
        # A second look, right after the first: people's words and the ledger are read again.
        self.read_at: float = client.connection.now()
        self.real: Pull = client.pull(number)
        # A merge group is judged as if it were the pull request's head.
        self.pull = self.real.model_copy(update={"head": group}) if group else self.real
        self._runs: list[Run] | None = None
        self._tree: dict[str, str] | None = None
        self.comments = client.comments(number)
        own = own_comments(self.comments, self.us)
        self.stored = own[0].body if own else ""
        head = marked_head(self.stored)
        # The head before this one, as the event says or else our comment.
        head = hint.before or head
        self.earlier = "" if group or head == self.pull.head.sha else head
        self._earlier_view: View | None = None
        self.view: View = owner.ledger.read(self.pull.head.sha, number, self.stored)
        self.parts: Group | None = None
        self.closed: list[LaneResult] = []
        self.roles: dict[str, str] = {}
        self.authors: frozenset[str] | None = None
        self.forged: tuple[str, ...] | None = tuple(self.view.forged) or None
        self.gated: bool | None = None
        self.tip_books: str | None = None
        self.pulls: tuple[Pull, ...] | None = None
        self.gone = frozenset[int]()
        self.crowded = False
        self.reuse: tuple[LaneResult, ...] | None = None
        self.moved: bool | None = None
        self.elsewhere = False

    def all_runs(self) -> list[Run]:
        """The runs of the executor, read once."""
        if self._runs is None:
            self._runs = self.owner.runs()
        return self._runs

    def is_fresh(self) -> bool:
        """Whether texts were read so lately that they need not be read again before an edit."""
        return self.client.connection.now() - self.read_at < FRESH_S

    def branch(self) -> str:
        """The default branch, where workflows are started."""
        repo = self.pull.base.repo
        return (repo.default_branch if repo else "") or self.client.describe().default_branch

    def decide(self) -> Decision:
        """Decide, reading what is asked for until nothing is."""
        fault, fresh = self._fault(), self.hint.fresh
        if self.group and self.group.sha == self.real.head.sha:
            raise Nothing  # a branch of the queue that merges nothing: the head is judged as such
        standing = self.view.standings.get(self.number)
        if self.group and not self.owner.ledger.app and fresh is None and self.view.shown:
            if not is_waiting(self.view.shown.get(READY) or self.view.shown.get(PREVIEW)):
                raise Nothing  # the statuses of a merge group hold no plan: what they say stands
            standing = planned_since(self.client, self.real, self.group, self.now)
        if fresh is not None and len(pack(fresh)) > MAX_PACKED * 2 // 3:
            if fresh.head == self.pull.head.sha:
                fault = "the plan is too large to be kept: split the change"
            fresh = None
        moved = self.hint.pushed and self.hint.pushed != self.pull.head.sha
        situation = Situation(
            now=self.now,
            mode=self.owner.mode,
            us=self.us,
            app=self.owner.ledger.app,
            code=self.owner.code,
            pull=self.pull,
            comments=tuple(self.comments),
            standing=standing,
            others=(),
            twins=self.twins(),
            entries=tuple(self._entries()),
            traffic=traffic(self.all_runs(), self.us),
            people=People({}),
            fresh=fresh,
            fault=fault,
            pusher="" if moved else self.hint.pusher,
            pushers=self.pushers(),
            answered=self.answered(),
            edits=self.edits(),
        )
        situation = replace(situation, waiting=self._late(situation))
        if self.group and self.parts is None:
            link = Merged(number=self.number, head=self.real.head.sha)
            self.parts = Group(read_part(self.owner.ledger, link, self.real, self.comments))
        if self.owner.check_books:
            self._look_at_books()
        while True:
            situation = replace(
                situation,
                others=tuple(
                    item for n, item in sorted(self.view.standings.items()) if n != self.number
                ),
                people=People(dict(self.roles), self.authors),
                gated=self.gated,
                books=self.tip_books,
                pulls=self.pulls,
                reuse=self.reuse,
                forged=self.forged,
                moved=self.moved,
                elsewhere=self.elsewhere,
                group=self.parts,
            )
            try:
                return decide(situation)
            except Need as need:
                self._load(need)

    def _fault(self) -> str:
        """Why there is no plan, if that is said of this head; it may be an older job's word."""
        hint, standing = self.hint, self.view.standings.get(self.number)
        if self._is_crowded():
            return CROWDED
        if hint.fault_of:
            return hint.fault if hint.fault_of == self.pull.head.sha else ""
        # Nobody knows of which head: a plan that holds is not given up for it.
        holds = standing is not None and standing.case is not None and not standing.void
        return "" if holds else hint.fault

    def _load(self, need: Need) -> None:
        if need.what == "role":
            self.roles[need.name] = self.client.role(need.name)
        elif need.what == "authors":
            self.authors = self._authors()
        elif need.what == "gated":
            self.gated = self.books() is not None
        elif need.what == "books":
            self.tip_books = self.books() or ""
        elif need.what == "pulls":
            self.pulls = tuple(self.client.open_pulls())
            self._read_others(self.pulls)
        elif need.what == "forged":
            self.forged = self.owner.ledger.forged(self.view, self.pull.head.sha)
        elif need.what == "reuse":
            self.reuse = self._reuse()
        elif need.what == "moved":
            self._look_at_books()
        elif need.what == "ahead":
            self._load_ahead()
        else:
            raise AssertionError(need)

    def _load_ahead(self) -> tuple[Part, ...]:
        """What a merge group merges beside its own pull request, with what is known of each."""
        if self.group is None or self.parts is None:
            return ()
        if self.parts.ahead is None:
            standing = self.view.standings.get(self.number)
            case = self.hint.fresh or (standing.case if standing else None)
            links = case.merges[1:] if case else []
            ahead = tuple(read_part(self.owner.ledger, link) for link in links)
            self.parts = replace(self.parts, ahead=ahead)
        return self.parts.parts[1:]

    def _entries(self) -> list[Entry]:
        """The ledger's rows, with the result that is being published."""
        result = self.hint.result
        if result is None:
            return self.view.entries
        row = RowId.parse(result.row)
        return [
            Entry(entry.id, entry.posted, result) if entry.id == row else entry
            for entry in self.view.entries
        ]

    def _read_others(self, pulls: tuple[Pull, ...]) -> None:
        """Without an App, how other pull requests stand on this head is in their comments."""
        if self.owner.ledger.app:
            return
        for pull in pulls:
            if pull.head.sha == self.pull.head.sha and pull.number != self.number:
                for comment in own_comments(self.client.comments(pull.number), self.us)[:1]:
                    self.owner.ledger.unseal(self.view, comment.body)

    def _reuse(self) -> tuple[LaneResult, ...]:
        """Results of the head before this one, or of the heads that a merge group merges."""
        entries = self._of_earlier().entries
        if self.parts is not None:
            # What is ahead in the queue is in the group, and was measured on its own head.
            entries = [e for part in (self.parts.own, *self._load_ahead()) for e in part.entries]
        return tuple(entry.result for entry in entries if entry.result is not None)

    def _of_earlier(self) -> View:
        """The ledger of the head before this one."""
        if self._earlier_view is None:
            self._earlier_view = View()
            if self.earlier:
                ledger = self.owner.ledger
                with suppress(NotFound, Refused):  # no commit of ours
                    self._earlier_view = ledger.read(self.earlier, self.number, self.stored)
        return self._earlier_view

    def answered(self) -> int:
        """Up to which comment people have their answers, by the ledger: our comment proves nothing.

        A comment that names a wrong head only has people answered again.
        """
        return max((item.answered for item in self._remembered()), default=0)

    def twins(self) -> frozenset[int]:
        """The other pull requests whose verdict over this head is in the ledger."""
        found = (number for held in self.view.seals.values() for number in held)
        return frozenset(found) - {self.number}

    def _is_crowded(self) -> bool:
        """Whether the statuses have no room for this pull request among others with its head."""
        twins = self.twins()
        known = any(self.number in held for held in self.view.seals.values())
        if self.owner.ledger.app or known or len(twins) < MAX_TWINS:
            return False
        head = self.pull.head.sha
        same = {pull.number for pull in self.client.open_pulls() if pull.head.sha == head}
        self.gone = twins - same
        self.crowded = len(twins & same) >= MAX_TWINS
        return self.crowded

    def edits(self) -> datetime | None:
        """Up to which edit of a comment people were told that it commands nothing."""
        return max((item.edits for item in self._remembered() if item.edits), default=None)

    def pushers(self) -> tuple[str, ...]:
        """Who has pushed an earlier head of the pull request, as far as anybody saw it."""
        own, remembered = self.view.standings.get(self.number), self._remembered()
        found = {who for item in remembered for who in item.pushers}
        found |= {item.pusher for item in remembered if item is not own}
        return tuple(sorted(found - {""})[:MAX_PUSHERS])

    def _remembered(self) -> list[Standing]:
        """How the pull request stands, and stood on the head before this one."""
        views = [self.view, *([self._of_earlier()] if self.earlier else [])]
        return [item for view in views if (item := view.standings.get(self.number))]

    def _authors(self) -> frozenset[str]:
        """Everybody with a hand in the head; `?` stands for those that GitHub does not list."""
        more = {self.hint.pusher, *self.pushers()}
        if self.parts is None:
            found = hands(self.client, self.real, self.view.standings.get(self.number))
            return _logins(found | more)
        # A merge group is pushed by the queue: its hands are those of what it merges.
        own, *ahead = (
            replace(part, hands=_logins(self._made(part)))
            for part in (self.parts.own, *self._load_ahead())
        )
        own = replace(own, hands=(own.hands or frozenset()) | _logins(more))
        self.parts = Group(own, tuple(ahead))
        return frozenset().union(*(part.hands or () for part in self.parts.parts))

    def _made(self, part: Part) -> set[str]:
        found = hands(self.client, part.pull, part.standing)
        return found if part.pull.head.sha == part.head else {*found, "?"}

    def _late(self, situation: Situation) -> frozenset[RowId]:
        """Rows whose job has waited for a machine longer than its lane allows."""
        standing = situation.standing
        case = standing.case if standing else None
        found = set()
        for entry in situation.entries:
            run = situation.traffic.run_of(entry.id)
            lane = case.lanes.get(entry.id.lane) if case else None
            if entry.result is not None or run is None or run.done or lane is None:
                continue
            wait = timedelta(seconds=lane.queue_wait_s)
            if self.now - entry.posted > wait and any(
                job.status == "queued" and self.now - (job.created_at or entry.posted) > wait
                for job in self.client.jobs(run.id)
            ):
                found.add(entry.id)
        return frozenset(found)

    def _look_at_books(self) -> None:
        """Whether the contracts on the base branch are no longer those that made the plan."""
        standing = self.view.standings.get(self.number)
        case = standing.case if standing else None
        self.moved = self.elsewhere = False
        if case is None or self.hint.fresh is not None or case.base_ref != self.pull.base.ref:
            return
        # A preview has no books: its plan says so with the digest of none.
        self.moved = (self.books(case.watched, case.ops) or digest([])) != case.books
        self.elsewhere = shelf_digest(self._tip()) != case.shelf

    def books(self, watched: Iterable[str] = (), ops: Collection[str] | None = None) -> str | None:
        """What judges at the tip of the base branch, as a digest; None without a policy."""
        return books_digest(self._tip(), watched, ops)

    def _tip(self) -> dict[str, str]:
        """All paths at the tip of the base branch; none where it is gone."""
        if self._tree is None:
            self._tree = {}
            with suppress(NotFound):
                self._tree = self.client.tree(self.pull.base.ref)
        return self._tree


def _logins(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names if name)
