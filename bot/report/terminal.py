"""The report for a terminal: short, worst first, narrow terminals and pipes included."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from bot.model import CheckState, ItemState, Report, Severity, Verdict
from bot.text import printable

__all__ = ["console", "nearest", "show"]

MAX_ROWS = 5
_MARK = {
    ItemState.DONE: ("ok", "green"),
    ItemState.TODO: ("todo", "yellow"),
    ItemState.FAILED: ("FAIL", "bold red"),
    ItemState.WAITING: ("wait", "yellow"),
    ItemState.NOT_APPLICABLE: ("-", "dim"),
    ItemState.HUMAN: ("human", "bold magenta"),
}
_STYLE = {
    CheckState.SUCCESS: "bold green",
    CheckState.FAILURE: "bold red",
    CheckState.ACTION_REQUIRED: "bold magenta",
}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the caller, who knows the exit status."""
        raise BrokenPipeError


def console() -> Console:
    """Standard output, without guesses at what deserves a colour."""
    return _Console(highlight=False)


def _line(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    # Text, never markup: file names and messages come from the change.
    safe = printable(text.replace("\n", " "))
    if console.is_terminal:
        text_, wide = Text(safe, style=style, overflow="fold"), (0, 0, 0, indent)
        console.print(Padding(text_, wide, expand=False))
    else:
        console.print(Text(" " * indent + safe), soft_wrap=True)


def _more(console: Console, count: int) -> None:
    if count > MAX_ROWS:
        _line(console, f"and {count - MAX_ROWS} more, see --format json", "dim")


def nearest(tests: Iterable[str], changed: Iterable[str]) -> list[str]:
    """Tests in the order in which an author would run them: those first that mirror a changed file.

    What counts is how many words of its path a test shares with one changed file, and then how few
    others it has.
    """
    own = [_words(path) for path in changed]

    def rank(test: str) -> tuple[int, int, str]:
        words = _words(test)
        return -max((len(words & other) for other in own), default=0), len(words), test

    return sorted(tests, key=rank)


def _words(path: str) -> frozenset[str]:
    """The words of a path but `test`, which all tests share, and the ending."""
    return frozenset(re.split(r"[/_.-]", path.removesuffix(".py"))) - {"test", "tests", ""}


def show(report: Report, console: Console) -> None:
    """Print a report."""
    change = report.change
    what = "work tree" if change.uncommitted else change.head[:12]
    count = len(change.files)
    files = f"{count} file{'s' * (count != 1)}"
    _line(console, f"{what} against {change.merge_base[:12]}: {files}", "dim")
    for area in report.scope.areas:
        shown = ", ".join(area.paths[:3]) + (", ..." if len(area.paths) > 3 else "")
        _line(console, f"{area.area}: {shown}", "dim")
    if report.scope.unknown:
        _line(console, f"unknown area: {', '.join(report.scope.unknown[:5])}", "yellow")
    for line in report.scope.widened[:MAX_ROWS]:
        _line(console, f"widened: {line}", "yellow")
    _more(console, len(report.scope.widened))
    if tests := nearest(report.impact.tests, report.change.files):
        rest = f" and {len(tests) - 3} more" if len(tests) > 3 else ""
        _line(console, f"tests that reach it: {', '.join(tests[:3])}{rest}", "dim")
    for finding in report.findings[:MAX_ROWS]:
        place = f"{finding.path}:{finding.line}"
        style = "red" if finding.severity is Severity.ERROR else "yellow"
        _line(console, f"{place}: {finding.code} {finding.message} [{finding.name}]", style)
    _more(console, len(report.findings))
    bad = [row for row in report.rows if row.verdict not in (Verdict.PASS, Verdict.WAITING)]
    for row in bad[:MAX_ROWS]:
        _line(console, f"{row.verdict} {row.lane} {row.cell or row.op}", "red")
        _line(console, row.reason + (f" (changed: {row.because})" if row.because else ""), "", 4)
    _more(console, len(bad))
    for item in report.checklist:
        mark, style = _MARK[item.state]
        _line(console, f"{mark:>5}  {item.text}", style)
        if item.evidence and item.state in (ItemState.FAILED, ItemState.HUMAN):
            _line(console, item.evidence, "", 7)
    _line(console, f"{report.headline}. Next: {report.next_step}", _STYLE.get(report.state, "bold"))
