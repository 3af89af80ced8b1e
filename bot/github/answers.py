"""What people said: orders for machines, and one answer to each command; pure."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from bot.github.approvals import (
    LATER,
    Said,
    deciders,
    digests,
    edited,
    may_order,
    said,
    shortfall,
)
from bot.github.case import Acceptance, Case, Grant, Reply, RowId, Standing
from bot.github.holding import shown_since
from bot.github.lanes import Lanes
from bot.github.operate import is_queued
from bot.github.situation import Answer, Reaction, Situation

__all__ = ["Answers", "told", "unanswered", "without_plan"]

MAX_REPLIES, MAX_REPLY = 5, 300


def unanswered(now: Situation, heard: Collection[Said]) -> list[Said]:
    """Commands that were not carried out yet."""
    return [item for item in heard if item.comment.id > now.answered]


def told(now: Situation, standing: Standing, answers: Collection[Answer], title: str) -> Standing:
    """The standing after everybody was answered; who was not will be, the next time."""
    given = {item.comment for item in answers}
    asked = {item.comment.id for item in [*said(now.comments, now.us), *_edited(now)]}
    left = min((c for c in asked if c > now.answered and c not in given), default=None)
    done = [c for c in given if left is None or c < left]
    new = [
        Reply(
            comment=item.comment,
            login=item.login,
            text=(title if item.text == "status" else item.text)[:MAX_REPLY],
        )
        for item in answers
        if item.text
    ]
    # Who is answered again after a job died is not told twice.
    again = {item.comment for item in new}
    kept = [item for item in standing.replies if item.comment not in again]
    edits = [item.comment.updated_at for item in _edited(now) if item.comment.id in given]
    update = {
        "answered": max([now.answered, *done]),
        "seen": max([standing.seen, *given]),
        "edits": max(edits, default=now.edits),
        "replies": [*kept, *new][-MAX_REPLIES:],
    }
    return standing.model_copy(update=update)


def without_plan(now: Situation, heard: Collection[Said], *, again: bool) -> list[Answer]:
    """The answers where no plan can be made; `again`: it is tried again, as somebody asked for."""
    found = _plain(now, heard)
    for item in unanswered(now, heard):
        kind = item.command.kind
        if kind in ("run", "rerun"):
            if again:
                found.append(_answer(item, "+1", "the plan is made again"))
        elif kind not in ("unreadable", "help", "status"):
            found.append(_answer(item, "-1", "there is no plan yet; type it again when there is"))
    return found


def _plain(now: Situation, heard: Collection[Said]) -> list[Answer]:
    """Answers that need no plan: to questions, misspelt lines and edited comments."""
    found = [
        _answer(
            item,
            "confused",
            f"an edited comment commands nothing; type {item.command.line} in a new one",
        )
        for item in _edited(now)
    ]
    for item in unanswered(now, heard):
        kind = item.command.kind
        if kind == "unreadable":
            missed = item.command.arguments[0]
            found.append(_answer(item, "confused", f"not understood; type {missed}"))
        elif kind in ("help", "status"):
            found.append(_answer(item, "eyes", kind))
    return found


def _edited(now: Situation) -> list[Said]:
    """Commands in edited comments, of whose edit nobody was told yet; some had their answer."""
    found = edited(now.comments, now.us)
    return [item for item in found if not now.edits or item.comment.updated_at > now.edits]


def _answer(item: Said, reaction: Reaction, text: str) -> Answer:
    return Answer(item.comment.id, item.login, reaction, text)


class Answers:
    """Commands on a head that has a plan."""

    def __init__(self, now: Situation, case: Case, heard: Collection[Said], lanes: Lanes) -> None:
        self.now, self.pull, self.case = now, now.pull, case
        self.heard, self.lanes = heard, lanes
        self.given: list[Answer] = []
        self._ordered: list[tuple[Said, list[RowId]]] = []
        self._waits: set[int] = set()  # comments with an order whose time has not come
        self._since = shown_since(now)

    def _say(self, item: Said, reaction: Reaction, text: str, *, counts: bool = False) -> None:
        answer = _answer(item, reaction, text)
        self.given.append(replace(answer, counts=counts))

    # Orders.

    def orders(self) -> list[RowId]:
        """Rows that people ask for; each command is carried out once."""
        for item in unanswered(self.now, self.heard):
            kind = item.command.kind
            if kind == "cancel":
                self._cancel(item)
            elif kind in ("run", "rerun"):
                self._order(item)
        return [row for _, rows in self._ordered for row in rows]

    def _order(self, item: Said) -> None:
        case, lanes = self.case, self.case.planned_lanes()
        lane, op = item.command.arguments if item.command.kind == "run" else ("", "")
        if refusal := self._cannot_order(item):
            self._say(item, "-1", refusal)
            return
        if lane and lane not in lanes:
            self._say(item, "-1", f"the plan has no lane {lane}; it has {', '.join(lanes)}")
            return
        if op and op not in {job.op for job in case.report.plan.jobs if job.lane == lane}:
            self._say(item, "-1", f"the plan has no job for {op} on {lane}")
            return
        head = self.pull.head.sha
        wanted = [
            RowId(self.pull.number, head, case.plan, name, item.comment.id)
            for name in lanes
            if lane in ("", name)
        ]
        # Some of it may have been carried out already, and the rest had to wait.
        known = {entry.id for entry in self.lanes.entries}
        due = [row for row in wanted if row in known or self.lanes.may_run_again(row.lane)]
        if not due:
            self._say_nothing_runs(item, [row.lane for row in wanted])
            return
        self._ordered.append((item, due))

    def _say_nothing_runs(self, item: Said, lanes: Sequence[str]) -> None:
        """The answer where all is proven here: of a broken lane it is a word for merge groups."""
        since = {lane: self.lanes.broken_since(lane) for lane in lanes}
        mended = [lane for lane, at in since.items() if at and item.comment.created_at > at]
        if mended and self.now.app:
            text = f"nothing to run here; merge groups run {', '.join(mended)} again"
            self._say(item, "+1", f"{text}: queue it again", counts=True)
            return
        text = "nothing to run again: only what was lost or not proven is, a fail stays a fail"
        self._say(item, "-1", text)

    def started(self, back: Mapping[str, str]) -> None:
        """Answers to orders, now that their rows are open or held back, and why.

        What is only queued is not answered: the order is found again the next time.
        """
        open_ = {e.id.lane for e in self.lanes.entries if e.result is None}
        known = {entry.id for entry in self.lanes.entries}
        for item, rows in self._ordered:
            runs = [row.lane for row in rows if row in known or row.lane in open_]
            held = [row.lane for row in rows if row.lane not in runs]
            why = {lane: back.get(lane, f"FLA_BOT is {self.now.mode}") for lane in held}
            if any(is_queued(reason) for reason in why.values()):
                self._waits.add(item.comment.id)
                continue
            text = "; ".join(f"{lane} does not run: {reason}" for lane, reason in why.items())
            if runs:
                text = "; ".join([f"runs {', '.join(runs)}", *([text] if text else [])])
            self._say(item, "+1" if runs else "-1", text)

    def done(self) -> list[Answer]:
        """All answers; whoever still waits for one of a comment's commands gets none for it yet."""
        return [answer for answer in self.given if answer.comment not in self._waits]

    def _cannot_order(self, item: Said) -> str:
        if item.comment.created_at <= self._since:
            return "the head has moved since; type it again if it still holds"
        if self.lanes.barred:
            return self.lanes.barred
        if not self.lanes.permit.given:
            return f"this head is not approved; type /fla-bot approve {self.pull.head.sha}"
        return self._no_runner(item)

    def _no_runner(self, item: Said) -> str:
        """Why somebody may neither start nor end machines, or nothing."""
        if may_order(self.pull, self.case, item.login, self.now.people):
            return ""
        return f"only {', '.join(self.case.approvals.run)} or the author may"

    def _cancel(self, item: Said) -> None:
        if refusal := self._no_runner(item):
            self._say(item, "-1", refusal)
            return
        self._say(item, "+1", "")
        # An order that still waits is taken back, too.
        for earlier, _ in self._ordered:
            self._say(earlier, "-1", f"cancelled by {item.login}")
        self._ordered.clear()
        for i, entry in enumerate(self.lanes.entries):
            if entry.result is None and entry.posted <= item.comment.created_at:
                self.lanes.entries[i] = self.lanes.close(entry, f"cancelled by {item.login}")

    # Words.

    def words(
        self,
        granted: Collection[Grant],
        accepted: Mapping[str, str],
        accepts: Collection[Acceptance],
        refused: Mapping[tuple[int, str], str],
    ) -> None:
        """Answers to what is no order: words that count or not, questions, misspelt lines.

        `granted`: words by which machines may run; `accepts`: words for digests; both recorded.
        """
        self.given += _plain(self.now, self.heard)
        for item in unanswered(self.now, self.heard):
            kind = item.command.kind
            if kind == "approve":
                self._approve(item, granted)
            elif kind == "accept":
                self._accept(item, accepted, accepts)
            elif kind == "waive":
                reason = refused.get((item.comment.id, item.command.arguments[0]), "")
                self._say(item, "-1" if reason else "+1", reason, counts=not reason)

    def _approve(self, item: Said, granted: Collection[Grant]) -> None:
        head = self.pull.head.sha
        if item.command.arguments != (head,):
            self._say(item, "-1", f"the head is another one; type /fla-bot approve {head}")
            return
        roles, found = self.case.approvals.run, {grant.comment: grant for grant in granted}
        if self.now.people.role(item.login) not in roles:
            self._say(item, "-1", f"only {', '.join(roles)} may approve")
        elif item.comment.id not in found:
            self._say(item, "-1", LATER)
        elif short := shortfall(self.pull, self.case, found[item.comment.id]):
            # It reaches as far as what was shown when it was given.
            self._say(item, "-1", f"{short}; for this plan type /fla-bot approve {head}")
        else:
            self._say(item, "+1", "", counts=True)

    def _accept(
        self, item: Said, accepted: Mapping[str, str], accepts: Collection[Acceptance]
    ) -> None:
        (code,) = item.command.arguments
        if code in accepted:
            self._say(item, "+1", "", counts=True)
            return
        waits = [entry.accept for entry in self.case.report.checklist if entry.accept]
        if code not in waits:
            shown = ", ".join(f"/fla-bot accept {other}" for other in waits) or "nothing"
            text = f"no such digest waits; what waits: {shown}"
            if Acceptance(comment=item.comment.id, code=code) in accepts:
                # Of two edits together a merge group makes a digest of its own.
                text += f"; a merge group that asks for {code} takes it from who has no hand in it"
                self._say(item, "eyes", text, counts=True)
            else:
                self._say(item, "-1", text)
            return
        op = digests(self.case).get(code, "")
        allowed = deciders(self.case, self.case.approvals.accept, op)
        why = self.now.people.barred(item.login)
        self._say(item, "-1", why or f"only {allowed} may, and nobody who wrote or pushed it")
