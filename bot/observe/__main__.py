"""Run the tests of the tree that is here, as `python -m pytest` would, and tell what happens.

Started by a tests lane: `python -I -B -m bot.observe CHANNEL TREE`. The channel brings one line,
what to run, and after `ready` another, which of the collected tests; it takes the observer's lines.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

import pytest

from bot.observe.plugin import Observer


def main() -> int:
    """The exit status of pytest."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    tree = sys.argv[2]
    stream = channel.makefile("rwb")
    order = json.loads(stream.readline())

    def write(line: dict[str, Any]) -> None:
        stream.write(json.dumps(line).encode() + b"\n")
        stream.flush()

    def choose() -> list[str] | None:
        wanted: list[str] | None = json.loads(stream.readline())
        return wanted

    # The tree may hold a `bot` of its own, and its tests mean that one.
    for name in [name for name in sys.modules if name.partition(".")[0] == "bot"]:
        del sys.modules[name]
    sys.dont_write_bytecode = True
    sys.path.insert(0, tree)
    # Only the tree's conftest files decide, not what else is installed here.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    observer = Observer(write, order["targets"], choose)
    observer.watcher.install()
    words = ["--rootdir", tree, "-p", "no:cacheprovider", "-q", "--color=no", "--tb=short"]
    status = int(pytest.main([*words, *order["files"]], plugins=[observer]))
    write({"kind": "end", "status": status, "strays": _strays(order["roots"], tree)})
    return status


def _strays(roots: list[str], tree: str) -> list[str]:
    """Packages under test that were imported, and not from the tree."""
    found = []
    for root in roots:
        place = getattr(sys.modules.get(root), "__file__", None)
        if place and not os.path.realpath(place).startswith(os.path.realpath(tree) + os.sep):
            found.append(root)
    return found


if __name__ == "__main__":
    sys.exit(main())
