"""What people, branches and jobs say of themselves, and what is believed of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import bot.github.scope as scope_module
from bot.github import executor
from bot.github.case import LaneResult, pack
from bot.github.ledger import READY
from bot.github.queue import QUEUE
from bot.model import Confidence, Finding, Plan, Report, Row, Severity, Verdict
from tests.conftest import ROOT
from tests.github.stage import AWAITED, BOOKS, KERNEL, Content, Stage
from tests.github.world import Actor, Pull

NAIVE = "fla/modules/l2norm_naive.py"
CONTRACT = (BOOKS / "l2norm.yaml").read_text()
ANCHORS = '{"schema": "fla-bot/anchor@1", "op": "l2norm", "lanes": {}}\n'


def red(stage: Stage, **more: Any) -> Pull:
    """A pull request that was measured and fails."""
    pull = stage.open(**more)
    stage.settle()
    if not stage.runs():
        stage.approve(pull)
    for run in stage.runs():
        stage.execute(run, rms=0.5)
    assert stage.ready(pull) == "failure"
    return pull


def jobs(stage: Stage, pull: Pull) -> list[str]:
    return [job.id for job in stage.case(pull).report.plan.jobs]


# Merge groups: a name says what to look for, git says whether it is there.


def branch(stage: Stage, number: int, parent: str, head: str, base: str = "main") -> str:
    """A branch of the queue, which anybody may make who may push."""
    name = f"{QUEUE}/{base}/pr-{number}-{parent}"
    stage.git.git("update-ref", f"refs/heads/{name}", head)
    stage.world.branches[stage.world.owner, name] = head
    return name


def merged(stage: Stage, pull: Pull, onto: str) -> str:
    """The commit that GitHub's queue makes of a pull request on top of another commit."""
    git = stage.git.git
    git("switch", "--quiet", "--detach", onto)
    git("merge", "--quiet", "--no-ff", "--message=merge", pull.sha)
    head = git("rev-parse", "HEAD")
    git("switch", "--quiet", "main")
    names = {*stage.world.commits[onto].files, *stage.world.commits[pull.sha].files}
    there = names & {*git("ls-tree", "-r", "--name-only", head).splitlines()}
    texts = {name: f"{git('show', f'{head}:{name}')}\n".encode() for name in sorted(there)}
    stage.world.commit(texts, onto, sha=head)
    return head


def test_branch_named_as_a_merge_group_makes_no_change_green(gated: Stage) -> None:
    victim = gated.open("alice")
    gated.settle()
    tip = gated.world.tip("main") or ""
    evil = gated.commit(gated.kernel(), tip, "wes")
    head = gated.commit({"docs/x.md": "x\n"}, evil, "wes")
    branch(gated, victim.number, evil, head)  # "only the docs are new on top of evil"
    gated.reap()
    gated.settle()
    assert gated.verdict(head) == "failure"
    gated.world.protect("main", (READY, gated.app.id if gated.app else None))
    assert not gated.world.satisfied("main", head)


def test_branch_named_as_a_merge_group_borrows_no_approval(gated: Stage) -> None:
    victim = gated.open("alice")
    gated.settle()
    gated.turn_green(victim)
    tip = gated.world.tip("main") or ""
    edit = ("min(32, TILE // columns)", "min(4, TILE // columns)")
    head = gated.commit(gated.kernel(edit), tip, "wes")
    branch(gated, victim.number, tip, head)
    gated.reap(victim)
    gated.settle()
    assert gated.runs() == []
    assert gated.verdict(head) == "failure"
    assert gated.ready(victim) == "success"


def test_branch_of_the_queue_for_a_base_that_is_not_there(gated: Stage) -> None:
    """It is red by itself, and the pull request is planned all the same."""
    pull = gated.open("alice")
    head = merged(gated, pull, gated.world.tip("main") or "")
    branch(gated, pull.number, gated.world.tip("main") or "", head, base="nowhere")
    gated.world.take_events()
    gated.reap(pull)
    gated.settle()
    assert gated.ready(pull) == "action_required"
    assert gated.verdict(head) != "success"


def test_group_on_top_of_a_green_one_is_judged(gated: Stage) -> None:
    first = gated.open("alice", {"docs/a.md": "a\n"})
    second = gated.open("bob")
    gated.settle()
    gated.turn_green(second)
    assert gated.ready(first) == "success"
    below = merged(gated, first, gated.world.tip("main") or "")
    above = merged(gated, second, below)
    branch(gated, first.number, gated.world.tip("main") or "", below)
    branch(gated, second.number, below, above)
    gated.reap(second)
    gated.settle()
    assert gated.verdict(above) == "success"


@pytest.mark.parametrize("honest", [True, False])
def test_group_on_top_of_what_nobody_approved_runs_nothing(gated: Stage, honest: bool) -> None:
    first = gated.open("mallory")
    second = gated.open("bob", {"docs/b.md": "b\n"})
    gated.settle()
    assert gated.ready(first) == "action_required"
    tip = gated.world.tip("main") or ""
    below = merged(gated, first, tip) if honest else first.sha
    above = merged(gated, second, below)
    if honest:
        branch(gated, first.number, tip, below)
    branch(gated, second.number, below, above)
    gated.reap(second)
    gated.settle()
    assert gated.runs() == []
    assert gated.verdict(above) == "failure"


def test_group_runs_only_while_its_branch_and_the_head_in_it_are_there(gated: Stage) -> None:
    pull = gated.open("wes", fork=False)  # whose push is as good as an approval
    gated.settle()
    for run in gated.runs():
        gated.execute(run)
    gated.put("main", {NAIVE: (ROOT / NAIVE).read_text() + "\n\nNEWER = 1\n"})
    head = gated.enqueue(pull)
    gated.reap(pull)
    gated.settle()
    run = next(run for run in gated.runs() if head in run.inputs["plan"])
    gated.world.begin(run)
    gated.gate(run)
    name = next(name for _, name in gated.world.branches if name.startswith(QUEUE))
    del gated.world.branches[gated.world.owner, name]
    assert "head" not in gated.gate(run)  # the lane is skipped
    assert gated.gate(run, "lane") == {"wanted": "no"}
    gated.world.branches[gated.world.owner, name] = head
    gated.gate(run)
    gated.push(pull, {"docs/later.md": "x"})
    gated.settle()
    assert "head" not in gated.gate(run)


def test_group_that_scope_calls_another_pull_requests_runs_nothing(gated: Stage) -> None:
    victim, pull = gated.open("alice"), gated.open("mallory")
    gated.settle()
    gated.turn_green(victim)
    gated.push(victim, {"docs/later.md": "x"})
    gated.settle()
    gated.approve(victim)
    for run in gated.runs():
        gated.execute(run)
    head = gated.enqueue(pull)
    gated.reap(pull)
    event = next(e for e in gated.world.take_events() if e.name == "workflow_dispatch")
    out = gated.folder / "plan.json"
    gated.scope(event, out)
    data = json.loads(out.read_text())
    (group,) = (case for case in data["cases"] if case["group"])
    group["number"] = victim.number
    group["merges"] = [{"number": victim.number, "head": victim.sha}]
    out.write_text(json.dumps(data))
    gated.plan(event, out)
    gated.settle()
    assert gated.runs() == []
    assert gated.verdict(head) != "success"


# People.


def test_edit_of_a_comment_waives_nothing(gated: Stage) -> None:
    pull = red(gated)
    names = jobs(gated, pull)
    said = [gated.say(pull, "mona", "thanks, tomorrow") for _ in names]
    gated.settle()
    gated.world.advance(hours=1)
    for comment, name in zip(said, names, strict=True):
        gated.world.edit_comment(comment, Actor("wes"), f"/fla-bot waive {name} edited in by wes")
    gated.settle()
    assert gated.ready(pull) == "failure"
    assert gated.standing(pull).waivers == []


def test_change_names_nobody_who_may_accept_it(gated: Stage) -> None:
    """A contract of a new op, or one that promises more, may name the author's friends."""
    gated.world.person("eve", "none")
    text = CONTRACT.replace("@olga", "@eve")
    evil = text.replace("l2norm", "evil")
    files: dict[str, Content] = {
        "contracts/evil.yaml": evil,
        "contracts/l2norm.yaml": text.replace("fp32: 2.0e-7", "fp32: 1.9e-7"),
        "fla/modules/evil.py": (ROOT / KERNEL).read_text().replace("l2norm", "evil"),
        "fla/modules/evil_naive.py": (ROOT / NAIVE).read_text().replace("l2norm", "evil"),
        **gated.kernel(),
    }
    pull = gated.open("mallory", files)
    gated.settle()
    case = gated.case(pull)
    assert case.owners == {"l2norm": ["@olga"]}
    for item in case.report.checklist:
        if item.accept:
            gated.say(pull, "eve", f"/fla-bot accept {item.accept}")
    for name in jobs(gated, pull):
        gated.say(pull, "eve", f"/fla-bot waive {name} because I own it")
    gated.settle()
    assert "only admin, maintain or an owner" in gated.comments(pull)[0]
    assert gated.ready(pull) == "action_required"
    assert "eve accepted" not in gated.comments(pull)[0]
    assert gated.standing(pull).waivers == []


def test_owner_of_the_repository_does_not_waive_their_own_change(gated: Stage) -> None:
    owner = gated.world.owner
    pull = red(gated, author=owner, fork=False)
    for name in jobs(gated, pull):
        gated.say(pull, owner, f"/fla-bot waive {name} my own change")
    gated.settle()
    assert gated.ready(pull) == "failure"
    other = red(gated, author="wes", fork=False)
    for name in jobs(gated, other):
        gated.say(other, owner, f"/fla-bot waive {name} somebody else's change")
    gated.settle()
    assert gated.ready(other) == "success"


def test_who_pushed_an_earlier_head_does_not_waive(gated: Stage) -> None:
    """A commit may have an e-mail that no account has: who pushed it is remembered."""
    pull = gated.open("alice")
    gated.settle()
    sha = gated.push(pull, gated.kernel(("min(32, TILE", "min(8, TILE")), "mona")
    gated.world.commits[sha].author = "nobody"
    gated.settle()
    for number in range(2):
        gated.push(pull, {f"docs/{number}.md": "x"}, "alice")
        gated.settle()
    assert gated.standing(pull).pushers == ["alice", "mona"]
    gated.approve(pull, "wes")
    for run in gated.runs():
        gated.execute(run, rms=0.5)
    for name in jobs(gated, pull):
        gated.say(pull, "mona", f"/fla-bot waive {name} my own commit")
    gated.settle()
    assert gated.ready(pull) == "failure"


# Findings.


def test_findings_that_are_not_kept_are_judged(
    gated: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        Finding(
            code=code,
            name="x",
            path="fla/a.py",
            line=line,
            end_line=line,
            severity=Severity.ERROR,
            confidence=Confidence.HIGH,
            message="m",
        )
        for code, count in (("AAA001", 60), ("MEM003", 5))
        for line in range(1, count + 1)
    ]
    real: Callable[..., Report] = scope_module.report  # type: ignore[attr-defined]

    def fake(*arguments: Any) -> Report:
        return real(*arguments).model_copy(update={"findings": found})

    monkeypatch.setattr(scope_module, "report", fake)
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    for run in gated.runs():
        gated.execute(run)
    assert gated.standing(pull).title == "Not ready: 65 findings"
    gated.say(pull, "mona", "/fla-bot waive AAA001 a false positive of that rule")
    gated.settle()
    assert gated.standing(pull).title == "Not ready: 5 findings"
    assert len(gated.case(pull).report.findings) == 60
    gated.say(pull, "mona", "/fla-bot waive MEM003 and of this one")
    gated.settle()
    assert gated.ready(pull) == "success"


# What `scope` says.


def told(stage: Stage, lie: Callable[[dict[str, Any]], None], pull: Pull) -> str:
    """The verdict after `scope` has told a lie; another one, which is asked for, may be honest."""
    event = next(e for e in stage.world.take_events() if e.name == "pull_request")
    out = stage.folder / "plan.json"
    stage.scope(event, out)
    data = json.loads(out.read_text())
    lie(data)
    case = data["cases"][0]
    plan = Plan.model_validate({**case["report"]["plan"], "hash": "0" * 16})
    case["report"]["plan"] = plan.model_copy(update={"hash": plan.compute_hash()}).model_dump(
        mode="json", by_alias=True
    )
    out.write_text(json.dumps(data))
    stage.plan(event, out)
    assert stage.runs() == []
    return stage.ready(pull)


def _case(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data["cases"][0]
    return found


def _both(data: dict[str, Any], name: str, value: str) -> None:
    """In plan and change alike."""
    for part in ("plan", "change"):
        _case(data)["report"][part][name] = value


def no_jobs(data: dict[str, Any]) -> None:
    """Nothing to run."""
    _case(data)["report"]["plan"]["jobs"] = []


def no_cells(data: dict[str, Any]) -> None:
    """Nothing to measure."""
    for job in _case(data)["report"]["plan"]["jobs"]:
        job["cells"] = []


def not_required(data: dict[str, Any]) -> None:
    """Lanes that need not pass."""
    for job in _case(data)["report"]["plan"]["jobs"]:
        job["required"] = False


def looser_policy(data: dict[str, Any]) -> None:
    """Another policy than the base branch's."""
    oid, text = next((o, t) for o, t in data["texts"].items() if "fla-bot/policy@1" in t)
    data["texts"][oid] = text.replace("tile: 3.0", "tile: 99.0")


def looser_contract(data: dict[str, Any]) -> None:
    """Another contract than the base branch's."""
    _case(data)["contracts"]["l2norm"]["fingerprint"] = "0" * 16


def contract_of_the_head(data: dict[str, Any]) -> None:
    """The proposed contract, which promises less."""
    from bot import contract as contract_file
    from bot.github.books import blob

    text = CONTRACT.replace("fp32: 2.0e-7", "fp32: 2.0e-3")
    case = _case(data)
    fingerprint = contract_file.load(text.encode(), "l2norm.yaml").fingerprint
    head = case["report"]["change"]["head"]
    case["contracts"]["l2norm"] = {"commit": head, "fingerprint": fingerprint}
    data["texts"][blob(text)] = text


def older_base(data: dict[str, Any]) -> None:
    """A trusted commit that is not the tip."""
    for name in ("base", "trusted", "merge_base"):
        _both(data, name, "b" * 40)


def other_merge_base(data: dict[str, Any]) -> None:
    """Another commit to compare with, whose kernel may be worse."""
    _both(data, "merge_base", "c" * 40)


def no_anchors(data: dict[str, Any]) -> None:
    """Without what was once accepted."""
    _case(data)["anchors"] = {}


def no_word_needed(data: dict[str, Any]) -> None:
    """Nobody has to accept anything."""
    report = _case(data)["report"]
    report["checklist"] = [item for item in report["checklist"] if not item["accept"]]


LIES = {
    no_jobs: "no lane measures it",
    no_cells: "has no cells",
    not_required: "not required, against the policy",
    looser_policy: "contracts/policy.yaml is not the one that GitHub has",
    looser_contract: "the contract of l2norm is not the one that GitHub has",
    contract_of_the_head: "promises less",
    older_base: "Planning",
    other_merge_base: "another merge base",
    no_anchors: "the anchors of l2norm are left out",
    no_word_needed: "the checklist lacks sensitive",
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_what_scope_says_is_compared_with_what_github_says(
    gated: Stage, lie: Callable[[dict[str, Any]], None]
) -> None:
    gated.put("main", {"contracts/anchors/l2norm.json": ANCHORS})
    gated.world.take_events()
    files = gated.kernel()
    if lie is contract_of_the_head:
        files["contracts/l2norm.yaml"] = CONTRACT.replace("fp32: 2.0e-7", "fp32: 2.0e-3")
    if lie is no_word_needed:
        files["bot/x.py"] = "x = 1\n"
    pull = gated.open(files=files)
    if lie is older_base:
        event = next(e for e in gated.world.take_events() if e.name == "pull_request")
        out = gated.folder / "plan.json"
        gated.scope(event, out)
        data = json.loads(out.read_text())
        lie(data)
        case = data["cases"][0]
        plan = Plan.model_validate(case["report"]["plan"])
        case["report"]["plan"]["hash"] = plan.compute_hash()
        out.write_text(json.dumps(data))
        gated.plan(event, out)
        assert gated.ready(pull) == "in_progress"  # and the planner is started again
    else:
        assert told(gated, lie, pull) in AWAITED
    assert LIES[lie] in gated.standing(pull).title


def test_owners_roles_and_paths_are_read_from_the_base_branch(gated: Stage) -> None:
    def lie(data: dict[str, Any]) -> None:
        case = _case(data)
        case |= {"owners": {"l2norm": ["@eve"]}, "sensitive": [], "watched": [], "books": "0" * 16}
        case["shelf"] = "0" * 16
        case["policy"]["approvals"] = {"run": ["triage"], "accept": ["triage"]}

    pull = gated.open(files={**gated.kernel(), "bot/x.py": "x = 1\n"})
    told(gated, lie, pull)
    case = gated.case(pull)
    assert case.owners == {"l2norm": ["@olga"]}
    assert case.approvals.accept == ["admin", "maintain"]
    assert case.sensitive == ["bot/x.py"]
    assert case.watched == [NAIVE]
    gated.reap(pull)
    assert gated.case(pull) == case  # the books are those of the branch


def test_change_of_comments_alone_needs_no_lane(gated: Stage) -> None:
    text = (ROOT / KERNEL).read_text()
    pull = gated.open(files={KERNEL: text.replace("\ndef ", "\n# a word\ndef ", 1) + "\n# more\n"})
    gated.settle()
    assert gated.ready(pull) == "success"


def test_change_that_only_scope_calls_harmless_needs_a_word(gated: Stage) -> None:
    """A docstring is no comment to whoever sees only the lines: an owner accepts it."""
    text = (ROOT / KERNEL).read_text()
    pull = gated.open(files={KERNEL: text.replace('"""', '"""Hm. ', 1)})
    gated.settle()
    assert gated.ready(pull) == "action_required"
    (code,) = {item.accept for item in gated.case(pull).report.checklist if item.accept}
    gated.say(pull, "olga", f"/fla-bot accept {code}")
    gated.settle()
    assert gated.ready(pull) == "success"


# What judges.


@pytest.mark.parametrize(
    "files",
    [
        {NAIVE: (ROOT / NAIVE).read_text() + "\n# the reference was wrong\n"},
        {"contracts/anchors/l2norm.json": ANCHORS},
    ],
    ids=["reference", "anchors"],
)
def test_references_and_anchors_are_books_too(gated: Stage, files: dict[str, str]) -> None:
    pull = gated.open()
    gated.settle()
    gated.turn_green(pull)
    old = gated.case(pull)
    gated.put("main", dict(files))
    assert pull.number in gated.due()["due"]
    gated.world.advance(hours=2)  # no news of its own any more
    found = {item["number"]: item["due"] for item in gated.due()["pulls"]}
    assert found[pull.number] == "the contracts have changed"
    gated.reap(pull)
    assert gated.ready(pull) == "in_progress"
    gated.settle()
    case = gated.case(pull)
    assert case.report.plan.trusted == gated.world.tip("main")
    assert case.books != old.books
    assert case.late
    assert gated.ready(pull) == "failure"
    assert "update your branch" in gated.comments(pull)[0]


# Evidence.


def test_evidence_of_an_older_schema_proves_nothing(gated: Stage) -> None:
    """The plan's own bot writes the newest: an older one asks for less."""
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    for run in gated.runs():
        gated.world.begin(run)
        gated.gate(run)
        old = {}
        for name, content in gated.evidence(run).items():
            data = json.loads(content) | {"schema": "fla-bot/evidence@1"}
            for cell in data["cells"]:
                cell |= {"seed": 1, "outputs": cell.pop("draws")[1]["outputs"]}
            old[name] = json.dumps(data).encode()
        gated.publish(run, old)
        gated.world.finish(run)
    assert gated.ready(pull) == "failure"
    found = [entry.result for entry in gated.view(pull).entries if entry.result]
    assert [result.verdict for result in found] == [Verdict.LOST] * 2
    assert all("of an older schema" in result.note for result in found)


@pytest.mark.parametrize("length", [20, 400])
def test_result_of_any_size_is_kept_with_its_verdict(
    gated: Stage, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    import random

    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    run = gated.runs()[0]
    noise = random.Random(3)

    def many(plan: Plan, *_: Any) -> list[Row]:
        job = plan.jobs[0]
        verdicts = [Verdict.PASS] * 2000 + [Verdict.NOT_PROVEN] * 300 + [Verdict.FAIL]
        return [
            Row(
                job=job.id,
                lane=job.lane,
                op=job.op,
                cell=f"c{number}",
                verdict=verdict,
                reason=noise.randbytes(length // 2).hex(),
            )
            for number, verdict in enumerate(verdicts)
        ]

    monkeypatch.setattr(executor, "judge", many)
    gated.world.begin(run)
    gated.gate(run)
    gated.publish(run, gated.evidence(run))
    found = [entry.result for entry in gated.view(pull).entries if entry.result]
    assert [result.verdict for result in found] == [Verdict.FAIL]
    assert isinstance(found[0], LaneResult)
    assert len(pack(found[0])) <= executor.MAX_RESULT
    assert Verdict.FAIL in [row.verdict for row in found[0].rows]
    assert gated.ready(pull) == "failure"


# The action of other repositories.


def test_file_called_like_a_command_gives_the_runner_none(tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (script,) = (step["run"] for step in action["runs"]["steps"] if step.get("name") == "Check")
    program = tmp_path / "fla-bot/bin/fla-bot"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "::error file=x::forged"\nexit 1\n')
    program.chmod(0o755)
    env = {"PATH": "/usr/bin:/bin", "RUNNER_TEMP": str(tmp_path), "HEAD": "HEAD", "BASE": ""}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    first, forged, last = done.stdout.splitlines()
    assert done.returncode == 1
    assert forged == "::error file=x::forged"
    stop = first.removeprefix("::stop-commands::")
    assert len(stop) == 36
    assert last == f"::{stop}::"
