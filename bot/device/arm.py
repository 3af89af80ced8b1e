"""One arm of a comparison as the trusted process sees it: a channel to a worker and its memory."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from dataclasses import dataclass, field
from typing import Any

import torch

from bot.cells import Call, Result, layout, row_major
from bot.model import Outcome
from bot.wire import ANSWERS, GUARD_BYTES, POISON, READY, TORCH_NAMES, send

__all__ = ["DTYPES", "Arena", "Arm", "arena"]

DTYPES = {name: getattr(torch, word) for name, word in TORCH_NAMES.items()}
REPEATS = 2
# A second call gets the same cotangents with other strides: the result must be the same bits.
LAYOUTS = ("contiguous", "sliced")
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

    def close(self) -> None:
        """Give the memory back."""
        os.close(self.fd)


def _itemsize(dtype: str) -> int:
    return int(DTYPES[dtype].itemsize)


def arena(call: Call, device: str) -> Arena:
    """Lay out and poison the memory of a call; its size can never change again."""
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
        strides, storage = layout(kind, item.shape)
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
            "offset": place(item.storage, item.dtype),
        }
        for item in call.tensors
    ]
    present = [item for item in call.outputs if item.present]
    seeded = present if call.gradients else []
    repeats = [
        {
            "cotangents": [cotangent(item, LAYOUTS[i % 2 if item.shape else 0]) for item in seeded],
            "outputs": [
                result(item) if item.present else {"alias": item.alias} for item in call.outputs
            ],
            "written": [result(item) for item in call.written],
            "gradients": [result(item) for item in call.gradients],
        }
        for i in range(REPEATS)
    ]
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
    }
    return Arena(fd, memory, order, slots)


class Arm:
    """A worker at the other end of a socket; any answer but one known byte a call fails it."""

    def __init__(self, fd: int, timeout_s: float) -> None:
        self.channel = socket.socket(fileno=fd)
        self.timeout_s = timeout_s
        self.lost: Outcome | None = None

    def start(self, targets: list[str], timeout_s: float) -> None:
        """Have the worker import; a worker that cannot is lost for all cells."""
        self._send({"targets": targets}, None)
        if self.lost is None and self._answer(timeout_s) != READY:
            self.lost = self.lost or Outcome.PROTOCOL

    def run(self, memory: Arena) -> Outcome:
        """Let the worker fill the slots."""
        if self.lost is None:
            self._send(memory.order, memory.fd)
        if self.lost is not None:
            return self.lost
        return self._outcome()

    def _outcome(self) -> Outcome:
        answer = self._answer(self.timeout_s)
        if self.lost is None:
            return ANSWERS.get(answer, Outcome.PROTOCOL)
        # What hangs or died cannot serve the next cell; that cell is not the one to blame.
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
