"""The doctor says what is wrong, what to do, and what it cannot see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from bot.github.client import Client
from bot.github.connection import ACTIONS_APP, AppKey, Connection, Token, find_app
from bot.github.doctor import APP_PERMISSIONS, Finding, Level, command, doctor, granted, show
from bot.github.jobs import PERMISSIONS as ASKED
from bot.github.operate import EXECUTOR, PLANNER
from tests.conftest import ROOT
from tests.github.double import Double
from tests.github.permissions import PERMISSIONS
from tests.github.test_workflows import OPERATIONS
from tests.github.world import World

READY, QUEUE, GUARD = "fla-bot/ready", "fla-bot-queue.yml", b"if: github.repository == '%s'\n"
SEES = {**APP_PERMISSIONS, "administration": "read", "variables": "read"}


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def healthy(github: Double) -> Double:
    """A repository as docs/adopt.md sets it up."""
    world = github.world
    name = world.full_name.encode()
    files = {f".github/workflows/{file}": GUARD % name for file in (PLANNER, EXECUTOR, QUEUE)}
    world.push(
        "main", {**files, "contracts/policy.yaml": (ROOT / "contracts/policy.yaml").read_bytes()}
    )
    for file in (PLANNER, EXECUTOR, QUEUE):
        world.workflow(file)
    world.environments["fla-bot"] = ["main"]
    world.variables["FLA_BOT"] = "shadow"
    return github


def _texts(key: rsa.RSAPrivateKey) -> tuple[str, str]:
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return public.decode(), private.decode()


Ask = Callable[..., list[Finding]]


@pytest.fixture
def ask(healthy: Double, key: rsa.RSAPrivateKey) -> Iterator[Ask]:
    """Run the doctor as an App that is installed, with these permissions."""
    public, private = _texts(key)
    app = healthy.world.app("fla-bot", SEES, public)
    healthy.world.protect("main", (READY, app.id))
    open_ = list[Connection]()

    def run(
        permissions: dict[str, str] | None = None, environment: dict[str, str] | None = None
    ) -> list[Finding]:
        if permissions is not None:
            app.permissions = permissions
        own = AppKey(app.id, private)
        name = healthy.world.full_name
        identity = find_app(own, name, base_url=healthy.url)
        connection = Connection(identity, base_url=healthy.url)
        open_.append(connection)
        client = Client(name, identity, connection=connection)
        return doctor(client, environment or {}, granted(own, name, healthy.url))

    yield run
    for connection in open_:
        connection.close()


def _wrong(findings: list[Finding]) -> list[str]:
    return [finding.what for finding in findings if finding.level is Level.WRONG]


def _unseen(findings: list[Finding]) -> str:
    return " / ".join(finding.what for finding in findings if finding.level is Level.UNSEEN)


def test_healthy_repository(ask: Ask, healthy: Double) -> None:
    found = ask(dict(APP_PERMISSIONS))
    assert _wrong(found) == []
    assert "runners" in _unseen(found)
    assert "the variable FLA_BOT" in _unseen(found)
    assert "secret of that environment alone" in _unseen(found)
    assert all(finding.do for finding in found if finding.level is not Level.OK)
    assert healthy.writes == []


def test_permissions_of_the_app_suffice_for_every_job() -> None:
    """What jobs do with the App's token; checks are written instead of statuses."""
    assert APP_PERMISSIONS == ASKED
    for operation in {name for names in OPERATIONS.values() for name in names}:
        wanted = [item.partition("=") for item in PERMISSIONS[operation]]
        enough = any(
            APP_PERMISSIONS.get(name) == "write" or (level == "read" and name in APP_PERMISSIONS)
            for name, _, level in wanted
        )
        assert enough or operation == "repos/create-commit-status", operation


@pytest.mark.parametrize("name", sorted(APP_PERMISSIONS.keys() - {"metadata"}))
def test_permission_that_is_missing_is_named(ask: Ask, name: str) -> None:
    """Also where the App then may not look: nothing fails, and nothing looks healthy."""
    found = ask({key: level for key, level in APP_PERMISSIONS.items() if key != name})
    assert f"the App has {name}: none, it needs {APP_PERMISSIONS[name]}" in _wrong(found)


def test_permission_too_many_is_named(ask: Ask) -> None:
    wrong = _wrong(ask({**APP_PERMISSIONS, "contents": "write", "administration": "write"}))
    assert wrong == [
        "the App has administration: write and never uses it",
        "the App may write contents, so its key can push",
    ]


def test_requirement_must_be_pinned_to_our_app(ask: Ask, healthy: Double) -> None:
    world: World = healthy.world
    for app, words in ((None, "from anybody"), (ACTIONS_APP, f"from App {ACTIONS_APP}")):
        world.protect("main", (READY, app), ("other", None))
        assert any(words in what for what in _wrong(ask()))
    world.protect("main", ("other", None))
    assert any("does not require" in what for what in _wrong(ask(SEES)))
    found = ask(dict(APP_PERMISSIONS))
    assert "classic protection is only shown to administrators" in _unseen(found)


def test_classic_protection_counts_where_it_can_be_seen(
    ask: Ask, healthy: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healthy.bodies, "rule", lambda branch: [])
    found = ask(SEES)
    assert "main requires fla-bot/ready from fla-bot" in [finding.what for finding in found]


def test_environment_must_be_for_the_default_branch_alone(
    ask: Ask, healthy: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy.world.environments["fla-bot"] = ["main", "release/*"]
    assert "the environment fla-bot is open to: main, release/*" in _wrong(ask())
    healthy.world.environments["fla-bot"] = []
    assert "the environment fla-bot is open to: none" in _wrong(ask())
    body = healthy.bodies.environment
    for policy in (None, {"protected_branches": True, "custom_branch_policies": False}):
        monkeypatch.setattr(
            healthy.bodies,
            "environment",
            lambda name, policy=policy: {**body(name), "deployment_branch_policy": policy},
        )
        assert any("more branches than main" in what for what in _wrong(ask()))
    healthy.world.environments.clear()
    assert any("no environment fla-bot" in what for what in _wrong(ask()))


def test_workflows_must_be_there_active_and_ours(ask: Ask, healthy: Double) -> None:
    world = healthy.world
    world.workflows[PLANNER].state = "disabled_inactivity"
    world.push("main", {f".github/workflows/{EXECUTOR}": GUARD % b"fla-org/fla-bot"})
    del world.workflows[QUEUE]
    wrong = _wrong(ask())
    assert f"the workflow {PLANNER} is disabled_inactivity" in wrong
    assert any("run in fla-org/fla-bot, not in octo-org/kernels" in what for what in wrong)
    assert f"there is no workflow {QUEUE}" in wrong
    world.push("main", {f".github/workflows/{EXECUTOR}": b"jobs: {}\n"})
    assert any("run in none, not in" in what for what in _wrong(ask()))


def test_switch(ask: Ask, healthy: Double) -> None:
    assert "FLA_BOT is shadow" in [finding.what for finding in ask(SEES)]
    healthy.world.variables["FLA_BOT"] = "maybe"
    assert "FLA_BOT is `maybe`, which nobody knows" in _wrong(ask(SEES))
    healthy.world.variables.clear()
    assert "FLA_BOT is on" in [finding.what for finding in ask(SEES)]


def test_policy(ask: Ask, healthy: Double) -> None:
    healthy.world.push("main", {"contracts/policy.yaml": b"areas: 1\n"})
    assert any("policy.yaml on main has" in what for what in _wrong(ask()))
    healthy.world.push("main", {"contracts/policy.yaml": None})
    assert "main has no contracts/policy.yaml" in _wrong(ask())


def test_token_without_an_app_is_advisory_and_sees_little(healthy: Double) -> None:
    name = healthy.world.full_name
    token = Token(healthy.world.job_token({}))
    client = Client(name, token, connection=Connection(token, base_url=healthy.url))
    with client:
        found = doctor(client, {})
    assert any(
        what.startswith("no App: fla-bot/ready is a commit status") for what in _wrong(found)
    )
    for hidden in ("may write", "environment fla-bot", "the workflows", "variable", "policy.yaml"):
        assert hidden in _unseen(found)


def test_command_says_by_its_status_whether_something_is_wrong(
    healthy: Double, key: rsa.RSAPrivateKey, capsys: pytest.CaptureFixture[str]
) -> None:
    public, private = _texts(key)
    app = healthy.world.app("fla-bot", dict(APP_PERMISSIONS), public)
    name, own = healthy.world.full_name, AppKey(app.id, private)
    identity = find_app(own, name, base_url=healthy.url)
    for pinned, status in ((None, 1), (app.id, 0)):
        healthy.world.protect("main", (READY, pinned))
        connection = Connection(identity, base_url=healthy.url)
        with Client(name, identity, connection=connection) as client:
            assert command(client, {}) == status
        assert (" wrong  main requires" in capsys.readouterr().out) == bool(status)


def test_hook_of_a_host(ask: Ask, tmp_path: Path) -> None:
    hook = "ACTIONS_RUNNER_HOOK_JOB_STARTED"
    wrong = _wrong(ask(environment={"RUNNER_ENVIRONMENT": "self-hosted"}))
    assert f"this host runs no hook: {hook} is not set" in wrong
    assert any("is not there" in what for what in _wrong(ask(environment={hook: "/no/hook.sh"})))
    found = ask(environment={hook: "/usr/bin/env"})
    assert "this host runs /usr/bin/env" in [finding.what for finding in found]
    script = tmp_path / "hook.sh"
    script.touch()
    script.chmod(0o777)
    assert any(
        "changed by others than root" in what
        for what in _wrong(ask(environment={hook: str(script)}))
    )
    link = tmp_path / "link.sh"
    link.symlink_to("/usr/bin/env")
    assert any("through a link" in what for what in _wrong(ask(environment={hook: str(link)})))


def test_what_is_wrong_comes_first() -> None:
    text = show([
        Finding(level=Level.OK, what="a"),
        Finding(level=Level.UNSEEN, what="b", do="look"),
        Finding(level=Level.WRONG, what="c", do="mend"),
    ])  # fmt: skip
    assert text.split() == ["wrong", "c", "->", "mend", "unseen", "b", "->", "look", "ok", "a"]
