"""Verdicts over times: made-up evidence for each rule, recorded blocks for the statistics."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from bot.evidence import Audit, Costs, Restart, RowEvidence
from bot.judge.benchmark import ratios, speed
from bot.model import Verdict
from bot.statistics import FEWEST, MOST, decisive, side
from tests.conftest import ROOT
from tests.gaming.bench import CONTRACT, evidence, verdicts

RUNS = json.loads((ROOT / "tests/data/bench_blocks.json").read_text())
NAME = "scan/fwd"
TIMES = 20
# As large as a row on a GPU.
LARGE = CONTRACT.replace(
    "bytes: 8 * B * T * D, flops: 3 * B * T * D", "bytes: '3.0e8', flops: '1.0e9'"
)
Pair = tuple[list[float], list[float]]


def costs(**changes: Any) -> Costs:
    fields = {"launches": 4, "syncs": 0, "allocations": 12, "peak_bytes": 10**8}
    return Costs(**(fields | {"first_call_s": 1.0, "eager_ms": 1.0} | changes))


def row(pairs: list[Pair], **changes: Any) -> RowEvidence:
    """Good evidence over these blocks, with some fields replaced."""
    restarts = [Restart(first="base", base=base, head=head) for base, head in pairs]
    audits = [
        Audit(restart=i, slot=3, against="base", output=name, error=0.0, limit=1e-5)
        for i in range(len(restarts))
        for name in ("y", "y.vector", "y.slots")
    ]
    fields = {"row": NAME, "mode": "graph", "calls": 20, "launches": 1, "restarts": restarts}
    fields |= {"audits": audits, "base": costs(), "head": costs()}
    return RowEvidence(**(fields | changes))


def pairs(ratio: float = 1.0, count: int = 5, spread: float = 0.001) -> list[Pair]:
    """Restarts whose head/base differ a little from each other."""
    found = []
    for i in range(count):
        off = 1 + spread * (i - (count - 1) / 2)
        found.append(([1.0] * 12, [ratio * off] * 12))
    return found


def said(
    found: RowEvidence, lane: str = "benchmark:sm90", text: str = LARGE, **changes: Any
) -> tuple[Verdict, str]:
    return verdicts(evidence([found], **changes), NAME, lane=lane, text=text)[NAME]


@pytest.mark.parametrize(
    ("ratio", "verdict", "word"),
    [
        (1.0, Verdict.PASS, "same within noise"),
        (0.96, Verdict.PASS, "faster"),
        (1.004, Verdict.PASS, "slower, but within the margin of 1.0%"),
        (1.009, Verdict.NOT_PROVEN, "slower"),
        (1.03, Verdict.FAIL, "slower"),
    ],
)
def test_interval_decides(ratio: float, verdict: Verdict, word: str) -> None:
    got, reason = said(row(pairs(ratio)))
    assert got is verdict
    assert word in reason


def test_what_an_earlier_run_measured_counts_too() -> None:
    slow, fast = row(pairs(1.012)), row(pairs(1.0))
    assert said(fast)[0] is Verdict.PASS
    assert said(fast.model_copy(update={"earlier": ratios(slow)}))[0] is Verdict.NOT_PROVEN


def test_line_of_a_row_reads_well() -> None:
    _, reason = said(row([([4.81] * 4, [4.81 * r] * 4) for r in (0.955, 0.96, 0.965, 0.96)]))
    assert reason == "4.81 -> 4.62 ms, -4.0% [-4.9, -3.1], faster"


def test_wide_intervals_prove_nothing() -> None:
    assert said(row(pairs(1.0, spread=0.01)))[0] is Verdict.NOT_PROVEN
    assert said(row(pairs(1.02, spread=0.02)))[0] is Verdict.NOT_PROVEN


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({"fault": "head: raised", "mode": "failed"}, Verdict.FAIL, "raised: "),
        ({"fault": "base: raised", "mode": "failed"}, Verdict.NOT_COMPARABLE, "the merge base"),
        ({"fault": "base: raised", "why": "the merge base cannot, head can"}, Verdict.PASS, "new"),
        ({"audits": []}, Verdict.FAIL, "audit: results of timed calls were not looked at"),
        ({"head": costs(launches=5)}, Verdict.FAIL, "launches: 5, merge base 4"),
        ({"head": costs(syncs=1)}, Verdict.FAIL, "syncs: 1, merge base 0"),
        ({"head": costs(allocations=13)}, Verdict.FAIL, "allocations: 13, merge base 12"),
        ({"head": costs(peak_bytes=2 * 10**8)}, Verdict.FAIL, "peak-memory: 191 MiB, merge base"),
        ({"head": None}, Verdict.FAIL, "costs: "),
        ({"mode": "eager", "why": "head: RuntimeError: no"}, Verdict.FAIL, "capture: "),
        ({"mode": "eager", "why": "base: RuntimeError: no"}, Verdict.PASS, "1.00 -> 1.00 ms"),
        ({"head": costs(launches=3)}, Verdict.PASS, "1.00 -> 1.00 ms"),
    ],
)  # fmt: skip
def test_what_is_not_time_decides_first(
    changes: dict[str, Any], verdict: Verdict, reason: str
) -> None:
    got, text = said(row(pairs(), **changes))
    assert got is verdict, text
    assert text.startswith(reason)


@pytest.mark.parametrize("output", ["y", "y.vector", "y.slots"])
def test_wrong_result_of_a_timed_call_is_red_however_fast(output: str) -> None:
    good = row(pairs(0.5))
    # The limit that evidence states does not count.
    bad = Audit(restart=1, slot=6, against="base", output=output, error=0.9, limit=5.0)
    got, text = said(good.model_copy(update={"audits": [*good.audits, bad]}))
    assert got is Verdict.FAIL
    assert text.startswith("audit: ")
    assert "restart 1, slot 6" in text


def test_audit_of_something_else_does_not_stand_for_a_result() -> None:
    good = row(pairs())
    other = [a.model_copy(update={"output": "z"}) for a in good.audits]
    assert said(good.model_copy(update={"audits": other}))[0] is Verdict.FAIL
    assert said(good.model_copy(update={"audits": good.audits[:-1]}))[0] is Verdict.FAIL


def test_less_than_the_work_takes_is_impossible() -> None:
    fast = [([1.0] * 4, [0.06] * 4)] * 5  # 3e8 bytes take 0.07 ms
    assert said(row(fast))[1].startswith("impossible: 0.06 ms")
    # A floor that the merge base breaks as well is no floor.
    both = [([0.06] * 4, [0.06] * 4)] * 5
    assert said(row(both))[0] is Verdict.PASS
    nothing = [([1.0] * 4, [0.0] * 4)] * 5
    assert said(row(nothing))[1].startswith("impossible: ")
    # What lies in caches is read faster; FLOPs count all the same.
    small = LARGE.replace("3.0e8", "1.0e6")
    assert said(row(fast), text=small)[0] is Verdict.PASS
    heavy = small.replace("1.0e9", "1.0e11")
    assert said(row(fast), text=heavy)[1].startswith("impossible: ")
    # What evidence says of them is not asked.
    assert said(row(fast, bytes=1.0, flops=1.0))[1].startswith("impossible: ")


@pytest.mark.parametrize("lane", ["benchmark:sm90", "benchmark:cpu"])
@pytest.mark.parametrize("ms", [1e-250, 9e-4])
def test_time_of_nothing_is_impossible_without_ceilings(lane: str, ms: float) -> None:
    none = {"bytes_per_s": 0.0, "flops_per_s": 0.0}
    for base in (1.0, ms):
        got, text = said(row([([base] * 4, [ms] * 4)] * 5), lane, before=none)
        assert got is Verdict.FAIL
        assert text.startswith("impossible: ")
    assert said(row([([ms] * 4, [1.0] * 4)] * 5), lane, before=none)[1].startswith("impossible: ")


def test_block_of_several_rounds_is_not_compared_and_a_short_one_says_so() -> None:
    assert said(row(pairs(), launches=2))[0] is Verdict.NOT_COMPARABLE
    got, text = said(row(pairs(), calls=8))
    assert got is Verdict.PASS
    assert "short blocks: 8 ms" in text


def test_merge_base_slowed_down_by_heads_presence_is_red() -> None:
    slow = [Restart(first="base", base=b, head=h, alone=[0.9] * 4) for b, h in pairs(0.9)]
    got, text = said(row(pairs(), restarts=slow))
    assert got is Verdict.FAIL
    assert text.startswith("interference: ")


def test_interference_within_the_old_tolerance_but_beyond_the_margin_proves_nothing() -> None:
    def beside(alone: float, ratio: float = 0.98) -> tuple[Verdict, str]:
        found = [
            Restart(first="base", base=b, head=h, alone=[alone] * 4 if i == 0 else [])
            for i, (b, h) in enumerate(pairs(ratio))
        ]
        return said(row(pairs(), restarts=found))

    got, text = beside(1 / 1.03)
    assert got is Verdict.NOT_PROVEN
    assert text.startswith("interference: beside head the merge base takes 3.0% longer")
    assert beside(1 / 1.005)[0] is Verdict.PASS
    assert beside(1.03)[0] is Verdict.PASS  # alone it was slower: that favours nobody
    assert beside(1 / 1.06)[0] is Verdict.FAIL
    assert beside(1 / 1.03, 1.03)[1].startswith("slower: ")


def test_clock_changes_and_lost_restarts() -> None:
    one = Restart(first="base", base=[], head=[], dropped=12)
    whole = [Restart(first="head", base=b, head=h) for b, h in pairs(count=4)]
    audits = row(pairs(count=4)).audits
    assert said(row(pairs(), restarts=[*whole, one], audits=audits))[0] is Verdict.PASS
    assert said(row(pairs(), restarts=[*whole[:3], one], audits=audits))[0] is Verdict.NOT_PROVEN
    got, text = said(row(pairs(count=2)))
    assert (got, text) == (Verdict.LOST, "2 complete restarts, 3 are needed")
    cut = Restart(first="base", base=[1.0] * 12, head=[1.0] * 11)
    assert said(row(pairs(), restarts=[*whole[:2], cut], audits=audits))[0] is Verdict.LOST


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("base: raised", "head: RuntimeError: not the merge base, but head can"),
        ("base: timeout", "the merge base cannot run this row, head can"),
        ("base: worker-died", "the merge base cannot run this row, head can"),
    ],
)
def test_head_cannot_declare_a_row_new(fault: str, why: str) -> None:
    assert said(row(pairs(), fault=fault, why=why))[0] is Verdict.NOT_COMPARABLE


def test_job_that_was_stopped_proves_nothing_and_blames_nobody() -> None:
    early = row(pairs(count=3), base=None, head=None)
    assert said(early)[0] is Verdict.FAIL
    got, text = said(early, complete=False)
    assert got is Verdict.LOST
    assert text.startswith("the job stopped before its end: 1.00 -> 1.00 ms")
    assert said(row(pairs(count=3)), complete=False)[0] is Verdict.LOST
    assert said(row(pairs(1.05), base=None, head=None), complete=False)[0] is Verdict.FAIL


def test_work_left_for_after_the_clock_is_red() -> None:
    def late(ms: float) -> RowEvidence:
        asked = {"base": 2.0, "head": 2.0 + ms}
        found = [Restart(first="base", base=b, head=h, audit_ms=asked) for b, h in pairs(0.8)]
        return row(pairs(), restarts=found)

    # A block has 20 calls of a millisecond: that is noise, and nobody is told of it.
    assert said(late(0.8)) == (Verdict.PASS, said(late(0.0))[1])
    got, text = said(late(1.1))
    assert got is Verdict.FAIL
    assert text.startswith("deferred: head takes 1.1 ms longer to hand over results")
    honest = late(1.1)
    honest.restarts[2] = honest.restarts[2].model_copy(update={"audit_ms": {}})
    quick = {"audit_ms": {"base": 2.0, "head": 2.0}}
    honest.restarts[3] = honest.restarts[3].model_copy(update=quick)
    assert said(honest)[0] is Verdict.PASS  # not in every restart


def test_missing_and_foreign_rows() -> None:
    found = evidence([])
    assert verdicts(found, NAME)[NAME][0] is Verdict.FAIL
    assert verdicts(evidence([], complete=False), NAME)[NAME][0] is Verdict.LOST
    assert verdicts(evidence([row(pairs())] * 2), NAME)[""][0] is Verdict.LOST


def test_own_clock_that_disagrees_is_shown() -> None:
    inner = {"base": 1.0, "head": 0.5}
    lying = [Restart(first="base", base=b, head=h, inner=inner) for b, h in pairs()]
    got, text = said(row(pairs(), restarts=lying))
    assert got is Verdict.PASS
    assert "timer-mismatch: by its own events -50.0%" in text


def test_times_do_not_gate_on_a_cpu_and_audits_do() -> None:
    got, text = said(row(pairs(3.0), base=None, head=None, mode="eager"), lane="benchmark:cpu")
    assert got is Verdict.PASS
    assert text.endswith("shown, does not gate")
    assert said(row(pairs(3.0), audits=[]), lane="benchmark:cpu")[0] is Verdict.FAIL


def test_eager_rows_are_red_only_far_outside_noise() -> None:
    eager = {"mode": "eager", "why": "base: RuntimeError: no"}
    assert said(row(pairs(1.08), **eager))[0] is Verdict.PASS
    assert said(row(pairs(1.2), **eager))[0] is Verdict.FAIL
    assert said(row(pairs(1.2, spread=0.1), **eager))[0] is Verdict.PASS


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_times_that_are_no_times_break_the_schema(value: float) -> None:
    with pytest.raises(ValidationError):
        Restart(first="base", base=[1.0, value], head=[1.0, 1.0])


def resampled(kind: str, scale: float = 1.0, seed: int = 0) -> list[RowEvidence]:
    """Runs of five restarts, drawn from what was recorded on an H200.

    Arms that were equal change places at random.
    """
    rng = random.Random(seed)

    def turned(restart: list[list[float]]) -> Pair:
        base, head = rng.sample(restart, 2) if kind.startswith("aa") else restart
        return base, [scale * t for t in head]

    return [row([turned(one) for one in rng.sample(RUNS[kind], 5)]) for _ in range(TIMES)]


def counts(rows: list[RowEvidence]) -> Counter[Verdict]:
    return Counter(said(one)[0] for one in rows)


def after_looks(rows: list[RowEvidence]) -> Counter[Verdict]:
    """Verdicts where a row that is settled after three or four restarts gets no more."""
    edge, found = math.log(1.01), list[Verdict]()
    for one in rows:
        count = FEWEST
        while count < MOST and side(decisive(ratios(one)[:count]), edge) == "open":
            count += 1
        kept = {"restarts": one.restarts[:count], "audits": one.audits[: 3 * count]}
        found.append(said(one.model_copy(update=kept))[0])
    return Counter(found)


@pytest.mark.parametrize("kind", ["aa", "aa_both"])
@pytest.mark.parametrize("judged", [counts, after_looks])
def test_equal_arms_never_fail_and_mostly_prove_it(
    kind: str, judged: Callable[[list[RowEvidence]], Counter[Verdict]]
) -> None:
    found = judged(resampled(kind))
    assert found[Verdict.FAIL] == 0
    assert found[Verdict.PASS] == TIMES


def test_equal_arms_of_a_memory_bound_row_do_not_fail() -> None:
    # All five restarts of the memory-bound row that there are, against the narrower margin.
    assert said(row(RUNS["aa_decode"]))[0] is not Verdict.FAIL


def test_real_slowdowns_of_recorded_blocks_are_found() -> None:
    assert counts(resampled("aa", 1.03))[Verdict.FAIL] == TIMES
    assert counts(resampled("aa", 1.05))[Verdict.FAIL] == TIMES
    # At the margin itself the verdict is a coin, but it is never proved to be within.
    for kind in ("aa", "aa_both"):
        assert counts(resampled(kind, 1.01))[Verdict.PASS] <= 2
        assert after_looks(resampled(kind, 1.01))[Verdict.PASS] <= 2
        assert after_looks(resampled(kind, 1.03))[Verdict.FAIL] == TIMES
    for kind in ("slow3", "slow5"):
        assert said(row(RUNS[kind]))[0] is Verdict.FAIL
    assert said(row(RUNS["slow1"]))[0] is not Verdict.FAIL  # 0.77%, within the margin


def test_real_speed_up_of_recorded_blocks_is_seen() -> None:
    got, text = said(row(RUNS["fast5"]))
    assert got is Verdict.PASS
    assert text.endswith("faster")
    found = speed(row(RUNS["fast5"]))
    assert found is not None
    assert found.ratio.mean == pytest.approx(-0.05, abs=0.005)
