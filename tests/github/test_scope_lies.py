"""What `scope` leaves out of its checklist, and GitHub shows: somebody is asked all the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bot.github.due import only_words, silencing
from bot.github.records import File
from bot.model import ChecklistItem, ItemState, Suppression
from tests.conftest import ROOT
from tests.github.stage import AWAITED, BOOKS, KERNEL, Content, Stage
from tests.github.test_operate import MAX_CALLS, calls
from tests.github.test_second_look import codes
from tests.github.test_third_look import OTHER, with_other_op
from tests.github.test_trust import ANCHORS, CONTRACT, NAIVE, _case, told
from tests.github.world import Pull

LOOSER = CONTRACT.replace("fp32: 2.0e-7", "fp32: 2.0e-5")
POLICY = (BOOKS / "policy.yaml").read_text()
TEXT = (ROOT / KERNEL).read_text()
SILENT = f"{TEXT}\n\ndef helper(x):  # fla-bot: ignore[CAL001] it is fine\n    return x\n"
FROZEN = ANCHORS.replace(
    '"lanes": {}',
    '"lanes": {"interpret:cpu": {"measured": "2026-01-01", "machine": "m", "commit": "'
    + "a" * 40
    + '", "cells": {"c": {"y": 1e-8}}}}',
)
Lie = Callable[[dict[str, Any]], None]


def items(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The checklist of the plan."""
    found: list[dict[str, Any]] = _case(data)["report"]["checklist"]
    return found


def left_out(data: dict[str, Any]) -> None:
    """Nobody has to accept anything."""
    _case(data)["report"]["checklist"] = [item for item in items(data) if not item["accept"]]


def done(data: dict[str, Any]) -> None:
    """All is there, and accepted already."""
    for item in items(data):
        if item["accept"]:
            item |= {"state": "done", "accept": ""}


def old_digest(data: dict[str, Any]) -> None:
    """Somebody has accepted something else before."""
    for item in items(data):
        if item["accept"]:
            item["accept"] = "0" * 16


def unlisted(data: dict[str, Any]) -> None:
    """Neither a word nor a suppression."""
    left_out(data)
    _case(data)["report"]["suppressions"] = []


CHANGES: dict[str, tuple[Mapping[str, Content], str]] = {
    "weaker contract": ({"contracts/l2norm.yaml": LOOSER}, "contract-change:l2norm"),
    "higher anchors": (
        {"contracts/anchors/l2norm.json": FROZEN.replace("1e-8", "1e-2")},
        "contract-change:l2norm",
    ),
    "removed contract": ({"contracts/l2norm.yaml": None}, "removed:l2norm"),
    "new contract": (
        {
            "contracts/other.yaml": OTHER,
            "fla/modules/other.py": TEXT.replace("l2norm", "other"),
            "fla/modules/other_naive.py": (ROOT / NAIVE).read_text().replace("l2norm", "other"),
        },
        "new-op:other",
    ),
    "policy": ({"contracts/policy.yaml": f"{POLICY}# more\n"}, "policy-change"),
    "suppression": ({KERNEL: SILENT}, "suppressions"),
    "what judges": ({"bot/x.py": "x = 1\n"}, "sensitive"),
}


LIES = [
    pytest.param(change, lie, id=f"{change}, {lie.__name__}")
    for change in CHANGES
    for lie in (left_out, done, old_digest)
    if (change, lie) != ("what judges", old_digest)  # that digest is the word of `scope`
]


@pytest.mark.parametrize(("change", "lie"), LIES)
def test_word_that_scope_does_not_ask_for(gated: Stage, change: str, lie: Lie) -> None:
    """It is asked for, and for this very edit, or the plan is refused."""
    gated.put("main", {"contracts/anchors/l2norm.json": FROZEN})
    gated.world.take_events()
    files, name = CHANGES[change]
    pull = gated.open(files=files)
    assert told(gated, lie, pull) == "failure"
    words = f"{name} is of another edit" if lie is old_digest else f"the checklist lacks {name}"
    assert words in gated.standing(pull).title


@pytest.mark.parametrize("change", CHANGES)
def test_word_that_scope_asks_for_is_the_one_that_counts(gated: Stage, change: str) -> None:
    """The plan of an honest job is taken, also where the base branch has moved on."""
    gated.put("main", {"contracts/anchors/l2norm.json": FROZEN})
    start = gated.world.tip("main")
    gated.put("main", {"docs/newer.md": "x\n"})
    gated.world.take_events()
    files, name = CHANGES[change]
    pull = gated.open(files=files, start=start)
    gated.settle()
    asked = [item.id for item in gated.case(pull).report.checklist if item.accept]
    assert name in asked
    assert not any(name.startswith("floor") for name in asked)
    for code in codes(gated, pull):
        gated.say(pull, "mona", f"/fla-bot accept {code}")
    gated.settle()
    assert "infra" not in gated.standing(pull).title


def test_calls_of_an_event_whose_contracts_are_read_twice(stage: Stage) -> None:
    """The base branch has moved on: the merge base has other files."""
    start = stage.world.tip("main")
    stage.put("main", {"docs/newer.md": "x\n"})
    stage.world.take_events()
    stage.open(files={**stage.kernel(), "contracts/l2norm.yaml": LOOSER}, start=start)
    (event,) = stage.world.take_events("pull_request")
    assert calls(stage, lambda: stage.handle(event)) <= MAX_CALLS


def test_contract_that_cannot_be_read_is_red_without_more_words(gated: Stage) -> None:
    pull = gated.open(files={"contracts/l2norm.yaml": "schema: nonsense\n"})
    gated.settle()
    assert gated.standing(pull).title == "Not ready: contracts/l2norm.yaml cannot be read"


def test_looser_contract_of_another_op(gated: Stage) -> None:
    """Scope does not even say that the op is there."""

    def lie(data: dict[str, Any]) -> None:
        left_out(data)
        case = _case(data)
        case["contracts"].pop("other", None)
        report = case["report"]
        report["plan"]["jobs"] = [job for job in report["plan"]["jobs"] if job["op"] != "other"]
        report["scope"]["ops"] = ["l2norm"]

    with_other_op(gated)
    gated.world.take_events()
    weaker = OTHER.replace("fp32: 2.0e-7", "fp32: 2.0e-5")
    pull = gated.open(files={**gated.kernel(), "contracts/other.yaml": weaker})
    assert told(gated, lie, pull) == "failure"
    assert "the checklist lacks contract-change:other" in gated.standing(pull).title


def assert_only_lacks(stage: Stage, pull: Pull, item: ChecklistItem, login: str) -> None:
    """Measured, it waits for this item alone; with the word of a person it is green."""
    stage.approve(pull)
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) == "action_required"
    stage.say(pull, login, f"/fla-bot accept {item.accept}")
    stage.settle()
    assert stage.ready(pull) == "success"


def test_suppression_that_scope_does_not_list_is_accepted_by_a_person(gated: Stage) -> None:
    """Lines do not tell a comment from a string: neither is believed to be harmless."""
    pull = gated.open(files={KERNEL: SILENT})
    assert told(gated, unlisted, pull) == "action_required"
    (item,) = (item for item in gated.case(pull).report.checklist if item.accept)
    assert (item.id, item.state, item.evidence) == ("floor-silence", ItemState.HUMAN, KERNEL)
    assert_only_lacks(gated, pull, item, "mona")


def test_reference_whose_edit_scope_does_not_tell(gated: Stage) -> None:
    text = (ROOT / NAIVE).read_text()
    pull = gated.open(files={NAIVE: text.replace("return ", "return 1.0 * ", 1)})
    assert told(gated, left_out, pull) == "action_required"
    (item,) = (item for item in gated.case(pull).report.checklist if item.accept)
    assert item.id == "floor-reference:l2norm"
    assert_only_lacks(gated, pull, item, "olga")


def test_reference_that_scope_tells_of_takes_one_word(gated: Stage) -> None:
    text = (ROOT / NAIVE).read_text()
    pull = gated.open(files={NAIVE: text.replace("return ", "return 1.0 * ", 1)})
    gated.settle()
    asked = [item.id for item in gated.case(pull).report.checklist if item.accept]
    assert asked == ["reference:l2norm.l2norm"]


NOTE = "# fla-bot: ignore[CAL001, API002] it is fine"
LISTED = Suppression.model_validate(
    {"path": "a.py", "line": 1, "codes": ["API002", "CAL001"], "reason": "it is fine"}
)


@pytest.mark.parametrize(
    ("patch", "listed", "silent"),
    [
        (f"@@ -1 +1 @@\n-x = 1\n+x = 2  {NOTE}", [], True),
        (f"@@ -1 +1 @@\n-x = 1\n+x = 2  {NOTE}", [LISTED], False),
        (f"@@ -1 +1 @@\n-x = 1  {NOTE}\n+x = 2  {NOTE}", [], False),  # it was there
        (f"@@ -1 +1,2 @@\n-x = 1  {NOTE}\n+x = 2  {NOTE}\n+y = 2  {NOTE}", [], True),
        (f"@@ -1 +1 @@\n-x = 1  {NOTE}\n+x = 2  {NOTE}r", [], True),  # another reason
        (f"@@ -1 +1 @@\n x = 1  {NOTE}\n+x = 2", [], False),
        (f"@@ -1 +1 @@\n+x = 1\r{NOTE}\ry = 2", [LISTED], True),
        ("@@ -1 +1 @@\n+x = 2  #fla-bot:ignore[CAL001]y", [], True),
        ("", [], True),  # too large to be shown
    ],
)
def test_lines_that_may_silence_a_rule(
    patch: str, listed: list[Suppression], *, silent: bool
) -> None:
    file = File(filename="a.py", status="modified", sha="0" * 40, patch=patch)
    assert bool(silencing([file], listed)) is silent
    assert not silencing([file.model_copy(update={"filename": "a.md"})], listed)
    assert not silencing([file.model_copy(update={"status": "removed"})], listed)


def test_file_that_only_moves_silences_nothing() -> None:
    file = File(filename="a.py", status="renamed", previous_filename="b.py", changes=0)
    assert silencing([file], []) == []


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("-#define TILE 32\n+#define TILE 64", False),
        ("-  # define TILE 32\n+  # define TILE 64", False),
        ("-#ifdef A\n+#ifndef A", False),
        ("+#if 0\n a();\n+#endif", False),
        ("+#include <a.h>", False),
        ("+#pragma unroll", False),
        ("+#line 3", False),
        (" #define ADD(x) \\\n+\n     x + 1", False),
        ("-# defines the tile\n+# the tile's size, and its lines", True),
        ("-#TODO\n+\n+#: more", True),
    ],
)
def test_lines_that_are_words_in_python_alone(lines: str, *, words: bool) -> None:
    """They may stand in a string, which holds source of C."""
    patch = f'@@ -40,3 +40,3 @@ SOURCE = """\n{lines}\n __global__ void f() {{'
    file = File(filename="fla/a.py", status="modified", sha="0" * 40, patch=patch)
    assert only_words(file) is words


def test_macro_in_a_string_needs_a_lane_or_a_word(gated: Stage) -> None:
    """Also where `scope` calls it a comment."""

    def lie(data: dict[str, Any]) -> None:
        _case(data)["report"]["plan"]["jobs"] = []

    source = f'{TEXT}\nSOURCE = """\n#define TILE 32\n"""\n'
    gated.put("main", {KERNEL: source})
    gated.world.take_events()
    pull = gated.open(files={KERNEL: source.replace("TILE 32", "TILE 64")})
    assert told(gated, lie, pull) in AWAITED
    assert [item.id for item in gated.case(pull).report.checklist if item.accept] == [
        "floor:l2norm"
    ]
