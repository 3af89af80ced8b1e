"""Which processes there are, and the three things that only prctl(2) can do for us."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "below", "die_with_parent", "kill_all", "make_subreaper", "make_undumpable", "owned_by",
    "start_time", "threads_of", "working_in",
]  # fmt: skip

PROC = Path("/proc")
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36


def _prctl(option: int, value: int) -> bool:
    return bool(ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)


def make_undumpable(on: bool = True) -> None:  # noqa: FBT001, FBT002
    """Close this process' memory, environment and files to others of the same user; no core."""
    _prctl(PR_SET_DUMPABLE, int(not on))


def make_subreaper(on: bool) -> None:  # noqa: FBT001  # a switch is what it is
    """Become the parent of what descendants leave behind, so that a daemon still can be found."""
    _prctl(PR_SET_CHILD_SUBREAPER, int(on))


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends, kill -9 included."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _stat(pid: int) -> list[bytes] | None:
    """State, parent, ... of /proc/PID/stat; the name before them may hold anything."""
    try:
        return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None


def start_time(pid: int) -> int:
    """When it began, in clock ticks since the boot; with the number this names one process."""
    found = _stat(pid)
    return int(found[19]) if found else 0


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def _table() -> dict[int, int]:
    """The parent of every process that still runs or waits for its parent."""
    found = {pid: _stat(pid) for pid in _pids()}
    return {pid: int(stat[1]) for pid, stat in found.items() if stat}


def below(*roots: int) -> set[int]:
    """All descendants of some processes."""
    parents, found = _table(), set[int]()
    new = set(roots)
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def threads_of(uid: int) -> int:
    """How many threads a user has; what a limit on them is compared with."""
    found = 0
    for pid in owned_by({uid}):
        with contextlib.suppress(OSError):
            found += sum(1 for _ in (PROC / str(pid) / "task").iterdir())
    return found


def owned_by(uids: set[int]) -> set[int]:
    """Processes with one of these users as real, effective, saved or file system user."""
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            for line in (PROC / str(pid) / "status").read_text(errors="replace").splitlines():
                if line.startswith("Uid:") and uids & {int(uid) for uid in line.split()[1:]}:
                    found.add(pid)
    return found


def working_in(folder: Path) -> set[int]:
    """Processes whose current folder lies in this one."""
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            if (PROC / str(pid) / "cwd").readlink().is_relative_to(folder):
                found.add(pid)
    return found


def kill_all(pids: set[int]) -> None:
    """SIGKILL each, and take leave of those that were our children."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
