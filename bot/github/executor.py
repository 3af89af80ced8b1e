"""One run of one lane: may it start, what does it run, and what came of it.

`gate` and the first step of `lane` ask the same questions; `publish` asks those that still matter
and judges the evidence of its own run anew, from its figures.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bot import anchors as anchors_file
from bot import contract as contract_file
from bot import evidence as evidence_file
from bot.anchors import Anchors, strictest
from bot.contract import Contract
from bot.errors import UserError
from bot.evidence import Evidence
from bot.github.case import Case, LaneResult, RowId
from bot.github.connection import GitHubError, NotFound
from bot.github.ledger import View
from bot.github.operate import EXECUTOR, traffic
from bot.github.reader import Hint, Reader
from bot.github.reconcile import Reconciler
from bot.github.records import Branch
from bot.github.situation import GROUP, Entry
from bot.judge import judge
from bot.model import Row, Verdict, digest
from bot.text import redact
from bot.trusted import FOLDER

__all__ = ["Ticket", "check", "collect", "outputs"]

HOSTED = ["ubuntu-24.04"]
MAX_ROWS = 400  # of one lane in the ledger; the rest is counted
ORDER = (Verdict.FAIL, Verdict.LOST, Verdict.NOT_COMPARABLE, Verdict.UNREACHED, Verdict.NOT_PROVEN)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A row that may run: the plan in the ledger and the row itself."""

    row: RowId
    case: Case
    entry: Entry


def _ticket(row: RowId, view: View) -> Ticket:
    """The row and its plan in the ledger; a UserError if it does not have them."""
    standing = view.standings.get(row.number)
    case = standing.case if standing else None
    if case is None or case.head != row.head:
        raise UserError("the ledger has no plan for this head")
    if case.report.plan.compute_hash() != row.plan or case.plan != row.plan:
        raise UserError("the plan in the ledger is another one")
    if case.faults():
        raise UserError(*case.faults())
    entry = next((item for item in view.entries if item.id == row), None)
    if entry is None:
        raise UserError("the ledger has no such row")
    if row.lane not in case.planned_lanes():
        raise UserError(f"the plan has no lane {row.lane}")
    return Ticket(row, case, entry)


def check(reconciler: Reconciler, text: str, run: int) -> Ticket:
    """Whether this run is the one that was approved; a UserError says why not."""
    row = RowId.parse(text)
    reader = reconciler.look(row.number, _group(row))
    faults = _run_faults(reconciler, reader, row, run)
    if reader.pull.head.sha != row.head:
        raise UserError(*faults, f"superseded: the head is {reader.pull.head.sha[:12]} now")
    if reader.pull.state != "open":
        faults.append("the pull request is closed")
    found = _ticket(row, reader.view)
    if found.entry.result is not None:
        faults.append("the row is closed already")
    if found.case.code != reconciler.code:
        faults.append("another version of the bot made this plan")
    if reconciler.mode in ("no-dispatch", "off"):
        raise UserError(*faults, f"FLA_BOT is {reconciler.mode}")
    decision = reader.decide()
    if not decision.approved:
        faults.append(f"not approved: {decision.title}")
    if faults:
        raise UserError(*faults)
    return found


def _run_faults(reconciler: Reconciler, reader: Reader, row: RowId, run: int) -> list[str]:
    """What is wrong with the run itself: who started it, how, and how often."""
    us, branch = reconciler.client.identity.login, reader.branch()
    found = next((item for item in reader.all_runs() if item.id == run), None)
    if found is None:
        found = reconciler.client.run(run)
    actors = {account.login for account in (found.actor, found.triggering_actor) if account}
    faults = []
    if actors != {us}:
        faults.append(f"dispatched by {', '.join(sorted(actors)) or 'nobody'}, not by {us}")
    if found.run_attempt != 1:
        faults.append("a rerun is always a new dispatch: this is another attempt of an old run")
    if found.event != "workflow_dispatch" or found.head_branch != branch:
        faults.append(f"started by {found.event} on {found.head_branch}")
    if found.path.partition("@")[0] != f".github/workflows/{EXECUTOR}":
        faults.append(f"the workflow is {found.path}")
    twins = [item.id for item in traffic(reader.all_runs(), us).runs if item.row == row]
    if twins and min(twins) != run:
        faults.append("an older run has this row")
    if RowId.find(found.display_title) != row:
        faults.append("the run was started for another row")
    return faults


def _group(row: RowId) -> Branch | None:
    """The merge group that a row is about; its branch may be gone."""
    return Branch(ref="", sha=row.head, repo=None) if row.nonce == GROUP else None


def collect(reconciler: Reconciler, text: str, run: int, folder: Path, gate: str) -> None:
    """Judge what a run left, close its row, and look at the pull request again."""
    row = RowId.parse(text)
    group = _group(row)
    reader = reconciler.look(row.number, group)
    if faults := _run_faults(reconciler, reader, row, run):
        raise UserError(*faults)
    if reader.pull.head.sha != row.head:
        _end(reconciler, row, run)
        reconciler.reconcile(row.number, reader=reader)
        return
    found, result = _ticket(row, reader.view), None
    if found.entry.result is None:
        result = _result(reconciler, found, run, folder, gate)
    reconciler.reconcile(row.number, Hint(result=result), group=group, reader=reader)


def _end(reconciler: Reconciler, row: RowId, run: int) -> None:
    """Close a row whose head nobody asks for any more, if it is still open."""
    view = reconciler.ledger.read(row.head, row.number)
    entry = next((item for item in view.entries if item.id == row), None)
    if entry is not None and entry.result is None:
        note = "superseded: the head has moved"
        word = Verdict.SUPERSEDED
        reconciler.end(
            view,
            LaneResult(row=str(row), run=run, verdict=word, note=note, keys={}, rows=[]),
        )


def _result(reconciler: Reconciler, found: Ticket, run: int, folder: Path, gate: str) -> LaneResult:
    lost = LaneResult(row=str(found.row), run=run, verdict=Verdict.LOST, note="", keys={}, rows=[])
    if gate and gate != "success":
        return lost.model_copy(update={"note": f"infra: the gate ended as {gate}; see its log"})
    try:
        return judge_lane(reconciler, found, run, folder)
    except (GitHubError, UserError) as error:
        note = f"infra: the evidence could not be judged: {redact(str(error))[:200]}"
        return lost.model_copy(update={"note": note})


def outputs(found: Ticket) -> dict[str, str]:
    """What the workflow needs of the ledgered plan."""
    lane = found.case.lanes[found.row.lane]
    return {
        "bot": found.case.bot,
        "head": found.row.head,
        "pr": str(found.row.number),
        "lane": found.row.lane,
        "image": lane.image,
        "runs_on": json.dumps(lane.runs_on or HOSTED),
        # The lane's own limit comes first, so that it can still write its evidence.
        "timeout_minutes": str(found.case.minutes(found.row.lane) + 10),
    }


def judge_lane(reconciler: Reconciler, found: Ticket, run: int, folder: Path) -> LaneResult:
    """The verdict over a lane from the evidence in a folder, which is hostile."""
    case, row = found.case, found.row
    jobs = [job for job in case.report.plan.jobs if job.lane == row.lane]
    plan = case.report.plan.model_copy(update={"jobs": jobs})
    evidence: dict[str, Evidence | str | None] = {
        job.id: evidence_file.read(folder, job.id) for job in jobs
    }
    contracts = {job.op: _contract(reconciler, case, job.op) for job in jobs if job.op != "tests"}
    anchors = {op: _anchors(reconciler, case, op) for op in contracts if op in case.anchors}
    rows = [_cleaned(item) for item in judge(plan, case.policy, contracts, evidence, anchors)]
    verdict = next((word for word in ORDER if any(r.verdict is word for r in rows)), Verdict.PASS)
    bad = [item for item in rows if item.verdict is not Verdict.PASS]
    note = f"{len(bad)} of {len(rows)} rows" if bad else f"{len(rows)} rows"
    return LaneResult(
        row=str(row),
        run=run,
        verdict=verdict,
        note=f"{note}; {bad[0].reason}"[:300] if bad else note,
        keys={job.id: job.key for job in jobs},
        rows=_fewer(rows),
    )


def _contract(reconciler: Reconciler, case: Case, op: str) -> Contract:
    """The contract in force, read as data where the plan says that it stands."""
    origin, path = case.contracts[op], f"{FOLDER}/{op}.yaml"
    try:
        found = contract_file.load(reconciler.client.content(path, origin.commit), path)
    except NotFound as error:
        raise GitHubError(f"{path} is not in {origin.commit[:12]}") from error
    if found.fingerprint != origin.fingerprint:
        raise GitHubError(f"{path} in {origin.commit[:12]} is not the contract of the plan")
    return found


def _anchors(reconciler: Reconciler, case: Case, op: str) -> Anchors:
    """The anchors in force: the trusted ones, with what the change adds or lowers."""
    path, change = f"{anchors_file.FOLDER}/{op}.json", case.report.change
    found: Anchors | None = None
    for commit in (change.trusted, change.head):
        with suppress(NotFound):
            text = reconciler.client.content(path, commit)
            found = strictest(found, anchors_file.load(text, path, op))
        if found is not None and digest(found) == case.anchors[op]:
            return found
    raise GitHubError(f"{path} is not what the plan was made with")


def _cleaned(row: Row) -> Row:
    """A row without what a machine must not tell; no evidence is a lost job by now."""
    verdict, reason = row.verdict, redact(row.reason)[:400]
    if verdict is Verdict.WAITING:
        verdict, reason = Verdict.LOST, "infra: the lane left no evidence; type /fla-bot rerun"
    elif verdict is Verdict.LOST and "/fla-bot rerun" not in reason:
        reason = f"infra: {reason}; type /fla-bot rerun"
    return row.model_copy(update={"verdict": verdict, "reason": reason})


def _fewer(rows: list[Row]) -> list[Row]:
    """All rows that are not green, and as many others as there is room for."""
    ranked = sorted(rows, key=lambda row: row.verdict is Verdict.PASS)
    if len(rows) <= MAX_ROWS:
        return rows
    # A job of which no row is left must not vanish.
    first = {row.job: row for row in reversed(ranked)}
    kept = ranked[:MAX_ROWS]
    return kept + [row for job, row in first.items() if all(row.job != k.job for k in kept)]
