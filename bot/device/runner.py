"""The processes of one arm of a benchmark, as the trusted process sees them."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import mmap
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from bot.model import Outcome
from bot.wire import ANSWERS, DONE, READY, send

__all__ = ["REPORT_BYTES", "Failed", "Runner", "shared_memory", "wait_for"]

REPORT_BYTES = 16 << 10
# Waking up takes longer than what is to be told apart; where cores are left, do not sleep.
SPIN_S = 0.3 if (os.cpu_count() or 1) >= 4 else 0.0


class Failed(Exception):
    """An arm did not do what it was told."""

    def __init__(self, arm: str, outcome: Outcome) -> None:
        self.arm, self.outcome = arm, outcome
        super().__init__(f"{arm}: {outcome}")


def shared_memory(size: int) -> tuple[int, mmap.mmap]:
    """A file in memory that may be sealed."""
    fd = os.memfd_create("fla-bot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    return fd, mmap.mmap(fd, size)


class Runner:
    """The processes of one arm, one a restart; exactly one byte answers an order."""

    def __init__(self, name: str, orders: socket.socket, timeout_s: float) -> None:
        self.name, self.orders, self.timeout_s = name, orders, timeout_s
        self.channel = orders
        self.shared: mmap.mmap | None = None
        self.blobs: set[str] = set()
        self.keywords: dict[str, dict[str, str | None]] = {}

    def restart(self, targets: Sequence[str]) -> None:
        """Ask for a new process that imports the code under test; `wait_start` for it."""
        self.close()
        self.channel, theirs = socket.socketpair()
        with theirs:
            self._send(self.orders, {"do": "restart"}, theirs.fileno())
        self._send(self.channel, {"targets": list(targets), "keywords": self.keywords})

    def stop(self, timeout_s: float) -> None:
        """End the process with all that it left behind, and wait for that."""
        self.close()
        self._send(self.orders, {"do": "stop"})
        self._expect(self.orders, READY, timeout_s)

    def wait_start(self, timeout_s: float) -> None:
        """Until it has imported."""
        self._expect(self.orders, READY, timeout_s)
        self._expect(self.channel, READY, timeout_s)

    @property
    def is_started(self) -> bool:
        """Whether there is a process to talk to."""
        return self.channel is not self.orders

    def close(self) -> None:
        """End the process, by closing its channel."""
        if self.is_started:
            self.channel.close()
        self.channel, self.blobs, self.shared = self.orders, set(), None

    def post(self, order: dict[str, Any], fd: int | None = None, payload: bytes = b"") -> None:
        """Send an order; `wait` for its end before the next one."""
        self._send(self.channel, {**order, "payload": len(payload)}, fd)
        if payload:
            try:
                self.channel.sendall(payload)
            except OSError as error:
                raise Failed(self.name, Outcome.WORKER_DIED) from error

    def wait(self) -> None:
        """Until the order is done; nothing but one known byte is read from here."""
        self._expect(self.channel, b"R", self.timeout_s)

    def ask(self, order: dict[str, Any], fd: int | None = None) -> float:
        """Both, and the seconds between."""
        began = time.perf_counter()
        self.post(order, fd)
        self.wait()
        return time.perf_counter() - began

    def time(self, order: str, payload: bytes) -> float:
        """Seconds between "go" and "done" on our clock."""
        began = time.perf_counter_ns()
        self.post({"do": order}, None, payload)
        answer = self._spin()
        if answer != DONE:
            self._judge(answer or self._receive(self.channel, self.timeout_s), DONE)
        return (time.perf_counter_ns() - began) / 1e9

    def report(self) -> dict[str, Any]:
        """What the process says of itself; nothing that counts depends on it."""
        assert self.shared is not None
        try:
            found = json.loads(self.shared[:REPORT_BYTES].split(b"\0", 1)[0])
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Failed(self.name, Outcome.PROTOCOL)
        return found

    def _spin(self) -> bytes:
        end = time.perf_counter() + SPIN_S
        while time.perf_counter() < end:
            try:
                return self.channel.recv(2, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                break
        return b""

    def _send(self, channel: socket.socket, order: dict[str, Any], fd: int | None = None) -> None:
        try:
            channel.settimeout(self.timeout_s)
            send(channel, order, fd)
        except OSError as error:
            raise Failed(self.name, Outcome.WORKER_DIED) from error

    def _expect(self, channel: socket.socket, due: bytes, timeout_s: float) -> None:
        self._judge(self._receive(channel, timeout_s), due)

    def _receive(self, channel: socket.socket, timeout_s: float) -> bytes:
        try:
            channel.settimeout(timeout_s)
            return channel.recv(2)
        except TimeoutError as error:
            raise Failed(self.name, Outcome.TIMEOUT) from error
        except OSError as error:
            raise Failed(self.name, Outcome.WORKER_DIED) from error

    def _judge(self, answer: bytes, due: bytes) -> None:
        if not answer:
            raise Failed(self.name, Outcome.WORKER_DIED)
        if answer != due:
            found = ANSWERS.get(answer, Outcome.PROTOCOL)
            raise Failed(self.name, Outcome.PROTOCOL if found is Outcome.RAN else found)


def wait_for(runners: Sequence[Runner]) -> None:
    """Until each has done its order; an answer that is left unread would stand for the next one."""
    faults = []
    for runner in runners:
        try:
            runner.wait()
        except Failed as fault:
            faults.append(fault)
    if faults:
        raise faults[0]
