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

from bot.cells import Call, Result, call
from bot.contract import Contract
from bot.device.arm import DTYPES, Arena, Arm, arena
from bot.device.figures import compare
from bot.device.inputs import cotangent, draw
from bot.evidence import CellEvidence, Environment
from bot.model import Cell, Outcome
from bot.tree import TreeFinder, load
from bot.wire import POISON

Results = dict[str, torch.Tensor]


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
        evidence = _cell(plan, references[plan.reference], arms, order["device"])
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


def _cell(plan: Call, reference: Any, arms: dict[str, Arm], device: str) -> CellEvidence:
    inputs = {spec.name: draw(spec) for spec in plan.tensors}
    present = [result for result in plan.outputs if result.present]
    directions = [cotangent(r, plan.seed + i + 1) for i, r in enumerate(present)]
    truth = _reference(plan, reference, inputs, directions, torch.float64)
    outcomes: dict[str, Outcome] = {}
    found: dict[str, Results] = {}
    # Whether base or head goes first must not be a constant that code could adapt to.
    for name in sorted(arms, key=lambda _: secrets.randbits(30)):
        outcomes[name], found[name] = _run(plan, arms[name], inputs, directions, device)
    if outcomes["base"] is not Outcome.RAN:
        found["base"] = _reference(plan, reference, inputs, directions, None)
    ran = outcomes["head"] is Outcome.RAN
    return CellEvidence(
        cell=plan.cell,
        head=outcomes["head"],
        base=outcomes["base"],
        base_form="kernel" if outcomes["base"] is Outcome.RAN else "reference",
        seed=plan.seed,
        outputs=[
            compare(r, truth[r.name], found["head"][r.name], found["base"][r.name])
            for r in plan.results
            if ran
        ],
    )


def _run(
    plan: Call, arm: Arm, inputs: Results, directions: list[torch.Tensor], device: str
) -> tuple[Outcome, Results]:
    memory = arena(plan, device)
    specs = memory.order["tensors"]
    for spec in specs:
        memory.flat(spec, spec["storage"]).copy_(inputs[spec["name"]])
    for spec, direction in _cotangents(memory, directions):
        _strided(memory, spec).copy_(direction)
    outcome = arm.run(memory)
    try:
        if outcome is Outcome.RAN:
            return _collect(plan, memory, inputs, directions)
        return outcome, {}
    finally:
        memory.close()


def _cotangents(
    memory: Arena, directions: list[torch.Tensor]
) -> list[tuple[dict[str, Any], torch.Tensor]]:
    repeats = memory.order["repeats"]
    return [
        pair
        for r in repeats
        if r["cotangents"]
        for pair in zip(r["cotangents"], directions, strict=True)
    ]


def _strided(memory: Arena, spec: dict[str, Any]) -> torch.Tensor:
    return memory.flat(spec, spec["storage"]).as_strided(spec["shape"], spec["strides"])


def _collect(
    plan: Call, memory: Arena, inputs: Results, directions: list[torch.Tensor]
) -> tuple[Outcome, Results]:
    """Read the slots; the first thing that is wrong with them decides."""
    if not memory.guards_hold():
        return Outcome.GUARD, {}
    for spec in memory.order["tensors"]:
        kept = _same_bits(memory.flat(spec, spec["storage"]), inputs[spec["name"]])
        if not kept and not spec["written"]:
            return Outcome.INPUT_MUTATED, {}
    for spec, direction in _cotangents(memory, directions):
        if not _same_bits(_strided(memory, spec), direction):
            return Outcome.INPUT_MUTATED, {}
    first, *others = memory.results()
    if any(_poisoned(flat) for repeat in (first, *others) for flat in repeat):
        return Outcome.POISON, {}
    if not all(_same_bits(a, b) for other in others for a, b in zip(first, other, strict=True)):
        return Outcome.REPEAT, {}
    values = zip(plan.results, first, strict=True)
    return Outcome.RAN, {r.name: flat.double().view(r.shape) for r, flat in values}


def _bits(flat: torch.Tensor) -> torch.Tensor:
    return flat.contiguous().view(torch.uint8)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.equal(_bits(one), _bits(other)))


def _poisoned(flat: torch.Tensor) -> bool:
    """Whether any element still has the bits that no kernel writes."""
    if not flat.numel():
        return False
    rows = _bits(flat).view(flat.numel(), -1)
    return bool((rows == POISON).all(1).any())


def _reference(
    plan: Call,
    function: Any,
    inputs: Results,
    directions: list[torch.Tensor],
    dtype: torch.dtype | None,
) -> Results:
    """Results of the reference; in fp64 they are the truth, in the declared dtypes a stand-in."""
    arguments = {}
    for spec in plan.tensors:
        tensor = inputs[spec.name].as_strided(spec.shape, spec.strides)
        if tensor.is_floating_point() and dtype is not None:
            tensor = tensor.to(dtype)
        arguments[spec.name] = tensor.clone().requires_grad_(spec.requires_grad)
    returned = function(**arguments, **plan.plain)
    values = list(returned) if isinstance(returned, tuple | list) else [returned]
    pairs = [(r, v) for r, v in zip(plan.outputs, values, strict=True) if r.present]
    named = {r.name: value for r, value in pairs}
    named |= {r.name: arguments[r.name] for r in plan.written}
    if plan.gradients:
        wanted = [arguments[r.name.removeprefix("d")] for r in plan.gradients]
        aims = [(v, d.to(v.dtype)) for (_, v), d in zip(pairs, directions, strict=True)]
        outputs, seeds = zip(*((v, d) for v, d in aims if v.requires_grad), strict=True)
        gradients = torch.autograd.grad(outputs, wanted, seeds)
        named |= dict(zip((r.name for r in plan.gradients), gradients, strict=True))
    kinds = {r.name: r for r in plan.results}
    return {name: _declared(value, kinds[name], dtype) for name, value in named.items()}


def _declared(value: torch.Tensor, result: Result, dtype: torch.dtype | None) -> torch.Tensor:
    value = value.detach()
    return (value if dtype is not None else value.to(DTYPES[result.dtype])).double()


if __name__ == "__main__":
    main()
