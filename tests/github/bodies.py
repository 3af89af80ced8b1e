"""Reply bodies: the examples that GitHub publishes, patched with the state of a World.

Some of GitHub's own examples break GitHub's own schema; the patches add what they lack.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import base64
import copy
import hashlib
import json
from datetime import datetime
from difflib import unified_diff
from pathlib import Path
from typing import Any

from tests.github.world import (
    Actor,
    App,
    Artifact,
    Check,
    Comment,
    Commit,
    Event,
    ForcePush,
    Job,
    Pull,
    Reaction,
    Run,
    Status,
    Suite,
    Workflow,
    World,
)

Body = dict[str, Any]
EXAMPLES = json.loads((Path(__file__).parent / "examples.json").read_text())["examples"]
NAMES = ("octocat/Hello-World", "octo-org/octo-repo", "octocat/hello-world", "github/hello-world")
# repos/get-collaborator-permission-level, description: maintain counts as write, triage as read.
LEGACY = {"maintain": "write", "triage": "read"}
MAX_COMPARED = 300  # files; spec of repos/compare-commits-with-basehead


def stamp(when: datetime | None) -> str | None:
    """A time as GitHub writes it."""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ") if when else None


class Bodies:
    """Builds the JSON of every kind of thing."""

    def __init__(self, world: World, base: str) -> None:
        self.world, self.base = world, base
        # PyGithub asserts the host of every URL that it follows, so all of them point here.
        text = json.dumps(EXAMPLES).replace("https://api.github.com", base)
        for name in NAMES:
            text = text.replace(name, world.full_name)
        self._templates: Body = json.loads(text)

    def template(self, operation: str) -> Any:
        """A copy of GitHub's example for an operation; of a list, its item."""
        found = copy.deepcopy(self._templates[operation])
        return found[0] if isinstance(found, list) else found

    def url(self, path: str) -> str:
        """An address inside the repository."""
        return f"{self.base}/repos/{self.world.full_name}{path}"

    def user(self, login: str) -> Body:
        """An account as it stands in other bodies."""
        kind = "Bot" if login.endswith("[bot]") else "User"
        patch = {"login": login, "id": self.world.account(login), "type": kind}
        return {**self.template("issues/get-comment")["user"], **patch}

    def app(self, app: App) -> Body:
        """An App as it stands in check runs and comments."""
        body = self.template("apps/get-authenticated")
        return {**body, "id": app.id, "slug": app.slug, "name": app.slug}

    def _by(self, actor: Actor) -> Body:
        return self.user(actor.login)

    def repository(self, owner: str | None = None) -> Body:
        """The repository, or `owner`'s fork of it."""
        world, body = self.world, self.template("repos/get")
        name = f"{owner or world.owner}/{world.name}"
        for part in ("source", "parent", "organization", "template_repository"):
            body.pop(part, None)
        return {
            **body,
            "id": 77 if owner in (None, world.owner) else world.account(owner or "") + 100_000,
            "name": world.name,
            "full_name": name,
            "owner": self.user(owner or world.owner),
            "fork": owner not in (None, world.owner),
            "private": not world.public,
            "visibility": "public" if world.public else "private",
            "default_branch": world.default_branch,
            "language": "Python",
            "url": f"{self.base}/repos/{name}",
        }

    def _side(self, owner: str | None, ref: str, sha: str) -> Body:
        """head or base of a pull request; user and repo are null where a fork is gone."""
        return {
            "label": f"{owner}:{ref}" if owner else ref,
            "ref": ref,
            "sha": sha,
            "user": self.user(owner) if owner else None,
            "repo": self.repository(owner) if owner else None,
        }

    def pull(self, pull: Pull, *, full: bool = True) -> Body:
        """A pull request; a list shows less of it."""
        body = self.template("pulls/get" if full else "pulls/list")
        body.update(
            number=pull.number,
            id=pull.number + 9000,
            url=self.url(f"/pulls/{pull.number}"),
            state=pull.state,
            title=pull.title,
            body=pull.body,
            user=self.user(pull.author),
            draft=pull.draft,
            locked=False,
            labels=[self.label(name) for name in pull.labels],
            head=self._side(pull.owner, pull.head, pull.sha),
            base=self._side(self.world.owner, pull.base, pull.base_sha),
            created_at=stamp(pull.created_at),
            updated_at=stamp(pull.updated_at),
            closed_at=stamp(pull.updated_at) if pull.state == "closed" else None,
            merged_at=stamp(pull.updated_at) if pull.merged else None,
            requested_teams=[],
        )
        return {**body, **self._full_pull(pull)} if full else body

    def _full_pull(self, pull: Pull) -> Body:
        world = self.world
        base = world.merge_base(pull.base_sha, pull.sha)
        commits = world.ancestors(pull.sha)
        count = commits.index(base) if base in commits else len(commits)
        state = world.merge_state(pull) if pull.computed else "unknown"
        return {
            "merged": pull.merged,
            # spec pulls/get: null until a background job has computed it; ask again.
            "mergeable": True if pull.computed else None,
            "mergeable_state": state,
            "commits": count,
            "changed_files": len(list(world.changed(base, pull.sha))),
            "comments": sum(c.number == pull.number for c in world.comments.values()),
        }

    def label(self, name: str) -> Body:
        """A label."""
        return {**self.template("issues/list-labels-on-issue"), "name": name, "default": False}

    def issue(self, pull: Pull) -> Body:
        """The issue side of a pull request."""
        body = self.template("issues/get")
        place = self.url(f"/issues/{pull.number}")
        for part in ("comments", "events", "labels"):
            body[f"{part}_url"] = f"{place}/{part}"
        body.update(
            id=pull.number + 9000,
            node_id="PR",
            url=place,
            html_url=place,
            repository_url=self.url(""),
            number=pull.number,
            state=pull.state,
            title=pull.title,
            body=pull.body,
            user=self.user(pull.author),
            labels=[self.label(name) for name in pull.labels],
            assignee=None,
            closed_at=None,
            comments=0,
            locked=False,
            milestone=None,
            created_at=stamp(pull.created_at),
            updated_at=stamp(pull.updated_at),
        )
        return _drop(body, "parent_issue_url", "closed_by")

    def comment(self, comment: Comment) -> Body:
        """A comment; one that an App wrote says so."""
        app = comment.actor.app
        known = comment.actor.login in self.world.roles
        return {
            **self.template("issues/get-comment"),
            "id": comment.id,
            "url": self.url(f"/issues/comments/{comment.id}"),
            "issue_url": self.url(f"/issues/{comment.number}"),
            "body": comment.body,
            "user": self._by(comment.actor),
            # A private member of an organisation shows as CONTRIBUTOR: no source of authority.
            "author_association": "CONTRIBUTOR" if known else "NONE",
            "performed_via_github_app": self.app(app) if app else None,
            "created_at": stamp(comment.created_at),
            "updated_at": stamp(comment.updated_at),
        }

    def force_push(self, push: ForcePush) -> Body:
        """A forced push as an event of its pull request, with what all such events have."""
        return {
            "id": push.id,
            "node_id": f"HRFPE_{push.id}",
            "url": self.url(f"/issues/events/{push.id}"),
            "actor": self._by(push.actor),
            "event": "head_ref_force_pushed",
            "commit_id": push.sha,
            "commit_url": self.url(f"/commits/{push.sha}"),
            "created_at": stamp(push.created_at),
            "performed_via_github_app": None,
        }

    def reaction(self, reaction: Reaction) -> Body:
        """A reaction."""
        body = self.template("reactions/create-for-issue-comment")
        patch = {"id": reaction.id, "content": reaction.content, "user": self.user(reaction.login)}
        return {**body, **patch}

    def commit(self, commit: Commit, *, full: bool = False) -> Body:
        """A commit; `full` adds its files."""
        body = self.template("repos/get-commit" if full else "pulls/list-commits")
        person = {"name": commit.author, "email": f"{commit.author}@example.invalid"}
        signed = {**person, "date": stamp(commit.date)}
        body["commit"].update(message=commit.message, author=signed, committer=signed)
        parents = [{"sha": commit.parent, "url": self.url(f"/git/commits/{commit.parent}")}]
        body.update(
            sha=commit.sha,
            url=self.url(f"/commits/{commit.sha}"),
            author=self.user(commit.author),
            committer=self.user(commit.author),
            parents=parents if commit.parent else [],
        )
        if full:
            changed = self.world.changed(commit.parent, commit.sha) if commit.parent else ()
            parent = self.world.commits[commit.parent] if commit.parent else commit
            body["files"] = [self.file(*item, parent, commit) for item in changed]
        return body

    def file(self, path: str, status: str, base: Commit, head: Commit) -> Body:
        """One changed file; `patch` is absent where it is no text."""
        sides = [commit.files.get(path) for commit in (base, head)]
        body = {**self.template("pulls/list-files"), "filename": path, "status": status}
        body["sha"] = blob_name(sides[1] if sides[1] is not None else sides[0] or b"")
        body.pop("patch")
        try:
            texts = [(side or b"").decode().splitlines() for side in sides]
        except UnicodeDecodeError:
            return body
        lines = list(unified_diff(*texts, lineterm=""))[2:]
        return {**body, "patch": "\n".join(lines)} if lines else body

    def content(self, path: str, content: bytes) -> Body:
        """A file; docs, contents: base64, broken into lines."""
        blob = blob_name(content)
        body = self.template("repos/get-content")
        body.update(name=path.rsplit("/", 1)[-1], path=path, sha=blob, size=len(content))
        return {**body, "content": base64.encodebytes(content).decode(), "encoding": "base64"}

    def tree(self, commit: Commit) -> Body:
        """All files of a commit, as `recursive` lists them; folders are left out."""
        listed = [
            {"path": path, "mode": "100644", "type": "blob", "size": len(content),
             "sha": blob_name(content)}
            for path, content in sorted(commit.files.items())
        ]  # fmt: skip
        return {**self.template("git/get-tree"), "sha": commit.sha, "tree": listed}

    def suite(self, suite: Suite) -> Body:
        """A check suite."""
        checks = [c for c in self.world.latest_checks(suite.sha) if c.suite is suite]
        open_ = [check.status for check in checks if check.status != "completed"]
        done = [check.conclusion for check in checks if check.status == "completed"]
        worst = next((item for item in done if item not in ("success", None)), "success")
        return {
            **self.template("checks/get-suite"),
            "id": suite.id,
            "head_sha": suite.sha,
            "app": self.app(suite.app),
            "status": open_[0] if open_ else "completed",
            "conclusion": None if open_ or not done else worst,
            "pull_requests": [],
            "latest_check_runs_count": len(checks),
            "repository": self.repository(),
        }

    def check(self, check: Check) -> Body:
        """A check run; spec checks/get: pull requests from forks are not listed."""
        output = {"title": None, "summary": None, "text": None, **check.output}
        output["annotations_count"] = len(check.annotations)
        output["annotations_url"] = self.url(f"/check-runs/{check.id}/annotations")
        output.pop("images", None)
        return {
            **self.template("checks/get"),
            "id": check.id,
            "url": self.url(f"/check-runs/{check.id}"),
            "name": check.name,
            "head_sha": check.suite.sha,
            "status": check.status,
            "conclusion": check.conclusion,
            "external_id": check.external_id,
            "details_url": check.details_url,
            "started_at": stamp(check.started_at),
            "completed_at": stamp(check.completed_at),
            "output": output,
            "check_suite": {"id": check.suite.id},
            "app": self.app(check.suite.app),
            "pull_requests": [],
        }

    def annotation(self, given: Body) -> Body:
        """An annotation as it was sent."""
        absent = dict.fromkeys(("start_column", "end_column", "title", "raw_details"))
        return {**self.template("checks/list-annotations"), **absent, **given}

    def status(self, status: Status) -> Body:
        """A commit status."""
        return {
            **self.template("repos/create-commit-status"),
            "id": status.id,
            "url": self.url(f"/statuses/{status.sha}"),
            "state": status.state,
            "context": status.context,
            "description": status.description,
            "target_url": status.target_url,
            "creator": self._by(status.creator),
            "created_at": stamp(status.created_at),
            "updated_at": stamp(status.created_at),
        }

    def combined(self, sha: str) -> Body:
        """spec repos/get-combined-status-for-ref: the newest of each context."""
        newest = {item.context: item for item in reversed(self.world.statuses_of(sha))}
        states = {item.state for item in newest.values()}
        state = "pending" if not states or "pending" in states else "success"
        state = "failure" if states & {"failure", "error"} else state
        body = self.template("repos/get-combined-status-for-ref")
        shown = [
            {key: value for key, value in self.status(item).items() if key != "creator"}
            | {"avatar_url": None}
            for item in newest.values()
        ]
        body.update(sha=sha, state=state, statuses=shown, total_count=len(shown))
        return {**body, "repository": self.repository()}

    def workflow(self, workflow: Workflow) -> Body:
        """A workflow file."""
        return {
            **self.template("actions/get-workflow"),
            "id": workflow.id,
            "name": workflow.name,
            "path": f".github/workflows/{workflow.file}",
            "state": workflow.state,
        }

    def run(self, run: Run) -> Body:
        """A workflow run; `pull_requests` is empty for forks (github/docs#22501)."""
        return {
            **self.template("actions/get-workflow-run"),
            "id": run.id,
            "url": self.url(f"/actions/runs/{run.id}"),
            "jobs_url": self.url(f"/actions/runs/{run.id}/jobs"),
            "name": run.workflow.name,
            "display_title": run.title,
            "path": f".github/workflows/{run.workflow.file}",
            "workflow_id": run.workflow.id,
            "event": run.event,
            "status": run.status,
            "conclusion": run.conclusion,
            "head_branch": run.branch,
            "head_sha": run.sha,
            "run_number": run.number,
            "run_attempt": run.attempt,
            "actor": self._by(run.actor),
            "triggering_actor": self._by(run.triggering),
            "check_suite_id": run.suite.id,
            "created_at": stamp(run.created_at),
            "updated_at": stamp(run.updated_at),
            "run_started_at": stamp(run.created_at),
            "pull_requests": [],
            "repository": self.repository(),
            "head_repository": self.repository(run.owner),
        }

    def job(self, job: Job) -> Body:
        """A job of a run; its id is the id of its check run."""
        run, check = self.world.runs[job.run], job.check
        return {
            **self.template("actions/get-job-for-workflow-run"),
            "id": job.id,
            "run_id": job.run,
            "run_attempt": job.attempt,
            "head_sha": run.sha,
            "head_branch": run.branch,
            "workflow_name": run.workflow.name,
            "name": job.name,
            "status": check.status,
            "conclusion": check.conclusion,
            "labels": list(job.labels),
            "runner_name": job.runner,
            "runner_id": 1 if job.runner else None,
            "created_at": stamp(check.created_at),
            "started_at": stamp(check.started_at or check.created_at),
            "completed_at": stamp(check.completed_at),
            "steps": [],
        }

    def artifact(self, artifact: Artifact) -> Body:
        """An artifact; its digest is of the zip that the download serves."""
        run, place = self.world.runs[artifact.run], f"/actions/artifacts/{artifact.id}"
        return {
            **self.template("actions/get-artifact"),
            "id": artifact.id,
            "name": artifact.name,
            "url": self.url(place),
            "archive_download_url": self.url(f"{place}/zip"),
            "size_in_bytes": len(artifact.content),
            "digest": f"sha256:{hashlib.sha256(artifact.content).hexdigest()}",
            "expired": self.world.is_expired(artifact),
            "created_at": stamp(artifact.created_at),
            "workflow_run": {"id": run.id, "head_branch": run.branch, "head_sha": run.sha},
        }

    def ref(self, name: str, sha: str) -> Body:
        """A git reference."""
        body = self.template("git/get-ref")
        body["object"].update(type="commit", sha=sha, url=self.url(f"/git/commits/{sha}"))
        return {**body, "ref": name, "url": self.url(f"/git/{name}")}

    def branch(self, name: str, sha: str, *, full: bool) -> Body:
        """A branch; a list shows less of it."""
        body = self.template("repos/get-branch" if full else "repos/list-branches")
        known = name in self.world.protections
        short = {"sha": sha, "url": self.url(f"/commits/{sha}")}
        commit = self.commit(self.world.commits[sha]) if full else short
        body.update(name=name, protected=known, commit=commit, protection={"enabled": known})
        return body

    def rule(self, branch: str) -> list[Body]:
        """spec repos/get-branch-rules: the rules that hold for a branch."""
        protection = self.world.protections.get(branch)
        if protection is None:
            return []
        checks = [
            {"context": name, **({"integration_id": app} if app else {})}
            for name, app in protection.checks
        ]
        parameters = {
            "required_status_checks": checks,
            "strict_required_status_checks_policy": False,
        }
        rule = {**self.template("repos/get-branch-rules"), "type": "required_status_checks"}
        return [{**rule, "parameters": parameters}]

    def permission(self, login: str) -> Body:
        """spec repos/get-collaborator-permission-level."""
        role = self.world.role(login)
        user = {**self.user(login), "role_name": role}
        return {"permission": LEGACY.get(role, role), "role_name": role, "user": user}

    def comparison(self, base: Commit, head: Commit) -> Body:
        """Commits and files between two commits."""
        world, body = self.world, self.template("repos/compare-commits-with-basehead")
        middle = world.merge_base(base.sha, head.sha)
        ahead = _before(world.ancestors(head.sha), middle)
        behind = _before(world.ancestors(base.sha), middle)
        word = "diverged" if ahead and behind else "ahead" if ahead else "behind"
        body.update(
            status=word if ahead or behind else "identical",
            ahead_by=len(ahead),
            behind_by=len(behind),
            total_commits=len(ahead),
            base_commit=self.commit(base),
            merge_base_commit=self.commit(world.commits[middle]),
            commits=[self.commit(world.commits[sha]) for sha in reversed(ahead)],
            files=[
                self.file(*item, world.commits[middle], head)
                for item in list(world.changed(middle, head.sha))[:MAX_COMPARED]
            ],
        )
        return body

    def environment(self, name: str) -> Body:
        """A deployment environment that only chosen branches may use."""
        policy = {"protected_branches": False, "custom_branch_policies": True}
        body = {**self.template("repos/get-environment"), "name": name}
        return {**body, "deployment_branch_policy": policy}

    def payload(self, event: Event) -> Body:
        """What a workflow finds in GITHUB_EVENT_PATH; the fields that are read, not all of them."""
        subject = self._subject(event)
        body = {"action": event.action, **subject, "repository": self.repository()}
        if not event.action:
            del body["action"]
        return {**body, "sender": self.user(event.actor.login)}

    def _subject(self, event: Event) -> Body:
        world, subject = self.world, event.subject
        if event.name == "pull_request":
            # docs, webhook pull_request: `before` and `after` belong to `synchronize`.
            moved = {"before": subject.before, "after": subject.sha}
            found = {"number": subject.number, "pull_request": self.pull(subject)}
            return {**found, **moved} if event.action == "synchronize" else found
        if event.name == "issue_comment":
            # docs: a comment on a pull request is an issue_comment; `issue.pull_request` tells.
            url = {"url": self.url(f"/pulls/{subject.number}")}
            issue = {**self.issue(world.pulls[subject.number]), "pull_request": url}
            return {"issue": issue, "comment": self.comment(subject)}
        if event.name == "workflow_run":
            return {"workflow_run": self.run(subject), "workflow": self.workflow(subject.workflow)}
        if event.name == "workflow_dispatch":
            return {"inputs": subject.inputs, "ref": f"refs/heads/{subject.branch}"}
        if event.name == "merge_group":
            sha = world.tip(subject)
            ref = f"refs/heads/{subject}"
            return {"merge_group": {"head_ref": ref, "head_sha": sha}}
        if event.name == "check_run":
            return {"check_run": self.check(subject)}
        if event.name == "status":
            return {"sha": subject.sha, **self.status(subject)}
        (owner, branch), sha = subject
        return {"ref": f"refs/heads/{branch}", "after": sha, "pusher": {"name": owner}}


def blob_name(content: bytes) -> str:
    """What git calls a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _before(commits: list[str], last: str) -> list[str]:
    return commits[: commits.index(last)] if last in commits else commits


def _drop(body: Body, *names: str) -> Body:
    return {key: value for key, value in body.items() if key not in names}
