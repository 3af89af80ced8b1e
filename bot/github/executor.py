"""One run of one lane: may it start, what does it run, and what came of it.

`gate` and the first step of `lane` ask the same questions; `publish` asks those that still matter
and judges the evidence of its own run anew, from its figures.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bot import anchors as anchors_file
from bot import contract as contract_file
from bot import evidence as evidence_file
from bot.anchors import Anchors, strictest
from bot.contract import Contract
from bot.errors import UserError
from bot.evidence import Evidence, RowEvidence
from bot.github.actor import Hint
from bot.github.case import Case, LaneResult, RowId, pack
from bot.github.connection import GitHubError, NotFound
from bot.github.ledger import View
from bot.github.operate import EXECUTOR, traffic
from bot.github.reader import Reader
from bot.github.reconcile import Reconciler
from bot.github.records import Branch
from bot.github.rows import UNUSED, only_fails
from bot.github.situation import GROUP, Entry
from bot.judge import judge
from bot.judge.benchmark import ratios
from bot.model import Job, Row, Verdict, digest
from bot.text import redact
from bot.trusted import FOLDER

__all__ = ["Outdated", "Superseded", "Ticket", "check", "collect", "outputs"]

HOSTED = ["ubuntu-24.04"]
AROUND_MIN = 30  # two locks of a host, which the wrapper waits for 10 minutes each, and set-up
SCHEMA = "fla-bot/evidence@2"
MAX_RESULT = 15_000  # characters, packed; a standing holds results of other heads, too
ORDER = (Verdict.FAIL, Verdict.LOST, Verdict.NOT_COMPARABLE, Verdict.UNREACHED, Verdict.NOT_PROVEN)


class Superseded(UserError):
    """What a run was started for is not wanted any more; nothing has failed."""


class Outdated(Superseded):
    """The plan is of another version of the bot than looks at it."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A row that may run: the plan in the ledger, the row itself, and all runs of the head.

    `earlier`: what is kept of other heads, and of other pull requests on this one.
    """

    row: RowId
    case: Case
    entry: Entry
    runs: Sequence[Entry]
    earlier: Sequence[LaneResult] = ()


def _ticket(row: RowId, view: View) -> Ticket:
    """The row and its plan in the ledger; a UserError if it does not have them."""
    standing = view.standings.get(row.number)
    case = standing.case if standing else None
    if case is None or case.head != row.head:
        raise Superseded("the ledger has no plan for this head")
    if case.plan != row.plan:
        raise Superseded("the plan in the ledger is another one")
    return _known(row, case, view)


def _known(row: RowId, case: Case, view: View) -> Ticket:
    """The row in the ledger, by its plan; a UserError if they do not fit together."""
    if case.report.plan.compute_hash() != row.plan:
        raise UserError("the plan in the ledger is not what its hash says")
    if case.faults():
        raise UserError(*case.faults())
    entry = next((item for item in view.entries if item.id == row), None)
    if entry is None:
        raise UserError("the ledger has no such row")
    if row.lane not in case.planned_lanes():
        raise UserError(f"the plan has no lane {row.lane}")
    standing = view.standings.get(row.number)
    earlier = [*(standing.reused if standing else ()), *view.elsewhere]
    return Ticket(row, case, entry, view.entries, earlier)


def _plan_of(row: RowId, views: Sequence[View]) -> Case | None:
    """The plan of a row, also where it is not in force any more."""
    found = [standing for view in views if (standing := view.standings.get(row.number))]
    plans = (plan for standing in found for plan in (standing.case, *standing.plans) if plan)
    return next((p for p in plans if (p.head, p.plan) == (row.head, row.plan)), None)


def check(reconciler: Reconciler, text: str, run: int) -> Ticket:
    """Whether this run is the one that was approved; a UserError says why not."""
    row = RowId.parse(text)
    reader = reconciler.look(row.number, _group(row))
    if faults := _run_faults(reconciler, reader, row, run):
        raise UserError(*faults)
    if reader.pull.head.sha != row.head:
        raise Superseded(f"superseded: the head is {reader.pull.head.sha[:12]} now")
    if reader.pull.state != "open":
        raise Superseded("the pull request is closed")
    found = _ticket(row, reader.view)
    if found.case.group and reconciler.client.tip(found.case.group) != row.head:
        raise Superseded(f"superseded: {found.case.group} has another head now")
    if found.entry.result is not None:
        raise Superseded("the row is closed already")
    if found.case.code != reconciler.code:
        raise Outdated("another version of the bot made this plan")
    if reconciler.mode in ("no-dispatch", "off"):
        raise Superseded(f"FLA_BOT is {reconciler.mode}")
    decision = reader.decide()
    if decision.standing.void:
        raise Superseded("the plan in the ledger does not hold any more")
    if not decision.approved:
        raise Superseded(f"not approved: {decision.title}")
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


def collect(
    reconciler: Reconciler, text: str, run: int, folder: Path, gate: str, lane: str = ""
) -> None:
    """Judge what a run left, close its row, and look at the pull request again.

    `gate`, `lane`: how those jobs ended; where the gate was content and the lane was skipped, the
    gate has found that nobody wants the run any more.
    """
    row = RowId.parse(text)
    group = _group(row)
    reader = reconciler.look(row.number, group)
    if faults := _run_faults(reconciler, reader, row, run):
        raise UserError(*faults)
    moved, skipped = reader.pull.head.sha != row.head, (gate, lane) == ("success", "skipped")
    if skipped and not moved:
        # What the gate saw is seen here, too: else the same run would be started for ever.
        reconciler.check_books = True
    view = reader.view
    if moved:
        view = reconciler.ledger.read(row.head, row.number, reader.stored)
    judge = None if skipped else lambda found: _result(reconciler, found, run, folder, gate)
    result = _outcome(row, run, view, reader.view, judge)
    fail = only_fails(result)
    try:
        # What has failed is known to the present head before anything else is written.
        if moved:
            reconciler.reconcile(row.number, Hint(elsewhere=fail), reader=reader)
        elif group is not None and fail is not None:
            reconciler.reconcile(row.number, Hint(elsewhere=fail))
    finally:
        if moved and result is not None:
            reconciler.end(view, result)
    if not moved:
        hint = Hint(result=result)
        decision = reconciler.reconcile(row.number, hint, group=group, reader=reader)
        if decision is None and result is not None:
            # Switched off, nothing else is written; what a machine has found is kept.
            reconciler.end(view, result)


def _outcome(
    row: RowId,
    run: int,
    view: View,
    present: View,
    judge: Callable[[Ticket], LaneResult] | None,
) -> LaneResult | None:
    """What is written into a row, None if nothing is.

    A row that still counts gets all that was found. One that was closed meanwhile, or whose head
    or plan is another now, gets only what has failed: nobody escapes that by ending the run, and
    what was ended proves nothing.

    `view`: of the row's own head, `present`: of the one that the pull request has now. `judge`:
    None where no lane ran.
    """
    entry = next((item for item in view.entries if item.id == row), None)
    case, standing = _plan_of(row, (view, present)), present.standings.get(row.number)
    in_force = case is not None and standing is not None and standing.case is case
    if entry is None and not in_force:
        return None
    is_open = entry is None or entry.result is None
    if judge is None:
        return _ended(row, run, UNUSED) if is_open else None
    result = None
    # Whoever closed it with rows had the evidence.
    if case is not None and (is_open or not (entry and entry.result and entry.result.rows)):
        result = judge(_known(row, case, view))
    if is_open and in_force:
        return result
    if fail := only_fails(result):
        return fail
    moved = view is not present
    return _ended(row, run, "superseded: the head has moved") if moved and is_open else None


def _ended(row: RowId, run: int, note: str) -> LaneResult:
    word = Verdict.SUPERSEDED
    return LaneResult(row=str(row), run=run, verdict=word, note=note, keys={}, rows=[])


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
        "runs_on": json.dumps(lane.runs_on or HOSTED),
        # The lane's own limit comes first, so that it can still write its evidence.
        "timeout_minutes": str(found.case.minutes(found.row.lane) + AROUND_MIN),
    }


def judge_lane(reconciler: Reconciler, found: Ticket, run: int, folder: Path) -> LaneResult:
    """The verdict over a lane from the evidence in a folder, which is hostile."""
    case, row = found.case, found.row
    jobs = [job for job in case.report.plan.jobs if job.lane == row.lane]
    plan = case.report.plan.model_copy(update={"jobs": jobs})
    samples = _longest([*(e.result for e in found.runs if e.result), *found.earlier])
    evidence = {job.id: _pooled(job, _evidence(folder, job.id), samples) for job in jobs}
    contracts = {job.op: _contract(reconciler, case, job.op) for job in jobs if job.op != "tests"}
    anchors = {op: _anchors(reconciler, case, op) for op in contracts if op in case.anchors}
    rows = [_cleaned(item) for item in judge(plan, case.policy, contracts, evidence, anchors)]
    verdict = next((word for word in ORDER if any(r.verdict is word for r in rows)), Verdict.PASS)
    bad = [item for item in rows if item.verdict is not Verdict.PASS]
    note = f"{len(bad)} of {len(rows)} rows" if bad else f"{len(rows)} rows"
    return _fitted(
        LaneResult(
            row=str(row),
            run=run,
            verdict=verdict,
            note=f"{note}; {bad[0].reason}"[:300] if bad else note,
            keys={job.id: job.key for job in jobs},
            rows=rows,
            samples=_samples(jobs, evidence, rows),
        )
    )


def _longest(results: Sequence[LaneResult]) -> dict[str, list[float]]:
    """What was measured so far: each run adds to what it knew of, in whatever order they are."""
    found: dict[str, list[float]] = {}
    for result in results:
        for name, values in result.samples.items():
            found[name] = max(found.get(name, []), values, key=len)
    return found


def _sample(job: Job, evidence: Evidence, row: RowEvidence) -> str:
    return f"{job.key} {row.row} {digest(list(evidence.environment.fingerprint))}"


def _pooled(
    job: Job, evidence: Evidence | str | None, samples: Mapping[str, list[float]]
) -> Evidence | str | None:
    """Evidence with what earlier runs measured of its rows on equal machines."""
    if not isinstance(evidence, Evidence):
        return evidence
    rows = [
        row.model_copy(update={"earlier": samples.get(_sample(job, evidence, row), [])})
        for row in evidence.rows
    ]
    return evidence.model_copy(update={"rows": rows})


def _samples(
    jobs: Sequence[Job], evidence: Mapping[str, Evidence | str | None], rows: Sequence[Row]
) -> dict[str, list[float]]:
    """What the next run adds to."""
    left = {(row.job, row.cell) for row in rows if row.verdict is Verdict.NOT_PROVEN}
    return {
        _sample(job, found, row): [round(ratio, 6) for ratio in ratios(row)]
        for job in jobs
        if isinstance(found := evidence[job.id], Evidence)
        for row in found.rows
        if (job.id, row.row) in left
    }


def _evidence(folder: Path, job: str) -> Evidence | str | None:
    """Evidence of the schema that the plan's own bot writes: an older one asks for less."""
    found = evidence_file.read(folder, job)
    if isinstance(found, Evidence) and found.schema_id != SCHEMA:
        return "the evidence is of an older schema than this bot writes"
    return found


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


def _fitted(result: LaneResult) -> LaneResult:
    """A result that the ledger has room for: rows that pass go first, then texts get shorter.

    The worst row of each job stays, so that no verdict changes.
    """
    places = range(len(result.rows))
    ranks = [_rank(row) for row in result.rows]
    by_job = {result.rows[i].job: i for i in sorted(places, key=ranks.__getitem__, reverse=True)}
    worst = set(by_job.values())
    ranked = sorted(places, key=lambda i: (i not in worst, ranks[i]))
    bad = sum(row.verdict is not Verdict.PASS for row in result.rows)
    for longest in (400, 100, 20):
        rows = [
            row.model_copy(update={name: getattr(row, name)[:longest] for name in _TEXTS})
            for row in result.rows
        ]
        for count in (len(rows), bad, 200, 100, 50, 20, len(worst)):
            kept = sorted(ranked[: max(count, len(worst))])
            found = result.model_copy(update={"rows": [rows[i] for i in kept]})
            if len(pack(found)) <= MAX_RESULT:
                return found
    return found


_TEXTS = ("cell", "reason", "because")


def _rank(row: Row) -> int:
    """The worst first."""
    return ORDER.index(row.verdict) if row.verdict in ORDER else len(ORDER)
