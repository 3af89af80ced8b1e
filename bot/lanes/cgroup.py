"""Control groups: a memory limit for a worker, and an end that none of its processes escapes.

Both are used where this machine lets us make a group, version 2 or 1, and are absent elsewhere.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bot.lanes.processes import start_time

__all__ = ["Cgroup"]

PREFIX = "fla-bot-"
PATIENCE = 50


@dataclass(frozen=True, slots=True)
class Cgroup:
    """Folders of one worker's groups; none where none could be made."""

    folders: tuple[Path, ...]
    limited: bool

    @classmethod
    def make(cls, token: str, memory_bytes: int) -> Cgroup:
        """A group below our own, or below the root where only that one hands memory down."""
        name = f"{PREFIX}{_numbers()}-{os.getpid()}-{start_time(os.getpid())}-{token}"
        folders = list[Path]()
        for parents in (_parents("cgroup2", ""), _parents("cgroup", "memory")):
            made = [f for p in parents if (f := _made(p / name))]
            limiting = [folder for folder in made if _limit(folder, memory_bytes)]
            kept = (limiting or made)[:1]
            _remove(folder for folder in made if folder not in kept)
            folders += kept
            if limiting:
                return cls(tuple(folders), limited=True)
        return cls(tuple(folders), limited=False)

    @property
    def entries(self) -> list[Path]:
        """What a process writes its number to, to be in it with all that it starts."""
        return [folder / "cgroup.procs" for folder in self.folders]

    def kill(self) -> None:
        """End everything in it at once, where the kernel can."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                (folder / "cgroup.kill").write_text("1")

    def pids(self) -> set[int]:
        """The processes that are in it."""
        found = set[int]()
        for entry in self.entries:
            with contextlib.suppress(OSError):
                found |= {int(line) for line in entry.read_text().split()}
        return found

    def remove(self) -> None:
        """Call it when nothing is in it any more; the kernel may need a moment to see that."""
        for _ in range(PATIENCE):
            _remove(self.folders)
            if not any(folder.exists() for folder in self.folders):
                return
            time.sleep(0.02)

    @staticmethod
    def sweep() -> None:
        """End and remove the groups of runs that were killed."""
        for kind, controller in (("cgroup2", ""), ("cgroup", "memory")):
            for parent in _parents(kind, controller):
                for folder in parent.glob(f"{PREFIX}{_numbers()}-*-*-*"):
                    pid, start = folder.name.removeprefix(PREFIX).split("-")[1:3]
                    if pid.isdigit() and str(start_time(int(pid))) != start:
                        group = Cgroup((folder,), limited=False)
                        group.kill()
                        group.remove()


def _numbers() -> str:
    """In which namespace a process number means what it says: groups may be shared by several."""
    return str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")


def _parents(kind: str, controller: str) -> Iterator[Path]:
    """Our own group in a hierarchy, then its root."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        found, _, options = rest.split(" ", 2)
        if found != kind or (controller and controller not in options.split(",")):
            continue
        root, mount = fields.split(" ")[3:5]
        own = Path(_own(controller))
        if own.is_relative_to(root):
            yield Path(mount) / own.relative_to(root)
        yield Path(mount)
        return


def _own(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == controller:
            return path
    return "/"


def _made(folder: Path) -> Path | None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder / "cgroup.procs", os.W_OK) else None


def _limit(folder: Path, memory_bytes: int) -> bool:
    if (folder / "cgroup.kill").exists():  # version 2: its parent has to hand the controller down
        with contextlib.suppress(OSError):
            (folder.parent / "cgroup.subtree_control").write_text("+memory")
    for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
        with contextlib.suppress(OSError):
            if (folder / name).exists():
                (folder / name).write_text(value)
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError):
            if (folder / name).exists():
                (folder / name).write_text(str(memory_bytes))
                return True
    return False


def _remove(folders: Iterator[Path] | tuple[Path, ...]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
