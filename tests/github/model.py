"""The stateful model: people, machines and events against the double, with the bot between them.

What was really measured is written down beside it, and every green is checked against it.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bot.errors import InfraError, UserError
from bot.github.actor import Hint
from bot.github.case import Case, Origin, RowId
from bot.github.client import Client
from bot.github.connection import App as Identity
from bot.github.connection import Connection, Token
from bot.github.executor import check, collect
from bot.github.ledger import READY
from bot.github.operate import EXECUTOR, PLANNER
from bot.github.reconcile import Reconciler
from bot.model import digest
from tests.github.double import Double
from tests.github.stage import BOOKS, PERMISSIONS, PRIVATE, PUBLIC, Stage, evidence_of
from tests.github.world import Actor, Pull, Refusal, Run, World

CODE = "c" * 16
ENDINGS = ("pass", "pass", "pass", "fail", "none", "dies")
OPEN = ("queued", "in_progress", "pending")


class Crash(Exception):
    """The job dies here."""


@dataclass
class Trouble:
    """When a client stops: at its n-th write, before it is sent or right after."""

    at: int = -1
    after: bool = False
    pause: threading.Event | None = None
    paused: threading.Event | None = None


class Fragile(Client):
    """A client whose job can die, or be held up, between any two writes."""

    trouble = Trouble()
    changes: list[tuple[str, dict[str, Any]]]

    def _change(self, method: Any, path: str, body: Any, **more: Any) -> Any:
        trouble = self.trouble
        trouble.at -= 1
        due = trouble.at == -1
        if due and trouble.pause is not None and trouble.paused is not None:
            trouble.paused.set()
            trouble.pause.wait(20)
        elif due and not trouble.after:
            raise Crash
        self.changes.append((path, body or {}))
        reply = super()._change(method, path, body, **more)
        if due and trouble.after and trouble.pause is None:
            raise Crash
        return reply


def template(folder: Path) -> Case:
    """A plan that `scope` made of a real change, to be given to any head."""
    found: list[Case] = []
    with Double() as github:
        stage = Stage(github, folder, _Keep(), app=True)
        pull = stage.open()
        stage.settle()
        found.append(stage.case(pull))
    return found[0]


class _Keep(pytest.MonkeyPatch):
    """Real time outside of the template's stage."""

    def setitem(self, dic: Any, name: Any, value: Any) -> None:
        """Change nothing."""


def case_for(base: Case, pull: Pull, trusted: str, head: str = "") -> Case:
    """The plan of a head: its own jobs, keys and hash."""
    head = head or pull.sha
    sides = {"base": trusted, "merge_base": trusted, "trusted": trusted, "head": head}
    jobs = [
        job.model_copy(update={"key": digest([job.key, head])}) for job in base.report.plan.jobs
    ]
    plan = base.report.plan.model_copy(update={**sides, "jobs": jobs, "hash": ""})
    plan = plan.model_copy(update={"hash": plan.compute_hash()})
    change = base.report.change.model_copy(update=sides)
    report = base.report.model_copy(update={"plan": plan, "change": change})
    contracts = {
        op: Origin(commit=trusted, fingerprint=origin.fingerprint)
        for op, origin in base.contracts.items()
    }
    update = {"number": pull.number, "base_ref": pull.base, "report": report, "code": CODE,
              "bot": "b" * 40, "contracts": contracts}  # fmt: skip
    return base.model_copy(update=update)


class Machine(RuleBasedStateMachine):
    """One repository and two pull requests."""

    base: Case
    app: bool

    def __init__(self) -> None:
        super().__init__()
        self.exit = contextlib.ExitStack()
        self.github = self.exit.enter_context(Double(World(public=True)))
        self.folder = Path(self.exit.enter_context(tempfile.TemporaryDirectory()))
        world = self.world = self.github.world
        world.person("mona", "maintain")
        world.person("wes", "write")
        world.workflow(PLANNER, inputs=("pr",))
        world.workflow(EXECUTOR, inputs=("plan",), run_name="fla-bot-executor ${{ inputs.plan }}")
        files = {f"contracts/{path.name}": path.read_bytes() for path in BOOKS.glob("*.yaml")}
        self.trusted = world.push("main", files)
        world.push("stable", sha=self.trusted)
        self.bot = world.app("fla-bot", PERMISSIONS, PUBLIC)
        if self.app:
            world.protect("main", (READY, self.bot.id))
        else:
            world.protect("main", (READY, None))
        self.truth: dict[tuple[str, str], set[str]] = {}
        self.forged: set[str] = set()
        self.moved: set[int] = set()
        self.lost: list[tuple[int, str, str]] = []
        self.trouble = Trouble()
        self.tokens = 0

    def teardown(self) -> None:
        try:
            if self.world.pulls:
                self.quiesce()
        finally:
            self.github.check()
            self.exit.close()

    # The bot.

    @contextlib.contextmanager
    def reconciler(self, trouble: Trouble | None = None) -> Iterator[Reconciler]:
        """The bot in one job."""
        identity: Identity | Token
        if self.app:
            wanted = tuple(sorted(PERMISSIONS.items()))
            identity = Identity(self.bot.id, PRIVATE, "fla-bot", self.bot.installation, wanted)
        else:
            names = {name.replace("_", "-"): level for name, level in PERMISSIONS.items()
                     if name != "metadata"}  # fmt: skip
            identity = Token(self.world.job_token({**names, "statuses": "write"}))
        connection = Connection(
            identity,
            base_url=self.github.url,
            sleep=lambda seconds: self.world.advance(seconds=seconds),
            clock=lambda: self.world.now.timestamp(),
        )
        client = Fragile(self.world.full_name, identity, connection=connection)
        client.trouble = trouble or Trouble()
        client.changes = []
        with client:
            try:
                yield Reconciler(client, app=self.app, mode="on", code=CODE)
            finally:
                self.no_green_right_after_a_retarget(client.changes)

    def job(self, number: int, hint: Hint) -> None:
        """One job that reconciles; it may die on the way."""
        trouble, self.trouble = self.trouble, Trouble()
        with self.reconciler(trouble) as reconciler, contextlib.suppress(Crash):
            reconciler.reconcile(number, hint)

    def event(self, number: int, *, pusher: str = "", head: str = "") -> None:
        """An event with the plan that `scope` made of what was there then."""
        pull = self.world.pulls[number]
        fresh = case_for(self.base, pull, self.trusted, head)
        self.job(number, Hint(fresh=fresh, pusher=pusher, pushed=head))

    def planned(self) -> None:
        """Planner runs that the bot has started."""
        for event in self.world.take_events():
            if event.name == "workflow_dispatch" and event.subject.workflow.file == PLANNER:
                self.event(int(event.subject.inputs["pr"]))

    # What people and GitHub do.

    @initialize()
    def start(self) -> None:
        pull = self.world.open_pull("alice", {"a.py": b"1"})
        self.lost.append((1, "alice", pull.sha))

    @precondition(lambda self: len(self.world.pulls) < 2)
    @rule(author=st.sampled_from(["wes", "eve"]))
    def open_pull(self, author: str) -> None:
        pull = self.world.open_pull(author, {"b.py": author.encode()}, fork=author != "wes")
        self.lost.append((pull.number, author, pull.sha))

    @rule(number=st.integers(1, 2), text=st.binary(max_size=2))
    def push(self, number: int, text: bytes) -> None:
        if pull := self.world.pulls.get(number):
            owner = pull.owner or "alice"
            self.world.push(pull.head, {"c.py": text}, owner=owner, author=pull.author)
            self.lost.append((number, pull.author, pull.sha))

    @rule(
        number=st.integers(1, 2),
        who=st.sampled_from(["mona", "wes", "alice", "eve"]),
        kind=st.sampled_from(["approve", "rerun", "cancel", "status", "run", "help", "nonsense"]),
    )
    def say(self, number: int, who: str, kind: str) -> None:
        if pull := self.world.pulls.get(number):
            self.world.advance(seconds=3)
            text = f"/fla-bot {kind}{f' {pull.sha}' if kind == 'approve' else ''}"
            self.world.add_comment(number, Actor(who), text)
            self.lost.append((number, "", ""))

    @rule(number=st.integers(1, 2), proved=st.booleans(), planned=st.booleans())
    def retarget(self, number: int, proved: bool, planned: bool) -> None:
        """The other base branch, perhaps when all is green; its plan comes now or some day."""
        pull = self.world.pulls.get(number)
        if pull is None:
            return
        if proved:
            self.all_is_proved(number)
        base = "stable" if pull.base == "main" else "main"
        self.world.edit_pull(pull, Actor(pull.author), base=base)
        # Back before anybody has looked, it never left.
        self.moved ^= {number}
        if planned:
            self.event(number)

    @rule(number=st.integers(1, 2))
    def forge(self, number: int) -> None:
        """An insider posts our status; the pull request's own workflow has a job of our name."""
        if pull := self.world.pulls.get(number):
            self.forged.add(pull.sha)
            green = {"context": READY, "state": "success"}
            self.world.add_status(Actor("wes"), pull.sha, green)
            if self.app:
                words = {"name": READY, "head_sha": pull.sha, "conclusion": "success"}
                self.world.create_check(self.world.job_actor(), words)

    @rule(role=st.sampled_from(["maintain", "read"]))
    def change_role(self, role: Any) -> None:
        self.world.person("mona", role)

    @rule(number=st.integers(1, 2), draft=st.booleans())
    def draft(self, number: int, draft: bool) -> None:
        if pull := self.world.pulls.get(number):
            self.world.set_draft(pull, Actor(pull.author), draft=draft)
            self.lost.append((number, "", ""))

    @rule()
    def delete_our_comment(self) -> None:
        for comment in list(self.world.comments.values()):
            if comment.actor.kind != "person":
                self.world.delete_comment(comment, Actor("mona"))
                return

    @rule(minutes=st.sampled_from([1, 15, 90, 300]))
    def wait(self, minutes: int) -> None:
        self.world.advance(minutes=minutes)

    @rule(number=st.integers(1, 2))
    def all_goes_well(self, number: int) -> None:
        """A plan, an approval, and every event of both in time."""
        if pull := self.world.pulls.get(number):
            self.event(number)
            self.world.person("mona", "maintain")
            self.world.advance(seconds=3)
            self.world.add_comment(number, Actor("mona"), f"/fla-bot approve {pull.sha}")
            self.job(number, Hint())

    @precondition(lambda self: self.open_runs())
    @rule()
    def all_machines_pass(self) -> None:
        for run in self.open_runs():
            self.execute(run, "pass")

    @rule(number=st.integers(1, 2))
    def all_is_proved(self, number: int) -> None:
        """From the plan to its green."""
        self.all_goes_well(number)
        self.all_machines_pass()

    @rule(number=st.integers(1, 2), push=st.booleans(), ending=st.sampled_from(["fail", "dies"]))
    def bad_luck_then_insist(self, number: int, push: bool, ending: str) -> None:
        """Machines fail; whoever is impatient asks for the same again, or for the next head."""
        pull = self.world.pulls.get(number)
        if pull is None:
            return
        self.all_goes_well(number)
        for run in self.open_runs():
            self.execute(run, ending)
        if push:
            owner = pull.owner or "alice"
            self.world.push(pull.head, {"d.py": b"4"}, owner=owner, author=pull.author)
            self.event(number)
        self.world.advance(seconds=3)
        self.world.add_comment(number, Actor("wes"), "/fla-bot rerun")
        self.job(number, Hint())
        self.all_machines_pass()

    # Events arrive late, twice, in any order, or never; jobs die anywhere.

    @rule(at=st.integers(0, 12), after=st.booleans())
    def next_job_dies(self, at: int, after: bool) -> None:
        self.trouble = Trouble(at, after)

    @precondition(lambda self: self.lost)
    @rule(which=st.integers(0, 50), again=st.booleans())
    def deliver(self, which: int, again: bool) -> None:
        item = self.lost[which % len(self.lost)]
        if not again:
            self.lost.remove(item)
        number, pusher, head = item
        if pusher:
            self.event(number, pusher=pusher, head=head)
        else:
            self.job(number, Hint())

    @rule()
    def deliver_planner(self) -> None:
        self.planned()

    @rule(number=st.integers(1, 2))
    def reap(self, number: int) -> None:
        if number in self.world.pulls:
            self.job(number, Hint())

    @rule(number=st.integers(1, 2), at=st.integers(0, 9), fresh=st.booleans())
    def two_at_once(self, number: int, at: int, fresh: bool) -> None:
        """One job is held up before a write while another one runs from end to end."""
        pull = self.world.pulls.get(number)
        if pull is None:
            return
        slow = Trouble(at, pause=threading.Event(), paused=threading.Event())
        hint = Hint(fresh=case_for(self.base, pull, self.trusted)) if fresh else Hint()
        assert slow.pause
        assert slow.paused

        def first() -> None:
            try:
                with self.reconciler(slow) as reconciler:
                    reconciler.reconcile(number, hint)
            finally:
                slow.paused.set()  # type: ignore[union-attr]

        thread = threading.Thread(target=first)
        thread.start()
        slow.paused.wait(20)
        self.job(number, hint)
        slow.pause.set()
        thread.join(30)
        assert not thread.is_alive()

    # Machines.

    def open_runs(self) -> list[Run]:
        return [run for run in self.world.runs.values()
                if run.workflow.file == EXECUTOR and run.status != "completed"]  # fmt: skip

    @precondition(lambda self: self.open_runs())
    @rule(
        which=st.integers(0, 9),
        ending=st.sampled_from(["pass", "pass", "pass", "fail", "none", "dies"]),
    )
    def machine(self, which: int, ending: str) -> None:
        runs = self.open_runs()
        self.execute(runs[which % len(runs)], ending)

    def execute(self, run: Run, ending: str) -> None:
        """A run from gate to publish; it may die before it publishes."""
        plan = run.inputs["plan"]
        if run.status == "queued":
            self.world.begin(run)
        row = RowId.parse(plan)
        try:
            with self.reconciler() as reconciler:
                found = check(reconciler, plan, run.id)
            self.no_run_without_a_word(row)
            gate = "success"
        except (UserError, InfraError):
            gate = "failure"
        if ending == "dies":
            with contextlib.suppress(Refusal):
                self.world.finish(run, "failure")
            return
        folder = self.folder / str(run.id)
        folder.mkdir(exist_ok=True)
        if gate == "success" and ending != "none":
            rms = 1e-8 if ending == "pass" else 0.5
            for name, text in evidence_of(found.case, row.lane, rms).items():
                (folder / name).write_bytes(text)
            # Written down before anybody may say it: a crash may come in between.
            self.truth.setdefault((found.case.head, row.lane), set()).add(ending)
        trouble, self.trouble = self.trouble, Trouble()
        with self.reconciler(trouble) as reconciler, contextlib.suppress(Crash, UserError):
            collect(reconciler, plan, run.id, folder, gate)
        if run.status != "completed":
            self.world.finish(run, "success" if gate == "success" else "failure")

    # What must hold.

    def verdict(self, sha: str) -> str:
        if not self.app:
            found = [s.state for s in self.world.statuses_of(sha)
                     if s.context == READY and s.creator.kind != "person"]  # fmt: skip
            return found[0] if found else "none"
        checks = [c for c in self.world.latest_checks(sha)
                  if c.name == READY and c.suite.app.id == self.bot.id]  # fmt: skip
        return (checks[-1].conclusion or checks[-1].status) if checks else "none"

    @invariant()
    def no_green_without_proof(self) -> None:
        lanes = {job.lane for job in self.base.report.plan.jobs if job.required}
        for pull in self.world.pulls.values():
            if self.verdict(pull.sha) == "success":
                for lane in lanes:
                    assert self.truth.get((pull.sha, lane)) == {"pass"}, "green without proof"

    def no_run_without_a_word(self, row: RowId) -> None:
        """Code of a head runs only if somebody who may has named that head, or pushed it."""
        pull, may = self.world.pulls[row.number], ("write", "maintain")
        words = f"/fla-bot approve {row.head}"
        named = any(
            comment.body == words and self.world.role(comment.actor.login) in may
            for comment in self.world.comments.values()
            if comment.number == row.number
        )
        assert named or self.world.role(pull.author) in may, "code runs without a word for it"

    def no_green_right_after_a_retarget(self, changes: list[tuple[str, dict[str, Any]]]) -> None:
        """What was green for one branch must be taken back before it is green for another."""
        for path, body in changes:
            number = path.rpartition("/")[2]
            check = self.world.checks.get(int(number)) if number.isdigit() else None
            named = check.name if check and "/check-runs/" in path else body.get("name")
            if READY not in (named, body.get("context")):
                continue
            sha = check.suite.sha if check else body.get("head_sha", number)
            state = body.get("conclusion") or body.get("status") or body.get("state")
            for pull in self.world.pulls.values():
                if pull.sha == sha and pull.number in self.moved:
                    self.moved.discard(pull.number)
                    assert state != "success", "green for the old base and for the new one"

    def quiesce(self) -> None:
        """Everything ends, the reaper looks: nothing waits any more, and there is one comment."""
        self.trouble = Trouble()
        for _ in range(6):
            for run in self.open_runs():
                self.execute(run, "dies")
            self.world.advance(hours=2)
            self.planned()
            for number in self.world.pulls:
                self.job(number, Hint())
            self.planned()
        for pull in self.world.pulls.values():
            assert self.verdict(pull.sha) not in (*OPEN, "none"), "it waits for ever"
            ours = [c for c in self.world.comments.values()
                    if c.number == pull.number and c.actor.kind != "person"]  # fmt: skip
            assert len(ours) <= 1, "two comments"
            if pull.sha in self.forged:
                assert self.verdict(pull.sha) == "failure", "a forgery is not told"
        self.no_green_without_proof()
        assert not self.open_runs()
        json.dumps([item.path for item in self.github.log])


def run_model(
    base: Case, *, app: bool, examples: int, steps: int, phases: Collection[Phase] = tuple(Phase)
) -> None:
    machine = type("Played", (Machine,), {"base": base, "app": app})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            phases=phases,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
