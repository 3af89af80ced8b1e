"""How far a run is: one line on a terminal, a line now and then in a log."""

from __future__ import annotations

import argparse
import sys

import pytest

from bot import cli
from bot.report import progress
from bot.report.progress import Progress


def test_log_gets_a_line_at_the_start_and_then_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock)
    with Progress() as show:
        for done in range(100):
            show(f"{done}/100 cells\x1b")
            clock += 1.0
    said = capsys.readouterr().err.splitlines()
    assert said == [f"{done}/100 cells\N{REPLACEMENT CHARACTER}" for done in (0, 30, 60, 90)]


def test_terminal_has_one_line_that_is_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def stopped() -> None:
        with Progress() as show:
            show("1/2 cells")
            show("2/2 cells")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert capsys.readouterr().err == "\r\x1b[K1/2 cells\r\x1b[K2/2 cells\n"


def test_closed_log_stops_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def write(text: str) -> None:
        tried.append(text)
        raise BrokenPipeError

    monkeypatch.setattr(sys.stderr, "write", write)
    with Progress() as show:
        show("1/2 cells")
    assert tried == ["1/2 cells\n"]


def test_stop_whose_screen_is_gone_ends_as_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 would say that the change is wrong."""

    def stopped(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt("SIGTERM", "kept")

    def write(_: str) -> None:
        raise BrokenPipeError

    parser = argparse.ArgumentParser()
    parser.set_defaults(command=stopped)
    monkeypatch.setattr(cli, "_parser", lambda: parser)
    monkeypatch.setattr(sys.stderr, "write", write)
    assert cli.main([]) == 143
