"""What the trusted device process and the untrusted workers share: frames, answers, poison."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import array
import json
import socket
from typing import Any

from bot.model import Outcome

__all__ = [
    "ANSWERS", "DONE", "GUARD_BYTES", "POISON", "READY", "REPORT_BYTES", "ROUNDING", "TORCH_NAMES",
    "receive", "send",
]  # fmt: skip

# One byte answers a call. Whatever else a worker says has no meaning.
READY = b"I"
DONE = b"D"
ANSWERS = {
    b"R": Outcome.RAN,
    b"X": Outcome.RAISED,
    b"N": Outcome.ARITY,
    b"T": Outcome.TYPE,
    b"S": Outcome.SHAPE,
    b"A": Outcome.ALIAS,
    b"G": Outcome.GRAD_MISSING,
    b"B": Outcome.GUARD,
}
GUARD_BYTES = 4096
REPORT_BYTES = 64 << 10  # four bytes of length, then JSON
POISON = 0xFF  # all ones: NaN in every floating format, -1 in every integer one
# Half a unit in the last place relative to the value: no honest error is held to less.
ROUNDING = {"fp64": 2.0**-53, "fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
TORCH_NAMES = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "int32": "int32",
    "int64": "int64",
    "bool": "bool",
}


def send(channel: socket.socket, message: dict[str, Any], fd: int | None = None) -> None:
    """A length-prefixed JSON message, with an open file if there is one."""
    body = json.dumps(message).encode()
    data = len(body).to_bytes(4, "big") + body
    fds = array.array("i", [] if fd is None else [fd])
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if fds else []
    sent = channel.sendmsg([data], ancillary)
    channel.sendall(data[sent:])


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and the files that came with it; EOFError at the end."""
    fds = array.array("i")
    head, ancillary, _, _ = channel.recvmsg(4, socket.CMSG_LEN(fds.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data)
    head = _exactly(channel, head, 4)
    message: dict[str, Any] = json.loads(_exactly(channel, b"", int.from_bytes(head, "big")))
    return message, list(fds)


def _exactly(channel: socket.socket, start: bytes, size: int) -> bytes:
    while len(start) < size:
        piece = channel.recv(size - len(start))
        if not piece:
            raise EOFError
        start += piece
    return start
