"""Which plan of a head is in force, and how the pull request stands before anything else; pure."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from datetime import datetime, timedelta

from bot.github.approvals import Need
from bot.github.case import Case, Standing
from bot.github.situation import Situation
from bot.model import CheckState

__all__ = ["beginning", "in_force", "may_heal"]

HEALS = timedelta(hours=1)  # so long the reaper asks for a plan where a job met trouble


def in_force(now: Situation) -> Case | None:
    """The plan that counts: the ledger's as long as it holds, or else a new one."""
    fresh = now.fresh if now.fresh is not None and _fits(now, now.fresh) else None
    old = _kept(now)
    if old is None or fresh is None:
        return old or fresh
    same = (
        old.books == fresh.books
        and old.gated == fresh.gated
        and old.report.plan.merge_base == fresh.report.plan.merge_base
        and (old.shelf == fresh.shelf or _demands(old) == _demands(fresh))
    )
    # Runs of the old plan go on, and what was said of it counts.
    return old.model_copy(update={"shelf": fresh.shelf}) if same else fresh


def _demands(case: Case) -> tuple[object, ...]:
    """What a plan asks for, whatever the commit that it was made at."""
    report = case.report
    jobs = [job.model_dump(exclude={"because"}) for job in report.plan.jobs]
    prints = {op: origin.fingerprint for op, origin in case.contracts.items()}
    found = [*report.checklist, *report.findings]
    return jobs, prints, found, case.anchors, case.hits, case.late, case.envelope()


def _fits(now: Situation, case: Case) -> bool:
    """Whether a plan is of this head and base; of a merge group, also of what it merges."""
    merged = case.merges[0].head if case.merges else ""
    if merged != (now.group.own.head if now.group else ""):
        return False
    return (
        case.number == now.pull.number
        and case.head == now.pull.head.sha
        and case.base_ref == now.pull.base.ref
    )


def _kept(now: Situation) -> Case | None:
    """The ledger's plan, if it is still the one that would be made.

    Once it was not, it is never again: what made it void may be gone by now, or not be asked about.
    """
    old = now.standing
    if old is None or old.case is None or old.void or old.fault or now.fault:
        return None
    holds = _fits(now, old.case) and old.case.code == now.code and not now.moved
    return old.case if holds else None


def may_heal(standing: Standing, books: str, now: datetime) -> bool:
    """Whether a fault may be gone by itself: the base has other contracts, or a job met trouble."""
    if standing.fault_books and standing.fault_books != books:
        return True
    since = standing.fault_since
    return standing.fault.startswith("infra:") and since is not None and now - since < HEALS


def beginning(now: Situation, case: Case | None) -> Standing:
    """How the pull request stands before its plan and people's words are looked at."""
    old, pull = now.standing, now.pull
    case = case or (old.case if old and old.base_ref == pull.base.ref else None)
    gated = case.gated if case else now.gated
    if gated is None:
        raise Need("gated")
    return Standing(
        number=pull.number,
        base_ref=pull.base.ref,
        gated=gated,
        state=CheckState.IN_PROGRESS,
        title="Planning",
        since=old.since if old else now.now,
        pusher=(old.pusher if old else "") or now.pusher,
        pushers=list(now.pushers),
        answered=now.answered,
        edits=now.edits,
        replies=old.replies if old else [],
        untold=old.untold if old else "",
        grants=old.grants if old else [],
        waivers=old.waivers if old else [],
        # A plan that no longer holds stays: an approval was given for what it shows.
        case=old.case if old else None,
    )
