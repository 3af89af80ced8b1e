"""From the state of one pull request to the writes that it calls for; pure.

Every event ends here: nothing is remembered but what GitHub holds, so that a lost, late or doubled
event changes nothing. What must still be read is asked for with `Need`.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from bot.github import merging
from bot.github.answers import Answers, told, unanswered, without_plan
from bot.github.approvals import Need, Said, acceptances, grants, said, waivers
from bot.github.case import Acceptance, Case, Grant, Standing, Waiver
from bot.github.combine import combine
from bot.github.holding import beginning, in_force, lacks_pushes, may_heal
from bot.github.lanes import Lanes, Permit, Runs, outlived, reused
from bot.github.rows import gathered
from bot.github.situation import Answer, Decision, Nothing, Plan, Queue, Situation
from bot.model import ChecklistItem, CheckState, ItemState, Report, Row, Verdict
from bot.report.settle import settle
from bot.words import judge_words

__all__ = ["OFF", "decide"]

OFF = "fla-bot is switched off (FLA_BOT=off)"
PLAN_WAIT = timedelta(hours=1)
LATE = "infra: no plan was made; the planner is started again"
ANEW = "; type /fla-bot run"


def decide(now: Situation) -> Decision:
    """The one decision; the same state gives the same decision."""
    if now.mode == "off":
        return _off(now)
    case, heard = in_force(now), said(now.comments, now.us)
    standing = _with_memory(now, beginning(now, case))
    if now.pull.state == "closed":
        return _closed(now, standing)
    if case is None:
        return _unplanned(now, standing, heard)
    return _planned(now, standing, case, heard)


def _with_memory(now: Situation, standing: Standing) -> Standing:
    """What runs of other heads and plans came to, or may yet."""
    known = [*(now.standing.reused if now.standing else ()), *(now.reuse or ()), *now.against]
    update = {"reused": gathered(known), "plans": outlived(now, standing.case)}
    return standing.model_copy(update=update)


def _planned(now: Situation, standing: Standing, case: Case, heard: list[Said]) -> Decision:
    """Everything, in the order in which one part needs the other."""
    words = _grants(now, standing, case, heard)
    permit = Permit(now, case, words)
    lanes = Lanes(now, case, permit, reused(now.standing, now.reuse, case, now.against))
    standing = standing.model_copy(update={"grants": words, "reused": lanes.reused})
    lanes.tidy()
    answers = Answers(now, case, heard, lanes)
    held_back = lanes.start([] if now.group else answers.orders())
    accepted, accepts, found, refused = _counting(now, standing, case, heard)
    if now.group is None:
        answers.started(held_back)
        answers.words(words, accepted, accepts, refused)
    rows = lanes.rows()
    waived = {
        w.target: f"{w.login}: {w.reason}" for w in found if (w.comment, w.target) not in refused
    }
    more = [*lanes.obstacles(rows, held_back), *_elsewhere(now)]
    report = _settled(now, case, rows, accepted, waived, more)
    state, title, typed = _verdict(now, report)
    if typed and now.group:
        # What is typed there counts then.
        lanes.steps += [Plan(number) for number in merging.outdated(now.group, now.code)]
    update = {"waivers": found, "accepts": accepts}
    if now.group is None:
        update["seen"] = max([now.seen, *(item.comment.id for item in heard)])
    update |= {"case": case, "state": state, "title": title[:200], "held": lanes.held}
    update["plans"] = outlived(now, case)
    if now.elsewhere:
        lanes.steps.append(Plan())
        update["planning"] = _asked(now)
    standing = standing.model_copy(update=update)
    if state is CheckState.SUCCESS and any(answer.counts for answer in answers.done()):
        # Nothing else can be in the queue.
        lanes.steps.append(Queue())
    return _finish(now, standing, lanes, report, answers.done(), approved=permit, typed=typed)


def _grants(now: Situation, standing: Standing, case: Case, heard: list[Said]) -> list[Grant]:
    """The words that may let machines run this head; none is for the head of a merge group."""
    if now.group:
        return []
    edits = {comment.id for comment in now.comments if comment.edited}
    return grants(now.pull, heard, now.standing, case, standing.pusher, now.people, now.seen, edits)


def _counting(
    now: Situation, standing: Standing, case: Case, heard: list[Said]
) -> tuple[dict[str, str], list[Acceptance], list[Waiver], dict[tuple[int, str], str]]:
    """Accepted digests, words for them, waivers, and which of these do not count, with reasons."""
    if now.group:
        accepted = merging.accepted(case, now.group, now.us, now.people)
        return accepted, [], merging.waived(case, now.group, now.us, now.people), {}
    accepted, accepts = acceptances(case, heard, standing, now.people)
    return accepted, accepts, *waivers(case, heard, standing, now.people)


def _asked(now: Situation) -> datetime:
    """Since when a plan is asked for."""
    return (now.standing.planning if now.standing else None) or now.now


def _elsewhere(now: Situation) -> list[ChecklistItem]:
    """The plan holds, but nobody has looked yet if it must have other ops, too."""
    if not now.elsewhere:
        return []
    late = now.now - _asked(now) > PLAN_WAIT
    text = LATE if late else "whether contracts of other ops that have changed concern it is seen"
    state = ItemState.FAILED if late else ItemState.WAITING
    return [ChecklistItem(id="elsewhere", state=state, text=text)]


def _verdict(
    now: Situation, report: Report
) -> tuple[CheckState, str, list[tuple[int, str]] | None]:
    """State and title, and for a merge group what must be typed where."""
    state, title, typed = report.state, report.headline, None
    if state is CheckState.SUCCESS and now.moved is None:
        raise Need("moved")
    if state is CheckState.ACTION_REQUIRED:
        title = f"{title}: {report.next_step}"
    if now.group:
        typed = merging.missing(report, now.group, now.code, now.us, now.people)
        if state is CheckState.ACTION_REQUIRED or report.verdict is Verdict.LOST:
            # The queue goes on without what needs a person, and nobody can rerun a group's lanes.
            state, title = CheckState.FAILURE, merging.headline(title, typed)
    return state, title, typed


def _settled(
    now: Situation,
    case: Case,
    rows: Sequence[Row],
    accepted: Mapping[str, str],
    waived: Mapping[str, str],
    more: Sequence[ChecklistItem],
) -> Report:
    """The report with rows and words put in."""
    areas = [area.area for area in case.report.scope.areas]
    words = judge_words(case.policy.pull_request, areas, now.pull.title, now.pull.body or "")
    report = settle(
        case.report,
        rows,
        words=words,
        accepted=accepted,
        waived=waived,
        more=more,
        hits=case.hits,
    )
    if report.state is CheckState.IN_PROGRESS:
        waits = next(i.text for i in report.checklist if i.state is ItemState.WAITING)
        step = f"nothing to do: machines are at work ({waits})"
        report = report.model_copy(update={"next_step": step})
    return report


def _off(now: Situation) -> Decision:
    """Switched off: what is open, or green for something else, is handed to a person."""
    old, update = now.standing, {"state": CheckState.ACTION_REQUIRED, "title": OFF}
    waits = now.pending or (old and old.state in (CheckState.QUEUED, CheckState.IN_PROGRESS))
    if not waits and not _is_of_another(now):
        raise Nothing
    if waits and old is not None:
        # What is known stays as it is: it counts again when the bot is switched on.
        return Decision(old, CheckState.ACTION_REQUIRED, OFF, None, now.pull.head.sha)
    standing = _with_memory(now, beginning(now, None))
    standing = standing.model_copy(update={"void": True, **update})
    if waits:
        return Decision(standing, standing.state, OFF, None, now.pull.head.sha)
    standing, state, title = combine(now, standing)
    if state is CheckState.SUCCESS or not (old or standing.gated):
        raise Nothing
    return Decision(standing, state, title, None, now.pull.head.sha)


def _is_of_another(now: Situation) -> bool:
    """Whether what the head shows may be a green that was earned for another branch, or closed."""
    old, pull = now.standing, now.pull
    if old is not None:
        closed = pull.state == "closed" and pull.merged_at is None
        return old.state is CheckState.SUCCESS and (closed or old.base_ref != pull.base.ref)
    if pull.state == "closed" or not now.twins:
        return False
    if now.pulls is None:
        raise Need("pulls")  # without an App others keep in their comments what they are for
    return all(other.base_ref != pull.base.ref for other in now.others)


def _unplanned(now: Situation, standing: Standing, heard: list[Said]) -> Decision:
    """No plan for this head yet: one is asked for, or it is said why there is none."""
    runs, old, answers = Runs(now), now.standing, list[Answer]()
    before = old.fault if old and old.base_ref == standing.base_ref else ""
    asked = any(item.command.kind in ("run", "rerun") for item in unanswered(now, heard))
    # Nobody asks for another plan of a merge group: GitHub makes a new group.
    again = asked and not now.fault and bool(before) and now.group is None
    healed = old is not None and bool(before) and not now.fault and _heals(now, old)
    fault = now.fault or ("" if again or healed else before)
    began = _asked(now)
    late = not fault and now.now - began > PLAN_WAIT
    if (fault or again or late) and now.group is None:
        # While a plan is awaited nobody is answered: words are looked at when it is there.
        answers = without_plan(now, heard, again=again or late)
    runs.cancel_other_heads()
    update: dict[str, object] = {"void": True}
    if fault:
        # What GitHub cuts off is not how to go on.
        more = "" if now.group else ANEW
        title = f"Not ready: {fault.removesuffix(ANEW)}"[: 200 - len(more)] + more
        update |= {"state": CheckState.FAILURE, "title": title, "fault": fault}
        since = (old.fault_since if old else None) or now.now
        update["fault_since"] = since if fault.startswith("infra:") else None
        update["fault_books"] = _books(now, old)
    else:
        runs.steps.append(Plan())
        update["planning"] = began
        # While the same trouble comes again its hour runs on; a person's word begins another.
        update["fault_since"] = old.fault_since if old and not again else None
    if late:
        update |= {"state": CheckState.FAILURE, "title": LATE}
    return _finish(now, standing.model_copy(update=update), runs, None, answers)


def _heals(now: Situation, old: Standing) -> bool:
    """Whether another plan is asked for though nobody says so."""
    if now.group:
        return False
    if now.books is None:
        raise Need("books")
    return may_heal(old, now.books, now.now)


def _books(now: Situation, old: Standing | None) -> str:
    """What judged at the base when a fault was first seen."""
    if now.group or (old and old.fault and not now.fault):
        return old.fault_books if old else ""
    if now.books is None:
        raise Need("books")
    return now.books


def _closed(now: Situation, standing: Standing) -> Decision:
    """A closed pull request is green only if it was merged so: it can be opened again."""
    old, runs = now.standing, Runs(now)
    if old is None and not runs.entries:
        raise Nothing
    runs.cancel_all("the pull request is closed")
    green = old is not None and old.state is CheckState.SUCCESS and now.pull.merged_at is not None
    state = CheckState.SUCCESS if green else CheckState.FAILURE
    names = ("void", "fault", "fault_since", "fault_books")
    kept = {name: getattr(old, name) for name in names} if old else {}
    standing = standing.model_copy(update={"state": state, "title": "Closed", **kept})
    return _finish(now, standing, runs, None, [])


def _finish(
    now: Situation,
    standing: Standing,
    runs: Runs,
    report: Report | None,
    answers: list[Answer],
    *,
    approved: Permit | None = None,
    typed: list[tuple[int, str]] | None = None,
) -> Decision:
    if lacks_pushes(now, standing):
        raise Need("forced")
    standing, state, title = combine(now, standing)
    standing = told(now, standing, answers, title)
    return Decision(
        standing,
        state,
        title,
        report,
        now.pull.head.sha,
        runs.steps,
        answers,
        runs.words(),
        approved=approved is not None and approved.known,
        typed=typed,
    )
