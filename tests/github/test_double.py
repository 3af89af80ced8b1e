"""The double serves every operation by the contract, and changes state by the rules it cites."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.github.contract import API_VERSION, load
from tests.github.double import Double, Fault
from tests.github.operations import OPERATIONS
from tests.github.permissions import PERMISSIONS
from tests.github.world import Actor, Refusal, Run, World, job_permissions

EVERYTHING = {
    "actions": "write", "administration": "read", "checks": "write", "contents": "read",
    "issues": "write", "pull-requests": "write", "statuses": "write", "variables": "read",
}  # fmt: skip
READY = "fla-bot/ready"


class Caller:
    """Sends plain requests, without a client's ideas."""

    def __init__(self, github: Double, token: str) -> None:
        self.github, self.token = github, token

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and body of a reply; `~` stands for the repository."""
        url = self.github.url + path.replace("~", f"/repos/{self.github.world.full_name}")
        headers = {"Authorization": f"token {self.token}", "X-GitHub-Api-Version": API_VERSION}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)
        opener = urllib.request.build_opener(_NoRedirect)
        try:
            with opener.open(request, timeout=10) as reply:
                text = reply.read()
                return reply.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
                return error.code, json.loads(text) if text else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


@pytest.fixture
def call(github: Double) -> Caller:
    """Requests with a token that may do everything a job may."""
    return Caller(github, github.world.job_token(EVERYTHING))


@pytest.fixture
def busy(github: Double) -> Double:
    """A double with one of everything."""
    world = github.world
    world.person("mona", "maintain")
    pull = world.open_pull("alice", {"a.py": b"x = 1\n"})
    pull.labels.append("bug")
    comment = world.add_comment(1, Actor("mona"), "/fla-bot help")
    world.react(comment, world.job_actor(), "+1")
    world.create_check(
        world.job_actor(), {"name": READY, "head_sha": pull.sha, "output": _output(1)}
    )
    world.add_status(world.job_actor(), pull.sha, {"state": "pending", "context": READY})
    world.workflow("run.yml", inputs=("plan",), run_name="fla-bot ${{ inputs.plan }}")
    run = world.dispatch(world.job_actor(), "run.yml", "main", {"plan": "p1"})
    world.begin(run)
    world.finish(run, "failure", artifacts={"evidence": b"PK"})
    world.protect("main", (READY, 15368))
    world.variables["FLA_BOT"] = "on"
    world.environments["fla-bot"] = ["main"]
    return github


def _output(annotations: int) -> dict[str, Any]:
    note = {"path": "a.py", "start_line": 1, "end_line": 1, "annotation_level": "failure"}
    notes = [{**note, "message": "m"}] * annotations
    return {"title": "t", "summary": "s", "annotations": notes}


def _values(github: Double) -> dict[str, str]:
    world = github.world
    check = next(item for item in world.checks.values() if item.name == READY)
    run = next(iter(world.runs.values()))
    return {
        "owner": world.owner, "repo": world.name, "branch": "main", "attempt_number": "1",
        "pull_number": "1", "issue_number": "1", "name": "bug", "username": "mona",
        "comment_id": str(next(iter(world.comments))), "ref": world.pulls[1].sha,
        "reaction_id": str(next(iter(world.reactions))), "sha": world.pulls[1].sha,
        "commit_sha": world.pulls[1].sha, "check_run_id": str(check.id),
        "check_suite_id": str(check.suite.id), "run_id": str(run.id), "workflow_id": "run.yml",
        "job_id": str(run.jobs[0].id), "artifact_id": str(next(iter(world.artifacts))),
        "archive_format": "zip", "path": "README.md", "basehead": "main...alice:change-1",
        "environment_name": "fla-bot",
    }  # fmt: skip


SPECIAL = {
    "git/get-ref": {"ref": "heads/main"},
    "git/get-tree": {"tree_sha": "main"},
    "git/list-matching-refs": {"ref": "heads/"},
    "actions/get-repo-variable": {"name": "FLA_BOT"},
}
BODIES: dict[str, Any] = {
    "actions/create-workflow-dispatch": {"ref": "main", "inputs": {"plan": "p"}},
    "checks/create": {"name": "x", "head_sha": "main", "status": "in_progress"},
    "checks/update": {"status": "completed", "conclusion": "success"},
    "issues/add-labels": {"labels": ["good"]},
    "issues/set-labels": ["good"],
    "issues/create-comment": {"body": "hello"},
    "issues/update-comment": {"body": "hello"},
    "pulls/update": {"body": "new text"},
    "reactions/create-for-issue-comment": {"content": "eyes"},
    "repos/create-commit-status": {"state": "success", "context": READY, "description": "d"},
}
OF_APPS = {name for name, needed in PERMISSIONS.items() if needed == ("jwt",)}
# A run that has ended can be run again and not be cancelled; both are refusals by the contract.
STATUS = {
    "actions/cancel-workflow-run": 409,
    "actions/force-cancel-workflow-run": 409,
    "users/get-authenticated": 403,
}


def _path(github: Double, name: str) -> str:
    path = load().by_name[name].path
    for part, value in {**_values(github), **SPECIAL.get(name, {})}.items():
        path = path.replace(f"{{{part}}}", value)
    return path


@pytest.mark.parametrize("name", sorted(set(load().by_name) - OF_APPS))
def test_every_operation_is_served_by_the_contract(busy: Double, name: str) -> None:
    call = Caller(busy, busy.world.job_token(EVERYTHING))
    method = load().by_name[name].method
    status, body = call(method, _path(busy, name), BODIES.get(name))
    wanted = STATUS.get(name)
    assert status == wanted if wanted else status in (200, 201, 202, 204, 302), (status, body)
    assert busy.log[-1].operation == name


@pytest.mark.parametrize("name", sorted(set(load().by_name) - OF_APPS - {"rate-limit/get"}))
def test_every_operation_needs_its_permission(busy: Double, name: str) -> None:
    """A token without exactly this permission gets 403, and the reply names what would do."""
    needed = {item.partition("=")[0] for item in PERMISSIONS[name]}
    if needed == {"metadata"}:
        return  # every token has it
    rest = {k: v for k, v in EVERYTHING.items() if k.replace("-", "_") not in needed}
    call = Caller(busy, busy.world.job_token(rest))
    status, body = call(load().by_name[name].method, _path(busy, name), BODIES.get(name))
    assert (status, body["message"]) == (403, "Resource not accessible by integration")


def test_reading_permission_does_not_write(busy: Double) -> None:
    reader = Caller(busy, busy.world.job_token(dict.fromkeys(EVERYTHING, "read")))
    for name, body in BODIES.items():
        status, _ = reader(load().by_name[name].method, _path(busy, name), body)
        assert status == 403, name


def test_every_operation_of_the_contract_has_an_answer_and_a_permission() -> None:
    assert set(load().by_name) == set(PERMISSIONS)
    assert set(load().by_name) == set(OPERATIONS)


# What breaks the contract is recorded, whatever the client makes of the reply.


def test_wrong_request_is_a_violation_even_when_swallowed(github: Double, call: Caller) -> None:
    github.world.open_pull("alice")
    with github.violation("Body is too long"):
        assert call("POST", "~/issues/1/comments", {"body": "x" * 65_537})[0] == 422
    with github.violation("no such operation"):
        assert call("GET", "~/nowhere")[0] == 404
    with github.violation("API version None"):
        url = f"{github.url}/repos/{github.world.full_name}"
        token = {"Authorization": f"token {call.token}"}
        urllib.request.urlopen(urllib.request.Request(url, headers=token)).close()
    with pytest.raises(AssertionError, match="no violation"), github.violation("anything"):
        call("GET", "~")


def test_swallowed_violation_fails_at_the_end() -> None:
    with Double() as github:
        token = github.world.job_token(EVERYTHING)
        Caller(github, token)("GET", "~/pulls?stat=open")
        with pytest.raises(AssertionError, match="unknown query key `stat`"):
            github.check()


def test_wrong_reply_of_the_double_itself_is_a_violation(
    github: Double, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(github.bodies, "repository", lambda: {"id": "one"})
    with github.violation("repos/get 200"):
        call("GET", "~")


# Tokens.


def test_tokens_end(github: Double) -> None:
    world = github.world
    app = world.app("fla-bot", {"checks": "write"})
    token = world.installation_token(app)
    call = Caller(github, token.text)
    assert call("GET", "~")[0] == 200
    world.advance(minutes=61)
    assert call("GET", "~")[0] == 401
    assert Caller(github, "nonsense")("GET", "~")[0] == 401


def test_job_token_has_exactly_its_yaml_permissions(github: Double) -> None:
    flow = {
        "permissions": {"contents": "read", "issues": "write"},
        "jobs": {"scope": {}, "plan": {"permissions": {"checks": "write"}}, "none": {}},
    }
    assert job_permissions(flow, "scope") == {"contents": "read", "issues": "write"}
    assert job_permissions(flow, "scope", fork=True) == {"contents": "read", "issues": "read"}
    assert job_permissions(flow, "plan") == {"checks": "write"}
    assert job_permissions({**flow, "permissions": {}}, "scope") == {}
    assert job_permissions({"jobs": flow["jobs"]}, "none") == {"contents": "read"}
    assert job_permissions({**flow, "permissions": "read-all"}, "none")["statuses"] == "read"
    with pytest.raises(ValueError, match="administration"):
        job_permissions({**flow, "permissions": {"administration": "read"}}, "none")
    github.world.open_pull("alice")
    plan = Caller(github, github.world.job_token_of(flow, "plan"))
    assert plan("GET", "~")[0] == 200
    assert plan("GET", "~/contents/README.md")[0] == 403
    assert plan("POST", "~/check-runs", {"name": "x", "head_sha": "main"})[0] == 201


def test_events_can_be_handed_to_a_workflow(busy: Double) -> None:
    world = busy.world
    world.enqueue(world.pulls[1])
    world.finish(world.start_run(world.workflows["run.yml"], "push", Actor("mona"), "main",
                                 world.tip("main") or ""))  # fmt: skip
    payloads = {event.name: busy.bodies.payload(event) for event in world.events + world.silent}
    for name in ("pull_request", "issue_comment", "workflow_run", "check_run", "merge_group",
                 "workflow_dispatch", "push", "status"):  # fmt: skip
        assert payloads[name]["repository"]["full_name"] == world.full_name, name
        assert payloads[name]["sender"]["login"], name
    assert payloads["issue_comment"]["issue"]["pull_request"]["url"].endswith("/pulls/1")
    assert payloads["pull_request"]["pull_request"]["head"]["repo"]["fork"]
    assert payloads["merge_group"]["merge_group"]["head_ref"].startswith("refs/heads/gh-readonly")


def test_installation_token_is_never_wider_than_its_app(github: Double) -> None:
    app = github.world.app("fla-bot", {"checks": "read", "issues": "write"})
    assert github.world.installation_token(app, {"issues": "read"}).permissions == {
        "metadata": "read",
        "issues": "read",
    }
    with pytest.raises(Refusal, match="not granted"):
        github.world.installation_token(app, {"checks": "write"})


def test_public_repository_can_be_read_without_permissions() -> None:
    with Double(World(public=True)) as github:
        github.world.open_pull("alice")
        call = Caller(github, github.world.job_token({}))
        assert call("GET", "~/pulls/1")[0] == 200
        assert call("GET", "~/actions/artifacts/1/zip")[0] == 403
        assert call("POST", "~/issues/1/comments", {"body": "x"})[0] == 403
        github.check()


def test_persons_go_by_their_role(github: Double) -> None:
    world = github.world
    pull = world.open_pull("alice")
    for login, role in (("alice", "read"), ("walt", "write")):
        world.person(login, role)
    alice, walt = (Caller(github, world.person_token(name)) for name in ("alice", "walt"))
    assert alice("PATCH", "~/pulls/1", {"body": "mine"})[0] == 200
    assert alice("POST", f"~/statuses/{pull.sha}", {"state": "success"})[0] == 403
    assert alice("GET", "~/collaborators/walt/permission")[0] == 403
    assert walt("POST", f"~/statuses/{pull.sha}", {"state": "success"})[0] == 201
    assert walt("POST", "~/check-runs", {"name": "x", "head_sha": pull.sha})[0] == 403


@pytest.mark.parametrize(
    ("role", "permission"),
    [("admin", "admin"), ("maintain", "write"), ("triage", "read"), ("none", "none")],
)
def test_permission_endpoint_hides_two_roles_in_its_old_field(
    github: Double, call: Caller, role: Any, permission: str
) -> None:
    github.world.person("mona", role)
    _, body = call("GET", "~/collaborators/mona/permission")
    assert (body["permission"], body["role_name"]) == (permission, role)
    assert call("GET", "~/collaborators/nobody/permission")[0] == 404


# Events.


def test_github_token_starts_nothing_but_dispatches(github: Double, call: Caller) -> None:
    world = github.world
    pull = world.open_pull("alice")
    world.workflow("run.yml")
    world.take_events()
    call("POST", "~/issues/1/comments", {"body": "x"})
    call("PATCH", "~/pulls/1", {"body": "x"})
    call("POST", f"~/statuses/{pull.sha}", {"state": "success"})
    call("POST", "~/check-runs", {"name": "x", "head_sha": pull.sha, "status": "queued"})
    assert world.take_events() == []
    call("POST", "~/actions/workflows/run.yml/dispatches", {"ref": "main"})
    assert [event.name for event in world.take_events()] == ["workflow_dispatch"]
    (run,) = world.runs.values()
    world.begin(run)
    world.finish(run)
    assert world.take_events() == []


def test_persons_and_apps_start_workflows(github: Double) -> None:
    world = github.world
    world.person("mona", "write")
    world.open_pull("alice")
    app = world.app("fla-bot", {"issues": "write"})
    world.take_events()
    bot = Caller(github, world.installation_token(app).text)
    bot("POST", "~/issues/1/comments", {"body": "x"})
    world.workflow("run.yml")
    world.finish(world.dispatch(Actor("mona"), "run.yml", "main", {}))
    events = world.take_events("issue_comment", "workflow_run")
    assert [(event.name, event.action) for event in events] == [
        ("issue_comment", "created"),
        ("workflow_run", "requested"),
        ("workflow_run", "completed"),
    ]


# Pull requests.


def test_head_moves_with_its_branch_and_base_by_retarget(github: Double, call: Caller) -> None:
    world = github.world
    pull = world.open_pull("alice")
    world.push("release", start=world.tip("main"))
    assert call("GET", "~/pulls/1")[1]["mergeable"] is None
    assert call("GET", "~/pulls/1")[1]["mergeable"] is True
    world.take_events()
    head = world.push(pull.head, {"b.py": b""}, owner="alice")
    world.edit_pull(pull, Actor("alice"), base="release")
    _, body = call("GET", "~/pulls/1")
    assert (body["head"]["sha"], body["base"]["ref"]) == (head, "release")
    assert body["mergeable"] is None
    actions = [event.action for event in world.take_events("pull_request")]
    assert actions == ["synchronize", "edited"]
    assert call("PATCH", "~/pulls/1", {"base": "nowhere"})[0] == 422


def test_deleted_fork_leaves_null(github: Double, call: Caller) -> None:
    github.world.open_pull("alice")
    github.world.delete_fork("alice")
    assert call("GET", "~/pulls/1")[1]["head"]["repo"] is None
    assert call("GET", "~/pulls")[1][0]["head"]["repo"] is None


def test_draft_close_and_lists(github: Double, call: Caller) -> None:
    world = github.world
    one, two = world.open_pull("alice"), world.open_pull("bob", fork=False, draft=True)
    assert [pull["number"] for pull in call("GET", "~/pulls")[1]] == [2, 1]
    assert call("GET", f"~/pulls?head=alice:{one.head}")[1][0]["number"] == 1
    world.set_draft(two, Actor("bob"), draft=False)
    world.edit_pull(one, Actor("alice"), state="closed")
    assert [pull["number"] for pull in call("GET", "~/pulls")[1]] == [2]
    assert call("GET", "~/pulls/1/files")[1][0]["filename"] == "a.py"
    assert call("GET", "~/pulls/1/commits")[1][0]["sha"] == one.sha
    assert call("GET", "~/compare/main...alice:change-1")[1]["status"] == "ahead"


def test_edited_comment_keeps_author_and_shows_in_its_times(github: Double, call: Caller) -> None:
    world = github.world
    world.person("mona", "maintain")
    world.open_pull("alice")
    comment = world.add_comment(1, Actor("alice"), "/fla-bot run")
    world.edit_comment(comment, Actor("mona"), "/fla-bot wait")
    assert comment.updated_at == comment.created_at  # within one second it does not show
    world.advance(seconds=1)
    world.edit_comment(comment, Actor("mona"), "/fla-bot approve")
    with pytest.raises(Refusal):
        world.edit_comment(comment, Actor("stranger"), "x")
    _, body = call("GET", f"~/issues/comments/{comment.id}")
    assert body["user"]["login"] == "alice"
    assert body["created_at"] != body["updated_at"]
    assert comment.edits == [("mona", "/fla-bot run"), ("mona", "/fla-bot wait")]


def test_comments_of_apps_say_so(github: Double, call: Caller) -> None:
    github.world.open_pull("alice")
    _, body = call("POST", "~/issues/1/comments", {"body": "x"})
    assert body["user"]["login"] == "github-actions[bot]"
    assert body["performed_via_github_app"]["id"] == 15368


def test_second_reaction_of_a_kind_is_the_first(github: Double, call: Caller) -> None:
    github.world.open_pull("alice")
    comment = github.world.add_comment(1, Actor("alice"), "x").id
    path = f"~/issues/comments/{comment}/reactions"
    assert [call("POST", path, {"content": "eyes"})[0] for _ in range(2)] == [201, 200]
    assert len(call("GET", path)[1]) == 1


# Checks, statuses and what they are worth.


@pytest.mark.parametrize(
    ("conclusion", "state"),
    [
        ("success", "clean"),
        ("neutral", "clean"),
        ("skipped", "clean"),
        ("failure", "blocked"),
        ("cancelled", "blocked"),
        ("timed_out", "blocked"),
        ("action_required", "blocked"),
    ],
)
def test_neutral_and_skipped_are_as_good_as_success(
    github: Double, conclusion: str, state: str
) -> None:
    world = github.world
    world.protect("main", (READY, None))
    pull = world.open_pull("alice")
    assert world.merge_state(pull) == "blocked"
    body = {"name": READY, "head_sha": pull.sha, "conclusion": conclusion}
    world.create_check(world.job_actor(), body)
    assert world.merge_state(pull) == state


def test_only_a_pinned_app_makes_a_gate(github: Double) -> None:
    """A fork's workflow with a job of our name, and a person's status, against both rules."""
    world = github.world
    app = world.app("fla-bot", {"checks": "write"})
    pull = world.open_pull("alice")
    forged = world.workflow("forged.yml", on=("pull_request",), jobs=((READY, ("ubuntu",)),))
    run = world.start_run(forged, "pull_request", Actor("alice"), pull.head, pull.sha)
    world.finish(run)
    world.protect("main", (READY, None))
    assert world.merge_state(pull) == "clean"
    world.protect("main", (READY, app.id))
    assert world.merge_state(pull) == "blocked"
    world.add_status(Actor("walt"), pull.sha, {"state": "success", "context": READY})
    assert world.merge_state(pull) == "blocked"
    body = {"name": READY, "head_sha": pull.sha, "conclusion": "success"}
    world.create_check(world.app_actor(app), body)
    assert world.merge_state(pull) == "clean"
    world.push(pull.head, {"b.py": b""}, owner="alice")
    assert world.merge_state(pull) == "blocked"


def test_check_and_status_of_one_name_are_both_required(github: Double) -> None:
    world = github.world
    world.protect("main", (READY, None))
    pull = world.open_pull("alice")
    world.create_check(
        world.job_actor(), {"name": READY, "head_sha": pull.sha, "conclusion": "success"}
    )
    world.add_status(world.job_actor(), pull.sha, {"state": "failure", "context": READY})
    assert world.merge_state(pull) == "blocked"


def test_check_belongs_to_its_app(github: Double, call: Caller) -> None:
    world = github.world
    app = world.app("fla-bot", {"checks": "write"})
    pull = world.open_pull("alice")
    check = world.create_check(world.app_actor(app), {"name": READY, "head_sha": pull.sha})
    assert call("PATCH", f"~/check-runs/{check.id}", {"status": "in_progress"})[0] == 403
    assert call("GET", f"~/check-runs/{check.id}")[1]["app"]["id"] == app.id


def test_job_token_checks_land_in_the_oldest_actions_suite(github: Double, call: Caller) -> None:
    world = github.world
    pull = world.open_pull("alice")
    other = world.workflow("other.yml", on=("pull_request",))
    run = world.start_run(other, "pull_request", Actor("alice"), pull.head, pull.sha)
    _, body = call("POST", "~/check-runs", {"name": READY, "head_sha": pull.sha})
    assert body["check_suite"]["id"] == run.suite.id
    assert [suite["id"] for suite in call("GET", f"~/commits/{pull.sha}/check-suites")[1]
            ["check_suites"]] == [run.suite.id]  # fmt: skip


def test_latest_shows_the_newest_of_a_name(github: Double, call: Caller) -> None:
    pull = github.world.open_pull("alice")
    for mark in ("one", "two"):
        call("POST", "~/check-runs", {"name": READY, "head_sha": pull.sha, "external_id": mark})
    path = f"~/commits/{pull.sha}/check-runs"
    latest, every = call("GET", path)[1], call("GET", f"{path}?filter=all")[1]
    assert [run["external_id"] for run in latest["check_runs"]] == ["two"]
    assert every["total_count"] == 2


def test_annotations_add_up(github: Double, call: Caller) -> None:
    pull = github.world.open_pull("alice")
    _, check = call("POST", "~/check-runs", {"name": READY, "head_sha": pull.sha})
    for _ in range(2):
        call("PATCH", f"~/check-runs/{check['id']}", {"output": _output(3)})
    assert len(call("GET", f"~/check-runs/{check['id']}/annotations")[1]) == 6


def test_waiting_checks_become_stale_and_do_not_pass(github: Double, call: Caller) -> None:
    world = github.world
    world.protect("main", (READY, None))
    pull = world.open_pull("alice")
    check = world.create_check(
        world.job_actor(), {"name": READY, "head_sha": pull.sha, "status": "in_progress"}
    )
    world.advance(days=13)
    assert check.status == "in_progress"
    world.advance(days=2)
    late = Caller(github, world.job_token({"checks": "read"}))
    assert late("GET", f"~/check-runs/{check.id}")[1]["conclusion"] == "stale"
    assert world.merge_state(pull) == "blocked"


def test_statuses_are_newest_first_and_limited(
    github: Double, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.github.world.STATUSES_PER_CONTEXT", 2)
    pull = github.world.open_pull("alice")
    path = f"~/statuses/{pull.sha}"
    states = [call("POST", path, {"state": state, "context": READY})[0]
              for state in ("pending", "success", "failure")]  # fmt: skip
    assert states == [201, 201, 422]
    shown = call("GET", f"~/commits/{pull.sha}/statuses")[1]
    assert [item["state"] for item in shown] == ["success", "pending"]
    assert call("GET", f"~/commits/{pull.sha}/status")[1]["state"] == "success"


# Workflow runs.


def test_dispatch_refusals_are_githubs(github: Double, call: Caller) -> None:
    github.world.workflow("run.yml", inputs=("plan",))
    github.world.workflow("push.yml", on=("push",))
    path = "~/actions/workflows/{}/dispatches"
    wrong = [
        ("run.yml", {"ref": "gone"}, "No ref found"),
        ("run.yml", {"ref": "main", "inputs": {"x": "y"}}, "Unexpected inputs"),
        ("push.yml", {"ref": "main"}, "does not have 'workflow_dispatch'"),
    ]
    for file, body, words in wrong:
        status, reply = call("POST", path.format(file), body)
        assert status == 422
        assert words in reply["message"]
    assert call("POST", path.format("none.yml"), {"ref": "main"})[0] == 404
    assert call("POST", path.format("run.yml"), {"ref": "main"})[0] == 204
    _, details = call("POST", path.format("run.yml"), {"ref": "main", "return_run_details": True})
    assert details["workflow_run_id"] in github.world.runs


@pytest.fixture
def failed(github: Double) -> Run:
    """A run of two jobs, one of which failed."""
    world = github.world
    jobs = (("gate", ("ubuntu",)), ("lane", ("gpu", "sm90")))
    flow = world.workflow("run.yml", jobs=jobs, inputs=("plan",))
    run = world.dispatch(world.job_actor(), flow.file, "main", {"plan": "p"})
    world.begin(run)
    world.finish(run, "failure", jobs={"gate": "success"})
    return run


def test_rerun_is_a_new_attempt_of_the_same_run(github: Double, call: Caller, failed: Run) -> None:
    github.world.push("main", {"later.py": b""})
    assert call("POST", f"~/actions/runs/{failed.id}/rerun-failed-jobs")[0] == 201
    _, run = call("GET", f"~/actions/runs/{failed.id}")
    assert (run["run_attempt"], run["status"], run["head_sha"]) == (2, "queued", failed.sha)
    jobs = call("GET", f"~/actions/runs/{failed.id}/jobs")[1]["jobs"]
    assert [(job["name"], job["status"]) for job in jobs] == [
        ("gate", "completed"),
        ("lane", "queued"),
    ]
    every = call("GET", f"~/actions/runs/{failed.id}/jobs?filter=all")[1]
    assert every["total_count"] == 4
    assert call("GET", f"~/actions/runs/{failed.id}/attempts/1")[1]["conclusion"] == "failure"
    assert call("GET", f"~/actions/runs/{failed.id}/attempts/3")[0] == 404


def test_rerun_ends_after_thirty_days(github: Double, failed: Run) -> None:
    github.world.advance(days=29)
    github.world.rerun(failed, Actor("walt"))
    github.world.finish(failed)
    github.world.advance(days=2)
    with pytest.raises(Refusal, match="over a month ago"):
        github.world.rerun(failed, Actor("walt"))


def test_cancel(github: Double, call: Caller, failed: Run) -> None:
    assert call("POST", f"~/actions/runs/{failed.id}/cancel")[0] == 409
    github.world.rerun(failed, Actor("walt"))
    failed.deaf = True
    assert call("POST", f"~/actions/runs/{failed.id}/cancel")[0] == 202
    assert failed.status == "queued"
    assert call("POST", f"~/actions/runs/{failed.id}/force-cancel")[0] == 202
    assert failed.conclusion == "cancelled"


def test_runs_are_filtered(github: Double, call: Caller, failed: Run) -> None:
    path = "~/actions/workflows/run.yml/runs"
    assert call("GET", f"{path}?event=workflow_dispatch")[1]["total_count"] == 1
    assert call("GET", f"{path}?event=push")[1]["total_count"] == 0
    assert call("GET", f"{path}?status=failure")[1]["total_count"] == 1
    assert call("GET", f"{path}?created=>=2100-01-01T00:00:00Z")[1]["total_count"] == 0


def test_artifacts_lie_on_another_host_for_a_minute(
    github: Double, call: Caller, failed: Run
) -> None:
    artifact = github.world.upload(failed, "evidence", b"PK")
    call("GET", f"~/actions/artifacts/{artifact.id}/zip")
    link = github.link(artifact)
    with urllib.request.urlopen(link) as reply:
        assert reply.read() == b"PK"
    with github.violation("a token was sent"):
        header = {"Authorization": "token x"}
        urllib.request.urlopen(urllib.request.Request(link, headers=header)).close()
    github.world.advance(minutes=2)
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(link)
    error.value.close()
    github.world.advance(days=91)
    late = Caller(github, github.world.job_token({"actions": "read"}))
    assert late("GET", f"~/actions/artifacts/{artifact.id}/zip")[0] == 410


def test_merge_queue_has_a_branch_and_an_event_of_its_own(github: Double, call: Caller) -> None:
    world = github.world
    world.protect("main", (READY, None))
    pull = world.open_pull("alice")
    world.take_events()
    branch = world.enqueue(pull)
    assert [event.name for event in world.take_events()] == ["merge_group"]
    refs = call("GET", "~/git/matching-refs/heads/gh-readonly-queue/")[1]
    assert [ref["ref"] for ref in refs] == [f"refs/heads/{branch}"]
    assert not world.leave_queue(pull)
    branch = world.enqueue(pull)
    group = world.tip(branch)
    world.create_check(
        world.job_actor(), {"name": READY, "head_sha": group, "conclusion": "success"}
    )
    assert world.leave_queue(pull)
    assert pull.merged
    assert world.tip("main") == group


def test_listings_come_in_pages(github: Double, call: Caller) -> None:
    github.world.open_pull("alice")
    for number in range(65):
        github.world.add_comment(1, Actor("alice"), f"{number}")
    pages = [call("GET", f"~/issues/1/comments?page={page}")[1] for page in (1, 2, 3, 4)]
    assert [len(page) for page in pages] == [30, 30, 5, 0]
    assert [item["body"] for page in pages for item in page] == [str(n) for n in range(65)]


def test_fault_hits_as_often_as_it_says(github: Double, call: Caller) -> None:
    github.world.open_pull("alice")
    name = "issues/create-comment"
    github.fail(Fault.bad_gateway(name, applied=True))
    github.fail(Fault.bad_gateway(name, after=1, times=1))
    found = [call("POST", "~/issues/1/comments", {"body": "x"})[0] for _ in range(4)]
    assert sorted(found) == [201, 201, 502, 502]
    assert len(github.world.comments) == 3
