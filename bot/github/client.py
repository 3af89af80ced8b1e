"""All that fla-bot reads and writes on GitHub, for one repository.

No write happens twice: each creating method first looks for what it would create, by a mark in it,
and looks again when a reply was lost. In a dry run every write is recorded and none is sent.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote

from bot.errors import InfraError
from bot.github.connection import (
    GITHUB,
    TRIES,
    App,
    Connection,
    GitHubError,
    Item,
    NotFound,
    Refused,
    Token,
    Unsure,
    parse,
)
from bot.github.records import (
    CheckRun,
    Comment,
    Commit,
    Comparison,
    File,
    IssueEvent,
    Job,
    Pull,
    Ref,
    Repository,
    RequiredCheck,
    Role,
    Rule,
    Run,
    Started,
    Status,
    Tree,
    Write,
)

__all__ = ["Client"]

Found = TypeVar("Found")
MAX_ANNOTATIONS = 50  # a request
ROLES = frozenset({"admin", "maintain", "write", "triage", "read", "none"})
DISPATCH_DAYS = 2  # how far back a started run is looked for; a queue holds one for a day


class Client:
    """One repository on GitHub, as one identity."""

    def __init__(
        self,
        repository: str,
        identity: Token | App,
        *,
        connection: Connection | None = None,
        dry_run: bool = False,
    ) -> None:
        self.repository, self.identity, self.dry_run = repository, identity, dry_run
        self.connection = connection or Connection(identity)
        self.writes: list[Write] = []

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] = os.environ,
        *,
        identity: App | None = None,
        dry_run: bool = False,
    ) -> Self:
        """A client from what a workflow job has in its environment; an App instead of its token."""
        wanted = ["GITHUB_REPOSITORY", *([] if identity else ["GITHUB_TOKEN"])]
        if missing := [name for name in wanted if not environment.get(name)]:
            raise InfraError(f"not set in the environment: {', '.join(missing)}")
        chosen = identity or Token(environment["GITHUB_TOKEN"])
        connection = Connection(chosen, base_url=environment.get("GITHUB_API_URL") or GITHUB)
        name = environment["GITHUB_REPOSITORY"]
        return cls(name, chosen, connection=connection, dry_run=dry_run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    # Reading.

    def describe(self) -> Repository:
        """The repository with its default branch."""
        return self._one("", Repository)

    def pull(self, number: int) -> Pull:
        """One pull request."""
        return self._one(f"/pulls/{number}", Pull)

    def open_pulls(self, base: str | None = None) -> list[Pull]:
        """All open pull requests, into one branch if it is named."""
        return self._all("/pulls", Pull, state="open", base=base)

    def files(self, number: int) -> list[File]:
        """The files of a pull request; GitHub lists 3,000 of them at most."""
        return self._all(f"/pulls/{number}/files", File)

    def commits(self, number: int) -> list[Commit]:
        """The commits of a pull request; GitHub lists 250 of them at most."""
        return self._all(f"/pulls/{number}/commits", Commit)

    def comments(self, number: int) -> list[Comment]:
        """All comments of a pull request, oldest first."""
        return self._all(f"/issues/{number}/comments", Comment)

    def comment(self, comment: int) -> Comment:
        """One comment."""
        return self._one(f"/issues/comments/{comment}", Comment)

    def force_pushes(self, number: int) -> list[IssueEvent]:
        """The forced pushes to a pull request's head, oldest first."""
        found = self._all(f"/issues/{number}/events", IssueEvent)
        return [item for item in found if item.event == "head_ref_force_pushed"]

    def role(self, login: str) -> str:
        """The role of an account now; a custom role counts as what it is built on.

        Whoever GitHub does not know has none.
        """
        try:
            found = self._one(f"/collaborators/{_part(login)}/permission", Role)
        except NotFound:
            return "none"
        return found.role_name if found.role_name in ROLES else found.permission

    def check_runs(
        self, sha: str, name: str | None = None, *, every: bool = False
    ) -> list[CheckRun]:
        """The newest check run of each name and suite of a commit, of all Apps; or `every` one."""
        kind = "all" if every else "latest"
        path = f"/commits/{sha}/check-runs"
        return self._all(path, CheckRun, key="check_runs", filter=kind, check_name=name)

    def statuses(self, sha: str) -> list[Status]:
        """All statuses of a commit, newest first."""
        return self._all(f"/commits/{sha}/statuses", Status)

    def run(self, run: int) -> Run:
        """One workflow run."""
        return self._one(f"/actions/runs/{run}", Run)

    def runs(self, workflow: str, **query: str | None) -> list[Run]:
        """The runs of a workflow file, newest first, by event, status, branch, created, head_sha.

        With a filter GitHub lists 1,000 of them at most, and still counts them all.
        """
        path = f"/actions/workflows/{_part(workflow)}/runs"
        return self._all(path, Run, key="workflow_runs", counted=False, **query)

    def jobs(self, run: int) -> list[Job]:
        """The jobs of the newest attempt of a run."""
        return self._all(f"/actions/runs/{run}/jobs", Job, key="jobs")

    def refs(self, prefix: str) -> list[Ref]:
        """The references that begin with a prefix such as `heads/gh-readonly-queue/`."""
        # GitHub knows no pages here: everything comes at once.
        path = f"/repos/{self.repository}/git/matching-refs/{quote(prefix)}"
        return [parse(Ref, item) for item in self.connection.send("GET", path)[1]]

    def tip(self, branch: str) -> str:
        """The commit of a branch; empty where there is none."""
        name = f"refs/heads/{branch}"
        return next((ref.sha for ref in self.refs(f"heads/{branch}") if ref.ref == name), "")

    def content(self, path: str, ref: str) -> bytes:
        """A file of a commit, up to 1 MB."""
        place = f"/repos/{self.repository}/contents/{quote(path)}"
        found = self.connection.send("GET", place, query={"ref": ref})[1]
        if not isinstance(found, dict) or found.get("encoding") != "base64":
            raise NotFound(f"{path} at {ref} is no file of at most 1 MB")
        return base64.b64decode(found["content"])

    def tree(self, ref: str) -> dict[str, str]:
        """All files of a commit or a branch, with their blobs."""
        place = f"/repos/{self.repository}/git/trees/{_part(ref)}"
        found = parse(Tree, self.connection.send("GET", place, query={"recursive": "1"})[1])
        if found.truncated:
            raise GitHubError(f"GitHub does not list all files of {ref}")
        return {item.path: item.sha for item in found.tree if item.type == "blob"}

    def compare(self, base: str, head: str) -> Comparison:
        """Where a commit or a branch and another commit have parted."""
        return self._one(f"/compare/{_part(base)}...{_part(head)}", Comparison)

    def required_checks(self, branch: str) -> list[RequiredCheck]:
        """The checks that rulesets require on a branch; classic protection is not readable here."""
        rules = self._all(f"/rules/branches/{_part(branch)}", Rule)
        wanted = [rule for rule in rules if rule.type == "required_status_checks"]
        found = [check for rule in wanted for check in rule.parameters["required_status_checks"]]
        return [parse(RequiredCheck, check) for check in found]

    # Writing.

    def post_comment(self, number: int, mark: str, body: str, *, look: bool = True) -> Comment:
        """Write a comment, or find the oldest of ours with this mark; its text may differ then."""
        assert mark in body, "the mark is how the comment is found again"

        def find() -> Comment | None:
            found = (item for item in self.comments(number) if mark in item.body)
            return next((item for item in found if self.is_ours(item)), None)

        def create() -> Comment:
            path = f"/issues/{number}/comments"
            return self._write("POST", path, {"body": body}, Comment, _pretend_comment)

        return self._create(find, create, first=look)

    def edit_comment(self, comment: int, body: str) -> None:
        """Replace the text of a comment."""
        self._change("PATCH", f"/issues/comments/{comment}", {"body": body})

    def delete_comment(self, comment: int) -> None:
        """Delete a comment; one that is gone already is well."""
        try:
            self._change("DELETE", f"/issues/comments/{comment}", None)
        except NotFound:
            return

    def react(self, comment: int, content: str) -> None:
        """React to a comment; GitHub keeps one reaction of a kind, so repeats do no harm."""
        path = f"/issues/comments/{comment}/reactions"
        self._change("POST", path, {"content": content}, again=True)

    def edit_body(self, number: int, body: str) -> str:
        """Replace the text of a pull request; what GitHub says that it is now."""
        reply = self._change("PATCH", f"/pulls/{number}", {"body": body})
        return body if self.dry_run else parse(Pull, reply).body or ""

    def post_check_run(
        self, sha: str, name: str, mark: str, body: dict[str, Any], *, look: bool = True
    ) -> CheckRun:
        """Create a check run, or find ours with this mark (`external_id`).

        Whoever has just read the commit's runs need not `look` before the first try.
        """

        def find() -> CheckRun | None:
            found = self.check_runs(sha, name, every=True)
            ours = (run for run in found if run.app and run.app.id == self.identity.app_id)
            return next((run for run in ours if run.external_id == mark), None)

        def create() -> CheckRun:
            sent = {**body, "name": name, "head_sha": sha, "external_id": mark}
            return self._write("POST", "/check-runs", sent, CheckRun, _pretend_check)

        return self._create(find, create, first=look)

    def edit_check_run(self, run: int, body: dict[str, Any]) -> None:
        """Change a check run. Annotations are added to those that are there: never sent twice."""
        path, added = f"/check-runs/{run}", len(body.get("output", {}).get("annotations", []))
        assert added <= MAX_ANNOTATIONS, "GitHub takes 50 a request"
        if not added or self.dry_run:
            self._change("PATCH", path, body)
            return
        before = self._one(path, CheckRun).output.annotations_count

        def look() -> CheckRun | None:
            now = self._one(path, CheckRun)
            return now if now.output.annotations_count > before else None

        def create() -> CheckRun:
            return self._write("PATCH", path, body, CheckRun, _pretend_check, again=False)

        self._create(look, create, first=False)

    def post_status(
        self,
        sha: str,
        context: str,
        state: str,
        description: str,
        target_url: str | None = None,
        *,
        look: bool = True,
    ) -> Status:
        """Post a status unless the newest of this context is ours and says the same."""
        body = {"state": state, "context": context, "description": description}
        body |= {"target_url": target_url} if target_url else {}

        def find() -> Status | None:
            newest = next((s for s in self.statuses(sha) if s.context == context), None)
            if newest is None or newest.creator is None:
                return None
            same = (newest.state, newest.description, newest.target_url or None)
            ours = newest.creator.login == self.identity.login
            return newest if ours and same == (state, description, target_url) else None

        def create() -> Status:
            return self._write("POST", f"/statuses/{sha}", body, Status, _pretend_status)

        return self._create(find, create, first=look)

    def dispatch(
        self, workflow: str, ref: str, inputs: dict[str, str], mark: str, *, look: bool = True
    ) -> int:
        """Start a workflow whose `run-name` shows the mark, or find its run; the run's id.

        After a lost reply the run is looked for and not started again: runs show up late, and one
        too many costs a machine. The caller's next turn looks first anyway.
        """
        since = datetime.fromtimestamp(self.connection.now(), UTC) - timedelta(days=DISPATCH_DAYS)
        created = f">={since:%Y-%m-%dT%H:%M:%SZ}"

        def find() -> int | None:
            found = self.runs(workflow, event="workflow_dispatch", created=created)
            return min((run.id for run in found if mark in run.display_title), default=None)

        def create() -> int:
            body = {"ref": ref, "inputs": inputs, "return_run_details": True}
            path = f"/actions/workflows/{_part(workflow)}/dispatches"
            return self._write("POST", path, body, Started, _pretend_run).workflow_run_id

        return self._create(find, create, first=look, again=False)

    def start(self, workflow: str, ref: str, inputs: dict[str, str]) -> None:
        """Start a workflow of which one run too many does no harm."""
        body = {"ref": ref, "inputs": inputs}
        self._change("POST", f"/actions/workflows/{_part(workflow)}/dispatches", body, again=True)

    def cancel(self, run: int, *, force: bool = False) -> bool:
        """Cancel a run; False if it had ended."""
        path = f"/actions/runs/{run}/{'force-cancel' if force else 'cancel'}"
        try:
            self._change("POST", path, None, again=True)
        except Refused as refused:
            if refused.status != 409:
                raise
            return False
        return True

    def is_ours(self, comment: Comment) -> bool:
        """Whether we wrote a comment; a mark in its text proves nothing."""
        return comment.user is not None and comment.user.login == self.identity.login

    # How the methods above send.

    def _one(self, path: str, kind: type[Item]) -> Item:
        return parse(kind, self.connection.send("GET", f"/repos/{self.repository}{path}")[1])

    def _all(
        self,
        path: str,
        kind: type[Item],
        *,
        key: str = "",
        counted: bool = True,
        **query: str | None,
    ) -> list[Item]:
        """All pages of a listing; `counted` where GitHub's own count must be reached."""
        given = {name: value for name, value in query.items() if value is not None}
        where = f"/repos/{self.repository}{path}"
        return list(self.connection.pages(where, kind, key=key, query=given, counted=counted))

    def _create(
        self,
        look: Callable[[], Found | None],
        create: Callable[[], Found],
        *,
        first: bool = True,
        again: bool = True,
    ) -> Found:
        """Look, create, and look again whenever a reply was lost.

        A write that lands after the last look still makes a second one; nothing at GitHub prevents
        that, so whoever reads must take the oldest.
        """
        found = look() if first else None
        if found is not None:
            return found
        for attempt in range(TRIES):
            try:
                if attempt == 0 or again:
                    return create()
            except Unsure as error:
                lost = error
            self.connection.pause(attempt)
            found = look()
            if found is not None:
                return found
        raise lost

    def _write(
        self,
        method: Literal["POST", "PATCH"],
        path: str,
        body: dict[str, Any],
        kind: type[Item],
        pretend: Callable[[dict[str, Any]], Item],
        *,
        again: bool | None = None,
    ) -> Item:
        """A write whose reply is needed; a dry run pretends one."""
        reply = self._change(method, path, body, again=again)
        return pretend(body) if self.dry_run else parse(kind, reply)

    def _change(
        self,
        method: Literal["POST", "PATCH", "PUT", "DELETE"],
        path: str,
        body: dict[str, Any] | None,
        *,
        again: bool | None = None,
    ) -> Any:
        """A write, recorded; the only place from which one is sent."""
        where = f"/repos/{self.repository}{path}"
        self.writes.append(Write(method=method, path=where, body=body or {}))
        if self.dry_run:
            return None
        return self.connection.send(method, where, body=body, again=again)[1]


def _part(text: str) -> str:
    """A name as one part of a path."""
    return quote(text, safe="")


def _pretend_comment(body: dict[str, Any]) -> Comment:
    now = datetime.now(UTC)
    return Comment(id=0, body=body["body"], user=None, created_at=now, updated_at=now)


def _pretend_check(body: dict[str, Any]) -> CheckRun:
    shown = {"id": 0, "name": "", "head_sha": "", "conclusion": None, "status": "queued"}
    absent = dict.fromkeys(("started_at", "completed_at", "app"))
    return CheckRun.model_validate({**shown, **absent, "output": {}, **body})


def _pretend_status(body: dict[str, Any]) -> Status:
    shown = {"id": 0, "creator": None, "target_url": None, "created_at": datetime.now(UTC)}
    return Status.model_validate({**shown, **body})


def _pretend_run(_: dict[str, Any]) -> Started:
    return Started(workflow_run_id=0)
