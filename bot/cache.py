"""What was computed from blobs before: JSON, checked, rebuilt silently when it is not ours."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from bot.files import write_whole

__all__ = ["Cache", "cache_folder", "repository_cache"]

MAX_ENTRIES = 20_000
MAX_BYTES = 256 << 20
# The code that computes cached values; when one of these changes, everything is computed anew.
_CODE = ("source.py", "contract.py", "policy.py", "cells.py", "expression.py", "document.py")


def cache_folder() -> Path:
    """Where caches live, by the XDG base directory rules."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "fla-bot"


def repository_cache(root: Path) -> Cache:
    """What was computed for a repository before."""
    name = hashlib.sha256(str(root).encode()).hexdigest()[:24]
    return Cache(cache_folder() / f"{name}.json")


def _version() -> str:
    """The syntax tree of a text depends on the interpreter, the values on our code."""
    state = hashlib.sha256(sys.version.encode())
    for name in _CODE:
        state.update(Path(__file__).with_name(name).read_bytes())
    return state.hexdigest()


class Cache:
    """Values by kind and key. Nothing is written until `save`, and then all or nothing."""

    def __init__(self, path: Path) -> None:
        self.path, self.version = path, _version()
        self.entries: dict[str, dict[str, Any]] = self._load()
        self.used: set[tuple[str, str]] = set()
        self.changed = False

    def _load(self) -> dict[str, dict[str, Any]]:
        try:
            if self.path.stat().st_size > MAX_BYTES:
                return {}
            head, _, body = self.path.read_bytes().partition(b"\n")
            if head.decode() != f"{self.version} {hashlib.sha256(body).hexdigest()}":
                return {}
            found = json.loads(body)
        except (OSError, ValueError, RecursionError):
            return {}
        good = isinstance(found, dict) and all(isinstance(item, dict) for item in found.values())
        return found if good else {}

    def get(self, kind: str, key: str) -> Any:
        """The value, or None."""
        self.used.add((kind, key))
        return self.entries.get(kind, {}).get(key)

    def put(self, kind: str, key: str, value: Any) -> None:
        """Keep a value that JSON can hold."""
        self.used.add((kind, key))
        self.entries.setdefault(kind, {})[key] = value
        self.changed = True

    def save(self) -> None:
        """Write if something is new; a cache that cannot be written is no error."""
        if not self.changed:
            return
        entries = self.entries
        if sum(map(len, entries.values())) > MAX_ENTRIES:
            entries = {
                kind: {key: value for key, value in group.items() if (kind, key) in self.used}
                for kind, group in entries.items()
            }
        body = json.dumps(entries, separators=(",", ":")).encode()
        head = f"{self.version} {hashlib.sha256(body).hexdigest()}\n".encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, head + body)
        except OSError:
            return
