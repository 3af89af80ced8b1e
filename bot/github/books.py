"""What judges, as git names it: policy, contracts, anchors and the references that they name; pure.

Whoever knows the blobs of a commit can tell whether a plan was made with these: `scope` from its
clone, later jobs from GitHub.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha1

from bot.anchors import FOLDER as ANCHORS
from bot.contract import Contract
from bot.model import digest
from bot.trusted import FOLDER, POLICY_PATH

__all__ = ["blob", "books_digest", "contract_path", "references"]


def books_digest(tree: Mapping[str, str], watched: Iterable[str] = ()) -> str | None:
    """A digest of what judges and of `watched` files; None where there is no policy.

    `tree`: all paths of a commit with their blobs.
    """
    if POLICY_PATH not in tree:
        return None
    wanted = set(watched)
    return digest(sorted(item for item in tree.items() if item[0] in wanted or _judges(item[0])))


def _judges(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return (folder, name[-5:]) in ((FOLDER, ".yaml"), (ANCHORS, ".json"))


def contract_path(op: str) -> str:
    """Where the contract of an op stands."""
    return f"{FOLDER}/{op}.yaml"


def references(contracts: Iterable[Contract], tree: Iterable[str]) -> list[str]:
    """The files of a commit that hold what contracts compare with, wherever the sources begin."""
    points = (point for contract in contracts for point in contract.entry_points.values())
    modules = {(point.reference or "").partition(":")[0] for point in points} - {""}
    places = [module.replace(".", "/") for module in modules]
    ends = tuple(f"/{place}{end}" for place in places for end in (".py", "/__init__.py"))
    return sorted(path for path in tree if f"/{path}".endswith(ends)) if ends else []


def blob(text: str) -> str:
    """The name that git gives to a file of this text."""
    data = text.encode()
    return sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
