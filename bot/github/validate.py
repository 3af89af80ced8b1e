"""What `plan` checks of a plan before anybody acts on it, since `scope` has read hostile content.

Policy, contracts, owners and the commits that a plan goes by are taken from GitHub. Of what the
change reaches there is a floor: files that belong to an op cannot change without a lane of it, or
a person's word; nor can contracts, references and comments that silence rules without one. What it
reaches beyond that, and what the rules found, is believed.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bot import contract as contract_file
from bot import policy as policy_file
from bot.amendment import edits
from bot.contract import Contract
from bot.errors import UserError
from bot.github.books import (
    anchors_path,
    books_digest,
    contract_path,
    named,
    references,
    shelf_digest,
)
from bot.github.case import Case
from bot.github.client import Client
from bot.github.due import Sides, asked, lacking, only_words, paths, silencing
from bot.github.queue import parse_branch
from bot.github.reconcile import Reconciler
from bot.github.records import File
from bot.model import ChecklistItem, CheckState, ItemState, Job, digest
from bot.policy import Policy
from bot.trusted import POLICY_PATH

__all__ = ["NotYet", "validated"]

MAX_COMPARED = 300  # files that GitHub lists when it compares; of a pull request it lists more
MAX_LISTED = 3000


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
        *lacking(case, Sides(files, tree, books.before, texts)),
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
    _before: Mapping[str, str] | None = None
    _trusted: dict[str, Contract | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.policy = policy_file.load(self._text(self.tree, POLICY_PATH), POLICY_PATH)

    def _text(self, tree: Mapping[str, str], path: str) -> bytes:
        return named(self.texts, tree.get(path, ""), path)

    def before(self) -> Mapping[str, str]:
        """The files of the merge base with their blobs."""
        if self._before is None:
            plan = self.case.report.plan
            same = plan.merge_base == plan.trusted
            self._before = self.tree if same else self.client.tree(plan.merge_base)
        return self._before

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
        if anchors_path(op) in tree and op not in case.anchors:
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
        for path in paths(file):
            area, captured = case.policy.place(path)
            if area and (area.risk == "high" or area.guarded):
                sensitive.add(path)
            if area and area.contract == "required" and (op := captured.get("op")):
                touched.setdefault(op, []).append(file)
    items, owners = list(case.report.checklist), dict(case.owners)
    for op, own in sorted(touched.items()):
        if not all(only_words(file) for file in own) and not _has_lanes(case, books, op):
            items.append(
                _floor(f"floor:{op}", f"files of {op} are edited and no lane measures it", own)
            )
            if contract := books.trusted(op):
                owners[op] = contract.owners
    items += _reference_floors(case, books, files)
    if silent := silencing(files, case.report.suppressions):
        items.append(_floor("floor-silence", "rules may be silenced, which nothing lists", silent))
    report = case.report.model_copy(update={"checklist": items})
    update = {"report": report, "sensitive": sorted(sensitive), "owners": owners}
    return case.model_copy(update=update)


def _floor(name: str, what: str, files: Sequence[File]) -> ChecklistItem:
    """What a person must accept for the sake of some files, as they are at the head."""
    code = digest([*name.split(":"), *sorted([file.filename, file.sha] for file in files)])
    evidence = ", ".join(sorted({file.filename for file in files})[:5])
    text = f"{what}; a person must accept {code}"
    return ChecklistItem(id=name, state=ItemState.HUMAN, text=text, evidence=evidence, accept=code)


def _reference_floors(case: Case, books: _Books, files: Sequence[File]) -> Iterator[ChecklistItem]:
    """What an op is compared with is edited, and nobody is asked about it."""
    told = {name.partition(".")[0] for name in asked(case) if name.startswith("reference:")}
    for op in sorted(case.contracts):
        contract = books.trusted(op)  # that of a new op is accepted as a whole
        if contract is None or f"reference:{op}" in told:
            continue
        watched = set(references([contract], books.tree))
        own = [file for file in files if watched & {*paths(file)} and not only_words(file)]
        if own:
            what = f"a file that {op} is compared with is edited"
            yield _floor(f"floor-reference:{op}", what, own)


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
