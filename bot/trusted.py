"""Policy and contracts: the trusted ones, which judge, and those that a change proposes."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import TypeVar

from packaging.specifiers import SpecifierSet
from pydantic import ValidationError

from bot import amendment
from bot import anchors as anchors_file
from bot import contract as contract_file
from bot import policy as policy_file
from bot.amendment import Edit, anchor_edits
from bot.anchors import Anchors, strictest
from bot.cache import Cache
from bot.cells import cells, check_cells, remember
from bot.change import Repository
from bot.contract import Contract
from bot.document import Strict
from bot.errors import Fault, UserError
from bot.model import Change, digest
from bot.policy import Policy

__all__ = ["FOLDER", "POLICY_NAME", "POLICY_PATH", "Books", "known_cells", "read_books"]

FOLDER, POLICY_NAME = "contracts", "policy.yaml"
ANCHORS = PurePosixPath(anchors_file.FOLDER)
POLICY_PATH = f"{FOLDER}/{POLICY_NAME}"
Text = tuple[str, bytes]  # where it stands, and what
Model = TypeVar("Model", bound=Strict)


@dataclass(frozen=True, slots=True)
class Books:
    """What judges a change.

    `contracts` are the trusted ones, those of new ops, and in place of a trusted one the proposed
    one where that promises everything the trusted one does, and more. `proposed` are all that the
    change edits: by their names its own tree is called. `anchors` are the trusted
    ones, with what the change adds or lowers. `new_ops` and `removed` (of
    which the change takes the contract away) have digests; `faults` are of proposed contracts.
    """

    policy: Policy
    source: str
    from_trusted: bool
    contracts: dict[str, Contract]
    proposed: dict[str, Contract]
    anchors: dict[str, Anchors]
    edits: dict[str, list[Edit]]
    new_ops: dict[str, str]
    removed: dict[str, str]
    faults: dict[str, UserError]


def read_books(repository: Repository, change: Change, folder: Path | None, cache: Cache) -> Books:
    """Read both sides; faults of the trusted side end the command, all at once."""
    if folder is not None and not (folder / POLICY_NAME).is_file():
        raise UserError(f"--policy {folder}: no {POLICY_NAME} there")
    policy, source, texts, from_trusted = _trusted(repository, change, folder, cache)
    contracts, trusted_faults = _load_all(texts, cache)
    trusted_faults |= _lane_faults(contracts, policy)
    if trusted_faults:
        lists = (error.faults for error in trusted_faults.values())
        raise UserError(faults=[fault for faults in lists for fault in faults])
    before, proposed, removed, faults = (
        _proposed(repository, change, cache) if from_trusted else ({}, {}, {}, {})
    )
    # The lanes that a change adds to the policy do not exist before it is merged.
    faults |= _lane_faults(proposed, policy)
    proposed = {op: contract for op, contract in proposed.items() if op not in faults}
    edits = {
        op: found
        for op in sorted(set(before) & set(proposed))
        if (found := amendment.edits(before[op], proposed[op]))
    }
    # More promises are judged by the change's own contract, fewer never are. If the trusted one
    # has moved on since, it judges.
    stronger = {
        op: proposed[op]
        for op, found in edits.items()
        if contracts.get(op) == before[op] and all(edit.kind != "weaker" for edit in found)
    }
    new = {op: contract for op, contract in proposed.items() if op not in contracts}
    anchors, moved = _anchors(repository, change, folder, from_trusted, faults)
    for op, found in moved.items():
        edits[op] = edits.get(op, []) + found
    return Books(
        policy=policy,
        source=source,
        from_trusted=from_trusted,
        contracts={**new, **contracts, **stronger},
        proposed=proposed,
        anchors=anchors,
        edits=dict(sorted(edits.items())),
        new_ops={op: contract.fingerprint for op, contract in sorted(new.items())},
        removed=removed,
        faults=faults,
    )


def _lane_faults(contracts: Mapping[str, Contract], policy: Policy) -> dict[str, UserError]:
    """Contracts that trust in a lane which the policy does not have."""
    faults = {}
    for op, contract in contracts.items():
        named = {lane for point in contract.entry_points.values() for lane in point.lanes}
        if unknown := sorted(named - set(policy.lanes)):
            message = f"lane `{unknown[0]}` is not in the policy"
            faults[op] = UserError(faults=[Fault(f"{FOLDER}/{op}.yaml", 0, 0, message)])
    return faults


def _proposed(
    repository: Repository, change: Change, cache: Cache
) -> tuple[dict[str, Contract], dict[str, Contract], dict[str, str], dict[str, UserError]]:
    """The contract files that the change itself edits: before, after, removed, and faults.

    What moved on the base branch meanwhile is not this change's doing.
    """
    names = {
        path.removeprefix(f"{FOLDER}/").removesuffix(".yaml")
        for file in change.files
        for path in (file.path, file.old_path)
        if path.startswith(f"{FOLDER}/") and path.endswith(".yaml") and path != POLICY_PATH
    }
    old, new = (_contract_texts(repository, side) for side in (change.merge_base, change.head))
    before, _ = _load_all({op: old[op] for op in names & set(old)}, cache)
    after, faults = _load_all({op: new[op] for op in names & set(new)}, cache)
    gone = {op: digest(old[op][1].hex()) for op in sorted(names & set(old) - set(new))}
    return before, after, gone, faults


def _trusted(
    repository: Repository, change: Change, folder: Path | None, cache: Cache
) -> tuple[Policy, str, dict[str, Text], bool]:
    text = repository.read_path(change.trusted, POLICY_PATH)
    if text is not None:
        policy = _policy(text, POLICY_PATH, cache)
        texts = _contract_texts(repository, change.trusted)
        return policy, f"trusted {change.trusted[:12]}", texts, True
    folder = folder or repository.root / FOLDER
    path = folder / POLICY_NAME
    if not path.is_file():
        message = (
            f"no policy: {POLICY_PATH} is neither in {change.trusted[:12]} nor in {folder}; "
            "name a folder with --policy, or write one with `fla-bot init`"
        )
        raise UserError(message)
    policy = _policy(path.read_bytes(), str(path), cache)
    files = sorted(file for file in folder.glob("*.yaml") if file.name != POLICY_NAME)
    texts = {file.stem: (str(file), file.read_bytes()) for file in files}
    return policy, f"folder {folder.name}", texts, False


def _anchors(
    repository: Repository,
    change: Change,
    folder: Path | None,
    from_trusted: bool,  # noqa: FBT001
    faults: dict[str, UserError],
) -> tuple[dict[str, Anchors], dict[str, list[Edit]]]:
    """The anchors that count, and what the change does to them; `faults` gets its broken files."""
    if not from_trusted:
        place = (folder or repository.root / FOLDER) / ANCHORS.name
        files = sorted(place.glob("*.json"))
        return _all_anchors({f.stem: (str(f), f.read_bytes()) for f in files}, None), {}
    sides = (change.trusted, change.merge_base, change.head)
    texts = [_texts(repository, side, str(ANCHORS), ".json") for side in sides]
    trusted = _all_anchors(texts[0], None)
    names = set(texts[1]) | set(texts[2])
    changed = {op for op in names if texts[1].get(op) != texts[2].get(op)}
    before, after = (
        _all_anchors({op: side[op] for op in changed & set(side)}, faults) for side in texts[1:]
    )
    edits = {}
    for op in sorted(changed):
        if found := anchor_edits(before.get(op), after.get(op)):
            edits[op] = found
        if (least := strictest(trusted.get(op), after.get(op))) is not None:
            trusted[op] = least
    return trusted, edits


def _all_anchors(
    texts: Mapping[str, Text], faults: dict[str, UserError] | None
) -> dict[str, Anchors]:
    """Every file by op; a fault ends the command where nobody collects it."""
    found = {}
    for op, (path, text) in texts.items():
        try:
            found[op] = anchors_file.load(text, path, op)
        except UserError as error:
            if faults is None:
                raise
            faults.setdefault(op, error)
    return found


def _policy(text: bytes, path: str, cache: Cache) -> Policy:
    policy = _cached(text, Policy, cache)
    if policy is None:
        policy = policy_file.load(text, path)
        _keep(text, policy, cache)
    if version("fla-bot") not in SpecifierSet(policy.bot_version, prereleases=True):
        message = f"the policy wants fla-bot {policy.bot_version}, this is {version('fla-bot')}"
        raise UserError(faults=[Fault(path, 0, 0, message)])
    return policy


def _contract_texts(repository: Repository, commit: str) -> dict[str, Text]:
    texts = _texts(repository, commit, FOLDER, ".yaml")
    texts.pop(POLICY_NAME.removesuffix(".yaml"), None)
    return texts


def _texts(repository: Repository, commit: str, folder: str, ending: str) -> dict[str, Text]:
    """The files of a folder that end so, by their names without it."""
    texts = {}
    for path in repository.tree(commit):
        place, _, name = path.rpartition("/")
        wanted = place == folder and name.endswith(ending)
        text = repository.read_path(commit, path) if wanted else None
        if text is not None:
            texts[name.removesuffix(ending)] = (path, text)
    return texts


def _load_all(
    texts: Mapping[str, Text], cache: Cache
) -> tuple[dict[str, Contract], dict[str, UserError]]:
    contracts, faults = {}, {}
    for op, (path, text) in texts.items():
        try:
            contracts[op] = _load(op, path, text, cache)
        except UserError as error:
            faults[op] = error
    return contracts, faults


def _load(op: str, path: str, text: bytes, cache: Cache) -> Contract:
    contract = _cached(text, Contract, cache)
    if contract is None:
        contract = contract_file.load(text, path)
        _keep(text, contract, cache)
    if contract.op != op:
        message = f"`op` is `{contract.op}`; the file's name says `{op}`"
        raise UserError(faults=[Fault(path, 0, 0, message)])
    faults = known_cells(contract, cache)
    if faults:
        raise UserError(faults=[Fault(path, 0, 0, f"{name}: {text}") for name, text in faults])
    return contract


def known_cells(contract: Contract, cache: Cache) -> list[tuple[str, str]]:
    """Covering arrays take long to find and are the same each time. Returns what is wrong."""
    found = cache.get("cells", contract.fingerprint)
    if isinstance(found, dict):
        for name in set(contract.entry_points) & set(found):
            remember(contract, name, found[name])
        return []
    faults = check_cells(contract)
    if not faults:
        rows = {
            name: [cell.values for cell in cells(contract, name)] for name in contract.entry_points
        }
        cache.put("cells", contract.fingerprint, rows)
    return faults


def _cached(text: bytes, model: type[Model], cache: Cache) -> Model | None:
    found = cache.get(model.__name__, sha256(text).hexdigest())
    try:
        return model.model_validate_json(found) if isinstance(found, str) else None
    except ValidationError:
        return None


def _keep(text: bytes, value: Strict, cache: Cache) -> None:
    key = sha256(text).hexdigest()
    cache.put(type(value).__name__, key, value.model_dump_json(by_alias=True, exclude_unset=True))
