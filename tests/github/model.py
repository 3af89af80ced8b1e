"""The stateful model: people, machines and events against the double, with the bot between them.

What was really measured, and what people said of which head, is written down beside it, and every
green is checked against it.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
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
from bot.github import approvals
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
from tests.conftest import ROOT
from tests.github.double import Double
from tests.github.stage import (
    BOOKS,
    KERNEL,
    MENDED,
    PERMISSIONS,
    PRIVATE,
    PUBLIC,
    Content,
    Stage,
    evidence_of,
)
from tests.github.world import Actor, Pull, Refusal, Run, World

CODE = "c" * 16
BOOK = (BOOKS / "l2norm.yaml").read_text()
CONTRACTS = {op: BOOK.replace("l2norm", op) for op in ("l2norm", "other")}
WORDS = "docs.md"  # what no job depends on
Fates = Mapping[str, str]  # by op: pass, fail or none, where no evidence is left
PASS, FAIL = (dict.fromkeys(CONTRACTS, fate) for fate in ("pass", "fail"))
HALF_LOST, HALF_FAILED = {"l2norm": "pass", "other": "none"}, {"l2norm": "fail", "other": "pass"}
NONE, DIES = dict.fromkeys(CONTRACTS, "none"), dict[str, str]()
ENDINGS: tuple[Fates, ...] = (PASS, PASS, PASS, FAIL, HALF_LOST, HALF_FAILED, NONE, DIES)
BATCH = 10  # examples, from which on hypothesis varies the same few
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
    """A plan that `scope` made of a real change of two ops, to be given to any head."""
    found: list[Case] = []
    kernels, texts = dict[str, Content](), dict[str, Content]()
    with Double() as github:
        stage = Stage(github, folder, _Keep(), app=True)
        for op, contract in CONTRACTS.items():
            for path in (KERNEL, "fla/modules/l2norm_naive.py"):
                texts[path.replace("l2norm", op)] = (ROOT / path).read_text().replace("l2norm", op)
            texts[f"contracts/{op}.yaml"] = contract
            kernel = KERNEL.replace("l2norm", op)
            kernels[kernel] = str(texts[kernel]).replace(*MENDED, 1)
        stage.merge(texts)
        pull = stage.open(files=kernels)
        stage.settle()
        found.append(stage.case(pull))
    return found[0]


class _Keep(pytest.MonkeyPatch):
    """Real time outside of the template's stage."""

    def setitem(self, dic: Any, name: Any, value: Any) -> None:
        """Change nothing."""


def case_for(base: Case, pull: Pull, trusted: str, head: str, code: str) -> Case:
    """The plan of a head: its own hash, and jobs whose keys tell what `code` they run."""
    sides = {"base": trusted, "merge_base": trusted, "trusted": trusted, "head": head}
    jobs = [
        job.model_copy(update={"key": digest([job.key, code])}) for job in base.report.plan.jobs
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
        files = {f"contracts/{op}.yaml": text.encode() for op, text in CONTRACTS.items()}
        files["contracts/policy.yaml"] = (BOOKS / "policy.yaml").read_bytes()
        self.trusted = world.push("main", files)
        world.push("stable", sha=self.trusted)
        self.bot = world.app("fla-bot", PERMISSIONS, PUBLIC)
        if self.app:
            world.protect("main", (READY, self.bot.id))
        else:
            world.protect("main", (READY, None))
        self.passed: set[tuple[str, str]] = set()  # job and key
        self.failed: dict[tuple[int, str], set[tuple[str, str]]] = {}  # of each head: job and key
        self.waived: set[tuple[int, str, str]] = set()  # pull request, its head then, job
        self.last: dict[int, str] = {}  # the head that was looked at last, if that went well
        self.cases: dict[tuple[int, str, str], Case] = {}
        self.measured: list[tuple[Run, Path, Fates]] = []
        self.forged: set[str] = set()
        self.moved: set[int] = set()
        self.lost: list[tuple[int, str, str, str]] = []
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
        with self.looks(number), self.reconciler(trouble) as reconciler:
            reconciler.reconcile(number, hint)

    @contextlib.contextmanager
    def looks(self, number: int) -> Iterator[None]:
        """A job looks at a pull request: what was found on the head before it counts on this one.

        A job that dies may have left a trace of the head, or none.
        """
        head = self.world.pulls[number].sha
        if (number, head) not in self.failed:
            before = self.failed.get((number, self.last.get(number, "")), set())
            self.failed[number, head] = set(before)
        self.last[number] = ""
        with contextlib.suppress(Crash):
            yield
            self.last[number] = head
            self.no_green_over_a_fail(number)

    def event(self, number: int, *, pusher: str = "", head: str = "", before: str = "") -> None:
        """An event with the plan that `scope` made of what was there then."""
        fresh = self.case(number, head or self.world.pulls[number].sha)
        self.job(number, Hint(fresh=fresh, pusher=pusher, pushed=head, before=before))

    def case(self, number: int, head: str) -> Case:
        """The plan of a head; words alone change no job."""
        pull = self.world.pulls[number]
        place = (number, head, pull.base)
        if place not in self.cases:
            files = self.world.commits[head].files
            code = digest([number, *((p, t.hex()) for p, t in sorted(files.items()) if p != WORDS)])
            self.cases[place] = case_for(self.base, pull, self.trusted, head, code)
        return self.cases[place]

    def jobs(self, number: int, head: str) -> set[tuple[str, str]]:
        """The jobs that a head needs, with their keys."""
        jobs = self.case(number, head).report.plan.jobs
        return {(job.id, job.key) for job in jobs if job.required}

    def planned(self) -> None:
        """Planner runs that the bot has started."""
        for event in self.world.take_events():
            if event.name == "workflow_dispatch" and event.subject.workflow.file == PLANNER:
                self.event(int(event.subject.inputs["pr"]))

    # What people and GitHub do.

    @initialize()
    def start(self) -> None:
        pull = self.world.open_pull("alice", {"a.py": b"1"})
        self.lost.append((1, "alice", pull.sha, ""))

    @precondition(lambda self: len(self.world.pulls) < 2)
    @rule(author=st.sampled_from(["wes", "eve"]))
    def open_pull(self, author: str) -> None:
        pull = self.world.open_pull(author, {"b.py": author.encode()}, fork=author != "wes")
        self.lost.append((pull.number, author, pull.sha, ""))

    @rule(
        number=st.integers(1, 2), text=st.binary(max_size=2), path=st.sampled_from(["c.py", WORDS])
    )
    def push(self, number: int, text: bytes, path: str) -> None:
        if pull := self.open(number):
            self.move(pull, {path: text})

    @rule(number=st.integers(1, 2), which=st.integers(0, 9))
    def push_back(self, number: int, which: int) -> None:
        """An earlier head by force."""
        if (pull := self.open(number)) and (known := [h for n, h in self.failed if n == number]):
            self.move(pull, sha=known[which % len(known)])

    def open(self, number: int) -> Pull | None:
        """A pull request, if it is there and open."""
        pull = self.world.pulls.get(number)
        return pull if pull and pull.state == "open" else None

    def move(self, pull: Pull, files: dict[str, bytes | None] | None = None, sha: str = "") -> None:
        """Another head, whose event comes some day."""
        before, more = pull.sha, {"sha": sha} if sha else {}
        self.world.advance(seconds=3)
        self.world.push(pull.head, files, owner=pull.owner, author=pull.author, **more)
        if pull.sha != before:
            self.lost.append((pull.number, pull.author, pull.sha, before))

    @rule(number=st.integers(1, 2), which=st.integers(0, 3))
    def waive(self, number: int, which: int) -> None:
        """Somebody who may speaks of what is there now; it is heard now or on another head."""
        if pull := self.world.pulls.get(number):
            jobs = sorted(self.jobs(number, pull.sha))
            self.type_waivers(pull, [jobs[which % len(jobs)][0]])
            self.lost.append((number, "", "", ""))

    def type_waivers(self, pull: Pull, jobs: Collection[str]) -> None:
        self.world.advance(seconds=3)
        self.waived |= {(pull.number, pull.sha, job) for job in jobs}
        lines = [f"/fla-bot waive {job} as seen here" for job in jobs]
        self.world.add_comment(pull.number, Actor("mona"), "\n".join(lines))

    @rule(number=st.integers(1, 2), back=st.booleans())
    def close(self, number: int, back: bool) -> None:
        """Closed, and perhaps opened again before anybody looks."""
        if pull := self.world.pulls.get(number):
            who = Actor(pull.author)
            self.world.edit_pull(pull, who, state="closed" if pull.state == "open" else "open")
            self.job(number, Hint())
            if back and pull.state == "closed":
                self.world.edit_pull(pull, who, state="open")
                self.event(number)

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
            self.lost.append((number, "", "", ""))

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
            self.lost.append((number, "", "", ""))

    @rule()
    def delete_our_comment(self) -> None:
        for comment in list(self.world.comments.values()):
            if comment.actor.kind != "person":
                self.world.delete_comment(comment, Actor("mona"))
                self.forget(comment.number)
                return

    def forget(self, number: int) -> None:
        """The comment names the head before; without an App it holds what was found, too."""
        self.last[number] = ""
        for (other, _), found in self.failed.items():
            if other == number and not self.app:
                found.clear()

    @rule(minutes=st.sampled_from([1, 15, 90, 300]))
    def wait(self, minutes: int) -> None:
        self.world.advance(minutes=minutes)

    @rule(number=st.integers(1, 2))
    def all_goes_well(self, number: int) -> None:
        """A plan, an approval, and every event of both in time."""
        pull = self.ready(number)
        self.event(pull.number)
        self.world.person("mona", "maintain")
        self.world.advance(seconds=3)
        self.world.add_comment(pull.number, Actor("mona"), f"/fla-bot approve {pull.sha}")
        self.job(pull.number, Hint())

    def ready(self, number: int) -> Pull:
        """A pull request that machines may run, whatever became of it before."""
        pull = self.world.pulls[min(number, len(self.world.pulls))]
        if pull.draft:
            self.world.set_draft(pull, Actor(pull.author), draft=False)
        if pull.state == "closed":
            self.world.edit_pull(pull, Actor(pull.author), state="open")
        return pull

    @precondition(lambda self: self.open_runs())
    @rule()
    def all_machines_pass(self) -> None:
        for run in self.open_runs():
            self.execute(run, PASS)

    @rule(number=st.integers(1, 2))
    def all_is_proved(self, number: int) -> None:
        """From the plan to its green."""
        self.all_goes_well(number)
        self.all_machines_pass()

    @rule(number=st.integers(1, 2), push=st.booleans(), ending=st.sampled_from([FAIL, DIES]))
    def bad_luck_then_insist(self, number: int, push: bool, ending: Fates) -> None:
        """Machines fail; whoever is impatient asks for the same again, or for the next head."""
        pull = self.ready(number)
        number = pull.number
        self.all_goes_well(number)
        for run in self.open_runs():
            self.execute(run, ending)
        if push:
            self.move(pull, {"d.py": b"4"})
            self.event(number)
        self.type_and_hear(number, "rerun")
        self.all_machines_pass()

    def type_and_hear(self, number: int, command: str) -> None:
        self.world.advance(seconds=3)
        self.world.add_comment(number, Actor("wes"), f"/fla-bot {command}")
        self.job(number, Hint())

    @rule(number=st.integers(1, 2), first=st.sampled_from(ENDINGS), then=st.sampled_from(ENDINGS))
    def push_words_after_two_runs(self, number: int, first: Fates, then: Fates) -> None:
        """Lanes of two jobs run twice, with other luck; the next head asks for the same jobs."""
        pull = self.ready(number)
        number, before = pull.number, pull.sha
        self.all_goes_well(number)
        for fates in (first, then):
            for run in self.open_runs():
                self.execute(run, fates)
            self.type_and_hear(number, "rerun")
        self.move(pull, {WORDS: b"more"})
        self.event(number, pusher=pull.author, head=pull.sha, before=before)

    @rule(number=st.integers(1, 2), how=st.sampled_from(["cancel", "close", "push"]))
    def bad_luck_and_a_way_out(self, number: int, how: str) -> None:
        """Lanes have failed and nobody knows it yet: their author ends them and asks again."""
        pull = self.ready(number)
        number = pull.number
        self.all_goes_well(number)
        head = pull.sha
        for run in self.open_runs():
            self.measure(run, FAIL)
        if how == "cancel":
            self.type_and_hear(number, "cancel")
        elif how == "close":
            self.close(number, back=False)
        else:
            self.move(pull, {WORDS: b"out"})
            self.event(number, pusher=pull.author, head=pull.sha, before=head)
        self.all_is_published()
        if how == "close":
            self.close(number, back=True)
        elif how == "push":
            self.move(pull, sha=head)
        self.all_goes_well(number)
        self.type_and_hear(number, "rerun")
        self.all_machines_pass()

    @rule(number=st.integers(1, 2), heard=st.booleans(), late=st.booleans())
    def words_cross_a_push(self, number: int, heard: bool, late: bool) -> None:
        """What was said of a better head meets one that has failed, which has come back."""
        pull = self.ready(number)
        number = pull.number
        self.all_goes_well(number)
        failed = pull.sha
        for run in self.open_runs():
            self.execute(run, FAIL)
        self.move(pull, {WORDS: b"better"})
        self.event(number, pusher=pull.author, head=pull.sha, before=failed)
        self.type_waivers(pull, sorted(job for job, _ in self.jobs(number, pull.sha)))
        if heard:
            self.job(number, Hint())
        before = pull.sha
        if late:
            self.move(pull, {WORDS: b"best"})
            late_event = (pull.author, pull.sha, before)
            before = pull.sha
        self.move(pull, sha=failed)
        self.event(number, pusher=pull.author, head=failed, before=before)
        if late:
            pusher, head, before = late_event
            self.event(number, pusher=pusher, head=head, before=before)

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
        number, pusher, head, before = item
        if pusher:
            self.event(number, pusher=pusher, head=head, before=before)
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
        hint = Hint(fresh=self.case(number, pull.sha)) if fresh else Hint()
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
    @rule(which=st.integers(0, 9), fates=st.sampled_from(ENDINGS))
    def machine(self, which: int, fates: Fates) -> None:
        runs = self.open_runs()
        self.execute(runs[which % len(runs)], fates)

    @precondition(lambda self: self.open_runs())
    @rule(which=st.integers(0, 9), fates=st.sampled_from(ENDINGS))
    def slow_machine(self, which: int, fates: Fates) -> None:
        """A machine that has measured, and whose last job waits for its turn."""
        runs = self.open_runs()
        self.measure(runs[which % len(runs)], fates)

    @precondition(lambda self: self.measured)
    @rule(which=st.integers(0, 9))
    def publish(self, which: int) -> None:
        self.collect(*self.measured.pop(which % len(self.measured)))

    def all_is_published(self) -> None:
        while self.measured:
            self.collect(*self.measured.pop(0))

    def execute(self, run: Run, fates: Fates) -> None:
        """A run from gate to publish; it may die before it publishes."""
        self.measure(run, fates)
        if self.measured and self.measured[-1][0] is run:
            self.collect(*self.measured.pop())

    def measure(self, run: Run, fates: Fates) -> None:
        """The gate and the lane of a run, which leaves its evidence or dies."""
        if any(run is known for known, *_ in self.measured):
            return
        if run.status == "queued":
            self.world.begin(run)
        plan = run.inputs["plan"]
        row = RowId.parse(plan)
        found = None
        with contextlib.suppress(UserError, InfraError), self.reconciler() as reconciler:
            found = check(reconciler, plan, run.id).case
            self.no_run_without_a_word(row)
        if fates is DIES:
            with contextlib.suppress(Refusal):
                self.world.finish(run, "failure")
            return
        folder = self.folder / str(run.id)
        folder.mkdir(exist_ok=True)
        for op, fate in fates.items() if found else ():
            rms, text = (0.5 if fate == "fail" else 1e-8), CONTRACTS[op]
            for name, content in evidence_of(found, row.lane, rms, text).items() if found else ():
                if fate != "none":
                    (folder / name).write_bytes(content)
        # Written down before anybody may say it: a crash may come in between.
        self.passed |= self.ended(row, fates, "pass") if found else set()
        self.measured.append((run, folder, fates if found else {}))

    def ended(self, row: RowId, fates: Fates, fate: str) -> set[tuple[str, str]]:
        """The jobs of a run that ended so, with their keys."""
        jobs = self.case(row.number, row.head).report.plan.jobs
        return {(j.id, j.key) for j in jobs if j.lane == row.lane and fates.get(j.op) == fate}

    def collect(self, run: Run, folder: Path, fates: Fates) -> None:
        """The last job of a run; what it was told of a fail is known from then on."""
        row, gate = RowId.parse(run.inputs["plan"]), "success" if fates else "failure"
        trouble, self.trouble = self.trouble, Trouble()
        with self.looks(row.number), contextlib.suppress(UserError):
            with self.reconciler(trouble) as reconciler:
                collect(reconciler, str(row), run.id, folder, gate)
            known = self.ended(row, fates, "fail")
            self.failed.setdefault((row.number, row.head), set()).update(known)
        if run.status != "completed":
            self.world.finish(run, "success" if fates else "failure")

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
        for pull in self.world.pulls.values():
            if self.verdict(pull.sha) == "success":
                for job, key in self.jobs(pull.number, pull.sha):
                    waived = (pull.number, pull.sha, job) in self.waived
                    assert waived or (job, key) in self.passed, "green without proof"

    def no_green_over_a_fail(self, number: int) -> None:
        """Somebody has looked, and knew of a fail: it stays, unless this very head was waived."""
        head = self.world.pulls[number].sha
        if self.verdict(head) == "success":
            for job, _ in self.failed[number, head] & self.jobs(number, head):
                assert (number, head, job) in self.waived, "green over a fail"

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
                self.execute(run, DIES)
            self.all_is_published()
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
    with pytest.MonkeyPatch.context() as patch:
        # The same few comments are read again and again.
        patch.setattr(approvals, "commands", cache(approvals.commands))
        for number in range(0, examples, BATCH):
            seed(number)(machine)
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=min(BATCH, examples - number),
                    stateful_step_count=steps,
                    deadline=None,
                    derandomize=True,
                    phases=phases,
                    print_blob=False,
                    suppress_health_check=list(HealthCheck),
                ),
            )
