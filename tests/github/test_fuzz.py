"""Hostile words, bodies, payloads and evidence: no crash, no changed character outside the block,
no text that is not escaped."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from bot import evidence as evidence_file
from bot.errors import UserError
from bot.github.case import RowId, Standing, unpack
from bot.github.commands import COMMANDS, commands
from bot.github.events import read_event
from bot.github.planner import read_cases
from bot.report.markdown import BEGIN, END, escape, put_block
from bot.text import redact

TOKEN = "ghp_" + "a" * 30
SEEDS = ("/fla-bot", "approve", "run", "rerun", "accept", "waive", "help", "`", "```", "\n", "\r\n",
         " ", "> ", "    ", "\t", "- ", "<!--", "-->", "<b>", "\\", "&#47;", "a" * 40, "0" * 40,
         "0" * 16, "\x00", "\u202e", "\u200b", "@mona", "#1", "|", "~~~", "*", "_", "[", "](x)",
         "\ud800", "é", "\U0001f600", BEGIN, END, "interpret:cpu", "MEM003", TOKEN)  # fmt: skip
# fmt: off
EVENT = {"action": "opened", "number": 1,
         "pull_request": {"number": 1, "base": {"sha": "a" * 40, "ref": "main"},
                          "head": {"sha": "b" * 40, "ref": "x"}},
         "issue": {"number": 1, "pull_request": {}}, "comment": {"body": "x"},
         "sender": {"login": "alice", "type": "User"}, "inputs": {"pr": "1"},
         "workflow_run": {"event": "merge_group", "head_branch": "x", "head_sha": "c" * 40}}
# fmt: on


def text_of(random: random.Random) -> str:
    words = [random.choice(SEEDS) for _ in range(random.randrange(12))]
    words += random.choices(string.printable, k=random.randrange(6))
    random.shuffle(words)
    return "".join(words)


def mutated(random: random.Random, value: object) -> object:
    """A JSON value with something in it replaced."""
    odd: list[object] = [None, True, -1, 10**30, 1.5, "", "x" * 300, [], {}, "\x00", "../../etc"]
    if random.random() < 0.15:
        return random.choice(odd)
    if isinstance(value, dict):
        found = {
            key: mutated(random, item) for key, item in value.items() if random.random() > 0.05
        }
        if random.random() < 0.05:
            found[text_of(random)] = 1
        return found
    if isinstance(value, list):
        return [mutated(random, item) for item in value]
    return value


def fuzz_grammar(random: random.Random, _: Path) -> None:
    text = text_of(random)
    for command in commands(text):
        assert command.kind == "unreadable" or "/fla-bot" in text
        if command.kind == "approve":
            # Only whole plain lines count.
            assert any(line.strip() == f"/fla-bot approve {command.arguments[0]}"
                       for line in text.splitlines())  # fmt: skip


def fuzz_body(random: random.Random, _: Path) -> None:
    old = text_of(random)
    block = f"{BEGIN}\nnew\n{END}"
    new = put_block(old, block)
    shown = block if block in new else block.replace("\n", "\r\n")
    assert new.count(BEGIN) == new.count(END) == 1
    assert put_block(new, block) == new
    before, _, after = new.partition(shown)
    rest = before + after
    if BEGIN not in old and END not in old:
        assert rest.startswith(old)
        assert set(rest[len(old) :]) <= {"\r", "\n"}
    else:
        # What is kept is kept in order, character by character.
        kept = iter(old)
        assert all(char in kept for char in rest.rstrip("\r\n"))


def fuzz_escape(random: random.Random, _: Path) -> None:
    text = text_of(random)
    line = f"| {escape(text)} | end |"
    html = MarkdownIt("commonmark").enable("table").render(f"| a | b |\n| --- | --- |\n{line}\n")
    assert html.count("<td>") == 2
    for tag in ("<b>", "<!--", "<a ", "<code", "<em", "<img", "<strong", "<del"):
        assert tag not in html
    assert not any(word in line for word in ("@mona", "#1", "\u202e", "\x00", "\n| x"))


def fuzz_payload(random: random.Random, folder: Path) -> None:
    path = folder / "event.json"
    content = json.dumps(mutated(random, EVENT)).encode()
    if random.random() < 0.2:
        content = content[: random.randrange(len(content) + 1)]
    path.write_bytes(content)
    names = ("pull_request_target", "issue_comment", "workflow_dispatch", "workflow_run", "x", None)
    try:
        event = read_event(path, random.choice(names))
        event.inputs_pr()
    except UserError:
        pass


def fuzz_artifact(random: random.Random, folder: Path) -> None:
    evidence = {"schema": "fla-bot/evidence@1", "plan": "0" * 16, "job": "j", "lane": "l",
                "head": "a" * 40, "merge_base": "b" * 40, "trusted": "c" * 40, "complete": True,
                "environment": {"python": "3", "torch": "2", "triton": "3", "device": "cpu",
                                "interpreter": True, "protections": []},
                "cells": [], "wall_s": 1.0}  # fmt: skip
    content = json.dumps(mutated(random, evidence)).encode()
    if random.random() < 0.3:
        at = random.randrange(len(content) + 1)
        content = content[:at] + random.randbytes(random.randrange(9)) + content[at:]
    (folder / "j.json").write_bytes(content)
    found = evidence_file.read(folder, "j")
    assert found is not None
    (folder / "plan.json").write_bytes(content)
    cases = read_cases(folder / "plan.json")
    assert isinstance(cases, str) or not cases.cases
    assert unpack(Standing, text_of(random)) is None
    row = RowId.find(text_of(random))
    assert row is None or str(row)
    assert TOKEN not in redact(text_of(random))


FUZZ: dict[str, Callable[[random.Random, Path], None]] = {
    "grammar": fuzz_grammar,
    "body": fuzz_body,
    "escape": fuzz_escape,
    "payload": fuzz_payload,
    "artifact": fuzz_artifact,
}


def run(name: str, folder: Path, count: int) -> None:
    for seed in range(count):
        try:
            FUZZ[name](random.Random(f"{name} {seed}"), folder)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("name", FUZZ)
def test_fuzz(name: str, tmp_path: Path) -> None:
    run(name, tmp_path, 2_000)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", FUZZ)
def test_fuzz_long(name: str, tmp_path: Path) -> None:
    run(name, tmp_path, 100_000)


def test_every_usage_is_a_command() -> None:
    filled = {"<all 40 digits of the head commit>": "a" * 40, "[lane] [op]": "compile:sm90 kda"}
    filled |= {"<digest>": "0" * 16, "<rule or job>": "MEM003", "<reason>": "known and harmless"}
    for usage in COMMANDS:
        text = usage
        for name, value in filled.items():
            text = text.replace(name, value)
        (command,) = commands(f"Hello\n\n{text}\n")
        assert command.kind == usage.split()[1], text
