"""One cell in both arms: what stands in for a base that gives nothing, and when is drawn again."""

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
from bot.evidence import HUGE, CellEvidence, Draw, OutputFigures  # noqa: E402
from bot.model import Outcome  # noqa: E402
from bot.policy import Margins  # noqa: E402
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


def figures(tile: float, rms: float = 1e-8) -> OutputFigures:
    small = {"rms": 1e-8, "max_abs": 1e-7, "tail": 2.0, "slope": 0.0}
    head = small | {"rms": rms}
    return OutputFigures.model_validate(
        {"name": "y", "elements": 9, "head": head, "base": small, "worst_tile": tile,
         "worst_at": [0], "worst_row": 1.0}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tiles", "rms", "draws"),
    [
        ([1, 1], 1e-8, 2),
        ([1, 4.1], 1e-8, 5),  # a little over, once: three more secret draws tell
        ([4.1, 4.1], 1e-8, 2),  # twice is no chance
        ([1, 9], 1e-8, 2),  # nor is twice the limit
        ([1, 4.1], 1.0, 2),  # nor anything beside a broken cap
    ],
)
def test_cell_is_drawn_again_where_that_would_tell(
    monkeypatch: pytest.MonkeyPatch, tiles: list[float], rms: float, draws: int
) -> None:
    contract = load((ROOT / "contracts/l2norm.yaml").read_bytes(), "l2norm")
    cell = next(c for c in cells(contract, "l2norm") if "direction=forward" in c.id)
    reference = contract.entry_points["l2norm"].reference
    said = iter([figures(tile, rms) for tile in [*tiles, 1, 1, 1]])
    monkeypatch.setattr(device, "compare", lambda *_: next(said))
    arms = {"base": arm(0.25), "head": arm(0.5)}

    def drawn(margins: Margins | None) -> list[Draw]:
        both = Comparison(contract, "cpu", {reference: l2norm}, arms, margins)
        return both.cell(cell, [(3, False), (4, True)]).evidence.draws

    found = drawn(Margins(rms=1.5, tile=4.0))
    assert len(found) == draws
    assert [draw.secret for draw in found] == [False, *[True] * (draws - 1)]
    assert len({draw.seed for draw in found}) == draws
    said = iter([figures(tile, rms) for tile in tiles])
    assert len(drawn(None)) == 2  # as for a single seed, which stands for itself


def test_frozen_error_that_is_exceeded_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    contract = load((ROOT / "contracts/l2norm.yaml").read_bytes(), "l2norm")
    cell = next(c for c in cells(contract, "l2norm") if "direction=forward" in c.id)
    reference = contract.entry_points["l2norm"].reference
    margins, arms = Margins(rms=100, tile=4.0, anchor=1.25), {"base": arm(0.25), "head": arm(0.5)}
    for frozen, draws in (({cell.id: {"y": 1e-7}}, 5), ({}, 2)):
        said = iter([figures(1, error) for error in (1e-8, 1.5e-7, 1e-8, 1e-8, 1e-8)])
        monkeypatch.setattr(device, "compare", lambda *_, said=said: next(said))
        both = Comparison(contract, "cpu", {reference: l2norm}, arms, margins, frozen=frozen)
        assert len(both.cell(cell, [(3, False), (4, True)]).evidence.draws) == draws
