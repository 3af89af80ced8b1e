"""Switches and limits: FLA_BOT, caps, the circuit breaker, and the log of decisions; pure."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, cast, get_args

from bot.errors import UserError
from bot.github.case import Case, RowId
from bot.github.records import Run
from bot.policy import Caps

__all__ = [
    "EXECUTOR", "PLANNER", "TOMORROW", "LaneRun", "Mode", "Traffic", "broken_since", "held",
    "is_broken", "is_queued", "mode_of", "traffic",
]  # fmt: skip

Mode = Literal["on", "shadow", "no-dispatch", "off"]
EXECUTOR, PLANNER = "fla-bot-executor.yml", "fla-bot.yml"
BREAKER = 3  # runs of a lane that infrastructure ended, one after the other
BROKEN = ("failure", "startup_failure", "timed_out")  # not: skipped, which a rerun by hand is
BROKEN_LANE = "infrastructure ended its last"  # begins what holds back the runs of such a lane
DAY = timedelta(days=1)
TOMORROW = "wait until tomorrow"  # ends what a day holds back


def mode_of(environment: Mapping[str, str]) -> Mode:
    """What the repository variable FLA_BOT says; a word that is not known switches nothing on."""
    word = environment.get("FLA_BOT") or "on"
    if word not in get_args(Mode):
        raise UserError(f"FLA_BOT is `{word}`; it may be {', '.join(get_args(Mode))}")
    return cast("Mode", word)


@dataclass(frozen=True, slots=True)
class LaneRun:
    """A run of the executor that we started; `ended`: when it was cancelled."""

    id: int
    row: RowId
    created: datetime
    done: bool
    conclusion: str
    ended: datetime | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Our runs of the last days, oldest first."""

    runs: tuple[LaneRun, ...]

    def run_of(self, row: RowId) -> LaneRun | None:
        """The run of a row: of two, the older one counts."""
        return next((run for run in self.runs if run.row == row), None)

    def without(self, rows: Collection[RowId]) -> Traffic:
        """Without the runs of some rows."""
        return Traffic(tuple(run for run in self.runs if run.row not in rows))

    def open_runs(self) -> list[LaneRun]:
        """Runs that have not ended."""
        return [run for run in self.runs if not run.done]


def traffic(runs: Sequence[Run], us: str) -> Traffic:
    """Our runs among all runs of the executor; whoever else started one has none of ours."""
    found = []
    for run in runs:
        row = RowId.find(run.display_title)
        ours = run.actor is not None and run.actor.login == us and run.event == "workflow_dispatch"
        if row is not None and ours:
            done = run.status == "completed"
            ended = run.updated_at if done and run.conclusion == "cancelled" else None
            found.append(LaneRun(run.id, row, run.created_at, done, run.conclusion or "", ended))
    return Traffic(tuple(sorted(found, key=lambda run: run.id)))


def held(
    case: Case,
    row: RowId,
    found: Traffic,
    opened: Sequence[RowId],
    now: datetime,
    *,
    ordered: bool,
) -> str:
    """Why a run must not start now, or nothing. `queue:` begins what passes by itself."""
    minutes, caps = case.minutes(row.lane), case.caps
    if too_long := _too_long(minutes, caps):
        return too_long
    today = [run for run in found.runs if now - run.created < DAY]
    new = sum(_minutes(case, other) for other in opened)
    used = new + sum(_used(case, run) for run in today if run.row.number == row.number)
    if used + minutes > caps.minutes:
        return f"this pull request has used {used} of {caps.minutes} minutes today; {TOMORROW}"
    used = new + sum(_used(case, run) for run in today)
    if used + minutes > caps.day_minutes:
        return f"queue: all pull requests have used {used} of {caps.day_minutes} minutes today"
    machine = row.lane.partition(":")[2]
    busy = [run.row for run in found.open_runs()] + list(opened)
    ahead = sum(other.lane.partition(":")[2] == machine for other in busy)
    if ahead >= caps.open_runs:
        return f"queue: {ahead} runs are ahead on {machine}"
    if not ordered and broken_since(row.lane, found):
        return (
            f"{BROKEN_LANE} {BREAKER} runs; once mended, on #{row.number} type "
            f"/fla-bot run {row.lane}"
        )
    return ""


def _too_long(minutes: int, caps: Caps) -> str:
    """Why a run of so many minutes can start on no day, or nothing."""
    limits = {
        "one job": caps.job_minutes,
        "one pull request in a day": caps.minutes,
        "all pull requests in a day": caps.day_minutes,
    }
    for whose, cap in limits.items():
        if minutes > cap:
            return f"it may take {minutes} minutes, the cap for {whose} is {cap}"
    return ""


def is_broken(reason: str) -> bool:
    """Whether what holds a run back passes when somebody says that the lane is mended."""
    return reason.startswith(BROKEN_LANE)


def is_queued(reason: str) -> bool:
    """Whether what holds a run back passes by itself."""
    return reason.startswith("queue:")


def _minutes(case: Case, row: RowId) -> int:
    """What a run may have used; a lane that this plan does not have counts as the cap."""
    return case.minutes(row.lane) if row.lane in case.lanes else case.caps.job_minutes


def _used(case: Case, run: LaneRun) -> int:
    """What a run may have used; one that was cancelled had no longer than until then."""
    most = _minutes(case, run.row)
    if run.ended is None:
        return most
    return min(most, (run.ended - run.created) // timedelta(minutes=1) + 1)


def broken_since(lane: str, found: Traffic) -> datetime | None:
    """When the last of the runs began that broke a lane, None where it is whole.

    Only infrastructure ends a run with an error: red, or too late to count, is a success.
    """
    known = (*BROKEN, "success")
    last = [r for r in found.runs if r.row.lane == lane and r.conclusion in known][-BREAKER:]
    broken = len(last) == BREAKER and all(run.conclusion != "success" for run in last)
    return last[-1].created if broken else None
