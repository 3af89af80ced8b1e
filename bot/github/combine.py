"""The verdict over a head: forgeries, and the AND over all pull requests that have it; pure."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Sequence

from bot.github.approvals import Need
from bot.github.case import MAX_PACKED, MAX_STANDING, MAX_TWINS, Standing, pack
from bot.github.records import Pull
from bot.github.rows import fails_of, gathered, is_full
from bot.github.situation import Situation
from bot.model import CheckState

__all__ = ["CROWDED", "bounded", "combine", "together"]

CROWDED = (
    "close some of the pull requests with this head, or push another commit: without an App a "
    f"status has room for {MAX_TWINS} of them"
)

FULL = "more has failed here than can be kept: go on with another commit in another pull request"

_RANK = {
    CheckState.SUCCESS: 0,
    CheckState.IN_PROGRESS: 1,
    CheckState.QUEUED: 2,
    CheckState.ACTION_REQUIRED: 3,
    CheckState.FAILURE: 4,
}


def combine(now: Situation, standing: Standing) -> tuple[Standing, CheckState, str]:
    """How this pull request stands after all, and state and title of the check on its head."""
    if standing.state is CheckState.SUCCESS and now.forged is None:
        raise Need("forged")
    if now.forged:
        title = f"FORGED: {'; '.join(now.forged)}"[:200]
        update = {"state": CheckState.FAILURE, "title": title}
        standing = standing.model_copy(update=update)
    standing = bounded(standing)
    if not standing.gated:
        return standing, standing.state, standing.title
    return standing, *_over_all(now, standing)


def bounded(standing: Standing) -> Standing:
    """A standing that the ledger can hold: red, and without its plan, where it cannot."""
    if is_full(standing.reused):
        update = {"state": CheckState.FAILURE, "title": f"Not ready: {FULL}"}
        standing = standing.model_copy(update=update)
    bare = standing.model_copy(update={"plans": []})
    for found in (standing, bare):
        if len(pack(found)) <= MAX_STANDING:
            return found
    bare = Standing(
        number=standing.number,
        base_ref=standing.base_ref,
        gated=standing.gated,
        state=CheckState.FAILURE,
        title="The plan and what was said of it are too large to be kept: split the change",
        since=standing.since,
        pusher=standing.pusher,
        pushers=standing.pushers,
        void=True,
        answered=standing.answered,
        seen=standing.seen,
        accepts=[],
        reused=gathered(standing.reused, {}),
    )
    return bare.model_copy(update={"fault": bare.title})


def together(own: Standing, others: Sequence[Standing]) -> list[Standing] | None:
    """All that a check says of its head; None where it is too much.

    The plans of others are the first to go: they are made again.
    """
    for found in (
        [own, *others],
        [own, *(_unplanned(item) for item in others)],
    ):
        if sum(len(pack(item)) for item in found) <= MAX_PACKED:
            return found
    return None


def _unplanned(standing: Standing) -> Standing:
    """Without what is made again; what failed elsewhere is not."""
    update = {"case": None, "plans": [], "reused": gathered(standing.reused, {})}
    return standing.model_copy(update=update)


def _over_all(now: Situation, own: Standing) -> tuple[CheckState, str]:
    """The AND over all open pull requests with this head into gated branches."""
    gone = now.pull.state == "closed"
    others = [item for item in now.others if item.gated]
    if own.state is not CheckState.SUCCESS and not gone and not now.twins:
        return own.state, own.title
    # A closed pull request no longer counts; one that is not known yet is not green.
    same = _same(now)
    if not now.app and len(same) >= MAX_TWINS:
        return CheckState.FAILURE, f"Not ready: {CROWDED}"
    if own.state is not CheckState.SUCCESS and not gone:
        green = {item.number for item in others if item.state is CheckState.SUCCESS}
        held = any(pull.number in green for pull in same)
        return _held(now.pull, own.state, own.title) if held else (own.state, own.title)
    worst = (own.state, own.title)
    if gone and same:
        worst = (CheckState.SUCCESS, "Ready")
    known = {item.number: item for item in now.others}
    for pull in same:
        other = known.get(pull.number)
        if other is None or other.base_ref != pull.base.ref or _is_behind(now, own, other):
            found = _held(pull, CheckState.IN_PROGRESS, "")
        elif pull.draft and other.gated:
            # Its own job may not have said so yet.
            found = _held(pull, CheckState.ACTION_REQUIRED, "a draft")
        elif other not in others:
            continue
        else:
            found = _held(pull, other.state, other.title)
        worst = max(worst, found, key=lambda item: _RANK[item[0]])
    return worst


def _is_behind(now: Situation, own: Standing, other: Standing) -> bool:
    """Whether another pull request is green, and has not been held yet to what failed here."""
    if other.state is not CheckState.SUCCESS or other.case is None:
        return False
    results = [entry.result for entry in now.entries if entry.result]
    failed = fails_of([*results, *own.reused]) - fails_of(other.reused)
    jobs = {(job.id, job.key) for job in other.case.report.plan.jobs if job.required}
    return bool(jobs & failed)


def _same(now: Situation) -> list[Pull]:
    """The other open pull requests with this head."""
    if now.pulls is None:
        raise Need("pulls")
    head, number = now.pull.head.sha, now.pull.number
    return [pull for pull in now.pulls if pull.head.sha == head and pull.number != number]


def _held(twin: Pull, state: CheckState, why: str) -> tuple[CheckState, str]:
    """What another pull request makes of the verdict; anybody can open one with any head."""
    who = f"#{twin.number} of {twin.user.login if twin.user else 'nobody'}"
    if state is CheckState.IN_PROGRESS:
        return state, f"Waiting for {who}, which has the same head"
    text = f"Held by {who}, which has the same head: close it, or push another commit here"
    return state, f"{text} ({why})"[:200]
