"""Text that a change controls, made safe to show on a terminal or in a comment."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re

__all__ = ["printable", "redact"]

_SECRETS = (
    (r"(?:gh[a-z]_\w{16,}|github_pat_\w{20,}|xox[a-z]-[\w-]{10,}|AKIA[0-9A-Z]{16})", "[token]"),
    (r"eyJ[\w-]{8,}\.[\w.-]{8,}", "[token]"),
    (r"-----BEGIN [A-Z ]+-----[^-]*(?:-----END [A-Z ]+-----)?", "[key]"),
    (r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*", "[account]"),
    (r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])(?::\d+)?", "[address]"),
    (r"(?<![\w:])(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{0,4}(?![\w:])", "[address]"),
    (
        r"\b[a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?:local|internal|lan|corp|intranet|cluster|home)\b(?::\d+)?",
        "[host]",
    ),
    (r"(?<![\w/.:])/(?:[\w@+.-]+/)+([\w@+.-]+)", r"[path]/\1"),
)


def printable(text: str) -> str:
    """The text with a replacement character for each control, format and surrogate one.

    Line ends stay; who prints single lines splits first.
    """
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def redact(text: str) -> str:
    """The text without hosts, absolute paths, accounts and tokens of the machine it comes from."""
    for pattern, instead in _SECRETS:
        text = re.sub(pattern, instead, text)
    return text
