"""Verdicts from evidence, and evidence that must not be believed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest

from bot import evidence as evidence_file
from bot.anchors import Anchors, Measured
from bot.cells import Result, call, public_seed
from bot.change import Repository
from bot.check import Analysis, Request, analyse, evidence_folder, report
from bot.evidence import Evidence
from bot.judge import judge
from bot.model import CheckState, Plan, Row, Verdict
from bot.plan import find_cells
from bot.statistics import allowance
from tests.conftest import Workbench

Figures = dict[str, float]


@pytest.fixture
def analysis(kernels: Workbench) -> Iterator[Analysis]:
    text = (kernels.path / "fla/modules/l2norm.py").read_text()
    kernels.commit({"fla/modules/l2norm.py": text.replace("TILE = 4096", "TILE = 2048")}, "work")
    with Repository(kernels.path) as repository:
        yield analyse(repository, Request("main", "work"))


def figures(result: Result) -> dict[str, Any]:
    """Good figures of one output."""
    arm = {"rms": 1e-8, "max_abs": 1e-7, "tail": 2.0, "slope": 0.0}
    worst = {"worst_tile": 1.0, "worst_at": [0] * 4, "worst_row": 1.0}
    return {
        "name": result.name,
        "elements": prod(result.shape),
        "head": {**arm},
        "base": {**arm},
        **worst,
    }


def evidence(analysis: Analysis, **changes: Any) -> dict[str, Any]:
    """Good evidence for the interpreter lane, with some keys replaced."""
    job = next(job for job in analysis.plan.jobs if job.lane == "interpret:cpu")
    contract = analysis.books.contracts[job.op]
    plan, cells = analysis.plan, []
    for cell in find_cells(contract, job.cells):
        results = call(contract, cell, 0).results
        held = {"name": "permutation", "output": "y", "equal": True, "error": 0.0}
        draws = [
            {"seed": seed, "secret": secret, "outputs": [figures(result) for result in results]}
            for seed, secret in ((public_seed(plan.hash, cell.id), False), (1, True))
        ]
        ran = {"head": "ran", "base": "ran", "base_form": "kernel"}
        cells.append({"cell": cell.id, **ran, "draws": draws, "properties": [held]})
    names = contract.entry_points["l2norm"].dispatch
    kernels = [
        {"kernel": kernel, "cell": cells[0]["cell"], "changed": True, "raised": True}
        for kernel in (names.kernels if names else [])
    ]
    environment = {"python": "3", "torch": "2", "triton": "3", "device": "cpu"}
    return {
        "schema": "fla-bot/evidence@2",
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
        "kernels": kernels,
        "wall_s": 1.0,
        **changes,
    }


def first_schema(analysis: Analysis) -> dict[str, Any]:
    """The same as bots wrote it before: one secret draw, fewer figures."""
    data = evidence(analysis, schema="fla-bot/evidence@1")
    del data["kernels"]
    for cell in data["cells"]:
        del cell["properties"]
        draw = cell.pop("draws")[1]
        cell |= {"seed": draw["seed"], "outputs": draw["outputs"]}
        for one in cell["outputs"]:
            del one["elements"], one["worst_row"]
            for arm in ("head", "base"):
                del one[arm]["tail"], one[arm]["slope"]
    return data


def parsed(data: dict[str, Any]) -> Evidence:
    return evidence_file.parse(json.dumps(data).encode())


def rows(analysis: Analysis, data: dict[str, Any], anchors: Anchors | None = None) -> list[Row]:
    found, books = parsed(data), analysis.books
    frozen = {"l2norm": anchors} if anchors else None
    judged = judge(analysis.plan, books.policy, books.contracts, {found.job: found}, frozen)
    return [row for row in judged if row.lane == "interpret:cpu"]


def verdicts(analysis: Analysis, data: dict[str, Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows(analysis, data):
        counts[row.verdict] = counts.get(row.verdict, 0) + 1
    return counts


def failures(analysis: Analysis, data: dict[str, Any], anchors: Anchors | None = None) -> list[str]:
    """Reasons of what fails; everything else has to pass."""
    found = rows(analysis, data, anchors)
    assert {row.verdict for row in found} <= {Verdict.PASS, Verdict.FAIL}
    return [row.reason for row in found if row.verdict is Verdict.FAIL]


@pytest.mark.parametrize("make", [evidence, first_schema])
def test_good_evidence_passes_every_cell(
    analysis: Analysis, make: Callable[[Analysis], dict[str, Any]]
) -> None:
    data = make(analysis)
    assert verdicts(analysis, data) == {Verdict.PASS: len(data["cells"])}


BAD_FIGURES = [
    (("head", "rms"), 1.0, "budget: y rms error 1, limit 2e-07"),
    (("head", "rms"), 1.6 * 2.0**-24, "rms: y error 9.54e-08, limit"),
    (("worst_tile",), 4.1, "tile: y at [0, 0, 0, 0]: 4.1x the merge base's error, limit 4x"),
    (("worst_row",), 8.1, "row: y 8.1x the merge base's error, limit 8x"),
    (("head", "tail"), 150.0, "tail: y one element is 150 half roundings off, limit"),
    (("head", "slope"), 6e-4, "slope: y a bias of 0.06%, limit 0.05%"),
    (("elements",), 5, "missing-row: figures are over another number of elements"),
    (("head", "slope"), None, "missing-row: a figure is left out"),
    (("worst_row",), None, "missing-row: a figure is left out"),
    (("name",), "other", "missing-row: figures for y are due"),
]


@pytest.mark.parametrize(("place", "value", "reason"), BAD_FIGURES)
@pytest.mark.parametrize("draw", [0, 1])
def test_one_bad_figure_fails_its_cell(
    analysis: Analysis, place: tuple[str, ...], value: object, reason: str, draw: int
) -> None:
    data = evidence(analysis)
    chosen = data["cells"][0]["draws"][draw]
    target = chosen["outputs"][0]
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    (said,) = failures(analysis, data)
    assert said.startswith(reason)
    if not reason.startswith("missing-row"):
        cell = data["cells"][0]["cell"]
        command = f"fla-bot run --lane interpret:cpu --only '{cell}' --seed {chosen['seed']}"
        assert said.endswith(f"; reproduce: {command}")


NEAR = {"worst_tile": 4.1}
AGAIN = [
    # Figures of the public draw, of the secret one, of three more, and whether the cell fails.
    (NEAR, {}, [{}, {}, {}], False),
    ({}, NEAR, [{}, {}, {}], False),
    ({"worst_tile": 4.1, "worst_row": 8.1}, {}, [{}, {}, {}], False),
    (NEAR, {}, [{}], True),  # not drawn often enough
    (NEAR, NEAR, [{}, {}, {}], True),
    (NEAR, {}, [{}, NEAR, {}], True),
    ({"worst_tile": 8.1}, {}, [{}, {}, {}], True),  # too far off for chance
    ({"rms": 1.0}, {}, [{}, {}, {}], True),  # the contract's cap leaves nothing to it
    ({}, {}, [{}, {}, {"worst_tile": 8.1}], True),
]


@pytest.mark.parametrize(("public", "secret", "more", "fails"), AGAIN)
def test_figure_that_is_over_in_one_draw_only_is_chance(
    analysis: Analysis, public: Figures, secret: Figures, more: list[Figures], fails: bool
) -> None:
    data = evidence(analysis)
    draws = data["cells"][0]["draws"]
    for number in range(len(more)):
        draws.append({**json.loads(json.dumps(draws[1])), "seed": 100 + number})
    for draw, changed in zip(draws, [public, secret, *more], strict=True):
        one = draw["outputs"][0]
        one["head"] |= {key: value for key, value in changed.items() if key == "rms"}
        one |= {key: value for key, value in changed.items() if key != "rms"}
    assert bool(failures(analysis, data)) is fails
    said = next(row for row in rows(analysis, data) if row.cell == data["cells"][0]["cell"])
    told = "a figure was over its limit in one draw and in no other"
    assert said.reason.endswith(told) is not fails


def test_limits_follow_the_merge_base(analysis: Analysis) -> None:
    """Three times the base's tail and slope pass; what is below the floors always does."""
    data = evidence(analysis)
    one = data["cells"][0]["draws"][0]["outputs"][0]
    one["base"] |= {"tail": 20.0, "slope": 1e-2, "rms": 1.2e-7}
    one["head"] |= {"tail": 70.0, "slope": 2.9e-2, "rms": 1.7e-7}
    assert failures(analysis, data) == []
    one["head"]["tail"] = 200.0
    assert failures(analysis, data)[0].startswith("tail: ")


def test_few_numbers_have_an_allowance_and_a_cap(analysis: Analysis) -> None:
    """The allowance widens ratios, never the contract's own budget."""
    cell = next(c for c in evidence(analysis)["cells"] if "width=d3," in c["cell"])
    results = {f["name"]: f["elements"] for f in cell["draws"][0]["outputs"]}
    factor = allowance(results["y"])
    assert factor > 1.2
    data = evidence(analysis)
    chosen = next(c for c in data["cells"] if c["cell"] == cell["cell"])
    one = chosen["draws"][0]["outputs"][0]
    one["base"]["tail"], one["head"]["tail"] = 40.0, 40.0 * 4 * factor * 0.99
    assert failures(analysis, data) == []
    one["head"]["tail"] *= 1.02
    assert failures(analysis, data)[0].startswith("tail: ")


def test_backend_that_nobody_declared_is_red(analysis: Analysis) -> None:
    """Whoever serves calls under a name of its own would be asked for no kernel."""
    data = evidence(analysis, kernels=[])
    for cell in data["cells"]:
        cell["backend"] = "nonsense"
    reason = "dispatch: nonsense served l2norm; the contract has none such"
    assert reason in failures(analysis, data)


def test_one_row_has_one_factor(analysis: Analysis) -> None:
    """On an H200 the norm of one row was exact in fla-core and two steps of fp32 off in ours."""
    data = evidence(analysis)
    for cell in data["cells"]:
        if "dtype=fp32" in cell["cell"]:
            one = cell["draws"][0]["outputs"][0]
            one["base"]["rms"], one["head"]["rms"] = 3.2e-8, 1.3e-7
    red = {row.cell for row in rows(analysis, data) if row.verdict is Verdict.FAIL}
    single = {row.cell for row in rows(analysis, data) if "rows=one" in row.cell}
    assert red
    assert single
    assert not red & single


def test_no_kernel_is_held_to_less_than_one_rounding_of_few_numbers(analysis: Analysis) -> None:
    """An exact y of three numbers is up to 0.0039 off in bf16, once it is rounded."""
    for error, is_red in ((3.52e-3, False), (4e-3, True)):
        data, few = evidence(analysis), {}
        for cell in data["cells"]:
            one = cell["draws"][1]["outputs"][0]
            if "direction=forward" in cell["cell"] and "dtype=bf16" in cell["cell"]:
                one["head"]["rms"] = error
                few[cell["cell"]] = one["elements"] <= 64
        found = {row.cell: row.reason.startswith("budget: y") for row in rows(analysis, data)}
        assert {found[cell] for cell in few if few[cell]} == {is_red}
        assert {found[cell] for cell in few if not few[cell]} == {True}


HARD = [
    # base, head in one draw; head in three more; whether the cell fails
    (1.5e-6, 1.5e-6, [], False),  # head is no worse than the merge base, both over
    (9e-6, 9e-6, [], True),  # so far that it is broken
    (1.5e-6, 1.55e-6, [], True),  # worse than it, and nothing says that this is chance
    (1.5e-6, 1.55e-6, [1e-8, 1e-8, 1e-8], False),
    (1.5e-6, 1.55e-6, [1e-8, 1e-8, 3e-6], True),  # not in one draw only
    (1e-8, 3e-7, [1e-8, 1e-8, 1e-8], True),  # these inputs are not hard: the merge base holds it
    (1e300, 3e-7, [1e-8, 1e-8, 1e-8], True),  # no number at all excuses nobody
]


@pytest.mark.parametrize(("base", "head", "more", "fails"), HARD)
def test_budget_that_the_merge_base_is_over_too(
    analysis: Analysis, base: float, head: float, more: list[float], fails: bool
) -> None:
    """One token gives one product, and two of them may cancel: any kernel's error is large."""
    data = evidence(analysis)
    cell = next(c for c in data["cells"] if "dtype=fp32,direction=forward" in c["cell"])
    draws = cell["draws"]
    for number in range(len(more)):
        draws.append({**json.loads(json.dumps(draws[1])), "seed": 100 + number})
    for draw, rms in zip(draws[1:], [head, *more], strict=True):
        draw["outputs"][0]["head"]["rms"] = rms
    draws[1]["outputs"][0]["base"]["rms"] = base
    assert bool(failures(analysis, data)) is fails
    said = next(row for row in rows(analysis, data) if row.cell == cell["cell"])
    assert said.reason.endswith("the merge base is over the budget of y, too") is not fails


def test_bias_of_a_half_result_below_its_rounding_is_none(analysis: Analysis) -> None:
    """0.12% is between two honest kernels in bf16; a factor of 1.003 is a fault in each dtype."""
    every = {"fp32", "fp16", "bf16"}
    for bias, wanted in ((1.2e-3, {"fp32", "fp16"}), (1.4e-3, every), (3e-3, every)):
        data = evidence(analysis)
        for cell in data["cells"]:
            cell["draws"][0]["outputs"][0]["head"]["slope"] = bias
        failed = [row for row in rows(analysis, data) if row.reason.startswith("slope: ")]
        assert {row.cell.partition("dtype=")[2].partition(",")[0] for row in failed} == wanted


def test_not_finite_fails_even_where_the_base_is_too(analysis: Analysis) -> None:
    data = evidence(analysis)
    one = data["cells"][0]["draws"][1]["outputs"][0]
    lost = {"rms": 1e300, "max_abs": 1e300, "tail": 1e300, "slope": 1e300}
    one |= {"head": lost, "base": lost, "worst_at": [1, 2, 0, 3]}
    assert failures(analysis, data)[0].startswith("budget: y at [1, 2, 0, 3] is not finite")


def test_base_that_is_not_finite_is_no_measure(analysis: Analysis) -> None:
    """Limits by its error would be none at all; the contract's budget stays."""
    data = evidence(analysis)
    one = data["cells"][0]["draws"][1]["outputs"][0]
    one["base"] = {"rms": 1e300, "max_abs": 1e300, "tail": 1e300, "slope": 1e300}
    one["head"] |= {"rms": 1.9e-7, "tail": 1e6, "slope": 0.9}
    (said,) = [row for row in rows(analysis, data) if row.verdict is not Verdict.PASS]
    assert (said.cell, said.verdict) == (data["cells"][0]["cell"], Verdict.NOT_COMPARABLE)
    assert said.reason.startswith("y of the merge base is not finite")
    one["head"]["rms"] = 1.0
    assert failures(analysis, data)[0].startswith("budget: y")


def test_reference_may_stand_in_for_a_base_that_ran(analysis: Analysis) -> None:
    data = evidence(analysis)
    data["cells"][0]["base_form"] = "reference"  # what the merge base gave was not finite
    assert failures(analysis, data) == []


def test_draws_that_are_due(analysis: Analysis) -> None:
    data = evidence(analysis)
    public, secret = data["cells"][0]["draws"]
    for draws, reason in (
        ([public], "no draw was secret"),
        ([secret], "the public draw is not there"),
        ([secret, {**secret, "seed": 2}], "the public draw is not there"),
        ([{**public, "seed": 3}, secret], "the public draw is not there, or has another seed"),
        ([public, secret, secret], "a draw stands twice"),
        ([], "figures for y are due"),
    ):
        data["cells"][0]["draws"] = draws
        (said,) = failures(analysis, data)
        assert said.startswith(f"missing-row: {reason}")
    data["cells"][0]["draws"] = [public, secret, {**secret, "seed": 2}]
    assert failures(analysis, data) == []


def test_properties(analysis: Analysis) -> None:
    data = evidence(analysis)
    held = data["cells"][0]["properties"][0]
    held |= {"equal": False, "error": 1e-9}
    (said,) = failures(analysis, data)
    assert said.startswith("property: permutation of y: other bits, 1e-09 apart; reproduce: ")
    for name in ("linear", "never_heard_of"):  # the contract does not state these
        held["name"] = name
        assert failures(analysis, data) == []
    held |= {"name": "permutation", "output": "dx2", "equal": True, "error": 0.0}
    (said,) = failures(analysis, data)
    assert said == "missing-row: property: permutation of dx2, which is no result of this cell"
    for cell in data["cells"]:
        cell["properties"] = []
    (said,) = failures(analysis, data)
    assert said == "missing-row: no cell of l2norm showed the property `permutation`"


def test_kernels(analysis: Analysis) -> None:
    data = evidence(analysis)
    first = data["kernels"][0]
    for key, code in (("changed", "ghost: "), ("raised", "fallback: ")):
        first |= {"changed": True, "raised": True, key: False}
        (said,) = failures(analysis, data)
        assert said.startswith(code)
        assert first["kernel"] in said
    for untried in ({"changed": None}, {"raised": None}, {"changed": None, "raised": None}):
        first |= {"changed": True, "raised": True} | untried
        (said,) = failures(analysis, data)
        assert said == f"missing-row: nothing was shown of {first['kernel']} of l2norm"
    first |= {"changed": True, "raised": True}
    assert verdicts(analysis, {**data, "kernels": data["kernels"] * 2}) == {Verdict.LOST: 1}
    stranger = {**first, "cell": "l2norm[x=y]"}
    assert verdicts(analysis, {**data, "kernels": [stranger]}) == {Verdict.LOST: 1}


def test_kernels_that_nobody_declared_or_showed(analysis: Analysis) -> None:
    data = evidence(analysis)
    gemm = {"kernel": "nvjet_sm90", "cell": data["cells"][1]["cell"], "share": 0.04}
    data["kernels"].append(gemm)
    assert failures(analysis, data) == []
    gemm["share"] = 0.5
    (said,) = failures(analysis, data)
    assert said.startswith("undeclared-kernel: nvjet_sm90 takes 50% of the device time")
    data["kernels"] = data["kernels"][1:2]
    (said,) = failures(analysis, data)
    assert said == "missing-row: nothing was shown of l2norm_fwd_kernel of l2norm"


def test_device_time_that_is_not_known_proves_nothing(analysis: Analysis) -> None:
    data = evidence(analysis)
    data["cells"][0]["unprofiled"] = "the profiled call ended with worker-died"
    (said,) = [row for row in rows(analysis, data) if row.verdict is not Verdict.PASS]
    assert said.verdict is Verdict.NOT_PROVEN
    assert said.reason.endswith("the profiled call ended with worker-died")


def test_cell_that_neither_arm_can_run_is_neither_red_nor_green(analysis: Analysis) -> None:
    data = evidence(analysis)
    data["cells"][0] |= {"head": "raised", "base": "raised", "base_form": "reference", "draws": []}
    (said,) = [row for row in rows(analysis, data) if row.verdict is not Verdict.PASS]
    assert (said.cell, said.verdict) == (data["cells"][0]["cell"], Verdict.NOT_PROVEN)
    assert said.reason == (
        "raised in both arms: the machine or the merge base cannot run this cell"
    )
    for head, base in (("raised", "ran"), ("raised", "timeout"), ("poison", "raised")):
        form = "kernel" if base == "ran" else "reference"
        data["cells"][0] |= {"head": head, "base": base, "base_form": form}
        assert failures(analysis, data)[0].startswith(f"{head}: ")
    for cell in data["cells"]:  # a machine that can run nothing: no kernel, no property either
        cell |= {"head": "raised", "base": "raised", "base_form": "reference", "draws": []}
        cell["properties"] = []
    found = verdicts(analysis, {**data, "kernels": []})
    assert found == {Verdict.NOT_PROVEN: len(data["cells"])}


def test_configurations_belong_to_their_lane(analysis: Analysis) -> None:
    data = evidence(analysis)
    data["cells"][0]["configuration"] = 0
    assert verdicts(analysis, data) == {Verdict.LOST: 1}
    books, plan = analysis.books, analysis.plan
    (job,) = [job for job in plan.jobs if job.lane == "interpret:cpu"]
    lane = {**books.policy.lanes, "configs:cpu": books.policy.lanes["interpret:cpu"]}
    policy = books.policy.model_copy(update={"lanes": lane})
    moved = job.model_copy(update={"lane": "configs:cpu"})
    plan = plan.model_copy(update={"jobs": [moved]})

    def judged(entries: list[dict[str, Any]], due: int | None = 3, **changes: Any) -> list[Row]:
        told = {"lane": "configs:cpu", "kernels": [], "configurations": due, **changes}
        found = parsed({**data, **told, "cells": entries})
        return judge(plan, policy, books.contracts, {job.id: found})

    entries = [{**cell, "configuration": i} for cell in data["cells"] for i in range(3)]
    for entry in entries:  # a secret draw is enough there
        entry["draws"] = entry["draws"][1:]
    assert {row.verdict for row in judged(entries)} == {Verdict.PASS}
    fewer = judged(entries, 4)
    assert {row.verdict for row in fewer} == {Verdict.FAIL}
    assert fewer[0].reason == "missing-row: 3 of 4 configurations"
    unknown = judged(entries, None)
    assert {row.verdict for row in unknown} == {Verdict.NOT_PROVEN}
    assert "how many configurations are due cannot be read" in unknown[0].reason
    unfit = [{**entry, "unfit": ["a_kernel[1]: pruned"]} for entry in entries]
    assert judged(unfit)[0].reason.endswith("; unfit: a_kernel[1]: pruned")
    (lost,) = judged([*entries, entries[1]])
    assert lost.verdict is Verdict.LOST
    (lost,) = judged([{**entry, "configuration": None} for entry in entries[::3]])
    assert lost.verdict is Verdict.LOST
    (bad,) = [row for row in judged(entries[1:]) if row.verdict is Verdict.FAIL]
    assert bad.reason.startswith("missing-row: 2 configurations, the last is 2")
    entries[4] = json.loads(json.dumps(entries[4]))
    entries[4]["draws"][0]["outputs"][0]["worst_tile"] = 5.0
    (bad,) = [row for row in judged(entries) if row.verdict is Verdict.FAIL]
    assert bad.reason.startswith("configuration 1: tile: ")
    # Cut short: what was measured and is wrong stays so, what is right is not all that is due.
    cut = judged(entries[:5], complete=False, note="the lane's time was over")
    assert cut[1].reason.startswith("configuration 1: tile: ")
    assert cut[1].verdict is Verdict.FAIL
    short = judged(entries[:2], complete=False, note="the lane's time was over")
    assert short[0].verdict is Verdict.LOST
    assert short[0].reason.startswith(
        "the job stopped before the last of them: missing-row: 2 of 3"
    )


def test_anchor_holds_what_the_merge_base_lets_go(analysis: Analysis) -> None:
    data = evidence(analysis)
    cell, one = data["cells"][0], data["cells"][0]["draws"][0]["outputs"][0]
    one["base"]["rms"], one["head"]["rms"] = 1.55e-7, 1.9e-7  # a little worse, once again
    assert failures(analysis, data) == []
    frozen = {"measured": "2026-11-30", "commit": "0" * 40, "machine": "cpu"}
    lane = Measured(**frozen, cells={cell["cell"]: {"y": 8e-8}})
    anchors = Anchors(schema="fla-bot/anchor@1", op="l2norm", lanes={"interpret:cpu": lane})
    (said,) = failures(analysis, data, anchors)
    assert said.startswith("anchor: y error 1.9e-07, limit 1.59e-07 by")
    other = anchors.model_copy(update={"lanes": {"correctness:sm90": lane}})
    assert failures(analysis, data, other) == []
    one["base"]["rms"] = 1.9e-7  # inputs that are hard for both arms
    assert failures(analysis, data, anchors) == []


@pytest.mark.parametrize(
    "outcome", ["raised", "worker-died", "timeout", "poison", "guard", "repeat"]
)
def test_a_cell_that_did_not_run_fails(analysis: Analysis, outcome: str) -> None:
    data = evidence(analysis)
    data["cells"][0] |= {"head": outcome, "draws": [], "failed_seed": 77}
    (said,) = failures(analysis, data)
    assert said.startswith(f"{outcome}: ")
    assert said.endswith("--seed 77")


def test_missing_figures_and_missing_cells_fail(analysis: Analysis) -> None:
    data = evidence(analysis)
    data["cells"][0]["draws"][1]["outputs"] = []
    del data["cells"][1]
    assert verdicts(analysis, data)[Verdict.FAIL] == 2


@pytest.mark.parametrize("key", ["plan", "job", "lane", "head", "merge_base", "trusted"])
def test_evidence_for_something_else_is_lost(analysis: Analysis, key: str) -> None:
    good = evidence(analysis)
    other = "0" * 40 if key in ("head", "merge_base", "trusted") else "other"
    found = parsed({**good, key: other})
    judged = judge(
        analysis.plan, analysis.books.policy, analysis.books.contracts, {good["job"]: found}
    )
    assert {row.verdict for row in judged if row.lane == "interpret:cpu"} == {Verdict.LOST}


def test_incomplete_doubled_and_foreign_cells_never_pass(analysis: Analysis) -> None:
    data = evidence(analysis)
    cells = data["cells"]
    assert Verdict.LOST in verdicts(analysis, {**data, "complete": False, "cells": cells[:-1]})
    assert verdicts(analysis, {**data, "cells": [*cells, cells[0]]}) == {Verdict.LOST: 1}
    stranger = {**cells[0], "cell": "l2norm[x=y]"}
    assert verdicts(analysis, {**data, "cells": [*cells, stranger]}) == {Verdict.LOST: 1}


def test_job_that_stopped_after_its_last_cell_is_not_green(analysis: Analysis) -> None:
    """Kernels and backends are asked about after all cells; who hangs there must not get away."""
    data = evidence(analysis, complete=False, note="the lane's time was over", kernels=[])
    (lost,) = [row for row in rows(analysis, data) if row.verdict is Verdict.LOST]
    assert lost.reason == "the job stopped before its end: the lane's time was over"


@pytest.mark.parametrize("outcome", ["timeout", "worker-died", "protocol"])
def test_merge_base_that_was_stopped_proves_nothing(analysis: Analysis, outcome: str) -> None:
    """Head could starve it, to be held to the larger errors of PyTorch."""
    data = evidence(analysis)
    cell = data["cells"][0]
    cell |= {"base": "raised", "base_form": "reference"}
    assert verdicts(analysis, data) == {Verdict.PASS: len(data["cells"])}
    cell["base"] = outcome
    (said,) = [row for row in rows(analysis, data) if row.verdict is not Verdict.PASS]
    assert (said.cell, said.verdict) == (cell["cell"], Verdict.NOT_PROVEN)
    cell["base_form"] = "kernel"
    assert verdicts(analysis, data) == {Verdict.LOST: 1}


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
    found = parsed(evidence(analysis))
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
