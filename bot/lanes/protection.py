"""How well a sandbox protects, as a probe inside it found: targets out, names of what held back."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import os
import secrets
import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bot.errors import InfraError
from bot.evidence import Environment
from bot.evidence import Protection as Level
from bot.lanes.processes import start_time
from bot.lanes.sandbox import Box

__all__ = ["Answer", "Protection", "Targets", "advice", "sentence"]

_SECRETS = ("trusted", "checkout", "evidence", "home")
# What a level stands for. A name that is missing here in a probe's answer lowers the level.
NEEDS: dict[Level, frozenset[str]] = {
    "process": frozenset(),
    "user": frozenset(
        {"other-uid", "no-signal", "no-ptrace", "no-new-privileges", "no-core", "rlimits"}
        | {"trusted-unreadable", *(f"{name}-unwritable" for name in _SECRETS)}
    ),
    # The user may be our own: in a user namespace the other walls keep it from us, and each of
    # them was tried.
    "namespace": frozenset(
        {"no-signal", "no-ptrace", "no-new-privileges", "no-core", "rlimits", "disk-capped"}
        | {"private-pids", "private-ipc", "private-tmp", "no-network", "outside-unwritable"}
        | {f"{name}-{how}" for name in _SECRETS for how in ("unreadable", "unwritable")}
    ),
}
# A cap on memory depends on the machine's control groups, and is part of no level.
_KNOWN = frozenset[str].union(*NEEDS.values()) | {"memory-capped"}
LEVELS: tuple[Level, ...] = ("process", "user", "namespace")
SHOWN = 4
SAMPLE = 8
PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Protection:
    """What held, and the strongest level that asks for no more than that."""

    held: frozenset[str]

    @property
    def level(self) -> Level:
        """Computed from what was tried, never from what was asked for."""
        return max((n for n in LEVELS if self.held >= NEEDS[n]), key=LEVELS.index)

    @property
    def rank(self) -> tuple[int, int]:
        """To choose between sandboxes."""
        return LEVELS.index(self.level), len(self.held)

    def into(self, environment: Environment) -> Environment:
        """The environment of evidence with this in it, whatever a process said of itself."""
        found = {"protection": self.level, "protections": sorted(self.held)}
        return environment.model_copy(update=found)


def sentence(environment: Environment) -> str:
    """One line for a person: how many protections held, and which did not."""
    held = environment.protections
    missing = sorted(_KNOWN - set(held))
    shown = ", ".join(missing[:SHOWN])
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    without = f"; without {shown}{more}" if missing else ""
    counts = f"{len(held)} of {len(_KNOWN)} protections held"
    return f"sandbox: {environment.protection} ({counts}{without})"


def advice(environment: Environment) -> str:
    """What to do for a stronger sandbox, or nothing."""
    if environment.protection == "namespace":
        return ""
    if os.geteuid() == 0:
        return "no namespaces: see logs/*.sandbox.log; a container needs CAP_SYS_ADMIN for them"
    return "for a stronger one run as root, or let users make namespaces (sysctl, AppArmor)"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe says."""

    held: frozenset[str]
    accelerator: bool
    compiler: bool


class Targets:
    """Everything that a probe tries to get at; it listens itself while probes run."""

    def __init__(self, processes: Iterable[int], hidden: Mapping[str, Sequence[Path]]) -> None:
        self.processes, self.hidden = list(processes), hidden
        self.server = socket.create_server(("127.0.0.1", 0))
        self.name = f"fla-bot-probe-{secrets.token_hex(8)}"
        self.local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.local.bind(f"\0{self.name}")
        self.local.listen()

    def close(self) -> None:
        """Stop listening."""
        self.server.close()
        self.local.close()

    def ask(self, box: Box, channel: socket.socket, visible: Sequence[Path]) -> Answer:
        """Question a probe at the other end of a channel; EOFError if it says nothing."""
        shared = {"/tmp", "/var/tmp", "/dev/shm", tempfile.gettempdir()}  # noqa: S108
        outside = {"/", "/usr", "/etc", "/var", "/opt", "/run", "/home", "/dev", "/sys", "/proc"}
        outside |= {str(path) for path in visible}
        if box.has_namespaces:
            outside.add(str(box.tree))
        question = {
            "uid": os.geteuid(),
            "processes": [{"pid": pid, "start": start_time(pid)} for pid in self.processes],
            "namespaces": {n: str(Path(f"/proc/self/ns/{n}").readlink()) for n in ("pid", "ipc")},
            "hidden": {
                name: [_place(path) for path in paths if path.exists()]
                for name, paths in self.hidden.items()
            },
            "outside": sorted(outside),
            "shared": [_place(Path(path)) for path in sorted(shared) if Path(path).is_dir()],
            "port": self.server.getsockname()[1],
            "name": self.name,
            "limits": sorted(box.limits),
            "disk": box.disk_bytes,
            "writable": [str(box.home), str(box.tmp)],
            "driver": _driver(box),
            "compiler": _needs_compiler(box),
        }
        channel.settimeout(PROBE_TIMEOUT_S)
        with channel.makefile("rwb") as stream:
            stream.write(json.dumps(question).encode() + b"\n")
            stream.flush()
            line = stream.readline()
        if not line:
            raise EOFError
        try:
            answer = json.loads(line)
            found = bool(answer["accelerator"]), bool(answer["compiler"])
            return Answer(frozenset(answer["held"]), *found)
        except (ValueError, KeyError, TypeError) as error:
            raise InfraError(f"the sandbox's probe wrote something unreadable: {error}") from error


def _place(path: Path) -> dict[str, Any]:
    """A path, what it is on the host, and files that would show that it can be read."""
    status = path.stat()
    files = list[str]()
    if path.is_dir():
        here = (entry for entry in path.iterdir() if entry.is_file())
        files = [str(entry) for entry in islice(here, SAMPLE)]
    return {"path": str(path), "dev": status.st_dev, "ino": status.st_ino, "files": files}


def _needs_compiler(box: Box) -> bool:
    return bool(_driver(box))


def _driver(box: Box) -> str:
    # Only where one is due: a lane without its machine is refused by the device process, in words.
    due = box.view.accelerator and Path("/dev/nvidiactl").exists()
    return "libcuda.so.1" if due else ""
