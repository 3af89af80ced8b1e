"""`fla-bot check`: from a change to its report, with no kernel run."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bot import evidence as evidence_file
from bot.cache import Cache, repository_cache
from bot.change import Repository, changed_lines
from bot.contract import EntryPoint
from bot.coverage import unexercised
from bot.evidence import Evidence
from bot.impact import Impact, Index, impact
from bot.judge import CORRECTNESS, judge
from bot.kernels import Sources
from bot.model import (
    Because,
    Change,
    ChangeSummary,
    ContractState,
    FileChange,
    ImpactSummary,
    Plan,
    Report,
    Scope,
    digest,
)
from bot.plan import Side, lane_cells, plan, unproven
from bot.report.checklist import Facts, checklist, conclude
from bot.rules import Context, Result, Tree, inspect
from bot.scope import affected_entry_points, owns, scope
from bot.signature import signature_faults
from bot.trees import Files, summaries
from bot.trusted import FOLDER, POLICY_PATH, Books, read_books
from bot.words import judge_words

__all__ = ["Analysis", "Request", "analyse", "evidence_folder", "report"]


MAX_FILES = 40  # files whose changed lines are named as the reason for a job


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line or a webhook asks for. `everything`: findings of the whole tree."""

    base: str | None = None
    head: str | None = None
    trusted: str | None = None
    policy_dir: Path | None = None
    title: str | None = None
    body: str | None = None
    everything: bool = False


@dataclass(slots=True)
class Analysis:
    """All that is known before any evidence."""

    change: Change
    books: Books
    impact: Impact
    scope: Scope
    reached: dict[str, list[str]]
    because: dict[str, list[Because]]
    plan: Plan
    sides: tuple[Side, Side]
    trees: tuple[Tree, Tree]


def analyse(repository: Repository, request: Request) -> Analysis:
    """Change, books, impact, scope and plan."""
    change = repository.change(request.base, request.head, request.trusted)
    store = repository_cache(repository.root)
    books = read_books(repository, change, request.policy_dir, store)
    sides = (
        _side(repository, change.merge_base, books, store),
        _side(repository, change.head, books, store),
    )
    store.save()
    paths = {path for file in change.files for path in (file.path, file.old_path)}
    indices = sides[0].index, sides[1].index
    found = impact(*indices, paths)
    contracts = books.contracts
    reached = affected_entry_points(change, contracts, found, indices)
    reach = scope(change, books.policy, found, reached)
    because = _because(repository, change, books, reached)
    removed = _removed_tests(change, indices[0])
    tests = (*found.tests, *removed) if _needs_tests(books, reach) else ()
    return Analysis(
        change=change,
        books=books,
        impact=found,
        scope=reach,
        reached=reached,
        because=because,
        plan=plan(change, books.policy, contracts, reached, because, tests, sides, books.anchors),
        sides=sides,
        trees=(
            Tree(Sources(Files(repository, change.merge_base)), sides[0].index.summaries),
            Tree(Sources(Files(repository, change.head)), sides[1].index.summaries),
        ),
    )


def _side(repository: Repository, commit: str, books: Books, store: Cache) -> Side:
    index = Index(summaries(repository, commit, store), books.policy.python)
    blobs = {path: oid for path, (_, oid) in repository.tree(commit).items()}
    return Side(index, blobs)


def _removed_tests(change: Change, base: Index) -> list[str]:
    """Test files that the change takes away: a lane says what they held."""
    gone = (file.path for file in change.files if file.status == "deleted")
    return [path for path in gone if path in base.test_files]


def _needs_tests(books: Books, reach: Scope) -> bool:
    """Whether something is touched that no enforced contract guards."""
    guarded = {op for op, contract in books.contracts.items() if contract.status == "enforced"}
    return not reach.ops or bool(set(reach.ops) - guarded) or bool(reach.unknown)


def _because(
    repository: Repository, change: Change, books: Books, reached: Mapping[str, list[str]]
) -> dict[str, list[Because]]:
    """The changed lines that make jobs necessary: an op's own ones, or else all of them.

    The entry for no op holds those of all sources.
    """

    @cache
    def lines(file: FileChange) -> list[Because]:
        old = repository.read(file.old_blob) if file.old_blob else b""
        new = repository.read(file.new_blob) if file.new_blob else b""
        return changed_lines(file.path, old, new)

    def places(files: list[FileChange]) -> list[Because]:
        return [place for file in files[:MAX_FILES] for place in lines(file)]

    roots = tuple(f"{root}/" for root in books.policy.source_roots)
    sources = [file for file in change.files if file.path.startswith(roots)]
    found = {"": places(sources or list(change.files))}
    for op in reached:
        contract, named = books.contracts[op], f"{FOLDER}/{op}.yaml"
        own = [
            file
            for file in change.files
            if named in (file.path, file.old_path)
            or owns(contract, file.path)
            or owns(contract, file.old_path)
        ]
        found[op] = places(own) or found[""]
    return found


def report(
    repository: Repository, analysis: Analysis, request: Request, evidence_dir: Path | None
) -> Report:
    """The report; evidence is read from `evidence_dir` or from where `run` puts it."""
    change, books, planned = analysis.change, analysis.books, analysis.plan
    folder = evidence_dir or evidence_folder(repository, planned)
    evidence: dict[str, Evidence | str | None] = {
        job.id: evidence_file.read(folder, job.id) for job in planned.jobs
    }
    rows = judge(planned, books.policy, books.contracts, evidence, books.anchors)
    result = _inspect(analysis, everything=request.everything)
    areas = [area.area for area in analysis.scope.areas]
    words = judge_words(books.policy.pull_request, areas, request.title, request.body)
    facts = _facts(repository, analysis, result, evidence)
    items = checklist(facts, rows, words)
    verdict, state, headline, next_step = conclude(items, rows, planned)
    return Report(
        schema="fla-bot/report@1",
        change=_summary(change),
        scope=analysis.scope,
        impact=ImpactSummary(
            tests=list(analysis.impact.tests),
            entry_points=[f"{item.path}:{item.name}" for item in analysis.impact.entry_points],
            contracts=sorted(analysis.reached),
        ),
        contracts=facts.contracts,
        findings=result.findings,
        suppressions=result.suppressions,
        plan=planned,
        rows=rows,
        checklist=items,
        verdict=verdict,
        state=state,
        headline=headline,
        next_step=next_step,
        policy_source=books.source,
    )


def _inspect(analysis: Analysis, *, everything: bool) -> Result:
    base, head = analysis.trees
    return inspect(
        Context(
            change=analysis.change,
            policy=analysis.books.policy,
            contracts=analysis.books.contracts,
            base=base,
            head=head,
            impact=analysis.impact,
            everything=everything,
        )
    )


def _facts(
    repository: Repository,
    analysis: Analysis,
    result: Result,
    evidence: Mapping[str, Evidence | str | None],
) -> Facts:
    books, policy = analysis.books, analysis.books.policy
    head = analysis.trees[1].sources
    uses = [
        use
        for job in analysis.plan.jobs
        if isinstance(found := evidence.get(job.id), Evidence)
        for use in found.coverage
        if found.head == analysis.plan.head
    ]
    return Facts(
        contracts=list(_states(analysis)),
        faults={op: "; ".join(map(str, e.faults)) for op, e in books.faults.items()},
        required_ops=_required_ops(analysis),
        edits=books.edits,
        new_ops=books.new_ops,
        removed=books.removed,
        policy_changed=_policy_changed(repository, analysis),
        sensitive=_sensitive(analysis),
        references=_edited_references(analysis),
        signatures={
            f"{op}.{name}": fault
            for op, names in analysis.reached.items()
            for name in names
            if books.contracts[op].status == "enforced"
            and (fault := signature_faults(_promised(books, op, name), head))
        },
        findings=result.findings,
        suppressions=result.suppressions,
        plan=analysis.plan,
        unproven={
            op: len(unproven(books.contracts[op], policy))
            for op in analysis.reached
            if books.contracts[op].status == "enforced"
        },
        unexercised={
            op: unexercised(books.contracts[op], names, analysis.plan.jobs, uses)
            for op, names in analysis.reached.items()
            if books.contracts[op].status == "enforced"
        },
        unanchored=list(_unanchored(analysis)),
        shed={op: _shed(books, op) for op in sorted({*analysis.reached, *books.edits})},
    )


def _unanchored(analysis: Analysis) -> Iterator[str]:
    """Required jobs, and how many of their cells have no anchor."""
    for job in analysis.plan.jobs:
        if not job.required or job.lane.partition(":")[0] not in CORRECTNESS:
            continue
        book = analysis.books.anchors.get(job.op)
        measured = book.lanes.get(job.lane) if book else None
        known = measured.cells if measured else {}
        missing = sum(cell not in known for cell in job.cells)
        if missing:
            part = f" ({missing} of {len(job.cells)} cells)" if missing < len(job.cells) else ""
            yield f"{job.op} on {job.lane}{part}"


def _shed(books: Books, op: str) -> tuple[int, list[str]]:
    """How many cells are frozen for required lanes, and those that the contract no longer has."""
    contract, anchors = books.contracts.get(op), books.anchors.get(op)
    if contract is None or anchors is None or contract.status != "enforced":
        return 0, []
    frozen, gone = 0, []
    for name, measured in sorted(anchors.lanes.items()):
        lane = books.policy.lanes.get(name)
        if lane is None or not lane.required:
            continue
        known = {cell.id for cell in lane_cells(contract, books.policy, name)}
        frozen += len(measured.cells)
        gone += [f"{cell} on {name}" for cell in sorted(set(measured.cells) - known)]
    return frozen, gone


def _summary(change: Change) -> ChangeSummary:
    return ChangeSummary(
        base=change.base,
        head=change.head,
        merge_base=change.merge_base,
        trusted=change.trusted,
        uncommitted=change.uncommitted,
        files=[file.path for file in change.files],
    )


def _states(analysis: Analysis) -> Iterator[ContractState]:
    """The contract of every op that the change touches, and those that cannot be read."""
    books = analysis.books
    for op in sorted({*analysis.scope.ops, *books.faults}):
        path = f"{FOLDER}/{op}.yaml"
        if op in books.faults:
            yield ContractState(op=op, path=path, status="invalid")
        elif op in books.contracts:
            yield ContractState(op=op, path=path, status=books.contracts[op].status)
        else:
            yield ContractState(op=op, path=path, status="missing")


def _required_ops(analysis: Analysis) -> list[str]:
    """Touched ops in areas whose policy asks for an enforced contract."""
    policy, found = analysis.books.policy, set()
    for file in analysis.change.files:
        for path in (file.path, file.old_path):
            area, captured = policy.place(path)
            if area and area.contract == "required" and captured.get("op"):
                found.add(captured["op"])
    return sorted(found)


def _policy_changed(repository: Repository, analysis: Analysis) -> str:
    """A digest of the policy edit, or nothing."""
    if not analysis.books.from_trusted:
        return ""
    sides = (analysis.change.trusted, analysis.change.head)
    before, after = (repository.read_path(side, POLICY_PATH) or b"" for side in sides)
    changed = {path for file in analysis.change.files for path in (file.path, file.old_path)}
    return digest([before.hex(), after.hex()]) if POLICY_PATH in changed else ""


def _promised(books: Books, op: str, name: str) -> EntryPoint:
    """An entry point as the change itself states it; where that is less, a person must accept."""
    proposed = books.proposed.get(op)
    point = proposed.entry_points.get(name) if proposed else None
    return point or books.contracts[op].entry_points[name]


def _sensitive(analysis: Analysis) -> dict[str, str]:
    """Changed paths of areas that judge or build, with a digest of what they become."""
    policy = analysis.books.policy
    found = {}
    for file in analysis.change.files:
        for path in (file.path, file.old_path):
            area = policy.place(path)[0]
            if area and area.guarded:
                found[path] = digest([path, file.status, file.new_blob, file.new_mode])
    return found


def _edited_references(analysis: Analysis) -> dict[str, str]:
    """References whose code the change reaches, by entry point, with a digest of their sources."""
    base, head = analysis.sides
    touched = {(item.path, item.name) for item in analysis.impact.definitions}
    touched |= {(item.path, item.name) for item in analysis.impact.changed}
    found = {}
    for op, contract in analysis.books.contracts.items():
        if op in analysis.books.new_ops:
            continue
        for name, point in contract.entry_points.items():
            module, _, function = (point.reference or "").partition(":")
            path = base.index.modules.get(module)
            origin = base.index.origin(path, function) if path else None
            if origin in touched and path is not None:
                found[f"{op}.{name}"] = digest([point.reference, head.closure([path])])
    return found


def evidence_folder(repository: Repository, planned: Plan) -> Path:
    """Where `run` writes and `check` reads."""
    return repository.root / ".fla-bot" / "evidence" / planned.hash
