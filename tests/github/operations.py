"""The operations: which part of the World a request means, and the reply's body."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.github.bodies import stamp
from tests.github.contract import Call
from tests.github.world import GREEN, Actor, App, Refusal, Run, Token

if TYPE_CHECKING:
    from tests.github.double import Double

MAX_FILES, MAX_COMMITS, MAX_RUNS = 3000, 250, 1000  # spec of pulls/list-files, -commits, runs


@dataclass
class Reply:
    """What an operation answers; `items` are served in pages, under `key` if there is one."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    items: list[Any] | None = None
    key: str = ""


@dataclass(frozen=True)
class Request:
    """A routed request, and who makes it."""

    call: Call
    token: Token

    @property
    def actor(self) -> Actor:
        """Who makes it."""
        return self.token.actor

    @property
    def body(self) -> dict[str, Any]:
        """The body, or nothing."""
        return self.call.body or {}

    def number(self, name: str) -> int:
        """A path parameter that is a number."""
        return int(self.call.path[name])


Answer = Callable[["Double", Request], Reply]
OPERATIONS: dict[str, Answer] = {}


def serves(*operations: str) -> Callable[[Answer], Answer]:
    """Register the answer to operations."""

    def register(answer: Answer) -> Answer:
        for operation in operations:
            OPERATIONS[operation] = answer
        return answer

    return register


@serves("repos/get")
def _repository(github: Double, _: Request) -> Reply:
    return Reply(body=github.bodies.repository())


@serves("rate-limit/get")
def _rate_limit(github: Double, _: Request) -> Reply:
    return Reply(body=github.bodies.template("rate-limit/get"))


@serves("users/get-authenticated")
def _user(github: Double, request: Request) -> Reply:
    keys = ("public_repos", "public_gists", "followers", "following")
    times = dict.fromkeys(("created_at", "updated_at"), stamp(github.world.now))
    words = dict.fromkeys(("bio", "blog", "company", "email", "hireable", "location", "name"))
    body = {**github.bodies.user(request.actor.login), **dict.fromkeys(keys, 0), **times, **words}
    return Reply(body={**body, "blog": ""})


@serves("apps/get-authenticated")
def _app(github: Double, request: Request) -> Reply:
    return Reply(body=github.bodies.app(_own_app(request)))


@serves("apps/get-repo-installation")
def _installation(github: Double, request: Request) -> Reply:
    app = _own_app(request)
    body = github.bodies.template("apps/get-repo-installation")
    body.update(id=app.installation, app_id=app.id, app_slug=app.slug, permissions=app.permissions)
    return Reply(body=body)


@serves("apps/create-installation-access-token")
def _access_token(github: Double, request: Request) -> Reply:
    app = _own_app(request)
    if request.number("installation_id") != app.installation:
        raise Refusal(404, "Not Found")
    token = github.world.installation_token(app, request.body.get("permissions"))
    body = {"token": token.text, "expires_at": stamp(token.expires)}
    return Reply(201, {**body, "permissions": token.permissions, "repository_selection": "all"})


def _own_app(request: Request) -> App:
    assert request.actor.app
    return request.actor.app


@serves("repos/get-collaborator-permission-level")
def _permission(github: Double, request: Request) -> Reply:
    login = request.call.path["username"]
    if login not in github.world.people:
        raise Refusal(404, f"{login} is not a user")
    return Reply(body=github.bodies.permission(login))


@serves("repos/list-branches")
def _branches(github: Double, _: Request) -> Reply:
    own = [(name, sha) for (owner, name), sha in github.world.branches.items()
           if owner == github.world.owner]  # fmt: skip
    items = [github.bodies.branch(name, sha, full=False) for name, sha in sorted(own)]
    return Reply(items=items)


@serves("repos/get-branch")
def _branch(github: Double, request: Request) -> Reply:
    name = request.call.path["branch"]
    sha = github.world.tip(name)
    if sha is None:
        raise Refusal(404, "Branch not found")
    return Reply(body=github.bodies.branch(name, sha, full=True))


@serves("repos/get-branch-rules")
def _rules(github: Double, request: Request) -> Reply:
    return Reply(items=github.bodies.rule(request.call.path["branch"]))


@serves("repos/get-status-checks-protection")
def _protection(github: Double, request: Request) -> Reply:
    protection = github.world.protections.get(request.call.path["branch"])
    if protection is None:
        raise Refusal(404, "Branch not protected")
    checks = [{"context": name, "app_id": app} for name, app in protection.checks]
    body = github.bodies.template("repos/get-status-checks-protection")
    return Reply(body={**body, "contexts": [c["context"] for c in checks], "checks": checks})


@serves("repos/get-environment")
def _environment(github: Double, request: Request) -> Reply:
    name = request.call.path["environment_name"]
    if name not in github.world.environments:
        raise Refusal(404, "Not Found")
    return Reply(body=github.bodies.environment(name))


@serves("repos/list-deployment-branch-policies")
def _policies(github: Double, request: Request) -> Reply:
    names = github.world.environments[request.call.path["environment_name"]]
    template = github.bodies.template("repos/list-deployment-branch-policies")
    item = template["branch_policies"][0]
    return Reply(items=[{**item, "name": name} for name in names], key="branch_policies")


@serves("actions/list-repo-variables")
def _variables(github: Double, _: Request) -> Reply:
    items = [_variable(github, name) for name in github.world.variables]
    return Reply(items=items, key="variables")


@serves("actions/get-repo-variable")
def _get_variable(github: Double, request: Request) -> Reply:
    return Reply(body=_variable(github, request.call.path["name"]))


def _variable(github: Double, name: str) -> dict[str, Any]:
    body = github.bodies.template("actions/get-repo-variable")
    return {**body, "name": name, "value": github.world.variables[name]}


@serves("actions/list-self-hosted-runners-for-repo")
def _runners(github: Double, _: Request) -> Reply:
    template = github.bodies.template("actions/list-self-hosted-runners-for-repo")
    return Reply(items=template["runners"], key="runners")


@serves("git/get-ref")
def _ref(github: Double, request: Request) -> Reply:
    name = request.call.path["ref"]
    sha = github.world.tip(name.removeprefix("heads/")) if name.startswith("heads/") else None
    if sha is None:
        raise Refusal(404, "Not Found")
    return Reply(body=github.bodies.ref(f"refs/{name}", sha))


@serves("git/list-matching-refs")
def _refs(github: Double, request: Request) -> Reply:
    # The description has no `page` here: everything comes at once.
    prefix = f"refs/{request.call.path['ref']}"
    own = sorted((f"refs/heads/{name}", sha) for (owner, name), sha
                 in github.world.branches.items() if owner == github.world.owner)  # fmt: skip
    shown = [github.bodies.ref(name, sha) for name, sha in own if name.startswith(prefix)]
    return Reply(body=shown)


@serves("git/get-tree")
def _tree(github: Double, request: Request) -> Reply:
    # spec: "the SHA1 value or ref (branch or tag) name of the tree".
    try:
        commit = github.world.resolve(request.call.path["tree_sha"])
    except Refusal as refusal:
        raise Refusal(404, "Not Found") from refusal
    return Reply(body=github.bodies.tree(commit))


@serves("repos/get-content")
def _content(github: Double, request: Request) -> Reply:
    commit = github.world.resolve(request.call.query.get("ref", github.world.default_branch))
    path = request.call.path["path"]
    if path in commit.files:
        return Reply(body=github.bodies.content(path, commit.files[path]))
    inside = [name for name in sorted(commit.files) if name.startswith(f"{path}/")]
    if not inside:
        raise Refusal(404, "Not Found")
    listed = [github.bodies.content(name, commit.files[name]) for name in inside[:1000]]
    return Reply(body=[{k: v for k, v in item.items() if k != "content"} for item in listed])


@serves("repos/get-commit")
def _commit(github: Double, request: Request) -> Reply:
    commit = github.world.resolve(request.call.path["ref"])
    return Reply(body=github.bodies.commit(commit, full=True))


@serves("repos/compare-commits-with-basehead")
def _compare(github: Double, request: Request) -> Reply:
    base, _, head = request.call.path["basehead"].partition("...")
    sides = [part.rsplit(":", 1) for part in (base, head)]
    found = []
    for side in sides:
        tip = github.world.tip(side[-1], side[0] if len(side) > 1 else None)
        found.append(github.world.resolve(tip or side[-1]))
    return Reply(body=github.bodies.comparison(*found))


@serves("repos/list-pull-requests-associated-with-commit")
def _pulls_of_commit(github: Double, request: Request) -> Reply:
    sha = github.world.resolve(request.call.path["commit_sha"]).sha
    found = [p for p in github.world.pulls.values() if sha in github.world.ancestors(p.sha)
             and (p.state == "open" or p.merged)]  # fmt: skip
    return Reply(items=[github.bodies.pull(pull, full=False) for pull in found])


@serves("pulls/list")
def _pulls(github: Double, request: Request) -> Reply:
    query = {"state": "open", **request.call.query}
    found = [
        pull
        for pull in sorted(github.world.pulls.values(), key=lambda pull: -pull.number)
        if query["state"] in (pull.state, "all")
        and query.get("base") in (None, pull.base)
        and query.get("head") in (None, f"{pull.owner}:{pull.head}")
    ]
    return Reply(items=[github.bodies.pull(pull, full=False) for pull in found])


@serves("pulls/get")
def _pull(github: Double, request: Request) -> Reply:
    pull = github.world.pulls[request.number("pull_number")]
    body = github.bodies.pull(pull)
    pull.computed = True
    return Reply(body=body)


@serves("pulls/update")
def _update_pull(github: Double, request: Request) -> Reply:
    pull = github.world.pulls[request.number("pull_number")]
    github.world.edit_pull(pull, request.actor, **request.body)
    return Reply(body=github.bodies.pull(pull))


@serves("pulls/list-files")
def _files(github: Double, request: Request) -> Reply:
    pull = github.world.pulls[request.number("pull_number")]
    base = github.world.merge_base(pull.base_sha, pull.sha)
    changed = list(github.world.changed(base, pull.sha))[:MAX_FILES]
    sides = (github.world.commits[base], github.world.commits[pull.sha])
    return Reply(items=[github.bodies.file(*item, *sides) for item in changed])


@serves("pulls/list-commits")
def _commits(github: Double, request: Request) -> Reply:
    world, pull = github.world, github.world.pulls[request.number("pull_number")]
    base = set(world.ancestors(pull.base_sha))
    found = [sha for sha in reversed(world.ancestors(pull.sha)) if sha not in base]
    items = [github.bodies.commit(world.commits[sha]) for sha in found[:MAX_COMMITS]]
    return Reply(items=items)


@serves("issues/get")
def _issue(github: Double, request: Request) -> Reply:
    return Reply(body=github.bodies.issue(github.world.pulls[request.number("issue_number")]))


@serves("issues/list-labels-on-issue")
def _labels(github: Double, request: Request) -> Reply:
    pull = github.world.pulls[request.number("issue_number")]
    return Reply(items=[github.bodies.label(name) for name in pull.labels])


@serves("issues/add-labels", "issues/set-labels")
def _put_labels(github: Double, request: Request) -> Reply:
    pull = github.world.pulls[request.number("issue_number")]
    given = request.body if isinstance(request.body, list) else request.body.get("labels", [])
    kept = pull.labels if request.call.operation.name == "issues/add-labels" else []
    pull.labels = list(dict.fromkeys([*kept, *given]))
    return _labels(github, request)


@serves("issues/remove-label")
def _remove_label(github: Double, request: Request) -> Reply:
    pull = github.world.pulls[request.number("issue_number")]
    if request.call.path["name"] not in pull.labels:
        raise Refusal(404, "Label does not exist")
    pull.labels.remove(request.call.path["name"])
    return Reply(body=[github.bodies.label(name) for name in pull.labels])


@serves("issues/list-comments", "issues/list-comments-for-repo")
def _comments(github: Double, request: Request) -> Reply:
    number = request.call.path.get("issue_number")
    since = request.call.query.get("since", "")
    if number is not None and int(number) not in github.world.pulls:
        raise Refusal(404, "Not Found")
    found = [
        comment
        for _, comment in sorted(github.world.comments.items())
        if number in (None, str(comment.number)) and (stamp(comment.updated_at) or "") >= since
    ]
    return Reply(items=[github.bodies.comment(comment) for comment in found])


@serves("issues/list-events")
def _issue_events(github: Double, request: Request) -> Reply:
    number = request.number("issue_number")
    if number not in github.world.pulls:
        raise Refusal(404, "Not Found")
    found = [item for item in github.world.force_pushes if item.number == number]
    return Reply(items=[github.bodies.force_push(item) for item in found])


@serves("issues/get-comment")
def _comment(github: Double, request: Request) -> Reply:
    return Reply(body=github.bodies.comment(github.world.comments[request.number("comment_id")]))


@serves("issues/create-comment")
def _create_comment(github: Double, request: Request) -> Reply:
    number, text = request.number("issue_number"), request.body["body"]
    comment = github.world.add_comment(number, request.actor, text)
    body = github.bodies.comment(comment)
    return Reply(201, body, {"Location": body["url"]})


@serves("issues/update-comment")
def _update_comment(github: Double, request: Request) -> Reply:
    comment = github.world.comments[request.number("comment_id")]
    github.world.edit_comment(comment, request.actor, request.body["body"])
    return Reply(body=github.bodies.comment(comment))


@serves("issues/delete-comment")
def _delete_comment(github: Double, request: Request) -> Reply:
    comment = github.world.comments[request.number("comment_id")]
    github.world.delete_comment(comment, request.actor)
    return Reply(204)


@serves("reactions/list-for-issue-comment")
def _reactions(github: Double, request: Request) -> Reply:
    comment, content = request.number("comment_id"), request.call.query.get("content")
    found = [item for item in github.world.reactions.values()
             if item.comment == comment and content in (None, item.content)]  # fmt: skip
    return Reply(items=[github.bodies.reaction(item) for item in found])


@serves("reactions/create-for-issue-comment")
def _react(github: Double, request: Request) -> Reply:
    comment = github.world.comments[request.number("comment_id")]
    reaction, new = github.world.react(comment, request.actor, request.body["content"])
    return Reply(201 if new else 200, github.bodies.reaction(reaction))


@serves("reactions/delete-for-issue-comment")
def _unreact(github: Double, request: Request) -> Reply:
    del github.world.reactions[request.number("reaction_id")]
    return Reply(204)


@serves("checks/create")
def _create_check(github: Double, request: Request) -> Reply:
    check = github.world.create_check(request.actor, request.body)
    return Reply(201, github.bodies.check(check))


@serves("checks/update")
def _update_check(github: Double, request: Request) -> Reply:
    check = github.world.checks[request.number("check_run_id")]
    return Reply(
        body=github.bodies.check(github.world.update_check(check, request.actor, request.body))
    )


@serves("checks/get")
def _check(github: Double, request: Request) -> Reply:
    github.world.age_checks()
    return Reply(body=github.bodies.check(github.world.checks[request.number("check_run_id")]))


@serves("checks/rerequest-run")
def _rerequest(github: Double, request: Request) -> Reply:
    check = github.world.checks[request.number("check_run_id")]
    github.world.rerequest_check(check, request.actor)
    return Reply(201, {})


@serves("checks/list-annotations")
def _annotations(github: Double, request: Request) -> Reply:
    check = github.world.checks[request.number("check_run_id")]
    return Reply(items=[github.bodies.annotation(item) for item in check.annotations])


@serves("checks/list-for-ref", "checks/list-for-suite")
def _checks(github: Double, request: Request) -> Reply:
    query, path = {"filter": "latest", **request.call.query}, request.call.path
    if "ref" in path:
        sha, suite = github.world.resolve(path["ref"]).sha, None
    else:
        suite = int(path["check_suite_id"])
        sha = next(item.sha for item in github.world.suites if item.id == suite)
    latest = query["filter"] == "latest"
    found = [
        check
        for check in (github.world.latest_checks if latest else github.world.checks_of)(sha)
        if suite in (None, check.suite.id)
        and query.get("check_name") in (None, check.name)
        and query.get("status") in (None, check.status)
        and query.get("app_id") in (None, str(check.suite.app.id))
    ]
    # Not documented; the newest first is what the service shows.
    return Reply(items=[github.bodies.check(item) for item in reversed(found)], key="check_runs")


@serves("checks/list-suites-for-ref")
def _suites(github: Double, request: Request) -> Reply:
    sha = github.world.resolve(request.call.path["ref"]).sha
    app = request.call.query.get("app_id")
    found = [item for item in github.world.suites
             if item.sha == sha and app in (None, str(item.app.id))]  # fmt: skip
    return Reply(items=[github.bodies.suite(item) for item in found], key="check_suites")


@serves("checks/get-suite")
def _suite(github: Double, request: Request) -> Reply:
    wanted = request.number("check_suite_id")
    found = [item for item in github.world.suites if item.id == wanted]
    if not found:
        raise Refusal(404, "Not Found")
    return Reply(body=github.bodies.suite(found[0]))


@serves("repos/create-commit-status")
def _create_status(github: Double, request: Request) -> Reply:
    status = github.world.add_status(request.actor, request.call.path["sha"], request.body)
    return Reply(201, github.bodies.status(status))


@serves("repos/list-commit-statuses-for-ref")
def _statuses(github: Double, request: Request) -> Reply:
    sha = github.world.resolve(request.call.path["ref"]).sha
    return Reply(items=[github.bodies.status(item) for item in github.world.statuses_of(sha)])


@serves("repos/get-combined-status-for-ref")
def _combined(github: Double, request: Request) -> Reply:
    return Reply(body=github.bodies.combined(github.world.resolve(request.call.path["ref"]).sha))


@serves("actions/list-repo-workflows")
def _workflows(github: Double, _: Request) -> Reply:
    items = [github.bodies.workflow(item) for item in github.world.workflows.values()]
    return Reply(items=items, key="workflows")


@serves("actions/get-workflow")
def _workflow(github: Double, request: Request) -> Reply:
    found = github.world.find_workflow(request.call.path["workflow_id"])
    return Reply(body=github.bodies.workflow(found))


@serves("actions/create-workflow-dispatch")
def _dispatch(github: Double, request: Request) -> Reply:
    body, key = request.body, request.call.path["workflow_id"]
    run = github.world.dispatch(request.actor, key, body["ref"], body.get("inputs", {}))
    if not body.get("return_run_details"):
        return Reply(204)
    url = github.bodies.url(f"/actions/runs/{run.id}")
    return Reply(body={"workflow_run_id": run.id, "run_url": url, "html_url": url})


@serves("actions/list-workflow-runs", "actions/list-workflow-runs-for-repo")
def _runs(github: Double, request: Request) -> Reply:
    query, key = request.call.query, request.call.path.get("workflow_id")
    workflow = github.world.find_workflow(key) if key else None
    found = [
        run
        for run in sorted(github.world.runs.values(), key=lambda run: -run.id)
        if workflow in (None, run.workflow) and _run_matches(run, query)
    ]
    filtered = query.keys() - {"page", "per_page"}
    # spec: at most 1,000 results as soon as there is a filter.
    found = found[:MAX_RUNS] if filtered else found
    return Reply(items=[github.bodies.run(run) for run in found], key="workflow_runs")


def _run_matches(run: Run, query: Mapping[str, str]) -> bool:
    created, when = query.get("created", ""), stamp(run.created_at) or ""
    assert not created or re.match(r"(>=|<=|>|<)\d{4}-", created), f"created {created}"
    bound = created.lstrip("<>=")
    fits = not created or (when >= bound if created.startswith(">") else when <= bound)
    return (
        fits
        and query.get("event") in (None, run.event)
        and query.get("branch") in (None, run.branch)
        and query.get("head_sha") in (None, run.sha)
        and query.get("actor") in (None, run.actor.login)
        and query.get("status") in (None, run.status, run.conclusion)
        and query.get("check_suite_id") in (None, str(run.suite.id))
    )


@serves("actions/get-workflow-run", "actions/get-workflow-run-attempt")
def _run(github: Double, request: Request) -> Reply:
    run = github.world.runs[request.number("run_id")]
    attempt = int(request.call.path.get("attempt_number", run.attempt))
    if attempt > run.attempt:
        raise Refusal(404, "Not Found")
    body = github.bodies.run(run)
    if attempt < run.attempt:
        conclusions = {job.check.conclusion for job in github.world.attempt_jobs(run, attempt)}
        bad = sorted(str(item) for item in conclusions - GREEN)
        body.update(status="completed", conclusion=bad[0] if bad else "success")
    return Reply(body={**body, "run_attempt": attempt})


@serves("actions/list-jobs-for-workflow-run")
def _jobs(github: Double, request: Request) -> Reply:
    run = github.world.runs[request.number("run_id")]
    everything = request.call.query.get("filter") == "all"
    jobs = run.jobs if everything else github.world.attempt_jobs(run)
    return Reply(items=[github.bodies.job(job) for job in jobs], key="jobs")


@serves("actions/get-job-for-workflow-run")
def _job(github: Double, request: Request) -> Reply:
    wanted = request.number("job_id")
    jobs = [job for run in github.world.runs.values() for job in run.jobs if job.id == wanted]
    if not jobs:
        raise Refusal(404, "Not Found")
    return Reply(body=github.bodies.job(jobs[0]))


@serves("actions/cancel-workflow-run", "actions/force-cancel-workflow-run")
def _cancel(github: Double, request: Request) -> Reply:
    run = github.world.runs[request.number("run_id")]
    github.world.cancel(run, force="force" in request.call.operation.name)
    return Reply(202, {})


@serves("actions/re-run-workflow", "actions/re-run-workflow-failed-jobs")
def _rerun(github: Double, request: Request) -> Reply:
    run = github.world.runs[request.number("run_id")]
    failed_only = request.call.operation.name.endswith("failed-jobs")
    github.world.rerun(run, request.actor, failed_only=failed_only)
    return Reply(201, {})


@serves("actions/re-run-job-for-workflow-run")
def _rerun_job(github: Double, request: Request) -> Reply:
    wanted = request.number("job_id")
    for run in github.world.runs.values():
        if any(job.id == wanted for job in run.jobs):
            github.world.rerun(run, request.actor, failed_only=True)
            return Reply(201, {})
    raise Refusal(404, "Not Found")


@serves("actions/list-workflow-run-artifacts", "actions/list-artifacts-for-repo")
def _artifacts(github: Double, request: Request) -> Reply:
    run, name = request.call.path.get("run_id"), request.call.query.get("name")
    found = [item for _, item in sorted(github.world.artifacts.items(), reverse=True)
             if run in (None, str(item.run)) and name in (None, item.name)]  # fmt: skip
    return Reply(items=[github.bodies.artifact(item) for item in found], key="artifacts")


@serves("actions/get-artifact")
def _artifact(github: Double, request: Request) -> Reply:
    return Reply(body=github.bodies.artifact(github.world.artifacts[request.number("artifact_id")]))


@serves("actions/download-artifact")
def _download(github: Double, request: Request) -> Reply:
    artifact = github.world.artifacts[request.number("artifact_id")]
    if github.world.is_expired(artifact):
        raise Refusal(410, "Artifact has expired")
    return Reply(302, headers={"Location": github.link(artifact)})
