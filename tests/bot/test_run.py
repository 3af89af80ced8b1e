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
from bot.cli import main
from bot.errors import InfraError, UserError
from bot.evidence import Evidence, RowEvidence, merged
from bot.lanes.session import Session
from bot.model import Job
from bot.report.checklist import job_item
from bot.run import _tally, run_plan
from tests.bot.test_benchmark_judge import pairs, row
from tests.bot.test_judge import analysis, evidence, failures, first_schema, parsed, verdicts
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
            # As the device says of a kernel that none of the cells launches.
            absent = {"cell": asked.cells[0], "changed": False, "raised": None}
            shown = [k if k["cell"] in asked.cells else {**k, **absent} for k in good["kernels"]]
            return parsed({**good, "cells": cells, "kernels": shown})

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


def test_kernels_of_the_first_run_count_where_the_rest_launches_none(
    again: Again, analysis: Analysis
) -> None:
    doubtful = evidence(analysis)
    doubtful["cells"][4]["unprofiled"] = "the profiler did not start"
    _, after = again(doubtful)
    assert after["kernels"] == parsed(evidence(analysis)).model_dump(mode="json")["kernels"]
    assert verdicts(analysis, after) == {"pass": len(after["cells"])}


def test_what_no_part_shows_is_measured_as_a_whole(again: Again, analysis: Analysis) -> None:
    """Kernels are asked about last, and the last cell launches none of them."""
    stopped = evidence(analysis, complete=False, note="SIGINT interrupted it", kernels=[])
    names = [cell["cell"] for cell in stopped["cells"]]
    stopped["cells"] = stopped["cells"][:-1]
    measured, after = again(stopped)
    assert measured == [names[-1], *names]
    assert verdicts(analysis, after) == {"pass": len(names)}
    assert [draw["seed"] for draw in after["cells"][0]["draws"] if draw["secret"]] == [2, 1]


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


def test_reference_that_is_not_trusted_yet_is_named(
    kernels: Workbench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: Any, **__: Any) -> Evidence:
        raise InfraError("of l2norm, whose reference is there")

    monkeypatch.setattr(bot.run, "run_job", measure)
    new = (kernels.path / "contracts/l2norm.yaml").read_text()
    for old in ("op: l2norm", "fla.modules.l2norm", "/l2norm"):
        new = new.replace(old, old.replace("l2norm", "other"))
    naive = "def naive_l2norm(x, eps=1): ...\n"
    files = {"fla/modules/other.py": naive[:4] + naive[10:], "fla/modules/other_naive.py": naive}
    kernels.write({**files, "contracts/other.yaml": new})
    assert main(["run", "--repo", str(kernels.path), "--lane", LANE]) == 3
    said = capsys.readouterr().err
    assert "the reference fla.modules.other_naive is not in the trusted commit" in said
    assert "`--trusted HEAD` tries a committed one here" in said


def test_fail_stays_where_the_job_was_stopped_after_its_last_cell(
    again: Again, analysis: Analysis
) -> None:
    """Kernels were not asked about yet: that is no reason to draw anew what failed."""
    stopped = evidence(analysis, complete=False, note="SIGINT interrupted it", kernels=[])
    stopped["cells"][0] |= {"head": "raised", "draws": []}
    measured, after = again(stopped)
    assert measured == []
    assert after == stopped


def test_fail_of_another_machine_stays(again: Again, analysis: Analysis) -> None:
    failed = evidence(analysis, complete=False, note="SIGINT interrupted it")
    failed["environment"]["driver"] = "another"
    failed["cells"][0]["draws"][0]["outputs"][0]["head"]["rms"] = 1.0
    failed["cells"] = failed["cells"][:4]
    _, after = again(failed)
    assert after["environment"]["driver"] == "another"
    assert after["cells"][0]["draws"][0]["outputs"][0]["head"]["rms"] == 1.0


def test_worse_of_two_measurements_stays(analysis: Analysis) -> None:
    """An error of a public draw, a property, a kernel, a call that raised: none is drawn away."""
    good, bad = evidence(analysis), evidence(analysis)
    bad["cells"][0]["draws"][0]["outputs"][0]["head"]["rms"] = 1.0
    bad["cells"][1]["properties"][0] |= {"equal": False, "error": 1.0}
    bad["cells"][2] |= {"head": "repeat", "draws": [], "failed_seed": 5}
    bad["kernels"][0] |= {"changed": False}
    for first, second in ((bad, good), (good, bad)):
        both = merged(parsed(first), parsed(second)).model_dump(mode="json", by_alias=True)
        assert verdicts(analysis, both)["fail"] == verdicts(analysis, bad)["fail"] >= 3
    assert verdicts(analysis, good) == {"pass": len(good["cells"])}


def test_audits_of_pooled_restarts_keep_apart(analysis: Analysis) -> None:
    """Numbers of restarts have gaps where another row ended one."""
    first, second = row(pairs(count=4)), row(pairs(count=3))
    moved = [a.model_copy(update={"restart": a.restart + (a.restart > 0)}) for a in first.audits]
    first = first.model_copy(update={"audits": moved})

    def with_row(found: RowEvidence) -> Evidence:
        return parsed(evidence(analysis, cells=[], kernels=[])).model_copy(update={"rows": [found]})

    (both,) = merged(with_row(first), with_row(second)).rows
    assert len({audit.restart for audit in both.audits}) == len(both.restarts) == 7


def test_merge_base_that_does_not_start_is_the_machine_s_fault(
    analysis: Analysis, kernels: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of that is written: it would stay a fail of head when the machine is mended."""
    start = Session.start_worker

    def broken(session: Session, arm: str, end: Any, module: str, *argv: str, **more: Any) -> None:
        start(session, arm, end, f"{module}.absent", *argv, **more)

    monkeypatch.setattr(Session, "start_worker", broken)
    folder = tmp_path / "evidence"
    with Repository(kernels.path) as repository:
        done = run_plan(
            repository, analysis, lane=LANE, evidence_dir=folder, progress=lambda _: None
        )
    (said,) = done.failed.values()
    assert said.startswith("the worker of the merge base does not start here: ")
    assert said.endswith("No module named bot.worker.absent")
    assert (done.written, list(folder.glob("*.json"))) == ([], [])


def test_what_is_said_of_a_job_as_a_whole_is_no_cell(analysis: Analysis) -> None:
    data = evidence(analysis)
    data["cells"][0]["draws"][1]["outputs"][0]["head"]["rms"] = 1.0
    cells = len(data["cells"])
    one, two = parsed(data), parsed(evidence(analysis, kernels=[]))
    (job,) = [job for job in analysis.plan.jobs if job.lane == LANE]
    texts = [
        (_tally(rows), job_item(job, rows).text)
        for rows in (bot.run._rows(analysis, job, found) for found in (one, two))
    ]
    named = f"of {cells} cells of l2norm on {LANE}"
    assert texts == [
        (f"{cells - 1} pass, 1 fail", f"1 {named} fail"),
        (
            f"{cells} pass, 2 fail of the job as a whole",
            f"2 checks {named.replace('of', 'of all', 1)} fail",
        ),
    ]


def test_kernels_that_no_cell_launches_come_with_the_way_to_rename_them(
    analysis: Analysis,
) -> None:
    data = evidence(analysis)
    for kernel in data["kernels"]:
        kernel |= {"changed": False, "raised": None}
    (said,) = failures(analysis, data)
    names = ", ".join(kernel["kernel"] for kernel in data["kernels"])
    assert said.startswith(f"ghost: no cell launches {names}; where it was renamed")
    assert said.index("a person accepts") < said.index("then the code")


def test_evidence_in_what_is_no_folder_is_refused(
    analysis: Analysis, kernels: Workbench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("{}")
    for place in (file, tmp_path / "absent"):
        argv = ["judge", "--repo", str(kernels.path), "--evidence", str(place)]
        assert main(argv) == 1
        assert str(place) in capsys.readouterr().err
    with (
        Repository(kernels.path) as repository,
        pytest.raises(UserError, match="evidence goes to a folder"),
    ):
        run_plan(repository, analysis, lane=LANE, evidence_dir=file, progress=lambda _: None)
