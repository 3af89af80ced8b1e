"""`fla-bot contract validate`: a file by itself, and against the policy and the tree around it."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bot import contract as contract_file
from bot import policy as policy_file
from bot.cache import repository_cache
from bot.cells import call, cells
from bot.contract import Contract, EntryPoint
from bot.document import Place, parse
from bot.errors import Fault, UserError
from bot.kernels import Sources
from bot.policy import Policy
from bot.signature import signature_faults
from bot.trusted import POLICY_NAME, known_cells

__all__ = ["Checked", "read_contract", "validate"]

# A definition or an assignment at any depth: kernels are made in both ways.
_DEFINED = re.compile(rb"^[ \t]*(?:def[ \t]+(\w+)|(\w+)[ \t]*(?::[^=\n]+)?=[^=])", re.MULTILINE)
# What holds the words of `open`.
_HOLDS = {"signature": "compatibility", "budgets": "outputs"}


@dataclass(slots=True)
class Checked:
    """What is wrong with a file, and what else its author should know."""

    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def validate(path: Path) -> Checked:
    """Every fault of a contract or a policy; nothing is written."""
    checked = Checked()
    try:
        text = path.read_bytes()
        if path.name == POLICY_NAME:
            policy_file.load(text, str(path))
            return checked
        document, contract = parse(text, str(path)), contract_file.load(text, str(path))
    except UserError as error:
        checked.faults = error.faults
        return checked
    except OSError as error:
        checked.faults = [Fault(str(path), 0, 0, error.strerror or str(error))]
        return checked
    # Of cells that cannot be called, nothing more is known.
    found = list(_faults(contract, path)) or list(_budget_faults(contract))
    found += _around(contract, path, checked.notes)
    checked.faults += [document.fault(place, reason) for place, reason in found]
    if contract.status == "draft":
        checked.notes += _open(contract, sound=not checked.faults)
    return checked


def read_contract(path: Path, text: bytes) -> Contract:
    """A contract whose cells are known; UserError carries every fault."""
    contract = contract_file.load(text, str(path))
    if faults := list(_faults(contract, path)):
        document = parse(text, str(path))
        raise UserError(faults=[document.fault(place, reason) for place, reason in faults])
    return contract


def _faults(contract: Contract, path: Path) -> Iterator[tuple[Place, str]]:
    """What is wrong with the cells; they are kept with those of the repository's plans."""
    cache = repository_cache(_root(path))
    for name, text in known_cells(contract, cache):
        yield ("entry_points", name, "axes"), text
    cache.save()


def _root(path: Path) -> Path:
    """The repository that a file lies in, or its folder."""
    folder = path.resolve().parent
    return next((p for p in (folder, *folder.parents) if (p / ".git").exists()), folder)


def _around(contract: Contract, path: Path, notes: list[str]) -> Iterator[tuple[Place, str]]:
    """Faults by what stands beside the file; `notes` get what could not be looked at."""
    if contract.op != path.name.removesuffix(".yaml"):
        yield ("op",), f"`op` is `{contract.op}`; the file must be called {contract.op}.yaml"
    policy = _policy(path.resolve().parent, notes)
    if policy is None:
        return
    yield from _lane_faults(contract, policy)
    root = path.resolve().parent.parent
    if any((root / name).is_dir() for name in policy.source_roots):
        yield from _tree_faults(contract, policy, root)
    else:
        roots = ", ".join(policy.source_roots)
        notes.append(f"names in the tree are not checked: there is no {roots} in {root}")


def _policy(folder: Path, notes: list[str]) -> Policy | None:
    file = folder / POLICY_NAME
    try:
        return policy_file.load(file.read_bytes(), str(file))
    except OSError:
        reason = f"there is no {POLICY_NAME} beside the file"
    except UserError as error:
        reason = f"{error.faults[0]}"
    notes.append(f"lanes and names in the tree are not checked: {reason}")
    return None


def _lane_faults(contract: Contract, policy: Policy) -> Iterator[tuple[Place, str]]:
    known = ", ".join(policy.lanes)
    for name, point in contract.entry_points.items():
        for i, lane in enumerate(point.lanes):
            if lane not in policy.lanes:
                text = f"lane `{lane}` is not in the policy; name one of {known}, or add it there"
                yield ("entry_points", name, "lanes", i), text


def _budget_faults(contract: Contract) -> Iterator[tuple[Place, str]]:
    """Results without a budget in a dtype of some cell: no such cell could ever pass."""
    for name, point in contract.entry_points.items():
        missing = dict[tuple[Place, str], dict[str, None]]()
        places: dict[str, Place] = {o.name: ("outputs", i) for i, o in enumerate(point.outputs)}
        places |= {f"d{arg}": ("gradients", arg) for arg in point.gradients}
        for cell in cells(contract, name) if "budgets" not in point.open else ():
            built = call(contract, cell, 0)
            for result in (result for result in built.results if result.budget is None):
                missing.setdefault((places[result.name], result.name), {})[built.dtype] = None
        for (place, what), dtypes in missing.items():
            text = f"`{what}` has no budget for {', '.join(dtypes)}, which the axes set; add it"
            yield ("entry_points", name, *place, "budget"), text


def _tree_faults(contract: Contract, policy: Policy, root: Path) -> Iterator[tuple[Place, str]]:
    """Names that lead to nothing, and functions that cannot be called as the contract says."""
    files = _Disk(root)
    sources = Sources(files)
    for name, point in contract.entry_points.items():
        at: Place = ("entry_points", name)
        absent = {key: _absent(getattr(point, key), sources) for key in ("target", "reference")}
        yield from (((*at, key), reason) for key, reason in absent.items() if reason)
        if absent["target"] is None and (reason := signature_faults(point, sources)):
            text = f"what is stated here does not fit {point.target}: {reason}"
            yield (*at, "target"), f"{text}; mend the contract or the function"
    paths = [path for name in policy.source_roots for path in _python(root, name)]
    yield from _kernel_faults(contract, files, paths)


def _absent(target: str | None, sources: Sources) -> str | None:
    """Why a tree has no such function; empty where that cannot be told, None if it has."""
    if not target:
        return ""
    dotted, _, function = target.partition(":")
    stem = dotted.replace(".", "/")
    module = sources.module(f"{stem}/__init__.py") or sources.module(f"{stem}.py")
    if module is None:
        return f"there is no module {dotted} in the tree; name the one that has `{function}`"
    if function in module.bindings:
        return None
    if {"*", "__getattr__"} & set(module.bindings):
        return ""
    known = [name for name in module.bindings if not name.startswith("__")]
    return f"{module.path} has no `{function}`; {_nearest(function, known)}"


def _nearest(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name, known, 1)
    return f"is it `{found[0]}`?" if found else f"it has {', '.join(known[:8]) or 'nothing'}"


def _kernel_faults(
    contract: Contract, files: Mapping[str, bytes | None], paths: list[str]
) -> Iterator[tuple[Place, str]]:
    """Kernels that no file of the tree defines: no cell would ever launch them."""
    declared = list(_kernels(contract))
    if not declared:
        return
    texts = (files.get(path) or b"" for path in paths)
    pairs = (pair for text in texts for pair in _DEFINED.findall(text))
    known = {name.decode() for pair in pairs for name in pair if name}
    for place, kernel in declared:
        if kernel not in known:
            near = difflib.get_close_matches(kernel, sorted(known), 1)
            hint = f"is it `{near[0]}`?" if near else "take it out, or mend its name"
            yield place, f"no file of the tree defines a kernel `{kernel}`; {hint}"


def _kernels(contract: Contract) -> Iterator[tuple[Place, str]]:
    for name, point in contract.entry_points.items():
        if point.dispatch is None:
            continue
        at: Place = ("entry_points", name, "dispatch")
        for i, kernel in enumerate(point.dispatch.kernels):
            yield (*at, "kernels", i), kernel
        for backend, spec in point.dispatch.backends.items():
            for i, kernel in enumerate(spec.kernels):
                yield (*at, "backends", backend, "kernels", i), kernel


class _Disk(Mapping[str, bytes | None]):
    """Files of a folder by their paths in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __getitem__(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except OSError as error:
            raise KeyError(path) from error

    def __iter__(self) -> Iterator[str]:
        return iter(_python(self.root, "."))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _python(root: Path, name: str) -> list[str]:
    found = (path.relative_to(root) for path in (root / name).rglob("*.py") if path.is_file())
    return sorted(path.as_posix() for path in found)


def _open(contract: Contract, *, sound: bool) -> Iterator[str]:
    """What a draft leaves open, by entry point, and what could be taken out of the list."""
    vague = {name: point for name, point in contract.entry_points.items() if point.open}
    for name, point in vague.items():
        yield f"open in {name}: {', '.join(point.open)}"
        if filled := [word for word in point.open if _is_filled(point, word)]:
            yield f"filled in {name}, and still in its `open`: {', '.join(filled)}"
    if sound and not vague:
        yield "a draft that leaves nothing open: `status: enforced` makes it a gate"


def _is_filled(point: EntryPoint, word: str) -> bool:
    return bool(getattr(point, _HOLDS.get(word, word)))
