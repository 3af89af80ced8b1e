"""What `plan` checks of a plan before anybody acts on it, since `scope` has read hostile content.

Policy, contracts, owners and the commits that a plan goes by are taken from GitHub. Of what the
change reaches there is a floor: files that belong to an op cannot change without a lane of it, or
a person's word. What it reaches beyond that, and what the rules found, is believed.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bot import contract as contract_file
from bot import policy as policy_file
from bot.amendment import edits
from bot.anchors import FOLDER as ANCHORS
from bot.contract import Contract
from bot.errors import UserError
from bot.github.books import blob, books_digest, contract_path, references, shelf_digest
from bot.github.case import Case
from bot.github.client import Client
from bot.github.queue import parse_branch
from bot.github.reconcile import Reconciler
from bot.github.records import File
from bot.model import ChecklistItem, CheckState, ItemState, Job, digest
from bot.policy import Policy
from bot.trusted import FOLDER, POLICY_PATH

__all__ = ["NotYet", "validated"]

MAX_COMPARED = 300  # files that GitHub lists when it compares; of a pull request it lists more
MAX_LISTED = 3000
CODING_LINES = 2
_HUNK = re.compile(r"@@ -([0-9]+)(?:,[0-9]+)? \+([0-9]+)(?:,[0-9]+)? @@")
_CODING = re.compile(r"[ \t\f]*#.*?coding[:=]")


class NotYet(UserError):
    """Nothing is wrong with the plan: what it goes on top of is not ready."""


def validated(reconciler: Reconciler, case: Case, texts: Mapping[str, str]) -> Case | None:
    """The case with what GitHub says in place of what `scope` said; a UserError if they differ.

    `texts`: policy and contracts by the blob that `scope` says they are. None: the base branch has
    moved since the plan was made.
    """
    client, plan = reconciler.client, case.report.plan
    parted = client.compare(case.base_ref, case.head)
    if parted.base_commit.sha != plan.trusted:
        return None
    if plan.base != plan.trusted:
        raise UserError("the base is not the tip of the base branch")
    if parted.merge_base_commit.sha != plan.merge_base:
        raise UserError("GitHub has another merge base: update the branch")
    tree = client.tree(plan.trusted)
    if POLICY_PATH not in tree:
        # Only a preview, for which no machine runs.
        none = {"gated": False, "books": digest([]), "shelf": shelf_digest(tree), "watched": []}
        return _whole(case.model_copy(update=none))
    books = _Books(client, case, tree, texts)
    contracts = {op: books.in_force(op) for op in case.contracts}
    watched = references(contracts.values(), tree)
    case = case.model_copy(
        update={
            "gated": True,
            "policy": books.policy,
            "owners": {op: found.owners for op in contracts if (found := books.trusted(op))},
            "watched": watched,
            "books": books_digest(tree, watched, case.ops),
            "shelf": shelf_digest(tree),
        }
    )
    files = _files(client, case, parted.files)
    faults = [
        *_anchor_faults(case, tree),
        *(fault for job in plan.jobs for fault in _job_faults(job, case, contracts)),
        *_left_out(case, tree, files),
        *_group_faults(case),
    ]
    if faults:
        raise UserError(*faults)
    if behind := list(_not_green(reconciler, case)):
        raise NotYet(*behind)
    return _whole(_floored(case, books, files))


def _whole(case: Case) -> Case:
    if faults := case.faults():
        raise UserError(*faults)
    return case


@dataclass
class _Books:
    """What judges a case, each text of it as the blob that GitHub has at that place."""

    client: Client
    case: Case
    tree: Mapping[str, str]
    texts: Mapping[str, str]
    policy: Policy = field(init=False)
    _head: Mapping[str, str] | None = None
    _trusted: dict[str, Contract | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.policy = policy_file.load(self._text(self.tree, POLICY_PATH), POLICY_PATH)

    def _text(self, tree: Mapping[str, str], path: str) -> bytes:
        text = self.texts.get(tree.get(path, ""))
        if text is None or blob(text) != tree[path]:
            raise UserError(f"{path} is not the one that GitHub has")
        return text.encode()

    def trusted(self, op: str) -> Contract | None:
        """The contract on the base branch."""
        if op not in self._trusted:
            path, found = contract_path(op), None
            if path in self.tree:
                found = contract_file.load(self._text(self.tree, path), path)
            self._trusted[op] = found
        return self._trusted[op]

    def in_force(self, op: str) -> Contract:
        """The contract that the case names: the trusted one, a new one, or one that adds to it."""
        origin, change, trusted = self.case.contracts[op], self.case.report.change, self.trusted(op)
        found = trusted
        if origin.commit == change.head:
            if self._head is None:
                self._head = self.client.tree(change.head)
            path = contract_path(op)
            found = contract_file.load(self._text(self._head, path), path)
            if trusted is not None and any(e.kind == "weaker" for e in edits(trusted, found)):
                raise UserError(f"the contract of {op} promises less than the trusted one")
        elif origin.commit != change.trusted:
            found = None
        if found is None or found.op != op or found.fingerprint != origin.fingerprint:
            raise UserError(f"the contract of {op} is not the one that GitHub has")
        return found


def _files(client: Client, case: Case, compared: Sequence[File]) -> list[File]:
    """The files of the change as GitHub lists them."""
    if len(compared) < MAX_COMPARED or case.group:
        return list(compared)
    found = client.files(case.number)
    if len(found) >= MAX_LISTED:
        raise UserError(f"{MAX_LISTED} files or more: split the change")
    return found


def _anchor_faults(case: Case, tree: Mapping[str, str]) -> Iterator[str]:
    for op in case.contracts:
        if f"{ANCHORS}/{op}.json" in tree and op not in case.anchors:
            yield f"the anchors of {op} are left out"


def _job_faults(job: Job, case: Case, contracts: Mapping[str, Contract]) -> Iterator[str]:
    lane, contract = case.policy.lanes.get(job.lane), contracts.get(job.op)
    if lane is None or (contract is None and job.op != "tests"):
        return  # `faults` of the case says so
    if not job.cells:
        yield f"job {job.id} has no cells"
    named = contract.entry_points.values() if contract else ()
    if contract and not any(job.lane in point.lanes for point in named):
        yield f"job {job.id} is on a lane that its contract does not name"
    if job.required != (lane.required and (contract is None or contract.status == "enforced")):
        yield f"job {job.id} is {'' if job.required else 'not '}required, against the policy"


def _left_out(case: Case, tree: Mapping[str, str], files: Sequence[File]) -> Iterator[str]:
    """What a person must accept whatever the change reaches, if the checklist does not have it."""
    due = {f"new-op:{op}" for op in case.contracts if contract_path(op) not in tree}
    for file in files:
        gone = file.previous_filename or (file.filename if file.status == "removed" else "")
        folder, _, name = gone.rpartition("/")
        if folder == FOLDER and name.endswith(".yaml") and gone != POLICY_PATH and gone in tree:
            due.add(f"removed:{name.removesuffix('.yaml')}")
        for path in _paths(file):
            due |= {"policy-change"} if path == POLICY_PATH else set()
            area = case.policy.place(path)[0]
            due |= {"sensitive"} if area and area.guarded else set()
    shown = {item.id for item in case.report.checklist}
    yield from (f"the checklist lacks {name}" for name in sorted(due - shown))


def _paths(file: File) -> list[str]:
    return [path for path in (file.filename, file.previous_filename) if path]


def _group_faults(case: Case) -> Iterator[str]:
    """What is wrong with a merge group: its branch is called after what it merges."""
    if case.group or case.merges:
        named, own = parse_branch(case.group, case.head), [link.number for link in case.merges[:1]]
        if named is None or own != [case.number] or named.number != case.number:
            yield "the merge group is not of the pull request that its branch is called after"
        elif named.base_ref != case.base_ref:
            yield "the merge group is not of the base branch that its branch is called after"


def _not_green(reconciler: Reconciler, case: Case) -> Iterator[str]:
    """What a merge group goes on top of though it is not green: its code runs here, too."""
    ahead = case.merges[1:]
    pulls = {pull.number: pull for pull in reconciler.client.open_pulls()} if ahead else {}
    for link in ahead:
        pull = pulls.get(link.number)
        view = reconciler.ledger.read(link.head, link.number, reconciler.stored(link.number))
        found = view.standings.get(link.number)
        same = pull is not None and pull.head.sha == link.head and pull.base.ref == case.base_ref
        green = found is not None and found.gated and found.state is CheckState.SUCCESS
        if not same or not green or found is None or found.base_ref != case.base_ref:
            yield (
                f"#{link.number}, which is ahead in the queue, is not green: see there what it "
                f"needs, then queue #{case.number} again"
            )


def _floored(case: Case, books: _Books, files: Sequence[File]) -> Case:
    """The case with what its files call for, whatever `scope` says that they reach."""
    touched: dict[str, list[File]] = {}
    sensitive = set(case.sensitive)
    for file in files:
        for path in _paths(file):
            area, captured = case.policy.place(path)
            if area and (area.risk == "high" or area.guarded):
                sensitive.add(path)
            if area and area.contract == "required" and (op := captured.get("op")):
                touched.setdefault(op, []).append(file)
    items, owners = list(case.report.checklist), dict(case.owners)
    for op, own in sorted(touched.items()):
        if not all(_only_words(file) for file in own) and not _has_lanes(case, books, op):
            code = digest(["floor", op, *sorted([file.filename, file.sha] for file in own)])
            text = f"files of {op} are edited and no lane measures it; a person must accept {code}"
            evidence = ", ".join(sorted({file.filename for file in own})[:5])
            name, state = f"floor:{op}", ItemState.HUMAN
            if contract := books.trusted(op):
                owners[op] = contract.owners
            items.append(
                ChecklistItem(id=name, state=state, text=text, evidence=evidence, accept=code)
            )
    report = case.report.model_copy(update={"checklist": items})
    update = {"report": report, "sensitive": sorted(sensitive), "owners": owners}
    return case.model_copy(update=update)


def _has_lanes(case: Case, books: _Books, op: str) -> bool:
    """Whether all required lanes of one of the op's entry points are planned, or it is red."""
    red = {item.id for item in case.report.checklist if item.state is ItemState.FAILED}
    if f"contract:{op}" in red:
        return True
    contract = books.in_force(op) if op in case.contracts else books.trusted(op)
    if contract is None or contract.status != "enforced":
        return False
    planned = {job.lane for job in case.report.plan.jobs if job.op == op}
    required = {name for name, lane in case.policy.lanes.items() if lane.required}
    # A benchmark lane has a job only where the contract has rows for it.
    needed = [
        {name for name in required & set(point.lanes) if not name.startswith("benchmark:")}
        for point in contract.entry_points.values()
    ]
    return not any(needed) or any(lanes and lanes <= planned for lanes in needed)


def _only_words(file: File) -> bool:
    """Whether only comments and empty lines of a Python file change."""
    if file.status != "modified" or not file.filename.endswith(".py") or not file.patch:
        return False
    # Not `splitlines`: to Python a lone carriage return ends a line, and a form feed does not.
    lines = [line.removesuffix("\r") for line in file.patch.split("\n")]
    changed = [line[1:].strip() for line in lines if line[:1] in ("+", "-")]
    words = (not line or (line.startswith("#") and "\r" not in line) for line in changed)
    return bool(changed) and all(words) and not _is_read_otherwise(lines)


def _is_read_otherwise(patch: Sequence[str]) -> bool:
    """Whether a comment that says how the file is to be read comes, goes or moves (PEP 263)."""
    old = new = 0
    for line in patch:
        if hunk := _HUNK.match(line):
            old, new = int(hunk[1]), int(hunk[2])
            continue
        before, after = line[:1] in ("-", " "), line[:1] in ("+", " ")
        # Such a comment counts in the first two lines alone; others can push it out of them.
        counts = (before and old <= CODING_LINES, after and new <= CODING_LINES)
        if counts[0] != counts[1] and _CODING.match(line[1:]):
            return True
        old, new = old + before, new + after
    return False
