# SPDX-License-Identifier: MIT
"""Every enforced contract, entry point and cell: outputs, gradients and states against fp64.

The calls, the poisoned and guarded memory and the comparison are those of the gate's lanes; here
they run in one process, so that a kernel author gets a traceback. Not covered by the poison: memory
that C++ code allocates, and what a kernel keeps in registers or shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bot.cells import call, cells
from bot.contract import Contract, load
from bot.device.arm import Arena
from bot.device.figures import compare
from bot.device.trial import REPEATS, Trial
from bot.model import Cell, Outcome
from bot.tree import load as load_function
from bot.wire import ROUNDING
from bot.worker.calls import Refused, perform

ROOT = Path(__file__).resolve().parents[2]
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
# The stock interpreter computes bf16 wrongly without saying so.
SKIPPED = () if GPU else ("bf16",)
CONTRACTS = {
    path.stem: load(path.read_bytes(), str(path))
    for path in sorted((ROOT / "contracts").glob("*.yaml"))
    if path.stem != "policy"
}


def each_choice(found: list[Cell]) -> set[str]:
    """Few cells that hold every axis value once: what `make test` runs without a GPU."""
    seen: set[tuple[str, str]] = set()
    chosen = set()
    while True:
        best = max(found, key=lambda cell: len(set(cell.values) - seen), default=None)
        if best is None or not set(best.values) - seen:
            return chosen
        seen |= set(best.values)
        chosen.add(best.id)


def cases() -> list[object]:
    rows = []
    for op, contract in CONTRACTS.items():
        for name in contract.entry_points:
            found = [c for c in cells(contract, name) if dict(c.values)["dtype"] not in SKIPPED]
            few = {cell.id for cell in found} if GPU else each_choice(found)
            for cell in found:
                marks = [] if cell.id in few else [pytest.mark.full]
                rows.append(pytest.param(contract, cell, marks=marks, id=f"{op}-{cell.id}"))
    return rows


@pytest.mark.parametrize(("contract", "cell"), cases())
def test_cell(
    contract: Contract, cell: Cell, record_property: Callable[[str, object], None]
) -> None:
    assert contract.status == "enforced"
    point = contract.entry_points[cell.entry_point]
    plan = call(contract, cell, seed=0)
    function = load_function(plan.target, ROOT)
    trial = Trial(plan, load_function(plan.reference, ROOT), DEVICE)

    def run(memory: Arena) -> Outcome:
        try:
            perform(function, memory.order, memory.memory)
        except Refused as refused:
            pytest.fail(f"{refused.outcome}: {refused}")
        return Outcome.RAN

    outcome, found = trial.run(run, REPEATS)
    assert outcome is Outcome.RAN
    budgets = {output.name: output.budget for output in point.outputs}
    budgets |= {f"d{name}": gradient.budget for name, gradient in point.gradients.items()}
    own = trial.stand_in()
    for result in plan.results:
        figures = compare(result, trial.truth[result.name], found[result.name], own[result.name])
        record_property(result.name, f"{figures.head.rms:.3g} of {figures.base.rms:.3g}")
        limit = max(budgets[result.name][plan.dtype], ROUNDING[result.dtype])
        assert figures.head.rms <= limit, f"{result.name}: {figures.head.rms:.3g} > {limit:.3g}"
