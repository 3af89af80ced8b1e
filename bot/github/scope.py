"""One event to the plans that it calls for: the head is read as git objects, never checked out.

Runs in a job whose token can write nothing. Whatever goes wrong with a change ends in the file that
the next job reads, so that it can say so.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from bot import anchors as anchors_file
from bot import contract as contract_file
from bot.change import Repository
from bot.check import Analysis, Request, analyse, report
from bot.document import Strict
from bot.errors import InfraError, UserError
from bot.github.books import books_digest, contract_path, op_of, references, shelf_digest
from bot.github.case import Case, Merged, Origin
from bot.github.client import Client
from bot.github.events import Event
from bot.github.queue import QUEUE, QueueBranch, merges, parse_branch
from bot.model import Change, Finding, Report, Severity, digest
from bot.process import ProgramFailed
from bot.trusted import POLICY_PATH, Books

__all__ = ["Cases", "Missing", "fetch", "make_case", "scope_event"]

MAX_FINDINGS, MAX_NAMES = 60, 100


class Missing(Strict):
    """Why there is no plan: of a pull request's own head, or of a merge group, at `head`."""

    number: Annotated[int, Field(ge=1)]
    group: Annotated[str, Field(max_length=400)] = ""
    head: str = ""
    fault: Annotated[str, Field(max_length=2000)]


class Cases(Strict):
    """What `scope` hands to `plan`: plans, and why there is none.

    `texts`: policy and contracts in force, by the blob that git would make of each, which tells
    whether they are those of the commit.
    """

    schema_id: Literal["fla-bot/cases@1"] = Field("fla-bot/cases@1", alias="schema")
    cases: list[Case] = []
    faults: list[Missing] = []
    texts: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Target:
    """A head that needs a plan: of a pull request, or of a merge group of one."""

    number: int
    base_ref: str
    ref: str
    group: QueueBranch | None = None
    queue: tuple[QueueBranch, ...] = ()

    @property
    def branch(self) -> str:
        """The branch of a merge group."""
        return self.group.name if self.group else ""


def scope_event(event: Event, folder: Path, environment: Mapping[str, str] = os.environ) -> Cases:
    """The plans for an event; an event that calls for none gives none."""
    found = Cases(schema="fla-bot/cases@1")
    for target in _targets(event, folder, environment):
        head = target.group.sha if target.group else ""
        try:
            try:
                head = fetch(folder, target.ref, target.base_ref, environment)
            except InfraError as error:
                if target.group is None:
                    raise
                # Anybody who may push can name a branch after a base that is not there.
                raise UserError(str(error)) from error
            with Repository(folder) as repository:
                merged = _merged(repository, target, head, environment)
                case, texts = make_case(repository, target, head, merged)
            found.cases.append(case)
            found.texts.update(texts)
        except UserError as error:
            fault = "; ".join(map(str, error.faults))[:2000]
            found.faults.append(
                Missing(number=target.number, group=target.branch, head=head, fault=fault)
            )
        except ProgramFailed as error:
            raise InfraError(f"git failed: {error.stderr[:500]}") from error
    return found


def _merged(
    repository: Repository, target: Target, head: str, environment: Mapping[str, str]
) -> list[Merged]:
    """What a merge group merges, shown by git; nothing for a pull request's own head."""
    if target.group is None:
        return []
    if target.group.sha != head:
        raise UserError(f"{target.branch} has moved")

    def pull_head(number: int) -> str:
        ref, kept = f"refs/pull/{number}/head", f"refs/fla-bot/pull-{number}"
        _fetch(repository.root, environment, f"+{ref}:{kept}")
        return repository.commit(kept, "head")

    return merges(repository, target.group, target.queue, pull_head)


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
    lines = (line.split("\t") for line in listed.decode(errors="replace").splitlines())
    parsed = (parse_branch(ref.removeprefix("refs/heads/"), sha) for sha, ref in lines)
    queue = tuple(branch for branch in parsed if branch is not None)
    for group in queue:
        if group.name == name or group.number == number:
            yield Target(group.number, group.base_ref, f"refs/heads/{group.name}", group, queue)


def fetch(folder: Path, ref: str, base_ref: str, environment: Mapping[str, str]) -> str:
    """Fetch the objects of a head and of its base branch; the head's commit."""
    tracked = f"+refs/heads/{base_ref}:refs/remotes/origin/{base_ref}"
    _fetch(folder, environment, f"+{ref}:refs/fla-bot/head", tracked)
    return _git(folder, environment, "rev-parse", "refs/fla-bot/head").decode().strip()


def _fetch(folder: Path, environment: Mapping[str, str], *wanted: str) -> None:
    options = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
    _git(folder, environment, "fetch", *options, "origin", *wanted)


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


def make_case(
    repository: Repository, target: Target, head: str, merged: list[Merged]
) -> tuple[Case, dict[str, str]]:
    """The plan of a head with all that later jobs need of it, and the texts that judge it.

    A merge group, too, is a change of its base branch, whatever it goes on top of.
    """
    base = f"refs/remotes/origin/{target.base_ref}"
    trusted = repository.commit(base, "trusted")
    request = Request(base=base, head=head, trusted=trusted)
    analysis = analyse(repository, request)
    books = analysis.books
    found = report(repository, analysis, request, repository.root / ".fla-bot" / "none")
    ops = sorted(
        {*analysis.reached, *(job.op for job in analysis.plan.jobs)} & set(books.contracts)
    )
    tree = {path: oid for path, (_, oid) in repository.tree(trusted).items()}
    watched = references((books.contracts[op] for op in ops), tree)
    origins = {op: _origin(repository, analysis, op) for op in ops}
    case = Case(
        schema="fla-bot/case@1",
        number=target.number,
        base_ref=target.base_ref,
        group=target.branch,
        merges=merged,
        # Elsewhere the default branch's policy shows what it would say.
        gated=books.from_trusted,
        books=digest([]),
        shelf=shelf_digest(tree),
        late=books.from_trusted and _is_late(repository, analysis),
        report=_slim(found),
        policy=books.policy,
        contracts=origins,
        anchors={op: digest(books.anchors[op]) for op in ops if op in books.anchors},
        owners=_owners(repository, trusted, origins, books),
        sensitive=_sensitive(analysis),
        watched=watched,
        hits=_hits(found.findings),
    )
    judged = books_digest(tree, watched, case.ops) or case.books
    return case.model_copy(update={"books": judged}), _texts(repository, case, analysis.change)


def _texts(repository: Repository, case: Case, change: Change) -> dict[str, str]:
    """Policy, contracts and what is edited of both and of anchors, of all sides by blob.

    `plan` asks GitHub whether they are the ones.
    """
    ops = {*case.contracts, *case.report.scope.ops}
    edited = {path for file in change.files for path in (file.path, file.old_path) if op_of(path)}
    paths = sorted({POLICY_PATH, *map(contract_path, ops), *edited})
    sides = (change.trusted, change.merge_base, change.head)
    known = (repository.tree(side).get(path, ("", ""))[1] for side in sides for path in paths)
    return {oid: repository.read(oid).decode(errors="replace") for oid in known if oid}


def _owners(
    repository: Repository, trusted: str, origins: Mapping[str, Origin], books: Books
) -> dict[str, list[str]]:
    """Who owns contracts by the trusted side: a change names nobody who may let it through."""
    found = {}
    for op, origin in origins.items():
        path = contract_path(op)
        if origin.commit == trusted:
            found[op] = books.contracts[op].owners
        elif (text := repository.read_path(trusted, path)) is not None:
            found[op] = contract_file.load(text, path).owners
    return found


def _hits(findings: list[Finding]) -> dict[str, tuple[int, int]]:
    """Errors and warnings by rule."""
    found: dict[str, tuple[int, int]] = {}
    for item in findings:
        errors, warnings = found.get(item.code, (0, 0))
        worse = item.severity is Severity.ERROR
        found[item.code] = (errors + worse, warnings + (not worse))
    return found


def _origin(repository: Repository, analysis: Analysis, op: str) -> Origin:
    """Where the contract in force stands: at trusted, or in the change that adds to it."""
    change, books, path = analysis.change, analysis.books, contract_path(op)
    fingerprint, commit = books.contracts[op].fingerprint, change.trusted
    if op in books.new_ops:
        commit = change.head
    elif op in books.edits:
        text = repository.read_path(change.trusted, path)
        if text is None or contract_file.load(text, path).fingerprint != fingerprint:
            commit = change.head
    return Origin(commit=commit, fingerprint=fingerprint)


def _is_late(repository: Repository, analysis: Analysis) -> bool:
    """Whether the merge base is older than the last change of what judges the ops."""
    change, books = analysis.change, analysis.books
    ops = sorted({*analysis.reached, *books.edits, *books.removed})
    paths = [contract_path(op) for op in ops]
    paths += [f"{anchors_file.FOLDER}/{op}.json" for op in ops]
    own = [books.contracts[op] for op in ops if op in books.contracts]
    paths += references(own, repository.tree(change.trusted))
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
    # Of each rule one stays whatever else does: a waiver is for a rule, and must find it.
    first = {(item.code, item.severity): id(item) for item in reversed(worst)}
    chosen = sorted(worst, key=lambda item: first[item.code, item.severity] != id(item))
    kept = {id(item) for item in chosen[: max(MAX_FINDINGS, len(first))]}
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
            "findings": [item for item in worst if id(item) in kept],
        }
    )


_LISTS = ("kernels", "entry_points", "unknown", "widened")
