"""The client reads everything, writes nothing twice, and says what is wrong in our words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from bot.errors import InfraError
from bot.github.client import Client
from bot.github.connection import (
    App,
    AppKey,
    Connection,
    GitHubError,
    Gone,
    NotAllowed,
    NotFound,
    RateLimited,
    Refused,
    Token,
    Unsure,
    find_app,
)
from tests.conftest import ROOT, Workbench
from tests.github.double import Double, Fault
from tests.github.world import Actor, Check, Pull, Run

JOB = {"actions": "write", "checks": "write", "contents": "read", "issues": "write",
       "pull-requests": "write", "statuses": "write"}  # fmt: skip
READY, MARK = "fla-bot/ready", "<!-- fla-bot -->"
TEXT = f"{MARK}\nwaiting"
OUTPUT = {"title": "t", "summary": "s"}
NOTE = {"path": "a.py", "start_line": 1, "end_line": 1, "annotation_level": "failure",
        "message": "m"}  # fmt: skip


class Naps:
    """Records how long the client would have slept; time passes in the double's world."""

    def __init__(self, github: Double) -> None:
        self.github, self.taken = github, list[float]()

    def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        self.github.world.advance(seconds=seconds)


@pytest.fixture
def naps(github: Double) -> Naps:
    """The client's sleep."""
    return Naps(github)


Opener = Callable[..., Client]


@pytest.fixture
def opened(github: Double, naps: Naps) -> Iterator[Opener]:
    """Clients of the double, closed at the end."""
    clients: list[Client] = []

    def open_client(permissions: dict[str, str] | None = None, **more: Any) -> Client:
        timeout_s = more.pop("timeout_s", 5)
        identity = more.pop("identity", None) or Token(
            github.world.job_token(JOB if permissions is None else permissions)
        )
        connection = Connection(
            identity,
            base_url=github.url,
            timeout_s=timeout_s,
            sleep=naps,
            clock=lambda: github.world.now.timestamp(),
        )
        client = Client(github.world.full_name, identity, connection=connection, **more)
        clients.append(client)
        return client

    yield open_client
    for client in clients:
        client.connection.close()


@pytest.fixture
def client(opened: Opener) -> Client:
    """A client with a job's token."""
    return opened()


@pytest.fixture
def pull(github: Double) -> Pull:
    """A pull request from a fork."""
    github.world.person("mona", "maintain")
    return github.world.open_pull("alice", {"a.py": b"x = 1\n", "b.py": b""})


@pytest.fixture
def run(github: Double) -> Run:
    """A finished run of the executor with an artifact."""
    world = github.world
    flow = world.workflow("lane.yml", inputs=("plan",), run_name="fla-bot ${{ inputs.plan }}")
    run = world.dispatch(world.job_actor(), flow.file, "main", {"plan": "old"})
    world.begin(run)
    world.finish(run, artifacts={"evidence": b"PK" * 5000})
    return run


# Reading.


def test_everything_is_read(github: Double, client: Client, pull: Pull, run: Run) -> None:
    world = github.world
    comment = world.add_comment(1, Actor("mona"), "/fla-bot help")
    world.add_status(world.job_actor(), pull.sha, {"state": "pending", "context": READY})
    found = client.pull(1)
    assert (found.head.sha, found.base.ref, found.changed_files) == (pull.sha, "main", 2)
    assert found.head.repo
    assert found.head.repo.full_name == "alice/kernels"
    assert client.describe().default_branch == "main"
    assert [item.number for item in client.open_pulls()] == [1]
    assert client.open_pulls("release") == []
    assert [item.filename for item in client.files(1)] == ["a.py", "b.py"]
    assert [item.author and item.author.login for item in client.commits(1)] == ["alice"]
    assert [item.id for item in client.comments(1)] == [client.comment(comment.id).id]
    assert [item.state for item in client.statuses(pull.sha)] == ["pending"]
    assert client.run(run.id).display_title == "fla-bot old"
    assert [item.id for item in client.runs("lane.yml", status="completed")] == [run.id]
    assert [item.conclusion for item in client.jobs(run.id)] == ["success"]
    assert client.content("README.md", "main") == b"# kernels\n"
    assert set(client.tree("main")) == {"README.md"}
    parted = client.compare("main", pull.sha)
    assert parted.base_commit.sha == parted.merge_base_commit.sha == world.tip("main")
    assert client.refs("heads/gh-readonly-queue/") == []
    assert [ref.sha for ref in client.refs("heads/main")] == [world.tip("main")]


def test_directory_is_no_content(client: Client, github: Double) -> None:
    github.world.push("main", {"fla/a.py": b"", "fla/b.py": b""})
    with pytest.raises(NotFound, match="no file"):
        client.content("fla", "main")


@pytest.mark.parametrize("role", ["admin", "maintain", "write", "triage", "read", "none"])
def test_role_is_the_real_one(github: Double, client: Client, role: Any) -> None:
    github.world.person("someone", role)
    assert client.role("someone") == role
    assert client.role("nobody") == "none"


def test_edited_comments_are_known(github: Double, client: Client, pull: Pull) -> None:
    comment = github.world.add_comment(1, Actor("alice"), "/fla-bot run")
    assert not client.comment(comment.id).edited
    github.world.advance(seconds=1)
    github.world.edit_comment(comment, Actor("mona"), "/fla-bot approve")
    assert client.comment(comment.id).edited


def test_required_checks_show_their_pin(github: Double, client: Client) -> None:
    github.world.protect("main", (READY, 7), ("lint", None))
    found = [(item.context, item.integration_id) for item in client.required_checks("main")]
    assert found == [(READY, 7), ("lint", None)]
    assert client.required_checks("other") == []


def test_listings_are_read_to_their_end(github: Double, client: Client, pull: Pull) -> None:
    for number in range(250):
        github.world.add_comment(1, Actor("alice"), f"{number}")
    assert [item.body for item in client.comments(1)] == [str(n) for n in range(250)]
    assert len(github.sent("issues/list-comments")) == 3
    for number in range(130):
        body = {"name": f"job {number}", "head_sha": pull.sha, "status": "queued"}
        github.world.create_check(github.world.job_actor(), body)
    assert len(client.check_runs(pull.sha)) == 130


# Writing once.


def test_comment_is_found_by_mark_and_author(github: Double, client: Client, pull: Pull) -> None:
    github.world.add_comment(1, Actor("alice"), f"{MARK} I am the bot")
    ours = client.post_comment(1, MARK, TEXT)
    assert client.post_comment(1, MARK, TEXT).id == ours.id
    assert len(github.sent("issues/create-comment")) == 1
    client.edit_comment(ours.id, f"{MARK}\ngreen")
    assert github.world.comments[ours.id].body.endswith("green")
    client.delete_comment(ours.id)
    client.delete_comment(ours.id)
    assert ours.id not in github.world.comments


def test_check_run_is_found_by_app_and_mark(github: Double, client: Client, pull: Pull) -> None:
    app = github.world.app("other", {"checks": "write"})
    theirs = {"name": READY, "head_sha": pull.sha, "external_id": "p1", "status": "queued"}
    github.world.create_check(github.world.app_actor(app), theirs)
    body = {"status": "in_progress", "output": OUTPUT}
    run = client.post_check_run(pull.sha, READY, "p1", body)
    assert client.post_check_run(pull.sha, READY, "p1", body).id == run.id
    assert len(github.sent("checks/create")) == 1
    assert client.post_check_run(pull.sha, READY, "p2", body).id != run.id
    client.edit_check_run(run.id, {"status": "completed", "conclusion": "success"})
    assert github.world.checks[run.id].conclusion == "success"
    assert len(client.check_runs(pull.sha, READY)) == 2
    assert len(client.check_runs(pull.sha, READY, every=True)) == 3


def test_status_is_posted_when_it_says_something_new(
    github: Double, client: Client, pull: Pull
) -> None:
    for state in ("pending", "pending", "success", "success"):
        client.post_status(pull.sha, READY, state, "1 of 2", "https://example.invalid/1")
    assert len(github.sent("repos/create-commit-status")) == 2
    same = {"state": "success", "context": READY, "description": "1 of 2"}
    forged = {**same, "target_url": "https://example.invalid/1"}
    github.world.add_status(Actor("walt"), pull.sha, forged)
    client.post_status(pull.sha, READY, "success", "1 of 2", "https://example.invalid/1")
    assert len(github.sent("repos/create-commit-status")) == 3


def test_dispatch_starts_a_plan_once(github: Double, client: Client, run: Run) -> None:
    started = client.dispatch("lane.yml", "main", {"plan": "new"}, "fla-bot new")
    assert client.dispatch("lane.yml", "main", {"plan": "new"}, "fla-bot new") == started
    assert github.world.runs[started].inputs == {"plan": "new"}
    assert len(github.sent("actions/create-workflow-dispatch")) == 1
    assert client.cancel(started)
    assert not client.cancel(started)


def test_reaction_and_body(github: Double, client: Client, pull: Pull) -> None:
    comment = github.world.add_comment(1, Actor("mona"), "/fla-bot help")
    client.react(comment.id, "eyes")
    client.react(comment.id, "eyes")
    assert len(github.world.reactions) == 1
    client.edit_body(1, "one\r\ntwo")
    assert pull.body == "one\r\ntwo"
    assert client.pull(1).body == "one\r\ntwo"


# Nothing twice, under every lost reply. `made` counts what exists afterwards.

Write = Callable[[Client, Pull], Any]
CREATES: dict[str, Write] = {
    "issues/create-comment": lambda client, _: client.post_comment(1, MARK, TEXT),
    "checks/create": lambda client, pull: client.post_check_run(pull.sha, READY, "p", {}),
    "repos/create-commit-status": lambda client, pull: client.post_status(
        pull.sha, READY, "success", "all proved"
    ),
    "actions/create-workflow-dispatch": lambda client, _: client.dispatch(
        "lane.yml", "main", {"plan": "new"}, "fla-bot new"
    ),
}
LOSSES: dict[str, dict[str, Any]] = {
    "502": {"status": 502},
    "500": {"status": 500},
    "cut": {"cut": True, "applied": True},
    "slow": {"delay_s": 1.2, "applied": True},
}


def made(github: Double, operation: str) -> int:
    """How many of the thing that an operation creates are there."""
    world = github.world
    return {
        "issues/create-comment": len(world.comments),
        "checks/create": sum(check.name == READY for check in world.checks.values()),
        "repos/create-commit-status": len(world.statuses),
        "actions/create-workflow-dispatch": sum("new" in r.title for r in world.runs.values()),
    }[operation]


@pytest.mark.parametrize("operation", CREATES)
@pytest.mark.parametrize("loss", LOSSES)
def test_lost_reply_to_a_post_that_was_made_posts_nothing_twice(
    github: Double, opened: Opener, pull: Pull, run: Run, operation: str, loss: str
) -> None:
    github.fail(Fault(operation, **{"applied": True, **LOSSES[loss]}))
    client = opened(timeout_s=1)
    CREATES[operation](client, pull)
    assert made(github, operation) == 1
    assert len(github.sent(operation)) == 1


@pytest.mark.parametrize("operation", sorted(set(CREATES) - {"actions/create-workflow-dispatch"}))
def test_post_that_was_not_made_is_made_after_looking(
    github: Double, client: Client, pull: Pull, operation: str
) -> None:
    github.fail(Fault.bad_gateway(operation, times=2))
    CREATES[operation](client, pull)
    assert made(github, operation) == 1
    assert len(github.sent(operation)) == 3


def test_dispatch_that_was_not_made_is_left_to_the_next_turn(
    github: Double, client: Client, run: Run, naps: Naps
) -> None:
    name = "actions/create-workflow-dispatch"
    github.fail(Fault.bad_gateway(name))
    with pytest.raises(InfraError, match="502"):
        client.dispatch("lane.yml", "main", {"plan": "new"}, "fla-bot new")
    assert made(github, name) == 0
    assert len(github.sent(name)) == 1
    assert naps.taken == [1, 2, 4, 8]
    client.dispatch("lane.yml", "main", {"plan": "new"}, "fla-bot new")
    assert made(github, name) == 1


@pytest.mark.parametrize("operation", CREATES)
def test_service_that_stays_down_is_an_infrastructure_error(
    github: Double, client: Client, pull: Pull, run: Run, operation: str
) -> None:
    github.fail(Fault.bad_gateway(operation, times=99, applied=True))
    CREATES[operation](client, pull)  # made by the first try, found by looking
    assert made(github, operation) == 1
    github.faults.clear()
    github.fail(Fault.bad_gateway("issues/list-comments", times=99))
    with pytest.raises(Unsure, match=r"GET .*comments: 502"):
        client.comments(1)


LIMITS: dict[str, Callable[[Double, str], Fault]] = {
    "primary": lambda github, name: Fault.primary_limit(name, 30, github.world.now),
    "secondary": lambda _, name: Fault.secondary_limit(name),
    "secondary without a time": lambda _, name: Fault.secondary_limit(name, None),
    "too many": lambda _, name: Fault.too_many(name),
}
WAITS = {"primary": 31, "secondary": 7, "secondary without a time": 60, "too many": 3}


@pytest.mark.parametrize("operation", CREATES)
@pytest.mark.parametrize("limit", LIMITS)
def test_rate_limit_is_waited_for_and_the_post_sent_again(
    github: Double, client: Client, naps: Naps, pull: Pull, run: Run, operation: str, limit: str
) -> None:
    github.fail(LIMITS[limit](github, operation))
    CREATES[operation](client, pull)
    assert made(github, operation) == 1
    assert naps.taken == [pytest.approx(WAITS[limit])]


def test_long_limit_is_not_slept_through(github: Double, client: Client, naps: Naps) -> None:
    github.fail(Fault.primary_limit("pulls/get", 3000, github.world.now))
    with pytest.raises(RateLimited, match=r"wait 3001 s before GET .*/pulls/1"):
        client.pull(1)
    github.fail(Fault.too_many("pulls/get", times=99))
    with pytest.raises(RateLimited):
        client.pull(1)
    assert len(naps.taken) == 3


CHANGES: dict[str, Write] = {
    "issues/update-comment": lambda client, _: client.edit_comment(_first(client), TEXT),
    "issues/delete-comment": lambda client, _: client.delete_comment(_first(client)),
    "pulls/update": lambda client, _: client.edit_body(1, "new"),
    "checks/update": lambda client, pull: client.edit_check_run(
        client.check_runs(pull.sha, READY)[0].id, {"output": OUTPUT}
    ),
    "reactions/create-for-issue-comment": lambda client, _: client.react(_first(client), "eyes"),
}


def _first(client: Client) -> int:
    return client.comments(1)[0].id


@pytest.mark.parametrize("operation", CHANGES)
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("loss", ["502", "cut"])
def test_change_is_sent_again_until_it_is_answered(
    github: Double, client: Client, pull: Pull, operation: str, *, applied: bool, loss: str
) -> None:
    world = github.world
    world.add_comment(1, world.job_actor(), "x")
    world.create_check(world.job_actor(), {"name": READY, "head_sha": pull.sha})
    github.fail(Fault(operation, **{**LOSSES[loss], "applied": applied}, times=2))
    CHANGES[operation](client, pull)
    assert len(github.sent(operation)) == 3
    assert len(world.reactions) == (operation == "reactions/create-for-issue-comment")


@pytest.mark.parametrize("applied", [True, False])
def test_annotations_are_never_added_twice(
    github: Double, client: Client, pull: Pull, *, applied: bool
) -> None:
    run = client.post_check_run(pull.sha, READY, "p", {"output": OUTPUT})
    github.fail(Fault.bad_gateway("checks/update", applied=applied))
    for _ in range(2):
        client.edit_check_run(run.id, {"output": {**OUTPUT, "annotations": [NOTE] * 50}})
    check: Check = github.world.checks[run.id]
    assert len(check.annotations) == 100
    assert len(github.sent("checks/update")) == (2 if applied else 3)


def test_too_many_annotations_are_our_bug(client: Client, pull: Pull) -> None:
    run = client.post_check_run(pull.sha, READY, "p", {})
    with pytest.raises(AssertionError, match="50 a request"):
        client.edit_check_run(run.id, {"output": {**OUTPUT, "annotations": [NOTE] * 51}})


# Replies that are wrong, missing or not ours.


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ({"status": 401, "message": "Bad credentials"}, NotAllowed, "the token has ended"),
        ({"status": 403, "message": "no"}, NotAllowed, "403 no; the token needs `pull-requests"),
        ({"status": 404, "message": "Not Found"}, NotFound, "404 Not Found"),
        ({"status": 410, "message": "Gone"}, Gone, "410 Gone"),
        ({"status": 422, "message": "Invalid"}, Refused, "422 Invalid"),
        ({"status": 502, "times": 99}, Unsure, "502"),
        ({"cut": True, "times": 99}, Unsure, "ChunkedEncodingError|ConnectionError"),
        ({"delay_s": 0.2, "times": 1, "status": 404}, NotFound, "404"),
    ],
)
def test_failures_are_told_apart(
    github: Double, opened: Opener, pull: Pull, fault: Any, kind: type[InfraError], words: str
) -> None:
    github.fail(Fault("pulls/get", **{"times": 99, **fault}))
    client = opened()
    with pytest.raises(kind, match=words) as error:
        client.pull(1)
    assert isinstance(error.value, InfraError)
    assert "ghs_" not in str(error.value)


def test_slow_reply_is_asked_for_again(github: Double, opened: Opener, pull: Pull) -> None:
    github.fail(Fault("pulls/get", delay_s=1.2))
    assert opened(timeout_s=1).pull(1).number == 1
    assert len(github.sent("pulls/get")) == 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"status": 404, "message": "Not Found"}, "404"),
        ({"status": 502, "times": 99}, "502"),
        ({"empty": True}, "lost a page"),
    ],
)
def test_missing_second_page_is_no_shorter_listing(
    github: Double, client: Client, pull: Pull, fault: Any, words: str
) -> None:
    for number in range(150):
        github.world.add_comment(1, Actor("alice"), f"{number}")
    github.fail(Fault("issues/list-comments", page=2, **fault))
    with pytest.raises(InfraError, match=words):
        client.comments(1)


def test_listing_must_reach_githubs_own_count(
    github: Double, client: Client, pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    github.world.create_check(github.world.job_actor(), {"name": READY, "head_sha": pull.sha})
    send = client.connection.send

    def shorter(*given: Any, **more: Any) -> Any:
        headers, data = send(*given, **more)
        return headers, {**data, "total_count": 2}

    monkeypatch.setattr(client.connection, "send", shorter)
    with pytest.raises(InfraError, match="listed 1 of 2 items"):
        client.check_runs(pull.sha)


def test_reply_that_is_not_understood(
    github: Double, client: Client, pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.connection, "send", lambda *_, **__: ({}, {"number": "one"}))
    with pytest.raises(GitHubError, match="not understood: number: "):
        client.pull(1)
    with pytest.raises(GitHubError, match="not the list"):
        client.open_pulls()


def test_page_on_another_host_is_not_followed(
    github: Double, client: Client, pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(150):
        github.world.add_comment(1, Actor("alice"), f"{number}")
    monkeypatch.setattr(github, "url", "http://elsewhere.invalid")
    with pytest.raises(GitHubError, match="elsewhere"):
        client.comments(1)


def test_host_that_is_not_there(naps: Naps) -> None:
    connection = Connection(Token("x"), base_url="http://127.0.0.1:9", sleep=naps)
    with pytest.raises(Unsure, match="ConnectionError"):
        Client("octo-org/kernels", Token("x"), connection=connection).pull(1)
    connection.close()
    assert naps.taken == [1, 2, 4]


def test_requests_own_errors_are_ours(
    client: Client, naps: Naps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise requests.exceptions.RetryError("too many 502 replies")

    monkeypatch.setattr(client.connection._requester(), "requestJsonAndCheck", broken)
    with pytest.raises(Unsure, match="RetryError: too many"):
        client.pull(1)
    with pytest.raises(Unsure):
        client.post_comment(1, MARK, TEXT)
    assert len(naps.taken) == 6


# Permissions.

NEEDS: dict[str, tuple[str, Write]] = {
    "issues": ("issues: write` or `pull-requests: write", CREATES["issues/create-comment"]),
    "checks": ("checks: write", lambda c, p: c.connection.send(
        "POST", f"/repos/{c.repository}/check-runs", body={"name": "x", "head_sha": p.sha})),
    "statuses": ("statuses: read", CREATES["repos/create-commit-status"]),
    "actions": ("actions: write", lambda client, _: client.cancel(1)),
    "contents": ("contents: read", lambda client, _: client.content("README.md", "main")),
    "pull-requests": ("pull-requests: read", lambda client, _: client.pull(1)),
}  # fmt: skip


@pytest.mark.parametrize("dropped", NEEDS)
def test_missing_permission_is_named(
    github: Double, opened: Opener, pull: Pull, dropped: str
) -> None:
    words, write = NEEDS[dropped]
    rest = {name: level for name, level in JOB.items() if name != dropped}
    if dropped == "issues":
        rest |= {"pull-requests": "read", "issues": "read"}
    with pytest.raises(NotAllowed, match=words):
        write(opened(rest), pull)
    assert github.world.comments == {}


# Dry runs.


def test_dry_run_sends_nothing(github: Double, opened: Opener, pull: Pull, run: Run) -> None:
    client = opened(dry_run=True)
    comment = client.post_comment(1, MARK, TEXT)
    check = client.post_check_run(pull.sha, READY, "p", {"status": "queued", "output": OUTPUT})
    client.edit_check_run(check.id, {"output": {**OUTPUT, "annotations": [NOTE]}})
    client.edit_comment(comment.id, TEXT)
    client.delete_comment(comment.id)
    client.react(7, "eyes")
    client.edit_body(1, "new")
    assert client.post_status(pull.sha, READY, "success", "d").state == "success"
    assert client.dispatch("lane.yml", "main", {"plan": "new"}, "fla-bot new") == 0
    assert client.cancel(run.id)
    assert github.writes == []
    assert [(write.method, write.path.rsplit("/", 1)[1]) for write in client.writes] == [
        ("POST", "comments"),
        ("POST", "check-runs"),
        ("PATCH", "0"),
        ("PATCH", "0"),
        ("DELETE", "0"),
        ("POST", "reactions"),
        ("PATCH", "1"),
        ("POST", pull.sha),
        ("POST", "dispatches"),
        ("POST", "cancel"),
    ]
    assert json.loads(client.writes[0].model_dump_json())["body"] == {"body": TEXT}


def test_dry_run_finds_what_is_there(github: Double, opened: Opener, pull: Pull) -> None:
    there = github.world.add_comment(1, github.world.job_actor(), TEXT)
    client = opened(dry_run=True)
    assert client.post_comment(1, MARK, TEXT).id == there.id
    assert client.writes == []


def test_real_run_records_its_writes_too(client: Client, pull: Pull) -> None:
    client.post_comment(1, MARK, TEXT)
    assert [write.method for write in client.writes] == ["POST"]
    assert client.connection.requests == 2


# Identities.


@pytest.fixture(scope="session")
def key_pair() -> tuple[str, str]:
    """A private key and its public half, as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private.decode(), public.decode()


def test_app_acts_with_narrowed_tokens_of_its_own(
    github: Double, opened: Opener, pull: Pull, key_pair: tuple[str, str]
) -> None:
    private, public = key_pair
    granted = {"checks": "write", "issues": "write", "contents": "read"}
    app = github.world.app("fla-bot", granted, public)
    narrow = {"checks": "write"}
    identity = find_app(
        AppKey(app.id, private), github.world.full_name, base_url=github.url, permissions=narrow
    )
    assert (identity.slug, identity.login) == ("fla-bot", "fla-bot[bot]")
    assert "PRIVATE" not in repr(identity) + repr(AppKey(app.id, private))
    client = opened(identity=identity)
    run = client.post_check_run(pull.sha, READY, "p", {"status": "queued"})
    assert run.app
    assert run.app.id == app.id
    assert client.post_check_run(pull.sha, READY, "p", {"status": "queued"}).id == run.id
    assert len(github.sent("apps/create-installation-access-token")) == 1
    with pytest.raises(NotAllowed, match="issues: write"):
        client.react(github.world.add_comment(1, Actor("mona"), "x").id, "eyes")


def test_wrong_key_is_not_allowed(github: Double, key_pair: tuple[str, str]) -> None:
    app = github.world.app("fla-bot", {"checks": "write"}, public_key="none")
    with pytest.raises(NotAllowed, match="could not be decoded"):
        find_app(AppKey(app.id, key_pair[0]), github.world.full_name, base_url=github.url)


def test_client_from_the_environment(github: Double, pull: Pull) -> None:
    environment = {
        "GITHUB_API_URL": github.url,
        "GITHUB_REPOSITORY": github.world.full_name,
        "GITHUB_TOKEN": github.world.job_token(JOB),
    }
    with Client.from_environment(environment) as client:
        assert client.pull(1).number == 1
        assert "ghs_" not in repr(client.identity)
    del environment["GITHUB_TOKEN"]
    with pytest.raises(InfraError, match="GITHUB_TOKEN"):
        Client.from_environment(environment)
    app = App(1, "key", "fla-bot", 2)
    assert Client.from_environment(environment, identity=app).identity is app
    with pytest.raises(InfraError, match="GITHUB_REPOSITORY, GITHUB_TOKEN"):
        Client.from_environment({})


# PyGithub is loaded by the first request, and only then.


def test_check_never_loads_pygithub(kernels: Workbench) -> None:
    kernels.write({"fla/modules/l2norm.py": "x = 1\n"})
    program = (
        "import sys\nfrom bot.cli import main\n"
        f"status = main(['check', '--repo', {str(kernels.path)!r}])\n"
        "import bot.github.client, bot.github.handle\n"
        "loaded = {'github', 'requests', 'jwt', 'urllib3'} & set(sys.modules)\n"
        "sys.exit(f'loaded {loaded}, status {status}' if loaded or status > 1 else 0)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_missing_pygithub_says_what_to_install(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "github", None)
    with pytest.raises(InfraError, match=r"pip install fla-bot\[github\]"):
        client.pull(1)
