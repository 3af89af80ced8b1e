"""What people ask for in comments: one anchored grammar, outside code and quotes."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["COMMANDS", "Command", "commands"]

PREFIX = "/fla-bot"
MAX_COMMENT = 10_000  # characters; nobody asks for something in a longer one
MAX_COMMANDS = 5  # in one comment
Kind = Literal[
    "help", "approve", "run", "rerun", "cancel", "accept", "waive", "status", "unreadable"
]
# What each takes, and how it is typed.
_GRAMMAR: dict[Kind, tuple[re.Pattern[str], str]] = {
    "help": (re.compile(r""), "/fla-bot help"),
    "approve": (
        re.compile(r"([0-9a-f]{40})"),
        "/fla-bot approve <all 40 digits of the head commit>",
    ),
    "run": (
        re.compile(r"(?:([a-z]{1,20}:[a-z0-9]{1,20})(?: ([A-Za-z0-9_.-]{1,80}))?)?"),
        "/fla-bot run [lane] [op]",
    ),
    "rerun": (re.compile(r""), "/fla-bot rerun"),
    "cancel": (re.compile(r""), "/fla-bot cancel"),
    "accept": (re.compile(r"([0-9a-f]{16})"), "/fla-bot accept <digest>"),
    "waive": (
        re.compile(r"([A-Za-z0-9_.:-]{1,120}) (\S.{2,299})"),
        "/fla-bot waive <rule or job> <reason>",
    ),
    "status": (re.compile(r""), "/fla-bot status"),
}
COMMANDS = tuple(usage for _, usage in _GRAMMAR.values())


@dataclass(frozen=True, slots=True)
class Command:
    """One line that speaks to us; `unreadable` holds the usage that was missed."""

    kind: Kind
    arguments: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The line as it must be typed."""
        if self.kind == "unreadable":
            return self.arguments[0]
        return " ".join([PREFIX, self.kind, *filter(None, self.arguments)])


def commands(text: str) -> list[Command]:
    """The commands of a comment: whole lines of plain text in paragraphs of their own."""
    if PREFIX not in text:
        return []
    if len(text) > MAX_COMMENT:
        return [Command("unreadable", (f"a comment of at most {MAX_COMMENT} characters",))]
    found = [_parse(line) for line in _lines(text)]
    return found[:MAX_COMMANDS]


def _lines(text: str) -> Iterator[str]:
    """Lines of top-level paragraphs that begin with our word; markup makes one unreadable."""
    from markdown_it import MarkdownIt

    for token in MarkdownIt("commonmark").parse(text):
        # Level 1 is a paragraph (or heading) that stands in no list and no quote.
        if token.type != "inline" or token.level != 1:
            continue
        written = {line.strip() for line in token.content.split("\n")}
        line = ""
        for child in [*(token.children or []), None]:
            if child is None or child.type in ("softbreak", "hardbreak"):
                if line.strip() in written and re.match(rf"{PREFIX}(\s|$)", line):
                    yield line.strip()
                elif line.startswith(f"{PREFIX} ") and "\0" in line:
                    yield line
                line = ""
            else:
                # A mark that no command can hold stands for all that is not plain text.
                line += child.content if child.type == "text" else "\0"


def _parse(line: str) -> Command:
    word, _, rest = line.removeprefix(PREFIX).strip().partition(" ")
    for kind, (pattern, usage) in _GRAMMAR.items():
        if kind == word:
            match = pattern.fullmatch(rest.strip())
            if match and line.isprintable():
                return Command(kind, tuple(part or "" for part in match.groups()))
            return Command("unreadable", (usage,))
    return Command("unreadable", ("/fla-bot help",))
