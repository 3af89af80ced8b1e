"""Who may let machines run, accept and waive: from comments, roles and envelopes; pure."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bot.github.case import Acceptance, Case, Envelope, Grant, Standing, Waiver
from bot.github.commands import Command, commands
from bot.github.records import Comment, Pull
from bot.model import ItemState

__all__ = [
    "LATER", "Need", "People", "Said", "acceptances", "approval", "beyond", "deciders", "digests",
    "edited", "grants", "may_order", "said", "shortfall", "waivers",
]  # fmt: skip

LATER = "it did not count when it was first seen; type it again"
UNSURE = (
    "nobody may: there are too many commits or pushers to know who wrote it; squash it, and if "
    "that is not enough, open another pull request"
)
MAX_COMMITS = 250  # GitHub lists no more: with more, who wrote them is not known


class Need(Exception):
    """Something must be read from GitHub before this can be decided."""

    def __init__(self, what: str, name: str = "") -> None:
        self.what, self.name = what, name
        super().__init__(what, name)


@dataclass(frozen=True, slots=True)
class Said:
    """A command, with the comment that it stands in."""

    comment: Comment
    login: str
    command: Command


@dataclass(frozen=True, slots=True)
class People:
    """What is known of people: roles now, and who had a hand in the head (None: not read yet)."""

    roles: Mapping[str, str]
    authors: frozenset[str] | None = None

    def role(self, login: str) -> str:
        """The role of an account at this moment."""
        if login not in self.roles:
            raise Need("role", login)
        return self.roles[login]

    def barred(self, login: str) -> str:
        """Why an account may not judge the head: it had a hand in it, or may have had."""
        if self.authors is None:
            raise Need("authors")
        if login.lower() in self.authors:
            return "who wrote or pushed the change may not"
        return UNSURE if "?" in self.authors else ""


def said(comments: Collection[Comment], us: str) -> list[Said]:
    """All commands of persons that count, oldest first: whoever may push can edit a comment."""
    return [item for item in _commands(comments, us) if not item.comment.edited]


def edited(comments: Collection[Comment], us: str) -> list[Said]:
    """Commands in edited comments: they command nothing, and are told so."""
    return [item for item in _commands(comments, us) if item.comment.edited]


def _commands(comments: Collection[Comment], us: str) -> list[Said]:
    found = []
    for comment in comments:
        user = comment.user
        if user is None or user.login == us or user.type != "User":
            continue
        if comment.performed_via_github_app is not None:
            continue  # an App in a person's name
        found += [Said(comment, user.login, command) for command in commands(comment.body)]
    return found


def grants(
    pull: Pull,
    heard: list[Said],
    standing: Standing | None,
    case: Case,
    pusher: str,
    people: People,
    judged: int,
    edits: Collection[int] = (),
) -> list[Grant]:
    """The words that may let machines run this head, each with how far it reaches.

    A word counts for the plan that was shown when it was given: one that is not recorded yet takes
    the envelope of the plan in the ledger. Only words of those who may are recorded: anybody can
    write a comment, and a check holds little. One whose comment was edited (`edits`) counts no
    more, and stays so that this can be told.
    """
    known = {grant.comment: grant for grant in standing.grants} if standing else {}
    shown = standing.case if standing and standing.case else case
    base = standing.base_ref if standing else pull.base.ref
    found = []
    for item in heard:
        wanted = item.command.kind == "approve" and item.command.arguments == (pull.head.sha,)
        if wanted:
            number = item.comment.id
            new = Grant(comment=number, login=item.login, base_ref=base, envelope=shown.envelope())
            if number in known:
                found.append(known[number])
            elif number > judged and people.role(item.login) in case.approvals.run:
                found.append(new)
    found += [known[n].model_copy(update={"edited": True}) for n in sorted({*known} & {*edits})]
    if 0 in known:
        found.append(known[0])
    elif _is_own_push(pull, pusher):
        found.append(Grant(comment=0, login=pusher, base_ref=base, envelope=shown.envelope()))
    return found


def _is_own_push(pull: Pull, pusher: str) -> bool:
    """Whether a push is as good as an approval, if the one who pushed may give one."""
    repo, author = pull.head.repo, pull.user
    if repo is None or author is None or not pusher or pusher.endswith("[bot]"):
        return False
    if author.type != "User":
        return False
    own_branch = pull.base.repo is not None and repo.id == pull.base.repo.id
    own_fork = repo.full_name.partition("/")[0] == author.login and pusher == author.login
    return own_branch or own_fork


def approval(
    pull: Pull, case: Case, found: list[Grant], people: People
) -> tuple[Grant | None, str]:
    """The word by which machines may run this plan now, or why there is none."""
    why = ""
    for grant in found:
        short = shortfall(pull, case, grant)
        if not short and people.role(grant.login) in case.approvals.run:
            return grant, ""
        if short or grant.comment:
            why = short or f"{grant.login} may not approve"
    return None, why


def shortfall(pull: Pull, case: Case, grant: Grant) -> str:
    """Why a word does not reach as far as a plan, whoever gave it, or nothing."""
    if grant.edited:
        return f"the approval in comment {grant.comment} was edited; type it again"
    if grant.base_ref != pull.base.ref:
        return f"the approval was for the branch {grant.base_ref}"
    if grant.comment == 0 and case.sensitive:
        return "the change touches what judges, builds or installs"
    return beyond(grant.envelope, case.envelope())


def beyond(given: Envelope, wanted: Envelope) -> str:
    """What a plan asks for that an approval does not give, or nothing."""
    if given.covers(wanted):
        return ""
    if given.code != wanted.code:
        return "the approval was for another version of the bot"
    if machines := sorted({*wanted.machines} - {*given.machines}):
        return f"the approval was not for {', '.join(machines)}"
    if wanted.minutes > given.minutes:
        return f"the approval was for {given.minutes} minutes, the plan takes {wanted.minutes}"
    paths = sorted({*wanted.sensitive} - {*given.sensitive})
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"the approval was not for {paths[0]}{more}"


def may_order(pull: Pull, case: Case, login: str, people: People) -> bool:
    """Whether an account may start and end machines: the author may, where a head is approved."""
    author = pull.user.login if pull.user else ""
    return login == author or people.role(login) in case.approvals.run


def digests(case: Case) -> dict[str, str]:
    """The digests that a person must accept, and of which op each is; some are of none."""
    return {
        item.accept: item.id.partition(":")[2].partition(".")[0]
        for item in case.report.checklist
        if item.state is ItemState.HUMAN and item.accept
    }


def acceptances(
    case: Case, heard: list[Said], standing: Standing, people: People
) -> tuple[dict[str, str], list[Acceptance]]:
    """Digests that somebody who may has accepted, and who; and the words to be recorded.

    A word that was refused is not recorded: having been looked at, it will not count later either.
    One for a digest that nothing asks for here may be meant for a merge group.
    """
    recorded = standing.accepts
    wanted = digests(case)
    found, words = dict[str, str](), list[Acceptance]()
    for item in heard:
        if item.command.kind != "accept":
            continue
        (code,) = item.command.arguments
        word = Acceptance(comment=item.comment.id, code=code)
        known = recorded is not None and word in recorded
        if not known and recorded is not None and word.comment <= standing.judged:
            continue
        if code in wanted:
            counts = not _cannot_accept(case, item.login, wanted[code], people)
        else:
            counts = known or _may_accept(case, item.login, case.owners, people)
        if counts and code in wanted:
            found.setdefault(code, item.login)
        if known or counts:
            words.append(word)
    return found, words


def _cannot_accept(case: Case, login: str, op: str, people: People) -> str:
    """Why an account may not accept something of an op, or nothing."""
    if why := people.barred(login):
        return why
    if not _may_accept(case, login, [op], people):
        return f"only {deciders(case, case.approvals.accept, op)} may"
    return ""


def _may_accept(case: Case, login: str, ops: Iterable[str], people: People) -> bool:
    """Whether an account owns the contract of one of these ops, or its role may accept."""
    owner = any(_is_owner(case, login, op) for op in ops)
    return owner or people.role(login) in case.approvals.accept


def deciders(case: Case, roles: Sequence[str], op: str) -> str:
    """Who may decide about an op; about what is of none, such as a rule, no owner may."""
    owners = ["an owner of the contract"] if case.owners.get(op) else []
    return " or ".join([", ".join(roles), *owners])


def _is_owner(case: Case, login: str, op: str) -> bool:
    return login.lower() in {name.lstrip("@").lower() for name in case.owners.get(op, [])}


def waivers(
    case: Case, heard: list[Said], standing: Standing, people: People
) -> tuple[list[Waiver], dict[tuple[int, str], str]]:
    """The waivers to be recorded, as they were first seen, and why some words do not count.

    A word is known by its comment and target. One that was refused is not recorded: having been
    looked at, it will not count later either.
    """
    known = {(waiver.comment, waiver.target): waiver for waiver in standing.waivers}
    shown = standing.case or case
    found, refused = [], dict[tuple[int, str], str]()
    for item in heard:
        if item.command.kind != "waive":
            continue
        target, reason = item.command.arguments
        number = item.comment.id
        old = known.get((number, target))
        if old is None and number <= standing.answered:
            continue
        new = old or Waiver(
            comment=number, login=item.login, target=target, reason=reason, plan=shown.plan
        )
        # What is recorded was said of this head and plan.
        early = "" if old else _is_early(item, standing)
        why = early or _cannot_waive(case, item.login, new, people)
        if not why and old is None and number <= standing.judged:
            why = LATER  # whoever waits for an answer is answered again
        if why:
            refused[number, target] = why
        if old or not why:
            found.append(new)
    return found, refused


def _is_early(item: Said, standing: Standing) -> str:
    """Why a word was for what people saw before this head and plan, or nothing."""
    if item.comment.created_at <= standing.since:
        return "it was for another head; type it again if it still holds"
    if standing.replaced is not None and item.comment.created_at <= standing.replaced:
        return "it was for another plan; type it again if it still holds"
    return ""


def _cannot_waive(case: Case, login: str, waiver: Waiver, people: People) -> str:
    if waiver.plan != case.plan:
        return "it was for another plan; type it again if it still holds"
    codes = {finding.code for finding in case.report.findings}
    jobs = {job.id: job.op for job in case.report.plan.jobs}
    if waiver.target not in codes | set(jobs):
        return f"neither a rule that hits here nor a job: {waiver.target}"
    if why := people.barred(login):
        return why
    op, roles = jobs.get(waiver.target, ""), ("admin", "maintain")
    if not _is_owner(case, login, op) and people.role(login) not in roles:
        return f"only {deciders(case, roles, op)} may waive it"
    return ""
