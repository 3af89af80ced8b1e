"""Reads what GitHub says of one pull request, and more of it as the decision asks for it."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from bot.github.actor import OPEN, Bot, Hint, is_waiting
from bot.github.approvals import Need, People
from bot.github.books import books_digest, shelf_digest
from bot.github.case import (
    MAX_PACKED,
    MAX_TWINS,
    Acceptance,
    Case,
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
from bot.github.records import Branch, Comment, IssueEvent, Pull, Run
from bot.github.rows import adverse
from bot.github.situation import (
    UNKNOWN,
    Decision,
    Entry,
    Group,
    Nothing,
    Part,
    Situation,
)
from bot.model import Verdict, digest

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
        # The heads before this one, as the event and our comment say; neither may know of all.
        before = () if group else dict.fromkeys((hint.before, marked_head(self.stored)))
        self.earlier = [head for head in before if head not in ("", self.pull.head.sha)]
        self._earlier_views: list[View] | None = None
        self.forced: int | None = None
        self.forced_at: datetime | None = None
        self._pushes: dict[int, list[IssueEvent]] = {}
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
        self._stored_of: dict[int, str] = {}
        self.queue: frozenset[str] | None = None
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
        self._look_at_twins(self.view)
        self._look_at_earlier()
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
            pusher=self._pusher(),
            pushers=self.pushers(),
            again=self._is_back(),
            accepts=self.accepts(),
            answered=self.answered(),
            seen=max((item.judged for item in self._known()), default=0),
            edits=self.edits(),
            before=tuple(self._remembered(self._of_earlier())),
            pending=self._is_pending(),
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
                against=tuple(self._against(self.view)),
                forced=self.forced,
                forced_at=self.forced_at,
                forged=self.forged,
                moved=self.moved,
                elsewhere=self.elsewhere,
                group=self.parts,
                queue=self.queue,
            )
            try:
                return decide(situation)
            except Need as need:
                self._load(need)

    def _look_at_earlier(self) -> None:
        """What failed on another head is known before anything is reused."""
        if self.reuse is None and (self.earlier or self.hint.elsewhere or self._outlived()):
            self.reuse = self._reuse()

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

    def _pusher(self) -> str:
        """Who has pushed this head, if the event is about it."""
        return self.hint.pusher if self.hint.pushed == self.pull.head.sha else ""

    def _is_back(self) -> bool:
        """Whether the event is that this head has come after another one."""
        hint, head = self.hint, self.pull.head.sha
        return self.group is None and hint.pushed == head and hint.before not in ("", head)

    def _is_pending(self) -> bool:
        """Whether an open verdict over the head is of this pull request, too."""
        shown, seals = self.view.shown, self.view.seals
        return any(shown[name].state in OPEN and self.number in seals[name] for name in shown)

    def _load(self, need: Need) -> None:
        if need.what in ("role", "authors", "forced"):
            self._load_people(need)
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
        elif need.what == "queue":
            self.queue = frozenset(branch.sha for branch in self.owner.queue())
        elif need.what == "ahead":
            self._load_ahead()
        else:
            raise AssertionError(need)

    def _load_people(self, need: Need) -> None:
        if need.what == "role":
            self.roles[need.name] = self.client.role(need.name)
        elif need.what == "authors":
            self.authors = self._authors()
        else:
            self.forced = self._last_forced()

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
                self.owner.ledger.unseal(self.view, self._stored(pull.number))

    def _stored(self, number: int) -> str:
        """Our comment on another pull request, read once."""
        if number not in self._stored_of:
            own = list[Comment]()
            with suppress(NotFound):
                own = own_comments(self.client.comments(number), self.us)
            self._stored_of[number] = own[0].body if own else ""
        return self._stored_of[number]

    def _look_at_twins(self, view: View) -> None:
        """Without an App, what others came to on a head is in their comments, also of closed ones.

        What is known of it is not asked for again.
        """
        if self.owner.ledger.app:
            return
        own = view.standings.get(self.number)
        known = {item.row for item in own.reused} if own else set()
        numbers = {row.number for row in view.untold if str(row) not in known}
        numbers |= {number for held in view.seals.values() for number in held} - {self.number}
        for number in sorted(numbers):
            self.owner.ledger.unseal(view, self._stored(number))

    def _against(self, view: View) -> list[LaneResult]:
        """What speaks against a head by the runs of other pull requests that have, or had, it."""
        others = [item for number, item in view.standings.items() if number != self.number]
        own = view.standings.get(self.number)
        cases = [case for case in (self.hint.fresh, own.case if own else None) if case]
        found = self.owner.ledger.elsewhere(view, cases)
        return adverse([*found, *(result for item in others for result in item.reused)])

    def _reuse(self) -> tuple[LaneResult, ...]:
        """What the heads before this one know, or the heads that a merge group merges."""
        if self.parts is not None:
            # What is ahead in the queue is in the group, and was measured on its own head.
            parts, against = (self.parts.own, *self._load_ahead()), []
            known = [(part.entries, part.standing) for part in parts]
        else:
            views = self._of_earlier()
            known = [(tuple(view.entries), view.standings.get(self.number)) for view in views]
            against = [result for view in views for result in self._against(view)]
            known += [(self._untold(view), None) for view in self._of_outlived()]
        # The oldest first: where there is no room for all fails, the newest are kept.
        found = [result for _, standing in known if standing for result in standing.reused]
        for entries, _ in reversed(known):
            told = sorted(entries, key=lambda entry: entry.posted)
            found += [entry.result for entry in told if entry.result]
        found += against
        late = self.hint.elsewhere
        return (*found, late) if late else tuple(found)

    def _of_earlier(self) -> list[View]:
        """The ledgers of the heads before this one."""
        if self._earlier_views is None:
            self._earlier_views = []
            for head in self.earlier:
                with suppress(NotFound, Refused):  # no commit of ours
                    view = self.owner.ledger.read(head, self.number, self.stored)
                    self._look_at_twins(view)
                    self._earlier_views.append(view)
        return self._earlier_views

    def _outlived(self) -> list[Case]:
        """Plans of other heads whose runs have ended since anybody looked."""
        kept = [plan for item in self._known() for plan in item.plans] if not self.group else []
        known = {self.pull.head.sha, *self.earlier}
        plans = [plan for plan in kept if plan.head not in known]
        runs = traffic(self.all_runs(), self.us).open_runs() if plans else []
        work = {run.row.head for run in runs if run.row.number == self.number}
        return [plan for plan in plans if plan.head not in work]

    def _of_outlived(self) -> list[View]:
        """The ledgers of those heads: whoever had to tell the present one may have died of it."""
        plans, views = self._outlived(), list[View]()
        for head in dict.fromkeys(plan.head for plan in plans):
            with suppress(NotFound, Refused):
                views.append(self.owner.ledger.read(head, self.number, self.stored, plans))
        return views

    def _untold(self, view: View) -> tuple[Entry, ...]:
        """Rows of such a head without those whose fail is known; statuses hold less of it."""
        known = (item for standing in self._known() for item in standing.reused)
        told = {item.row for item in known if item.verdict is Verdict.FAIL}
        return tuple(entry for entry in view.entries if str(entry.id) not in told)

    def _last_forced(self) -> int:
        """The last forced push; it is not known where the head has moved while we looked."""
        pushes = self._force_pushes(self.number)
        if not pushes:
            return 0
        same = self.client.pull(self.number).head.sha == self.real.head.sha
        self.forced_at = pushes[-1].created_at
        return pushes[-1].id if same else UNKNOWN

    def _force_pushes(self, number: int) -> list[IssueEvent]:
        if number not in self._pushes:
            self._pushes[number] = self.client.force_pushes(number)
        return self._pushes[number]

    def answered(self) -> int:
        """Up to which comment people have their answers, by the ledger: our comment proves nothing.

        A comment that names a wrong head only has people answered again.
        """
        return max((item.answered for item in self._known()), default=0)

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
        return max((item.edits for item in self._known() if item.edits), default=None)

    def accepts(self) -> tuple[Acceptance, ...] | None:
        """The words by which digests were accepted, here or on an earlier head.

        None if an earlier version of the bot has written of them, which kept none.
        """
        known = self._known()
        lists = [item.accepts for item in known if item.accepts is not None]
        if known and not lists:
            return None
        found = {(word.comment, word.code): word for words in lists for word in words}
        return tuple(found[key] for key in sorted(found))

    def pushers(self) -> tuple[str, ...]:
        """Who has pushed here beside the one who first pushed this head, as far as anybody saw it.

        `?` stands for those that are too many.
        """
        own = self.view.standings.get(self.number)
        first = (own.pusher if own else "") or self._pusher()
        found = {who for item in self._known() for who in item.pushers}
        found |= {item.pusher for item in self._known() if item is not own}
        found |= {self.hint.pusher} - {first}
        names = sorted(found - {""})
        return tuple(names if len(names) <= MAX_PUSHERS else [*names[: MAX_PUSHERS - 1], "?"])

    def _known(self) -> list[Standing]:
        """How the pull request stands, and stood on the heads before this one."""
        return self._remembered([self.view, *self._of_earlier()])

    def _remembered(self, views: Iterable[View]) -> list[Standing]:
        return [item for view in views if (item := view.standings.get(self.number))]

    def _authors(self) -> frozenset[str]:
        """Everybody with a hand in the head; `?` stands for those that GitHub does not list."""
        more = {self.hint.pusher, *self.pushers()}
        if self.parts is None:
            found = hands(self.client, self.real, self.view.standings.get(self.number))
            return _logins(found | more | self._forcers(self.number))
        # A merge group is pushed by the queue: its hands are those of what it merges.
        own, *ahead = (
            replace(part, hands=_logins(self._made(part)))
            for part in (self.parts.own, *self._load_ahead())
        )
        own = replace(own, hands=(own.hands or frozenset()) | _logins(more))
        self.parts = Group(own, tuple(ahead))
        return frozenset().union(*(part.hands or () for part in self.parts.parts))

    def _made(self, part: Part) -> set[str]:
        found = hands(self.client, part.pull, part.standing) | self._forcers(part.pull.number)
        return found if part.pull.head.sha == part.head else {*found, "?"}

    def _forcers(self, number: int) -> set[str]:
        """Who has forced a push to a pull request: GitHub lists them, whoever else has seen it."""
        pushes = self._force_pushes(number)
        return {push.actor.login for push in pushes if push.actor is not None}

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
