"""A rerun of a benchmark is held to all that was measured of its row."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bot import evidence as evidence_file
from bot.evidence import RowEvidence
from bot.github import executor
from bot.github.case import LaneResult, RowId
from bot.github.executor import Ticket, judge_lane
from bot.judge.benchmark import ratios
from bot.model import Plan, Verdict
from tests.bot.test_benchmark_judge import LARGE, NAME, pairs, row
from tests.gaming.bench import contract, evidence, job, policy

LANE = "benchmark:sm90"


class Reruns:
    """One row of one job, run again and again; the ledger gives the newest result first."""

    def __init__(self, folder: Path) -> None:
        oid = "0" * 40
        ends = {"base": oid, "head": oid, "merge_base": oid, "trusted": oid}
        self.plan = Plan(**ends, jobs=[job(NAME, lane=LANE)], packs=[], judges="", hash="p")
        self.folder, self.results = folder, list[LaneResult]()
        self.earlier: list[LaneResult] = []  # of other heads

    def run(self, *given: Any, spread: float = 0.001, **changes: Any) -> Verdict:
        rows = [
            one if isinstance(one, RowEvidence) else row(pairs(one, spread=spread)) for one in given
        ]
        evidence_file.write(self.folder, evidence(rows, **changes))
        report = SimpleNamespace(plan=self.plan)
        case = SimpleNamespace(report=report, policy=policy(), anchors={})
        runs = [SimpleNamespace(result=result) for result in reversed(self.results)]
        name = RowId(number=1, head="0" * 40, plan="p", lane=LANE, nonce=0)
        first = runs[0] if runs else None
        ticket = Ticket(name, case, first, runs, self.earlier)  # type: ignore[arg-type]
        self.results.append(judge_lane(None, ticket, 1, self.folder))  # type: ignore[arg-type]
        return self.results[-1].verdict


@pytest.fixture
def reruns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reruns:
    monkeypatch.setattr(executor, "_contract", lambda *_: contract(LARGE))
    return Reruns(tmp_path)


def test_luck_does_not_pass_what_was_slower_before(reruns: Reruns) -> None:
    assert Reruns(reruns.folder).run(1.006) is Verdict.PASS
    assert reruns.run(1.013, spread=0.008) is Verdict.NOT_PROVEN
    (kept,) = reruns.results[0].samples.values()
    assert kept == pytest.approx(ratios(row(pairs(1.013, spread=0.008))), abs=1e-6)
    assert reruns.run(1.006) is Verdict.NOT_PROVEN
    assert [len(values) for values in reruns.results[1].samples.values()] == [10]


def test_more_samples_prove_what_noise_hid(reruns: Reruns) -> None:
    assert reruns.run(1.002, spread=0.006) is Verdict.NOT_PROVEN
    assert reruns.run(1.0) is Verdict.PASS
    assert reruns.results[-1].samples == {}


def test_other_machines_are_not_put_together_and_lanes_remember_nothing(reruns: Reruns) -> None:
    assert reruns.run(1.013, spread=0.008) is Verdict.NOT_PROVEN
    other = evidence([]).environment.model_copy(update={"driver": "another"})
    assert reruns.run(1.006, environment=other) is Verdict.PASS
    forged = row(pairs(1.009)).model_copy(update={"earlier": [-0.5] * 100})
    assert reruns.run(forged, environment=other) is Verdict.NOT_PROVEN
