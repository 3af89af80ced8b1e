"""One event to the plans that it calls for: the head is read as git objects, never checked out.

Runs in a job whose token can write nothing. Whatever goes wrong with a change ends in the file that
the next job reads, so that it can say so.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import base64
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from bot import contract as contract_file
from bot.change import Repository
from bot.check import Analysis, Request, analyse, report
from bot.document import Strict
from bot.errors import InfraError, UserError
from bot.github.case import Case, Origin
from bot.github.client import Client
from bot.github.events import Event
from bot.github.reader import books_digest
from bot.model import Report, Severity, digest
from bot.process import ProgramFailed
from bot.trusted import FOLDER

__all__ = ["Cases", "fetch", "make_case", "scope_event"]

MAX_FINDINGS, MAX_NAMES = 60, 100
QUEUE = "gh-readonly-queue"
_BRANCH = re.compile(rf"{QUEUE}/(.{{1,200}})/pr-([1-9][0-9]{{0,9}})-([0-9a-f]{{40}})")


class Cases(Strict):
    """What `scope` hands to `plan`: plans, and by head why there is none."""

    schema_id: Literal["fla-bot/cases@1"] = Field("fla-bot/cases@1", alias="schema")
    cases: list[Case] = []
    faults: dict[str, Annotated[str, Field(max_length=2000)]] = {}


@dataclass(frozen=True, slots=True)
class Target:
    """A head that needs a plan; a merge group goes on top of another base than its branch."""

    number: int
    base_ref: str
    ref: str
    base: str = ""

    @property
    def group(self) -> str:
        """The branch of a merge group."""
        return self.ref.removeprefix("refs/heads/") if self.base else ""


def scope_event(event: Event, folder: Path, environment: Mapping[str, str] = os.environ) -> Cases:
    """The plans for an event; an event that calls for none gives none."""
    cases, faults = list[Case](), dict[str, str]()
    for target in _targets(event, folder, environment):
        head = ""
        try:
            head = fetch(folder, target.ref, target.base_ref, environment)
            with Repository(folder) as repository:
                cases.append(make_case(repository, target, head))
        except UserError as error:
            faults[head or str(target.number)] = "; ".join(map(str, error.faults))[:2000]
        except ProgramFailed as error:
            raise InfraError(f"git failed: {error.stderr[:500]}") from error
    return Cases(schema="fla-bot/cases@1", cases=cases, faults=faults)


def _targets(event: Event, folder: Path, environment: Mapping[str, str]) -> Iterator[Target]:
    if event.name in ("pull_request", "pull_request_target"):
        pull = event.pull_request
        if pull is not None and event.action != "closed":
            yield Target(pull.number, pull.base.ref, f"refs/pull/{pull.number}/head")
    elif event.name == "workflow_run":
        run = event.workflow_run
        if run is not None and run.event == "merge_group":
            yield from _queued(folder, environment, run.head_branch or "")
    elif event.name == "workflow_dispatch":
        number = event.inputs_pr()
        with Client.from_environment(environment) as client:
            pull_ = client.pull(number)
        yield Target(number, pull_.base.ref, f"refs/pull/{number}/head")
        yield from _queued(folder, environment, "", number)


def _queued(
    folder: Path, environment: Mapping[str, str], name: str, number: int = 0
) -> Iterator[Target]:
    """Merge groups: one of a name, or all of a pull request."""
    listed = _git(folder, environment, "ls-remote", "origin", f"refs/heads/{QUEUE}/*")
    for line in listed.decode(errors="replace").splitlines():
        branch = line.partition("\t")[2].removeprefix("refs/heads/")
        match = _BRANCH.fullmatch(branch)
        if match and (branch == name or int(match[2]) == number):
            yield Target(int(match[2]), match[1], f"refs/heads/{branch}", match[3])


def fetch(folder: Path, ref: str, base_ref: str, environment: Mapping[str, str]) -> str:
    """Fetch the objects of a head and of its base branch; the head's commit."""
    wanted = [
        f"+{ref}:refs/fla-bot/head",
        f"+refs/heads/{base_ref}:refs/remotes/origin/{base_ref}",
    ]
    options = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
    _git(folder, environment, "fetch", *options, "origin", *wanted)
    return _git(folder, environment, "rev-parse", "refs/fla-bot/head").decode().strip()


def _git(folder: Path, environment: Mapping[str, str], *argv: str) -> bytes:
    """Git that talks to GitHub; the token stands in its environment alone."""
    env = {
        **{key: text for key, text in environment.items() if not key.startswith("GIT_")},
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    token = env.pop("GITHUB_TOKEN", "")
    settings = {"core.hooksPath": "/dev/null"}
    if token and (server := environment.get("GITHUB_SERVER_URL", "")):
        basic = base64.b64encode(f"x-access-token:{token}".encode()).decode()
        settings[f"http.{server}/.extraheader"] = f"AUTHORIZATION: basic {basic}"
    env["GIT_CONFIG_COUNT"] = str(len(settings))
    for i, (key, text) in enumerate(settings.items()):
        env |= {f"GIT_CONFIG_KEY_{i}": key, f"GIT_CONFIG_VALUE_{i}": text}
    done = subprocess.run(
        ["git", *argv],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise InfraError(f"git {argv[0]}: {done.stderr.decode(errors='replace')[-500:].strip()}")
    return done.stdout


def make_case(repository: Repository, target: Target, head: str) -> Case:
    """The plan of a head with all that later jobs need of it."""
    base = target.base or f"refs/remotes/origin/{target.base_ref}"
    trusted = repository.commit(f"refs/remotes/origin/{target.base_ref}", "trusted")
    request = Request(base=base, head=head, trusted=trusted)
    analysis = analyse(repository, request)
    books = analysis.books
    found = report(repository, analysis, request, repository.root / ".fla-bot" / "none")
    ops = sorted(
        {*analysis.reached, *(job.op for job in analysis.plan.jobs)} & set(books.contracts)
    )
    return Case(
        schema="fla-bot/case@1",
        number=target.number,
        base_ref=target.base_ref,
        group=target.group,
        # Elsewhere the default branch's policy shows what it would say.
        gated=books.from_trusted,
        books=_books(repository, trusted),
        late=books.from_trusted and _is_late(repository, analysis),
        report=_slim(found),
        policy=books.policy,
        contracts={op: _origin(repository, analysis, op) for op in ops},
        anchors={op: digest(books.anchors[op]) for op in ops if op in books.anchors},
        owners={op: books.contracts[op].owners for op in ops},
        sensitive=_sensitive(analysis),
    )


def _books(repository: Repository, trusted: str) -> str:
    names = {
        path.removeprefix(f"{FOLDER}/"): oid
        for path, (_, oid) in repository.tree(trusted).items()
        if path.startswith(f"{FOLDER}/") and "/" not in path.removeprefix(f"{FOLDER}/")
    }
    return books_digest(names) or digest([])


def _origin(repository: Repository, analysis: Analysis, op: str) -> Origin:
    """Where the contract in force stands: at trusted, or in the change that adds to it."""
    change, books, path = analysis.change, analysis.books, f"{FOLDER}/{op}.yaml"
    fingerprint, commit = books.contracts[op].fingerprint, change.trusted
    if op in books.new_ops:
        commit = change.head
    elif op in books.edits:
        text = repository.read_path(change.trusted, path)
        if text is None or contract_file.load(text, path).fingerprint != fingerprint:
            commit = change.head
    return Origin(commit=commit, fingerprint=fingerprint)


def _is_late(repository: Repository, analysis: Analysis) -> bool:
    """Whether the merge base is older than the last change of a contract in force."""
    change, books = analysis.change, analysis.books
    ops = {*analysis.reached, *books.edits, *books.removed}
    paths = [f"{FOLDER}/{op}.yaml" for op in sorted(ops)]
    before, now = (repository.tree(side) for side in (change.merge_base, change.trusted))
    return any(before.get(path) != now.get(path) for path in paths)


def _sensitive(analysis: Analysis) -> list[str]:
    """Changed paths of areas where a person decides, whoever pushed."""
    policy, found = analysis.books.policy, set()
    for file in analysis.change.files:
        for path in (file.path, file.old_path):
            area = policy.place(path)[0]
            if area and (area.risk == "high" or area.guarded):
                found.add(path)
    return sorted(found)


def _slim(found: Report) -> Report:
    """Without what no comment shows: the ledger holds little."""
    impact, reach = found.impact, found.scope
    worst = sorted(found.findings, key=lambda item: item.severity is not Severity.ERROR)
    cut = {name: getattr(reach, name)[:MAX_NAMES] for name in _LISTS}
    areas = [area.model_copy(update={"paths": area.paths[:20]}) for area in reach.areas]
    return found.model_copy(
        update={
            "impact": impact.model_copy(
                update={
                    "tests": impact.tests[:MAX_NAMES],
                    "entry_points": impact.entry_points[:MAX_NAMES],
                }
            ),
            "scope": reach.model_copy(update={**cut, "areas": areas}),
            "change": found.change.model_copy(update={"files": found.change.files[:MAX_NAMES]}),
            "findings": worst[:MAX_FINDINGS],
        }
    )


_LISTS = ("kernels", "entry_points", "unknown", "widened")
