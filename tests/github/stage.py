"""A whole repository on stage: real git objects, the double of GitHub, and our jobs between them.

Jobs run in this process through their command functions, each with a token that has exactly the
permissions of its YAML.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import argparse
import contextlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import jwt.algorithms
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from bot.cells import call, public_seed
from bot.evidence import HUGE
from bot.github import jobs
from bot.github.case import Case, RowId, Standing
from bot.github.connection import Connection
from bot.github.jobs import open_reconciler
from bot.github.ledger import READY, Ledger, View
from bot.github.operate import EXECUTOR, PLANNER
from bot.github.reconcile import Reconciler
from bot.github.status import OFF_RUN
from bot.plan import find_cells
from tests.conftest import L2NORM, ROOT, Workbench
from tests.github.double import Double
from tests.github.world import Actor, App, Event, Pull, Run

BOOKS = Path(__file__).parent / "repository"
KERNEL = "fla/modules/l2norm.py"
MENDED = ("min(32, TILE // columns)", "min(16, TILE // columns)")
PERMISSIONS = {"actions": "write", "checks": "write", "contents": "read", "metadata": "read",
               "pull_requests": "write", "statuses": "read"}  # fmt: skip
# Checking a private key takes longer than all the rest of a job; there is only one here.
jwt.algorithms.load_pem_private_key = cache(jwt.algorithms.load_pem_private_key)
_KEY = rsa.generate_private_key(65537, 2048)
PRIVATE = _KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()
PUBLIC = (
    _KEY.public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    .decode()
)
AWAITED = ("action_required", "failure")
RUNNING = ("in_progress", "pending")
WORKFLOWS = {
    name: yaml.safe_load((ROOT / ".github/workflows" / name).read_text())
    for name in (PLANNER, EXECUTOR)
}


@dataclass(frozen=True)
class Odd:
    """A tree's entry that is no plain file: a link (120000) or a submodule (160000)."""

    mode: str
    content: str


Content = str | bytes | Odd | None
LINK, SUBMODULE = "120000", "160000"


class Stage:
    """Plays a repository; `app` says whether the bot has an App or only GITHUB_TOKEN."""

    def __init__(
        self, github: Double, folder: Path, patch: pytest.MonkeyPatch | None = None, *, app: bool
    ) -> None:
        self.github, self.world, self.folder = github, github.world, folder
        self.has_app, self.mode, self.workflow_sha = app, "on", "b" * 40
        (folder / "origin").mkdir(parents=True)
        self.git = Workbench(folder / "origin")
        self.app: App | None = None
        if app:
            self.app = self.world.app("fla-bot", PERMISSIONS, PUBLIC)
        self.world.workflow(PLANNER, inputs=("pr",))
        self.world.workflow(
            EXECUTOR,
            inputs=("plan",),
            run_name="fla-bot-executor ${{ inputs.plan }}",
            jobs=(("gate", ("ubuntu-24.04",)), ("lane", ("self-hosted",)), ("publish", ())),
        )
        # Time is the world's: a client that waits lets it pass.
        defaults = Connection.__init__.__kwdefaults__
        assert defaults is not None
        set_item = patch.setitem if patch else dict.__setitem__
        set_item(defaults, "clock", lambda: self.world.now.timestamp())
        set_item(defaults, "sleep", lambda seconds: self.world.advance(seconds=seconds))
        self.start()
        self.world.person("mona", "maintain")
        self.world.person("wes", "write")
        self.world.public = True
        self.world.events.clear()

    def start(self) -> None:
        """The gated branch: our l2norm, its contract and the policy."""
        files: dict[str, str | bytes | None] = {name: (ROOT / name).read_bytes() for name in L2NORM}
        files |= {f"contracts/{path.name}": path.read_bytes() for path in BOOKS.glob("*.yaml")}
        self.put("main", files)
        self.git.git("clone", "--quiet", str(self.git.path), str(self.folder / "clone"))

    # Git and GitHub alike.

    def put(self, branch: str, files: Mapping[str, str | bytes | None]) -> str:
        """A commit on a branch of the repository."""
        if branch != self.git.git("branch", "--show-current"):
            known = self.git.git("branch", "--list", branch)
            self.git.git("switch", "--quiet", *(() if known else ("--create",)), branch)
        sha = self.git.commit(dict(files))
        data = {k: v.encode() if isinstance(v, str) else v for k, v in files.items()}
        parent = self.world.tip(branch) or self.world.tip("main")
        self.world.commit(data, parent, author="octo-org", sha=sha)
        self.world.push(branch, sha=sha)
        return sha

    def commit(self, files: Mapping[str, Content], start: str, author: str) -> str:
        """A commit in nobody's branch, on top of another."""
        git, odd = self.git.git, {k: v for k, v in files.items() if isinstance(v, Odd)}
        plain = {k: v for k, v in files.items() if not isinstance(v, Odd)}
        git("switch", "--quiet", "--detach", start)
        sha = self.git.commit(plain)
        for path, entry in odd.items():
            (target := self.folder / "entry").write_text(entry.content)
            is_link = entry.mode == LINK
            oid = git("hash-object", "-w", str(target)) if is_link else entry.content
            git("update-index", "--add", "--cacheinfo", f"{entry.mode},{oid},{path}")
        if odd:
            git("commit", "--quiet", "--amend", "--no-edit")
            sha = git("rev-parse", "HEAD")
        git("switch", "--quiet", "--force", "main")
        data = {k: v.encode() if isinstance(v, str) else v for k, v in plain.items()}
        data |= {path: entry.content.encode() for path, entry in odd.items()}
        self.world.commit(data, start, author=author, sha=sha)
        return sha

    def merge(self, files: Mapping[str, Content]) -> str:
        """Something that the gated branch has already."""
        sha = self.commit(files, self.world.tip("main") or "", "octo-org")
        self.git.git("reset", "--quiet", "--hard", sha)
        self.world.push("main", sha=sha)
        return sha

    def kernel(self, edit: tuple[str, str] = MENDED) -> dict[str, Content]:
        """An edit of the kernel."""
        return {KERNEL: (ROOT / KERNEL).read_text().replace(*edit, 1)}

    def open(
        self,
        author: str = "alice",
        files: Mapping[str, Content] | None = None,
        *,
        base: str = "main",
        start: str | None = None,
        **more: Any,
    ) -> Pull:
        """A pull request, from the author's fork unless told otherwise."""
        start = start or self.world.tip(base) or ""
        own: dict[str, Content] = {
            **self.kernel(),
            f"docs/{author}.md": f"{author}\n",
        }  # no two have one head
        sha = self.commit(own if files is None else files, start, author)
        pull = self.world.open_pull(author, base=base, sha=sha, **more)
        self.git.git("update-ref", f"refs/pull/{pull.number}/head", sha)
        return pull

    def push(self, pull: Pull, files: Mapping[str, Content], author: str | None = None) -> str:
        """A new commit on the head of a pull request."""
        sha = self.commit(files, pull.sha, author or pull.author)
        self.world.push(pull.head, owner=pull.owner, author=author or pull.author, sha=sha)
        self.git.git("update-ref", f"refs/pull/{pull.number}/head", sha)
        return sha

    def say(self, pull: Pull, login: str, text: str) -> Any:
        """A comment of a person."""
        self.world.advance(seconds=5)
        return self.world.add_comment(pull.number, Actor(login), text)

    def approve(self, pull: Pull, login: str = "mona") -> None:
        """The word of somebody who may, and what comes of it."""
        self.say(pull, login, f"/fla-bot approve {pull.sha}")
        self.settle()

    def turn_green(self, pull: Pull) -> None:
        """Approved, run and passed."""
        self.approve(pull)
        for run in self.runs():
            self.execute(run)
        assert self.ready(pull) == "success"

    def enqueue(self, pull: Pull) -> str:
        """Put a pull request into the merge queue: the commit of its group."""
        tip, git = self.world.tip(pull.base) or "", self.git.git
        git("switch", "--quiet", "--detach", tip)
        git("merge", "--quiet", "--no-ff", "--message=merge", pull.sha)
        head = git("rev-parse", "HEAD")
        git("switch", "--quiet", "main")
        branch = f"gh-readonly-queue/{pull.base}/pr-{pull.number}-{tip}"
        git("update-ref", f"refs/heads/{branch}", head)
        self.world.commit(self.world.commits[pull.sha].files, tip, sha=head)
        self.world.branches[self.world.owner, branch] = head
        return head

    # Jobs.

    def environment(self, token: str, **more: str) -> dict[str, str]:
        """What a job of our workflows has in its environment."""
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder),
            "GITHUB_REPOSITORY": self.world.full_name,
            "GITHUB_API_URL": self.github.url,
            "FLA_BOT_COMMIT": self.workflow_sha,
            "GITHUB_TOKEN": token,
            "FLA_BOT": self.mode,
            "FLA_BOT_APP_ID": str(self.app.id) if self.app else "",
            **more,
        }

    def token(self, workflow: str, job: str) -> str:
        """GITHUB_TOKEN of a job by its YAML."""
        return self.world.job_token_of(WORKFLOWS[workflow], job)

    def secrets(self) -> dict[str, str]:
        """What the environment of the writing jobs adds."""
        return {"FLA_BOT_APP_KEY": PRIVATE} if self.app else {}

    def scope(self, event: Event, out: Path, **more: str) -> int:
        """The job `scope`."""
        name = "pull_request_target" if event.name == "pull_request" else event.name
        payload = self.folder / "event.json"
        payload.write_text(json.dumps(self.github.bodies.payload(event)))
        env = self.environment(self.token(PLANNER, "scope"), GITHUB_EVENT_NAME=name, **more)
        space = argparse.Namespace(event=payload, repo=self.folder / "clone", out=out)
        return jobs.scope(space, env)

    def plan(self, event: Event, path: Path, token: str | None = None, **more: str) -> str:
        """The job `plan`."""
        name = "pull_request_target" if event.name == "pull_request" else event.name
        payload = self.folder / "event.json"
        payload.write_text(json.dumps(self.github.bodies.payload(event)))
        env = self.environment(
            token or self.token(PLANNER, "plan"),
            GITHUB_EVENT_NAME=name,
            **{"SCOPE_RESULT": "success", **self.secrets(), **more},
        )
        space = argparse.Namespace(plan=path, event=payload, dry_run=False)
        return self._quiet(jobs.plan, space, env)

    def handle(self, event: Event, **more: str) -> None:
        """One event through both jobs, as the workflow runs them."""
        path = self.folder / "plan.json"
        path.unlink(missing_ok=True)
        if event.name == "issue_comment" and "/fla-bot" not in event.subject.body:
            return
        self.scope(event, path)
        self.plan(event, path, **more)

    def settle(self, *names: str) -> None:
        """Deliver all events, and those that they cause, until nothing happens any more."""
        known = ("pull_request", "issue_comment", "workflow_dispatch")
        for _ in range(30):
            events = [e for e in self.world.take_events() if e.name in (names or known)]
            if not events:
                return
            for event in events:
                if event.name == "workflow_dispatch" and event.subject.workflow.file != PLANNER:
                    continue
                self.handle(event)
        raise AssertionError("events without end")

    def reap(self, pull: Pull | None = None) -> None:
        """The job `reconcile` of the schedule."""
        env = self.environment(self.token(PLANNER, "reconcile"), **self.secrets())
        space = argparse.Namespace(
            pr=pull.number if pull else None, all=pull is None, dry_run=False
        )
        self._quiet(jobs.reconcile, space, env)

    def looked(self, conclusion: str = "success") -> None:
        """A scheduled run went through all pull requests, or did not."""
        world = self.world
        actor, tip = world.job_actor(), world.tip("main")
        run = world.start_run(world.workflows[PLANNER], "schedule", actor, "main", tip)
        run.title = OFF_RUN if self.mode == "off" else run.title
        world.finish(run, conclusion)

    def due(self, **more: str) -> dict[str, Any]:
        """The job `due` of the schedule."""
        env = self.environment(self.token(PLANNER, "due"), **more)
        space = argparse.Namespace(pr=None, json=True)
        found: dict[str, Any] = json.loads(self._quiet(jobs.status, space, env))
        return found

    def gate(self, run: Run, job: str = "gate") -> dict[str, str]:
        """The jobs `gate` and `lane` (its first step); a UserError where they refuse."""
        out = self.folder / "output"
        out.write_text("")
        env = self.environment(
            self.token(EXECUTOR, job), GITHUB_RUN_ID=str(run.id), GITHUB_OUTPUT=str(out)
        )
        space = argparse.Namespace(plan_id=run.inputs["plan"], out=self.folder / "lane.json")
        self._quiet(jobs.gate if job == "gate" else jobs.lane_check, space, env)
        return dict(line.split("=", 1) for line in out.read_text().splitlines())

    def publish(
        self,
        run: Run,
        evidence: Mapping[str, bytes],
        gate: str = "success",
        *,
        lane: str = "",
        dry_run: bool = False,
    ) -> str:
        """The job `publish`, with the files of the artifact."""
        folder = self.folder / "artifacts" / str(self.world.next_id())
        folder.mkdir(parents=True)
        for name, content in evidence.items():
            (folder / name).write_bytes(content)
        env = self.environment(
            self.token(EXECUTOR, "publish"),
            GITHUB_RUN_ID=str(run.id),
            GATE_RESULT=gate,
            LANE_RESULT=lane,
            **self.secrets(),
        )
        space = argparse.Namespace(plan_id=run.inputs["plan"], artifacts=folder, dry_run=dry_run)
        return self._quiet(jobs.publish, space, env)

    def execute(self, run: Run, *, rms: float = 1e-8) -> None:
        """A whole run of the executor whose lane measured this error in every cell."""
        self.world.begin(run)
        self.gate(run)
        self.gate(run, "lane")
        self.publish(run, self.evidence(run, rms=rms))
        self.world.finish(run)

    @staticmethod
    def _quiet(job: Any, space: argparse.Namespace, env: Mapping[str, str]) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert job(space, env) == 0
        return out.getvalue()

    # What is there.

    def runs(self) -> list[Run]:
        """Runs of the executor that have not ended."""
        return [
            run
            for run in self.world.runs.values()
            if run.workflow.file == EXECUTOR and run.status != "completed"
        ]

    def reconciler(self) -> Reconciler:
        """The bot itself, outside of any job."""
        env = self.environment(self.token(PLANNER, "plan"), **self.secrets())
        return open_reconciler(env)

    def view(self, pull: Pull, head: str = "") -> View:
        """The ledger of the head, or of a merge group's."""
        reconciler = self.reconciler()
        with reconciler.client:
            return Ledger(reconciler.client, app=self.has_app).read(
                head or pull.sha, pull.number, reconciler.stored(pull.number)
            )

    def standing(self, pull: Pull) -> Standing:
        """How a pull request stands on its head."""
        return self.view(pull).standings[pull.number]

    def case(self, pull: Pull) -> Case:
        """The plan in the ledger."""
        case = self.standing(pull).case
        assert case is not None
        return case

    def ready(self, pull: Pull, name: str = READY) -> str:
        """The verdict as GitHub shows it, `none` where there is none."""
        return self.verdict(pull.sha, name)

    def verdict(self, sha: str, name: str = READY) -> str:
        """What our own check or status says of a commit."""
        if not self.has_app:
            found = [s for s in self.world.statuses_of(sha) if s.context == name]
            return found[0].state if found else "none"
        assert self.app is not None
        checks = [
            check
            for check in self.world.latest_checks(sha)
            if check.name == name and check.suite.app.id == self.app.id
        ]
        return (checks[-1].conclusion or checks[-1].status) if checks else "none"

    def comments(self, pull: Pull) -> list[str]:
        """The texts of our comments."""
        us = f"{self.app.slug}[bot]" if self.app else "github-actions[bot]"
        found = self.world.comments.values()
        return [c.body for c in found if c.number == pull.number and c.actor.login == us]

    def evidence(self, run: Run, *, rms: float = 1e-8) -> dict[str, bytes]:
        """Evidence for all jobs of a run's lane; an error in every cell, the merge base's own
        beside it."""
        row = RowId.parse(run.inputs["plan"])
        case = self.view(self.world.pulls[row.number], row.head).standings[row.number].case
        assert case is not None
        return evidence_of(case, row.lane, rms)


def evidence_of(case: Case, lane: str, rms: float = 1e-8, text: str = "") -> dict[str, bytes]:
    """Evidence files as a lane leaves them, by name; `text`: the contract, of whose op alone."""
    from bot import contract as contract_file

    op = yaml.safe_load(text)["op"] if text else "l2norm"
    book = text.encode() if text else (BOOKS / "l2norm.yaml").read_bytes()
    contract = contract_file.load(book, f"{op}.yaml")
    plan, interpreter = case.report.plan, lane.startswith("interpret")
    found = {}
    for job in (job for job in plan.jobs if job.lane == lane and (not text or job.op == op)):
        cells = []
        for cell in find_cells(contract, job.cells):
            arm = {"rms": 1e-8, "max_abs": 1e-7, "tail": 0.0, "slope": 0.0}
            figures = {"head": {**arm, "rms": min(rms, HUGE)}, "base": arm,
                       "worst_tile": 1.0, "worst_at": [0] * 4, "worst_row": 1.0}  # fmt: skip
            outputs = [{"name": result.name, "elements": prod(result.shape), **figures}
                       for result in call(contract, cell, 0).results]  # fmt: skip
            seeds = ((public_seed(plan.hash, cell.id), False), (1, True))
            draws = [{"seed": seed, "secret": secret, "outputs": outputs} for seed, secret in seeds]
            ran = {"head": "ran", "base": "ran", "base_form": "kernel"}
            cells.append({"cell": cell.id, **ran, "draws": draws})
        environment = {"python": "3", "torch": "2", "triton": "3", "protections": [],
                       "device": "cpu" if interpreter else "NVIDIA H200",
                       "interpreter": interpreter}  # fmt: skip
        data = {"schema": "fla-bot/evidence@2", "plan": plan.hash, "job": job.id, "lane": lane,
                "head": plan.head, "merge_base": plan.merge_base, "trusted": plan.trusted,
                "complete": True, "note": "", "environment": environment, "cells": cells,
                "wall_s": 1.0}  # fmt: skip
        found[f"{job.id}.json"] = json.dumps(data).encode()
    return found
