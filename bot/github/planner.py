"""The job that holds the tokens: validates what `scope` made and reconciles what an event names."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from bot.errors import UserError
from bot.github.actor import Hint
from bot.github.case import Case
from bot.github.events import Event
from bot.github.reconcile import Reconciler
from bot.github.records import Branch
from bot.github.scope import Cases, Missing
from bot.github.validate import NotYet, validated

__all__ = ["plan_event", "read_cases"]

MAX_BYTES = 8 << 20
PUSHES = ("opened", "synchronize")
GONE = ("edited", "deleted")


def read_cases(path: Path) -> Cases | str:
    """What `scope` made, which has read hostile content; or why it cannot be believed."""
    try:
        if path.is_symlink() or not path.is_file():
            return "infra: scope left no plan"
        if path.stat().st_size > MAX_BYTES:
            return "the plan is too large: split the change"
        return Cases.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"infra: the plan of scope breaks its schema at {place}: {first['msg']}"
    except OSError as error:
        return f"infra: the plan of scope cannot be read: {error.strerror}"


def plan_event(
    reconciler: Reconciler, event: Event, path: Path, environment: Mapping[str, str]
) -> list[int]:
    """Reconcile what an event names; the pull requests that were looked at."""
    sender = event.sender.login if event.sender else ""
    us = reconciler.client.identity.login
    if sender == us and event.action in ("edited", "created", "deleted"):
        return []  # our own edits are no news
    if event.name == "issue_comment":
        if event.issue is None or event.issue.pull_request is None:
            return []
        reconciler.reconcile(event.issue.number, Hint(doubt=event.action in GONE))
        return [event.issue.number]
    found = read_cases(path)
    if event.name == "workflow_run":
        return _groups(reconciler, found, environment)
    pull = event.pull_request
    number = pull.number if pull is not None else event.inputs_pr()
    shown = pull.head.sha if pull is not None else ""
    hint = Hint()
    if event.action != "closed":
        hint = _hint(reconciler, number, shown, found, environment)
    if pull is not None and event.action in PUSHES:
        person = event.sender is not None and event.sender.type == "User"
        who = sender if person else ""
        hint = replace(hint, pusher=who, pushed=shown, before=event.before or "")
    reconciler.reconcile(number, hint)
    return [number, *_groups(reconciler, found, environment)]


def _hint(
    reconciler: Reconciler,
    number: int,
    head: str,
    found: Cases | str,
    environment: Mapping[str, str],
) -> Hint:
    """The plan for a pull request's own head, or what is wrong; `head`: as the event has it."""
    if isinstance(found, str):
        ended = environment.get("SCOPE_RESULT", "")
        words = f" (its job ended as {ended})" if ended not in ("", "success") else ""
        return Hint(fault=f"{found}{words}; type /fla-bot run", fault_of=head)
    mine = [case for case in found.cases if case.number == number and not case.group]
    if not mine:
        for item in found.faults:
            if item.number == number and not item.group:
                return Hint(fault=item.fault, fault_of=item.head or head)
        return Hint(fault="infra: scope made no plan", fault_of=head)
    return _checked(reconciler, mine[0], found, environment)


def _checked(
    reconciler: Reconciler, case: Case, found: Cases, environment: Mapping[str, str]
) -> Hint:
    """A plan that may be acted on, or what is wrong with it; neither if it must be made anew."""
    # Which bot plans is our own knowledge: whoever read the change has no say in it.
    bot = environment.get("FLA_BOT_COMMIT", "")
    case = case.model_copy(update={"bot": bot, "code": reconciler.code})
    try:
        return Hint(fresh=validated(reconciler, case, found.texts))
    except UserError as error:
        words = "; ".join(map(str, error.faults))[:300]
        if not isinstance(error, NotYet):
            words = f"infra: the plan of scope is wrong: {words}"
        return Hint(fault=words, fault_of=case.head)


def _groups(
    reconciler: Reconciler, found: Cases | str, environment: Mapping[str, str]
) -> list[int]:
    """Merge groups among the plans: each gets its own check, if its branch is still there."""
    if isinstance(found, str):
        return []
    items: list[Case | Missing] = [*found.faults, *found.cases]
    named = {(item.number, item.group): item for item in items if item.group}
    done = []
    for (number, name), item in named.items():
        tip = reconciler.client.tip(name)
        if not tip or item.head != tip:
            continue  # gone, or built anew since
        if isinstance(item, Case):
            hint = _checked(reconciler, item, found, environment)
        else:
            hint = Hint(fault=item.fault, fault_of=tip)
        reconciler.reconcile(number, hint, group=Branch(ref=name, sha=tip, repo=None))
        done.append(number)
    return done
