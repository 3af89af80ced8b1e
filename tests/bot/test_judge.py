"""Verdicts from evidence, and evidence that must not be believed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bot import evidence as evidence_file
from bot.cells import call
from bot.change import Repository
from bot.check import Analysis, Request, analyse, evidence_folder, report
from bot.evidence import Evidence
from bot.judge import judge
from bot.model import CheckState, Plan, Verdict
from bot.plan import find_cells
from tests.conftest import Workbench


@pytest.fixture
def analysis(kernels: Workbench) -> Iterator[Analysis]:
    text = (kernels.path / "fla/modules/l2norm.py").read_text()
    kernels.commit({"fla/modules/l2norm.py": text.replace("TILE = 4096", "TILE = 2048")}, "work")
    with Repository(kernels.path) as repository:
        yield analyse(repository, Request("main", "work"))


def evidence(analysis: Analysis, **changes: Any) -> dict[str, Any]:
    """Good evidence for the interpreter lane, with some keys replaced."""
    job = next(job for job in analysis.plan.jobs if job.lane == "interpret:cpu")
    contract = analysis.books.contracts[job.op]
    arm = {"rms": 1e-8, "max_abs": 1e-7}
    cells = []
    for cell in find_cells(contract, job.cells):
        built = call(contract, cell, 0)
        names = [result.name for result in built.results]
        figures = {"head": arm, "base": arm, "worst_tile": 1.0, "worst_at": [0] * 4}
        ran = {"head": "ran", "base": "ran", "base_form": "kernel", "seed": 1}
        cells.append({"cell": cell.id, **ran, "outputs": [{"name": n, **figures} for n in names]})
    plan = analysis.plan
    environment = {"python": "3", "torch": "2", "triton": "3", "device": "cpu"}
    return {
        "schema": "fla-bot/evidence@1",
        "plan": plan.hash,
        "job": job.id,
        "lane": job.lane,
        "head": plan.head,
        "merge_base": plan.merge_base,
        "trusted": plan.trusted,
        "complete": True,
        "note": "",
        "environment": {**environment, "interpreter": True, "protections": []},
        "cells": cells,
        "wall_s": 1.0,
        **changes,
    }


def verdicts(analysis: Analysis, data: dict[str, Any]) -> dict[str, int]:
    found = Evidence.model_validate_json(json.dumps(data))
    rows = judge(analysis.plan, analysis.books.policy, analysis.books.contracts, {found.job: found})
    counts: dict[str, int] = {}
    for row in rows:
        if row.lane == "interpret:cpu":
            counts[row.verdict] = counts.get(row.verdict, 0) + 1
    return counts


def test_good_evidence_passes_every_cell(analysis: Analysis) -> None:
    data = evidence(analysis)
    assert verdicts(analysis, data) == {Verdict.PASS: len(data["cells"])}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("head", "rms"), 1.0),
        (("head", "rms"), 1.5 * 2.0**-24 * 1.01),
        (("worst_tile",), 3.1),
        (("name",), "other"),
    ],
)
def test_one_bad_figure_fails_its_cell(
    analysis: Analysis, place: tuple[str, ...], value: object
) -> None:
    data = evidence(analysis)
    target = data["cells"][0]["outputs"][0] = json.loads(json.dumps(data["cells"][0]["outputs"][0]))
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    assert verdicts(analysis, data)[Verdict.FAIL] == 1


@pytest.mark.parametrize(
    "outcome", ["raised", "worker-died", "timeout", "poison", "guard", "repeat"]
)
def test_a_cell_that_did_not_run_fails(analysis: Analysis, outcome: str) -> None:
    data = evidence(analysis)
    data["cells"][0] |= {"head": outcome, "outputs": []}
    assert verdicts(analysis, data)[Verdict.FAIL] == 1


def test_missing_figures_and_missing_cells_fail(analysis: Analysis) -> None:
    data = evidence(analysis)
    data["cells"][0]["outputs"] = []
    del data["cells"][1]
    assert verdicts(analysis, data)[Verdict.FAIL] == 2


@pytest.mark.parametrize("key", ["plan", "job", "lane", "head", "merge_base", "trusted"])
def test_evidence_for_something_else_is_lost(analysis: Analysis, key: str) -> None:
    good = evidence(analysis)
    other = "0" * 40 if key in ("head", "merge_base", "trusted") else "other"
    found = Evidence.model_validate_json(json.dumps({**good, key: other}))
    rows = judge(
        analysis.plan, analysis.books.policy, analysis.books.contracts, {good["job"]: found}
    )
    assert {row.verdict for row in rows if row.lane == "interpret:cpu"} == {Verdict.LOST}


def test_incomplete_doubled_and_foreign_cells_never_pass(analysis: Analysis) -> None:
    data = evidence(analysis)
    cells = data["cells"]
    assert Verdict.LOST in verdicts(analysis, {**data, "complete": False, "cells": cells[:-1]})
    assert verdicts(analysis, {**data, "cells": [*cells, cells[0]]}) == {Verdict.LOST: 1}
    stranger = {**cells[0], "cell": "l2norm[x=y]"}
    assert verdicts(analysis, {**data, "cells": [*cells, stranger]}) == {Verdict.LOST: 1}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"worst_tile": 1.0', '"worst_tile": NaN', 1),
        lambda text: text.replace('"worst_tile": 1.0', '"worst_tile": Infinity', 1),
        lambda text: text.replace('"worst_tile": 1.0', '"worst_tile": -1', 1),
        lambda text: text.replace('"complete": true', '"complete": true, "verdict": "pass"', 1),
        lambda text: text.replace('"complete": true', '"complete": "yes"', 1),
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[" * 100000,
        lambda text: "\0",
    ],
)
def test_hostile_files_are_lost(
    analysis: Analysis, kernels: Workbench, change: Any, tmp_path: Path
) -> None:
    data = evidence(analysis)
    (tmp_path / f"{data['job']}.json").write_text(change(json.dumps(data)))
    with Repository(kernels.path) as repository:
        found = report(repository, analysis, Request(), tmp_path)
    assert found.state is CheckState.FAILURE
    assert found.verdict is Verdict.LOST


def test_symlinked_and_huge_evidence_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "job.json").symlink_to(tmp_path / "secret.json")
    assert evidence_file.read(tmp_path, "job") is None
    (tmp_path / "big.json").write_bytes(b" " * (evidence_file.MAX_BYTES + 1))
    assert "larger" in str(evidence_file.read(tmp_path, "big"))


def test_write_is_whole_or_nothing(analysis: Analysis, tmp_path: Path) -> None:
    found = Evidence.model_validate_json(json.dumps(evidence(analysis)))
    folder = tmp_path / "evidence"
    assert evidence_file.read(folder, evidence_file.write(folder, found).stem) == found
    assert [path.suffix for path in folder.iterdir()] == [".json"]


def test_plan_hash_covers_the_plan(analysis: Analysis, kernels: Workbench) -> None:
    plan = analysis.plan
    assert plan.hash == plan.compute_hash()
    other = plan.model_copy(update={"jobs": plan.jobs[:1]})
    assert Plan.compute_hash(other) != plan.hash
    with Repository(kernels.path) as repository:
        assert analyse(repository, Request("main", "work")).plan == plan
        assert evidence_folder(repository, plan).name == plan.hash
