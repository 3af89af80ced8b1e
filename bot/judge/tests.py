"""The repository's own tests, as the process under test reports them.

Green says no more than that the tests say so. Red is what they cannot hide: what failed, vanished
or was switched off since the merge base, and a process that did not tell.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from bot.contract import Contract
from bot.evidence import Evidence, TestEvidence
from bot.judge.verdicts import Finding
from bot.model import Job, Verdict
from bot.policy import Policy

__all__ = ["GONE", "judge"]

# The note of a file that head no longer has.
GONE = "the file is gone"

_ORDER = (Verdict.FAIL, Verdict.LOST, Verdict.NOT_PROVEN)


def judge(
    job: Job,
    policy: Policy,  # noqa: ARG001  # the form of all judges
    contract: Contract | None,  # noqa: ARG001
    evidence: Evidence,
) -> Iterator[Finding]:
    """A verdict for each test file of the job, and a fail for each cell that lost its tests."""
    entries: dict[str, list[TestEvidence]] = {name: [] for name in job.cells}
    for entry in evidence.tests:
        entries.setdefault(_file(entry.test), []).append(entry)
    names = [entry.test for entry in evidence.tests]
    if set(entries) != set(job.cells) or len(set(names)) != len(names):
        yield ("", Verdict.LOST, "evidence names a test twice, or a file not in the plan")
        return
    for name in job.cells:
        yield (name, *_verdict(entries[name], evidence))
    if evidence.complete:
        yield from _lost_cells(evidence)


def _lost_cells(evidence: Evidence) -> Iterator[Finding]:
    """Coverage may not fall: cells that tests of edited files called before, and none does now."""
    head = {(use.op, use.cell): use for use in evidence.coverage if use.arm == "head"}
    for use in evidence.coverage:
        if use.arm == "base":
            now = head.get((use.op, use.cell))
            if use.forward and not (now and now.forward):
                yield (use.cell, Verdict.FAIL, f"no test calls it any more; {use.forward[0]} did")
            elif use.backward and not (now and now.backward):
                reason = f"no test goes backward through it any more; {use.backward[0]} did"
                yield (use.cell, Verdict.FAIL, reason)


def _file(test: str) -> str:
    return test.partition("::")[0]


def _function(test: str) -> str:
    return test.partition("[")[0]


def _verdict(entries: Sequence[TestEvidence], evidence: Evidence) -> tuple[Verdict, str]:
    """The worst of a file; a pass only where at least one test passed."""
    unfinished = (Verdict.LOST, f"the job stopped before this file: {evidence.note or 'no reason'}")
    living = {_function(entry.test) for entry in entries if entry.head != "missing"}
    complete = evidence.complete
    found = [fault for entry in entries if (fault := _fault(entry, living, complete=complete))]
    if not evidence.complete:
        found.append(unfinished)
    if found:
        worst = min((verdict for verdict, _ in found), key=_ORDER.index)
        reasons = [reason for verdict, reason in found if verdict is worst]
        more = f"; and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        return worst, reasons[0] + more
    counts = Counter(entry.head for entry in entries)
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    if not entries:
        return Verdict.FAIL, "missing-row: the job did not report this file"
    if not counts["passed"]:
        return Verdict.NOT_PROVEN, f"no test ran{skipped}"
    return Verdict.PASS, f"{counts['passed']} passed{skipped}, self-reported by the tests"


def _fault(entry: TestEvidence, living: set[str], *, complete: bool) -> tuple[Verdict, str] | None:
    """What is wrong with one test, or None."""
    name, note = _short(entry.test), f" ({entry.note})" if entry.note else ""
    if entry.head == "passed":
        return None
    if entry.head == "skipped":
        return _skipped(entry, name, note)
    if entry.base is None:
        # Complete: a report that broke its form. Else the base's time was over.
        verdict = Verdict.FAIL if complete else Verdict.LOST
        return verdict, f"{name}: {entry.head} here, not compared with the merge base{note}"
    if entry.head == "missing":
        return _vanished(entry, name, living)
    if entry.base in ("failed", "error"):
        return Verdict.NOT_PROVEN, f"{name} fails at the merge base too, a person decides{note}"
    there = {"passed": "passes at the merge base", "skipped": "skipped at the merge base"}
    return Verdict.FAIL, f"{name} fails here, {there.get(entry.base, 'new')}{note}"


def _skipped(entry: TestEvidence, name: str, note: str) -> tuple[Verdict, str] | None:
    if entry.base is None:
        return Verdict.LOST, f"{name}: skipped here, not compared with the merge base{note}"
    if entry.base in ("skipped", "missing"):
        return None
    return Verdict.FAIL, f"{name} is newly skipped{note}"


def _vanished(entry: TestEvidence, name: str, living: set[str]) -> tuple[Verdict, str] | None:
    if "::" not in entry.test:
        if entry.base == "passed" and entry.note == GONE:
            return Verdict.NOT_PROVEN, f"{name} is gone with its tests, a person decides"
        if entry.base == "passed":
            return Verdict.FAIL, f"{name} reports no test; the merge base has some"
        return Verdict.NOT_PROVEN, f"{name} reports no test, nor does it at the merge base"
    if entry.base == "passed" and _function(entry.test) not in living:
        return Verdict.FAIL, f"{name} has vanished; it passes at the merge base"
    what = "these arguments" if _function(entry.test) in living else f"it ({entry.base} there)"
    return Verdict.NOT_PROVEN, f"{name} no longer has {what}, a person decides"


def _short(test: str) -> str:
    """The part of an id that tells it from others of its file."""
    path, _, rest = test.partition("::")
    return (rest or path)[:120]
