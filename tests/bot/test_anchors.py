"""Anchors: who may move them, what they are made of, and that the trusted ones count."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bot.amendment import anchor_edits
from bot.anchoring import anchor
from bot.anchors import Anchors, load, strictest
from bot.change import Repository
from bot.check import Analysis, Request, analyse, report
from bot.cli import main
from bot.errors import UserError
from bot.model import CheckState, ItemState, Report
from tests.bot.test_judge import evidence
from tests.conftest import ROOT, Workbench

PATH, LANE, CELL = "contracts/anchors/l2norm.json", "interpret:cpu", "l2norm[a=b]"
KERNEL = "fla/modules/l2norm.py"


def book(values: dict[str, float], lane: str = LANE, **changes: Any) -> dict[str, Any]:
    frozen = {"measured": "2026-11-30", "commit": "a" * 40, "machine": "cpu"}
    lanes = {lane: {**frozen, "cells": {CELL: values}}}
    return {"schema": "fla-bot/anchor@1", "op": "l2norm", "lanes": lanes, **changes}


def parsed(values: dict[str, float], lane: str = LANE) -> Anchors:
    return load(json.dumps(book(values, lane)).encode(), PATH, "l2norm")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (book({"y": -1.0}), "greater than or equal to 0"),
        (book({"y": float("nan")}), "finite"),
        (book({}, op="kda"), "the file's name says `l2norm`"),
        (book({}, verdict="pass"), "Extra inputs"),
        (book({}, schema="fla-bot/anchor@9"), "fla-bot/anchor@1"),
        (book({}, lanes={LANE: {"cells": {}}}), "measured"),
        ([], "should be an object"),
        ("x", "should be an object"),
    ],
)
def test_broken_anchors_are_faults_of_their_file(data: object, says: str) -> None:
    with pytest.raises(UserError) as error:
        load(json.dumps(data).encode(), PATH, "l2norm")
    assert says in " ".join(map(str, error.value.faults))
    assert all(fault.path == PATH for fault in error.value.faults)


def test_directions_of_edits() -> None:
    before, after = parsed({"y": 2e-8, "dx": 3e-8, "z": 1e-8}), parsed({"y": 1e-8, "dx": 4e-8})
    kinds = {edit.place.rpartition(".")[2]: edit.kind for edit in anchor_edits(before, after)}
    assert kinds == {"y": "tighter", "dx": "weaker", "z": "weaker"}
    assert {edit.kind for edit in anchor_edits(None, before)} == {"adds"}
    assert {edit.kind for edit in anchor_edits(before, None)} == {"weaker"}
    assert anchor_edits(before, before) == []


def test_the_stricter_side_counts() -> None:
    before, after = parsed({"y": 2e-8, "dx": 3e-8}), parsed({"y": 1e-8, "dx": 4e-8, "z": 5e-8})
    found = strictest(before, after)
    assert found is not None
    assert found.lanes[LANE].cells[CELL] == {"y": 1e-8, "dx": 3e-8, "z": 5e-8}
    assert strictest(None, after) is after
    assert strictest(before, None) is before
    both = strictest(before, parsed({"y": 1e-8}, "correctness:sm90"))
    assert both is not None
    assert set(both.lanes) == {LANE, "correctness:sm90"}


Change = Callable[[str | None], tuple[Analysis, Report]]


@pytest.fixture
def change(kernels: Workbench) -> Iterator[Change]:
    """Commits other anchors on a branch of a repository that has some."""
    kernels.commit({PATH: json.dumps(book({"y": 2e-8}))})
    with Repository(kernels.path) as repository:

        def commit(text: str | None) -> tuple[Analysis, Report]:
            kernel = (kernels.path / KERNEL).read_text().replace("TILE = 4096", "TILE = 2048")
            kernels.commit({PATH: text, KERNEL: kernel}, branch="work")
            request = Request("main", "work")
            analysis = analyse(repository, request)
            return analysis, report(repository, analysis, request, None)

        yield commit


def item(found: Report, name: str) -> tuple[ItemState, str] | None:
    states = {item.id: (item.state, item.text) for item in found.checklist}
    return states.get(name)


@pytest.mark.parametrize("values", [{"y": 3e-8}, {}, None])
def test_raised_or_removed_anchors_need_a_person(
    change: Change, values: dict[str, float] | None
) -> None:
    analysis, found = change(None if values is None else json.dumps(book(values)))
    state, text = item(found, "contract-change:l2norm") or (None, "")
    assert state is ItemState.HUMAN
    assert "a person must accept" in text
    assert analysis.books.anchors["l2norm"].lanes[LANE].cells[CELL]["y"] == 2e-8


def test_lowered_anchors_count_at_once(change: Change) -> None:
    analysis, found = change(json.dumps(book({"y": 1e-8, "dx": 1e-8})))
    assert analysis.books.anchors["l2norm"].lanes[LANE].cells[CELL] == {"y": 1e-8, "dx": 1e-8}
    state, _ = item(found, "contract-change:l2norm") or (None, "")
    assert state is ItemState.DONE


def test_anchors_that_cannot_be_read_are_a_fault(change: Change) -> None:
    analysis, found = change("{")
    assert item(found, "contract:l2norm") == (
        ItemState.FAILED,
        "contracts/l2norm.yaml cannot be read",
    )
    assert analysis.books.anchors["l2norm"].lanes[LANE].cells[CELL] == {"y": 2e-8}


def test_broken_anchors_of_the_trusted_side_end_the_command(kernels: Workbench) -> None:
    kernels.commit({PATH: "{"})
    kernels.commit({KERNEL: "x = 1\n"}, branch="work")
    with Repository(kernels.path) as repository, pytest.raises(UserError):
        analyse(repository, Request("main", "work"))


def test_lanes_without_anchors_are_named_once(kernels: Workbench) -> None:
    def says(branch: str) -> tuple[list[str], str | None]:
        kernels.commit({KERNEL: "x = 1\n"}, branch=branch)
        with Repository(kernels.path) as repository:
            request = Request("main", branch)
            analysis = analyse(repository, request)
            found = item(report(repository, analysis, request, None), "anchors")
        kernels.git("switch", "--quiet", "main")
        cells = next(job.cells for job in analysis.plan.jobs if job.lane == LANE)
        return cells, found[1] if found else None

    cells, text = says("none")
    assert text == "no anchors for l2norm on interpret:cpu: small losses may add up unseen"
    data = book({})
    data["lanes"][LANE]["cells"] = {cell: {"y": 1e-8} for cell in cells[2:]}
    kernels.commit({PATH: json.dumps(data)})
    assert f"(2 of {len(cells)} cells)" in (says("some")[1] or "")
    data["lanes"][LANE]["cells"] |= {cell: {"y": 1e-8} for cell in cells}
    kernels.commit({PATH: json.dumps(data)})
    assert says("all")[1] is None


def test_frozen_cells_that_are_gone_need_a_person(kernels: Workbench) -> None:
    """One more value on an axis draws other cells: what was frozen for the old ones is lost."""

    def says(branch: str) -> tuple[ItemState, str, str, str] | None:
        kernel = (kernels.path / KERNEL).read_text().replace("TILE = 4096", "TILE = 2048")
        kernels.commit({KERNEL: kernel}, branch=branch)
        with Repository(kernels.path) as repository:
            request = Request("main", branch)
            analysis = analyse(repository, request)
            found = report(repository, analysis, request, None)
        kernels.git("switch", "--quiet", "main")
        if branch == "gone":
            assert found.state is CheckState.ACTION_REQUIRED
        known.update(next(job.cells for job in analysis.plan.jobs if job.lane == LANE))
        items = [item for item in found.checklist if item.id == "anchors:l2norm"]
        return (
            (items[0].state, items[0].text, items[0].evidence, items[0].accept) if items else None
        )

    known = set[str]()
    data = book({"y": 1e-8}, "correctness:sm90")  # not required: nothing is due of it
    kernels.commit({PATH: json.dumps(data)})
    assert says("other") is None
    data = book({"y": 1e-8})
    data["lanes"][LANE]["cells"] = {cell: {"y": 1e-8} for cell in sorted(known)}
    kernels.commit({PATH: json.dumps(data)})
    assert says("all") is None
    data["lanes"][LANE]["cells"] |= {CELL: {"y": 1e-8}, "l2norm[a=c]": {"y": 1e-8}}
    kernels.commit({PATH: json.dumps(data)})
    state, text, evidence_text, code = says("gone") or (None, "", "", "")
    assert state is ItemState.HUMAN
    assert code
    assert text == (f"2 of {len(known) + 2} frozen cells are gone; a person must accept {code}")
    assert evidence_text == f"{CELL} on {LANE}, l2norm[a=c] on {LANE}"
    del data["lanes"][LANE]["cells"]["l2norm[a=c]"]
    kernels.commit({PATH: json.dumps(data)})
    assert (says("fewer") or (None, "", "", code))[3] != code  # another loss, another word


@pytest.fixture
def measured(kernels: Workbench, tmp_path: Path) -> tuple[Path, Callable[..., Path]]:
    """A repository, and a way to write evidence of its interpreter lane."""
    text = (kernels.path / KERNEL).read_text()
    kernels.commit({KERNEL: text.replace("TILE = 4096", "TILE = 2048")}, "work")
    with Repository(kernels.path) as repository:
        analysis = analyse(repository, Request("main", "work"))

    def write(name: str, rms: float, **changes: Any) -> Path:
        data = evidence(analysis, **changes)
        for cell in data["cells"]:
            for draw in cell["draws"]:
                for figures in draw["outputs"]:
                    figures["head"]["rms"] = figures["base"]["rms"] = rms
        folder = tmp_path / name
        folder.mkdir()
        path = folder / f"{data['job']}.json"
        path.write_text(json.dumps(data))
        return path

    return kernels.path, write


def test_anchors_are_the_largest_of_passing_evidence(
    measured: tuple[Path, Callable[..., Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    root, write = measured
    files = [write(str(i), rms) for i, rms in enumerate((1e-8, 9e-8, 2e-8))]
    assert main(["contract", "anchor", "--repo", str(root), *map(str, files)]) == 0
    assert PATH in capsys.readouterr().out
    found = load((root / PATH).read_bytes(), PATH, "l2norm").lanes[LANE]
    assert {value for cell in found.cells.values() for value in cell.values()} == {9e-8}
    assert found.machine == "cpu (cpu)"
    first = (root / PATH).read_text()
    (root / PATH).write_text(json.dumps(book({"y": 1.0}, "correctness:sm90")))
    anchor(root, files)
    again = load((root / PATH).read_bytes(), PATH, "l2norm")
    assert set(again.lanes) == {LANE, "correctness:sm90"}  # other lanes stay
    assert again.lanes[LANE] == load(first.encode(), PATH, "l2norm").lanes[LANE]


def test_nothing_is_frozen_that_does_not_pass(
    measured: tuple[Path, Callable[..., Path]],
) -> None:
    root, write = measured
    for name, rms, changes, says in (
        ("wrong", 1.0, {}, "budget: y rms error"),
        ("short", 1e-8, {"complete": False, "cells": []}, "stopped before this cell"),
        ("lane", 1e-8, {"lane": "interpret:npu"}, "no such contract"),
    ):
        with pytest.raises(UserError, match=says):
            anchor(root, [write(name, rms, **changes)])
    with pytest.raises(UserError, match="no evidence there"):
        anchor(root, [root / "nothing.json"])
    other = write("other", 1e-8, head="b" * 40)
    with pytest.raises(UserError, match="2 commits"):
        anchor(root, [write("good", 1e-8), other])
    assert not (root / PATH).exists()


@pytest.mark.parametrize("op", ["l2norm", "kda"])
def test_shipped_anchors_are_of_our_lanes(op: str) -> None:
    path = ROOT / "contracts" / "anchors" / f"{op}.json"
    found = load(path.read_bytes(), str(path), op)
    assert set(found.lanes) >= {LANE}
    cells = found.lanes[LANE].cells
    assert all(cell.endswith("]") and outputs for cell, outputs in cells.items())
    assert all(value < 0.1 for outputs in cells.values() for value in outputs.values())
