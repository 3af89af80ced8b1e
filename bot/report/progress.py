"""How far a run is, on standard error: one line that changes, or now and then a new one."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import sys
import time
from types import TracebackType

from bot.text import printable

__all__ = ["Progress"]

EVERY_S = 30.0


class Progress:
    """Shows the latest text; in a `with` block, so that the line is ended.

    In a log a line stays, so that there is one at the start and then at most one in `EVERY_S`.
    """

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self.shown_s, self.is_open = -EVERY_S, False

    def __call__(self, text: str) -> None:
        """Show how far it is, if that is due."""
        now = time.monotonic()
        if self.live:
            self._write(f"\r\x1b[K{printable(text)}")
            self.is_open = True
        elif now - self.shown_s >= EVERY_S:
            self._write(f"{printable(text)}\n")
            self.shown_s = now

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it any more; the job goes on
            sys.stderr.write(text)
            sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_open:
            self._write("\n")
