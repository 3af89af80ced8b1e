"""`fla-bot github doctor`: is this repository set up so that the gate means something?

Only reads. What the token may not see is said as such: silence would look like health.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import get_args
from urllib.parse import quote

from pydantic import BaseModel, Field

from bot.document import Strict
from bot.errors import UserError
from bot.github.client import Client
from bot.github.connection import GITHUB, App, AppKey, Connection, NotAllowed, NotFound
from bot.github.ledger import READY
from bot.github.operate import EXECUTOR, PLANNER, Mode
from bot.github.records import RequiredCheck
from bot.policy import load
from bot.trusted import FOLDER, POLICY_NAME

__all__ = [
    "APP_PERMISSIONS", "ENVIRONMENT", "Finding", "Level", "command", "doctor", "granted", "show",
]  # fmt: skip

ENVIRONMENT, QUEUE = "fla-bot", "fla-bot-queue.yml"
SWITCH, HOOK = "FLA_BOT", "ACTIONS_RUNNER_HOOK_JOB_STARTED"
# The names are the API's. More would only help whoever steals the key.
APP_PERMISSIONS = {
    "actions": "write",
    "checks": "write",
    "contents": "read",
    "metadata": "read",
    "pull_requests": "write",
    "statuses": "read",
}
_GUARD = re.compile(r"github\.repository == '([^']*)'")


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WRONG = "wrong"
    UNSEEN = "unseen"


class Finding(Strict):
    """One thing that was looked at, and what to do about it."""

    level: Level
    what: str
    do: str = ""


class _Policy(BaseModel):
    protected_branches: bool
    custom_branch_policies: bool


class _Environment(BaseModel):
    deployment_branch_policy: _Policy | None = None


class _Named(BaseModel):
    name: str


class _Workflow(BaseModel):
    path: str
    state: str


class _Classic(BaseModel):
    class Check(BaseModel):
        context: str
        app_id: int | None = None

    checks: list[Check] = []


class _Variable(BaseModel):
    value: str


class _Installation(BaseModel):
    permissions: dict[str, str] = Field(default={})


def command(client: Client, environment: Mapping[str, str] = os.environ) -> int:
    """`fla-bot github doctor`: prints what was found; 1 if something is wrong."""
    permissions, identity = None, client.identity
    if isinstance(identity, App):
        key = AppKey(identity.app_id, identity.private_key)
        permissions = granted(key, client.repository, client.connection.base_url)
    findings = doctor(client, environment, permissions)
    print(show(findings))  # noqa: T201
    return 1 if any(finding.level is Level.WRONG for finding in findings) else 0


def granted(key: AppKey, repository: str, base_url: str = GITHUB) -> dict[str, str]:
    """The permissions that an App was given in a repository; only the App itself may ask."""
    connection = Connection(key, base_url=base_url)
    try:
        return connection.get(f"/repos/{repository}/installation", _Installation).permissions
    finally:
        connection.close()


def doctor(
    client: Client,
    environment: Mapping[str, str] = os.environ,
    permissions: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Everything that can be looked at from here; `permissions` are the App's."""
    branch = client.describe().default_branch
    app = client.identity if isinstance(client.identity, App) else None
    return [
        *_identity(app, permissions),
        *_requirement(client, branch, app),
        *_environment(client, branch),
        *_workflows(client, branch),
        *_switch(client),
        *_policy(client, branch),
        *_host(environment),
    ]


def show(findings: list[Finding]) -> str:
    """The findings as text, what is wrong first."""
    order = [Level.WRONG, Level.UNSEEN, Level.OK]
    lines = list[str]()
    for finding in sorted(findings, key=lambda item: order.index(item.level)):
        lines.append(f"{finding.level:>6}  {finding.what}")
        lines += [f"        -> {finding.do}"] if finding.do else []
    return "\n".join(lines)


def _ok(what: str) -> Finding:
    return Finding(level=Level.OK, what=what)


def _wrong(what: str, do: str) -> Finding:
    return Finding(level=Level.WRONG, what=what, do=do)


def _unseen(what: str, do: str) -> Finding:
    return Finding(level=Level.UNSEEN, what=what, do=do)


def _identity(app: App | None, permissions: Mapping[str, str] | None) -> Iterator[Finding]:
    if app is None:
        yield _wrong(
            f"no App: {READY} is a commit status, which any workflow on a branch of this "
            "repository can post",
            "call it advisory, or install an App (docs/adopt.md)",
        )
        yield _unseen(
            "what this token may write", "compare `permissions:` of the workflows with ours"
        )
        return
    yield _ok(f"the App {app.slug} ({app.app_id}) is installed")
    if permissions is None:
        yield _unseen("the App's permissions", "run this with the App's key")
        return
    levels = ("read", "write", "admin")
    for name, level in APP_PERMISSIONS.items():
        given = permissions.get(name, "")
        if given not in levels or levels.index(given) < levels.index(level):
            yield _wrong(
                f"the App has {name}: {given or 'none'}, it needs {level}",
                "change it in the App's settings, then accept it in the repository's",
            )
    for name in sorted(permissions.keys() - APP_PERMISSIONS.keys()):
        yield _wrong(f"the App has {name}: {permissions[name]} and never uses it", "take it away")
    if permissions.get("contents") in ("write", "admin"):
        yield _wrong("the App may write contents, so its key can push", "set contents: read")


def _requirement(client: Client, branch: str, app: App | None) -> Iterator[Finding]:
    checks = [item for item in client.required_checks(branch) if item.context == READY]
    hidden = False
    if not checks:
        path = f"/repos/{client.repository}/branches/{quote(branch, safe='')}"
        try:
            found = client.connection.get(f"{path}/protection/required_status_checks", _Classic)
            checks = [
                RequiredCheck(context=item.context, integration_id=item.app_id)
                for item in found.checks
                if item.context == READY
            ]
        except NotAllowed:
            hidden = True
        except NotFound:
            pass
    if hidden:
        yield _unseen(
            f"whether {branch} requires {READY}: no ruleset does, and classic protection is only "
            "shown to administrators",
            "look at Settings, Branches; or require it in a ruleset",
        )
    elif not checks:
        yield _wrong(
            f"{branch} does not require {READY}", "add it to a ruleset once shadow mode has ended"
        )
    for check in checks:
        if app is not None and check.integration_id == app.app_id:
            yield _ok(f"{branch} requires {READY} from {app.slug}")
        elif check.integration_id is None:
            yield _wrong(
                f"{branch} requires {READY} from anybody, so a job of that name is enough",
                "choose the App as its source",
            )
        else:
            yield _wrong(
                f"{branch} requires {READY} from App {check.integration_id}, which is not ours",
                "choose our App as its source",
            )


def _environment(client: Client, branch: str) -> Iterator[Finding]:
    path = f"/repos/{client.repository}/environments/{ENVIRONMENT}"
    fix = f"Settings, Environments, {ENVIRONMENT}: selected branches, only {branch}"
    try:
        policy = client.connection.get(path, _Environment).deployment_branch_policy
    except NotFound:
        yield _wrong(
            f"there is no environment {ENVIRONMENT}; GitHub makes one, open to every branch",
            fix,
        )
        return
    except NotAllowed:
        yield _unseen(f"the environment {ENVIRONMENT}", "give the token `actions: read`")
        return
    if policy is None or not policy.custom_branch_policies:
        yield _wrong(f"more branches than {branch} may use the environment {ENVIRONMENT}", fix)
        return
    where = f"{path}/deployment-branch-policies"
    names = [item.name for item in client.connection.pages(where, _Named, key="branch_policies")]
    if names == [branch]:
        yield _ok(f"only {branch} may use the environment {ENVIRONMENT}")
    else:
        shown = ", ".join(names) or "none"
        yield _wrong(f"the environment {ENVIRONMENT} is open to: {shown}", fix)
    yield _unseen(
        "whether the App's key is a secret of that environment alone",
        "Settings, Secrets: FLA_BOT_APP_KEY must not be among the repository's or organisation's",
    )


def _workflows(client: Client, branch: str) -> Iterator[Finding]:
    where = f"/repos/{client.repository}/actions/workflows"
    try:
        found = {
            item.path.rpartition("/")[2]: item
            for item in client.connection.pages(where, _Workflow, key="workflows")
        }
    except NotAllowed:
        yield _unseen("the workflows", "give the token `actions: read`")
        return
    for name in (PLANNER, EXECUTOR, QUEUE):
        if name not in found:
            yield _wrong(f"there is no workflow {name}", "copy it (docs/adopt.md)")
        elif found[name].state != "active":
            yield _wrong(
                f"the workflow {name} is {found[name].state}", f"run `gh workflow enable {name}`"
            )
        else:
            yield from _guard(client, found[name].path, branch)


def _guard(client: Client, path: str, branch: str) -> Iterator[Finding]:
    """A guard that names another repository skips every job, and nothing says so."""
    try:
        text = client.content(path, branch).decode(errors="replace")
    except (NotFound, NotAllowed):
        yield _unseen(f"{path} on {branch}", "give the token `contents: read`")
        return
    names = set(_GUARD.findall(text))
    if names == {client.repository}:
        yield _ok(f"{path} is active and made for this repository")
    else:
        shown = ", ".join(sorted(names)) or "none"
        yield _wrong(
            f"the jobs of {path} run in {shown}, not in {client.repository}",
            "put this repository's name into each `github.repository ==`",
        )


def _switch(client: Client) -> Iterator[Finding]:
    path = f"/repos/{client.repository}/actions/variables/{SWITCH}"
    try:
        value = client.connection.get(path, _Variable).value
    except NotAllowed:
        yield _unseen(f"the variable {SWITCH}", "Settings, Variables; without it the bot is on")
        return
    except NotFound:
        value = "on"
    if value in get_args(Mode):
        yield _ok(f"{SWITCH} is {value}")
    else:
        yield _wrong(
            f"{SWITCH} is `{value}`, which nobody knows", f"choose of {', '.join(get_args(Mode))}"
        )


def _policy(client: Client, branch: str) -> Iterator[Finding]:
    path = f"{FOLDER}/{POLICY_NAME}"
    try:
        load(client.content(path, branch), path)
    except NotFound:
        yield _wrong(f"{branch} has no {path}", "run `fla-bot init` and merge what it writes")
    except NotAllowed:
        yield _unseen(f"{path} on {branch}", "give the token `contents: read`")
    except UserError as error:
        yield _wrong(
            f"{path} on {branch} has {len(error.faults)} faults",
            f"run `fla-bot contract validate {path}`",
        )
    else:
        yield _ok(f"{path} on {branch} is valid")


def _host(environment: Mapping[str, str]) -> Iterator[Finding]:
    hook = environment.get(HOOK, "")
    if not hook and environment.get("RUNNER_ENVIRONMENT") != "self-hosted":
        yield _unseen(
            "the runners: their groups, and whether each host runs its hook",
            "run this command on each host, and see docs/runners.md",
        )
        return
    fix = "run runner/install.sh again, and restart the runner"
    if not hook:
        yield _wrong(f"this host runs no hook: {HOOK} is not set", fix)
        return
    if fault := _hook_fault(Path(hook)):
        yield _wrong(f"the hook {hook} {fault}", fix)
    else:
        yield _ok(f"this host runs {hook}")


def _hook_fault(path: Path) -> str:
    """Why a file cannot be trusted to refuse a job, or nothing."""
    for place in (path, *path.parents):
        try:
            status = place.lstat()
        except OSError:
            return "is not there"
        if stat.S_ISLNK(status.st_mode):
            return f"is reached through a link, {place}"
        sticky = status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or (status.st_mode & 0o022 and not sticky):
            return f"can be changed by others than root: {place}"
    return "" if os.access(path, os.R_OK) else "cannot be read"
