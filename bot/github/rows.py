"""The verdict rows of a plan from what its lanes came to: which result of a job counts; pure."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Sequence

from bot.github.case import Case, LaneResult, RowId
from bot.github.situation import GROUP, Entry
from bot.model import Job, Row, Verdict

__all__ = ["is_superseded", "lane_rows"]

RERUN = "type /fla-bot rerun"


def lane_rows(
    case: Case, lane: str, entries: Sequence[Entry], reused: Sequence[LaneResult]
) -> list[Row]:
    """The rows of a lane; `entries` are the head's own, oldest first, `reused` of other heads."""
    own = [entry for entry in entries if entry.id.lane == lane]
    jobs = [job for job in case.report.plan.jobs if job.lane == lane]
    return [row for job in jobs for row in _job_rows(case, job, own, reused)]


def _job_rows(
    case: Case, job: Job, own: Sequence[Entry], reused: Sequence[LaneResult]
) -> list[Row]:
    """A fail stays; then a pass counts, then what is under way, then what is newest."""
    found = [rows for e in own if e.result and (rows := _of(e.result, job))]
    for rows in found:
        if any(row.verdict is Verdict.FAIL for row in rows):
            return rows
    for rows in reversed(found):
        if _passes(rows):
            return rows
    for result in reused:
        if _passes(rows := _of(result, job)):
            at = RowId.parse(result.row).head[:12]
            return [
                row.model_copy(update={"reason": f"measured on {at}: {row.reason}"}) for row in rows
            ]
    mine = [entry for entry in own if entry.id.plan == case.plan]
    if any(entry.result is None for entry in mine):
        return [_row(job, Verdict.WAITING, "on its way")]
    if found:
        return found[-1]
    if mine and not is_superseded(mine[-1]) and (last := mine[-1].result) is not None:
        return [_row(job, Verdict.LOST, f"{last.note}; {RERUN}")]
    return [_row(job, Verdict.WAITING, "no evidence yet")]


def is_superseded(entry: Entry) -> bool:
    """Whether a run was ended as nobody wanted it, which says nothing if its plan is wanted again.

    A merge group is not wanted again: GitHub makes a new one.
    """
    ended = entry.result is not None and entry.result.verdict is Verdict.SUPERSEDED
    return ended and entry.id.nonce != GROUP


def _passes(rows: list[Row]) -> bool:
    return bool(rows) and all(row.verdict is Verdict.PASS for row in rows)


def _of(result: LaneResult, job: Job) -> list[Row]:
    """The rows that a result holds for a job of this key."""
    if result.keys.get(job.id) != job.key:
        return []
    return [row for row in result.rows if row.job == job.id]


def _row(job: Job, verdict: Verdict, reason: str) -> Row:
    return Row(job=job.id, lane=job.lane, op=job.op, cell="", verdict=verdict, reason=reason)
