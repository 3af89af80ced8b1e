"""What judges, as git names it: policy, contracts, anchors and the references that they name; pure.

Whoever knows the blobs of a commit can tell whether a plan was made with these: `scope` from its
clone, later jobs from GitHub.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import sha1

from bot.anchors import FOLDER as ANCHORS
from bot.contract import Contract
from bot.errors import UserError
from bot.model import digest
from bot.trusted import FOLDER, POLICY_PATH

__all__ = [
    "anchors_path", "blob", "books_digest", "contract_path", "named", "op_of", "references",
    "shelf_digest",
]  # fmt: skip


def books_digest(
    tree: Mapping[str, str], watched: Iterable[str] = (), ops: Collection[str] | None = None
) -> str | None:
    """A digest of what judges and of `watched` files; None where there is no policy.

    `tree`: all paths of a commit with their blobs. `ops`: of policy, contracts and anchors those
    that judge these; without them, all.
    """
    if POLICY_PATH not in tree:
        return None
    wanted = {*watched, POLICY_PATH}
    if ops is None:
        wanted |= {path for path in tree if _is_contract(path) or _is_anchors(path)}
    else:
        wanted |= {path for op in ops for path in (contract_path(op), anchors_path(op))}
    return digest(sorted(item for item in tree.items() if item[0] in wanted))


def shelf_digest(tree: Mapping[str, str]) -> str:
    """A digest of all contracts: any of them may come to concern a change that it did not."""
    return digest(sorted(item for item in tree.items() if _is_contract(item[0])))


def _is_contract(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder == FOLDER and name.endswith(".yaml") and path != POLICY_PATH


def _is_anchors(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder == ANCHORS and name.endswith(".json")


def contract_path(op: str) -> str:
    """Where the contract of an op stands."""
    return f"{FOLDER}/{op}.yaml"


def anchors_path(op: str) -> str:
    """Where the anchors of an op stand."""
    return f"{ANCHORS}/{op}.json"


def op_of(path: str) -> str:
    """The op whose contract or anchors a path is; empty if it is neither."""
    if not (_is_contract(path) or _is_anchors(path)):
        return ""
    return path.rpartition("/")[2].rpartition(".")[0]


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


def named(texts: Mapping[str, str], oid: str, path: str) -> bytes:
    """The text of a blob among those that somebody says they are; a UserError if it is not."""
    text = texts.get(oid)
    if text is None or blob(text) != oid:
        raise UserError(f"{path} is not the one that GitHub has")
    return text.encode()
