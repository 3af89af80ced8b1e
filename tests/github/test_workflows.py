"""The workflow files keep the rules of docs/security.md; each rule is broken to see it fire."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bot.words import sections
from tests.conftest import ROOT
from tests.github.permissions import PERMISSIONS

REPOSITORY = "fla-org/fla-bot"
PLANNER, EXECUTOR, QUEUE, CI = "fla-bot.yml", "fla-bot-executor.yml", "fla-bot-queue.yml", "ci.yml"
INSTALL, HOST = ".github/actions/install/action.yml", ".github/actions/host/action.yml"
ROOT_ACTION = "action.yml"
ACTIONS = (INSTALL, HOST, ROOT_ACTION)
Yaml = dict[str, Any]


@dataclass
class Files:
    """Workflows and actions, parsed, and their text."""

    workflows: dict[str, Yaml]
    actions: dict[str, Yaml]
    texts: dict[str, str]

    def jobs(self, *files: str) -> Iterator[tuple[str, str, Yaml]]:
        """File, name and content of each job."""
        for file, workflow in self.workflows.items():
            if not files or file in files:
                for name, job in workflow["jobs"].items():
                    yield file, name, job

    def steps(self) -> Iterator[tuple[str, Yaml]]:
        """Place and content of each step."""
        for file, name, job in self.jobs():
            for step in job["steps"]:
                yield f"{file}: {name}", step
        for file, action in self.actions.items():
            for step in action["runs"]["steps"]:
                yield file, step


def _load() -> Files:
    paths = sorted((ROOT / ".github/workflows").iterdir())
    workflows = {path.name: yaml.safe_load(path.read_text()) for path in paths}
    for workflow in workflows.values():
        workflow["on"] = workflow.pop(True)  # YAML 1.1 takes `on` for a truth value
    actions = {name: yaml.safe_load((ROOT / name).read_text()) for name in ACTIONS}
    texts = {path.name: path.read_text() for path in paths}
    return Files(workflows, actions, texts | {name: (ROOT / name).read_text() for name in actions})


Rule = Callable[[Files], Iterator[str]]
Break = Callable[[Files], object]
RULES: dict[str, tuple[Rule, tuple[Break, ...]]] = {}


def rule(*breaks: Break) -> Callable[[Rule], Rule]:
    """A rule, and edits that it must find."""

    def register(check: Rule) -> Rule:
        RULES[check.__name__.strip("_")] = (check, breaks)
        return check

    return register


def job(files: Files, file: str, name: str) -> Yaml:
    """One job, to be edited."""
    found: Yaml = files.workflows[file]["jobs"][name]
    return found


def put(file: str, name: str, **values: Any) -> Break:
    """An edit that sets keys of a job."""
    return lambda files: job(files, file, name).update(values)


def put_step(file: str, name: str, index: int, **values: Any) -> Break:
    """An edit that sets keys of a step."""
    return lambda files: job(files, file, name)["steps"][index].update(values)


def put_top(file: str, **values: Any) -> Break:
    """An edit that sets keys of a workflow."""
    return lambda files: files.workflows[file].update(values)


def rewrite(old: str, new: str) -> Break:
    """An edit of every text."""

    def edit(files: Files) -> None:
        assert any(old in text for text in files.texts.values()), old
        files.texts = {name: text.replace(old, new) for name, text in files.texts.items()}

    return edit


def add_step(file: str, name: str, **step: Any) -> Break:
    """An edit that adds a step."""
    return lambda files: job(files, file, name)["steps"].append(step)


# What every file keeps.


@rule(put_top(CI, permissions={"contents": "read"}), put_top(QUEUE, permissions="read-all"))
def _no_permission_at_the_top(files: Files) -> Iterator[str]:
    for file, workflow in files.workflows.items():
        if workflow.get("permissions") != {}:
            yield file


@rule(
    put_top(PLANNER, **{"cache-mode": "read"}),
    put(EXECUTOR, "lane", **{"cache-mode": "write"}),
    add_step(CI, "ci", uses="actions/cache@" + "a" * 40),
    put_step(CI, "ci", 1, **{"with": {"cache": "pip"}}),
)
def _no_cache(files: Files) -> Iterator[str]:
    for file, workflow in files.workflows.items():
        if workflow.get("cache-mode") != "none":
            yield file
    for file, name, found in files.jobs():
        if "cache-mode" in found:
            yield f"{file}: {name}"
    for place, step in files.steps():
        if "actions/cache" in step.get("uses", "") or "cache" in step.get("with", {}):
            yield place


def _conjuncts(condition: str) -> list[str]:
    """The parts of a condition that must all hold; none if a part may take the place of others."""
    parts, depth, start = list[str](), 0, 0
    text = f"{condition} &&"
    for index, char in enumerate(text):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth == 0 and text.startswith("||", index):
            return []
        if depth == 0 and text.startswith("&&", index):
            parts.append(" ".join(text[start:index].split()))
            start = index + 2
    return parts


GUARD = f"github.repository == '{REPOSITORY}'"


@rule(
    put(QUEUE, "seen", **{"if": None}),
    put(PLANNER, "scope", **{"if": "github.event_name == 'pull_request_target'"}),
    put(EXECUTOR, "publish", **{"if": f"always() || {GUARD}"}),
    put(EXECUTOR, "gate", **{"if": f"({GUARD} || true)"}),
)
def _every_job_is_guarded(files: Files) -> Iterator[str]:
    for file, name, found in files.jobs():
        if GUARD not in _conjuncts(found.get("if") or ""):
            yield f"{file}: {name}"


PIN = re.compile(r"uses: (actions/[a-z-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+\n")
OWN_ACTION, HOST_ACTION = "$/.github/actions/install", "$/.github/actions/host"


@rule(
    put_step(CI, "ci", 0, uses="actions/checkout@v7"),
    add_step(PLANNER, "plan", uses="somebody/tool@" + "a" * 40),
    add_step(PLANNER, "plan", uses="./"),
    rewrite(" # v7.0.1", ""),
    lambda files: files.texts.update(
        {CI: files.texts[CI].replace("3d3c42e5aac5ba805825da76410c181273ba90b1", "a" * 40)}
    ),
)
def _actions_are_pinned(files: Files) -> Iterator[str]:
    found = {(m[1], m[2]) for text in files.texts.values() for m in PIN.finditer(text)}
    known = {f"{name}@{commit}" for name, commit in found}
    if len({name for name, _ in found}) != len(found):
        yield "one action at two commits"
    for text in files.texts.values():
        lines = [line for line in text.splitlines() if re.search(r"\buses: actions/", line)]
        yield from (line for line in lines if not PIN.search(line + "\n"))
    for place, step in files.steps():
        if step.get("uses", OWN_ACTION) not in {*known, OWN_ACTION, HOST_ACTION}:
            yield f"{place}: {step['uses']}"


@rule(
    put_step(QUEUE, "seen", 0, run="echo ${{ github.ref }}"),
    add_step(PLANNER, "plan", uses="actions/github-script@" + "a" * 40, **{"with": {"script": ""}}),
    put_step(CI, "ci", 2, shell="python"),
    lambda files: files.actions[INSTALL]["runs"]["steps"][1].update(run="${{ inputs.source }}"),
    put_top(EXECUTOR, defaults={}),
)
def _no_expression_reaches_a_shell(files: Files) -> Iterator[str]:
    for place, step in files.steps():
        if "${{" in step.get("run", "") or "script" in step.get("with", {}):
            yield place
        if "run" in step and step.get("shell", "bash") != "bash":
            yield place
    for file, workflow in files.workflows.items():
        if workflow.get("defaults") != {"run": {"shell": "bash"}}:
            yield file


# Nothing that a pull request, a comment or a branch name can choose is among these.
EXPRESSIONS = {
    "fromJSON(needs.due.outputs.pulls || '[]')", "fromJSON(needs.gate.outputs.runs_on)",
    "fromJSON(needs.gate.outputs.timeout_minutes)", "github.action_path", "github.workflow_sha",
    "github.base_ref && format('origin/{0}', github.base_ref) || ''", "github.ref", "github.token",
    "github.event.pull_request.number || github.event.issue.number || inputs.pr || "
    "needs.scope.outputs.pr || format('queue-{0}', github.event.workflow_run.head_branch)",
    "inputs.base", "inputs.head", "inputs.plan", "inputs.source", "matrix.pr", "needs.gate.result",
    "needs.gate.outputs.bot || github.workflow_sha", "needs.gate.outputs.head",
    "needs.gate.outputs.pr || format('unknown-{0}', github.run_id)",
    "needs.lane.outputs.wanted == 'no' && 'skipped' || needs.lane.result",
    "steps.check.outputs.wanted",
    "needs.scope.result", "runner.temp", "secrets.FLA_BOT_APP_KEY", "steps.due.outputs.pulls",
    "steps.python.outputs.python-path", "vars.FLA_BOT", "vars.FLA_BOT_APP_ID",
    "github.event.repository.default_branch", "steps.scope.outputs.pr",
    "github.event_name == 'schedule' && vars.FLA_BOT == 'off' && 'fla-bot is switched off' || ''",
    *(f"steps.gate.outputs.{name}" for name in ("bot", "head", "pr", "runs_on", "timeout_minutes")),
}  # fmt: skip


@rule(
    put_top(EXECUTOR, **{"run-name": "${{ github.event.pull_request.title }}"}),
    put(PLANNER, "plan", env={"TITLE": "${{ github.head_ref }}"}),
    put_step(PLANNER, "plan", 0, env={"X": "${{ toJSON(github) }}"}),
)
def _expressions_are_known(files: Files) -> Iterator[str]:
    parsed = json.dumps([files.workflows, files.actions])
    for text in re.findall(r"\$\{\{(.*?)\}\}", parsed):
        if " ".join(text.replace("\\n", " ").split()) not in EXPRESSIONS:
            yield text


@rule(put(CI, "ci", **{"timeout-minutes": None}), put(QUEUE, "seen", **{"timeout-minutes": 600}))
def _every_job_ends(files: Files) -> Iterator[str]:
    for file, name, found in files.jobs():
        limit = found.get("timeout-minutes")
        if not (isinstance(limit, int) and limit <= 90) and name != "lane":
            yield f"{file}: {name}"


@rule(
    put(EXECUTOR, "lane", container="ubuntu:24.04"),
    put(CI, "ci", services={"db": {"image": "x"}}),
    put(CI, "ci", uses="./.github/workflows/x.yml"),
)
def _no_containers_and_no_called_workflows(files: Files) -> Iterator[str]:
    for file, name, found in files.jobs():
        if {"container", "services", "uses"} & found.keys():
            yield f"{file}: {name}"


@rule(
    put_step(CI, "ci", 0, **{"with": {"fetch-depth": 0}}),
    put_step(PLANNER, "scope", 0, **{"with": {"persist-credentials": True}}),
    put_step(
        PLANNER,
        "scope",
        0,
        **{"with": {"persist-credentials": False, "ref": "refs/pull/7/head"}},
    ),
    put_step(
        CI, "ci", 0, **{"with": {"persist-credentials": False, "allow-unsafe-pr-checkout": True}}
    ),
    add_step(EXECUTOR, "lane", uses="actions/checkout@" + "a" * 40),
)
def _checkouts_keep_no_token_and_take_no_head(files: Files) -> Iterator[str]:
    allowed = {None, "${{ needs.gate.outputs.bot || github.workflow_sha }}"}
    for place, step in files.steps():
        if step.get("uses", "").startswith("actions/checkout@"):
            given = step.get("with", {})
            if given.get("persist-credentials") is not False or given.get("ref") not in allowed:
                yield place
            if given.get("repository", REPOSITORY) != REPOSITORY:
                yield place
            known = {"persist-credentials", "repository", "ref", "fetch-depth", "path"}
            if not given.keys() <= known:
                yield place
            if place == f"{EXECUTOR}: lane":
                yield place


# Who may start what.

TYPES = ["opened", "reopened", "synchronize", "edited", "ready_for_review", "converted_to_draft",
         "closed"]  # fmt: skip
TRIGGERS: dict[str, Yaml] = {
    PLANNER: {
        "pull_request_target": {"types": TYPES},
        "issue_comment": {"types": ["created", "edited", "deleted"]},
        "workflow_run": {"workflows": ["fla-bot-queue"], "types": ["completed"]},
        "schedule": [{"cron": "7-59/10 * * * *"}],
        "workflow_dispatch": {"inputs": {"pr": {"required": True, "type": "string"}}},
    },
    EXECUTOR: {"workflow_dispatch": {"inputs": {"plan": {"required": True, "type": "string"}}}},
    QUEUE: {"merge_group": {"types": ["checks_requested"]}},
    CI: {"push": {"branches": ["main"]}, "pull_request": None},
}


@rule(
    lambda files: files.workflows[EXECUTOR]["on"].update(push=None),
    lambda files: files.workflows[EXECUTOR]["on"]["workflow_dispatch"]["inputs"].update(sha={}),
    lambda files: files.workflows[PLANNER]["on"]["pull_request_target"].update(paths=["fla/**"]),
    lambda files: files.workflows.update({"new.yml": {"on": {"push": None}, "jobs": {}}}),
    lambda files: files.workflows[CI]["on"].update(pull_request_target=None),
)
def _triggers_are_known(files: Files) -> Iterator[str]:
    for file, workflow in files.workflows.items():
        given = copy.deepcopy(workflow["on"])
        for inputs in (given.get("workflow_dispatch") or {}).get("inputs", {}).values():
            inputs.pop("description", None)
        if given != TRIGGERS.get(file):
            yield file


@rule(
    put(EXECUTOR, "gate", **{"if": GUARD}),
    put(EXECUTOR, "lane", **{"if": GUARD}),
    put(EXECUTOR, "publish", **{"if": f"always() && {GUARD}"}),
)
def _reruns_and_other_branches_run_nothing(files: Files) -> Iterator[str]:
    ref = "github.ref == format('refs/heads/{0}', github.event.repository.default_branch)"
    for _, name, found in files.jobs(EXECUTOR):
        parts = _conjuncts(found["if"])
        if "github.run_attempt == 1" not in parts or (name == "gate" and ref not in parts):
            yield name
    if ref not in " ".join(job(files, PLANNER, "scope")["if"].split()):
        yield "scope"


@rule(
    put(PLANNER, "plan", **{"if": GUARD}),
    put(PLANNER, "plan", **{"if": f"!cancelled() && {GUARD} && needs.scope.result == 'success'"}),
    put(EXECUTOR, "publish", **{"if": f"github.run_attempt == 1 && {GUARD}"}),
    put(EXECUTOR, "publish", needs="gate"),
)
def _failed_jobs_are_reported(files: Files) -> Iterator[str]:
    plan, publish = job(files, PLANNER, "plan"), job(files, EXECUTOR, "publish")
    if plan["needs"] != "scope" or "!cancelled()" not in _conjuncts(plan["if"]):
        yield "plan"
    if "needs.scope.result != 'skipped' ||" not in plan["if"]:
        yield "plan"
    if publish["needs"] != ["gate", "lane"] or "always()" not in _conjuncts(publish["if"]):
        yield "publish"


# Tokens and secrets.

READS = ("issues/get-comment", "issues/list-comments", "pulls/get",
         "repos/get-collaborator-permission-level", "checks/list-for-ref",
         "repos/list-commit-statuses-for-ref", "actions/get-workflow-run", "repos/get-content",
         "repos/get-branch")  # fmt: skip
WRITES = (*READS, "issues/create-comment", "issues/update-comment", "issues/delete-comment",
          "reactions/create-for-issue-comment", "pulls/update", "repos/create-commit-status",
          "actions/create-workflow-dispatch", "actions/cancel-workflow-run",
          "actions/download-artifact", "git/list-matching-refs")  # fmt: skip
# What each job does on GitHub. The token has what that needs, and nothing else.
OPERATIONS: dict[tuple[str, str], tuple[str, ...]] = {
    (PLANNER, "scope"): ("repos/get-commit", "pulls/get"),
    (PLANNER, "plan"): WRITES,
    (PLANNER, "due"): (*READS, "pulls/list", "actions/list-workflow-runs"),
    (PLANNER, "reconcile"): WRITES,
    (EXECUTOR, "gate"): READS,
    (EXECUTOR, "lane"): READS,
    (EXECUTOR, "publish"): WRITES,
    (QUEUE, "seen"): (),
    (CI, "ci"): ("repos/get-commit",),
}


def _needed(operations: tuple[str, ...]) -> dict[str, str]:
    """The least permissions, by the table that the double enforces."""
    needed: dict[str, str] = {}
    for operation in operations:
        # A comment on a pull request takes either of two; a pull request alone takes one.
        name, level = PERMISSIONS[operation][-1].replace("_", "-").split("=")
        if name != "metadata" and needed.get(name) != "write":
            needed[name] = level
    return needed


@rule(
    put(PLANNER, "scope", permissions={"contents": "read", "pull-requests": "write"}),
    put(PLANNER, "plan", permissions={"contents": "write"}),
    put(EXECUTOR, "lane", permissions="write-all"),
    lambda files: job(files, EXECUTOR, "lane").pop("permissions"),
    lambda files: job(files, EXECUTOR, "publish")["permissions"].pop("statuses"),
)
def _permissions_are_what_a_job_needs(files: Files) -> Iterator[str]:
    for file, name, found in files.jobs():
        if found.get("permissions") != _needed(OPERATIONS[file, name]):
            yield f"{file}: {name}"


ENVIRONMENT = {"name": "fla-bot", "deployment": False}
KEY = "${{ secrets.FLA_BOT_APP_KEY }}"
CALL = 'fla-bot" github (plan|reconcile|publish) '
WRITERS = {(PLANNER, "plan"), (PLANNER, "reconcile"), (EXECUTOR, "publish")}


@rule(
    put(EXECUTOR, "gate", environment=ENVIRONMENT),
    put(PLANNER, "plan", environment=None),
    put(PLANNER, "plan", environment={"name": "other"}),
    put(PLANNER, "scope", env={"KEY": "${{ secrets.FLA_BOT_APP_KEY }}"}),
    put_step(EXECUTOR, "lane", 3, env={"KEY": "${{ secrets.FLA_BOT_APP_KEY }}"}),
    put_step(EXECUTOR, "publish", 0, **{"with": {"token": "${{ secrets.FLA_BOT_APP_KEY }}"}}),
    put_step(PLANNER, "plan", 2, env={"KEY": "${{ secrets.OTHER }}"}),
    put(EXECUTOR, "publish", **{"runs-on": ["self-hosted"]}),
)
def _key_is_in_one_step_of_writers_alone(files: Files) -> Iterator[str]:
    for file, name, found in files.jobs():
        place = f"{file}: {name}"
        if (file, name) not in WRITERS:
            if "environment" in found or "secrets" in json.dumps(found):
                yield place
            continue
        if found.get("environment") != ENVIRONMENT or found["runs-on"] != "ubuntu-24.04":
            yield place
        acts = [step for step in found["steps"] if re.search(CALL, step.get("run", ""))]
        if [step.get("env", {}).get("FLA_BOT_APP_KEY") for step in acts] != [KEY]:
            yield place
        if json.dumps(found).count("secrets") != 1:
            yield place


NUMBER = "(github.event.pull_request.number|matrix.pr|needs.gate.outputs.pr) .*"
GROUP = re.compile(rf"fla-bot-pr-\$\{{\{{ {NUMBER}\}}\}}", re.DOTALL)


@rule(
    put(PLANNER, "plan", concurrency="fla-bot-pr-1"),
    put(
        PLANNER,
        "reconcile",
        concurrency={"group": "fla-bot-pr-${{ matrix.pr }}", "cancel-in-progress": False},
    ),
    put(
        EXECUTOR,
        "publish",
        concurrency={
            "group": "publish-${{ needs.gate.outputs.pr }}",
            "queue": "max",
            "cancel-in-progress": False,
        },
    ),
    put(
        EXECUTOR,
        "publish",
        concurrency={
            "group": "fla-bot-pr-${{ inputs.plan }}",
            "queue": "max",
            "cancel-in-progress": True,
        },
    ),
    put(PLANNER, "due", permissions={"statuses": "write"}),
)
def _writers_share_one_group_a_pull_request(files: Files) -> Iterator[str]:
    for file, name, found in files.jobs():
        writes = "write" in found.get("permissions", {}).values() or "environment" in found
        if not writes:
            continue
        given = found.get("concurrency")
        shape = isinstance(given, dict) and {**given, "group": ""} == {
            "group": "", "queue": "max", "cancel-in-progress": False,
        }  # fmt: skip
        if not shape or not GROUP.fullmatch(given["group"]):
            yield f"{file}: {name}"


# What each job does.


@rule(
    put_step(PLANNER, "scope", 2, run="fla-bot github scope"),
    put_step(PLANNER, "scope", 2, run="ulimit -v 9999999\ntimeout 120 fla-bot github scope"),
    put_step(PLANNER, "scope", 2, run="ulimit -v 2097152\nfla-bot github scope; timeout 120 x"),
)
def _scope_is_limited(files: Files) -> Iterator[str]:
    run = job(files, PLANNER, "scope")["steps"][2]["run"]
    lines = run.splitlines()
    if lines[0] != "ulimit -v 2097152":
        yield "memory"
    if (
        len(lines) < 2
        or not lines[1].startswith("timeout --kill-after=5 120 ")
        or len(run.split("timeout")) != 2
    ):
        yield "time"


@rule(
    put_step(PLANNER, "plan", 0, uses="actions/checkout@" + "a" * 40),
    put_step(PLANNER, "plan", 1, **{"with": {"name": "other", "path": "."}}),
    add_step(PLANNER, "plan", run="git fetch"),
)
def _plan_has_nothing_of_the_change_on_disk(files: Files) -> Iterator[str]:
    steps = job(files, PLANNER, "plan")["steps"]
    kinds = [re.sub("@.*", "", step.get("uses", "run")) for step in steps]
    if kinds != [OWN_ACTION, "actions/download-artifact", "run", "actions/upload-artifact"]:
        yield "steps"
    elif steps[1]["with"] != {"name": "plan", "path": "${{ runner.temp }}/plan"}:
        yield "artifact"


@rule(
    put(EXECUTOR, "lane", **{"runs-on": "self-hosted"}),
    put(EXECUTOR, "lane", **{"timeout-minutes": 90}),
    put(CI, "ci", **{"runs-on": ["self-hosted", "sm90"]}),
    put(CI, "ci", **{"runs-on": {"group": "gpu"}}),
    put(PLANNER, "plan", **{"runs-on": "ubuntu-latest"}),
)
def _only_the_lane_leaves_hosted_runners(files: Files) -> Iterator[str]:
    for file, name, found in files.jobs():
        lane = (file, name) == (EXECUTOR, "lane")
        wanted = "${{ fromJSON(needs.gate.outputs.runs_on) }}" if lane else "ubuntu-24.04"
        if found["runs-on"] != wanted:
            yield f"{file}: {name}"
    if job(files, EXECUTOR, "lane")["timeout-minutes"] != (
        "${{ fromJSON(needs.gate.outputs.timeout_minutes) }}"
    ):
        yield "time limit"


@rule(
    lambda files: job(files, EXECUTOR, "lane")["steps"].insert(0, {"run": "true"}),
    add_step(EXECUTOR, "lane", uses=OWN_ACTION),
    lambda files: job(files, EXECUTOR, "lane")["steps"][0].pop("if"),
    put_step(EXECUTOR, "lane", 3, env={"GITHUB_TOKEN": "${{ github.token }}"}),
    put(EXECUTOR, "lane", env={"GITHUB_TOKEN": "${{ github.token }}"}),
    put_step(
        EXECUTOR,
        "lane",
        3,
        run='printf "$PLAN_ID" | sudo -n /usr/local/libexec/fla-bot/fla-bot-lane "$PLAN_ID"',
    ),
    put_step(EXECUTOR, "lane", 3, run="sudo bash runner/fla-bot-lane"),
    put_step(EXECUTOR, "lane", 2, **{"if": "always()"}),
    put_step(EXECUTOR, "lane", 3, **{"if": "success()"}),
    put_step(EXECUTOR, "lane", 4, **{"if": "always()"}),
)
def _lane_asks_first_and_runs_the_wrapper_without_a_token(files: Files) -> Iterator[str]:
    lane = job(files, EXECUTOR, "lane")
    host, check, fetch, run, upload = (*lane["steps"], {}, {}, {})[:5]
    if host != {"uses": HOST_ACTION, "if": "runner.environment == 'github-hosted'"}:
        yield "host"
    if "github lane-check" not in check.get("run", "") or len(lane["steps"]) != 5:
        yield "first step"
    if "env" in lane or run.get("env") != {"PLAN_ID": "${{ inputs.plan }}"}:
        yield "environment of the wrapper"
    if not re.search(r"libexec/fla-bot/fla-bot-lane( \|\||$)", run.get("run", ""), re.MULTILINE):
        yield "wrapper"
    if run.get("run", "").count("sudo") != 1 or "stop-commands::$stop" not in run.get("run", ""):
        yield "wrapper"
    wanted = "steps.check.outputs.wanted == 'yes'"
    conditions = [step.get("if") for step in (fetch, run, upload)]
    if check.get("id") != "check" or conditions != [wanted, wanted, f"always() && {wanted}"]:
        yield "a run that nobody wants goes on"
    if "uses" in fetch or not upload.get("uses", "").startswith("actions/upload-artifact@"):
        yield "actions"


@rule(
    put_step(EXECUTOR, "lane", 4, **{"with": {"name": "evidence-1", "path": "."}}),
    put_step(EXECUTOR, "publish", 2, **{"with": {"run-id": "1", "name": "evidence"}}),
    put_step(EXECUTOR, "publish", 2, **{"with": {"pattern": "*"}}),
    put_step(EXECUTOR, "publish", 0, **{"with": {"persist-credentials": False}}),
)
def _publish_reads_one_artifact_of_its_own_run(files: Files) -> Iterator[str]:
    for place, step in files.steps():
        given, uses = step.get("with", {}), step.get("uses", "")
        if "artifact@" not in uses:
            continue
        names = {"plan" if place.startswith(f"{PLANNER}:") else "evidence"}
        if "upload" in uses:
            names |= {"decisions", "decisions-${{ matrix.pr }}"}
        extra = {"if-no-files-found", "retention-days"} if "upload" in uses else set()
        if given.get("name") not in names or given.keys() - extra != {"name", "path"}:
            yield place
    bot = job(files, EXECUTOR, "publish")["steps"][0]["with"]
    # The workflow may be a copy in another repository: the bot's commits are in its own.
    where = (bot.get("repository"), bot.get("ref"))
    if where != (REPOSITORY, "${{ needs.gate.outputs.bot || github.workflow_sha }}"):
        yield "the plan's bot"


@rule(
    put_top(EXECUTOR, **{"run-name": "executor"}),
    put_step(EXECUTOR, "gate", 1, env={}),
    put_step(EXECUTOR, "gate", 1, run="fla-bot github gate"),
)
def _plan_id_is_all_that_goes_in(files: Files) -> Iterator[str]:
    # The client finds a run that it dispatched by its name.
    if files.workflows[EXECUTOR]["run-name"] != "fla-bot-executor ${{ inputs.plan }}":
        yield "run-name"
    for name in ("gate", "lane", "publish"):
        for step in job(files, EXECUTOR, name)["steps"]:
            if re.search(r"fla-bot\"? github|fla-bot-lane", step.get("run", "")) and (
                step.get("env", {}).get("PLAN_ID") != "${{ inputs.plan }}"
                or '"$PLAN_ID"' not in step["run"]
            ):
                yield name


@rule(add_step(QUEUE, "seen", run="true"), put_step(QUEUE, "seen", 0, run="curl example.invalid"))
def _queue_is_one_echo(files: Files) -> Iterator[str]:
    steps = job(files, QUEUE, "seen")["steps"]
    if [*steps[0]] != ["run"] or len(steps) != 1 or not re.fullmatch(
        r'echo "[a-z ]+"', steps[0]["run"]
    ):  # fmt: skip
        yield QUEUE


DANGEROUS = ("pull_request_target", "issue_comment", "workflow_run")


@rule(
    rewrite("zizmor: ignore[dangerous-triggers]", "zizmor: ignore[dangerous-triggers, artipacked]"),
    rewrite("  schedule:", "  schedule: # zizmor: ignore[x] y"),
    rewrite("ignore[dangerous-triggers] a comment", "ignore[dangerous-triggers]\n# a comment"),
    rewrite("      - run: echo", "      # shellcheck disable=SC2086\n      - run: echo"),
    rewrite("      - run: echo", "      # actionlint:ignore x -- y\n      - run: echo"),
)
def _only_dangerous_triggers_are_ignored_with_a_reason(files: Files) -> Iterator[str]:
    text = "".join(files.texts.values())
    good = re.findall(r"^  (\w+): # zizmor: ignore\[dangerous-triggers\] \w.{30,}$", text, re.M)
    if sorted(good) != sorted(DANGEROUS):
        yield f"ignores of {good}"
    if len(re.findall(r"zizmor: ?ignore|actionlint:ignore|shellcheck disable", text)) != len(good):
        yield "another ignore"
    manual = (ROOT / "docs/security.md").read_text()
    yield from (name for name in DANGEROUS if f"| `{name}` |" not in manual)


# The tests.


@pytest.fixture(scope="module")
def files() -> Files:
    return _load()


@pytest.mark.parametrize("name", RULES)
def test_rule_holds(files: Files, name: str) -> None:
    assert list(RULES[name][0](files)) == []


@pytest.mark.parametrize(
    ("name", "index"),
    [(name, i) for name, (_, breaks) in RULES.items() for i in range(len(breaks))],
)
def test_broken_rule_is_found(files: Files, name: str, index: int) -> None:
    check, breaks = RULES[name]
    broken = copy.deepcopy(files)
    breaks[index](broken)
    assert broken != files, "the edit changes nothing"
    assert list(check(broken)) != []


def _run(tool: str, *argv: str) -> subprocess.CompletedProcess[str]:
    path = Path(sys.executable).parent / tool
    return subprocess.run([path, *argv], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_zizmor_finds_the_three_triggers_and_nothing_else() -> None:
    argv = ("--offline", "--min-severity=low", "--format=json", "--no-ignores", ".")
    found = json.loads(_run("zizmor", *argv).stdout)
    assert [item["ident"] for item in found] == ["dangerous-triggers"] * len(DANGEROUS)
    assert _run("zizmor", "--offline", "--min-severity=low", "--quiet", ".").returncode == 0


def test_actionlint_and_schemas() -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = _run("actionlint", f"-shellcheck={shellcheck}")
    assert (done.returncode, done.stdout) == (0, "")
    workflows = [str(path) for path in sorted((ROOT / ".github/workflows").iterdir())]
    for schema, paths in (("workflows", workflows), ("actions", [*ACTIONS])):
        done = _run("check-jsonschema", "--builtin-schema", f"vendor.github-{schema}", *paths)
        assert done.returncode == 0, done.stdout


def test_tools_notice_a_fault(tmp_path: Path) -> None:
    file = tmp_path / ".github/workflows/x.yml"
    file.parent.mkdir(parents=True)
    file.write_text(
        "on: push\njobs:\n  a:\n    runs-on: ubuntu-24.04\n    steps:\n      - run: echo $x\n"
        "      - run: echo ${{ github.event.issue.title }}\n        misspelt: true\n"
    )
    shellcheck = Path(sys.executable).parent / "shellcheck"
    assert "SC2086" in _run("actionlint", f"-shellcheck={shellcheck}", str(file)).stdout
    assert "template-injection" in _run("zizmor", "--offline", str(file)).stdout
    schema = ("--builtin-schema", "vendor.github-workflows", str(file))
    assert _run("check-jsonschema", *schema).returncode == 1


def test_lock_holds_what_a_hosted_job_needs() -> None:
    """Each name that constraints/ci.txt pins has the same version in the lock."""
    lines = (ROOT / "constraints/hosted.txt").read_text().splitlines()
    locked = dict(
        re.fullmatch(r"(\S+)==(\S+) --hash=sha256:[0-9a-f]{64}", line).groups()  # type: ignore[union-attr]
        for line in lines
        if not line.startswith("#")
    )
    pinned = dict(
        line.lower().split("==")
        for line in (ROOT / "constraints/ci.txt").read_text().splitlines()
        if "==" in line
    )
    assert {"pygithub", "pydantic", "pyyaml", "setuptools"} <= locked.keys()
    both = locked.keys() & pinned.keys()
    assert {name: locked[name] for name in both} == {name: pinned[name] for name in both}


def test_pull_request_template_has_every_section_and_fills_none() -> None:
    found = sections((ROOT / ".github/pull_request_template.md").read_text())
    assert list(found) == ["summary", "numerics", "performance", "compatibility"]
    assert not any(found.values())
    policy = yaml.safe_load((ROOT / "contracts/policy.yaml").read_text())
    wanted = policy.get("pull_request", {}).get("sections", {}).values()
    assert {name.lower() for names in wanted for name in names} <= found.keys()


def test_hook_for_pre_commit() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["id"] == "fla-bot-check"
    assert hook["entry"] == "fla-bot check"
    assert hook["pass_filenames"] is False
    assert hook["always_run"] is True


def test_another_repository_needs_five_lines() -> None:
    manual = (ROOT / "docs/adopt.md").read_text()
    block = re.search(r"```yaml\n(.*?)```", manual, re.DOTALL)
    assert block
    steps = yaml.safe_load(block[1])
    assert len(block[1].splitlines()) == 5
    assert [re.sub("@.*", "", step["uses"]) for step in steps] == ["actions/checkout", REPOSITORY]
    assert steps[0]["with"] == {"fetch-depth": 0, "persist-credentials": False}


def test_adopting_pins_the_bot_to_a_commit_of_its_own(tmp_path: Path) -> None:
    """The manual's lines, run on copies: no commit of the adopting repository is taken for ours."""
    manual = (ROOT / "docs/adopt.md").read_text()
    lines = re.findall(r"`(sed -i .*\.github/workflows/fla-bot\*\.yml)`", manual)
    assert lines
    folder = tmp_path / ".github/workflows"
    folder.mkdir(parents=True)
    for name in (PLANNER, EXECUTOR, QUEUE):
        shutil.copy(ROOT / ".github/workflows" / name, folder)
    commit = "c" * 40
    for line in lines:
        told = line.replace("OWNER/NAME", "octo-org/kernels").replace("COMMIT", commit)
        subprocess.run(["bash", "-c", told], cwd=tmp_path, check=True)
    text = "".join(path.read_text() for path in folder.iterdir())
    assert "github.repository == 'fla-org" not in text
    assert "$/" not in text
    assert "workflow_sha" not in text
    publish = yaml.safe_load((folder / EXECUTOR).read_text())["jobs"]["publish"]
    checkout = publish["steps"][0]["with"]
    assert checkout["repository"] == REPOSITORY
    assert checkout["ref"] == f"${{{{ needs.gate.outputs.bot || '{commit}' }}}}"
    planner = yaml.safe_load((folder / PLANNER).read_text())["jobs"]["plan"]
    given = [step["env"]["FLA_BOT_COMMIT"] for step in planner["steps"] if "env" in step]
    assert given == [f"${{{{ '{commit}' }}}}"]
    done = _run("actionlint", *(str(path) for path in folder.iterdir()))
    assert done.returncode == 0, done.stdout
