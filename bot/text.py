"""Text that a change controls, made safe to show on a terminal or in a comment."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """The text with a replacement character for each control, format and surrogate one.

    Line ends stay; who prints single lines splits first.
    """
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
