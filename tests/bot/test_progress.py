"""How far a run is: one line on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys

import pytest

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
