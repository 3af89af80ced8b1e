"""Gitignore-style globs over repository paths; `{word}` captures a segment or a part of one."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from pathspec.patterns.gitignore.basic import GitIgnoreBasicPattern

__all__ = ["capture", "glob_fault", "matches"]

_CAPTURE = re.compile(r"\{([a-z]+)\}")
# More of them in one segment would let a pattern backtrack for ever; contracts may be hostile.
MAX_WILD = 3


@cache
def _compiled(glob: str) -> re.Pattern[str]:
    if any(len(re.findall(r"\*+|\{", part)) > MAX_WILD for part in glob.split("/")):
        raise ValueError(f"more than {MAX_WILD} wildcards in one segment")
    marked = _CAPTURE.sub(lambda found: f"XX{found[1]}XX", glob)
    regex, include = GitIgnoreBasicPattern.pattern_to_regex(marked)
    if regex is None or not include:
        raise ValueError("not a positive gitignore pattern")
    return re.compile(re.sub(r"XX([a-z]+)XX", r"(?P<\1>[^/]+?)", regex))


def glob_fault(glob: str) -> str | None:
    """Why a glob cannot be used, or None."""
    try:
        _compiled(glob)
    except (ValueError, re.error) as error:
        return f"`{glob}`: {error}"
    return None


def capture(glob: str, path: str) -> dict[str, str] | None:
    """What the glob's `{word}`s stand for in a path, or None if it does not match."""
    found = _compiled(glob).match(path)
    return found.groupdict() if found else None


def matches(path: str, globs: Iterable[str]) -> bool:
    """Whether one of the globs matches."""
    return any(capture(glob, path) is not None for glob in globs)
