"""What the jobs of our workflows run: their environment in, an exit status out."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from bot.errors import InfraError, UserError
from bot.files import write_whole
from bot.github.case import RowId
from bot.github.client import Client
from bot.github.connection import GITHUB, App, AppKey, Connection, Token, find_app
from bot.github.doctor import APP_PERMISSIONS as PERMISSIONS
from bot.github.doctor import command as examine
from bot.github.events import read_event
from bot.github.executor import Outdated, Superseded, Ticket, check, collect, outputs
from bot.github.operate import mode_of
from bot.github.order import write_order
from bot.github.planner import plan_event
from bot.github.reconcile import Reconciler
from bot.github.scope import scope_event
from bot.github.situation import Decision
from bot.github.status import look_at_groups, overview

__all__ = [
    "PERMISSIONS",
    "doctor",
    "gate",
    "lane_check",
    "plan",
    "publish",
    "reconcile",
    "scope",
    "status",
]

DECISIONS = "decisions.jsonl"


def open_reconciler(
    environment: Mapping[str, str],
    *,
    dry_run: bool = False,
    head: str = "",
    check_books: bool = False,
) -> Reconciler:
    """A client as the bot: as its App where its key is here, else with the job's token.

    Where only the App's id is known, its ledger is read with the job's token.
    """
    app_id, key = environment.get("FLA_BOT_APP_ID", ""), environment.get("FLA_BOT_APP_KEY", "")
    if app_id and not app_id.isdigit():
        raise UserError("FLA_BOT_APP_ID is no number")
    base_url = environment.get("GITHUB_API_URL") or GITHUB
    identity: App | Token | None = None
    if app_id and key:
        name = environment.get("GITHUB_REPOSITORY", "")
        found = AppKey(int(app_id), key)
        identity = find_app(found, name, base_url=base_url, permissions=PERMISSIONS)
    elif app_id:
        identity = Token(environment.get("GITHUB_TOKEN", ""), login="", app_id=int(app_id))
    if isinstance(identity, Token):
        connection = Connection(identity, base_url=base_url)
        name = environment.get("GITHUB_REPOSITORY", "")
        client = Client(name, identity, connection=connection, dry_run=dry_run)
        client.identity = _named(client, identity, head)
    else:
        client = Client.from_environment(environment, identity=identity, dry_run=dry_run)
    return Reconciler(
        client,
        app=bool(app_id),
        mode=mode_of(environment),
        record=lambda decision: _record(environment, decision),
        check_books=check_books,
    )


def _named(client: Client, identity: Token, head: str) -> Token:
    """The App's name, from a check of its own on a head."""
    for run in client.check_runs(head) if head else ():
        if run.app is not None and run.app.id == identity.app_id:
            return Token(identity.text, f"{run.app.slug}[bot]", identity.app_id)
    return identity


def _record(environment: Mapping[str, str], decision: Decision) -> None:
    """One line for each decision, in the folder that the workflow keeps."""
    folder = environment.get("RUNNER_TEMP")
    if not folder:
        return
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": environment.get("GITHUB_RUN_ID", ""),
        "event": environment.get("GITHUB_EVENT_NAME", ""),
        "pull": decision.standing.number,
        "head": decision.head,
        "state": decision.state,
        "title": decision.title,
        "plan": decision.standing.case.plan if decision.standing.case else "",
        "steps": [f"{type(step).__name__} {_subject(step)}".strip() for step in decision.steps],
        "answers": [[a.comment, a.login, a.reaction, a.text] for a in decision.answers],
        "rows": decision.rows,
    }
    with Path(folder, DECISIONS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _subject(step: object) -> str:
    for name in ("id", "run"):
        if hasattr(step, name):
            return str(getattr(step, name))
    result = getattr(step, "result", None)
    return str(result.row) if result else ""


def scope(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> int:
    """`fla-bot github scope`."""
    event = read_event(arguments.event, environment.get("GITHUB_EVENT_NAME"))
    found = scope_event(event, arguments.repo, environment)
    write_whole(arguments.out, found.model_dump_json(by_alias=True).encode())
    return 0


def plan(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> int:
    """`fla-bot github plan`."""
    event = read_event(arguments.event, environment.get("GITHUB_EVENT_NAME"))
    reconciler = open_reconciler(environment, dry_run=arguments.dry_run)
    with reconciler.client:
        plan_event(reconciler, event, arguments.plan, environment)
        return _say(reconciler, arguments)


def reconcile(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> int:
    """`fla-bot github reconcile`: one pull request, or all that are due."""
    reconciler = open_reconciler(environment, dry_run=arguments.dry_run, check_books=True)
    with reconciler.client:
        numbers = [arguments.pr] if arguments.pr else overview(reconciler).due
        for number in numbers:
            reconciler.reconcile(number)
            look_at_groups(reconciler, number)
        return _say(reconciler, arguments)


def gate(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> int:
    """`fla-bot github gate`: `runs_on` is put out only if this run may go on."""
    # Known before anything can fail: `publish` runs in the group of that pull request.
    _output(environment, {"pr": str(RowId.parse(arguments.plan_id).number)})
    try:
        found = _checked(arguments, environment)
    except Superseded as error:
        # Nothing has failed: without a machine to run on, the lane is skipped.
        print("; ".join(map(str, error.faults)))  # noqa: T201
        return 0
    _output(environment, outputs(found))
    return 0


def _output(environment: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Values for the jobs that come after this one."""
    text = "".join(f"{name}={value}\n" for name, value in values.items())
    if target := environment.get("GITHUB_OUTPUT"):
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(text)
    print(text, end="")  # noqa: T201


def lane_check(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> int:
    """`fla-bot github lane-check`: the same questions again, on the machine itself.

    `wanted` is put out, without which the job does nothing more.
    """
    try:
        found = _checked(arguments, environment)
    except Outdated:
        raise  # `gate` took the plan: it is this machine that lags behind
    except Superseded as error:
        print("; ".join(map(str, error.faults)))  # noqa: T201
        _output(environment, {"wanted": "no"})
        return 0
    if arguments.out:
        write_order(arguments.out, found.case, found.row.lane)
    _output(environment, {"wanted": "yes"})
    return 0


def _checked(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Ticket:
    row = RowId.parse(arguments.plan_id)
    reconciler = open_reconciler(environment, head=row.head, check_books=True)
    with reconciler.client:
        return check(reconciler, arguments.plan_id, _run_id(environment))


def _run_id(environment: Mapping[str, str]) -> int:
    text = environment.get("GITHUB_RUN_ID", "")
    if not text.isdigit():
        raise InfraError("not set in the environment: GITHUB_RUN_ID")
    return int(text)


def publish(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> int:
    """`fla-bot github publish`: exit 0 whatever the verdict is."""
    reconciler = open_reconciler(environment, dry_run=arguments.dry_run)
    with reconciler.client:
        gate_ended = environment.get("GATE_RESULT", "")
        lane_ended = environment.get("LANE_RESULT", "")
        run, folder = _run_id(environment), arguments.artifacts
        collect(reconciler, arguments.plan_id, run, folder, gate_ended, lane_ended)
        return _say(reconciler, arguments)


def status(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> int:
    """`fla-bot github status`."""
    reconciler = open_reconciler(environment)
    with reconciler.client:
        found = overview(reconciler, arguments.pr)
    if arguments.json:
        print(found.model_dump_json(indent=1))  # noqa: T201
    else:
        for pull in found.pulls:
            print(f"#{pull.number} {pull.state}: {pull.title}")  # noqa: T201
    return 0


def _say(reconciler: Reconciler, arguments: argparse.Namespace) -> int:
    """In a dry run: every write that would have been made."""
    if arguments.dry_run:
        for write in reconciler.client.writes:
            print(write.model_dump_json(indent=1))  # noqa: T201
        if not reconciler.client.writes:
            print("nothing to write")  # noqa: T201
    return 0


def doctor(_: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> int:
    """`fla-bot github doctor`: exit 1 if something is wrong."""
    client = open_reconciler(environment).client
    with client:
        return examine(client, environment)
