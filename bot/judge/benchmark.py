"""Speed: intervals over restarts against the margins, exact counts, audits of timed calls."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, median

from bot.cells import call, cell_variables, complete
from bot.contract import Benchmark, Contract, EntryPoint
from bot.evidence import Evidence, RowEvidence
from bot.expression import expression
from bot.judge.verdicts import Finding
from bot.model import Job, Outcome, Verdict
from bot.policy import Margins, Policy
from bot.statistics import FEWEST, Interval, decisive, interval, log_ratio, side

__all__ = ["Speed", "judge", "ratios", "speed"]

LEVEL = 0.95
MOST_DROPPED = 0.2
# Below this share of what the machine's ceilings allow, the work was not done.
FLOOR_SHARE = 0.9
# Slots that fit into caches may be read faster than memory allows.
CACHED_BYTES = 256e6
# How much slower the merge base may be beside an idle head than alone.
INTERFERENCE = 0.05
# Share of a block that head may take longer than the merge base to hand over results.
DEFERRED = 0.05
# Eager time is the host's: only what is far outside its noise counts.
EAGER_MARGIN = 0.10
GROWTH = 0.05
TIMER_GAP = 0.01
VECTOR_LIMIT = 0.5  # of a vector of a result, by which an honest arm never differs
SAMPLE_SHARE = 4.0  # how much further off a few elements of a slot may be than whole results
# Less than that no call takes, launched or not.
LEAST_MS = 1e-3
# A block that is shorter than that is noisy: no more slots fit.
SHORT_MS = 10.0
PARTS = {"": "", "vector": "a vector, ", "slots": "some elements, "}
COUNTS = ("launches", "syncs", "allocations")


@dataclass(frozen=True, slots=True)
class Speed:
    """Times of both arms, milliseconds a call, and the interval of log head/base."""

    base_ms: float
    head_ms: float
    ratio: Interval

    @property
    def word(self) -> str:
        """What the interval says of head."""
        if self.ratio.mean + self.ratio.half < 0:
            return "faster"
        return "slower" if self.ratio.mean - self.ratio.half > 0 else "same within noise"

    def __str__(self) -> str:
        mean, half = self.ratio.mean, self.ratio.half
        low, high = (100 * math.expm1(mean + sign * half) for sign in (-1, 1))
        times = f"{_ms(self.base_ms)} -> {_ms(self.head_ms)} ms"
        return f"{times}, {100 * math.expm1(mean):+.1f}% [{low:+.1f}, {high:+.1f}], {self.word}"


def _ms(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}" if value >= 0.01 else f"{value:.2g}"


def speed(row: RowEvidence) -> Speed | None:
    """The comparison of a row, None where no restart is complete.

    A restart is one measurement: processes, memory and graphs are its own, its blocks are not
    independent.
    """
    whole = [restart for restart in row.restarts if restart.is_whole]
    if not whole:
        return None
    times = [median(t for r in whole for t in getattr(r, arm)) for arm in ("base", "head")]
    return Speed(times[0], times[1], decisive(ratios(row)))


def ratios(row: RowEvidence) -> list[float]:
    """Log head/base of each complete restart, those of earlier runs first."""
    whole = (restart for restart in row.restarts if restart.is_whole)
    return [*row.earlier, *(log_ratio(restart.base, restart.head) for restart in whole)]


def judge(
    job: Job, policy: Policy, contract: Contract | None, evidence: Evidence
) -> Iterator[Finding]:
    """A verdict for each row of the job."""
    assert contract is not None  # a plan has such jobs for ops with a contract only
    measured = {row.row: row for row in evidence.rows}
    if len(measured) != len(evidence.rows) or set(measured) - set(job.cells):
        yield ("", Verdict.LOST, "evidence names a row twice, or one not in the plan")
        return
    for name in job.cells:
        entry, _, row = name.partition("/")
        point, found = contract.entry_points[entry], measured.get(name)
        if found is None:
            lost = f"the job stopped before this row: {evidence.note or 'no reason given'}"
            reason = "missing-row: the job did not report this row" if evidence.complete else lost
            yield (name, Verdict.FAIL if evidence.complete else Verdict.LOST, reason)
            continue
        spec = point.benchmarks[row]
        on_cpu = policy.lanes[job.lane].device == "cpu"
        ceilings = evidence.environment.before
        work = _work(contract, entry, spec, point)
        case = _Case(
            *(spec, found, policy.margins, ceilings, work),
            on_cpu=on_cpu,
            is_complete=evidence.complete,
        )
        due = _due(contract, entry, spec, point)
        yield (name, *case.verdict(due))


def _work(
    contract: Contract, entry: str, spec: Benchmark, point: EntryPoint
) -> tuple[float, float]:
    """Bytes and FLOPs of a call by the contract; what evidence says of them does not count."""
    cell = complete(contract, entry, spec.axes)
    if cell is None:
        return 0.0, 0.0
    variables = cell_variables(point, cell, spec.set)
    moved, computed = (float(expression(text)(variables)) for text in (spec.bytes, spec.flops))
    return moved, computed


def _due(
    contract: Contract, entry: str, spec: Benchmark, point: EntryPoint
) -> dict[str, dict[str, float]]:
    """What an audit must hold: by result, the limits over all of it and over parts."""
    cell = complete(contract, entry, spec.axes)
    if cell is None:
        return {}
    planned = call(contract, cell, 0, spec.set)
    budgets = {output.name: output.budget for output in point.outputs}
    budgets |= {f"d{name}": gradient.budget for name, gradient in point.gradients.items()}
    caps = {name: {str(k): v for k, v in budget.items()} for name, budget in budgets.items()}
    whole = {r.name: 2 * caps[r.name].get(planned.dtype, 0.0) for r in planned.results}
    return {
        name: {"": limit, "vector": VECTOR_LIMIT, "slots": SAMPLE_SHARE * limit}
        for name, limit in whole.items()
    }


@dataclass(frozen=True, slots=True)
class _Case:
    """One row and what it is held to."""

    spec: Benchmark
    row: RowEvidence
    margins: Margins
    ceilings: Mapping[str, float]
    work: tuple[float, float]
    on_cpu: bool
    is_complete: bool

    @property
    def gates(self) -> bool:
        """Whether time and costs decide; a wrong result always does."""
        return self.spec.margin != "shown" and not self.on_cpu

    @property
    def _margin(self) -> float:
        return self.margins.share(self.spec.margin)

    def verdict(self, due: Mapping[str, Mapping[str, float]]) -> tuple[Verdict, str]:
        """The first thing that decides."""
        if self.row.fault:
            return self._fault()
        wrong = self._audit(due)
        if wrong:
            return Verdict.FAIL, wrong
        void = self._void()
        if void:
            return void
        found = speed(self.row)
        whole = sum(r.is_whole for r in self.row.restarts)
        if found is None or whole < FEWEST:
            return Verdict.LOST, f"{whole} complete restarts, {FEWEST} are needed"
        fault = self._impossible(found) or self._interference() or self._deferred(found)
        if fault:
            return Verdict.FAIL, f"{fault} ({found})"
        # Costs are told last; a job that was stopped has none.
        fault = self._costs() if self.is_complete or self.row.head else None
        if fault:
            return Verdict.FAIL, f"{fault} ({found})"
        verdict, said = self._speed(found)
        shifted = self._shifted() if verdict is Verdict.PASS else None
        if shifted:
            verdict, said = Verdict.NOT_PROVEN, f"{shifted} ({said})"
        if not self.is_complete and verdict is not Verdict.FAIL:
            return Verdict.LOST, f"the job stopped before its end: {said}"
        return verdict, "; ".join([said, *self._notes(found)])

    def _void(self) -> tuple[Verdict, str] | None:
        """Why the blocks stand for nothing, before any is compared."""
        dropped = sum(restart.dropped for restart in self.row.restarts)
        kept = sum(len(restart.head) for restart in self.row.restarts)
        if any(t < LEAST_MS for restart in self.row.restarts for t in restart.head):
            return Verdict.FAIL, "impossible: less than a microsecond a call in a block of head"
        if self.row.launches > 1:
            reason = "a block ran its slots more than once, later rounds can be skipped"
            return Verdict.NOT_COMPARABLE, reason
        if dropped > MOST_DROPPED * (dropped + kept):
            reason = f"the machine changed its clocks in {dropped} of {dropped + kept} blocks"
            return Verdict.NOT_PROVEN, reason
        return None

    def _fault(self) -> tuple[Verdict, str]:
        arm, _, outcome = self.row.fault.partition(": ")
        if arm == "head":
            return Verdict.FAIL, f"{outcome}: head cannot run this row ({self.row.fault})"
        # Other reasons are the arms' own words and begin with the arm.
        told = self.row.why.startswith("the merge base") and self.row.why.endswith("head can")
        if told and outcome == Outcome.RAISED:
            return Verdict.PASS, "new: the merge base cannot run this row, nothing to compare with"
        return Verdict.NOT_COMPARABLE, f"the merge base could not be measured ({self.row.fault})"

    def _audit(self, due: Mapping[str, Mapping[str, float]]) -> str | None:
        """Why timed calls are not believed: limits are taken from the contract again."""
        seen = set()
        for audit in self.row.audits:
            name, _, part = audit.output.partition(".")
            if name not in due or part not in PARTS:
                return f"audit: `{audit.output}` is no result of this row"
            limit = due[name][part]
            seen.add((audit.restart, name, part))
            if audit.error > limit:
                return (
                    f"audit: {name} of a timed call ({PARTS[part]}restart {audit.restart}, slot "
                    f"{audit.slot}) differs from the merge base's by {audit.error:.2g} of its "
                    f"size, limit {limit:.2g}"
                )
        wanted = {
            (number, name, part)
            for number, restart in enumerate(self.row.restarts)
            if restart.head
            for name in due
            for part in PARTS
        }
        # Restarts in which the row was not measured leave gaps in the numbers, so count.
        short = len(seen) < len(wanted) or not due
        return "audit: results of timed calls were not looked at" if short else None

    def _floor_ms(self) -> float:
        """What the machine's ceilings ask for at least."""
        rate, peak = (self.ceilings.get(key, 0.0) for key in ("bytes_per_s", "flops_per_s"))
        size, flops = self.work
        cached = size * self.row.calls < CACHED_BYTES
        moved = size / rate if rate and not cached else 0.0
        return 1e3 * max(moved, flops / peak if peak else 0.0)

    def _impossible(self, found: Speed) -> str | None:
        if found.base_ms < LEAST_MS:
            return f"impossible: {found.base_ms:.3g} ms a call of the merge base"
        floor = FLOOR_SHARE * self._floor_ms()
        # A floor that the merge base breaks too is the contract's mistake.
        if found.head_ms >= floor or found.base_ms < floor:
            return None
        return f"impossible: {found.head_ms:.3g} ms, the contract's work takes {floor:.3g}"

    def _interference(self) -> str | None:
        alone = [t for restart in self.row.restarts for t in restart.alone]
        if not alone or not self.gates or self.row.mode != "graph":
            return None
        beside = median(t for restart in self.row.restarts for t in restart.base)
        if beside <= (1 + INTERFERENCE) * median(alone):
            return None
        times = beside / median(alone)
        return f"interference: beside head the merge base takes {times:.2f}x as long as alone"

    def _shifted(self) -> str | None:
        """A merge base that is slower beside head than alone, by what would decide the row."""
        alone = [math.log(t) for r in self.row.restarts for t in r.alone if t > 0]
        beside = [math.log(median(r.base)) for r in self.row.restarts if r.is_whole]
        if not alone or not beside or not self.gates or self.row.mode != "graph":
            return None
        first, second = interval(alone, LEVEL), interval(beside, LEVEL)
        by = second.mean - first.mean
        if not by > math.log1p(self._margin) + first.half + second.half:
            return None
        return f"interference: beside head the merge base takes {math.expm1(by):.1%} longer"

    def _late_ms(self) -> float:
        """How much longer head takes to hand over results, in the restart where it is least."""
        late = [r.audit_ms for r in self.row.restarts if {"base", "head"} <= set(r.audit_ms)]
        return min((a["head"] - a["base"] for a in late), default=0.0)

    def _is_late(self, found: Speed) -> bool:
        return self._late_ms() > max(found.base_ms / 2, DEFERRED * found.base_ms * self.row.calls)

    def _deferred(self, found: Speed) -> str | None:
        """Work that is done after the clock has stopped shows when results are asked for."""
        if not self.gates or not self._is_late(found):
            return None
        return f"deferred: head takes {self._late_ms():.3g} ms longer to hand over results"

    def _costs(self) -> str | None:
        """Exact counts, self-reported by each arm's process."""
        base, head = self.row.base, self.row.head
        if not self.gates:
            return None
        if self.row.mode == "eager" and self.row.why.startswith("head"):
            return f"capture: head can no longer be captured in a graph ({self.row.why})"
        if base is None or head is None:
            return "costs: launches and memory were not reported"
        for name in COUNTS:
            ours, theirs = getattr(head, name), getattr(base, name)
            if ours > theirs:
                return f"{name}: {ours}, merge base {theirs}"
        if head.peak_bytes > (1 + GROWTH) * base.peak_bytes:
            return f"peak-memory: {_mib(head.peak_bytes)}, merge base {_mib(base.peak_bytes)}"
        return None

    def _speed(self, found: Speed) -> tuple[Verdict, str]:
        mean, half = found.ratio.mean, found.ratio.half
        if not self.gates:
            return Verdict.PASS, f"{found}; shown, does not gate"
        if self.row.mode == "eager":
            if mean - half > math.log1p(EAGER_MARGIN):
                return Verdict.FAIL, f"slower: {found}; eager, margin {EAGER_MARGIN:.0%}"
            return Verdict.PASS, f"{found}; eager, shown ({self.row.why})"
        share = self._margin
        where = side(found.ratio, math.log1p(share))
        if where == "within":
            held = f", but within the margin of {share:.1%}" if found.word == "slower" else ""
            return Verdict.PASS, f"{found}{held}"
        if where == "beyond":
            return Verdict.FAIL, f"slower: {found}; margin {share:.1%}"
        return Verdict.NOT_PROVEN, f"{found}; neither within the margin of {share:.1%} nor beyond"

    def _notes(self, found: Speed) -> Iterator[str]:
        """What a reader should see and nothing depends on."""
        inner = [r.inner for r in self.row.restarts if {"base", "head"} <= set(r.inner)]
        if inner:
            own = fmean(math.log(i["head"] / i["base"]) for i in inner if i["base"] and i["head"])
            if abs(own - found.ratio.mean) > TIMER_GAP + found.ratio.half:
                yield f"timer-mismatch: by its own events {100 * math.expm1(own):+.1f}%"
        if self._is_late(found):
            yield "deferred: head takes longer to hand over its results"
        block = found.base_ms * self.row.calls
        if self.row.mode == "graph" and block < SHORT_MS:
            yield f"short blocks: {block:.3g} ms, no more slots fit"
        base, head = self.row.base, self.row.head
        if base is not None and head is not None:
            if base.launches != head.launches:
                yield f"launches {base.launches} -> {head.launches}"
            if head.first_call_s > (1 + GROWTH) * base.first_call_s + 1:
                yield f"first call {base.first_call_s:.1f} -> {head.first_call_s:.1f} s"
            if abs(head.peak_bytes - base.peak_bytes) > GROWTH * base.peak_bytes:
                yield f"peak memory {_mib(base.peak_bytes)} -> {_mib(head.peak_bytes)}"


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
