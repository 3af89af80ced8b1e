"""The texts of the one comment, the check and the body block; what people wrote is left alone."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bot.github.case import LaneResult, RowId
from bot.github.commands import COMMANDS
from bot.github.records import Comment
from bot.github.situation import Decision
from bot.model import CheckState, Finding, Report, Severity
from bot.report.markdown import body_block, comment, escape, put_block, table

__all__ = [
    "compose", "lane_summary", "marked_head", "new_body", "notebook", "notes", "own_comments",
    "summary",
]  # fmt: skip

MARK = "<!-- fla-bot:comment"
MAX_COMMENT = 60_000  # GitHub takes 65,536 characters; counted in bytes, to be sure
MAX_BODY = 65_000
_MARK = re.compile(r"<!-- fla-bot:comment ([0-9a-f]{40}) -->\r?\n")


def own_comments(comments: Sequence[Comment], us: str) -> list[Comment]:
    """Our comments, oldest first: by author and mark, since either alone proves nothing."""
    return [
        item
        for item in sorted(comments, key=lambda item: item.id)
        if item.user is not None and item.user.login == us and item.body.startswith(MARK)
    ]


def marked_head(body: str) -> str:
    """The head that our comment is about; whoever may push can make it name another one.

    So it only says where in the ledger to look for what is known of the pull request already.
    """
    match = _MARK.match(body)
    return match[1] if match else ""


def compose(before: str, decision: Decision, data: str) -> str:
    """Our comment as it should be; `before`: the head that it was about."""
    visible, replies = _visible(decision), decision.standing.replies
    if answers := [item for item in replies if item.text != "help"]:
        visible += ["", *(f"- {escape(item.login)}: {escape(item.text)}" for item in answers)]
    if len(answers) < len(replies):
        visible += ["", *_HELP]
    return _marked(before, decision, _fit(visible, MAX_COMMENT - len(data) - 200), data)


def notebook(before: str, decision: Decision, data: str) -> str:
    """Our comment in shadow mode, which holds the ledger and says nothing."""
    return _marked(before, decision, "<sub>fla-bot keeps notes here; nothing to do.</sub>", data)


def _marked(before: str, decision: Decision, text: str, data: str) -> str:
    # Until there is a plan, the mark names the head whose results may be used again.
    head = decision.head if decision.report or not before else before
    return f"{MARK} {head} -->\n{text}" + (f"\n{data}" if data else "")


def summary(decision: Decision) -> str:
    """The summary of the check: what the comment says, without its words to people."""
    lines = _visible(decision)
    if untold := decision.standing.untold:
        lines += ["", f"GitHub took no comment, reaction or body block: {escape(untold)}"]
    return _fit(lines, MAX_COMMENT)


def lane_summary(result: LaneResult) -> str:
    """What one run of a lane came to, for its own check."""
    rows = [(row.verdict, row.cell or row.op, row.reason, row.because) for row in result.rows]
    rows.sort(key=lambda row: row[0] == "pass")
    lines = [f"**{result.verdict}** {escape(result.note)}", ""]
    lines += table(("verdict", "cell", "reason", "changed"), rows[:200]) if rows else []
    return _fit(lines, MAX_COMMENT)


def _visible(decision: Decision) -> list[str]:
    report, head = decision.report, decision.head
    if report is None:
        lines = [f"### fla-bot: {escape(decision.title)}", "", f"<sub>head `{head[:12]}`</sub>"]
    else:
        lines = comment(report).split("\n")[1:]
        if decision.title not in (report.headline, f"{report.headline}: {report.next_step}"[:200]):
            # The verdict over the head is not that of this pull request's own report.
            lines = [f"**{escape(decision.title)}**", "", *lines]
        lines += _next(_typed(report, decision, head), decision)
    if decision.rows:
        lines += ["", "<details><summary>Runs</summary>", ""]
        rows = [(RowId.parse(row).lane, word, row) for row, word in decision.rows[-20:]]
        lines += [*table(("lane", "state", "plan id"), rows), "", "</details>"]
    return lines


def _typed(report: Report, decision: Decision, head: str) -> list[str]:
    """What people may type; for a merge group on the pull requests that it merges."""
    if decision.typed is not None:
        return [f"on #{number}: {line}" for number, line in decision.typed]
    typed = [f"/fla-bot accept {item.accept}" for item in report.checklist
             if item.accept and item.state == "human"]  # fmt: skip
    if any(item.id == "approval" for item in report.checklist):
        typed.insert(0, f"/fla-bot approve {head}")
    return typed


def _next(typed: list[str], decision: Decision) -> list[str]:
    """What to type, ready to be copied."""
    if decision.state is CheckState.SUCCESS or not typed:
        return []
    return ["", "Who may can type, after reading the change:", "", "```", *typed[:10], "```"]


_HELP = [
    "<details><summary>Commands</summary>",
    "",
    "Each stands alone on a line of a new comment, in plain text.",
    "",
    "```",
    *COMMANDS,
    "```",
    "",
    "</details>",
]


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
