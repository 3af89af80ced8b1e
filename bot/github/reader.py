"""Reads what GitHub says of one pull request, and more of it as the decision asks for it."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from bot.github.approvals import MAX_COMMITS, Need, People
from bot.github.books import books_digest
from bot.github.case import MAX_PACKED, Case, LaneResult, Merged, RowId, Standing, code_digest, pack
from bot.github.client import Client
from bot.github.connection import NotFound, Refused
from bot.github.decide import decide
from bot.github.ledger import PREVIEW, READY, Ledger, Shown, View
from bot.github.operate import EXECUTOR, Mode, traffic
from bot.github.publish import marked_head, own_comments
from bot.github.records import Branch, Pull, Run
from bot.github.situation import Decision, Entry, Group, Nothing, Situation
from bot.model import CheckState, digest

__all__ = ["NO_HINT", "OPEN", "Bot", "Hint", "Reader", "is_waiting"]

RECENT = timedelta(hours=36)
MAX_PUSHERS = 50
OPEN = ("queued", "in_progress", "pending")
# How the title of a red check begins, whose plan is still asked for.
UNPLANNED = "infra: no plan was made"
FRESH_S = 3.0  # a text that was read longer ago is read again before it is replaced


@dataclass(frozen=True, slots=True)
class Hint:
    """What an event adds: a plan or why there is none, a lane's result.

    `fault_of`: the head that the fault is of, empty where nobody knows. `pusher`: who has pushed
    which head (`pushed`), and after which one (`before`).
    """

    fresh: Case | None = None
    fault: str = ""
    fault_of: str = ""
    pusher: str = ""
    pushed: str = ""
    before: str = ""
    result: LaneResult | None = None


NO_HINT = Hint()


def is_waiting(shown: Shown | None) -> bool:
    """Whether what is shown of a merge group is not the last word on it."""
    return shown is None or shown.state in OPEN or shown.title.startswith(UNPLANNED)


class Bot:
    """Who acts, where the ledger stands, and which switches are set.

    `check_books`: whether to look if the contracts have changed at the base though nothing is to
    be made green.
    """

    def __init__(
        self,
        client: Client,
        *,
        app: bool,
        mode: Mode,
        record: Callable[[Decision], None] = lambda _: None,
        code: str = "",
        check_books: bool = False,
    ) -> None:
        self.client, self.mode, self.record = client, mode, record
        self.check_books = check_books
        self.ledger = Ledger(client, app=app)
        self.code = code or code_digest()

    def stored(self, number: int) -> str:
        """Our comment, which holds the texts of a ledger of statuses."""
        if self.ledger.app:
            return ""
        own = own_comments(self.client.comments(number), self.client.identity.login)
        return own[0].body if own else ""

    def now(self) -> datetime:
        """The time."""
        return datetime.fromtimestamp(self.client.connection.now(), UTC)

    def runs(self) -> list[Run]:
        """The runs of the executor of the last days, whoever started them."""
        since = self.now() - RECENT
        created = f">={since:%Y-%m-%dT%H:%M:%SZ}"
        return self.client.runs(EXECUTOR, event="workflow_dispatch", created=created)


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
        self.own_view: View | None = None
        self.closed: list[LaneResult] = []
        self.roles: dict[str, str] = {}
        self.authors: frozenset[str] | None = None
        self.forged: tuple[str, ...] | None = tuple(self.view.forged) or None
        self.gated: bool | None = None
        self.tip_books: str | None = None
        self.pulls: tuple[Pull, ...] | None = None
        self.reuse: tuple[LaneResult, ...] | None = None
        self.moved: bool | None = None

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
            standing = self._planned_since(self.group)
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
            entries=tuple(self._entries()),
            traffic=traffic(self.all_runs(), self.us),
            people=People({}),
            fresh=fresh,
            fault=fault,
            pusher="" if moved else self.hint.pusher,
            pushers=self.pushers(),
            answered=self.answered(),
            group=self._grouped() if self.group else None,
        )
        situation = replace(situation, waiting=self._late(situation))
        if self.owner.check_books:
            self.moved = self._moved()
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
            )
            try:
                return decide(situation)
            except Need as need:
                self._load(need)

    def _planned_since(self, group: Branch) -> Standing:
        """How a merge group without an App stands while its plan is awaited, by its statuses.

        Of the first of them: each may be written again, and its time with it.
        """
        times = [
            status.created_at
            for status in self.client.statuses(group.sha)
            if status.creator and status.creator.login == self.us
            if status.context in (READY, PREVIEW)
        ]
        began = min(times, default=self.now)
        return Standing(
            number=self.number,
            base_ref=self.pull.base.ref,
            gated=True,
            state=CheckState.IN_PROGRESS,
            title="Planning",
            since=began,
            planning=began,
        )

    def _fault(self) -> str:
        """Why there is no plan, if that is said of this head; it may be an older job's word."""
        hint, standing = self.hint, self.view.standings.get(self.number)
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
            self.moved = self._moved()
        else:
            raise AssertionError(need)

    def _grouped(self) -> Group:
        """How the pull request's own head stands, whose approval a merge group runs under."""
        head = self.real.head.sha
        self.own_view = self.owner.ledger.read(head, self.number, self.stored)
        return Group(self.real, self.own_view.standings.get(self.number))

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
        if self.own_view is not None:
            # What is ahead in the queue is in the group, and was measured on its own head.
            views = [self.own_view, *(self._view_of(link) for link in self._ahead())]
        else:
            views = [self._of_earlier()]
        found = (entry.result for view in views for entry in view.entries)
        return tuple(result for result in found if result is not None)

    def _ahead(self) -> list[Merged]:
        """What a merge group merges beside its own pull request."""
        standing = self.view.standings.get(self.number)
        case = self.hint.fresh or (standing.case if standing else None)
        return case.merges[1:] if self.group and case else []

    def _view_of(self, link: Merged) -> View:
        """The ledger of a head that is ahead in the queue."""
        return self.owner.ledger.read(link.head, link.number, self.owner.stored(link.number))

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
        # A merge group is pushed by the queue: its hands are those of what it merges.
        found = self._hands(self.real, self.own_view or self.view)
        found |= {self.hint.pusher, *self.pushers()}
        for link in self._ahead():
            pull = self.client.pull(link.number)
            found |= self._hands(pull, self._view_of(link))
            found |= set() if pull.head.sha == link.head else {"?"}
        return frozenset(login.lower() for login in found - {""})

    def _hands(self, pull: Pull, view: View) -> set[str]:
        """Who wrote, committed or pushed a pull request's head, and who holds its fork."""
        commits, standing = self.client.commits(pull.number), view.standings.get(pull.number)
        found = {
            account.login
            for commit in commits
            for account in (commit.author, commit.committer)
            if account is not None
        }
        if len(commits) >= MAX_COMMITS:
            found.add("?")
        found |= {pull.user.login} if pull.user else set()
        head, base = pull.head.repo, pull.base.repo
        # A fork is a person's own; the branches of the repository are everybody's who may push.
        if head is not None and (base is None or head.id != base.id):
            found.add(head.full_name.partition("/")[0])
        return found | ({standing.pusher, *standing.pushers} if standing else set())

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

    def _moved(self) -> bool:
        """Whether the contracts on the base branch are no longer those that made the plan."""
        standing = self.view.standings.get(self.number)
        case = standing.case if standing else None
        if case is None or self.hint.fresh is not None or case.base_ref != self.pull.base.ref:
            return False
        # A preview has no books: its plan says so with the digest of none.
        return (self.books(case.watched) or digest([])) != case.books

    def books(self, watched: Iterable[str] = ()) -> str | None:
        """What judges at the tip of the base branch, as a digest; None without a policy."""
        if self._tree is None:
            try:
                self._tree = self.client.tree(self.pull.base.ref)
            except NotFound:
                return None
        return books_digest(self._tree, watched)
