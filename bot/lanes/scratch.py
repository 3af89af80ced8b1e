"""The folder of a job on disk: locked while its owner lives, removed with whatever is in it."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from pathlib import Path

from bot.errors import InfraError
from bot.lanes.identity import end_abandoned
from bot.lanes.processes import kill_all, working_in
from bot.process import ProgramFailed, run

__all__ = ["Scratch", "remove", "sweep"]

PREFIX = "fla-bot-job-"
LOCK = ".lock"
# A folder without a lock belongs to a run that is just starting, or that was killed as it did.
UNLOCKED_S = 3600


class Scratch:
    """A temporary folder that the next run can tell from one whose owner was killed."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        # The kernel gives the lock back when the owner ends, however that happens.
        self.lock = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove everything; call it when no process can write there any more."""
        remove(self.path)
        os.close(self.lock)


def remove(folder: Path) -> None:
    """Untrusted code may have filled it: links, a million levels, folders without permissions.

    `rm` and `chmod -R` follow no link and do not recurse on the stack.
    """
    here = folder.parent
    try:
        run(["rm", "-rf", "--one-file-system", "--", str(folder)], cwd=here, timeout_s=300)
    except ProgramFailed:
        with contextlib.suppress(ProgramFailed):
            run(["chmod", "-R", "u+rwX", "--", str(folder)], cwd=here, timeout_s=300)
        try:
            run(["rm", "-rf", "--one-file-system", "--", str(folder)], cwd=here, timeout_s=300)
        except ProgramFailed as error:
            raise InfraError(f"{folder} cannot be removed: {error.stderr[:200]}") from error


def sweep() -> None:
    """Remove folders of runs that were killed; nothing of anybody else, nothing that is in use."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, InfraError):
            status = folder.lstat()
            if folder.is_symlink() or not folder.is_dir() or status.st_uid != os.geteuid():
                continue
            if _is_abandoned(folder, status.st_mtime):
                _end_leftovers(folder)
                remove(folder)


def _end_leftovers(folder: Path) -> None:
    """What no namespace took along with its owner: a worker's group is its user (sandbox.py)."""
    kill_all(working_in(folder))
    end_abandoned({entry.lstat().st_gid for entry in folder.iterdir()})


def _is_abandoned(folder: Path, changed: float) -> bool:
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return time.time() - changed > UNLOCKED_S
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
