"""What a second run of a plan measures, and what becomes of what the first one left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bot.run
from bot.change import Repository
from bot.check import Analysis
from bot.evidence import Evidence, RowEvidence, merged
from bot.model import Job
from bot.run import run_plan
from tests.bot.test_benchmark_judge import pairs, row
from tests.bot.test_judge import analysis, evidence, first_schema, parsed
from tests.conftest import Workbench

__all__ = ["analysis"]

Again = Callable[[dict[str, Any] | None], tuple[list[str], dict[str, Any]]]
LANE = "interpret:cpu"


@pytest.fixture
def again(
    analysis: Analysis, kernels: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Again:
    """Run with what is left there before; the cells that were measured, and the file afterwards."""
    (job,) = [job for job in analysis.plan.jobs if job.lane == LANE]
    file = tmp_path / "evidence" / f"{job.id}.json"
    file.parent.mkdir()

    def run(before: dict[str, Any] | None) -> tuple[list[str], dict[str, Any]]:
        measured: list[str] = []

        def measure(_: Repository, *given: Any, **__: Any) -> Evidence:
            (asked,) = [part for part in given if isinstance(part, Job)]
            measured.extend(asked.cells)
            good = evidence(analysis)
            cells = [cell for cell in good["cells"] if cell["cell"] in asked.cells]
            for cell in cells:
                cell["draws"][1]["seed"] = 2
            of_cells = [k for k in good["kernels"] if k["cell"] in asked.cells]
            return parsed({**good, "cells": cells, "kernels": of_cells})

        monkeypatch.setattr(bot.run, "run_job", measure)
        if before is not None:
            file.write_text(json.dumps(before))
        with Repository(kernels.path) as repository:
            folder, quiet = file.parent, lambda _: None
            run_plan(repository, analysis, lane=LANE, evidence_dir=folder, progress=quiet)
        return measured, json.loads(file.read_text())

    return run


def test_settled_job_is_not_measured_again(again: Again, analysis: Analysis) -> None:
    assert again(evidence(analysis))[0] == []


def test_fail_is_not_measured_again(again: Again, analysis: Analysis) -> None:
    failed = evidence(analysis)
    failed["cells"][0]["draws"][1]["outputs"][0]["head"]["rms"] = 1.0
    measured, after = again(failed)
    assert measured == []
    assert after == failed


@pytest.mark.parametrize("key", ["plan", "job", "lane"])
def test_evidence_of_something_else_does_not_count(
    again: Again, analysis: Analysis, key: str
) -> None:
    measured, after = again(evidence(analysis, **{key: "other:cpu"}))
    assert len(measured) == len(after["cells"])
    assert after[key] != "other:cpu"


def test_stopped_job_goes_on_where_it_stopped_and_keeps_its_fail(
    again: Again, analysis: Analysis
) -> None:
    stopped = evidence(analysis, complete=False, note="the lane's time was over", kernels=[])
    names = [cell["cell"] for cell in stopped["cells"]]
    stopped["cells"] = stopped["cells"][:3]
    stopped["cells"][1] |= {"head": "raised", "draws": []}
    measured, after = again(stopped)
    assert measured == names[3:]
    assert after["complete"]
    assert [cell["cell"] for cell in after["cells"]] == names
    assert [cell["head"] for cell in after["cells"][:3]] == ["ran", "raised", "ran"]
    assert after["wall_s"] == 2.0


def test_cell_that_is_not_proven_keeps_its_draws(again: Again, analysis: Analysis) -> None:
    doubtful = evidence(analysis)
    cell = doubtful["cells"][4]
    cell["unprofiled"] = "the profiler did not start"
    measured, after = again(doubtful)
    assert measured == [cell["cell"]]
    (found,) = [one for one in after["cells"] if one["cell"] == cell["cell"]]
    assert [draw["seed"] for draw in found["draws"] if draw["secret"]] == [2, 1]
    assert found["unprofiled"] == ""


def test_other_machine_measures_all_of_it(again: Again, analysis: Analysis) -> None:
    doubtful = evidence(analysis)
    doubtful["environment"]["driver"] = "another"
    doubtful["cells"][4]["unprofiled"] = "the profiler did not start"
    measured, after = again(doubtful)
    assert len(measured) == 1 + len(doubtful["cells"])
    assert {draw["seed"] for cell in after["cells"] for draw in cell["draws"]} & {1, 2} == {2}


def test_older_schema_is_measured_anew(again: Again, analysis: Analysis) -> None:
    """Its draws lack figures that are due today; together with new ones they would be red."""
    stopped = {**first_schema(analysis), "complete": False, "note": "the lane's time was over"}
    stopped["cells"] = stopped["cells"][:3]
    measured, after = again(stopped)
    assert after["schema"] == "fla-bot/evidence@2"
    assert set(measured) == {cell["cell"] for cell in after["cells"]}
    assert {
        draw["seed"] for cell in after["cells"] for draw in cell["draws"] if draw["secret"]
    } == {2}


def test_rows_pool_their_restarts(analysis: Analysis) -> None:
    """Who measures until it passes is held to all that was measured."""

    def with_row(found: RowEvidence) -> Evidence:
        return parsed(evidence(analysis, cells=[], kernels=[])).model_copy(update={"rows": [found]})

    first, second = row(pairs(1.02)), row(pairs(0.99))
    (both,) = merged(with_row(first), with_row(second)).rows
    assert both.restarts == [*first.restarts, *second.restarts]
    assert {audit.restart for audit in both.audits} == set(range(len(both.restarts)))
    eager = row(pairs(), mode="eager")
    assert merged(with_row(first), with_row(eager)).rows == [eager]
