"""Faults of the service, permissions of jobs, switches, caps, and what operators see."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from bot.errors import InfraError, UserError
from bot.github import jobs
from bot.github.case import Case
from bot.github.ledger import PREVIEW, READY, Ledger
from bot.github.operate import EXECUTOR, PLANNER
from bot.github.order import read_order
from bot.model import CheckState
from tests.github.double import Double, Fault
from tests.github.model import Machine
from tests.github.stage import AWAITED, PERMISSIONS, RUNNING, WORKFLOWS, Stage
from tests.github.world import Actor, Pull, job_permissions

MAX_CALLS = 15  # an event


# Faults.


def faults(played: Machine) -> list[Fault]:
    """Every way to fail that the client knows, at the places where a first event goes."""
    now, found = played.world.now, list[Fault]()
    for operation in ("checks/create", "issues/create-comment", "pulls/update"):
        found += [
            Fault.bad_gateway(operation),
            Fault.bad_gateway(operation, applied=True),
            Fault.primary_limit(operation, 20, now),
            Fault.secondary_limit(operation),
            Fault.too_many(operation),
            Fault(operation, cut=True),
        ]
    reads = ("pulls/get", "issues/list-comments", "checks/list-for-ref")
    found += [Fault.bad_gateway(operation) for operation in reads]
    found += [Fault(operation, 404, "Not Found") for operation in (*reads, "checks/create")]
    found += [Fault(operation, 401, "Bad credentials") for operation in (*reads, "checks/create")]
    found += [Fault(operation, 410, "Gone") for operation in reads]
    return [*found, Fault("issues/list-comments", empty=True, page=2), Fault(reads[0], cut=True)]


def play(base: Case) -> Machine:
    """One pull request of a stranger, and the bot as an App."""
    played: Machine = type("Played", (Machine,), {"base": base, "app": True})()
    played.start()
    for number in range(101):  # two pages
        played.world.add_comment(1, Actor("eve"), f"{number}")
    return played


def test_every_fault_of_the_first_event_is_survived_or_mended(base: Case) -> None:
    which, left = 0, 1
    while left:
        played = play(base)
        with played.exit:
            found = faults(played)
            left = len(found) - which - 1
            fault = played.github.fail(found[which])
            with contextlib.suppress(InfraError):
                played.event(1)
            pull = played.world.pulls[1]
            assert played.verdict(pull.sha) != "success", fault
            fault.times = 0
            played.event(1)
            assert played.verdict(pull.sha) == "action_required", fault
            ours = [c for c in played.world.comments.values() if c.actor.kind == "app"]
            assert len(ours) == 1, fault
            # One that was made although its reply was lost, and never a third.
            checks = [c for c in played.world.checks_of(pull.sha) if c.name == READY]
            assert len(checks) <= 2, fault
            assert (pull.body or "").count("fla-bot:begin") == 1, fault
            played.github.check()
        which += 1
    assert which == 34


@pytest.mark.parametrize("applied", [True, False])
def test_lost_reply_to_a_dispatch_starts_no_second_run(stage: Stage, applied: bool) -> None:
    pull = stage.open()
    stage.settle()
    fault = stage.github.fail(
        Fault.bad_gateway("actions/create-workflow-dispatch", applied=applied)
    )
    with contextlib.suppress(InfraError):
        stage.approve(pull)
    fault.times = 0
    for _ in range(3):
        stage.world.advance(minutes=11)
        stage.reap(pull)
        stage.settle()
    assert len(stage.runs()) == 2
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) == "success"


# Permissions.

JOBS = [
    *((PLANNER, job) for job in ("scope", "plan", "due", "reconcile")),
    *((EXECUTOR, job) for job in ("gate", "lane", "publish")),
]
# With an App's key in its hands a job does not use its own token.
OWN_TOKEN = [(True, *item) for item in JOBS if item[1] in ("scope", "due", "gate", "lane")]
OWN_TOKEN += [(False, *item) for item in JOBS]
# What git needs and the API does not.
ONLY_GIT = {("scope", "contents"), ("gate", "contents"), ("lane", "contents")}


class Lessened:
    """A repository in which one job's token may lack something."""

    def __init__(self, stage: Stage, workflow: str, job: str) -> None:
        self.stage, self.job, self.file = stage, job, stage.folder / "plan.json"
        stage.world.public = False  # what is public is readable without any permission
        self.given = self.whole = job_permissions(WORKFLOWS[workflow], job)
        others = stage.token

        def token(name: str, asked: str) -> str:
            own = (name, asked) == (workflow, job)
            return stage.world.job_token(self.given) if own else others(name, asked)

        stage.token = token  # type: ignore[method-assign, assignment]
        self.pull = stage.open()
        if job == "plan":
            # A word before there is a plan: everything is read.
            stage.world.take_events()
            stage.say(self.pull, "mona", f"/fla-bot approve {self.pull.sha}")
            (self.event,) = stage.world.take_events("issue_comment")
            return
        stage.settle()
        stage.approve(self.pull)
        self.runs = stage.runs()
        self.evidence = [stage.evidence(run) for run in self.runs]
        for run in self.runs:
            stage.world.begin(run)
        stage.world.dispatch(Actor("mona"), PLANNER, "main", {"pr": str(self.pull.number)})
        (self.event,) = stage.world.take_events("workflow_dispatch")[-1:]

    def act(self) -> None:
        """Let the job run."""
        stage, run = self.stage, getattr(self, "runs", [None])[0]
        if self.job == "scope":
            stage.scope(self.event, self.file)
        elif self.job == "plan":
            stage.plan(self.event, self.file)
        elif self.job == "due":
            stage.due()
        elif self.job == "reconcile":
            stage.reap(self.pull)
        elif self.job in ("gate", "lane"):
            stage.gate(run, self.job)
        else:
            stage.publish(run, self.evidence[0])

    def end(self) -> None:
        """What GitHub and the reaper do when the job has failed."""
        stage = self.stage
        if self.job in ("gate", "lane"):
            for run in self.runs:
                # `if: always()`
                stage.publish(run, {}, gate="failure" if self.job == "gate" else "success")
        for run in getattr(self, "runs", []):
            stage.world.finish(run, "failure")
        stage.world.advance(minutes=15)
        stage.reap()
        stage.settle()


@pytest.mark.parametrize(("app", "workflow", "job"), OWN_TOKEN)
def test_dropping_any_permission_of_a_job_is_red_and_says_which(
    github: Double,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    app: bool,
    workflow: str,
    job: str,
) -> None:
    stage = Stage(github, tmp_path / "stage", monkeypatch, app=app)
    lessened = Lessened(stage, workflow, job)
    for name in lessened.whole:
        if (job, name) in ONLY_GIT or (app and name == "statuses"):
            continue
        lessened.given = {key: level for key, level in lessened.whole.items() if key != name}
        if (job, name) == ("publish", "contents"):
            lessened.act()  # it can still say so itself
            said = stage.comments(lessened.pull)[0]
        else:
            with pytest.raises(InfraError) as caught:  # which ends the job, and with it the run
                lessened.act()
            said = str(caught.value)
        assert re.search(rf"the token needs .*{name}", said), (name, said)
        assert stage.ready(lessened.pull) != "success"
    lessened.given = lessened.whole
    lessened.act()


@pytest.mark.parametrize("name", ["actions", "pull-requests", "statuses"])
@pytest.mark.parametrize("job", ["plan", "publish"])
def test_reading_where_writing_is_needed_is_red_and_says_so(
    github: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, name: str
) -> None:
    """The half of a permission: what was read is right, and the first write is refused."""
    workflow = PLANNER if job == "plan" else EXECUTOR
    stage = Stage(github, tmp_path / "stage", monkeypatch, app=False)
    lessened = Lessened(stage, workflow, job)
    lessened.given = {**lessened.whole, name: "read"}
    if (job, name) == ("publish", "actions"):
        # It writes only where a run must be started or ended: here the head has moved.
        stage.push(lessened.pull, {"README.md": "x"})
    if (job, name) == ("plan", "pull-requests"):
        lessened.act()  # nothing is said before there is a plan
        (lessened.event,) = stage.world.take_events("workflow_dispatch")
        stage.scope(lessened.event, lessened.file)
    with pytest.raises(InfraError, match=rf"the token needs .*{name}: write"):
        lessened.act()
    assert stage.ready(lessened.pull) != "success"
    lessened.given = lessened.whole
    lessened.end()
    for run in stage.runs():
        stage.execute(run)
    # What was asked for again is done; what a machine has measured for nothing is red.
    wanted = ("success",) if job == "plan" else AWAITED
    assert stage.ready(lessened.pull) in wanted


@pytest.mark.parametrize("job", ["gate", "lane", "publish"])
def test_job_without_a_permission_leaves_nothing_waiting(
    github: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    stage = Stage(github, tmp_path / "stage", monkeypatch, app=False)
    lessened = Lessened(stage, EXECUTOR, job)
    lessened.given = {}
    with pytest.raises(InfraError, match="the token needs"):
        lessened.act()
    lessened.end()
    assert stage.ready(lessened.pull) == "failure"
    assert "infra" in stage.comments(lessened.pull)[0]
    assert "/fla-bot rerun" in stage.comments(lessened.pull)[0]


class Closed(BaseHTTPRequestHandler):
    """Git's side of GitHub for a token without `contents: read`."""

    def do_GET(self) -> None:
        """Refuse."""
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_lane_that_may_not_fetch_ends_with_an_error(gated: Stage) -> None:
    """The only part of `gate`, `lane` and `scope` that needs `contents: read`."""
    (script,) = (
        step["run"]
        for step in WORKFLOWS[EXECUTOR]["jobs"]["lane"]["steps"]
        if step.get("name") == "Fetch the commits as objects"
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), Closed) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        env = {"PATH": os.environ["PATH"], "HOME": str(gated.folder), "HEAD_SHA": "1" * 40,
               "GITHUB_SERVER_URL": f"http://127.0.0.1:{server.server_port}", "LC_ALL": "C",
               "GITHUB_REPOSITORY": "octo-org/kernels", "GITHUB_TOKEN": "ghs_secret",
               "RUNNER_TEMP": str(gated.folder)}  # fmt: skip
        argv = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
        server.shutdown()
    assert done.returncode != 0
    assert "octo-org/kernels" in done.stderr
    assert "403" in done.stderr
    assert "ghs_secret" not in done.stdout + done.stderr
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    for run in gated.runs():
        gated.world.begin(run)
        gated.publish(run, {})  # nothing was measured
        gated.world.finish(run, "failure")
    assert gated.ready(pull) == "failure"
    assert "infra: the lane left no evidence" in gated.comments(pull)[0]


@pytest.mark.parametrize("name", [name for name in PERMISSIONS if name != "metadata"])
def test_app_without_a_permission_says_which(gated: Stage, name: str) -> None:
    pull = gated.open()
    assert gated.app
    del gated.app.permissions[name]
    with pytest.raises(InfraError, match=r"permission|token needs"):
        gated.settle()
    assert gated.ready(pull) == "none"


# Calls.


def calls(stage: Stage, act: Any) -> int:
    before = len(stage.github.log)
    act()
    return len(stage.github.log) - before


def test_calls_of_each_event(stage: Stage) -> None:
    world = stage.world
    found = dict[str, int]()

    def one(name: str) -> None:
        """Deliver what happened; our own edits are events of their own."""
        for event in world.take_events("pull_request", "issue_comment"):
            count = calls(stage, lambda event=event: stage.handle(event))
            found[name] = max(found.get(name, 0), count)

    pull = stage.open("alice", body="x")
    one("opened")
    stage.say(pull, "mona", f"/fla-bot approve {pull.sha}")
    one("approve")
    runs = stage.runs()
    for number, run in enumerate(runs):
        world.begin(run)
        found[f"gate {number}"] = calls(stage, lambda run=run: stage.gate(run))
        evidence = stage.evidence(run)
        found[f"publish {number}"] = calls(stage, lambda r=run, e=evidence: stage.publish(r, e))
        world.finish(run)
        world.take_events()
    assert stage.ready(pull) == "success"
    stage.say(pull, "wes", "/fla-bot status")
    one("status")
    stage.push(pull, {"README.md": "x"})
    one("push")
    found["reap"] = calls(stage, lambda: stage.reap(pull))
    assert max(found.values()) <= MAX_CALLS, found


# Switches and caps.


def test_off_hands_over_what_is_open_and_does_nothing_else(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    assert stage.ready(pull) in RUNNING
    stage.mode = "off"
    before = len(stage.github.writes)
    stage.reap(pull)
    stage.say(pull, "mona", "/fla-bot status")
    stage.settle()
    assert stage.ready(pull) in AWAITED
    assert len(stage.github.writes) == before + 1


def test_no_dispatch_starts_nothing_and_is_not_green(stage: Stage) -> None:
    stage.mode = "no-dispatch"
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    assert stage.runs() == []
    assert stage.ready(pull) in AWAITED
    assert "no-dispatch" in stage.comments(pull)[0]


def test_shadow_writes_a_preview_and_no_word_to_people(stage: Stage) -> None:
    stage.mode = "shadow"
    pull = stage.open(body="mine")
    stage.settle()
    assert stage.ready(pull) == "none"
    assert stage.ready(pull, PREVIEW) in AWAITED
    assert stage.comments(pull) == []
    assert pull.body == "mine"


def test_unknown_switch_is_an_error(stage: Stage) -> None:
    stage.mode = "maybe"
    stage.open()
    with pytest.raises(Exception, match="FLA_BOT is `maybe`"):
        stage.settle()


def policy(stage: Stage, **caps: int) -> None:
    text = (stage.git.path / "contracts/policy.yaml").read_text()
    words = ", ".join(f"{name}: {value}" for name, value in caps.items())
    stage.put("main", {"contracts/policy.yaml": text.replace("minutes: 240", words)})


@pytest.mark.parametrize(
    ("caps", "runs", "state", "words"),
    [
        ({"minutes": 30}, 1, AWAITED, "has used"),
        ({"minutes": 20}, 1, AWAITED, "the cap for one pull request in a day is 20"),
        ({"job_minutes": 20}, 1, AWAITED, "the cap for one job is 20"),
        ({"day_minutes": 35}, 1, RUNNING, "all pull requests have used"),
        ({"day_minutes": 20}, 1, AWAITED, "the cap for all pull requests in a day is 20"),
    ],
)
def test_caps(
    gated: Stage, caps: dict[str, int], runs: int, state: tuple[str, ...], words: str
) -> None:
    policy(gated, **caps)
    gated.git.git("-C", str(gated.folder / "clone"), "fetch", "--quiet")
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    assert len(gated.runs()) == runs
    assert gated.ready(pull) in state
    assert words in gated.comments(pull)[0]


def test_open_runs_of_a_machine_wait_for_each_other(gated: Stage) -> None:
    policy(gated, open_runs=1)
    pulls = [gated.open(author) for author in ("alice", "bob")]
    gated.settle()
    for pull in pulls:
        gated.approve(pull)
    assert len(gated.runs()) == 2
    assert "1 runs are ahead" in gated.comments(pulls[1])[0]
    for run in gated.runs():
        gated.execute(run)
    gated.reap()
    for run in gated.runs():
        gated.execute(run)
    assert [gated.ready(pull) for pull in pulls] == ["success", "success"]


def test_circuit_opens_after_three_infrastructure_failures(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    for _ in range(3):
        for run in gated.runs():
            gated.world.begin(run)
            gated.publish(run, {}, gate="success")
            gated.world.finish(run, "failure")
        gated.say(pull, "mona", "/fla-bot rerun")
        gated.settle()
    for run in gated.runs():
        gated.world.begin(run)
        gated.publish(run, {})
        gated.world.finish(run, "failure")
    other = gated.open("bob")
    gated.settle()
    gated.approve(other)
    assert gated.runs() == []
    assert gated.ready(other) == "action_required"
    assert "/fla-bot run correctness:sm90" in gated.comments(other)[0]
    gated.say(other, "mona", "/fla-bot run correctness:sm90")
    gated.settle()
    assert len(gated.runs()) == 1


# Closing, new heads, bodies.


def test_closing_and_a_new_head_cancel_runs(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    assert len(stage.runs()) == 2
    stage.push(pull, {"README.md": "x"})
    stage.settle()
    assert stage.runs() == []
    stage.approve(pull)
    assert len(stage.runs()) == 2
    stage.world.edit_pull(pull, Actor("alice"), state="closed")
    stage.settle()
    assert stage.runs() == []
    stage.world.edit_pull(pull, Actor("alice"), state="open")
    stage.settle()
    stage.say(pull, "mona", "/fla-bot rerun")
    stage.settle()
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) == "success"


def test_body_keeps_every_other_character(stage: Stage) -> None:
    text = "Line one\r\n\r\n- [ ] mine\r\n\ttab  \r\n"
    pull = stage.open(body=text)
    stage.settle()
    assert (pull.body or "").startswith(text)
    assert "\n" not in (pull.body or "").replace("\r\n", "")
    stage.world.edit_pull(pull, Actor("alice"), body=f"New first line\r\n{pull.body}")
    stage.settle()
    stage.approve(pull)
    assert (pull.body or "").startswith(f"New first line\r\n{text}")
    assert (pull.body or "").count("fla-bot:begin") == 1


def test_rebase_with_equal_jobs_needs_no_machine(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    started = len(stage.world.runs)
    stage.push(pull, {"README.md": "only words\n"})
    stage.settle()
    assert stage.ready(pull) == "success"
    assert len([r for r in stage.world.runs.values() if r.workflow.file == EXECUTOR]) <= started


def test_failed_stays_failed_and_a_waiver_is_bound_to_head_and_plan(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    for run in stage.runs():
        stage.execute(run, rms=0.5)
    assert stage.ready(pull) == "failure"
    stage.say(pull, "mona", "/fla-bot rerun")
    stage.settle()
    assert stage.runs() == []
    assert "a fail stays a fail" in stage.comments(pull)[0]
    jobs_ = [job.id for job in stage.case(pull).report.plan.jobs]
    for job in jobs_:
        stage.say(pull, "alice", f"/fla-bot waive {job} it is fine, really")
        stage.say(pull, "wes", f"/fla-bot waive {job} it is fine, really")
    stage.settle()
    assert stage.ready(pull) == "failure"
    for job in jobs_:
        stage.say(pull, "mona", f"/fla-bot waive {job} known, see the release notes")
    stage.settle()
    assert stage.ready(pull) == "success"
    assert "are waived" in stage.comments(pull)[0]
    stage.push(pull, stage.kernel(("min(32, TILE // columns)", "min(8, TILE // columns)")))
    stage.settle()
    assert stage.ready(pull) != "success"


def test_status_and_decisions(stage: Stage, tmp_path: Path) -> None:
    first, second = stage.open("alice"), stage.open("bob")
    assert stage.due()["due"] == [second.number, first.number]
    for event in stage.world.take_events("pull_request"):
        stage.handle(event, RUNNER_TEMP=str(tmp_path))
    stage.world.advance(hours=1)
    stage.looked()
    assert stage.due()["due"] == []
    lines = (tmp_path / "decisions.jsonl").read_text().splitlines()
    assert {json.loads(line)["pull"] for line in lines} == {1, 2}
    assert json.loads(lines[0])["state"] == "action_required"
    stage.approve(first)
    stage.world.advance(hours=1)
    stage.looked()
    found = stage.due()
    assert found["due"] == [first.number], found


def test_dry_run_prints_every_write_and_makes_none(stage: Stage) -> None:
    stage.open(body="x")
    (event,) = stage.world.take_events("pull_request")
    path = stage.folder / "plan.json"
    stage.scope(event, path)
    (stage.folder / "event.json").write_text(json.dumps(stage.github.bodies.payload(event)))
    env = stage.environment(
        stage.token(PLANNER, "plan"), GITHUB_EVENT_NAME="pull_request_target", **stage.secrets()
    )
    space = argparse.Namespace(plan=path, event=stage.folder / "event.json", dry_run=True)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert jobs.plan(space, env) == 0
    for word in ("/issues/1/comments", "/pulls/1", "check-runs" if stage.has_app else "statuses"):
        assert word in out.getvalue()
    assert stage.github.writes == []


def test_scope_without_a_plan_is_red(stage: Stage) -> None:
    pull = stage.open()
    (event,) = stage.world.take_events("pull_request")
    for content in (None, b"", b"{}", b'{"schema": "fla-bot/cases@1", "cases": [{"number": 1}]}'):
        path = stage.folder / "plan.json"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        stage.plan(event, path, SCOPE_RESULT="failure")
        assert stage.ready(pull) == "failure"
        assert "infra" in stage.comments(pull)[0]
    stage.say(pull, "alice", "/fla-bot run")
    stage.settle()
    assert stage.ready(pull) in AWAITED
    assert f"/fla-bot approve {pull.sha}" in stage.comments(pull)[0]


def test_plan_that_was_tampered_with_is_refused(stage: Stage) -> None:
    pull: Pull = stage.open()
    (event,) = stage.world.take_events("pull_request")
    path = stage.folder / "plan.json"
    stage.scope(event, path)
    data = json.loads(path.read_text())
    for job in data["cases"][0]["report"]["plan"]["jobs"]:
        job["required"] = False
    path.write_text(json.dumps(data))
    stage.plan(event, path)
    assert stage.ready(pull) == "failure"
    assert "is not required, against the policy" in stage.comments(pull)[0]


def test_order_of_a_lane_is_the_ledgered_plan(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    run = gated.runs()[0]
    gated.world.begin(run)
    gated.gate(run, "lane")
    path = gated.folder / "lane.json"
    order = read_order(path)
    assert (order.plan.hash, order.plan.head) == (gated.case(pull).plan, pull.sha)
    assert order.lane in ("interpret:cpu", "correctness:sm90")
    for old, new in ((b'"required":true', b'"required":false'), (b"{", b"["), (b'"lane"', b'"x"')):
        path.write_bytes(path.read_bytes().replace(old, new, 1))
        with pytest.raises(UserError):
            read_order(path)


def test_check_that_waits_long_is_posted_anew(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    for days in (0, 8):
        gated.world.advance(days=days)
        view, state = gated.view(pull), CheckState.IN_PROGRESS
        standings = {pull.number: view.standings[pull.number]}
        with gated.reconciler().client as client:
            ledger = Ledger(client, app=True)
            assert ledger.put(view, pull.sha, READY, state, "x", "y", standings, renew=days > 0)
    gated.world.advance(days=13)
    assert gated.ready(pull) == "in_progress"  # GitHub marks it stale 14 days after its start
