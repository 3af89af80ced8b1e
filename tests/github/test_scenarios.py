"""Ten ways in which people, machines and GitHub itself could get to a green that is not earned."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from bot.errors import InfraError, UserError
from bot.github.case import RowId
from bot.github.ledger import PREVIEW, READY
from bot.github.operate import EXECUTOR
from tests.github.stage import AWAITED, BOOKS, RUNNING, Content, Stage
from tests.github.world import Actor, Pull

LOOSER = ("fp32: 2.0e-7", "fp32: 2.0e-5")


# 1: forged.


def test_job_named_as_our_check_and_status_of_an_insider(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    world = stage.world
    app = (READY, stage.app.id if stage.app else None)
    world.protect("main", app)
    # A job of the fork's own workflow, named as our check, makes a check run of Actions.
    world.create_check(
        world.job_actor(), {"name": READY, "head_sha": pull.sha, "conclusion": "success"}
    )
    world.add_status(Actor("wes"), pull.sha, {"context": READY, "state": "success"})
    stage.approve(pull)
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) == "failure"
    assert not world.satisfied("main", pull.sha)
    assert "FORGED" in stage.comments(pull)[0]
    found = stage.view(pull)
    shown = found.shown[READY]
    assert "FORGED" in shown.title
    assert "github-actions" in shown.title


def test_status_of_an_insider_beside_our_check(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.world.add_status(Actor("wes"), pull.sha, {"context": READY, "state": "success"})
    gated.approve(pull)
    for run in gated.runs():
        gated.execute(run)
    assert gated.ready(pull) == "failure"
    assert "FORGED: status by wes" in gated.view(pull).shown[READY].title


# 2: one window.


def test_two_commands_and_a_push_inside_one_window(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    old = pull.sha
    stage.say(pull, "mona", f"/fla-bot approve {old}")
    stage.say(pull, "wes", "/fla-bot run interpret:cpu")
    head = stage.push(pull, {"README.md": "more\n"})
    # GitHub keeps the order of a group's queue, but what is read is always the present.
    stage.settle()
    assert stage.runs() == []
    assert stage.ready(pull) in AWAITED
    assert f"/fla-bot approve {head}" in stage.comments(pull)[0]
    assert "the head is another one" in stage.comments(pull)[0]
    assert len(stage.comments(pull)) == 1
    reactions = {r.content for r in stage.world.reactions.values()}
    assert reactions == {"-1"}
    stage.approve(pull)
    assert len(stage.runs()) == 2


# 3: two bases, a retarget, an old merge base.


def test_same_head_into_two_gated_branches_needs_both(stage: Stage) -> None:
    stage.git.git("branch", "stable", "main")
    stage.world.push("stable", sha=stage.world.tip("main"))
    one = stage.open()
    two = stage.world.open_pull("alice", base="stable", head=one.head)
    stage.git.git("update-ref", f"refs/pull/{two.number}/head", two.sha)
    assert one.sha == two.sha
    stage.settle()
    stage.approve(one)
    for run in stage.runs():
        stage.execute(run)
    # The other one is not approved: GitHub shows one verdict for the commit.
    assert stage.ready(one) != "success"
    stage.approve(two)
    for run in stage.runs():
        stage.execute(run)
    stage.settle()
    assert stage.ready(two) == "success"


def test_retarget_sets_in_progress_first_and_voids_the_approval(stage: Stage) -> None:
    stage.git.git("branch", "stable", "main")
    stage.world.push("stable", sha=stage.world.tip("main"))
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    stage.world.edit_pull(pull, Actor("alice"), base="stable")
    before = len(stage.github.log)
    stage.settle()
    first = next(item for item in stage.github.log[before:] if item.method != "GET"
                 and item.operation != "apps/create-installation-access-token")  # fmt: skip
    assert first.operation in ("checks/update", "repos/create-commit-status")
    body = first.body
    assert body.get("status") == "in_progress" or body.get("state") in ("pending", "failure")
    assert stage.ready(pull) in (*AWAITED, *RUNNING, "success")
    # Everything is proved for the same jobs; nothing is dispatched under the old word.
    assert stage.runs() == []


def test_branch_without_policy_gets_a_preview_and_no_machine(stage: Stage) -> None:
    bare = stage.commit({"contracts/policy.yaml": None, "contracts/l2norm.yaml": None},
                        stage.world.tip("main") or "", "octo-org")  # fmt: skip
    stage.git.git("branch", "old", bare)
    stage.world.push("old", sha=bare)
    pull = stage.open("mona", base="old", start=bare)
    stage.settle()
    assert stage.ready(pull) == "none"
    assert stage.ready(pull, PREVIEW) in AWAITED
    assert stage.runs() == []


def test_merge_base_with_a_weaker_contract_must_be_updated(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    contract = (BOOKS / "l2norm.yaml").read_text()
    stage.put("main", {"contracts/l2norm.yaml": contract.replace("2.0e-7", "1.0e-7")})
    stage.approve(pull)
    stage.reap(pull)
    stage.settle()
    assert stage.ready(pull) == "failure"
    assert "update your branch" in stage.comments(pull)[0]
    assert stage.standing(pull).state == "failure"


# 4: runs that we did not start.


def test_run_started_by_hand_is_refused(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    plan = stage.runs()[0].inputs["plan"]
    run = stage.world.dispatch(Actor("wes"), EXECUTOR, "main", {"plan": plan})
    with pytest.raises(UserError, match="dispatched by wes"):
        stage.gate(run)
    with pytest.raises(UserError, match="dispatched by wes"):
        stage.publish(run, stage.evidence(run))
    # Not even before the bot has started its own.
    never = RowId(pull.number, pull.sha, "0" * 16, "interpret:cpu", 0)
    run = stage.world.dispatch(Actor("wes"), EXECUTOR, "main", {"plan": str(never)})
    with pytest.raises(UserError):
        stage.gate(run)


def test_rerun_of_failed_jobs_is_no_new_dispatch(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    run = stage.runs()[0]
    stage.world.begin(run)
    stage.gate(run)
    stage.world.finish(run, "failure")
    stage.reap(pull)
    stage.push(pull, {"README.md": "other\n"})
    stage.settle()
    for days in (0, 29):
        stage.world.advance(days=days)
        if stage.has_app:
            stage.world.age_checks()
        stage.world.rerun(run, Actor("wes"), failed_only=True)
        evidence = {"interpret-cpu-l2norm.json": b"{}"}
        for job in ("gate", "lane"):
            with pytest.raises((UserError, InfraError), match=r"another attempt|dispatched by"):
                stage.gate(run, job)
        with pytest.raises(UserError, match="another attempt"):
            stage.publish(run, evidence)
        stage.world.finish(run, "failure")
    assert stage.ready(pull) != "success"


# 5: who may.


def test_push_of_a_stranger_to_the_fork_voids(stage: Stage) -> None:
    pull = stage.open("mona", fork=True)
    stage.settle()
    # A maintainer's push to their own fork is a word of its own.
    assert len(stage.runs()) == 2
    stage.push(pull, {"README.md": "x\n"}, author="eve")
    stage.settle()
    assert stage.ready(pull) in AWAITED
    assert all(run.status == "completed" for run in stage.world.runs.values()
               if run.workflow.file == EXECUTOR)  # fmt: skip


def test_pull_request_of_a_maintainer_from_a_strangers_fork(stage: Stage) -> None:
    sha = stage.commit(stage.kernel(), stage.world.tip("main") or "", "eve")
    stage.world.push("patch", owner="eve", author="eve", sha=sha)
    pull = stage.world.open_pull("eve", head="patch")
    pull.author = "mona"
    stage.world.events = [e for e in stage.world.events if e.name != "pull_request"]
    stage.world.emit("pull_request", "opened", Actor("mona"), pull)
    stage.git.git("update-ref", f"refs/pull/{pull.number}/head", sha)
    stage.settle()
    assert stage.runs() == []
    assert stage.ready(pull) in AWAITED


NO_APPROVAL = (
    "/fla-bot approve {short}",
    "please /fla-bot approve {sha}",
    "> /fla-bot approve {sha}",
    "```\n/fla-bot approve {sha}\n```",
    "`\n/fla-bot approve {sha}\n`",
    "    /fla-bot approve {sha}",
    "<!-- /fla-bot approve {sha} -->",
    "\\/fla-bot approve {sha}",
    "- /fla-bot approve {sha}",
)


def test_approvals_that_are_none(stage: Stage) -> None:
    """A short hash can be ground for; a quote or code says what another has said."""
    pull = stage.open()
    stage.settle()
    for words in NO_APPROVAL:
        stage.say(pull, "mona", words.format(sha=pull.sha, short=pull.sha[:12]))
        stage.settle()
        assert stage.runs() == [], words


def test_approval_of_whoever_may_not(stage: Stage) -> None:
    stage.world.person("trish", "triage")
    pull = stage.open()
    stage.settle()
    for login in ("alice", "eve", "trish"):
        stage.approve(pull, login)
        assert stage.runs() == []
    assert stage.comments(pull)[0].count("may approve") == 3


def test_edited_approval_does_not_count(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    comment = stage.say(pull, "mona", "looks good")
    stage.world.advance(seconds=9)
    stage.world.edit_comment(comment, Actor("wes"), f"/fla-bot approve {pull.sha}")
    stage.settle()
    assert stage.runs() == []
    assert "an edited comment commands nothing" in stage.comments(pull)[0]


def test_approver_loses_the_role_before_the_run_starts(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.approve(pull, "wes")
    run = stage.runs()[0]
    stage.world.person("wes", "read")
    stage.world.begin(run)
    assert "runs_on" not in stage.gate(run)  # so the lane is skipped
    assert stage.gate(run, "lane") == {"wanted": "no"}
    stage.publish(run, {}, gate="failure")
    stage.world.finish(run, "failure")
    assert stage.ready(pull) in AWAITED
    stage.say(pull, "mona", f"/fla-bot approve {pull.sha}")
    stage.settle()
    stage.say(pull, "mona", "/fla-bot rerun")
    stage.settle()
    for again in stage.runs():
        stage.execute(again)
    assert stage.ready(pull) == "success"


# 6: hostile evidence.


Spoil = Callable[[dict[str, bytes]], dict[str, bytes]]


def spoiled(stage: Stage, spoil: Spoil) -> Pull:
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    for run in stage.runs():
        stage.world.begin(run)
        stage.gate(run)
        stage.publish(run, spoil(stage.evidence(run)))
        stage.world.finish(run)
    return pull


SPOILS: tuple[Spoil, ...] = (
    lambda files: {},
    lambda files: dict.fromkeys(files, b""),
    lambda files: dict.fromkeys(files, b"{" * 100000),
    lambda files: {f"other-{name}": text for name, text in files.items()},
    lambda files: {
        n: t.replace(b'"complete": true', b'"complete": false, "x": 1') for n, t in files.items()
    },
    lambda files: {
        n: json.dumps({**json.loads(t), "cells": []}).encode() for n, t in files.items()
    },
    lambda files: {
        n: json.dumps({**json.loads(t), "head": "0" * 40}).encode() for n, t in files.items()
    },
    lambda files: {
        n: json.dumps({**json.loads(t), "plan": "0" * 16}).encode() for n, t in files.items()
    },
    lambda files: {n: t.replace(b"1e-08", b"NaN") for n, t in files.items()},
    lambda files: {n: t.replace(b"1e-08", b"0.5") for n, t in files.items()},
)


def test_evidence_that_is_hostile_is_never_green(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    run = gated.runs()[0]
    gated.world.begin(run)
    good = gated.evidence(run)
    assert '"conclusion": "success"' in gated.publish(run, good, dry_run=True)
    for number, spoil in enumerate(SPOILS):
        said = gated.publish(run, spoil(good), dry_run=True)
        assert '"conclusion": "failure"' in said, number
        assert '"conclusion": "success"' not in said, number


def test_evidence_of_another_lane_counts_for_nothing(stage: Stage) -> None:
    """A worker that plants files speaks for its own run's lane at the most."""
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    runs = {RowId.parse(run.inputs["plan"]).lane: run for run in stage.runs()}
    mine, other = runs["interpret:cpu"], runs["correctness:sm90"]
    planted = {**stage.evidence(mine), **stage.evidence(other)}
    stage.world.begin(mine)
    stage.publish(mine, planted)
    stage.world.finish(mine)
    assert stage.ready(pull) in RUNNING
    verdicts = {entry.id.lane: entry.result for entry in stage.view(pull).entries}
    assert verdicts["correctness:sm90"] is None
    # And with nothing but the other lane's files a run proves nothing at all.
    stage.world.begin(other)
    stage.publish(other, stage.evidence(mine))
    stage.world.finish(other)
    assert stage.ready(pull) == "failure"
    assert "the lane left no evidence" in stage.comments(pull)[0]


def test_what_a_lane_wrote_leaves_no_markup_and_no_secret(stage: Stage) -> None:
    def spoil(files: dict[str, bytes]) -> dict[str, bytes]:
        note = ("::set-env name=A::b\n@mona <img src=x> ghp_abcdefghijklmnop1234 10.1.2.3 "
                "/srv/runner/work/secret.txt | x \u202e gpu01.internal")  # fmt: skip
        return {
            name: json.dumps(
                {**json.loads(t), "complete": False, "cells": [], "note": note}
            ).encode()
            for name, t in files.items()
        }

    pull = spoiled(stage, spoil)
    text = stage.comments(pull)[0]
    assert stage.ready(pull) == "failure"
    for word in ("@mona", "<img", "ghp_", "ghp\\_", "10.1.2.3", "/srv/runner", "\u202e", "gpu01"):
        assert word not in text, word


# 7: a head that wants to be run.


def test_head_ships_code_that_must_not_run_here(gated: Stage) -> None:
    bomb = "raise SystemExit('the head was imported')\n"
    names = ["bot/__init__.py", "bot/cli.py", "torch.py", "sitecustomize.py", "pydantic.py"]
    names += ["setup.py", "conftest.py", "json.py"]
    files: dict[str, Content] = dict.fromkeys(names, bomb)
    files |= {"evil.pth": "import os; os._exit(1)\n", "pyproject.toml": "[build-system]\n"}
    pull = gated.open("wes", {**files, **gated.kernel()}, fork=False)
    gated.settle()
    assert gated.ready(pull) == "action_required"
    # Even for those whose push is a word of its own: what builds or judges is touched.
    assert gated.runs() == []
    assert "what judges or builds is edited" in gated.comments(pull)[0]
    assert not list((gated.folder / "clone").glob("bot"))


# 10: queue, upgrades, outages.


def test_reaper_finds_what_was_missed_and_a_person_must_approve(stage: Stage) -> None:
    pull = stage.open("wes", fork=False)
    stage.world.take_events()  # lost
    stage.world.advance(hours=2)
    stage.reap()
    stage.settle()
    assert stage.ready(pull) in AWAITED
    assert stage.runs() == []
    stage.turn_green(pull)


def test_everything_recovers_after_two_hours_without_events_and_reaper(stage: Stage) -> None:
    pull, other = stage.open(), stage.open("bob")
    stage.settle()
    stage.approve(pull)
    stage.approve(other)
    for run in stage.runs():
        stage.world.begin(run)
        stage.world.finish(run, "failure")  # its machine died, and nobody published
    head = stage.push(pull, {"README.md": "x"})
    new = stage.open("carol")
    stage.world.take_events()  # lost, all of them
    stage.world.advance(hours=2)
    assert [stage.ready(pull), stage.ready(new)] == ["none", "none"]
    assert stage.ready(other) in RUNNING
    stage.reap()
    stage.settle()
    for found in (pull, new):
        assert stage.ready(found) in AWAITED
        assert f"/fla-bot approve {found.sha}" in stage.comments(found)[0]
    assert pull.sha == head
    assert stage.ready(other) == "failure"
    assert "/fla-bot rerun" in stage.comments(other)[0]
    stage.say(other, "bob", "/fla-bot rerun")
    stage.turn_green(pull)
    stage.turn_green(new)
    stage.settle()
    assert stage.ready(other) == "success"


def test_word_that_was_lost_for_two_hours_is_heard(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.say(pull, "mona", f"/fla-bot approve {pull.sha}")
    gated.world.take_events()
    gated.world.advance(hours=2)
    gated.reap()
    gated.settle()
    assert len(gated.runs()) == 2


def test_what_the_last_look_of_the_reaper_saw_is_no_news(gated: Stage) -> None:
    pull, world = gated.open(), gated.world
    gated.settle()
    gated.turn_green(pull)
    world.advance(hours=2)
    assert pull.number in gated.due()["due"]
    gated.looked("failure")
    assert pull.number in gated.due()["due"]
    gated.looked()
    assert gated.due()["due"] == []


def test_merge_group_reuses_evidence_of_equal_jobs(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    head = stage.enqueue(pull)
    # No event came: the reaper sees the branch.
    stage.reap(pull)
    stage.settle()
    assert stage.verdict(head) == "success"
    assert stage.runs() == []


QUEUE = ".github/workflows/fla-bot-queue.yml"
FORGERY = """\
on: merge_group
permissions: {checks: write, statuses: write}
jobs: {seen: {name: fla-bot/ready, runs-on: ubuntu-24.04, steps: [run: "true"]}}
"""


@pytest.mark.parametrize(
    ("forged", "earned", "event"),
    [
        ("", True, True),
        ("", True, False),
        ("", False, False),
        ("check", True, True),
        ("check", False, False),
        ("status", True, False),
    ],
)
def test_queue_workflow_edited_by_the_pull_request_makes_nothing_green(
    gated: Stage, forged: str, earned: bool, event: bool
) -> None:
    """GitHub runs the group's own file of that name: it may say whatever it likes, or nothing."""
    world = gated.world
    assert gated.app
    world.protect("main", (READY, gated.app.id))
    pull = gated.open("wes", {**gated.kernel(), QUEUE: FORGERY}, fork=False)
    gated.settle()
    assert gated.ready(pull) == "action_required"
    assert "what judges or builds is edited" in gated.comments(pull)[0]
    gated.approve(pull)
    for run in gated.runs():
        gated.execute(run, rms=1e-8 if earned else 0.5)
    (code,) = {item.accept for item in gated.case(pull).report.checklist if item.accept}
    gated.say(pull, "mona", f"/fla-bot accept {code}")
    gated.settle()
    assert gated.ready(pull) == ("success" if earned else "failure")
    head = gated.enqueue(pull)
    if forged == "check":
        words = {"name": READY, "head_sha": head, "conclusion": "success"}
        world.create_check(world.job_actor(), words)
    elif forged == "status":
        world.add_status(world.job_actor(), head, {"context": READY, "state": "success"})
    assert not world.satisfied("main", head)
    if event:
        queue = world.workflow("fla-bot-queue.yml", on=("merge_group",))
        branch = next(name for _, name in world.branches if name.startswith("gh-readonly-queue"))
        run = world.start_run(queue, "merge_group", Actor("wes"), branch, head)
        world.take_events()
        world.finish(run)
        gated.settle("workflow_run", "workflow_dispatch")
    gated.reap()
    gated.settle()
    assert gated.verdict(head) != "success" or (earned and not forged)
    # What has failed on the pull request's own head has failed here, where the job is the same.
    assert gated.runs() == []
    assert gated.verdict(head) == ("success" if earned and not forged else "failure")
    assert world.satisfied("main", head) is (earned and not forged)


def test_bot_upgraded_between_plan_and_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    run = stage.runs()[0]
    monkeypatch.setattr("bot.github.actor.code_digest", lambda: "f" * 16)
    assert "runs_on" not in stage.gate(run)  # so the lane is skipped
    with pytest.raises(UserError, match="another version of the bot"):
        stage.gate(run, "lane")
    stage.publish(run, {})
    stage.world.finish(run)
    stage.settle()
    assert stage.ready(pull) in (*AWAITED, *RUNNING)
    # The new bot has planned anew; an approval of the old bot's plan is none of its own.
    stage.reap(pull)
    stage.settle()
    assert stage.case(pull).code == "f" * 16
    stage.approve(pull)
    for _ in range(3):
        for again in stage.runs():
            stage.execute(again)
        stage.say(pull, "mona", "/fla-bot rerun")
        stage.settle()
    assert stage.ready(pull) == "success"


def test_full_outage_of_machines(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    stage.world.advance(hours=4)
    for run in stage.runs():
        run.status = "in_progress"
        for job in run.jobs:
            job.check.created_at = run.created_at
    stage.reap(pull)
    assert stage.ready(pull) == "failure"
    assert "no machine took the job in time" in stage.comments(pull)[0]
    assert "/fla-bot rerun" in stage.comments(pull)[0]
    assert stage.runs() == []
    stage.say(pull, "alice", "/fla-bot rerun")
    stage.settle()
    assert len(stage.runs()) == 2
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) == "success"
