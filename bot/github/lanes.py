"""Runs of lanes: what is lost or useless is ended, what is due is started; pure."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property

from bot.github.approvals import Need, approval
from bot.github.case import Case, Grant, LaneResult, RowId, Standing
from bot.github.merging import asked, permitted
from bot.github.operate import TOMORROW, Traffic, broken_since, held, is_broken, is_queued
from bot.github.rows import UNUSED, gathered, is_superseded, lane_rows
from bot.github.situation import GROUP, Cancel, Close, Entry, Open, Situation, Step
from bot.model import ChecklistItem, ItemState, Row, Verdict

__all__ = ["Lanes", "Permit", "Runs", "outlived", "reused"]

# A run shows up in GitHub's list within seconds; after this it was never started.
LOST_DISPATCH = timedelta(minutes=10)
NEVER_STARTED = timedelta(hours=1)
MAX_PLANS = 3  # of those that are not in force any more


class Runs:
    """The ledgered runs of a head, and the steps that end them."""

    def __init__(self, now: Situation) -> None:
        self.now, self.pull = now, now.pull
        self.steps: list[Step] = []
        self.entries = sorted(now.entries, key=lambda e: (e.posted, e.id.nonce, e.id))

    def cancel_other_heads(self) -> None:
        """End the runs of heads, and of merge groups, that nobody asks for any more."""
        runs = [run for run in self.now.traffic.open_runs() if run.row.number == self.pull.number]
        for run in runs:
            if run.row.head != self.pull.head.sha and self._is_gone(run.row):
                self.steps.append(Cancel(run.id))

    def _is_gone(self, row: RowId) -> bool:
        """Whether another head than the present one is wanted no more."""
        if row.nonce != GROUP:
            return self.now.group is None
        if self.now.queue is None:
            raise Need("queue")
        return row.head not in self.now.queue

    def cancel_all(self, why: str) -> None:
        """End everything."""
        self.cancel_other_heads()
        self.entries = [
            self.close(entry, f"superseded: {why}") if entry.result is None else entry
            for entry in self.entries
        ]

    def close(self, entry: Entry, why: str) -> Entry:
        """End a row that its own run will not end, and that run with it."""
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

    def words(self) -> list[tuple[str, str]]:
        """The plan id of each row and how it is with it."""
        return [(str(entry.id), self._word(entry)) for entry in self.entries]

    def _word(self, entry: Entry) -> str:
        if entry.result is not None:
            return str(entry.result.verdict)
        return "running" if self.now.traffic.run_of(entry.id) is not None else "queued"


class Permit:
    """The word under which machines run; looked for only when one has something to do."""

    def __init__(self, now: Situation, case: Case, grants: list[Grant]) -> None:
        self._now, self._case, self._grants = now, case, grants

    @cached_property
    def _found(self) -> tuple[Grant | None, str]:
        now, case = self._now, self._case
        if now.group:
            return permitted(case, now.group, now.us, now.people)
        return approval(now.pull, case, self._grants, now.people)

    @property
    def given(self) -> bool:
        """Whether machines may run this plan now."""
        return self._found[0] is not None

    @property
    def why_not(self) -> str:
        """Why no word counts, if there is one."""
        return self._found[1]

    @property
    def known(self) -> bool:
        """Whether it is given, False where nobody has asked."""
        return "_found" in self.__dict__ and self.given


def reused(
    standing: Standing | None,
    found: Sequence[LaneResult] | None,
    case: Case,
    against: Sequence[LaneResult] = (),
) -> list[LaneResult]:
    """Results of other heads that count here; asked for once a head, or when it is one again.

    What a merge group merges may come to more at any time, and so may others with this head.
    """
    if found is None and (case.group or standing is None or standing.case is None):
        raise Need("reuse")
    known = standing.reused if standing else []
    keys = {job.id: job.key for job in case.report.plan.jobs}
    return gathered([*known, *(found or ()), *against], keys)


def outlived(now: Situation, case: Case | None) -> list[Case]:
    """Plans other than this one whose runs may still leave a verdict: a fail in it counts.

    Only what such a run is judged by is kept of them.
    """
    number = now.pull.number
    work = {(r.row.head, r.row.plan) for r in now.traffic.open_runs() if r.row.number == number}
    before = [standing for standing in (now.standing, *now.before) if standing]
    known = [plan for standing in before for plan in (standing.case, *standing.plans) if plan]
    found = {(plan.head, plan.plan): plan for plan in known}
    if case is not None:
        found.pop((case.head, case.plan), None)
    return [_bare(plan) for place, plan in found.items() if place in work][:MAX_PLANS]


def _bare(case: Case) -> Case:
    """A plan without what people read of it."""
    left: dict[str, object] = {"findings": [], "suppressions": [], "checklist": [], "rows": []}
    return case.model_copy(update={"report": case.report.model_copy(update=left), "hits": {}})


class Lanes(Runs):
    """The lanes of the plan in force."""

    def __init__(
        self, now: Situation, case: Case, permit: Permit, reused: Sequence[LaneResult]
    ) -> None:
        super().__init__(now)
        self.case, self.permit, self.reused = case, permit, reused
        self._queued: dict[str, str] = {}  # lanes whose ordered run must wait, and why
        self.held: list[str] = []  # lanes that do not start now, though somebody has approved it

    # Ending.

    def tidy(self) -> None:
        """End what can no longer count: runs of other heads, rows that were lost."""
        self.cancel_other_heads()
        self.entries = [
            self.close(entry, why) if entry.result is None and (why := self._lost(entry)) else entry
            for entry in self.entries
        ]

    def _lost(self, entry: Entry) -> str:
        """Why an open row will never be closed by its own run, or nothing."""
        run = self.now.traffic.run_of(entry.id)
        age = self.now.now - entry.posted
        if entry.id.plan != self.case.plan:
            return "superseded by a newer plan"
        if run is None:
            return "infra: its run was never started" if age > NEVER_STARTED else ""
        if run.done:
            # The publisher is the run's last job: it had its chance.
            return f"infra: the run ended as {run.conclusion} and left no verdict"
        if entry.id in self.now.waiting:
            return "infra: no machine took the job in time"
        return ""

    # Evidence.

    def rows(self, lane: str = "") -> list[Row]:
        """The verdict rows of a lane, or of all."""
        lanes = [lane] if lane else self.case.planned_lanes()
        return [
            self._awaited(row)
            for name in lanes
            for row in lane_rows(self.case, name, self.entries, self.reused)
        ]

    def _awaited(self, row: Row) -> Row:
        """A row that another run is ordered for waits as if that was on its way."""
        final = (Verdict.PASS, Verdict.FAIL, Verdict.WAIVED)
        if row.lane not in self._queued or row.verdict in final:
            return row
        update = {"verdict": Verdict.WAITING, "reason": self._queued[row.lane]}
        return row.model_copy(update=update)

    def may_run_again(self, lane: str) -> bool:
        """Whether a lane has something that only another run can prove."""
        entries = [e for e in self.entries if e.id.lane == lane and e.id.plan == self.case.plan]
        if any(entry.result is None for entry in entries):
            return False
        # What failed stays failed, whatever another run gives; what is lost beside it may pass.
        settled = {Verdict.PASS, Verdict.WAIVED, Verdict.FAIL}
        return any(row.verdict not in settled for row in self.rows(lane))

    # Starting.

    @property
    def barred(self) -> str:
        """Why no machine runs for the pull request as it is, whoever asks, or nothing."""
        if not self.case.gated:
            return f"a preview: {self.case.base_ref} has no policy, so no machine runs"
        return "the pull request is a draft: mark it as ready" if self.pull.draft else ""

    def start(self, orders: Sequence[RowId]) -> dict[str, str]:
        """Open what is due; the lanes that must wait, and why."""
        if self.barred:
            return {}
        wanted, back = self._wanted(orders), dict[str, str]()
        lost = [entry for entry in self.entries if self._is_lost_dispatch(entry)]
        if not wanted and not lost:
            return back
        if not self.permit.given:
            return back
        if self.now.mode in ("no-dispatch", "off"):
            self.held = sorted({row.lane for row in wanted})
            return back
        opened: list[RowId] = []
        for row, ordered in wanted.items():
            if any(other.lane == row.lane for other in opened):
                continue
            if why := self._held(row, opened, ordered=ordered):
                back[row.lane] = why
                if ordered and is_queued(why):
                    self._queued[row.lane] = why
                continue
            opened.append(row)
            self.steps.append(Open(row, written=False))
            self.entries.append(Entry(row, self.now.now, None))
        self.steps += [Open(entry.id, written=True) for entry in lost]
        self.held = sorted(back)
        return back

    def _wanted(self, orders: Sequence[RowId]) -> dict[RowId, bool]:
        """The rows to be opened, and whether somebody has ordered them."""
        known = {entry.id for entry in self.entries}
        wanted = {order: True for order in orders if order not in known}
        for row in self._first_rows():
            if row not in known and self._is_due(row.lane):
                wanted.setdefault(row, False)
        return wanted

    def _held(self, row: RowId, opened: Sequence[RowId], *, ordered: bool) -> str:
        """Why a run must not start now, or nothing."""
        asked = ordered or self._is_asked(row.lane)
        why = held(self.case, row, self._traffic, opened, self.now.now, ordered=asked)
        if ordered and why.endswith(TOMORROW):
            # An order has its answer now, and is not carried out later.
            return f"{why}, then type /fla-bot run {row.lane}"
        return why

    @cached_property
    def _traffic(self) -> Traffic:
        """Our runs without those that no machine has worked for."""
        unused = {e.id for e in self.entries if e.result and e.result.note == UNUSED}
        return self.now.traffic.without(unused)

    def broken_since(self, lane: str) -> datetime | None:
        """When the last of the runs began that infrastructure ended, None where a lane is whole."""
        return broken_since(lane, self._traffic)

    def _is_asked(self, lane: str) -> bool:
        """Whether a broken lane runs for a merge group, as somebody says that it is mended."""
        now, since = self.now, self.broken_since(lane)
        if now.group is None or since is None:
            return False
        return asked(self.case, now.group, lane, since, now.us, now.people)

    def _first_rows(self) -> list[RowId]:
        """The row that an approval starts, for each lane of the plan."""
        pull, case, group = self.pull, self.case, self.now.group
        if group and not self.now.app:
            return []  # the statuses of a merge group hold no plan that a run could find
        return [
            RowId(pull.number, pull.head.sha, case.plan, lane, self._nonce(lane))
            for lane in case.planned_lanes()
        ]

    def _nonce(self, lane: str) -> int:
        """What tells the row that nobody asks for from others; the next one if it was in vain.

        Whoever else looks now comes to the same row.
        """
        if self.now.group:
            return GROUP
        if not any(e.id.plan == self.case.plan and e.id.lane == lane for e in self.entries):
            return 0
        return GROUP + sum(entry.id.lane == lane for entry in self.entries)

    def _is_lost_dispatch(self, entry: Entry) -> bool:
        """Whether a row was written and its run never came; the gate lets only one run go on."""
        waits = entry.result is None and entry.id.plan == self.case.plan
        unseen = self.now.traffic.run_of(entry.id) is None
        return waits and unseen and self.now.now - entry.posted > LOST_DISPATCH

    def _is_due(self, lane: str) -> bool:
        """Whether a lane has something that no row, and no result of an equal key, proves."""
        mine = [e for e in self.entries if e.id.lane == lane and e.id.plan == self.case.plan]
        if any(e.result is None for e in mine) or (mine and not is_superseded(mine[-1])):
            return False
        return any(row.verdict is Verdict.WAITING for row in self.rows(lane))

    def obstacles(self, rows: Sequence[Row], back: Mapping[str, str]) -> list[ChecklistItem]:
        """What stands before the checklist: what keeps it from moving."""
        case, now = self.case, self.now
        waiting = any(row.verdict is Verdict.WAITING for row in rows)
        required = any(
            row.verdict is Verdict.WAITING and case.is_required(row.lane) for row in rows
        )
        found: list[ChecklistItem] = []
        if case.late:
            text = "the contract has changed on the base branch: update your branch"
            found.append(_item("late", ItemState.FAILED, text))
        if not case.gated:
            found.append(_item("preview", ItemState.HUMAN, self.barred))
        elif required and now.group and not now.app:
            text = "the merge group needs machines again, which only an App can start for it"
            text += f": update the branch of #{self.pull.number}"
            found.append(_item("group", ItemState.FAILED, text))
        elif self.pull.draft:
            found.append(_item("draft", ItemState.HUMAN, self.barred))
        elif waiting and not self.permit.given:
            text = "machines wait for an approval of "
            text += "each head in the merge group" if now.group else "this commit"
            text += f": {self.permit.why_not}" if self.permit.why_not else ""
            state = ItemState.HUMAN if required else ItemState.NOT_APPLICABLE
            found.append(_item("approval", state, text))
        elif waiting and now.mode in ("no-dispatch", "off"):
            state = ItemState.HUMAN if required else ItemState.NOT_APPLICABLE
            found.append(_item("mode", state, f"no job is started: FLA_BOT is {now.mode}"))
        for lane, reason in back.items():
            state = ItemState.WAITING if is_queued(reason) else ItemState.HUMAN
            state = state if case.is_required(lane) else ItemState.NOT_APPLICABLE
            name = "broken" if is_broken(reason) else "held"
            found.append(_item(f"{name}:{lane}", state, f"{lane} waits: {reason}"))
        return found


def _item(name: str, state: ItemState, text: str) -> ChecklistItem:
    return ChecklistItem(id=name, state=state, text=text)
