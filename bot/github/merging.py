"""By whose words a merge group runs and gets green, and which word is missing; pure.

A group is a commit that nobody speaks about: words are said on the pull requests that it merges,
for their heads, and hold in the group what they hold there.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from bot.github.approvals import (
    People,
    acceptances,
    approval,
    beyond,
    grants,
    may_order,
    said,
    waivers,
)
from bot.github.case import Case, Envelope, Grant, Waiver
from bot.github.situation import Group, Part
from bot.model import ItemState, Report

__all__ = ["accepted", "asked", "headline", "missing", "outdated", "permitted", "waived"]

AGAIN = "queue it again"
RUN = "/fla-bot run"


def permitted(case: Case, group: Group, us: str, people: People) -> tuple[Grant | None, str]:
    """The words by which machines may run a group: one for each head in it.

    Together they must reach as far as its plan: each pull request brings lanes and paths of its
    own. What none of them brings is there once its branch is updated, and can be approved there.
    The first of them stands for all.
    """
    found = []
    for part in group.parts:
        grant, why = _granted(part, case.code, us, people)
        if grant is None:
            return None, f"#{part.pull.number}: {why or 'nobody has approved its head'}"
        found.append(grant)
    if more := beyond(_joined([grant.envelope for grant in found]), case.envelope()):
        number = group.own.pull.number
        return None, f"update the branch of #{number} and approve it there: {more}"
    return found[0], ""


def _granted(part: Part, code: str, us: str, people: People) -> tuple[Grant | None, str]:
    """The word for a part's head; `code`: the bot that runs, for which it must have been given."""
    standing = part.standing
    if standing is None or standing.case is None:
        return None, "it has no plan"
    if standing.case.code != code:
        return None, "the approval was for another version of the bot"
    heard, case = said(part.comments, us), standing.case
    edits = {comment.id for comment in part.comments if comment.edited}
    words = grants(part.pull, heard, standing, case, "", people, standing.judged, edits)
    return approval(part.pull, case, words, people)


def _joined(envelopes: Sequence[Envelope]) -> Envelope:
    codes = {envelope.code for envelope in envelopes}
    return Envelope(
        machines=sorted({name for envelope in envelopes for name in envelope.machines}),
        minutes=sum(envelope.minutes for envelope in envelopes),
        sensitive=sorted({path for envelope in envelopes for path in envelope.sensitive}),
        code=codes.pop() if len(codes) == 1 else "",
    )


def outdated(group: Group, code: str) -> list[int]:
    """Pull requests whose plan is of another bot than the one that runs, and is not awaited yet.

    Nobody has looked at them since, and a word counts for the plan that is shown when it is given.
    """
    return [
        part.pull.number
        for part in group.parts
        if (own := part.standing) and own.case and own.case.code != code and not own.void
    ]


def asked(case: Case, group: Group, lane: str, since: datetime, us: str, people: People) -> bool:
    """Whether somebody who may has asked for a lane on one of the pull requests since then."""
    return any(
        item.command.kind == "rerun" or item.command.arguments[:1] in (("",), (lane,))
        for part in group.parts
        for item in said(part.comments, us)
        if item.command.kind in ("run", "rerun")
        and item.comment.created_at > since
        and may_order(part.pull, case, item.login, people)
    )


def accepted(case: Case, group: Group, us: str, people: People) -> dict[str, str]:
    """Digests that count in a group, and who accepted them.

    What a pull request asks for, and was accepted there, is the same edit here. What is asked for
    here alone takes a word from somebody with a hand in none of it.
    """
    found: dict[str, str] = {}
    for part in group.parts:
        heard, standing = said(part.comments, us), part.standing
        if standing is None:
            continue  # nobody knows which of them was refused
        if standing.case is not None:
            own = People(people.roles, part.hands)
            found = {**acceptances(standing.case, heard, standing, own)[0], **found}
        found = {**acceptances(case, heard, standing, people)[0], **found}
    return found


def waived(case: Case, group: Group, us: str, people: People) -> list[Waiver]:
    """Waivers that hold in a group: of jobs that are the same there, and of rules.

    A rule is waived if it is wherever it hits.
    """
    keys = {job.id: job.key for job in case.report.plan.jobs}
    found = [(part, _waived(part, us, people)) for part in group.parts]
    hit = [(_hits(part), {waiver.target for waiver in own}) for part, own in found]
    same = [
        w for part, own in found for w in own if keys.get(w.target) == _keys(part).get(w.target)
    ]
    return [
        w
        for w in same
        if w.target in keys or all(w.target in own for h, own in hit if w.target in h)
    ]


def _waived(part: Part, us: str, people: People) -> list[Waiver]:
    """The waivers that count on a pull request's own head, where they were recorded."""
    case = part.standing.case if part.standing else None
    if part.standing is None or case is None:
        return []
    own = People(people.roles, part.hands)
    found, refused = waivers(case, said(part.comments, us), part.standing, own)
    known = [waiver for waiver in found if waiver in part.standing.waivers]
    return [w for w in known if (w.comment, w.target) not in refused]


def _keys(part: Part) -> dict[str, str]:
    case = part.standing.case if part.standing else None
    return {job.id: job.key for job in case.report.plan.jobs} if case else {}


def _hits(part: Part) -> dict[str, tuple[int, int]]:
    case = part.standing.case if part.standing else None
    return case.hits if case else {}


def missing(
    report: Report, group: Group, code: str, us: str, people: People
) -> list[tuple[int, str]]:
    """What must be typed before a group can get green, and on which pull request."""
    lines = list(_accept_lines(report, group))
    if any(item.id == "approval" and item.state is ItemState.HUMAN for item in report.checklist):
        lines += [
            (part.pull.number, f"/fla-bot approve {part.head}")
            for part in group.parts
            if _granted(part, code, us, people)[0] is None
        ]
    lines += [
        (group.own.pull.number, f"{RUN} {item.id.removeprefix('broken:')}")
        for item in report.checklist
        if item.id.startswith("broken:") and item.state is ItemState.HUMAN
    ]
    return lines


def _asked(part: Part) -> list[str]:
    """The digests that a pull request needs accepted on its own head."""
    case = part.standing.case if part.standing else None
    items = case.report.checklist if case else []
    return [item.accept for item in items if item.accept and item.state is ItemState.HUMAN]


def _accept_lines(report: Report, group: Group) -> Iterator[tuple[int, str]]:
    places = {code: part.pull.number for part in reversed(group.parts) for code in _asked(part)}
    for item in report.checklist:
        if item.state is ItemState.HUMAN and item.accept:
            number = places.get(item.accept, group.own.pull.number)
            yield number, f"/fla-bot accept {item.accept}"


def headline(title: str, typed: Sequence[tuple[int, str]]) -> str:
    """Why a group waits for a person, so that a status has room for what to type, and where."""
    if not typed:
        return f"{title[:180]}; {AGAIN}"
    (number, line), more = typed[0], len(typed) - 1
    also = f" and {more} more" if more else ""
    lacks = "A lane is broken: once mended," if line.startswith(RUN) else "A word is missing:"
    return f"{lacks} on #{number} type {line}{also}; then {AGAIN}"
