"""What a person must accept, as GitHub shows the change; pure.

`scope` has read hostile content: it may have left out what asks for a word, or named an old digest.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from bot import anchors as anchors_file
from bot import contract as contract_file
from bot.amendment import anchor_edits, edits
from bot.anchors import Anchors
from bot.contract import Contract
from bot.errors import UserError
from bot.github.books import anchors_path, contract_path, named, op_of
from bot.github.case import Case
from bot.github.records import File
from bot.model import ItemState, Suppression, digest
from bot.report.checklist import suppressions_code
from bot.trusted import POLICY_PATH

__all__ = ["Sides", "asked", "lacking", "only_words", "paths", "silencing"]

CODING_LINES = 2
_HUNK = re.compile(r"@@ -([0-9]+)(?:,[0-9]+)? \+([0-9]+)(?:,[0-9]+)? @@")
_CODING = re.compile(r"[ \t\f]*#.*?coding[:=]")
# A string may hold source of C, where these are no comments.
_DIRECTIVE = re.compile(
    r"#\s*(?:define|undef|include|include_next|if|ifdef|ifndef|elif|elifdef|elifndef|else"
    r"|endif|pragma|error|warning|line|embed)\b"
)
# Also in a string, of which lines alone do not tell.
_SILENCE = re.compile(r"#\s*fla-bot:\s*ignore\[([^\]]*)\]\s*(.*)")
Key = tuple[str, ...]


@dataclass(frozen=True)
class Sides:
    """The change: its files, what is there before it, and texts by blob, which are checked.

    `tree`: the tip of the base branch; `before`: the merge base, which is seldom asked for.
    """

    files: Sequence[File]
    tree: Mapping[str, str]
    before: Callable[[], Mapping[str, str]]
    texts: Mapping[str, str]

    def edited(self) -> set[str]:
        """All paths of the change."""
        return {path for file in self.files for path in paths(file)}

    def old(self, path: str) -> bytes | None:
        """A text at the merge base."""
        return self._text(self.before().get(path), path)

    def trusted(self, path: str) -> bytes | None:
        """A text at the tip of the base branch."""
        return self._text(self.tree.get(path), path)

    def new(self, path: str) -> bytes | None:
        """A text that the change adds or edits."""
        there = (file for file in self.files if file.status != "removed")
        return self._text(next((f.sha for f in there if f.filename == path), None), path)

    def _text(self, oid: str | None, path: str) -> bytes | None:
        return None if oid is None else named(self.texts, oid, path)


def paths(file: File) -> list[str]:
    """Where a file is, and where it was."""
    return [path for path in (file.filename, file.previous_filename) if path]


# Items.


def asked(case: Case) -> dict[str, str]:
    """The items of the checklist that wait for a person, with their digests."""
    items = case.report.checklist
    return {i.id: i.accept for i in items if i.state is ItemState.HUMAN and i.accept}


def lacking(case: Case, sides: Sides) -> Iterator[str]:
    """What the checklist must ask a person for whatever the change reaches, and does not."""
    found = asked(case)
    for name, code in sorted(_due(case, sides).items()):
        if name not in found:
            yield f"the checklist lacks {name}"
        elif code not in ("", found[name]):
            yield f"{name} is of another edit than GitHub has"


def _due(case: Case, sides: Sides) -> dict[str, str]:
    """Items with their digests; empty where that is `scope`'s word."""
    new = {
        op: origin for op, origin in case.contracts.items() if contract_path(op) not in sides.tree
    }
    found = {f"new-op:{op}": origin.fingerprint for op, origin in new.items()}
    edited = sides.edited()
    areas = (case.policy.place(path)[0] for path in edited)
    if any(area and area.guarded for area in areas):
        found["sensitive"] = ""
    if POLICY_PATH in edited:
        texts = (sides.trusted(POLICY_PATH), sides.new(POLICY_PATH))
        found["policy-change"] = digest([(text or b"").hex() for text in texts])
    if case.report.suppressions:
        found["suppressions"] = suppressions_code(case.report.suppressions)
    red = {item.id for item in case.report.checklist if item.state is ItemState.FAILED}
    for op in sorted({op_of(path) for path in edited} - {""}):
        if f"contract:{op}" not in red:  # no word turns that green
            found.update(_of_op(op, sides, edited))
    return found


def _of_op(op: str, sides: Sides, edited: set[str]) -> Iterator[tuple[str, str]]:
    """What edits of an op's contract and anchors ask for."""
    found, place = [], contract_path(op)
    if place in edited:
        text = sides.old(place)
        old, new = _contract(op, text), _contract(op, sides.new(place))
        if new is not None and place not in sides.tree:
            yield f"new-op:{op}", new.fingerprint
        if new is None and text is not None and place in sides.tree:
            yield f"removed:{op}", digest(text.hex())
        found += edits(old, new) if old is not None and new is not None else []
    place = anchors_path(op)
    if place in edited:
        found += anchor_edits(
            *(_anchors(op, text) for text in (sides.old(place), sides.new(place)))
        )
    if any(edit.kind == "weaker" for edit in found):
        yield f"contract-change:{op}", digest([edit.model_dump() for edit in found])


def _contract(op: str, text: bytes | None) -> Contract | None:
    """A contract; None where there is none that could judge, such as behind a link."""
    with suppress(UserError):
        found = contract_file.load(text, contract_path(op)) if text is not None else None
        return found if found and found.op == op else None
    return None


def _anchors(op: str, text: bytes | None) -> Anchors | None:
    return None if text is None else anchors_file.load(text, anchors_path(op), op)


# Lines.


def silencing(files: Iterable[File], listed: Iterable[Suppression]) -> list[File]:
    """Files that may silence a rule in a way that is not listed, since their lines look so.

    A file without lines, which GitHub leaves out where they are many, may do anything.
    """
    known: dict[str, Counter[Key]] = {}
    for item in listed:
        known.setdefault(item.path, Counter())[(*item.codes, item.reason)] += 1
    found = []
    for file in files:
        if not file.filename.endswith(".py") or file.status == "removed":
            continue
        unseen = not file.patch and file.changes > 0
        if unseen or _silences(file) - known.get(file.filename, Counter()):
            found.append(file)
    return found


def _silences(file: File) -> Counter[Key]:
    """Comments that silence rules, by codes and reason: those that come without those that go."""
    sides = {"+": Counter[Key](), "-": Counter[Key]()}
    for line in file.patch.split("\n"):
        match = _SILENCE.search(line)
        if match and line[0] in sides:
            codes = sorted({code.strip() for code in match[1].split(",")})
            sides[line[0]][*codes, match[2].strip()] += 1
    return sides["+"] - sides["-"]


def only_words(file: File) -> bool:
    """Whether only comments and empty lines of a Python file change.

    Lines alone do not tell what stands in a string: what C would read there is no comment.
    """
    if file.status != "modified" or not file.filename.endswith(".py") or not file.patch:
        return False
    # Not `splitlines`: to Python a lone carriage return ends a line, and a form feed does not.
    lines = [line.removesuffix("\r") for line in file.patch.split("\n")]
    changed = [line[1:].strip() for line in lines if line[:1] in ("+", "-")]
    if not changed or not all(_is_word(line) for line in changed):
        return False
    # After a backslash a line is a part of the one before, also where it is empty.
    return not any(line.endswith("\\") for line in lines) and not _is_read_otherwise(lines)


def _is_word(line: str) -> bool:
    if not line:
        return True
    return line.startswith("#") and "\r" not in line and not _DIRECTIVE.match(line)


def _is_read_otherwise(patch: Sequence[str]) -> bool:
    """Whether a comment that says how the file is to be read comes, goes or moves (PEP 263)."""
    old = new = 0
    for line in patch:
        if hunk := _HUNK.match(line):
            old, new = int(hunk[1]), int(hunk[2])
            continue
        before, after = line[:1] in ("-", " "), line[:1] in ("+", " ")
        # Such a comment counts in the first two lines alone; others can push it out of them.
        counts = (before and old <= CODING_LINES, after and new <= CODING_LINES)
        if counts[0] != counts[1] and _CODING.match(line[1:]):
            return True
        old, new = old + before, new + after
    return False
