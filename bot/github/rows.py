"""The verdict rows of a plan from what its lanes came to: which result of a job counts; pure."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bot.github.case import Case, LaneResult, RowId
from bot.github.situation import GROUP, Entry
from bot.model import Job, Row, Verdict

__all__ = [
    "UNUSED", "adverse", "fails_of", "gathered", "is_bare", "is_full", "is_superseded", "lane_rows",
    "only_fails",
]  # fmt: skip

RERUN = "type /fla-bot rerun"
UNUSED = "superseded before its lane began"  # no machine has worked for such a run
FAILED = "it failed; nothing else is kept of that"
MAX_FAILS = 30  # beside those of the present jobs, of which more is kept than their keys
MAX_BARE = 24_000  # packed characters, about, that the others may take
BARE_RUN, BARE_JOB = 60, 20  # of which a run takes so many, and each of its jobs
MAX_SAMPLES = 2000  # of other heads; a standing has room for as many


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
    """A fail of any head stays; then a pass counts, then what is under way, then the newest."""
    found = [rows for e in own if e.result and (rows := _of(e.result, job))]
    earlier = [_measured(result, rows) for result in reused if (rows := _of(result, job))]
    for rows in [*found, *earlier]:
        if _fails(rows):
            return rows
    for rows in [*reversed(found), *earlier]:
        if _passes(rows):
            return rows
    mine = [entry for entry in own if entry.id.plan == case.plan]
    if any(entry.result is None for entry in mine):
        return [_row(job, Verdict.WAITING, "on its way")]
    if found:
        return found[-1]
    if mine and not is_superseded(mine[-1]) and (last := mine[-1].result) is not None:
        # A note is of the jobs that are there.
        note = "its run gave nothing for this job" if last.rows else last.note
        return [_row(job, Verdict.LOST, f"{note}; {RERUN}")]
    return [_row(job, Verdict.WAITING, "no evidence yet")]


def _measured(result: LaneResult, rows: Sequence[Row]) -> list[Row]:
    at = RowId.parse(result.row).head[:12]
    return [row.model_copy(update={"reason": f"measured on {at}: {row.reason}"}) for row in rows]


def is_superseded(entry: Entry) -> bool:
    """Whether a run was ended as nobody wanted it, which says nothing if its plan is wanted again.

    A merge group is not wanted again: GitHub makes a new one.
    """
    ended = entry.result is not None and entry.result.verdict is Verdict.SUPERSEDED
    return ended and entry.id.nonce != GROUP


def gathered(
    results: Iterable[LaneResult], keys: Mapping[str, str] | None = None
) -> list[LaneResult]:
    """What other heads came to, once for each job of a key: a fail, else a pass, else samples.

    `keys`: by job of the plan in force, without which all is kept. Fails are kept even if no job
    has their key now: a later head may have it again. Of the oldest only that they were is.
    """
    found: dict[tuple[str, str], LaneResult] = {}
    for result in results:
        for place in result.keys.items():
            brief = _brief(result, *place)
            if _weight(brief) > (_weight(found[place]) if place in found else NOTHING):
                found[place] = brief
    if keys is not None:
        same = {place for place in found if keys.get(place[0]) == place[1]}
        fails = [place for place in found if place not in same and _has_failed(found[place])]
        for place in fails[:-MAX_FAILS]:
            found[place] = found[place].model_copy(update={"rows": []})
        same |= set(fails)
        found = {place: brief for place, brief in found.items() if place in same}
    left, kept = MAX_SAMPLES, _joined(brief for brief in found.values() if is_bare(brief))
    for brief in found.values():
        left -= _weight(brief)[2]
        if brief.rows or (left >= 0 and not is_bare(brief)):
            kept.append(brief)
    return kept


def is_bare(result: LaneResult) -> bool:
    """Whether a result only says that its jobs have failed."""
    return result.verdict is Verdict.FAIL and not result.rows


def is_full(results: Iterable[LaneResult]) -> bool:
    """Whether no more fails can be kept; once it is so it stays so, for none is dropped."""
    bare = [result for result in results if is_bare(result)]
    return sum(BARE_RUN + BARE_JOB * len(result.keys) for result in bare) > MAX_BARE


def _joined(bare: Iterable[LaneResult]) -> list[LaneResult]:
    """Those of one run as one, the oldest first, up to the first for which there is no room."""
    found: dict[str, list[LaneResult]] = {}
    used = 0
    for result in bare:
        if used > MAX_BARE:
            break
        used += BARE_JOB
        run = found.setdefault(result.row, [])
        # Its plan has one key for each job; what says otherwise loses nothing either.
        same = next((i for i, known in enumerate(run) if not known.keys.keys() & result.keys), -1)
        if same < 0:
            used += BARE_RUN
            run.append(result.model_copy(update={"keys": dict(result.keys)}))
        else:
            run[same].keys.update(result.keys)
    return [result for run in found.values() for result in run]


def adverse(results: Iterable[LaneResult]) -> list[LaneResult]:
    """What speaks against a job in these results; what passes in them proves nothing elsewhere."""
    return [brief for brief in gathered(results) if not _passes(brief.rows)]


def fails_of(results: Iterable[LaneResult]) -> set[tuple[str, str]]:
    """The jobs that fail in these results, each with its key."""
    briefs = gathered(results)
    return {place for brief in briefs if _has_failed(brief) for place in brief.keys.items()}


NOTHING = (False, False, 0)


def _weight(brief: LaneResult) -> tuple[bool, bool, int]:
    """What says more of a job counts."""
    count = sum(map(len, brief.samples.values()))
    return _has_failed(brief), _passes(brief.rows), count


def _brief(result: LaneResult, job: str, key: str) -> LaneResult:
    """What counts of a job on another head, too: one row, for the ledger holds little, or samples.

    What was not proven has none; it is measured again, and held to its samples.
    """
    if is_bare(result):
        return result.model_copy(update={"keys": {job: key}})
    own = [row for row in result.rows if row.job == job]
    bad = [row for row in own if row.verdict is Verdict.FAIL]
    rows, samples = list[Row](), dict[str, list[float]]()
    if bad or _passes(own):
        first, count = (bad or own)[0], len(bad or own)
        word = f"{count} rows fail: {first.reason}"[:400] if bad else f"{count} rows pass"
        rows = [first if count == 1 else first.model_copy(update={"cell": "", "reason": word})]
    else:
        samples = {n: found for n, found in result.samples.items() if n.startswith(f"{key} ")}
    verdict = rows[0].verdict if rows else Verdict.NOT_PROVEN
    update = {"verdict": verdict, "rows": rows, "keys": {job: key}, "samples": samples, "note": ""}
    return result.model_copy(update=update)


def only_fails(result: LaneResult | None) -> LaneResult | None:
    """A result without the jobs that do not fail, None if none does."""
    if result is None:
        return None
    bad = {row.job for row in result.rows if row.verdict is Verdict.FAIL}
    if not bad:
        return None
    keys = {job: key for job, key in result.keys.items() if job in bad}
    rows = [row for row in result.rows if row.job in bad]
    return result.model_copy(
        update={"verdict": Verdict.FAIL, "keys": keys, "rows": rows, "samples": {}}
    )


def _passes(rows: Sequence[Row]) -> bool:
    return bool(rows) and all(row.verdict is Verdict.PASS for row in rows)


def _has_failed(brief: LaneResult) -> bool:
    return is_bare(brief) or _fails(brief.rows)


def _fails(rows: Sequence[Row]) -> bool:
    return any(row.verdict is Verdict.FAIL for row in rows)


def _of(result: LaneResult, job: Job) -> list[Row]:
    """The rows that a result holds for a job of this key."""
    if result.keys.get(job.id) != job.key:
        return []
    if is_bare(result):
        return [_row(job, Verdict.FAIL, FAILED)]
    return [row for row in result.rows if row.job == job.id]


def _row(job: Job, verdict: Verdict, reason: str) -> Row:
    return Row(job=job.id, lane=job.lane, op=job.op, cell="", verdict=verdict, reason=reason)
