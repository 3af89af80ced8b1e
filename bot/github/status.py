"""How all open pull requests stand, and which of them the reaper should look at; reads only."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from bot.document import Strict
from bot.github.actor import OPEN, is_waiting
from bot.github.books import books_digest, shelf_digest
from bot.github.case import RowId, Standing
from bot.github.connection import NotFound
from bot.github.decide import OFF
from bot.github.holding import may_heal
from bot.github.ledger import PREVIEW, READY, Shown, View
from bot.github.operate import EXECUTOR, PLANNER, Traffic, held, traffic
from bot.github.reconcile import SPOILT, Reconciler, verdict_name
from bot.github.records import Branch, Pull, Run
from bot.github.situation import GROUP
from bot.model import CheckState

__all__ = ["Overview", "PullStatus", "look_at_groups", "overview"]

# A comment or an edit whose event was lost is found by its time: so long before the last look at
# everything, and however long ago that was, up to a day.
LOOK_BACK, LONGEST = timedelta(minutes=30), timedelta(days=1)
OFF_RUN = "fla-bot is switched off"  # in fla-bot.yml, the name of a run that hears nobody
NEVER = datetime(2000, 1, 1, tzinfo=UTC)


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
    left = _left_behind(reconciler, all_runs)
    since = _last_look(reconciler) - LOOK_BACK
    seen = [_read(reconciler, pull) for pull in pulls]
    # A job without the App's key learns our name from what we have written.
    us = client.identity.login or next((view.us for _, view in seen if view.us), "")
    found_runs = traffic(all_runs, us)
    found = []
    for pull, (stored, view) in zip(pulls, seen, strict=True):
        shown = _shown(view, pull.number)
        if pull.base.ref not in trees:
            trees[pull.base.ref] = _tree(reconciler, pull.base.ref)
        tree = trees[pull.base.ref]
        due = _due(pull, view, shown, tree, since, reconciler.now())
        due = due or _switched(reconciler, pull, view, shown, tree)
        due = due or _freed(reconciler, view.standings.get(pull.number), found_runs)
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


def _read(reconciler: Reconciler, pull: Pull) -> tuple[str, View]:
    """Our comment where it holds the ledger, and what the ledger says."""
    stored = reconciler.stored(pull.number)
    return stored, reconciler.ledger.read(pull.head.sha, pull.number, stored)


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


def _shown(view: View, number: int) -> Shown | None:
    """The verdict that is of this pull request, or else of another one with its head."""
    mine = [name for name in (READY, PREVIEW) if number in view.seals.get(name, {})]
    return next((view.shown[name] for name in (*mine, READY, PREVIEW) if name in view.shown), None)


def _switched(
    reconciler: Reconciler, pull: Pull, view: View, shown: Shown | None, tree: Mapping[str, str]
) -> str:
    """Whether what is shown was said under another value of FLA_BOT."""
    if reconciler.mode == "off" or shown is None:
        return ""
    standing = view.standings.get(pull.number)
    # A verdict over several pull requests may be that of another one.
    if shown.title.startswith(OFF) or (standing and standing.title == OFF):
        return "it was switched off"
    gated = standing.gated if standing else books_digest(tree) is not None
    if pull.number not in view.seals.get(verdict_name(reconciler.mode, gated=gated), {}):
        return "its verdict has the name of another mode"
    return ""


def _freed(reconciler: Reconciler, standing: Standing | None, found: Traffic) -> str:
    """Whether a lane may start by now that a switch, a cap or the circuit breaker held back."""
    case = standing.case if standing else None
    if standing is None or case is None or reconciler.mode in ("no-dispatch", "off"):
        return ""
    for lane in standing.held:
        row = RowId(standing.number, case.head, case.plan, lane, 0)
        if not held(case, row, found, (), reconciler.now(), ordered=False):
            return f"{lane} was held back"
    return ""


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
    """When the reaper last went through to its end; GitHub may have been down."""
    first = reconciler.now() - LONGEST
    created = f">={first:%Y-%m-%dT%H:%M:%SZ}"
    found = reconciler.client.runs(PLANNER, event="schedule", status="success", created=created)
    newest = max(found, key=lambda run: run.created_at, default=None)
    if newest is None:
        return first
    # Switched on again, it looks at everything once: words may have come, or gone, meanwhile.
    unheard = newest.display_title == OFF_RUN and reconciler.mode != "off"
    return NEVER if unheard else newest.created_at


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
        if _waits(reconciler, shown)
    }


def _waits(reconciler: Reconciler, shown: Shown | None) -> bool:
    """Whether a merge group has no verdict, or none since the bot was switched off.

    Without an App nothing is known of it that could be gone on with.
    """
    back = reconciler.ledger.app and reconciler.mode != "off"
    return is_waiting(shown) or (back and shown is not None and shown.title.startswith(OFF))


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
        if number == wanted and _waits(reconciler, shown):
            # A group of which nothing is known is planned first.
            reconciler.reconcile(number, group=group)
