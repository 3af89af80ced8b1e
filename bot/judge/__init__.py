"""Evidence in, verdicts out; pure, and every figure is compared again here."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bot.anchors import Anchors
from bot.contract import Contract
from bot.evidence import Evidence
from bot.judge import benchmark, correctness, tests
from bot.judge.verdicts import Finding, row
from bot.model import Job, Plan, Row, Verdict
from bot.policy import Lane, Policy

__all__ = ["CORRECTNESS", "judge"]

Judge = Callable[[Job, Policy, Contract | None, Evidence], Iterable[Finding]]
# By the kind of the lane. What has no judge cannot become green.
JUDGES: Mapping[str, Judge] = {
    "benchmark": benchmark.judge,
    "tests": tests.judge,
}
# These compare errors, with the merge base's and with the anchors.
CORRECTNESS = ("interpret", "correctness", "configs")
LEVELS = ("process", "user", "namespace")


def judge(
    plan: Plan,
    policy: Policy,
    contracts: Mapping[str, Contract],
    evidence: Mapping[str, Evidence | str | None],
    anchors: Mapping[str, Anchors] | None = None,
) -> list[Row]:
    """One row for each cell of each job, or one for the job where there is nothing to judge."""
    rows = []
    for job in plan.jobs:
        found = evidence.get(job.id)
        if found is None:
            rows.append(row(job, "", Verdict.WAITING, "no evidence yet"))
        elif isinstance(found, str):
            rows.append(row(job, "", Verdict.LOST, found))
        elif stranger := _stranger(plan, job, policy.lanes[job.lane], found):
            rows.append(row(job, "", Verdict.LOST, stranger))
        else:
            rows += _rows(job, policy, contracts.get(job.op), found, (anchors or {}).get(job.op))
    return rows


def _rows(
    job: Job,
    policy: Policy,
    contract: Contract | None,
    evidence: Evidence,
    anchors: Anchors | None,
) -> list[Row]:
    """What the lane's judge says; a pass does not count where the sandbox was too weak."""
    lane = policy.lanes[job.lane]
    weak = LEVELS.index(evidence.environment.protection) < LEVELS.index(lane.min_protection)
    rows, kind = [], job.lane.partition(":")[0]
    if kind in CORRECTNESS:
        said: Iterable[Finding] = correctness.judge(job, policy, contract, evidence, anchors)
    else:
        said = JUDGES[kind](job, policy, contract, evidence)
    for cell, verdict, reason in said:
        if weak and verdict is Verdict.PASS:
            verdict = Verdict.NOT_PROVEN
            reason = (
                f"measured under `{evidence.environment.protection}` protection, the lane asks for "
                f"`{lane.min_protection}`"
            )
        rows.append(row(job, cell, verdict, reason))
    return rows


def _stranger(plan: Plan, job: Job, lane: Lane, evidence: Evidence) -> str | None:
    """Why evidence is not about this job of this plan, or comes from another kind of machine."""
    environment = evidence.environment
    if environment.interpreter != lane.interpreter or (environment.device == "cpu") != (
        lane.device == "cpu"
    ):
        return f"evidence is from {environment.device}, not from the lane's {lane.device}"
    expected = {
        "plan": plan.hash,
        "job": job.id,
        "lane": job.lane,
        "head": plan.head,
        "merge_base": plan.merge_base,
        "trusted": plan.trusted,
    }
    for name, value in expected.items():
        if getattr(evidence, name) != value:
            return f"evidence is for {name} {getattr(evidence, name)[:16]}, not {value[:16]}"
    return None
