"""Keep what a process prints, however much that is, without showing it anywhere."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import threading
from typing import IO

__all__ = ["Log"]

LOG_BYTES = 64 << 10


class Log:
    """The first and the last of a stream; what lies between is counted."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.head, self.tail, self.dropped = b"", b"", 0
        self.thread = threading.Thread(target=self._drain, args=(stream,), daemon=True)
        self.thread.start()

    def _drain(self, stream: IO[bytes]) -> None:
        with stream:
            while piece := stream.read1(1 << 16):  # type: ignore[attr-defined]  # a BufferedReader
                room = LOG_BYTES // 2 - len(self.head)
                self.head, rest = self.head + piece[:room], piece[room:] if room > 0 else piece
                self.dropped += max(0, len(self.tail) + len(rest) - LOG_BYTES // 2)
                self.tail = (self.tail + rest)[-LOG_BYTES // 2 :]

    def text(self) -> str:
        """What was kept, with the number of bytes that were not."""
        self.thread.join(timeout=10)  # the end comes with the last process that can write
        gap = f"\n[{self.dropped} bytes left out]\n".encode() if self.dropped else b""
        return (self.head + gap + self.tail).decode(errors="replace")

    def last_line(self) -> str:
        """The end of it, where a program says why it stops."""
        return " ".join(self.text().strip().splitlines()[-1:])
