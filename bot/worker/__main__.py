"""Serve calls of the tree under test: take a call and its memory, run it, answer with one byte.

Nothing that is computed here is believed: figures, times and verdicts come from the device process.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import mmap
import os
import socket
import sys
import traceback
from pathlib import Path

from bot.model import Outcome
from bot.tree import TreeFinder
from bot.wire import ANSWERS, READY, receive
from bot.worker.calls import Refused, perform
from bot.worker.targets import functions

_LETTERS = {outcome: letter for letter, outcome in ANSWERS.items()}


def main() -> None:
    """Import the targets, then answer calls until the channel closes."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    tree = Path(sys.argv[2]).resolve()
    sys.meta_path.insert(0, TreeFinder(tree, sys.argv[3].split(",")))
    order, _ = receive(channel)
    known = functions(order, tree)
    channel.sendall(READY)
    while True:
        order, (fd, *_) = receive(channel)
        memory = mmap.mmap(fd, order["size"])
        os.close(fd)
        outcome = Outcome.RAN
        try:
            perform(known[order["target"]], order, memory)
        except Refused as error:
            traceback.print_exc()
            outcome = error.outcome
        except Exception:  # noqa: BLE001  # the tree under test may raise anything; the log has it
            traceback.print_exc()
            outcome = Outcome.RAISED
        sys.stderr.flush()
        channel.sendall(_LETTERS[outcome])


if __name__ == "__main__":
    try:
        main()
    except EOFError:
        sys.exit(0)
