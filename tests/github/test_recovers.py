"""What comes right by itself: verdicts nobody can read, groups without a word, refused texts."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from zlib import compress, decompress

import pytest

from bot.errors import UserError
from bot.github.case import LaneResult
from bot.github.connection import GitHubError
from bot.github.events import Event
from bot.github.ledger import PREVIEW, READY
from bot.model import Verdict
from tests.github.double import Double, Fault
from tests.github.stage import AWAITED, RUNNING, Stage
from tests.github.test_second_look import codes
from tests.github.test_third_look import (
    LOOSER,
    TIGHTER,
    green,
    group,
    no_news,
    planners,
    shown,
    twin,
)
from tests.github.test_trust import CONTRACT
from tests.github.world import Actor, Comment, Pull, Refusal, World

__all__ = ["no_news"]

DOCS = {"docs/more.md": "more\n"}
BUG = "\N{BUG}"  # four bytes in UTF-8
MOST_CALLS = 17  # of an event that ends a green merge group, too; 15 of others


# A verdict of which nothing is known.


def of_another_version(stage: Stage, pull: Pull) -> None:
    """The ledger holds what this version of the bot cannot read."""
    if not stage.has_app:
        for comment in own(stage, pull):
            stage.world.delete_comment(comment, Actor("mona"))
        return
    text = stage.view(pull).shown[READY].text
    packed = text.partition(f"standing {pull.number} ")[2].partition(" ")[0]
    raw = {**json.loads(decompress(b64decode(packed))), "later": 1}
    new = b64encode(compress(json.dumps(raw).encode())).decode()
    (check,) = (c for c in stage.world.latest_checks(pull.sha) if c.name == READY)
    check.output["text"] = check.output["text"].replace(packed, new)


def own(stage: Stage, pull: Pull) -> list[Comment]:
    """Our comments."""
    found = stage.comments(pull)
    return [c for c in stage.world.comments.values() if c.body in found]


def tighten(stage: Stage) -> None:
    stage.put("main", {"contracts/l2norm.yaml": CONTRACT.replace(*TIGHTER)})


@pytest.mark.usefixtures("no_news")
def test_green_that_cannot_be_read_is_looked_at_again(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    of_another_version(stage, pull)
    tighten(stage)
    stage.world.take_events()
    assert stage.due()["due"] == [pull.number]
    stage.reap()
    stage.settle()
    assert stage.ready(pull) in AWAITED
    assert "update your branch" in shown(stage, pull, pull.sha)


@pytest.mark.usefixtures("no_news")
def test_red_that_cannot_be_read_is_looked_at_once(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    of_another_version(stage, pull)
    stage.world.take_events()
    assert stage.due()["due"] == [pull.number]
    stage.reap()
    stage.settle()
    assert stage.ready(pull) in AWAITED
    assert stage.due()["due"] == []


@pytest.mark.usefixtures("no_news")
def test_locked_conversation_uses_up_no_statuses(stage: Stage) -> None:
    words = "Unable to create comment because issue is locked."
    stage.github.fail(Fault("issues/create-comment", 403, words, times=100))
    pull = stage.open()
    stage.settle()
    assert stage.ready(pull) in AWAITED
    assert stage.due()["due"] == []


def test_verdict_is_not_made_of_those_that_can_be_read(gated: Stage) -> None:
    """Of three with one head one cannot be read, and another goes to a branch without a policy."""
    gated.git.git("branch", "old", "main")
    gated.world.push("old", sha=gated.world.tip("main"))
    gated.put("old", {"contracts/policy.yaml": None, "contracts/l2norm.yaml": None})
    gated.git.git("switch", "--quiet", "main")
    gated.world.take_events()
    first = gated.open()
    gated.settle()
    gated.turn_green(first)
    second, third = twin(gated, first, "eve", draft=True), twin(gated, first, "bob")
    gated.settle()
    of_another_version(gated, second)
    gated.world.edit_pull(third, Actor("bob"), base="old")
    gated.settle("pull_request")
    assert gated.ready(first) in (*AWAITED, *RUNNING)


# A merge group, and the words that it rests on.


@pytest.fixture
def queued(stage: Stage) -> tuple[Pull, Comment, str]:
    """A pull request with a weaker contract, the word for it, and its green group."""
    pull = stage.open(files={"contracts/l2norm.yaml": LOOSER})
    stage.settle()
    (code,) = codes(stage, pull)
    word = stage.say(pull, "mona", f"/fla-bot accept {code}")
    stage.settle()
    stage.turn_green(pull)
    head = stage.enqueue(pull)
    stage.reap()
    stage.settle()
    assert stage.verdict(head) == "success"
    stage.world.advance(minutes=1)
    return pull, word, head


Queued = tuple[Pull, Comment, str]


@pytest.mark.parametrize("edit", [True, False])
def test_group_is_red_when_its_word_is_gone(stage: Stage, queued: Queued, edit: bool) -> None:
    pull, word, head = queued
    if edit:
        stage.world.edit_comment(word, Actor("mona"), f"No.\n\n{word.body}")
    else:
        stage.world.delete_comment(word, Actor("mona"))
    (event,) = stage.world.take_events("issue_comment")
    stage.handle(event)
    assert stage.ready(pull) in AWAITED
    assert stage.verdict(head) in RUNNING  # none merges it before it was planned anew
    stage.settle()
    assert stage.verdict(head) == "failure"
    (code,) = codes(stage, pull)
    assert f"on #{pull.number} type /fla-bot accept {code}" in shown(stage, pull, head)


def test_group_is_red_when_nobody_told_that_its_word_is_gone(stage: Stage, queued: Queued) -> None:
    pull, word, head = queued
    stage.world.delete_comment(word, Actor("mona"))
    stage.world.take_events()
    stage.reap()
    stage.settle()
    assert stage.ready(pull) in AWAITED
    assert stage.verdict(head) == "failure"


def test_group_is_held_before_its_pull_request_is(stage: Stage, queued: Queued) -> None:
    """The job dies between the two: whoever comes next finds out the same."""
    pull, word, head = queued
    stage.world.delete_comment(word, Actor("mona"))
    name = "checks/update" if stage.has_app else "repos/create-commit-status"
    stage.github.fail(Fault(name, 400, times=100, after=1))
    with pytest.raises(GitHubError):
        stage.settle()
    stage.github.faults.clear()
    assert stage.verdict(head) in RUNNING
    assert stage.ready(pull) == "success"
    stage.reap()
    stage.settle()
    assert stage.ready(pull) in AWAITED
    assert stage.verdict(head) == "failure"


def test_group_misses_a_word_that_only_it_has_needed(stage: Stage) -> None:
    first = green(stage, "alice", {"contracts/l2norm.yaml": LOOSER}, "mona")
    bounds = CONTRACT.replace("bounds: {B: 1024", "bounds: {B: 512")
    second = green(stage, "bob", {"contracts/l2norm.yaml": bounds}, "mona")
    above = group(stage, first, second)
    (line,) = re.findall(r"/fla-bot accept [0-9a-f]{16}", shown(stage, second, above))
    word = stage.say(second, "mona", line)
    stage.settle()
    assert stage.verdict(above) == "success"
    stage.world.advance(minutes=1)
    stage.world.delete_comment(word, Actor("mona"))
    stage.settle()
    assert stage.ready(second) == "success"
    assert stage.verdict(above) == "failure"


def test_groups_are_read_once_where_a_word_is_gone(stage: Stage, queued: Queued) -> None:
    _, word, _ = queued
    stage.world.delete_comment(word, Actor("mona"))
    (event,) = stage.world.take_events("issue_comment")
    before = len(stage.github.log)
    stage.handle(event)
    asked = [item.operation for item in stage.github.log[before:]]
    assert asked.count("git/list-matching-refs") == 1
    assert "repos/get" not in asked
    assert asked.count("actions/create-workflow-dispatch") == 1
    assert len(asked) <= MOST_CALLS


def test_deleted_question_disturbs_no_group(stage: Stage, queued: Queued) -> None:
    pull, _, head = queued
    question = stage.say(pull, "stranger", "/fla-bot status")
    stage.settle()
    before = planners(stage)
    stage.world.delete_comment(question, Actor("stranger"))
    (event,) = stage.world.take_events("issue_comment")
    stage.handle(event)
    assert stage.verdict(head) == "success"
    assert planners(stage) == before + 1
    stage.settle()
    assert stage.verdict(head) == "success"


# What GitHub does not take.


@contextmanager
def refused(words: str) -> Iterator[None]:
    with pytest.raises(Refusal, match=words) as found:
        yield
    assert found.value.status == 422


def test_double_takes_no_status_that_github_would_not(github: Double) -> None:
    world: World = github.world
    sha = world.tip("main") or ""
    for words, why in ((BUG, "4-byte"), ("a" * 141, "too long")):
        with refused(why):
            body = {"context": "x", "state": "success", "description": words}
            world.add_status(Actor("mona"), sha, body)


def test_file_with_a_picture_in_its_name_gets_a_verdict(stage: Stage) -> None:
    pull = stage.open(files={f"fla/modules/{BUG}.py": "x = 1\n"})
    stage.settle()
    assert stage.ready(pull) in AWAITED
    assert "has no contract" in shown(stage, pull, pull.sha)
    assert (BUG in shown(stage, pull, pull.sha)) == stage.has_app


def test_words_of_a_lane_do_not_hide_its_row(stage: Stage) -> None:
    """A line break in a description would keep it from being read again."""
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    run = stage.runs()[0]
    stage.world.begin(run)
    reconciler = stage.reconciler()
    with reconciler.client:
        (entry, *_) = stage.view(pull).entries
        lost = LaneResult(
            row=str(entry.id),
            run=run.id,
            verdict=Verdict.LOST,
            note=f"infra: {BUG}\nis here",
            keys={},
            rows=[],
        )
        reconciler.ledger.close_row(stage.view(pull), lost, "")
    found = {item.id: item.result for item in stage.view(pull).entries}
    assert found[entry.id]


def test_body_that_github_does_not_take_spoils_nothing(stage: Stage) -> None:
    stage.github.fail(Fault("pulls/update", 422, "body is too long", times=100))
    pull = stage.open(files=DOCS)
    stage.settle()
    assert stage.ready(pull) == "success"
    assert stage.standing(pull).case  # the ledger can be read
    assert ("too long" in stage.view(pull).shown[READY].text) == stage.has_app


# Switches.


@pytest.mark.usefixtures("no_news")
def test_shadow_measures(stage: Stage) -> None:
    stage.mode = "shadow"
    pull = stage.open(body="mine")
    stage.settle()
    stage.approve(pull)
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) == "none"
    assert stage.ready(pull, PREVIEW) == "success"
    assert stage.due()["due"] == []
    assert pull.body == "mine"
    visible = [line for text in stage.comments(pull) for line in text.split("\n")]
    spoken = [line for line in visible if not line.startswith("<!--")]
    assert spoken == (
        [] if stage.has_app else ["<sub>fla-bot keeps notes here; nothing to do.</sub>"]
    )
    stage.mode = "on"
    stage.say(pull, "mona", "/fla-bot status")
    stage.settle()
    assert stage.ready(pull) == "success"
    assert "keeps notes" not in stage.comments(pull)[0]


@pytest.mark.usefixtures("no_news")
def test_shadow_looks_only_once_at_what_runs_nothing(stage: Stage) -> None:
    stage.mode = "shadow"
    pull = stage.open(files=DOCS)
    stage.settle()
    assert stage.ready(pull, PREVIEW) == "success"
    assert stage.comments(pull) == []
    assert stage.due()["due"] == []


def off(stage: Stage) -> Pull:
    """A green pull request, another gated branch, and the bot is switched off."""
    stage.git.git("branch", "stable", "main")
    stage.world.push("stable", sha=stage.world.tip("main"))
    pull = stage.open()
    stage.settle()
    stage.turn_green(pull)
    stage.mode = "off"
    return pull


def test_off_leaves_no_green_for_another_branch(stage: Stage) -> None:
    pull = off(stage)
    stage.world.edit_pull(pull, Actor("alice"), base="stable")
    stage.settle()
    assert stage.ready(pull) in AWAITED
    stage.world.edit_pull(pull, Actor("alice"), base="main")
    stage.settle()
    assert stage.ready(pull) in AWAITED
    stage.mode = "on"
    stage.reap()
    stage.settle()
    assert stage.ready(pull) == "success"


def test_off_leaves_no_green_of_another_pull_request(stage: Stage) -> None:
    pull = off(stage)
    other = twin(stage, pull)
    stage.settle()
    assert stage.ready(other) == "success"  # the same commits into the same branch
    twin(stage, pull, "bob", base="stable")
    stage.settle()
    assert stage.ready(pull) in AWAITED


@pytest.mark.parametrize("merged", [True, False])
def test_off_leaves_no_green_of_what_was_closed_unmerged(stage: Stage, merged: bool) -> None:
    pull = off(stage)
    pull.state, pull.merged = "closed", merged
    stage.world.emit("pull_request", "closed", Actor("mona"), pull)
    stage.settle()
    assert stage.ready(pull) == "success" if merged else stage.ready(pull) in AWAITED


# One spelling of a number.


@pytest.mark.parametrize("text", ["007", "0", "-7", "7 ", "٧", "9" * 5000, str(2**31)])
def test_number_of_a_pull_request_has_one_spelling(text: str) -> None:
    """The concurrency group of the job is named after the text, not after the number."""
    assert Event(name="workflow_dispatch", inputs={"pr": "7"}).inputs_pr() == 7
    with pytest.raises(UserError, match="not the number"):
        Event(name="workflow_dispatch", inputs={"pr": text}).inputs_pr()
