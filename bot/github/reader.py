"""Reads what GitHub says of one pull request, and more of it as the decision asks for it."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from bot.github.approvals import MAX_COMMITS, Need, People
from bot.github.books import books_digest
from bot.github.case import MAX_PACKED, Case, LaneResult, RowId, Standing, code_digest, pack
from bot.github.client import Client
from bot.github.connection import NotFound, Refused
from bot.github.decide import decide
from bot.github.ledger import Ledger, View
from bot.github.operate import EXECUTOR, Mode, traffic
from bot.github.publish import marked_head, own_comments
from bot.github.records import Branch, Pull, Run
from bot.github.situation import Decision, Entry, Group, Nothing, Situation

__all__ = ["NO_HINT", "Bot", "Hint", "Reader"]

RECENT = timedelta(hours=36)
MAX_PUSHERS = 50
FRESH_S = 3.0  # a text that was read longer ago is read again before it is replaced


@dataclass(frozen=True, slots=True)
class Hint:
    """What an event adds: a plan or why there is none, a lane's result.

    `pusher`: who has pushed which head (`pushed`), and after which one (`before`).
    """

    fresh: Case | None = None
    fault: str = ""
    pusher: str = ""
    pushed: str = ""
    before: str = ""
    result: LaneResult | None = None


NO_HINT = Hint()


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
        fault = self.hint.fault
        fresh = self.hint.fresh
        if self.group and self.group.sha == self.real.head.sha:
            raise Nothing  # a branch of the queue that merges nothing: the head is judged as such
        if self.group and not self.owner.ledger.app and fresh is None and self.view.shown:
            raise Nothing  # the statuses of a merge group hold no plan: what they say stands
        if fresh is not None and len(pack(fresh)) > MAX_PACKED * 2 // 3:
            fresh, fault = None, "the plan is too large to be kept: split the change"
        moved = self.hint.pushed and self.hint.pushed != self.pull.head.sha
        situation = Situation(
            now=self.now,
            mode=self.owner.mode,
            us=self.us,
            app=self.owner.ledger.app,
            code=self.owner.code,
            pull=self.pull,
            comments=tuple(self.comments),
            standing=self.view.standings.get(self.number),
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
                pulls=self.pulls,
                reuse=self.reuse,
                forged=self.forged,
                moved=self.moved,
            )
            try:
                return decide(situation)
            except Need as need:
                self._load(need)

    def _load(self, need: Need) -> None:
        if need.what == "role":
            self.roles[need.name] = self.client.role(need.name)
        elif need.what == "authors":
            self.authors = self._authors()
        elif need.what == "gated":
            self.gated = self.books() is not None
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
        """Results of the head before this one, which our comment names."""
        if self.own_view is not None:
            found = self.own_view.entries
            return tuple(entry.result for entry in found if entry.result is not None)
        found = self._of_earlier().entries
        return tuple(entry.result for entry in found if entry.result is not None)

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
        pull, standing = self.pull, self.view.standings.get(self.number)
        commits = self.client.commits(self.number)
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
        found |= {standing.pusher} if standing and standing.pusher else set()
        found |= {self.hint.pusher} if self.hint.pusher else set()
        found |= set(self.pushers())
        return frozenset(login.lower() for login in found)

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
        return self.books(case.watched) != case.books

    def books(self, watched: Iterable[str] = ()) -> str | None:
        """What judges at the tip of the base branch, as a digest; None without a policy."""
        if self._tree is None:
            try:
                self._tree = self.client.tree(self.pull.base.ref)
            except NotFound:
                return None
        return books_digest(self._tree, watched)
