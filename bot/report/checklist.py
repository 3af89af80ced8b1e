"""The checklist and the conclusion: computed from facts, ticked by nothing else."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bot.amendment import Edit
from bot.model import (
    ChecklistItem,
    CheckState,
    ContractState,
    Finding,
    ItemState,
    Job,
    Plan,
    Row,
    Severity,
    Suppression,
    Verdict,
    digest,
)
from bot.report.contract import sentences

__all__ = ["Facts", "checklist", "conclude", "job_item", "rules_item", "suppressions_code"]


MANY = 3  # drafts that are named one by one
_GREEN = (Verdict.PASS, Verdict.WAIVED)
_OPEN = {Verdict.NOT_PROVEN: 1, Verdict.WAITING: 2}  # everything else that is not green is red


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known without evidence and decides checklist rows.

    `signatures`: what is wrong with an entry point's signature. `unproven`: number of cells that
    no required lane proves, by op; `unexercised`: those that neither a lane of the plan nor a
    recorded test calls at all. What only a person may let through has digests: `new_ops`,
    `removed` contracts, `sensitive` paths, edited `references`, `policy_changed`. `unanchored`:
    required jobs with cells that have no anchor; `shed`: by op, how many cells are frozen for
    required lanes, and those that are cells no longer, with their lane.
    """

    contracts: list[ContractState]
    faults: Mapping[str, str]
    required_ops: list[str]
    edits: Mapping[str, list[Edit]]
    new_ops: Mapping[str, str]
    removed: Mapping[str, str]
    policy_changed: str
    sensitive: Mapping[str, str]
    references: Mapping[str, str]
    signatures: Mapping[str, str]
    findings: list[Finding]
    suppressions: list[Suppression]
    plan: Plan
    unproven: Mapping[str, int]
    unexercised: Mapping[str, list[str]]
    unanchored: Sequence[str]
    shed: Mapping[str, tuple[int, Sequence[str]]]


def checklist(
    facts: Facts, rows: Sequence[Row], words: Iterable[tuple[str, ItemState, str]]
) -> list[ChecklistItem]:
    """All rows, in the order in which a person would mend them."""
    return [
        *_contract_items(facts),
        *_weakened_items(facts),
        *_signature_items(facts),
        rules_item(facts.findings),
        *_suppression_items(facts),
        *(_item(name, state, text) for name, state, text in words),
        *(job_item(job, rows) for job in facts.plan.jobs),
        *_unproven_items(facts),
        *_unanchored_items(facts),
        *_unexercised_items(facts),
    ]


def _item(name: str, state: ItemState, text: str, evidence: str = "") -> ChecklistItem:
    return ChecklistItem(id=name, state=state, text=text, evidence=evidence)


def _human(name: str, text: str, code: str, evidence: str = "") -> ChecklistItem:
    """What only a person may let through; the digest is what they accept."""
    words = f"{text}; a person must accept {code}"
    return ChecklistItem(id=name, state=ItemState.HUMAN, text=words, evidence=evidence, accept=code)


def _contract_items(facts: Facts) -> Iterator[ChecklistItem]:
    if not facts.contracts:
        yield _item("contracts", ItemState.NOT_APPLICABLE, "no op with a contract is touched")
    quiet = [c for c in facts.contracts if c.status == "draft" and c.op not in facts.required_ops]
    if len(quiet) > MANY:
        ops = ", ".join(contract.op for contract in quiet)
        yield _item("drafts", ItemState.NOT_APPLICABLE, f"{len(quiet)} contracts are drafts", ops)
    for contract in facts.contracts:
        if contract in quiet and len(quiet) > MANY:
            continue
        name, required = f"contract:{contract.op}", contract.op in facts.required_ops
        if contract.status == "enforced":
            yield _item(
                name, ItemState.DONE, f"{contract.op} has an enforced contract", contract.path
            )
        elif contract.status == "invalid":
            text = f"{contract.path} cannot be read"
            yield _item(name, ItemState.FAILED, text, facts.faults[contract.op])
        elif contract.status == "missing":
            state = ItemState.FAILED if required else ItemState.NOT_APPLICABLE
            yield _item(name, state, f"{contract.op} has no contract; add {contract.path}")
        else:
            # A draft never ticks and never blocks, but where one must be enforced it is missing.
            state = ItemState.FAILED if required else ItemState.NOT_APPLICABLE
            yield _item(name, state, f"the contract of {contract.op} is a draft", contract.path)


def _weakened_items(facts: Facts) -> Iterator[ChecklistItem]:
    """Edits of contracts, references, the policy, and of what judges or builds."""
    for op, edits in facts.edits.items():
        name, weaker = f"contract-change:{op}", [edit for edit in edits if edit.kind == "weaker"]
        said = [text for _, text in sentences(weaker)]
        shown = "; ".join(said[:5]) + (f"; and {len(said) - 5} more" if len(said) > 5 else "")
        code = digest([edit.model_dump() for edit in edits])
        if weaker:
            yield _human(name, f"the contract of {op} is weakened", code, shown)
        else:
            text = f"the contract of {op} promises more ({len(edits)} edits)"
            yield _item(name, ItemState.DONE, text)
    for op, code in facts.new_ops.items():
        yield _human(f"new-op:{op}", f"{op} is a new op", code)
    for op, code in facts.removed.items():
        yield _human(f"removed:{op}", f"the contract of {op} is removed", code)
    for name, code in facts.references.items():
        yield _human(f"reference:{name}", f"the reference of {name} is edited", code)
    if facts.sensitive:
        code, paths = digest(sorted(facts.sensitive.items())), sorted(facts.sensitive)[:10]
        yield _human("sensitive", "what judges or builds is edited", code, ", ".join(paths))
    if facts.policy_changed:
        yield _human("policy-change", "the policy is edited", facts.policy_changed)


def _signature_items(facts: Facts) -> Iterator[ChecklistItem]:
    for name, fault in facts.signatures.items():
        text = f"{name} no longer has the signature that its contract promises"
        yield _item(f"signature:{name}", ItemState.FAILED, text, fault)


def _suppression_items(facts: Facts) -> Iterator[ChecklistItem]:
    """Each silenced rule needs a person; the digest is what they accept."""
    if not facts.suppressions:
        return
    code = suppressions_code(facts.suppressions)
    shown = "; ".join(
        f"{s.path}:{s.line} {', '.join(s.codes)}: {s.reason}" for s in facts.suppressions[:5]
    )
    count = len(facts.suppressions)
    yield _human("suppressions", f"{count} new suppression{'s' * (count > 1)}", code, shown)


def suppressions_code(suppressions: Sequence[Suppression]) -> str:
    """What a person accepts; not their lines, which what stands above them moves."""
    return digest([suppression.model_dump(exclude={"line"}) for suppression in suppressions])


def rules_item(
    findings: Sequence[Finding], hits: Mapping[str, tuple[int, int]] | None = None
) -> ChecklistItem:
    """What the rules found. `hits`: errors and warnings by rule, if `findings` are only some."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    count, warnings = len(errors), len(findings) - len(errors)
    if hits:
        count, warnings = (sum(counts) for counts in zip(*hits.values(), strict=True))
    also = f", {warnings} warning{'s' * (warnings > 1)}" if warnings else ""
    if errors:
        first = errors[0]
        text = f"{count} finding{'s' * (count > 1)}{also}"
        return _item("rules", ItemState.FAILED, text, f"first: {first.path}:{first.line}")
    return _item("rules", ItemState.DONE, f"the change adds no error{also}")


def job_item(job: Job, all_rows: Sequence[Row]) -> ChecklistItem:
    """What became of a job."""
    rows = [row for row in all_rows if row.job == job.id]
    name, cells = f"job:{job.id}", len(job.cells)
    what = f"test files on {job.lane}" if job.op == "tests" else f"cells of {job.op} on {job.lane}"
    bad = [row for row in rows if row.verdict is Verdict.FAIL]
    open_ = [row for row in rows if row.verdict not in (Verdict.FAIL, *_GREEN)]
    optional = "" if job.required else " (not required)"
    if bad:
        # What fails, and how, stands in the rows.
        state, evidence = ItemState.FAILED, ""
        text = _counted(bad, cells, what, ("fail", "fails"))
    elif open_:
        # A lost job has no figures: it blocks like a failure until it is run again. What is not
        # proven may still be: a person decides whether more samples are worth a machine.
        worst = min(open_, key=lambda row: _OPEN.get(row.verdict, 0))
        state = (ItemState.FAILED, ItemState.HUMAN, ItemState.WAITING)[_OPEN.get(worst.verdict, 0)]
        text, evidence = f"{cells} {what}", worst.reason
        if state is not ItemState.WAITING:
            words = (f"are {worst.verdict}", f"is {worst.verdict}")
            text, evidence = _counted(open_, cells, what, words), ""
    else:
        waived = any(row.verdict is Verdict.WAIVED for row in rows)
        state, text = ItemState.DONE, f"{cells} {what} {'are waived' if waived else 'pass'}"
        evidence = rows[0].reason if rows else ""
    if not job.required and state is not ItemState.DONE:
        state = ItemState.NOT_APPLICABLE
    return _item(name, state, text + optional, evidence)


def _counted(rows: Sequence[Row], cells: int, what: str, words: tuple[str, str]) -> str:
    """Of how many cells some rows tell. A row without a cell is about the job as a whole."""
    many, one = words
    named, whole = len({row.cell for row in rows if row.cell}), sum(not row.cell for row in rows)
    if not named and any(row.verdict is Verdict.LOST for row in rows):
        return f"{cells} {what} {many}"
    checks = f"{whole} check{'s' * (whole > 1)} of all"
    if not named:
        return f"{checks} {cells} {what} {one if whole == 1 else many}"
    return f"{named} of {cells} {what} {many}" + (f", and {checks} of them" if whole else "")


def _unproven_items(facts: Facts) -> Iterator[ChecklistItem]:
    for op, count in facts.unproven.items():
        if count:
            text = f"{count} cells of {op} are declared only: no required lane proves them"
            yield _item(f"declared:{op}", ItemState.NOT_APPLICABLE, text)


def _unanchored_items(facts: Facts) -> Iterator[ChecklistItem]:
    if facts.unanchored:
        text = f"no anchors for {', '.join(facts.unanchored)}: small losses may add up unseen"
        yield _item("anchors", ItemState.NOT_APPLICABLE, text)
    for op, (frozen, gone) in facts.shed.items():
        if gone:
            shown = ", ".join(gone[:3]) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
            text = f"{len(gone)} of {frozen} frozen cells are gone"
            code = digest(["anchors", op, frozen, *gone])
            yield _human(f"anchors:{op}", text, code, shown)


def _unexercised_items(facts: Facts) -> Iterator[ChecklistItem]:
    """Cells that are promised and called by nothing: neither proved nor refuted, for ever."""
    for op, cells in facts.unexercised.items():
        if cells:
            text = f"nothing exercises {len(cells)} cells of {op}: no lane of the plan, no test"
            yield _item(f"unexercised:{op}", ItemState.FAILED, text, cells[0])


def _mend(item: ChecklistItem, rows: Sequence[Row]) -> str:
    """What to do about a row that failed, with one command where there is one."""
    own = [row for row in rows if f"job:{row.job}" == item.id and row.verdict not in _GREEN]
    bad = next((row for row in own if row.verdict is Verdict.FAIL), None)
    if bad is not None:
        command = bad.reason.partition("; reproduce: ")[2]
        return "push a fix" + (f"; the first one again: {command}" if command else "")
    if own:
        return min(own, key=lambda row: _OPEN.get(row.verdict, 0)).reason
    if item.id == "rules":
        return f"push a fix; {item.evidence}"
    return item.evidence or item.text


def conclude(
    items: list[ChecklistItem], rows: list[Row], plan: Plan
) -> tuple[Verdict, CheckState, str, str]:
    """Verdict, state of the check, headline and next step."""
    by_state = {state: [item for item in items if item.state is state] for state in ItemState}
    failed, human = by_state[ItemState.FAILED], by_state[ItemState.HUMAN]
    waiting = by_state[ItemState.WAITING] + by_state[ItemState.TODO]
    if failed:
        lost = all(item.id.startswith("job:") for item in failed) and not any(
            row.verdict is Verdict.FAIL for row in rows
        )
        verdict = Verdict.LOST if lost else Verdict.FAIL
        step = _mend(failed[0], rows)
        return verdict, CheckState.FAILURE, f"Not ready: {failed[0].text}", step
    if human:
        return Verdict.WAITING, CheckState.ACTION_REQUIRED, "Needs a person", human[0].text
    if waiting:
        step = f"run `fla-bot run` ({waiting[0].text})"
        return Verdict.WAITING, CheckState.IN_PROGRESS, "Waiting for evidence", step
    if plan.jobs and not any(job.required for job in plan.jobs):
        # Green, since nothing more is asked for; but nothing was proved, and we do not say so.
        lanes = sorted({job.lane for job in plan.jobs if not job.lane.startswith("tests:")})
        step = "run the tests that reach it"
        if lanes:
            step += f", or `fla-bot run --lane {lanes[0]}`"
        return Verdict.PASS, CheckState.SUCCESS, "No required lane guards this change", step
    return Verdict.PASS, CheckState.SUCCESS, "Ready", "nothing to do"
