"""pytest hooks that tell what was collected, how each test ended, and what it called.

By hand: `pytest -p bot.observe.plugin --fla-bot-coverage=cov.jsonl tests/ops`. In a tests lane
`bot.observe` makes an `Observer` of its own. Nothing that is told here is believed to be true: all
of it comes from the process under test.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bot.observe.calls import Watcher

__all__ = ["Observer"]

MAX_ID, MAX_NOTE, BATCH = 1000, 300, 50
Write = Callable[[dict[str, Any]], None]
Choose = Callable[[], Iterable[str] | None]


def name_of(test: str) -> str:
    """A test's id without what cannot be written, and no longer than evidence takes."""
    name = test.encode("utf-8", "backslashreplace").decode()
    if len(name) <= MAX_ID:
        return name
    return f"{name[: MAX_ID - 20]}...{hashlib.sha256(name.encode()).hexdigest()[:16]}"


class Observer:
    """One run. `choose`: asked once all is collected for the tests to run, None for all."""

    def __init__(self, write: Write, targets: Iterable[str], choose: Choose | None = None) -> None:
        self.write, self.choose = write, choose
        self.watcher = Watcher(targets)
        self.outcome, self.note, self.seconds = "passed", "", 0.0
        self.raised: set[tuple[str, str]] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Iterator[None]:
        """After all others: what is left is what would run."""
        result = yield
        names = [name_of(item.nodeid) for item in items]
        for start in range(0, len(names), BATCH):
            self.write({"kind": "collected", "tests": names[start : start + BATCH]})
        self.write({"kind": "ready"})
        wanted = self.choose() if self.choose else None
        if wanted is not None:
            kept = set(wanted)
            dropped = [item for item in items if name_of(item.nodeid) not in kept]
            items[:] = [item for item in items if name_of(item.nodeid) in kept]
            config.hook.pytest_deselected(items=dropped)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        """A file of which nothing could be collected."""
        report: Any = yield
        if report.outcome in ("failed", "skipped"):
            outcome = "error" if report.failed else "skipped"
            error = getattr(getattr(report, "call", None), "excinfo", None)
            line = {"kind": "file", "path": name_of(report.nodeid), "outcome": outcome}
            note = _last_line(report.longrepr)
            self.write(line | {"note": note, "module": _missing(error and error.value)})
        return report  # type: ignore[no-any-return]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self.outcome, self.note, self.seconds = "passed", "", 0.0
        self.raised.clear()
        self.watcher.take()
        self.write({"kind": "begin", "test": name_of(nodeid)})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """What really was raised, before other hooks make a report of it."""
        if call.excinfo is not None:
            self.raised.add((item.nodeid, call.when))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended."""
        self.seconds += report.duration
        if report.failed:
            self._worse("failed" if report.when == "call" else "error", report.longrepr)
        elif report.skipped:
            self._worse("skipped", getattr(report, "wasxfail", "") or report.longrepr)
        elif (report.nodeid, report.when) in self.raised and not hasattr(report, "wasxfail"):
            self._worse("failed", "it raised, and a hook made that a pass")
        if report.when == "teardown":
            self._end(name_of(report.nodeid))

    def _worse(self, outcome: str, reason: Any) -> None:
        order = ("passed", "skipped", "failed", "error")
        if order.index(outcome) > order.index(self.outcome):
            self.outcome, self.note = outcome, _last_line(reason)

    def _end(self, test: str) -> None:
        for call in self.watcher.take():
            self.write({"kind": "call", "test": test, **call})
        line = {"kind": "test", "test": test, "outcome": self.outcome}
        self.write(line | {"seconds": round(self.seconds, 4), "note": self.note})


def _last_line(reason: Any) -> str:
    """Where it says why."""
    if isinstance(reason, tuple) and len(reason) == 3:
        reason = reason[2]  # path, line and text of a skip
    crash = getattr(reason, "reprcrash", None)
    text = str(getattr(crash, "message", None) or reason or "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = (lines[0] if crash else lines[-1]) if lines else ""
    return line[:MAX_NOTE].encode("utf-8", "backslashreplace").decode()[:MAX_NOTE]


def _missing(error: BaseException | None) -> str | None:
    """The module that could not be found, through what pytest made of the error."""
    for _ in range(8):
        if isinstance(error, ModuleNotFoundError):
            return (error.name or "")[:100] or None
        if error is None:
            break
        error = error.__cause__ or error.__context__
    return None


class _File:
    """A recording by hand: lines appended whole, so that several processes may write one file."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, line: dict[str, Any]) -> None:
        """Add a line."""
        os.write(self.fd, json.dumps(line).encode() + b"\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of a recording by hand."""
    group = parser.getgroup("fla-bot")
    group.addoption(
        "--fla-bot-coverage",
        metavar="FILE",
        help="record there which calls of the contracts' entry points each test makes",
    )
    group.addoption(
        "--fla-bot-contracts",
        metavar="DIR",
        default="contracts",
        help="the contracts, relative to the root folder (default: contracts)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start before conftest files import what is to be watched."""
    options = early_config.known_args_namespace
    if not options.fla_bot_coverage:
        return
    from bot.coverage import targets

    folder = early_config.rootpath / options.fla_bot_contracts
    path = Path(options.fla_bot_coverage)
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if not is_worker:
        path.write_bytes(b"")
    # With pytest-xdist the processes that run the tests write.
    is_leader = bool(getattr(options, "numprocesses", None)) and not is_worker
    observer = Observer(_ignore if is_leader else _File(path).write, targets(folder))
    observer.watcher.install()
    early_config.pluginmanager.register(observer, "fla-bot-observer")


def _ignore(_: dict[str, Any]) -> None:
    """Write nothing."""
