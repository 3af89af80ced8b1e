"""One cell in both arms, where the merge base gives nothing that can be compared with."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

import bot.device.__main__ as device  # noqa: E402
from bot.cells import call, cells  # noqa: E402
from bot.contract import load  # noqa: E402
from bot.device.__main__ import Comparison  # noqa: E402
from bot.device.arm import Arena, Arm  # noqa: E402
from bot.device.trial import Trial  # noqa: E402
from bot.evidence import HUGE, CellEvidence  # noqa: E402
from bot.model import Outcome  # noqa: E402
from tests.conftest import ROOT  # noqa: E402


def l2norm(x: Any, eps: float = 1e-6) -> Any:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def arm(value: float) -> Arm:
    """One whose results are all of a value."""

    def run(memory: Arena) -> Outcome:
        for repeat in memory.order["repeats"]:
            for slot in (*repeat["outputs"], *repeat["gradients"]):
                memory.flat(slot, slot["storage"]).fill_(value)
        return Outcome.RAN

    return cast("Arm", SimpleNamespace(run=run, report=b"{}", seconds=0.0, extra={}))


@pytest.fixture
def compared() -> Callable[[float], CellEvidence]:
    """Evidence of the contract's first cell against a merge base that gives one value."""
    contract = load((ROOT / "contracts/l2norm.yaml").read_bytes(), "l2norm")
    cell = cells(contract, "l2norm")[0]
    reference = contract.entry_points["l2norm"].reference

    def go(value: float) -> CellEvidence:
        arms = {"base": arm(value), "head": arm(0.5)}
        both = Comparison(contract, "cpu", {reference: l2norm}, arms)
        return both.cell(cell, [(3, False), (4, True)]).evidence

    return go


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_reference_stands_in_for_a_base_that_is_not_finite(
    compared: Callable[[float], CellEvidence], value: float
) -> None:
    found = compared(value)
    assert (found.base, found.base_form) == (Outcome.RAN, "reference")
    figures = [f for draw in found.draws for f in draw.outputs]
    assert figures
    assert all(f.base.rms < 1e-2 < f.head.rms < HUGE for f in figures)
    assert all(f.worst_tile > 4 for f in figures)  # head's error has a measure again


def test_finite_base_is_compared_with(compared: Callable[[float], CellEvidence]) -> None:
    assert compared(0.25).base_form == "kernel"


@pytest.mark.parametrize(
    ("outcome", "report", "says"),
    [
        (Outcome.WORKER_DIED, b"", "the profiled call ended with worker-died"),
        # What it said of the call before counts for nothing.
        (Outcome.RAISED, b'{"device": {"a_gemm": 9.0}}', "the profiled call ended with raised"),
        (Outcome.RAN, b"{}", "the profiled call reported no device time"),
        (Outcome.RAN, b'{"device": {"l2norm_fwd_kernel": 9.0}}', ""),
    ],
)
def test_profiled_call_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome, report: bytes, says: str
) -> None:
    contract = load((ROOT / "contracts/l2norm.yaml").read_bytes(), "l2norm")
    cell = cells(contract, "l2norm")[0]
    trial = Trial(call(contract, cell, 3), l2norm, "cpu")
    monkeypatch.setattr(trial, "run", lambda *_: (outcome, {}))
    monkeypatch.setattr(device, "applicable", lambda *_: [])
    head = cast("Arm", SimpleNamespace(run=None, report=report))
    both = Comparison(contract, "cuda", {}, {"base": head, "head": head})
    assert both.probe(cell, trial, {}) == (
        [],
        [],
        says,
    )
