"""Which plan of a head is in force, and how the pull request stands before anything else; pure."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from datetime import datetime, timedelta

from bot.github.approvals import Need, said
from bot.github.case import Case, Standing
from bot.github.situation import UNKNOWN, Situation
from bot.model import CheckState

__all__ = ["beginning", "in_force", "lacks_pushes", "may_heal", "shown_since"]

BOUND = ("waive", "run", "rerun")  # commands for the head that is there, without its name
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


def shown_since(now: Situation) -> datetime:
    """Since when this head is the one that people see: words for another one do not count here."""
    return _shown(now)[0]


def _shown(now: Situation) -> tuple[datetime, int]:
    """Since when, and the last forced push until then.

    A head that was left comes back by a forced push only, or after one. Nobody may have told us:
    before a word counts for the head, GitHub's own list says whether there was any since.
    """
    old = now.standing
    if not _takes_words(now):
        return (old.since, old.forced) if old else (now.now, UNKNOWN)
    if now.forced is None:
        if old and (now.again or _is_spoken_to(now, old)):
            raise Need("forced")
        return (old.since, old.forced) if old else (now.now, UNKNOWN)
    return old.since if old and _has_stayed(now, old) else now.now, now.forced


def _has_stayed(now: Situation, old: Standing) -> bool:
    """Whether the head was there ever since it was seen: nobody has forced a push after that.

    An earlier version wrote down no forced push, only the time; words count after that, too.
    """
    if now.forced == UNKNOWN:
        return False
    early = now.forced_at is not None and now.forced_at <= old.since
    return now.forced == old.forced or (old.forced == 0 and early)


def lacks_pushes(now: Situation, standing: Standing) -> bool:
    """Whether people may have a word for this head, and forced pushes were not looked at."""
    waits = standing.state is not CheckState.SUCCESS and _takes_words(now)
    return waits and standing.forced == UNKNOWN and now.forced is None


def _takes_words(now: Situation) -> bool:
    return now.group is None and now.pull.state == "open"


def _is_spoken_to(now: Situation, old: Standing) -> bool:
    """Whether somebody has a word for the head, by what is known of it, that is not answered."""
    return any(
        item.comment.id > now.answered
        and item.comment.created_at > old.since
        and item.command.kind in BOUND
        for item in said(now.comments, now.us)
    )


def _replaced(old: Standing | None, case: Case | None, now: datetime) -> datetime | None:
    """When another plan than the first one of a head came into force."""
    if old is None or old.case is None or case is None or old.case.plan == case.plan:
        return old.replaced if old else None
    return now


def beginning(now: Situation, case: Case | None) -> Standing:
    """How the pull request stands before its plan and people's words are looked at."""
    old, pull = now.standing, now.pull
    case = case or (old.case if old and old.base_ref == pull.base.ref else None)
    gated = case.gated if case else now.gated
    if gated is None:
        raise Need("gated")
    since, forced = _shown(now)
    return Standing(
        number=pull.number,
        base_ref=pull.base.ref,
        gated=gated,
        state=CheckState.IN_PROGRESS,
        title="Planning",
        since=since,
        forced=forced,
        replaced=_replaced(old, case, now.now),
        pusher=(old.pusher if old else "") or now.pusher,
        pushers=list(now.pushers),
        answered=now.answered,
        seen=now.seen,
        edits=now.edits,
        replies=old.replies if old else [],
        untold=old.untold if old else "",
        grants=old.grants if old else [],
        waivers=old.waivers if old else [],
        accepts=None if now.accepts is None else list(now.accepts),
        # A plan that no longer holds stays: an approval was given for what it shows.
        case=old.case if old else None,
    )
