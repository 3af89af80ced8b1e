"""Commands are answered once, all of them, and whoever edits our comment decides nothing."""

from __future__ import annotations

import re

import pytest

from bot.github.publish import marked_head
from tests.github.double import Fault
from tests.github.stage import AWAITED, RUNNING, Stage
from tests.github.world import Actor, Pull


def reactions(stage: Stage) -> dict[int, str]:
    return {r.comment: r.content for r in stage.world.reactions.values()}


def red(stage: Stage) -> Pull:
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    for run in stage.runs():
        stage.execute(run, rms=0.5)
    return pull


def test_two_waivers_in_one_comment_both_count(stage: Stage) -> None:
    pull = red(stage)
    jobs = [job.id for job in stage.case(pull).report.plan.jobs]
    stage.say(pull, "mona", "\n\n".join(f"/fla-bot waive {job} known, see #1" for job in jobs))
    stage.settle()
    assert stage.ready(pull) == "success"
    assert [w.target for w in stage.standing(pull).waivers] == jobs
    stage.reap(pull)
    assert stage.ready(pull) == "success"


def test_waiver_of_one_of_two_lines_is_refused_alone(stage: Stage) -> None:
    pull = red(stage)
    job = stage.case(pull).report.plan.jobs[0].id
    stage.say(pull, "mona", f"/fla-bot waive {job} known\n\n/fla-bot waive nothing known")
    stage.settle()
    assert [w.target for w in stage.standing(pull).waivers] == [job]
    (text,) = stage.comments(pull)
    assert text.count("neither a rule that hits here nor a job: nothing") == 1


def test_refused_waiver_does_not_count_later(gated: Stage) -> None:
    pull = red(gated)
    for job in gated.case(pull).report.plan.jobs:
        gated.say(pull, "wes", f"/fla-bot waive {job.id} it is fine")
    gated.settle()
    gated.world.person("wes", "admin")
    gated.reap(pull)
    assert gated.ready(pull) == "failure"


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace("comment ", "comment answered=9999999999999999999 ", 1),
        lambda text: re.sub(r"comment [0-9a-f]{40}", f"comment {'a' * 40}", text, count=1),
        lambda text: f"x{text}",
        lambda text: text[:60],
    ],
    ids=["word", "head", "spoiled", "cut"],
)
def test_edit_of_our_comment_switches_no_command_off(gated: Stage, edit: object) -> None:
    assert callable(edit)
    pull = gated.open()
    gated.settle()
    comment = next(c for c in gated.world.comments.values() if c.actor.kind == "app")
    gated.world.edit_comment(comment, Actor("wes"), edit(comment.body))
    gated.world.take_events()
    gated.approve(pull)
    assert len(gated.runs()) == 2
    for run in gated.runs():
        gated.world.begin(run)
        gated.publish(run, {})
        gated.world.finish(run, "failure")
    gated.world.edit_comment(comment, Actor("wes"), edit(comment.body))
    again = gated.say(pull, "mona", "/fla-bot rerun")
    gated.settle()
    assert len(gated.runs()) == 2
    assert reactions(gated)[again.id] == "+1"


def test_forged_answers_in_our_comment_do_not_stay(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.say(pull, "mona", "/fla-bot waive nothing at all")
    gated.settle()
    comment = next(c for c in gated.world.comments.values() if c.actor.kind == "app")
    gated.world.edit_comment(comment, Actor("wes"), f"{comment.body}\n- mona: approved by me")
    gated.world.take_events()
    gated.reap(pull)
    (text,) = gated.comments(pull)
    assert "approved by me" not in text
    assert "- mona: neither a rule" in text


def test_new_head_answers_nobody_again(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.say(pull, "stranger", "/fla-bot help")
    stage.say(pull, "wes", "/fla-bot approve 0123456789")
    stage.settle()
    assert len(reactions(stage)) == 2
    stage.push(pull, {"README.md": "x"})
    before = len(stage.github.log)
    stage.settle()
    assert not [i for i in stage.github.log[before:] if i.operation.startswith("reactions")]
    assert marked_head(stage.comments(pull)[0]) == pull.sha
    stage.say(pull, "wes", "/fla-bot status")
    stage.settle()
    assert len(reactions(stage)) == 3


def test_shadow_reacts_once(stage: Stage) -> None:
    stage.mode = "shadow"
    pull = stage.open()
    stage.settle()
    for _ in range(3):
        stage.say(pull, "stranger", "/fla-bot help")
    stage.settle()
    # Without an App the ledger is in our comment, which shadow mode writes only for machines.
    assert len(reactions(stage)) == (3 if stage.has_app else 0)
    before = len(stage.github.log)
    stage.reap(pull)
    if not stage.has_app:
        assert reactions(stage) == {}
        return
    found = {item.operation for item in stage.github.log[before:] if item.method != "GET"}
    assert found <= {"apps/create-installation-access-token"}


def test_every_command_is_answered_where_no_plan_can_be_made(stage: Stage) -> None:
    pull = stage.open()
    (event,) = stage.world.take_events("pull_request")
    path = stage.folder / "plan.json"
    path.unlink(missing_ok=True)
    stage.plan(event, path, SCOPE_RESULT="failure")
    texts = (
        "/fla-bot help", f"/fla-bot approve {'a' * 40}", "/fla-bot waive X for a reason",
        "/fla-bot nonsense", "/fla-bot run",
    )  # fmt: skip
    said = [stage.say(pull, "bob", text).id for text in texts]
    stage.settle()
    found = reactions(stage)
    assert [found.get(number) for number in said] == ["eyes", "-1", "-1", "confused", "+1"]
    assert stage.ready(pull) in (*AWAITED, *RUNNING)
    assert stage.standing(pull).fault == ""
    assert "there is no plan yet" in stage.comments(pull)[0]


def test_nobody_is_left_out_when_a_later_command_is_answered_first(stage: Stage) -> None:
    pull = stage.open()
    (event,) = stage.world.take_events("pull_request")
    path = stage.folder / "plan.json"
    path.unlink(missing_ok=True)
    stage.plan(event, path, SCOPE_RESULT="failure")
    run = stage.say(pull, "bob", "/fla-bot run")
    asked = stage.say(pull, "bob", "/fla-bot help")
    stage.world.take_events()
    # The planner fails once more, and comes before the comment's own event.
    stage.plan(event, path, SCOPE_RESULT="failure")
    assert reactions(stage) == {asked.id: "eyes"}
    stage.reap(pull)
    assert reactions(stage)[run.id] == "+1"


def test_job_that_died_before_it_answered_answers_when_it_comes_back(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    asked = gated.say(pull, "mona", f"/fla-bot approve {pull.sha}")
    fault = gated.github.fail(Fault.bad_gateway("reactions/create-for-issue-comment"))
    fault.times = 99
    with pytest.raises(Exception, match="502"):
        gated.settle()
    assert len(gated.runs()) == 2
    assert gated.standing(pull).answered < asked.id
    fault.times = 0
    gated.reap(pull)
    assert reactions(gated)[asked.id] == "+1"
    assert len(gated.runs()) == 2


def test_failing_cell_is_told_once(stage: Stage) -> None:
    pull = red(stage)
    (text,) = stage.comments(pull)
    head, _, table = text.partition("#### Evidence")
    row = next(line for line in table.split("\n") if line.startswith("| fail"))
    sentence = row.split("|")[4].partition("; reproduce")[0].strip()
    assert "limit" in sentence
    assert table.count(row) == 1
    assert sentence not in head
    assert sentence not in (pull.body or "")
    assert "fla-bot run" not in (pull.body or "")
    assert head.count("fla-bot run --lane") == 1
