"""How all open pull requests stand, and which of them the reaper should look at; reads only."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from bot.document import Strict
from bot.github.actor import OPEN, is_waiting
from bot.github.books import books_digest, shelf_digest
from bot.github.case import RowId, Standing
from bot.github.connection import NotFound
from bot.github.holding import may_heal
from bot.github.ledger import PREVIEW, READY, Shown, View
from bot.github.operate import EXECUTOR, PLANNER, traffic
from bot.github.reconcile import SPOILT, Reconciler
from bot.github.records import Branch, Pull, Run
from bot.github.situation import GROUP
from bot.model import CheckState

__all__ = ["Overview", "PullStatus", "look_at_groups", "overview"]

# A comment or an edit whose event was lost is found by its time: so long before the last look at
# everything, and however long ago that was, up to a day.
LOOK_BACK, LONGEST = timedelta(minutes=30), timedelta(days=1)


class PullStatus(Strict):
    """One pull request: its verdict, its runs, and why the reaper should look at it."""

    number: int
    head: str
    state: str
    title: str
    runs: list[str]
    due: str


class Overview(Strict):
    """The state of the bot. `due`: pull requests to be reconciled."""

    repository: str
    mode: str
    runs: list[str]
    pulls: list[PullStatus]
    due: list[int]


def overview(reconciler: Reconciler, number: int | None = None) -> Overview:
    """All open pull requests, or one of them."""
    client = reconciler.client
    pulls = [client.pull(number)] if number else client.open_pulls()
    groups = {} if number else _groups(reconciler)
    trees = dict[str, dict[str, str]]()
    all_runs = reconciler.runs()
    found_runs = traffic(all_runs, client.identity.login)
    left = _left_behind(reconciler, all_runs)
    since = _last_look(reconciler) - LOOK_BACK
    found = []
    for pull in pulls:
        stored = reconciler.stored(pull.number)
        view = reconciler.ledger.read(pull.head.sha, pull.number, stored)
        shown = view.shown.get(READY) or view.shown.get(PREVIEW)
        if pull.base.ref not in trees:
            trees[pull.base.ref] = _tree(reconciler, pull.base.ref)
        due = _due(pull, view, shown, trees[pull.base.ref], since, reconciler.now())
        due = due or _unread(reconciler, pull, view, shown, stored)
        due = due or groups.get(pull.number, "") or left.get(pull.number, "")
        runs = [f"{run.id} {run.row}" for run in found_runs.runs if run.row.number == pull.number]
        found.append(
            PullStatus(
                number=pull.number,
                head=pull.head.sha,
                state=shown.state if shown else "none",
                title=shown.title if shown else "",
                runs=runs,
                due=due,
            )
        )
    return Overview(
        repository=client.repository,
        mode=reconciler.mode,
        runs=[f"{run.id} {run.row} of {EXECUTOR}" for run in found_runs.open_runs()],
        pulls=found,
        due=[item.number for item in found if item.due],
    )


def _due(
    pull: Pull,
    view: View,
    shown: Shown | None,
    tree: Mapping[str, str],
    since: datetime,
    now: datetime,
) -> str:
    """Why a pull request needs a look, or nothing."""
    if shown is None:
        return "no check"
    if shown.state in OPEN or shown.state == "stale":
        return f"its check is {shown.state}"
    if any(entry.result is None for entry in view.entries):
        return "a run is open"
    if view.forged:
        return "forged"
    if not any(pull.number in held for held in view.seals.values()):
        return "its head has the verdict of another one"
    standing = view.standings.get(pull.number)
    if standing is not None and (why := _outdated(standing, pull, tree, now)):
        return why
    return "news" if pull.updated_at > since else ""


def _unread(
    reconciler: Reconciler, pull: Pull, view: View, shown: Shown | None, stored: str
) -> str:
    """Whether nothing can be told of a verdict, such as what judged: another look makes it anew."""
    if pull.number in view.standings or reconciler.mode == "off":
        return ""
    if not reconciler.ledger.app and reconciler.mode == "shadow" and not stored:
        return ""  # no machine has run, so nothing is kept
    if shown and shown.state != CheckState.SUCCESS and shown.title.startswith(SPOILT):
        return ""  # GitHub takes no comment: each look would only use up statuses
    return "its standing cannot be read"


def _outdated(standing: Standing, pull: Pull, tree: Mapping[str, str], now: datetime) -> str:
    """Why what the ledger says of a pull request may no longer hold, or nothing."""
    if standing.base_ref != pull.base.ref:
        return "its base has changed"
    if standing.plans:
        return "a run of another plan may have failed"
    case = standing.case
    if case is not None and case.gated:
        if case.books != books_digest(tree, case.watched, case.ops):
            return "the contracts have changed"
        if case.shelf != shelf_digest(tree):
            return "contracts of other ops have changed"
    if standing.fault and may_heal(standing, books_digest(tree) or "", now):
        return "its fault may be gone"
    return ""


def _last_look(reconciler: Reconciler) -> datetime:
    """When the reaper last went through to its end; it may have been off, or GitHub down."""
    first = reconciler.now() - LONGEST
    created = f">={first:%Y-%m-%dT%H:%M:%SZ}"
    found = reconciler.client.runs(PLANNER, event="schedule", status="success", created=created)
    return max((run.created_at for run in found), default=first)


def _tree(reconciler: Reconciler, branch: str) -> dict[str, str]:
    try:
        return reconciler.client.tree(branch)
    except NotFound:
        return {}


def _groups(reconciler: Reconciler) -> dict[int, str]:
    """Merge groups without a verdict, by the pull request that they add."""
    return {
        number: f"a merge group waits: {group.ref}"
        for number, group, shown in _all_groups(reconciler)
        if is_waiting(shown)
    }


def _left_behind(reconciler: Reconciler, runs: Sequence[Run]) -> dict[int, str]:
    """Runs of merge groups that are gone, by pull request; whoever looks at it knows whose."""
    found = (RowId.find(run.display_title) for run in runs if run.status != "completed")
    rows = [row for row in found if row is not None and row.nonce == GROUP]
    heads = {group.sha for group in reconciler.queue()} if rows else set()
    return {
        row.number: "a run of a merge group that is gone" for row in rows if row.head not in heads
    }


def _all_groups(reconciler: Reconciler) -> list[tuple[int, Branch, Shown | None]]:
    found = []
    for named in reconciler.queue():
        view = reconciler.ledger.read(named.sha, named.number)
        group = Branch(ref=named.name, sha=named.sha, repo=None)
        found.append((named.number, group, view.shown.get(READY)))
    return found


def look_at_groups(reconciler: Reconciler, wanted: int) -> None:
    """Merge groups of a pull request: one that nobody has planned is planned, others go on."""
    for number, group, shown in _all_groups(reconciler):
        if number == wanted and is_waiting(shown):
            # A group of which nothing is known is planned first.
            reconciler.reconcile(number, group=group)
