"""The state of one repository on GitHub, and how it changes. Knows no HTTP; double.py serves it.

GitHub's description says what requests look like and nothing of what they do, so every rule here
names its source: `spec` is the description of an operation in @octokit/openapi 23.0.2, `docs` a
page of docs.github.com, `recording` an exchange in PyGithub 2.10.0's tests. A rule that no source
states says so and takes the case that is worse for fla-bot.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Literal

Role = Literal["admin", "maintain", "write", "triage", "read", "none"]

ACTIONS_SLUG = "github-actions"
ACTIONS_LOGIN = "github-actions[bot]"
# docs, managing re-runs: "You can re-run a workflow or jobs for up to 30 days after its first run."
RERUN_DAYS = 30
# docs, REST checks guide: GitHub marks a check run stale that is incomplete for 14 days.
STALE_DAYS = 14
STATUSES_PER_CONTEXT = 1000  # spec repos/create-commit-status
MAX_DESCRIPTION = 140  # issue zalando/zappr#378
TOKEN_LIFE = timedelta(hours=1)  # spec apps/create-installation-access-token
JOB_TOKEN_LIFE = timedelta(hours=24)  # docs, GITHUB_TOKEN: ends with the job, 24 h at most
ARTIFACT_LIFE = timedelta(days=90)  # docs: default retention
# docs, about protected branches: required checks must be successful, skipped or neutral.
GREEN = frozenset({"success", "skipped", "neutral"})


class Refusal(Exception):
    """GitHub says no: the status and the words of its reply."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        self.status, self.message = status, message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        super().__init__(message)


@dataclass
class App:
    """A GitHub App; its permissions are the most that its tokens can have."""

    id: int
    slug: str
    permissions: dict[str, str]
    public_key: str = ""
    installation: int = 0


@dataclass(frozen=True)
class Actor:
    """Who does something: a person, a workflow job with GITHUB_TOKEN, or an App."""

    login: str
    kind: Literal["person", "job", "app"] = "person"
    app: App | None = None
    run: int | None = None


@dataclass
class Token:
    """A credential: what it may do is in `permissions`, except for persons, whose role counts."""

    text: str
    actor: Actor
    permissions: dict[str, str]
    expires: datetime | None = None


@dataclass
class Commit:
    """A commit with its whole tree."""

    sha: str
    parent: str | None
    author: str
    message: str
    files: dict[str, bytes]
    date: datetime


@dataclass
class Pull:
    """A pull request; `owner` is the account of the head repository, None when it was deleted."""

    number: int
    author: str
    title: str
    body: str | None
    base: str
    owner: str | None
    head: str
    sha: str
    base_sha: str
    created_at: datetime
    updated_at: datetime
    draft: bool = False
    state: Literal["open", "closed"] = "open"
    merged: bool = False
    computed: bool = False
    labels: list[str] = field(default_factory=list)
    before: str = ""


@dataclass
class ForcePush:
    """A push to the head of a pull request that threw commits away."""

    id: int
    number: int
    actor: Actor
    sha: str
    created_at: datetime


@dataclass
class Comment:
    """A comment on a pull request and the texts that it had before."""

    id: int
    number: int
    actor: Actor
    body: str
    created_at: datetime
    updated_at: datetime
    edits: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Reaction:
    """One reaction of one account to a comment."""

    id: int
    comment: int
    login: str
    content: str


@dataclass
class Suite:
    """The check runs of one App on one commit; Actions has one for each workflow run."""

    id: int
    app: App
    sha: str
    run: int | None = None


@dataclass
class Check:
    """A check run."""

    id: int
    suite: Suite
    name: str
    created_at: datetime
    status: str = "queued"
    conclusion: str | None = None
    external_id: str = ""
    details_url: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    output: dict[str, Any] = field(default_factory=dict)
    annotations: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Status:
    """A commit status."""

    id: int
    sha: str
    context: str
    state: str
    description: str | None
    target_url: str | None
    creator: Actor
    created_at: datetime


@dataclass
class Workflow:
    """A workflow file on the default branch."""

    id: int
    file: str
    name: str
    on: tuple[str, ...]
    jobs: tuple[tuple[str, tuple[str, ...]], ...]
    inputs: tuple[str, ...] = ()
    run_name: str = ""
    state: str = "active"


@dataclass
class Job:
    """One job of one attempt of a run, and the check run that shows it."""

    id: int
    run: int
    attempt: int
    name: str
    labels: tuple[str, ...]
    check: Check
    runner: str | None = None


@dataclass
class Run:
    """A workflow run."""

    id: int
    number: int
    workflow: Workflow
    event: str
    branch: str
    sha: str
    owner: str
    actor: Actor
    title: str
    created_at: datetime
    updated_at: datetime
    suite: Suite
    by_token: bool
    triggering: Actor
    inputs: dict[str, str] = field(default_factory=dict)
    attempt: int = 1
    status: str = "queued"
    conclusion: str | None = None
    jobs: list[Job] = field(default_factory=list)
    deaf: bool = False  # ignores a plain cancel, as a job with `if: always()` does


@dataclass
class Artifact:
    """An uploaded artifact of a run."""

    id: int
    run: int
    name: str
    content: bytes
    created_at: datetime
    expired: bool = False


@dataclass(frozen=True)
class Event:
    """Something that happened and that may start workflows."""

    name: str
    action: str
    actor: Actor
    subject: Any


@dataclass
class Protection:
    """The required checks of a branch; an App id pins a check to that App."""

    checks: list[tuple[str, int | None]] = field(default_factory=list)


SCOPES = (
    "actions", "attestations", "checks", "contents", "deployments", "discussions", "issues",
    "packages", "pages", "pull-requests", "security-events", "statuses",
)  # fmt: skip


def job_permissions(workflow: Mapping[str, Any], job: str, *, fork: bool = False) -> dict[str, str]:
    """The permissions of a job by its YAML.

    docs, workflow syntax: those of the job replace those at the top as a whole; where neither is
    written the repository's default counts, here the restricted one (`contents: read`). docs,
    GITHUB_TOKEN: in `pull_request` runs of a fork every write becomes read.
    """
    written = workflow["jobs"][job].get("permissions", workflow.get("permissions"))
    if written in ("read-all", "write-all"):
        written = dict.fromkeys(SCOPES, written.removesuffix("-all"))
    granted = {"contents": "read"} if written is None else dict(written)
    if unknown := granted.keys() - {*SCOPES, "id-token", "models"}:
        raise ValueError(f"GitHub refuses this workflow: permissions {sorted(unknown)}")
    return {name: "read" if fork and level == "write" else level for name, level in granted.items()}


class World:
    """One repository, the people and Apps round it, and what they do to it."""

    def __init__(
        self,
        full_name: str = "octo-org/kernels",
        *,
        public: bool = False,
        now: datetime | None = None,
    ) -> None:
        self.owner, self.name = full_name.split("/")
        self.public = public
        self.now = now or datetime.now(UTC).replace(microsecond=0)
        self._ids = count(1001)
        self.default_branch = "main"
        self.people: dict[str, int] = {}
        self.roles: dict[str, Role] = {}
        self.commits: dict[str, Commit] = {}
        self.branches: dict[tuple[str, str], str] = {}
        self.pulls: dict[int, Pull] = {}
        self.comments: dict[int, Comment] = {}
        self.reactions: dict[int, Reaction] = {}
        self.force_pushes: list[ForcePush] = []
        self.suites: list[Suite] = []
        self.checks: dict[int, Check] = {}
        self.statuses: list[Status] = []
        self.workflows: dict[str, Workflow] = {}
        self.runs: dict[int, Run] = {}
        self.artifacts: dict[int, Artifact] = {}
        self.tokens: dict[str, Token] = {}
        self.apps: dict[int, App] = {}
        self.protections: dict[str, Protection] = {}
        self.variables: dict[str, str] = {}
        self.environments: dict[str, list[str]] = {}
        self.events: list[Event] = []
        self.silent: list[Event] = []
        self.actions = App(15368, ACTIONS_SLUG, {})
        self.push("main", {"README.md": b"# kernels\n"}, author=self.owner)
        self.events.clear()

    # People, Apps and their tokens.

    @property
    def full_name(self) -> str:
        """`owner/name`."""
        return f"{self.owner}/{self.name}"

    def next_id(self) -> int:
        """Ids ascend over everything, so an older thing always has the smaller id."""
        return next(self._ids)

    def advance(self, **span: float) -> None:
        """Let time pass."""
        self.now += timedelta(**span)

    def account(self, login: str) -> int:
        """The id of an account; it exists from its first use."""
        return self.people.setdefault(login, 5000 + len(self.people))

    def person(self, login: str, role: Role = "none") -> Actor:
        """A person with a role in the repository."""
        self.account(login)
        self.roles[login] = role
        return Actor(login)

    def app(self, slug: str, permissions: Mapping[str, str], public_key: str = "") -> App:
        """An App that is installed on the repository."""
        app = App(self.next_id(), slug, dict(permissions), public_key, self.next_id())
        self.apps[app.id] = app
        return app

    def app_actor(self, app: App) -> Actor:
        """What an App's installation token acts as."""
        return Actor(f"{app.slug}[bot]", "app", app)

    def job_actor(self, run: int | None = None) -> Actor:
        """What GITHUB_TOKEN acts as."""
        return Actor(ACTIONS_LOGIN, "job", self.actions, run)

    def person_token(self, login: str) -> str:
        """A token with which a person may do all that their role allows."""
        return self._token(f"ghp_{login}", Actor(login), {}, None)

    def job_token(self, permissions: Mapping[str, str], run: int | None = None) -> str:
        """GITHUB_TOKEN of a job with exactly these YAML permissions (`pull-requests: write`).

        docs, GITHUB_TOKEN permissions: a permission that is not named is `none` as soon as one is
        named; `metadata: read` is always there.
        """
        granted = {key.replace("-", "_"): level for key, level in permissions.items()}
        granted = {key: level for key, level in granted.items() if level != "none"}
        expires = self.now + JOB_TOKEN_LIFE
        return self._token("ghs_job", self.job_actor(run), {"metadata": "read", **granted}, expires)

    def job_token_of(self, workflow: Mapping[str, Any], job: str, *, fork: bool = False) -> str:
        """GITHUB_TOKEN of a job as a parsed workflow file gives it."""
        return self.job_token(job_permissions(workflow, job, fork=fork))

    def installation_token(self, app: App, wanted: Mapping[str, str] | None = None) -> Token:
        """spec apps/create-installation-access-token: never more than the App has; one hour."""
        for name, level in (wanted or {}).items():
            if app.permissions.get(name) not in (level, "write", "admin"):
                raise Refusal(
                    422, "The permissions requested are not granted to this installation."
                )
        granted = {"metadata": "read", **(wanted or app.permissions)}
        # spec: the stateless format since 2026-04-27 is no longer 40 characters long.
        prefix = f"ghs_{app.id}_" + "x" * 60
        return self.tokens[self._token(prefix, self.app_actor(app), granted, self.now + TOKEN_LIFE)]

    def _token(
        self, prefix: str, actor: Actor, permissions: dict[str, str], expires: datetime | None
    ) -> str:
        text = f"{prefix}_{self.next_id()}"
        self.tokens[text] = Token(text, actor, permissions, expires)
        return text

    def role(self, login: str) -> Role:
        """The owner is an admin; an App has no role; everybody may read a public repository."""
        if login == self.owner:
            return "admin"
        known = self.roles.get(login, "none")
        readable = self.public and known == "none" and not login.endswith("[bot]")
        return "read" if readable else known

    def may(self, actor: Actor, *roles: Role) -> bool:
        """Whether a person has one of the roles; jobs and Apps go by their token instead."""
        return actor.kind != "person" or self.role(actor.login) in roles

    def emit(self, name: str, action: str, actor: Actor, subject: Any) -> None:
        """docs, triggering a workflow: what GITHUB_TOKEN does starts no workflow run, except
        workflow_dispatch and repository_dispatch."""
        quiet = actor.kind == "job" and name not in ("workflow_dispatch", "repository_dispatch")
        (self.silent if quiet else self.events).append(Event(name, action, actor, subject))

    def take_events(self, *names: str) -> list[Event]:
        """The events since the last call, of these names if any are given."""
        taken, self.events = self.events, []
        return [event for event in taken if not names or event.name in names]

    # Git.

    def commit(
        self,
        files: Mapping[str, bytes | None],
        parent: str | None = None,
        *,
        author: str = "alice",
        sha: str | None = None,
        message: str = "Change",
    ) -> str:
        """A commit on top of a parent; `sha` ties it to one of a real repository."""
        tree = dict(self.commits[parent].files) if parent in self.commits else {}
        tree.update({path: text for path, text in files.items() if text is not None})
        for path in [path for path, text in files.items() if text is None]:
            tree.pop(path, None)
        if sha is None:
            sha = hashlib.sha1(f"{self.next_id()}".encode()).hexdigest()
        self.commits[sha] = Commit(sha, parent, author, message, tree, self.now)
        return sha

    def push(
        self,
        branch: str,
        files: Mapping[str, bytes | None] | None = None,
        *,
        owner: str | None = None,
        author: str | None = None,
        sha: str | None = None,
        start: str | None = None,
    ) -> str:
        """Move a branch of the repository, or of `owner`'s fork; its pull requests follow."""
        key = (owner or self.owner, branch)
        parent = start or self.branches.get(key) or self.tip("main")
        who = Actor(author or owner or self.owner)
        if sha is None or sha not in self.commits:
            sha = self.commit(files or {}, parent, author=who.login, sha=sha)
        self.branches[key] = sha
        self.emit("push", "", who, (key, sha))
        for pull in self.pulls.values():
            if pull.state == "open" and (pull.owner, pull.head) == key:
                if pull.sha not in self.ancestors(sha):
                    # Docs, "Issue event types": head_ref_force_pushed, also listed for issues.
                    self.force_pushes.append(
                        ForcePush(self.next_id(), pull.number, who, sha, self.now)
                    )
                pull.before, pull.sha = pull.sha, sha
                pull.computed, pull.updated_at = False, self.now
                self.emit("pull_request", "synchronize", who, pull)
        return sha

    def tip(self, branch: str, owner: str | None = None) -> str | None:
        """The commit of a branch."""
        return self.branches.get((owner or self.owner, branch))

    def resolve(self, ref: str) -> Commit:
        """A commit by hash or branch name; a short hash is not looked up."""
        branch = ref.removeprefix("refs/").removeprefix("heads/")
        sha = self.tip(branch) or ref
        if sha not in self.commits:
            raise Refusal(422, f"No commit found for SHA: {ref}")
        return self.commits[sha]

    def ancestors(self, sha: str | None) -> list[str]:
        """A commit and all before it, newest first."""
        found = []
        while sha in self.commits:
            found.append(sha)
            sha = self.commits[sha].parent
        return found

    def merge_base(self, one: str, other: str) -> str:
        """The newest common ancestor."""
        known = set(self.ancestors(one))
        return next((sha for sha in self.ancestors(other) if sha in known), one)

    def changed(self, base: str, head: str) -> Iterator[tuple[str, str]]:
        """Path and status of every file that differs between two commits."""
        old, new = self.commits[base].files, self.commits[head].files
        for path in sorted(old.keys() | new.keys()):
            if old.get(path) != new.get(path):
                status = "added" if path not in old else "removed"
                yield path, "modified" if path in old and path in new else status

    # Pull requests.

    def open_pull(
        self,
        author: str,
        files: Mapping[str, bytes | None] | None = None,
        *,
        base: str = "main",
        head: str | None = None,
        fork: bool = True,
        sha: str | None = None,
        title: str = "Faster kernel",
        body: str | None = None,
        draft: bool = False,
    ) -> Pull:
        """A pull request from the author's fork, or from a branch of the repository."""
        self.account(author)
        owner = author if fork else self.owner
        number = len(self.pulls) + 1
        head = head or f"change-{number}"
        if (owner, head) not in self.branches or files or sha:
            self.push(head, files or {"a.py": b"x = 1\n"}, owner=owner, author=author, sha=sha)
        tip, start = self.branches[owner, head], self.tip(base)
        assert start
        pull = Pull(
            number, author, title, body, base, owner, head, tip, start, self.now, self.now, draft
        )
        self.pulls[number] = pull
        self.emit("pull_request", "opened", Actor(author), pull)
        return pull

    def edit_pull(self, pull: Pull, actor: Actor, **changes: Any) -> Pull:
        """Title, text, base (a retarget) and state; each change is an event of its own.

        docs, webhook pull_request: `edited` for title, body and base; `closed`; `reopened`.
        """
        if "base" in changes and changes["base"] != pull.base:
            if not self.tip(changes["base"]):
                raise Refusal(422, "Proposed base branch was not found")
            pull.base, pull.base_sha = changes["base"], self.tip(changes["base"]) or ""
            pull.computed = False
        state = changes.get("state", pull.state)
        edited = changes.keys() & {"title", "body", "base"}
        for name in ("title", "body"):
            setattr(pull, name, changes.get(name, getattr(pull, name)))
        pull.updated_at = self.now
        if edited:
            self.emit("pull_request", "edited", actor, pull)
        if state != pull.state:
            pull.state = state
            self.emit("pull_request", "closed" if state == "closed" else "reopened", actor, pull)
        return pull

    def set_draft(self, pull: Pull, actor: Actor, *, draft: bool) -> None:
        """docs, webhook pull_request: `converted_to_draft` and `ready_for_review`."""
        pull.draft, pull.updated_at = draft, self.now
        action = "converted_to_draft" if draft else "ready_for_review"
        self.emit("pull_request", action, actor, pull)

    def delete_fork(self, login: str) -> None:
        """recording PullRequest.setUp: `head.repo` is null where the fork is gone."""
        for pull in self.pulls.values():
            pull.owner = None if pull.owner == login else pull.owner

    def merge(self, pull: Pull, actor: Actor) -> None:
        """Merge; refused unless the branch protection is satisfied."""
        if self.merge_state(pull) != "clean":
            raise Refusal(405, "Pull Request is not mergeable")
        sha = self.push(pull.base, self.commits[pull.sha].files, author=actor.login)
        pull.state, pull.merged, pull.base_sha = "closed", True, sha
        self.emit("pull_request", "closed", actor, pull)

    def merge_state(self, pull: Pull) -> str:
        """`mergeable_state` as the branch protection makes it."""
        if pull.draft:
            return "draft"
        return "clean" if self.satisfied(pull.base, pull.sha) else "blocked"

    def protect(self, branch: str, *checks: tuple[str, int | None]) -> None:
        """Require checks on a branch."""
        self.protections[branch] = Protection(list(checks))

    def satisfied(self, branch: str, sha: str) -> bool:
        """Whether every required check of a branch is green on a commit.

        docs, troubleshooting required status checks: skipped and neutral are as good as success;
        a check and a status of one name are both required.
        """
        required = self.protections.get(branch, Protection()).checks
        return all(self._is_green(sha, name, app) for name, app in required)

    def _is_green(self, sha: str, name: str, app: int | None) -> bool:
        checks = [
            check
            for check in self.latest_checks(sha)
            if check.name == name and app in (None, check.suite.app.id)
        ]
        status = next((s for s in self.statuses_of(sha) if s.context == name), None)
        source = status.creator.app.id if status and status.creator.app else None
        counts = status is not None and app in (None, source)
        states = [status is not None and status.state == "success"] if counts else []
        if checks:
            # Not documented for one name in several suites: the newest alone decides here.
            states.append(checks[-1].conclusion in GREEN)
        return bool(states) and all(states)

    # The merge queue.

    def enqueue(self, pull: Pull) -> str:
        """docs, managing a merge queue: a temporary branch `gh-readonly-queue/BASE/pr-N-SHA`, and
        the event `merge_group`, `checks_requested`, that GitHub itself makes."""
        base = self.tip(pull.base) or ""
        branch = f"gh-readonly-queue/{pull.base}/pr-{pull.number}-{base}"
        head = self.commit(self.commits[pull.sha].files, base, author=pull.author)
        self.branches[self.owner, branch] = head
        self.emit("merge_group", "checks_requested", Actor("github-merge-queue[bot]"), branch)
        return branch

    def leave_queue(self, pull: Pull) -> bool:
        """Take the group out: merged if its own commit is green, dropped otherwise."""
        prefix = f"gh-readonly-queue/{pull.base}/pr-{pull.number}-"
        key = next(key for key in self.branches if key[1].startswith(prefix))
        head = self.branches.pop(key)
        merged = self.satisfied(pull.base, head)
        if merged:
            self.branches[self.owner, pull.base] = head
            pull.state, pull.merged = "closed", True
        self.emit("merge_group", "destroyed", Actor("github-merge-queue[bot]"), key[1])
        return merged

    # Comments.

    def add_comment(self, number: int, actor: Actor, body: str) -> Comment:
        """A comment; anybody may write one (a lock is not modelled)."""
        if number not in self.pulls:
            raise Refusal(404, "Not Found")
        self.account(actor.login)
        comment = Comment(self.next_id(), number, actor, body, self.now, self.now)
        self.comments[comment.id] = comment
        self.emit("issue_comment", "created", actor, comment)
        return comment

    def edit_comment(self, comment: Comment, actor: Actor, body: str) -> Comment:
        """The author stays; `updated_at` tells of it, unless it happens within the same second.

        recording IssueComment.setUp: the times of a comment have whole seconds.
        docs, managing disruptive comments: who has write may edit anybody's comment. An App's
        token may edit with `issues: write` (spec issues/update-comment).
        """
        own = actor.login == comment.actor.login
        if not own and not self.may(actor, "admin", "maintain", "write"):
            raise Refusal(403, "Must have admin rights to Repository.")
        comment.edits.append((actor.login, comment.body))
        comment.body = body
        comment.updated_at = self.now.replace(microsecond=0)
        self.emit("issue_comment", "edited", actor, comment)
        return comment

    def delete_comment(self, comment: Comment, actor: Actor) -> None:
        """Gone with its reactions."""
        del self.comments[comment.id]
        self.reactions = {
            key: item for key, item in self.reactions.items() if item.comment != comment.id
        }
        self.emit("issue_comment", "deleted", actor, comment)

    def react(self, comment: Comment, actor: Actor, content: str) -> tuple[Reaction, bool]:
        """spec reactions/create-for-issue-comment: 200 when the account had reacted so already."""
        for reaction in self.reactions.values():
            if (reaction.comment, reaction.login, reaction.content) == (
                comment.id,
                actor.login,
                content,
            ):
                return reaction, False
        reaction = Reaction(self.next_id(), comment.id, actor.login, content)
        self.reactions[reaction.id] = reaction
        return reaction, True

    # Checks and statuses.

    def suite_for(self, actor: Actor, sha: str) -> Suite:
        """The suite that a new check run lands in.

        docs, check suites: one for each App and commit. One of GITHUB_TOKEN attaches to the oldest
        suite of Actions on the commit (not documented, but often reported), so it may stand beside
        the jobs of somebody else's workflow.
        """
        assert actor.app
        for suite in self.suites:
            if suite.app.id == actor.app.id and suite.sha == sha:
                return suite
        suite = Suite(self.next_id(), actor.app, sha)
        self.suites.append(suite)
        return suite

    def create_check(self, actor: Actor, body: Mapping[str, Any]) -> Check:
        """A check run of the actor's App."""
        if actor.app is None:
            # docs, checks: only GitHub Apps have write access to checks.
            raise Refusal(403, "You must authenticate via a GitHub App.")
        commit = self.resolve(body["head_sha"])
        suite = self.suite_for(actor, commit.sha)
        check = Check(self.next_id(), suite, body["name"], self.now)
        self.checks[check.id] = check
        self._fill_check(check, body)
        self.emit_check("created", check, actor)
        return check

    def update_check(self, check: Check, actor: Actor, body: Mapping[str, Any]) -> Check:
        """docs, checks: a check run can only be changed by the App that made it."""
        if actor.app is None or actor.app.id != check.suite.app.id:
            raise Refusal(403, "Invalid app_id - check run can only be modified by its App.")
        self._fill_check(check, body)
        if check.conclusion:
            self.emit_check("completed", check, actor)
        return check

    def _fill_check(self, check: Check, body: Mapping[str, Any]) -> None:
        for name in ("name", "status", "external_id", "details_url"):
            setattr(check, name, body.get(name, getattr(check, name)))
        if "conclusion" in body:
            # spec checks/create: "Providing conclusion will automatically set status to completed".
            check.status, check.conclusion = "completed", body["conclusion"]
            check.completed_at = self.now
        elif body.get("status") not in (None, "completed"):
            check.conclusion = check.completed_at = None
        check.started_at = check.started_at or self.now
        output = dict(body.get("output", {}))
        # spec checks/update: annotations are added to those that are there; the rest is replaced.
        check.annotations += output.pop("annotations", [])
        check.output = output or check.output

    def emit_check(self, action: str, check: Check, actor: Actor) -> None:
        """docs, events: check_run starts no workflow for suites that GitHub Actions created."""
        app = check.suite.app
        name = actor if app.slug != ACTIONS_SLUG else self.job_actor()
        self.emit("check_run", action, name, check)

    def rerequest_check(self, check: Check, actor: Actor) -> None:
        """spec checks/rerequest-run: only an event; the run itself is not updated."""
        self.emit("check_run", "rerequested", actor, check)

    def age_checks(self) -> None:
        """Checks that wait too long become stale; only GitHub may say so."""
        for check in self.checks.values():
            waited = self.now - (check.started_at or check.created_at)
            if check.status != "completed" and waited > timedelta(days=STALE_DAYS):
                check.status, check.conclusion = "completed", "stale"
                check.completed_at = self.now

    def checks_of(self, sha: str) -> list[Check]:
        """All check runs of a commit, oldest first."""
        self.age_checks()
        return [check for check in self.checks.values() if check.suite.sha == sha]

    def latest_checks(self, sha: str) -> list[Check]:
        """spec checks/list-for-ref, filter=latest: the newest of each name in each suite."""
        newest = {(check.suite.id, check.name): check for check in self.checks_of(sha)}
        return sorted(newest.values(), key=lambda check: check.id)

    def add_status(self, actor: Actor, sha: str, body: Mapping[str, Any]) -> Status:
        """A commit status; the newest of a context counts."""
        self.resolve(sha)
        context = body.get("context", "default")
        known = [item for item in self.statuses if (item.sha, item.context) == (sha, context)]
        if len(known) >= STATUSES_PER_CONTEXT:
            raise Refusal(422, "This SHA and context has reached the maximum number of statuses.")
        words = body.get("description") or ""
        if any(character > "\uffff" for character in words):
            # issue ouzi-dev/commit-status-updater#526
            raise Refusal(422, "Validation Failed: description doesn't accept 4-byte Unicode")
        if len(words) > MAX_DESCRIPTION:
            raise Refusal(422, "Validation Failed: description is too long (maximum is 140)")
        status = Status(
            self.next_id(),
            sha,
            context,
            body["state"],
            body.get("description"),
            body.get("target_url"),
            actor,
            self.now,
        )
        self.statuses.append(status)
        self.emit("status", "", actor, status)
        return status

    def statuses_of(self, sha: str) -> list[Status]:
        """spec repos/list-commit-statuses-for-ref: newest first."""
        return [item for item in reversed(self.statuses) if item.sha == sha]

    # Actions.

    def workflow(
        self,
        file: str,
        *,
        on: tuple[str, ...] = ("workflow_dispatch",),
        jobs: tuple[tuple[str, tuple[str, ...]], ...] = (("build", ("ubuntu-latest",)),),
        inputs: tuple[str, ...] = (),
        run_name: str = "",
    ) -> Workflow:
        """Put a workflow on the default branch."""
        name = file.removesuffix(".yml")
        self.workflows[file] = Workflow(self.next_id(), file, name, on, jobs, inputs, run_name)
        return self.workflows[file]

    def find_workflow(self, key: str) -> Workflow:
        """spec: a workflow by id or by file name."""
        for workflow in self.workflows.values():
            if key in (workflow.file, str(workflow.id)):
                return workflow
        raise Refusal(404, "Not Found")

    def dispatch(self, actor: Actor, key: str, ref: str, inputs: Mapping[str, str]) -> Run:
        """spec actions/create-workflow-dispatch; the words of the refusals are the service's."""
        workflow = self.find_workflow(key)
        branch = ref.removeprefix("refs/heads/")
        sha = self.tip(branch)
        if sha is None:
            raise Refusal(422, f"No ref found for: {ref}")
        if "workflow_dispatch" not in workflow.on:
            raise Refusal(422, "Workflow does not have 'workflow_dispatch' trigger")
        if unknown := sorted(set(inputs) - set(workflow.inputs)):
            raise Refusal(422, f"Unexpected inputs provided: {unknown}")
        if workflow.state != "active":
            raise Refusal(422, "Cannot trigger a 'workflow_dispatch' on a disabled workflow")
        run = self.start_run(workflow, "workflow_dispatch", actor, branch, sha, inputs=inputs)
        self.emit("workflow_dispatch", "", actor, run)
        return run

    def start_run(
        self,
        workflow: Workflow,
        event: str,
        actor: Actor,
        branch: str,
        sha: str,
        *,
        owner: str | None = None,
        inputs: Mapping[str, str] | None = None,
    ) -> Run:
        """A queued run with its suite and one check run for each job."""
        suite = Suite(self.next_id(), self.actions, sha, self.next_id())
        self.suites.append(suite)
        title = re.sub(
            r"\$\{\{ *inputs\.(\w+) *\}\}",
            lambda match: (inputs or {}).get(match[1], ""),
            workflow.run_name or workflow.name,
        )
        run = Run(
            suite.run or 0,
            len(self.runs) + 1,
            workflow,
            event,
            branch,
            sha,
            owner or self.owner,
            actor,
            title,
            self.now,
            self.now,
            suite,
            actor.kind == "job",
            actor,
            dict(inputs or {}),
        )
        self.runs[run.id] = run
        for name, labels in workflow.jobs:
            self._add_job(run, name, labels)
        self.emit_run("requested", run)
        return run

    def _add_job(self, run: Run, name: str, labels: tuple[str, ...]) -> Job:
        check = Check(self.next_id(), run.suite, name, self.now)
        self.checks[check.id] = check
        job = Job(check.id, run.id, run.attempt, name, labels, check)
        run.jobs.append(job)
        return job

    def emit_run(self, action: str, run: Run) -> None:
        """Runs that GITHUB_TOKEN dispatched emit no workflow_run.

        docs, GITHUB_TOKEN: its events create no workflow run except the two dispatches; so a
        workflow on workflow_run never hears of them. docs, events, workflow_run: `requested` does
        not occur when a run is run again.
        """
        actor = self.job_actor() if run.by_token else run.triggering
        self.emit("workflow_run", action, actor, run)

    def attempt_jobs(self, run: Run, attempt: int | None = None) -> list[Job]:
        """The jobs of the newest attempt, or of one."""
        return [job for job in run.jobs if job.attempt == (attempt or run.attempt)]

    def begin(self, run: Run, job: str | None = None, runner: str = "runner-1") -> None:
        """Runners take the jobs, or one of them."""
        run.status, run.updated_at = "in_progress", self.now
        for item in self.attempt_jobs(run):
            if job in (None, item.name) and item.check.status == "queued":
                item.check.status, item.check.started_at = "in_progress", self.now
                item.runner = runner
        self.emit_run("in_progress", run)

    def finish(
        self,
        run: Run,
        conclusion: str = "success",
        *,
        jobs: Mapping[str, str] | None = None,
        artifacts: Mapping[str, bytes] | None = None,
    ) -> None:
        """End a run; jobs that are not named end as the run does."""
        for name, content in (artifacts or {}).items():
            self.upload(run, name, content)
        for job in self.attempt_jobs(run):
            if job.check.status != "completed":
                job.check.status = "completed"
                job.check.conclusion = (jobs or {}).get(job.name, conclusion)
                job.check.completed_at = self.now
                job.check.started_at = job.check.started_at or self.now
        run.status, run.conclusion, run.updated_at = "completed", conclusion, self.now
        self.emit_run("completed", run)

    def upload(self, run: Run, name: str, content: bytes) -> Artifact:
        """An artifact; two runs may use one name, one run may not (docs, upload-artifact v4)."""
        taken = any(a.run == run.id and a.name == name for a in self.artifacts.values())
        assert not taken, f"artifact {name} exists already in run {run.id}"
        artifact = Artifact(self.next_id(), run.id, name, content, self.now)
        self.artifacts[artifact.id] = artifact
        return artifact

    def is_expired(self, artifact: Artifact) -> bool:
        """Past its retention, or deleted by hand."""
        return artifact.expired or self.now > artifact.created_at + ARTIFACT_LIFE

    def cancel(self, run: Run, *, force: bool = False) -> None:
        """spec: 409 when there is nothing to cancel; only a forced cancel ends a deaf run."""
        if run.status == "completed":
            raise Refusal(409, "Cannot cancel a workflow run that is completed.")
        if force or not run.deaf:
            self.finish(run, "cancelled")

    def rerun(self, run: Run, actor: Actor, *, failed_only: bool = False) -> None:
        """The same run with the same commit and inputs, one attempt more; jobs are new."""
        if run.status != "completed":
            raise Refusal(403, "This workflow is already running")
        if self.now > run.created_at + timedelta(days=RERUN_DAYS):
            words = "Unable to retry this workflow run because it was created over a month ago"
            raise Refusal(403, words)
        before = self.attempt_jobs(run)
        run.attempt, run.status, run.conclusion = run.attempt + 1, "queued", None
        run.triggering, run.updated_at = actor, self.now
        for old in before:
            if failed_only and old.check.conclusion in GREEN:
                run.jobs.append(Job(old.id, run.id, run.attempt, old.name, old.labels, old.check))
            else:
                self._add_job(run, old.name, old.labels)
