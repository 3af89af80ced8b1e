"""Several pairs of workers share the cells of a job."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from bot import policy  # noqa: E402
from bot.device.__main__ import Comparison, Found, share  # noqa: E402
from bot.device.properties import Rotation  # noqa: E402
from bot.evidence import CellEvidence, KernelEvidence  # noqa: E402
from bot.lanes.job import MOST_PAIRS, count_pairs  # noqa: E402
from bot.model import Cell, Outcome  # noqa: E402
from tests.conftest import ROOT  # noqa: E402

CELLS = [Cell("op", (("n", str(n)),)) for n in range(20)]


class Pair:
    """Answers for each cell; `barrier`: waits until all pairs have one."""

    def __init__(self, faults: dict[str, BaseException], barrier: threading.Barrier) -> None:
        self.faults, self.barrier, self.served = faults, barrier, list[str]()

    def entries(self, cell: Cell, draws: Sequence[tuple[int, bool]]) -> Iterator[Found]:
        if not self.served:
            self.barrier.wait(10)
        self.served.append(cell.id)
        assert draws == [(len(cell.id), True)]
        if cell.id in self.faults:
            raise self.faults[cell.id]
        ran = Outcome.RAN
        evidence = CellEvidence(cell=cell.id, head=ran, base=ran, base_form="kernel")
        yield Found(evidence, [KernelEvidence(kernel="k", cell=cell.id, share=0.0)])


def serve(pairs: int, faults: dict[str, BaseException] | None = None) -> list[Pair]:
    barrier = threading.Barrier(pairs)
    found = [Pair(faults or {}, barrier) for _ in range(pairs)]
    share(cast("list[Comparison]", found), CELLS, lambda cell: [(len(cell.id), True)])
    return found


def lines(text: str) -> list[tuple[str, str]]:
    messages = [json.loads(line) for line in text.splitlines()]
    return [(kind, value["cell"]) for message in messages for kind, value in message.items()]


@pytest.mark.parametrize("pairs", [1, 3])
def test_each_cell_is_told_once_with_its_kernels(
    pairs: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = serve(pairs)
    assert all(pair.served for pair in found)
    told = lines(capsys.readouterr().out)
    assert sorted(told[::2]) == sorted(("cell", cell.id) for cell in CELLS)
    # What belongs to a cell stands behind it, whatever other pairs tell meanwhile.
    assert told[1::2] == [("kernel", cell) for _, cell in told[::2]]


def test_cell_without_memory_costs_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    serve(2, {CELLS[4].id: MemoryError("no")})
    told = [cell for kind, cell in lines(capsys.readouterr().out) if kind == "cell"]
    assert sorted(told) == sorted(cell.id for cell in CELLS if cell is not CELLS[4])


def test_fault_of_one_pair_ends_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        serve(2, {CELLS[2].id: ZeroDivisionError()})
    assert len(lines(capsys.readouterr().out)) < 2 * len(CELLS)


def test_pairs_take_turns_with_the_same_properties() -> None:
    rotation, names = Rotation(cast("Any", None), []), ["causal", "linear", "split"]
    chosen: list[str] = []

    def take() -> None:
        for _ in range(100):
            chosen.extend(rotation.next("op", cast("Any", names)))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [chosen.count(name) for name in names] == [100, 100, 100]


def test_what_few_cells_can_show_is_not_left_to_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shows = {CELLS[0].id: ["causal", "linear"], CELLS[1].id: ["causal", "split"]}
    shows |= {cell.id: ["causal", "linear"] for cell in CELLS[2:]}
    monkeypatch.setattr("bot.device.properties.applicable", lambda _, cell: shows[cell.id])
    rotation = Rotation(cast("Any", None), CELLS)
    chosen = [rotation.next("op", cast("Any", shows[cell.id])) for cell in CELLS[:2]]
    assert chosen == [["linear"], ["split"]]


@pytest.mark.parametrize(
    ("interpreter", "cores", "cells", "due"),
    [
        (True, 2, 142, 2),
        (True, 1, 142, 1),
        (True, 2, 25, 1),  # a fresh worker takes as long as these cells
        (True, 64, 142, MOST_PAIRS),
        (False, 16, 142, MOST_PAIRS),
        (False, 2, 142, 1),  # both arms compile at once
        (False, 5, 142, 2),
        (True, 8, 0, 1),
    ],
)
def test_as_many_pairs_as_have_cores_and_cells(
    monkeypatch: pytest.MonkeyPatch, interpreter: bool, cores: int, cells: int, due: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    lanes = policy.load((ROOT / "contracts/policy.yaml").read_bytes(), "policy").lanes
    lane = lanes["interpret:cpu" if interpreter else "correctness:sm90"]
    assert count_pairs(lane, cells) == due
