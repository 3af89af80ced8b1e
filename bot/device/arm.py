"""One arm of a comparison as the trusted process sees it: a channel to a worker and its memory."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from bot.cells import Call, Result, layout, row_major
from bot.model import Outcome
from bot.wire import ANSWERS, GUARD_BYTES, POISON, READY, REPORT_BYTES, TORCH_NAMES, send

__all__ = ["DTYPES", "Arena", "Arm", "arena"]

DTYPES = {name: getattr(torch, word) for name, word in TORCH_NAMES.items()}
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(slots=True)
class Arena:
    """Sealed memory of one call: inputs, cotangents and result slots, with guard bands between."""

    fd: int
    memory: mmap.mmap
    order: dict[str, Any]
    slots: list[tuple[int, int]] = field(default_factory=list)

    def flat(self, spec: dict[str, Any], count: int) -> torch.Tensor:
        """A slot as a flat tensor on the shared memory."""
        if not count:
            return torch.empty(0, dtype=DTYPES[spec["dtype"]])
        return torch.frombuffer(
            self.memory, dtype=DTYPES[spec["dtype"]], count=count, offset=spec["offset"]
        )

    def guards_hold(self) -> bool:
        """Whether every byte outside the slots still is poison."""
        view = torch.frombuffer(self.memory, dtype=torch.uint8)
        outside = torch.ones(view.numel(), dtype=torch.bool)
        for start, end in self.slots:
            outside[start:end] = False
        return bool((view[outside] == POISON).all())

    def results(self) -> list[list[torch.Tensor]]:
        """For each repeat, copies of the results in the order of `Call.results`."""
        groups = ("outputs", "written", "gradients")
        return [
            [
                self.flat(s, s["storage"]).clone()
                for group in groups
                for s in repeat[group]
                if "offset" in s
            ]
            for repeat in self.order["repeats"]
        ]

    def report(self) -> bytes:
        """What the worker says of the call; nothing in it is believed without being checked."""
        at = self.order["report"]["offset"]
        size = int.from_bytes(self.memory[at : at + 4], "big")
        return self.memory[at + 4 : at + 4 + size] if size <= REPORT_BYTES - 4 else b""

    def close(self) -> None:
        """Give the memory back."""
        os.close(self.fd)


def _itemsize(dtype: str) -> int:
    return int(DTYPES[dtype].itemsize)


def _seed_layout(kind: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Strides and storage of a cotangent: a layout of contracts, or one of autograd's own.

    `expanded` is what the mean over the second axis hands back: a stride of zero along it.
    """
    if kind == "expanded" and shape:
        axis = min(1, len(shape) - 1)
        strides = list(row_major((*shape[:axis], 1, *shape[axis + 1 :])))
        strides[axis] = 0
        return tuple(strides), prod(shape[:axis] + shape[axis + 1 :])
    if not shape or (kind == "transposed" and len(shape) < 3):
        kind = "contiguous"
    return layout(kind, shape)


def arena(call: Call, device: str, seeds: Sequence[str] = ("contiguous",)) -> Arena:
    """Lay out and poison the memory of a call; its size can never change again.

    The call is made once for each of `seeds`: the layout that its cotangents have then.
    """
    offset, slots = GUARD_BYTES, []

    def place(count: int, dtype: str) -> int:
        nonlocal offset
        start, size = offset, count * _itemsize(dtype)
        slots.append((start, start + size))
        offset = (start + size + GUARD_BYTES + 63) // 64 * 64
        return start

    def result(item: Result) -> dict[str, Any]:
        count = torch.Size(item.shape).numel()
        return {
            "name": item.name,
            "shape": list(item.shape),
            "dtype": item.dtype,
            "strides": row_major(item.shape),
            "storage": count,
            "requires_grad": False,
            "offset": place(count, item.dtype),
        }

    def cotangent(item: Result, kind: str) -> dict[str, Any]:
        strides, storage = _seed_layout(kind, item.shape)
        return {
            "name": item.name,
            "shape": list(item.shape),
            "dtype": item.dtype,
            "strides": strides,
            "storage": storage,
            "requires_grad": False,
            "offset": place(storage, item.dtype),
        }

    tensors = [
        {
            "name": item.name,
            "shape": item.shape,
            "strides": item.strides,
            "storage": item.storage,
            "dtype": item.dtype,
            "requires_grad": item.requires_grad,
            "written": item.written,
            "host": item.host,
            "constant": item.constant,
            "offset": place(item.storage, item.dtype),
        }
        for item in call.tensors
    ]
    present = [item for item in call.outputs if item.present]
    seeded = present if call.gradients else []
    repeats = [
        {
            "cotangents": [cotangent(item, kind) for item in seeded],
            "outputs": [
                result(item) if item.present else {"alias": item.alias} for item in call.outputs
            ],
            "written": [result(item) for item in call.written],
            "gradients": [result(item) for item in call.gradients],
        }
        for kind in seeds
    ]
    report = place(REPORT_BYTES, "bool")
    fd = os.memfd_create("fla-bot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, offset)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    memory = mmap.mmap(fd, offset)
    torch.frombuffer(memory, dtype=torch.uint8).fill_(POISON)
    order = {
        "target": call.target,
        "device": device,
        "size": offset,
        "tensors": tensors,
        "plain": call.plain,
        "inference": call.inference,
        "repeats": repeats,
        "report": {"offset": report},
    }
    return Arena(fd, memory, order, slots)


class Arm:
    """A worker at the other end of a socket; any answer but one known byte a call fails it.

    `extra` goes with every order, `keywords` (other names of arguments, by target) with the first.
    `report`, `seconds`: what it says of the last call, and how long it took to answer.

    `replace` gives the socket of a fresh worker, or None where there will be none: a worker that
    hangs or dies costs the call that it did so in, and no other.
    """

    def __init__(
        self, fd: int, timeout_s: float, replace: Callable[[], int | None] = lambda: None
    ) -> None:
        self.channel = socket.socket(fileno=fd)
        self.timeout_s, self.replace = timeout_s, replace
        self.lost: Outcome | None = None
        self.extra: dict[str, Any] = {}
        self.keywords: dict[str, dict[str, str | None]] = {}
        self.report, self.seconds = b"", 0.0
        self.targets: list[str] = []
        self.start_timeout_s = timeout_s

    def start(self, targets: list[str], timeout_s: float) -> None:
        """Have the worker import; one that cannot is lost for all cells."""
        self.targets, self.start_timeout_s = targets, timeout_s
        self._send({"targets": targets, "keywords": self.keywords}, None)
        if self.lost is None and self._answer(timeout_s) != READY:
            self.lost = self.lost or Outcome.PROTOCOL
        if self.lost is not None:
            self.replace = lambda: None

    def run(self, memory: Arena) -> Outcome:
        """Let the worker fill the slots."""
        if self.lost is not None:
            self._renew()
        if self.lost is None:
            self._send(memory.order | self.extra, memory.fd)
        if self.lost is not None:
            return self.lost
        began = time.monotonic()
        outcome = self._outcome()
        self.report, self.seconds = memory.report(), time.monotonic() - began
        return outcome

    def close(self) -> None:
        """Let go of the worker, which then ends."""
        self.channel.close()

    def _renew(self) -> None:
        fd = self.replace()
        if fd is None:
            self.replace = lambda: None
            return
        self.channel.close()
        self.channel, self.lost = socket.socket(fileno=fd), None
        self.start(self.targets, self.start_timeout_s)

    def _outcome(self) -> Outcome:
        answer = self._answer(self.timeout_s)
        if self.lost is None:
            return ANSWERS.get(answer, Outcome.PROTOCOL)
        # What hangs or died cannot serve the next call; that call is not the one to blame.
        outcome, self.lost = self.lost, Outcome.WORKER_DIED
        return outcome

    def _send(self, message: dict[str, Any], fd: int | None) -> None:
        try:
            self.channel.settimeout(self.timeout_s)
            send(self.channel, message, fd)
        except OSError:
            self.lost = Outcome.WORKER_DIED

    def _answer(self, timeout_s: float) -> bytes:
        """Exactly one byte; a worker that talks without being asked breaks the protocol."""
        try:
            self.channel.settimeout(timeout_s)
            answer = self.channel.recv(2)
        except TimeoutError:
            self.lost = Outcome.TIMEOUT
            return b""
        except OSError:
            answer = b""
        if not answer:
            self.lost = Outcome.WORKER_DIED
        elif len(answer) > 1:
            self.lost = Outcome.PROTOCOL
        return answer
