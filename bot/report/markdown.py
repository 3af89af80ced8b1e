"""The report as Markdown for a pull request; every text that a PR controls is escaped here."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from bot.model import ItemState, Report, Verdict

__all__ = ["BEGIN", "END", "body_block", "comment", "escape", "put_block", "table"]

BEGIN, END = "<!-- fla-bot:begin -->", "<!-- fla-bot:end -->"
MAX_ROWS = 20
MAX_CELL = 400  # as long as a reason is: a command in it must be whole
MAX_ITEMS = 40  # of at most 600 characters each, escaped: a third of what a comment may hold
MAX_COMMANDS = 3
# A command is for copying: it stands below the table by itself, and not in every row of it.
_COMMAND = re.compile(
    r"; reproduce: (fla-bot run --lane [a-z0-9:]+ --only (?:'[ -&(-_a-~]{1,300}'|[A-Za-z0-9.:-]+)"
    r"(?: --seed [0-9]+)?)"
)
_QUIET = (ItemState.DONE, ItemState.NOT_APPLICABLE)
_BOX = {
    ItemState.DONE: "[x]",
    ItemState.TODO: "[ ]",
    ItemState.FAILED: "[ ] **failed**",
    ItemState.WAITING: "[ ] *waiting*",
    ItemState.HUMAN: "[ ] **needs a person**",
}


def escape(text: str, limit: int = 300) -> str:
    """Plain text that Markdown, HTML and GitHub's mentions and references leave alone."""
    shown = "".join(c if _visible(c) else "\N{REPLACEMENT CHARACTER}" for c in text)
    if len(shown) > limit:
        shown = shown[: limit - 1] + "…"
    shown = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = re.sub(r"([\\`*_{}\[\]()|~!$])", r"\\\1", shown)
    # A zero-width joiner keeps `@name`, `#1` and bare links from being picked up.
    return re.sub(r"(@|#|://|(?<=www)\.|GH-)", "\\1\u200d", shown)


def _visible(char: str) -> bool:
    """Control, format (bidi too) and unassigned characters and lone surrogates are not."""
    return char == " " or unicodedata.category(char) not in {
        "Cc",
        "Cf",
        "Cs",
        "Cn",
        "Co",
        "Zl",
        "Zp",
    }


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A pipe table of escaped cells."""
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    return lines + [f"| {' | '.join(escape(cell, MAX_CELL) for cell in row)} |" for row in rows]


def _checklist(report: Report) -> list[str]:
    """Finished rows are the first to be left out of a list that is too long."""
    lines = []
    ranked = sorted(report.checklist, key=lambda item: item.state in _QUIET)
    shown = {id(item) for item in ranked[:MAX_ITEMS]}
    for item in report.checklist:
        if id(item) not in shown:
            continue
        note = f" ({escape(item.evidence)})" if item.evidence else ""
        box = _BOX.get(item.state)
        lines.append(
            f"- {box} {escape(item.text)}{note}" if box else f"- {escape(item.text)}{note}"
        )
    if len(report.checklist) > MAX_ITEMS:
        lines.append(f"- and {len(report.checklist) - MAX_ITEMS} more, see the JSON report")
    return lines


def body_block(report: Report) -> str:
    """The managed block of the PR body, markers included."""
    title = f"**fla-bot: {escape(report.headline)}** at `{report.change.head[:12]}`"
    return "\n".join([BEGIN, title, "", *_checklist(report), END])


def comment(report: Report) -> str:
    """The one comment: verdict, next step, findings, evidence."""
    lines = [
        f"<!-- fla-bot:comment {report.change.head} -->",
        f"### fla-bot: {escape(report.headline)}",
        "",
        f"{escape(report.next_step)}",
        "",
        *_checklist(report),
    ]
    if report.findings:
        lines += ["", "#### Findings", ""]
        rows = [(f.code, f"{f.path}:{f.line}", f.message) for f in report.findings[:MAX_ROWS]]
        lines += table(("rule", "where", "what"), rows)
    bad = [row for row in report.rows if row.verdict not in (Verdict.PASS, Verdict.WAITING)]
    if bad:
        lines += ["", "#### Evidence", ""]
        rows_ = [
            (r.verdict, r.lane, r.cell or r.op, _COMMAND.sub("", r.reason), r.because)
            for r in bad[:MAX_ROWS]
        ]
        lines += table(("verdict", "lane", "cell", "reason", "changed"), rows_)
        if len(bad) > MAX_ROWS:
            lines += ["", f"{len(bad) - MAX_ROWS} more rows are in the JSON report."]
        commands = dict.fromkeys(found for row in bad for found in _COMMAND.findall(row.reason))
        if commands:
            lines += ["", "To see it again:", "", "```", *list(commands)[:MAX_COMMANDS], "```"]
    change = report.change
    lines += [
        "",
        f"<sub>head `{change.head[:12]}`, merge base `{change.merge_base[:12]}`, policy from "
        f"{escape(report.policy_source)}, plan `{report.plan.hash}`</sub>",
    ]
    return "\n".join(lines)


def put_block(body: str, block: str) -> str:
    """The body with its managed block replaced, or appended; no other character is changed.

    A block that stands twice is reduced to the first, markers without a partner are taken out: a
    person's text is never inside what is removed, unless they wrote it between two markers.
    """
    pieces = re.split(f"({re.escape(BEGIN)}|{re.escape(END)})", body)
    kept, place, i = [""], None, 0
    while i < len(pieces):
        piece = pieces[i]
        if piece in (BEGIN, END):
            place = len(kept) if place is None else place
            closed = piece == BEGIN and pieces[i + 2 : i + 3] == [END]
            i += 3 if closed else 1
            kept.append("")
        else:
            kept.append(piece)
            i += 1
    outside = "".join(kept)
    newline = "\r\n" if "\r\n" in outside or outside.endswith("\r") else "\n"
    block = block.replace("\n", newline)
    if place is None:
        gap = "" if not body else newline if body.endswith("\n") else newline * 2
        return f"{body}{gap}{block}{newline}"
    kept[place] = block
    return "".join(kept)
