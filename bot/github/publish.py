"""The texts of the one comment, the check and the body block; what people wrote is left alone."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bot.github.case import LaneResult, RowId, seal
from bot.github.commands import COMMANDS
from bot.github.records import Comment
from bot.github.situation import Answer, Decision
from bot.model import CheckState, Finding, Report, Severity
from bot.report.markdown import body_block, comment, escape, put_block, table

__all__ = [
    "Marked", "compose", "lane_summary", "new_body", "notes", "own_comments", "read_mark",
    "summary",
]  # fmt: skip

MARK = "<!-- fla-bot:comment"
MAX_COMMENT = 60_000  # GitHub takes 65,536 characters; counted in bytes, to be sure
MAX_ANSWERS = 5
MAX_BODY = 65_000
_MARK = re.compile(
    r"<!-- fla-bot:comment generation=([0-9]{1,9}) answered=([0-9]{1,19}) head=([0-9a-f]{40})"
    r" hash=([0-9a-f]{16}) -->\n"
)
_ANSWERS = "<!-- fla-bot:answers -->"


@dataclass(frozen=True, slots=True)
class Marked:
    """What our comment says about itself: how new it is, and up to where people were answered."""

    generation: int
    answered: int
    head: str
    digest: str
    text: str


def own_comments(comments: Sequence[Comment], us: str) -> list[Comment]:
    """Our comments, oldest first: by author and mark, since either alone proves nothing."""
    return [
        item
        for item in sorted(comments, key=lambda item: item.id)
        if item.user is not None and item.user.login == us and item.body.startswith(MARK)
    ]


def read_mark(body: str) -> Marked:
    """The mark of our comment; of one that somebody spoiled, the oldest possible."""
    body = body.replace("\r\n", "\n")
    match = _MARK.match(body)
    if match is None:
        return Marked(0, 0, "", "", "")
    generation, answered, head, digest = match.groups()
    return Marked(int(generation), int(answered), head, digest, body[match.end() :])


def compose(old: Marked, decision: Decision, head: str, data: str, answers: list[Answer]) -> str:
    """Our comment as it should be; the same text as before if nothing is new."""
    answered = max([old.answered, *(answer.comment for answer in answers)])
    kept = _old_answers(old.text) if old.head == head else []
    kept = [*kept, *(_answer(a, decision) for a in answers if a.text and a.text != "help")]
    kept = kept[-MAX_ANSWERS:]
    visible = _visible(decision, head)
    if kept:
        visible += ["", _ANSWERS, *kept]
    if any(answer.text == "help" for answer in answers) or _HELP[1] in old.text:
        visible += ["", *_HELP]
    text = _fit(visible, MAX_COMMENT - len(data) - 200)
    text = f"{text}\n{data}" if data else text
    digest = seal(text)
    # Until there is a plan, the mark names the head whose results may be used again.
    head = head if decision.report or not old.head else old.head
    same = (digest, answered, head) == (old.digest, old.answered, old.head) and text == old.text
    generation = old.generation + (not same)
    return (
        f"{MARK} generation={generation} answered={answered} head={head} hash={digest} -->\n{text}"
    )


def summary(decision: Decision, head: str) -> str:
    """The summary of the check: what the comment says, without its words to people."""
    return _fit(_visible(decision, head), MAX_COMMENT)


def lane_summary(result: LaneResult) -> str:
    """What one run of a lane came to, for its own check."""
    rows = [(row.verdict, row.cell or row.op, row.reason, row.because) for row in result.rows]
    rows.sort(key=lambda row: row[0] == "pass")
    lines = [f"**{result.verdict}** {escape(result.note)}", ""]
    lines += table(("verdict", "cell", "reason", "changed"), rows[:200]) if rows else []
    return _fit(lines, MAX_COMMENT)


def _visible(decision: Decision, head: str) -> list[str]:
    report = decision.report
    if report is None:
        lines = [f"### fla-bot: {escape(decision.title)}", "", f"<sub>head `{head[:12]}`</sub>"]
    else:
        lines = comment(report).split("\n")[1:]
        if decision.title not in (report.headline, f"{report.headline}: {report.next_step}"[:200]):
            # The verdict over the head is not that of this pull request's own report.
            lines = [f"**{escape(decision.title)}**", "", *lines]
        lines += _next(report, decision, head)
    if decision.rows:
        lines += ["", "<details><summary>Runs</summary>", ""]
        rows = [(RowId.parse(row).lane, word, row) for row, word in decision.rows[-20:]]
        lines += [*table(("lane", "state", "plan id"), rows), "", "</details>"]
    return lines


def _next(report: Report, decision: Decision, head: str) -> list[str]:
    """What to type, ready to be copied."""
    typed = [f"/fla-bot accept {item.accept}" for item in report.checklist
             if item.accept and item.state == "human"]  # fmt: skip
    if any(item.id == "approval" for item in report.checklist):
        typed.insert(0, f"/fla-bot approve {head}")
    if decision.state is CheckState.SUCCESS or not typed:
        return []
    return ["", "Who may can type, after reading the change:", "", "```", *typed[:10], "```"]


_HELP = [
    "<details><summary>Commands</summary>",
    "<!-- fla-bot:help -->",
    "",
    "Each stands alone on a line of a new comment, in plain text.",
    "",
    "```",
    *COMMANDS,
    "```",
    "",
    "</details>",
]


def _answer(answer: Answer, decision: Decision) -> str:
    text = answer.text
    if text == "status":
        text = decision.title
    return f"- {escape(answer.login)}: {escape(text)}"


def _old_answers(text: str) -> list[str]:
    _, found, rest = text.partition(f"{_ANSWERS}\n")
    lines = rest.split("\n") if found else []
    end = next((i for i, line in enumerate(lines) if not line.startswith("- ")), len(lines))
    return lines[:end]


def _fit(lines: Sequence[str], limit: int) -> str:
    """The lines in at most `limit` bytes: what is too much is left out before the tail."""
    sizes = [len(line.encode()) + 1 for line in lines]
    if sum(sizes) <= limit:
        return "\n".join(lines)
    room = limit - 100
    tail, used = len(lines), 0
    while tail > 0 and used + sizes[tail - 1] <= room // 3:
        tail -= 1
        used += sizes[tail]
    first = 0
    while first < tail and used + sizes[first] <= room:
        used += sizes[first]
        first += 1
    note = ["", f"*{tail - first} lines are left out here; the JSON report has them.*", ""]
    return "\n".join([*lines[:first], *note, *lines[tail:]])


def notes(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Findings as annotations, the worst first; GitHub takes 50."""
    worst = sorted(findings, key=lambda item: item.severity is not Severity.ERROR)
    return [
        {
            "path": item.path,
            "start_line": max(1, item.line),
            "end_line": max(1, item.line, item.end_line),
            "annotation_level": "failure" if item.severity is Severity.ERROR else "warning",
            "title": f"{item.code} {item.name}"[:255],
            "message": (item.message or item.name)[:4000],
        }
        for item in worst[:50]
    ]


def new_body(old: str, report: Report) -> str:
    """A pull request's body with our block as it should be; the old one where there is no room."""
    new = put_block(old, body_block(report))
    return new if len(new) <= MAX_BODY else old
