"""From the state of one pull request to the writes that it calls for; pure.

Every event ends here: nothing is remembered but what GitHub holds, so that a lost, late or doubled
event changes nothing. What must still be read is asked for with `Need`.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import cached_property

from bot.github.approvals import Need, Said, acceptances, approval, grants, said, waivers
from bot.github.case import Case, Grant, LaneResult, RowId, Standing, Waiver
from bot.github.operate import held
from bot.github.rows import lane_rows
from bot.github.situation import (
    GROUP,
    Answer,
    Cancel,
    Close,
    Decision,
    Entry,
    Nothing,
    Open,
    Plan,
    Reaction,
    Situation,
    Step,
)
from bot.model import ChecklistItem, CheckState, ItemState, Report, Row, Verdict
from bot.report.settle import settle
from bot.words import judge_words

__all__ = ["decide"]

# A run shows up in GitHub's list within seconds; after this it was never started.
LOST_DISPATCH = timedelta(minutes=10)
NEVER_STARTED = timedelta(hours=1)
PLAN_WAIT = timedelta(hours=1)


def decide(now: Situation) -> Decision:
    """The one decision; the same state gives the same decision."""
    return _Decider(now).run()


class _Decider:
    """The parts of a decision, which share what they have found."""

    def __init__(self, now: Situation) -> None:
        self.now, self.pull = now, now.pull
        self.steps: list[Step] = []
        self.answers: list[Answer] = []
        self.heard = said(now.comments, now.us)
        self.case = self._case()
        self.since = now.standing.since if now.standing else now.now
        self.reused: list[LaneResult] = []
        self.words: list[Grant] = []
        self.entries = sorted(now.entries, key=lambda e: (e.posted, e.id.nonce, e.id))

    def run(self) -> Decision:
        """Everything, in the order in which one part needs the other."""
        if self.now.mode == "off":
            return self._off()
        standing = self._standing()
        if self.pull.state == "closed":
            return self._closed(standing)
        if self.case is None:
            return self._unplanned(standing)
        case = self.case
        self.reused = self._reused(case)
        self.words = grants(self.pull, self.heard, self.now.standing, case, standing.pusher)
        standing = standing.model_copy(update={"grants": self.words, "reused": self.reused})
        self._tidy(case)
        orders = [] if self.now.group else list(self._orders(case))
        held_back = self._start(case, orders)
        accepted = acceptances(case, self.heard, self.now.people)
        found, refused = self._waivers(case, standing)
        if self.now.group is None:
            self._answer_words(case, accepted, refused)
        standing = standing.model_copy(update={"waivers": found, "case": case})
        rows = list(self._rows(case))
        report = settle(
            case.report,
            rows,
            words=judge_words(
                case.policy.pull_request,
                [area.area for area in case.report.scope.areas],
                self.pull.title,
                self.pull.body or "",
            ),
            accepted=accepted,
            waived={
                item.target: f"{item.login}: {item.reason}"
                for item in found
                if item.comment not in refused
            },
            more=self._more(case, rows, held_back),
        )
        return self._conclude(standing, report)

    # The plan.

    def _case(self) -> Case | None:
        """The plan that counts: the ledger's as long as it holds, or else a new one."""
        fresh, old = self.now.fresh, self.now.standing.case if self.now.standing else None
        if old is not None and not self._holds(old):
            old = None
        if fresh is not None and not self._fits(fresh):
            fresh = None
        if old is None or fresh is None:
            return old or fresh
        same = (
            old.books == fresh.books
            and old.gated == fresh.gated
            and old.report.plan.merge_base == fresh.report.plan.merge_base
        )
        return old if same else fresh

    def _fits(self, case: Case) -> bool:
        return (
            case.number == self.pull.number
            and case.head == self.pull.head.sha
            and case.base_ref == self.pull.base.ref
        )

    def _holds(self, case: Case) -> bool:
        """Whether the ledger's plan is still the one that would be made."""
        return self._fits(case) and case.code == self.now.code and not self.now.moved

    def _standing(self) -> Standing:
        old, pull = self.now.standing, self.pull
        case = self.case or (old.case if old and old.base_ref == pull.base.ref else None)
        gated = case.gated if case else self.now.gated
        if gated is None:
            raise Need("gated")
        return Standing(
            number=pull.number,
            base_ref=pull.base.ref,
            gated=gated,
            state=CheckState.IN_PROGRESS,
            title="Planning",
            since=self.since,
            pusher=(old.pusher if old else "") or self.now.pusher,
            grants=old.grants if old else [],
            waivers=old.waivers if old else [],
            # A plan that no longer holds stays: an approval was given for what it shows.
            case=old.case if old else None,
        )

    def _off(self) -> Decision:
        """Switched off: what is open is handed to a person, nothing else changes."""
        old = self.now.standing
        if old is None or old.state not in (CheckState.QUEUED, CheckState.IN_PROGRESS):
            raise Nothing
        title = "fla-bot is switched off (FLA_BOT=off)"
        update = {"state": CheckState.ACTION_REQUIRED, "title": title}
        standing = old.model_copy(update=update)
        return Decision(standing, standing.state, title, None, self.pull.head.sha)

    def _unplanned(self, standing: Standing) -> Decision:
        """No plan for this head yet: one is asked for, or it is said why there is none."""
        late, old = self.now.now - self.since > PLAN_WAIT, self.now.standing
        fault, again = self.now.fault, False
        if not fault and old and old.base_ref == standing.base_ref:
            again = any(item.command.kind in ("run", "rerun") for item in self._new())
            fault = "" if again else old.fault
        # Without a plan nobody is answered: what they said is looked at when there is one.
        for item in self._new() if again and old and old.fault else ():
            if item.command.kind in ("run", "rerun"):
                self._answer(item, "+1", "the plan is made again")
        self._cancel_other_heads()
        update: dict[str, object]
        if fault:
            title = f"Not ready: {fault}"[:200]
            update = {"state": CheckState.FAILURE, "title": title, "fault": fault}
        else:
            self.steps.append(Plan())
            update = {"state": CheckState.IN_PROGRESS, "title": "Planning"}
            if late:
                title = "infra: no plan was made; the planner is started again"
                update = {"state": CheckState.FAILURE, "title": title}
        return self._finish(standing.model_copy(update=update), None)

    def _closed(self, standing: Standing) -> Decision:
        old = self.now.standing
        if old is None and not self.entries:
            raise Nothing
        self._cancel_all("the pull request is closed")
        state = (
            CheckState.FAILURE if old is None or old.state is not CheckState.SUCCESS else old.state
        )
        update = {"state": state, "title": "Closed", "case": old.case if old else None}
        return self._finish(standing.model_copy(update=update), None)

    # Words that come from the pull request's own head, and results of other heads.

    @cached_property
    def _grant(self) -> tuple[Grant | None, str]:
        """The word under which machines run; asked for only when one has something to do."""
        case = self.case
        assert case is not None
        grant, why = approval(self.pull, case, self.words, self.now.people)
        group = self.now.group
        if grant is None and group and group.standing:
            # A merge group is run under the word that was given for what it merges.
            return approval(group.pull, case, group.standing.grants, self.now.people)
        return grant, why

    def _waivers(self, case: Case, standing: Standing) -> tuple[list[Waiver], dict[int, str]]:
        group = self.now.group
        if group is None:
            return waivers(case, self.heard, standing, self.now.people)
        old = group.standing.case if group.standing else None
        if group.standing is None or old is None:
            return [], {}
        found, refused = waivers(old, self.heard, group.standing, self.now.people)
        keys = {job.id: job.key for job in old.report.plan.jobs}
        same = {job.id for job in case.report.plan.jobs if keys.get(job.id) == job.key}
        known = same | {item.code for item in old.report.findings}
        kept = [w for w in found if w.comment not in refused and w.target in known]
        return kept, {}

    def _reused(self, case: Case) -> list[LaneResult]:
        """Results of other heads for jobs of an equal key; asked for once a head."""
        if self.now.standing is not None and self.now.standing.case is not None:
            return self.now.standing.reused
        if self.now.reuse is None:
            raise Need("reuse")
        keys = {job.id: job.key for job in case.report.plan.jobs}
        return [r for r in self.now.reuse if set(r.keys.items()) & set(keys.items())]

    # Runs.

    def _tidy(self, case: Case) -> None:
        """End what can no longer count: runs of other heads, rows that were lost."""
        self._cancel_other_heads()
        kept = []
        for entry in self.entries:
            if entry.result is None and (why := self._lost(case, entry)):
                entry = self._close(entry, why)
            kept.append(entry)
        self.entries = kept

    def _lost(self, case: Case, entry: Entry) -> str:
        """Why an open row will never be closed by its own run, or nothing."""
        run = self.now.traffic.run_of(entry.id)
        age = self.now.now - entry.posted
        if entry.id.plan != case.plan:
            return "superseded by a newer plan"
        if run is None:
            return "infra: its run was never started" if age > NEVER_STARTED else ""
        if run.done:
            # The publisher is the run's last job: it had its chance.
            return f"infra: the run ended as {run.conclusion} and left no verdict"
        if entry.id in self.now.waiting:
            return "infra: no machine took the job in time"
        return ""

    def _close(self, entry: Entry, why: str) -> Entry:
        run = self.now.traffic.run_of(entry.id)
        if run is not None and not run.done:
            self.steps.append(Cancel(run.id))
        result = LaneResult(
            row=str(entry.id),
            run=run.id if run else 0,
            verdict=Verdict.SUPERSEDED if why.startswith("superseded") else Verdict.LOST,
            note=why,
            keys={},
            rows=[],
        )
        self.steps.append(Close(result))
        return Entry(entry.id, entry.posted, result)

    def _cancel_other_heads(self) -> None:
        for run in self.now.traffic.open_runs():
            row = run.row
            other = row.number == self.pull.number and row.head != self.pull.head.sha
            if other and row.nonce != GROUP and self.now.group is None:
                self.steps.append(Cancel(run.id))

    def _cancel_all(self, why: str) -> None:
        self._cancel_other_heads()
        self.entries = [
            self._close(entry, f"superseded: {why}") if entry.result is None else entry
            for entry in self.entries
        ]

    def _orders(self, case: Case) -> Iterator[RowId]:
        """Rows that people ask for; each command is carried out once."""
        for item in self._new():
            kind = item.command.kind
            if kind == "cancel":
                self._cancel(item, case)
            elif kind in ("run", "rerun"):
                yield from self._order(item, case)

    def _order(self, item: Said, case: Case) -> Iterator[RowId]:
        kind, lanes = item.command.kind, case.planned_lanes()
        lane, op = item.command.arguments if kind == "run" else ("", "")
        if refusal := self._cannot_order(item, case):
            self._answer(item, "-1", refusal)
            return
        if lane and lane not in lanes:
            self._answer(item, "-1", f"the plan has no lane {lane}; it has {', '.join(lanes)}")
            return
        if op and op not in {job.op for job in case.report.plan.jobs if job.lane == lane}:
            self._answer(item, "-1", f"the plan has no job for {op} on {lane}")
            return
        wanted = [name for name in lanes if lane in ("", name)]
        due = [name for name in wanted if self._may_run_again(case, name)]
        if not due:
            text = "nothing to run again: only what was lost or not proven is, a fail stays a fail"
            self._answer(item, "-1", text)
            return
        self._answer(item, "+1", f"runs {', '.join(due)}")
        for name in due:
            yield RowId(self.pull.number, self.pull.head.sha, case.plan, name, item.comment.id)

    def _cannot_order(self, item: Said, case: Case) -> str:
        if item.comment.created_at < self.since:
            return "the head has moved since; type it again if it still holds"
        author = self.pull.user.login if self.pull.user else ""
        if self._grant[0] is None:
            return f"this head is not approved; type /fla-bot approve {self.pull.head.sha}"
        if item.login != author and self.now.people.role(item.login) not in case.approvals.run:
            return f"only {', '.join(case.approvals.run)} or the author may"
        return ""

    def _may_run_again(self, case: Case, lane: str) -> bool:
        entries = [e for e in self.entries if e.id.lane == lane and e.id.plan == case.plan]
        if not entries:
            return True
        if any(entry.result is None for entry in entries):
            return False
        verdicts = {row.verdict for row in self._lane_rows(case, lane)}
        return Verdict.FAIL not in verdicts and bool(verdicts - {Verdict.PASS, Verdict.WAIVED})

    def _cancel(self, item: Said, case: Case) -> None:
        author = self.pull.user.login if self.pull.user else ""
        if item.login != author and self.now.people.role(item.login) not in case.approvals.run:
            self._answer(item, "-1", f"only {', '.join(case.approvals.run)} or the author may")
            return
        self._answer(item, "+1", "")
        kept = []
        for entry in self.entries:
            open_ = entry.result is None and entry.posted <= item.comment.created_at
            kept.append(self._close(entry, f"cancelled by {item.login}") if open_ else entry)
        self.entries = kept

    def _start(self, case: Case, orders: list[RowId]) -> dict[str, str]:
        """Open what is due; the lanes that must wait, and why."""
        known = {entry.id: entry for entry in self.entries}
        wanted = {order: True for order in orders if order not in known}
        if not self.pull.draft and case.gated:
            for lane in case.planned_lanes():
                nonce = GROUP if self.now.group else 0
                if self.now.group and not self.now.app:
                    break  # the statuses of a merge group hold no plan that a run could find
                first = RowId(self.pull.number, self.pull.head.sha, case.plan, lane, nonce)
                if first not in known and self._is_due(case, lane):
                    wanted.setdefault(first, False)
        back: dict[str, str] = {}
        lost = [entry for entry in known.values() if self._is_lost_dispatch(case, entry)]
        if not wanted and not lost:
            return back
        if self.now.mode in ("no-dispatch", "off") or self._grant[0] is None:
            return back
        opened: list[RowId] = []
        for row, ordered in wanted.items():
            if any(other.lane == row.lane for other in opened):
                continue
            if why := held(case, row, self.now.traffic, opened, self.now.now, ordered=ordered):
                back[row.lane] = why
                continue
            opened.append(row)
            self.steps.append(Open(row, written=False))
            self.entries.append(Entry(row, self.now.now, None))
        self.steps += [Open(entry.id, written=True) for entry in lost]
        return back

    def _is_lost_dispatch(self, case: Case, entry: Entry) -> bool:
        """Whether a row was written and its run never came; the gate lets only one run go on."""
        waits = entry.result is None and entry.id.plan == case.plan
        unseen = self.now.traffic.run_of(entry.id) is None
        return waits and unseen and self.now.now - entry.posted > LOST_DISPATCH

    def _is_due(self, case: Case, lane: str) -> bool:
        """Whether a lane has something that no row, and no result of an equal key, proves."""
        if any(e.id.lane == lane and e.id.plan == case.plan for e in self.entries):
            return False
        return any(row.verdict is Verdict.WAITING for row in self._lane_rows(case, lane))

    # Evidence.

    def _rows(self, case: Case) -> list[Row]:
        return [row for lane in case.planned_lanes() for row in self._lane_rows(case, lane)]

    def _lane_rows(self, case: Case, lane: str) -> list[Row]:
        return lane_rows(case, lane, self.entries, self.reused)

    def _more(self, case: Case, rows: list[Row], back: dict[str, str]) -> list[ChecklistItem]:
        """What stands before the checklist: what keeps it from moving."""
        waiting = any(row.verdict is Verdict.WAITING for row in rows)
        required = any(
            row.verdict is Verdict.WAITING and case.is_required(row.lane) for row in rows
        )
        found: list[ChecklistItem] = []
        if case.late:
            text = "the contract has changed on the base branch: update your branch"
            found.append(_item("late", ItemState.FAILED, text))
        if not case.gated:
            text = f"a preview: {case.base_ref} has no policy, so no machine runs"
            found.append(_item("preview", ItemState.HUMAN, text))
        elif required and self.now.group and not self.now.app:
            text = "the merge group needs machines again, which only an App can start for it"
            found.append(_item("group", ItemState.FAILED, text))
        elif self.pull.draft:
            text = "the pull request is a draft: mark it as ready"
            found.append(_item("draft", ItemState.HUMAN, text))
        elif waiting and self._grant[0] is None:
            text = f"machines wait for /fla-bot approve {self.pull.head.sha}"
            state = ItemState.HUMAN if required else ItemState.NOT_APPLICABLE
            found.append(_item("approval", state, text, self._grant[1]))
        elif waiting and self.now.mode in ("no-dispatch", "off"):
            state = ItemState.HUMAN if required else ItemState.NOT_APPLICABLE
            found.append(_item("mode", state, f"no job is started: FLA_BOT is {self.now.mode}"))
        for lane, reason in back.items():
            later = reason.startswith("queue:")
            state = ItemState.WAITING if later else ItemState.HUMAN
            state = state if case.is_required(lane) else ItemState.NOT_APPLICABLE
            found.append(_item(f"held:{lane}", state, f"{lane} waits: {reason}"))
        return found

    # Answers.

    def _new(self) -> list[Said]:
        """Commands that were not carried out yet."""
        return [
            item
            for item in self.heard
            if item.comment.id > self.now.answered and not item.comment.edited
        ]

    def _answer(self, item: Said, reaction: Reaction, text: str) -> None:
        self.answers.append(Answer(item.comment.id, item.login, reaction, text))

    def _answer_words(
        self,
        case: Case,
        accepted: dict[str, str],
        refused: dict[int, str],
    ) -> None:
        """Answers to what is no order: words that count or not, questions, misspelt lines."""
        for item in self.heard:
            if item.comment.id <= self.now.answered:
                continue
            kind, arguments = item.command.kind, item.command.arguments
            if item.comment.edited:
                text = "an edited comment commands nothing; write a new one"
                self._answer(item, "confused", text)
            elif kind == "unreadable":
                self._answer(item, "confused", f"not understood; type {arguments[0]}")
            elif kind in ("help", "status"):
                self._answer(item, "eyes", kind)
            elif kind == "approve":
                self._answer_approve(item, case)
            elif kind == "accept":
                self._answer_accept(item, case, accepted)
            elif kind == "waive":
                reason = refused.get(item.comment.id, "")
                self._answer(item, "-1" if reason else "+1", reason)

    def _answer_approve(self, item: Said, case: Case) -> None:
        head = self.pull.head.sha
        if item.command.arguments != (head,):
            self._answer(item, "-1", f"the head is another one; type /fla-bot approve {head}")
            return
        if self.now.people.role(item.login) not in case.approvals.run:
            self._answer(item, "-1", f"only {', '.join(case.approvals.run)} may approve")
            return
        self._answer(item, "+1", "")

    def _answer_accept(self, item: Said, case: Case, accepted: dict[str, str]) -> None:
        (code,) = item.command.arguments
        if code in accepted:
            self._answer(item, "+1", "")
            return
        waits = [entry.accept for entry in case.report.checklist if entry.accept]
        if code not in waits:
            shown = ", ".join(f"/fla-bot accept {other}" for other in waits) or "nothing"
            self._answer(item, "-1", f"no such digest waits; what waits: {shown}")
            return
        allowed = ", ".join(case.approvals.accept)
        text = f"only {allowed} or an owner of the contract may, and nobody who wrote or pushed it"
        self._answer(item, "-1", text)

    # The verdict.

    def _conclude(self, standing: Standing, report: Report) -> Decision:
        state, title = report.state, report.headline
        if state is CheckState.IN_PROGRESS:
            waits = next(i.text for i in report.checklist if i.state is ItemState.WAITING)
            step = f"nothing to do: machines are at work ({waits})"
            report = report.model_copy(update={"next_step": step})
        if state is CheckState.ACTION_REQUIRED:
            title = f"{report.headline}: {report.next_step}"
        standing = standing.model_copy(update={"state": state, "title": title[:200]})
        return self._finish(standing, report)

    def _finish(self, standing: Standing, report: Report | None) -> Decision:
        state, title = standing.state, standing.title
        if state is CheckState.SUCCESS and self.now.forged is None:
            raise Need("forged")
        if self.now.forged:
            state, title = CheckState.FAILURE, f"FORGED: {'; '.join(self.now.forged)}"
            standing = standing.model_copy(update={"state": state, "title": title[:200]})
        if standing.gated:
            state, title = self._over_all(standing)
        rows = [
            (str(entry.id), _word(entry, started=self.now.traffic.run_of(entry.id) is not None))
            for entry in self.entries
        ]
        asked = "_grant" in self.__dict__
        return Decision(
            standing,
            state,
            title,
            report,
            self.pull.head.sha,
            self.steps,
            self.answers,
            rows,
            approved=asked and self._grant[0] is not None,
        )

    def _over_all(self, own: Standing) -> tuple[CheckState, str]:
        """The AND over all open pull requests with this head into gated branches."""
        others = [item for item in self.now.others if item.gated]
        if own.state is not CheckState.SUCCESS and not self._is_gone():
            return own.state, own.title
        if self.now.pulls is None:
            raise Need("pulls")
        # A closed pull request no longer counts; one that is not known yet is not green.
        same = [
            pull
            for pull in self.now.pulls
            if pull.head.sha == self.pull.head.sha and pull.number != self.pull.number
        ]
        worst = (own.state, own.title)
        if self._is_gone() and same:
            worst = (CheckState.SUCCESS, "Ready")
        known = {item.number: item for item in self.now.others}
        for pull in same:
            other = known.get(pull.number)
            if other is None or other.base_ref != pull.base.ref:
                found = (CheckState.IN_PROGRESS, f"Waiting for #{pull.number} with the same head")
            elif other not in others:
                continue
            else:
                found = (other.state, f"#{other.number}: {other.title}")
            worst = max(worst, found, key=lambda item: _RANK[item[0]])
        return worst

    def _is_gone(self) -> bool:
        return self.pull.state == "closed"


_RANK = {
    CheckState.SUCCESS: 0,
    CheckState.IN_PROGRESS: 1,
    CheckState.QUEUED: 2,
    CheckState.ACTION_REQUIRED: 3,
    CheckState.FAILURE: 4,
}


def _word(entry: Entry, *, started: bool) -> str:
    if entry.result is not None:
        return str(entry.result.verdict)
    return "running" if started else "queued"


def _item(name: str, state: ItemState, text: str, evidence: str = "") -> ChecklistItem:
    return ChecklistItem(id=name, state=state, text=text, evidence=evidence)
