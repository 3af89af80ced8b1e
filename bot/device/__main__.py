"""Drive both workers through the cells of a job and print one line of JSON for each.

Reads the order from standard input. Seeds are drawn after the workers have imported, and leave
this process only in its output.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import Any

import torch

from bot.cells import call
from bot.contract import Contract
from bot.device.arm import Arm
from bot.device.figures import compare
from bot.device.trial import Results, Trial
from bot.evidence import CellEvidence, Environment
from bot.model import Cell, Outcome
from bot.tree import TreeFinder, load


def main() -> None:
    """The job that stands on standard input."""
    order = json.load(sys.stdin)
    torch.set_num_threads(1)
    if order["device"] == "cuda" and not torch.cuda.is_available():
        _print("refused", {"reason": "the lane needs a CUDA device; there is none here"})
        return
    contract = Contract.model_validate_json(json.dumps(order["contract"]))
    tree = Path(order["trusted_tree"]).resolve()
    sys.meta_path.insert(0, TreeFinder(tree, order["roots"]))
    cells = [Cell(c["entry_point"], tuple((a, v) for a, v in c["values"])) for c in order["cells"]]
    points = [contract.entry_points[name] for name in sorted({c.entry_point for c in cells})]
    named = {point.reference for point in points if point.reference}
    references = {reference: load(reference, tree) for reference in named}
    _print("environment", _environment(order).model_dump(mode="json"))
    arms = {name: Arm(order["arms"][name], order["call_timeout_s"]) for name in ("base", "head")}
    for arm in arms.values():
        arm.start([point.target for point in points], order["start_timeout_s"])
    for cell in cells:
        plan = call(contract, cell, secrets.randbits(62))
        trial = Trial(plan, references[plan.reference], order["device"])
        evidence = _cell(trial, arms)
        _print("cell", evidence.model_dump(mode="json"))
    _print("end", {})


def _print(kind: str, value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({kind: value}) + "\n")
    sys.stdout.flush()


def _environment(order: dict[str, Any]) -> Environment:
    from importlib.metadata import PackageNotFoundError, version

    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "absent"
    cuda = order["device"] == "cuda"
    return Environment(
        python=sys.version.split()[0],
        torch=torch.__version__,
        triton=triton,
        device=torch.cuda.get_device_name() if cuda else "cpu",
        interpreter=order["interpreter"],
        protections=order["protections"],
    )


def _cell(trial: Trial, arms: dict[str, Arm]) -> CellEvidence:
    plan, outcomes = trial.plan, dict[str, Outcome]()
    found: dict[str, Results] = {}
    # Whether base or head goes first must not be a constant that code could adapt to.
    for name in sorted(arms, key=lambda _: secrets.randbits(30)):
        outcomes[name], found[name] = trial.run(arms[name].run)
    if outcomes["base"] is not Outcome.RAN:
        found["base"] = trial.stand_in()
    ran = outcomes["head"] is Outcome.RAN
    return CellEvidence(
        cell=plan.cell,
        head=outcomes["head"],
        base=outcomes["base"],
        base_form="kernel" if outcomes["base"] is Outcome.RAN else "reference",
        seed=plan.seed,
        outputs=[
            compare(r, trial.truth[r.name], found["head"][r.name], found["base"][r.name])
            for r in plan.results
            if ran
        ],
    )


if __name__ == "__main__":
    main()
