"""`fla-bot check`: from a change to its report, with no kernel run."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bot import contract as contract_file
from bot import evidence as evidence_file
from bot import policy as policy_file
from bot.change import Repository, changed_lines
from bot.contract import Contract, Edit
from bot.errors import Fault, UserError
from bot.evidence import Evidence
from bot.judge import judge
from bot.model import Because, Change, ChangeSummary, ContractState, Plan, Report, Scope, digest
from bot.plan import plan, unproven
from bot.policy import Policy
from bot.report.checklist import Facts, checklist, conclude
from bot.rules import findings
from bot.scope import owns, scope

__all__ = ["Analysis", "Request", "analyse", "report"]

POLICY_NAME = "policy.yaml"
DEFAULT_CONTRACTS = "contracts"


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line or a webhook asks for."""

    base: str | None = None
    head: str | None = None
    trusted: str | None = None
    policy_dir: Path | None = None


@dataclass(slots=True)
class Analysis:
    """All that is known before any evidence.

    `contracts` are the trusted ones, and the proposed ones of ops that are new.
    """

    change: Change
    policy: Policy
    policy_source: str
    contracts: dict[str, Contract]
    proposed_faults: dict[str, UserError]
    edits: dict[str, list[Edit]]
    new_ops: list[str]
    scope: Scope
    because: dict[str, list[Because]]
    plan: Plan
    states: list[ContractState] = field(default_factory=list)


def analyse(repository: Repository, request: Request) -> Analysis:
    """Change, scope, contracts and plan."""
    change = repository.change(request.base, request.head, request.trusted)
    policy, source, texts = _trusted(repository, change, request.policy_dir)
    contracts = _load_all(texts)
    proposed, faults = _proposed(repository, change, policy)
    new_ops = sorted(set(proposed) - set(contracts))
    edits = {
        op: contract_file.edits(contracts[op], proposed[op])
        for op in sorted(set(contracts) & set(proposed))
        if contracts[op] != proposed[op]
    }
    effective = {**{op: proposed[op] for op in new_ops}, **contracts}
    reach = scope(change, policy, effective)
    because = {
        op: _because(repository, change, effective[op], policy)
        for op in reach.ops
        if op in effective
    }
    analysis = Analysis(
        change=change,
        policy=policy,
        policy_source=source,
        contracts=effective,
        proposed_faults=faults,
        edits=edits,
        new_ops=new_ops,
        scope=reach,
        because=because,
        plan=plan(change, policy, effective, because),
    )
    analysis.states = list(_states(analysis))
    return analysis


def _trusted(
    repository: Repository, change: Change, policy_dir: Path | None
) -> tuple[Policy, str, dict[str, tuple[str, bytes]]]:
    """Policy and contract texts of the trusted commit, or of a folder where it has none."""
    path = f"{DEFAULT_CONTRACTS}/{POLICY_NAME}"
    text = repository.read_path(change.trusted, path)
    if text is not None:
        policy = policy_file.load(text, path)
        return (
            policy,
            f"trusted {change.trusted[:12]}",
            _contract_texts(repository, change.trusted, policy),
        )
    folder = policy_dir or repository.root / DEFAULT_CONTRACTS
    if not (folder / POLICY_NAME).is_file():
        message = (
            f"no policy: {path} is neither in {change.trusted[:12]} nor in {folder}; "
            "name a folder with --policy"
        )
        raise UserError(message)
    policy = policy_file.load((folder / POLICY_NAME).read_bytes(), str(folder / POLICY_NAME))
    files = sorted(file for file in folder.glob("*.yaml") if file.name != POLICY_NAME)
    texts = {file.stem: (str(file), file.read_bytes()) for file in files}
    return policy, f"folder {folder.name}", texts


def _contract_texts(
    repository: Repository, commit: str, policy: Policy
) -> dict[str, tuple[str, bytes]]:
    texts = {}
    for path in repository.tree(commit):
        folder, _, name = path.rpartition("/")
        text = repository.read_path(commit, path) if folder == policy.contracts else None
        if text is not None and name.endswith(".yaml") and name != POLICY_NAME:
            texts[name.removesuffix(".yaml")] = (path, text)
    return texts


def _load_all(texts: Mapping[str, tuple[str, bytes]]) -> dict[str, Contract]:
    contracts, faults = {}, []
    for op, (path, text) in texts.items():
        try:
            contracts[op] = _load(op, text, path)
        except UserError as error:
            faults += error.faults
    if faults:
        raise UserError(faults=faults)
    return contracts


def _load(op: str, text: bytes, path: str) -> Contract:
    contract = contract_file.load(text, path)
    if contract.op != op:
        message = f"`op` is `{contract.op}`; the file's name says `{op}`"
        raise UserError(faults=[Fault(path, 0, 0, message)])
    return contract


def _proposed(
    repository: Repository, change: Change, policy: Policy
) -> tuple[dict[str, Contract], dict[str, UserError]]:
    """The contracts of head, and what is wrong with those that cannot be read."""
    contracts, faults = {}, {}
    for op, (path, text) in _contract_texts(repository, change.head, policy).items():
        try:
            contracts[op] = _load(op, text, path)
        except UserError as error:
            faults[op] = error
    return contracts, faults


def _because(
    repository: Repository, change: Change, contract: Contract, policy: Policy
) -> list[Because]:
    """The changed lines that make an op's jobs necessary."""
    places = []
    for file in change.files:
        named = f"{policy.contracts}/{contract.op}.yaml"
        if owns(contract, file.path) or owns(contract, file.old_path) or file.path == named:
            old = repository.read(file.old_blob) if file.old_blob else b""
            new = repository.read(file.new_blob) if file.new_blob else b""
            places += changed_lines(file.path, old, new)
    return places


def _states(analysis: Analysis) -> Iterator[ContractState]:
    folder = analysis.policy.contracts
    for op in analysis.scope.ops:
        path = f"{folder}/{op}.yaml"
        if op in analysis.proposed_faults:
            yield ContractState(op=op, path=path, status="invalid")
        elif op in analysis.contracts:
            yield ContractState(op=op, path=path, status=analysis.contracts[op].status)
        else:
            yield ContractState(op=op, path=path, status="missing")
    for op in sorted(set(analysis.proposed_faults) - set(analysis.scope.ops)):
        yield ContractState(op=op, path=f"{folder}/{op}.yaml", status="invalid")


def report(repository: Repository, analysis: Analysis, evidence_dir: Path | None) -> Report:
    """The report; evidence is read from `evidence_dir` or from where `run` puts it."""
    change, planned = analysis.change, analysis.plan
    folder = evidence_dir or evidence_folder(repository, planned)
    evidence: dict[str, Evidence | str | None] = {
        job.id: evidence_file.read(folder, job.id) for job in planned.jobs
    }
    rows = judge(planned, analysis.policy, analysis.contracts, evidence)
    hits = findings(
        change,
        _python_files(repository, change.merge_base),
        _python_files(repository, change.head),
    )
    facts = Facts(
        scope=analysis.scope,
        contracts=analysis.states,
        faults={op: str(error) for op, error in analysis.proposed_faults.items()},
        required_ops=_required_ops(analysis),
        edits=analysis.edits,
        new_ops=analysis.new_ops,
        removed=_removed_contracts(repository, analysis),
        policy_changed=_policy_changed(repository, analysis),
        findings=hits,
        plan=planned,
        rows=rows,
        unproven={
            op: len(unproven(analysis.contracts[op], analysis.policy)) for op in analysis.because
        },
    )
    items = checklist(facts)
    verdict, state, headline, next_step = conclude(items, rows)
    return Report(
        schema="fla-bot/report@1",
        change=ChangeSummary(
            base=change.base,
            head=change.head,
            merge_base=change.merge_base,
            trusted=change.trusted,
            uncommitted=change.uncommitted,
            files=[file.path.encode(errors="replace").decode() for file in change.files],
        ),
        scope=analysis.scope,
        contracts=analysis.states,
        findings=hits,
        plan=planned,
        rows=rows,
        checklist=items,
        verdict=verdict,
        state=state,
        headline=headline,
        next_step=next_step,
        policy_source=analysis.policy_source,
    )


def evidence_folder(repository: Repository, planned: Plan) -> Path:
    """Where `run` writes and `check` reads."""
    return repository.root / ".fla-bot" / "evidence" / planned.hash


class _Files(Mapping[str, bytes | None]):
    """The Python files of a commit, read when a rule asks for one."""

    def __init__(self, repository: Repository, commit: str) -> None:
        self.repository, self.commit = repository, commit

    def __getitem__(self, path: str) -> bytes | None:
        return self.repository.read_path(self.commit, path)

    def __iter__(self) -> Iterator[str]:
        return (path for path in self.repository.tree(self.commit) if path.endswith(".py"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _python_files(repository: Repository, commit: str) -> Mapping[str, bytes | None]:
    return _Files(repository, commit)


def _required_ops(analysis: Analysis) -> list[str]:
    """Ops in areas whose policy asks for an enforced contract."""
    required = {area.area for area in analysis.policy.areas if area.contract == "required"}
    paths = [p for area in analysis.scope.areas if area.area in required for p in area.paths]
    return sorted({op for path in paths if (op := analysis.policy.place(path)[1])})


def _removed_contracts(repository: Repository, analysis: Analysis) -> list[str]:
    kept = set(_contract_texts(repository, analysis.change.head, analysis.policy))
    return sorted(set(analysis.contracts) - kept) if analysis.policy_source[:7] == "trusted" else []


def _policy_changed(repository: Repository, analysis: Analysis) -> str:
    """A digest of the policy edit, or nothing."""
    path = f"{analysis.policy.contracts}/{POLICY_NAME}"
    if path not in {name for file in analysis.change.files for name in (file.path, file.old_path)}:
        return ""
    sides = (analysis.change.trusted, analysis.change.head)
    return digest([(repository.read_path(side, path) or b"").hex() for side in sides])
