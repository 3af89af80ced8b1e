"""Try, inside a worker's sandbox, what untrusted code must not be able to do, and say what held.

Runs where a worker will run, before any code of a pull request does. Takes its targets (one line
of JSON) from the channel and answers with the names of the protections that held, in the same way.
Started as `python -I -m bot.lanes.probe CHANNEL TREE`; nobody imports it. Only the standard
library: it has to start fast and to work wherever a worker does.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PTRACE_SEIZE = 0x4206
Targets = dict[str, Any]


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (OSError, ValueError):
        return False
    return True


def _is_there(process: dict[str, int]) -> bool:
    """Whether the number means that process here, and not another one of our own namespace."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{process['pid']}/stat").read_bytes().rpartition(b")")[2].split()
        return int(stat[19]) == process["start"]
    return False


def _is_same(place: dict[str, Any]) -> bool:
    """Whether a path leads to the host's file, and not to what stands there instead."""
    with contextlib.suppress(OSError):
        status = Path(place["path"]).stat()
        return (status.st_dev, status.st_ino) == (place["dev"], place["ino"])
    return False


def _can_read(place: dict[str, Any]) -> bool:
    if _is_same(place) and _succeeds(lambda: list(Path(place["path"]).iterdir())):
        return True
    return any(_succeeds(Path(file).read_bytes) for file in place["files"])


def _can_write(folder: str) -> bool:
    name = f"{folder}/fla-bot-probe-{os.getpid()}"
    if not _succeeds(lambda: os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))):
        return False
    Path(name).unlink()
    return True


def _can_signal(pid: int) -> bool:
    # By default this one is ignored.
    return _succeeds(lambda: os.kill(pid, signal.SIGURG))


def _can_trace(pid: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0:
        return True  # it lets go when this process ends
    # Nothing lies at address 1: EFAULT comes from behind the check, and means that we may.
    buffer = ctypes.create_string_buffer(1)
    here, there = _Piece(ctypes.addressof(buffer), 1), _Piece(1, 1)
    libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if ctypes.get_errno() == errno.EFAULT:
        return True
    folder = Path(f"/proc/{pid}")
    return any(
        (
            _succeeds(lambda: os.close(os.open(folder / "mem", os.O_RDONLY))),
            _succeeds(lambda: list((folder / "fd").iterdir())),
            _succeeds((folder / "environ").read_bytes),
            _succeeds(lambda: os.close(os.open(folder / "fd" / "1", os.O_WRONLY))),
        )
    )


def _connects(family: int, address: Any) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as attempt:
        attempt.settimeout(2)
        return _succeeds(lambda: attempt.connect(address))


def _has_route() -> bool:
    # Connecting a datagram socket sends nothing; it only asks for a way there.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attempt:
        return _succeeds(lambda: attempt.connect(("192.0.2.1", 9)))


def _status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _stays_powerless() -> bool:
    """No capability, no way to one by a program, and root is nobody that we can become."""
    status = _status()
    held = any(int(status[f"Cap{kind}"], 16) for kind in ("Prm", "Eff", "Inh", "Amb"))
    before = os.getuid()
    child = os.fork()
    if child == 0:
        # In a process of its own, since a success cannot be taken back.
        became = _succeeds(lambda: os.setuid(0)) and before != 0
        became = became or _succeeds(lambda: os.setgroups([0]))
        os._exit(int(became))
    _, result = os.waitpid(child, 0)
    return status["NoNewPrivs"] == "1" and not held and result == 0


def _outer_uid() -> int:
    """Our user as the machine knows it."""
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= os.getuid() < inside + count:
            return outside + os.getuid() - inside
    return -1


def _dumps_core() -> bool:
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()
    return os.WCOREDUMP(os.waitpid(child, 0)[1])


def _limits_hold(names: list[str]) -> bool:
    return all(map(_limit_holds, names))


def _limit_holds(name: str) -> bool:
    number = getattr(resource, f"RLIMIT_{name.upper()}")
    soft, hard = resource.getrlimit(number)
    if resource.RLIM_INFINITY in (soft, hard):
        return False
    return not _succeeds(lambda: resource.setrlimit(number, (hard + 1, hard + 1)))


def _is_capped(folder: str, most: int) -> bool:
    status = os.statvfs(folder)
    return 0 < status.f_blocks * status.f_frsize <= most


def _others() -> set[int]:
    """Processes that are neither this one nor the first of its namespace."""
    found = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return found - {os.getpid(), 1}


def _namespaces_differ(outside: dict[str, str], *names: str) -> bool:
    own = {name: str(Path(f"/proc/self/ns/{name}").readlink()) for name in names}
    return all(own[name] != outside[name] for name in names)


def _held(targets: Targets) -> Iterator[tuple[str, bool]]:
    """Each protection, and whether everything that it names was refused."""
    processes = [p["pid"] for p in targets["processes"] if _is_there(p)]
    outside = targets["namespaces"]
    yield "other-uid", _outer_uid() not in (-1, 0, targets["uid"])
    yield "no-signal", not any(map(_can_signal, processes))
    yield "no-ptrace", not any(map(_can_trace, processes))
    yield "private-pids", not processes and not _others() and _namespaces_differ(outside, "pid")
    yield "private-ipc", _namespaces_differ(outside, "ipc")
    for name in ("trusted", "checkout", "evidence", "home"):
        places = targets["hidden"][name]
        yield f"{name}-unreadable", not any(map(_can_read, places))
        yield f"{name}-unwritable", not any(_is_same(p) and _can_write(p["path"]) for p in places)
    yield "outside-unwritable", not any(map(_can_write, targets["outside"]))
    yield "private-tmp", not any(map(_is_same, targets["shared"]))
    connects = _connects(socket.AF_INET, ("127.0.0.1", targets["port"]))
    connects = connects or _connects(socket.AF_UNIX, f"\0{targets['name']}")
    yield "no-network", not (connects or _has_route())
    yield "no-new-privileges", _stays_powerless()
    yield "no-core", not _dumps_core()
    yield "rlimits", _limits_hold(targets["limits"])
    places = (*targets["writable"], "/dev/shm")  # noqa: S108
    yield "disk-capped", all(_is_capped(place, targets["disk"]) for place in places)


def _has_accelerator(library: str) -> bool:
    """Whether a driver answers here as it does outside."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return False
    return bool(
        driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value
    )


def _has_compiler() -> bool:
    """Whether one runs that Triton would take to build a kernel's launcher."""
    chosen = os.environ.get("CC", "").split()
    for words in [chosen] if chosen else [["gcc"], ["clang"], ["cc"]]:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            asked = [*words, "--version"]
            if not subprocess.run(asked, capture_output=True, check=False, timeout=20).returncode:
                return True
    return False


def main() -> None:
    """Answer one question."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    with channel, channel.makefile("rw") as stream:
        targets = json.loads(stream.readline())
        answer = {
            "held": [name for name, holds in _held(targets) if holds],
            "accelerator": not targets["driver"] or _has_accelerator(targets["driver"]),
            "compiler": not targets["compiler"] or _has_compiler(),
        }
        stream.write(json.dumps(answer) + "\n")
        stream.flush()
        stream.readline()  # stay until nobody wants to look at this process any more


if __name__ == "__main__":
    main()
