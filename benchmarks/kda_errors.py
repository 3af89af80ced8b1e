# SPDX-License-Identifier: MIT
"""Errors of KDA against fp64 in every cell of its contract, beside another tree's on equal inputs.

`python benchmarks/kda_errors.py --theirs SITE_PACKAGES` on a GPU. Processes of their own compute
the truth (the contract's reference in fp64, on the CPU), our results and theirs, because both
packages are called `fla`. An error is the RMS over all seeds of a cell, relative to the truth's: a
single seed's is noise where a result has few elements. In ratios, an error below that of rounding
the result once counts as that: nobody can be asked for less.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("truth", "ours", "theirs")
# Relative RMS error of numbers that were rounded once, from above.
ROUNDED = {"fp32": 2.0**-25, "fp16": 2.0**-12, "bf16": 2.0**-9}


def plans(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Calls of the cells asked for, one a seed, by name."""
    from bot.cells import call, cells
    from bot.contract import load

    contract = load((ROOT / "contracts/kda.yaml").read_bytes(), "contracts/kda.yaml")
    sizes = {name: int(value) for name, _, value in (s.partition("=") for s in options.sizes)}
    for entry_point in options.entry_points or contract.entry_points:
        for cell in cells(contract, entry_point):
            if all(word in cell.id for word in options.only):
                for seed in range(options.seeds):
                    yield f"{cell.id}@{seed}", call(contract, cell, seed, sizes)


def first_configurations() -> None:
    """Have Triton's tuner take the first configuration that launches, without timing any."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.errors import OutOfResources

    tune = Autotuner.run

    def run(self: Any, *args: Any, **options: Any) -> Any:
        while len(self.configs) > 1:
            every = self.configs
            self.configs = every[:1]
            try:
                return tune(self, *args, **options)
            except OutOfResources:
                self.configs = every[1:]
        return tune(self, *args, **options)

    Autotuner.run = run


def results(plan: Any) -> dict[str, Any]:
    """Outputs, written arguments and gradients of one call on the GPU, by name."""
    import torch

    from bot.device.inputs import cotangent, draw

    module, _, name = plan.target.partition(":")
    arguments = {}
    for spec in plan.tensors:
        flat = draw(spec).to("cpu" if spec.host else "cuda")
        tensor = flat.as_strided(spec.shape, spec.strides)
        arguments[spec.name] = tensor.requires_grad_(spec.requires_grad)
    with torch.inference_mode(plan.inference):
        returned = getattr(importlib.import_module(module), name)(**arguments, **plan.plain)
    returned = list(returned) if isinstance(returned, tuple | list) else [returned]
    pairs = [(r, v) for r, v in zip(plan.outputs, returned, strict=True) if r.present]
    found = {r.name: value for r, value in pairs} | {
        r.name: arguments[r.name] for r in plan.written
    }
    if plan.gradients:
        seeds = [cotangent(r, plan.seed + i + 1).cuda() for i, (r, _) in enumerate(pairs)]
        aims = [(v, d) for (_, v), d in zip(pairs, seeds, strict=True) if v.requires_grad]
        wanted = [arguments[r.name.removeprefix("d")] for r in plan.gradients]
        gradients = torch.autograd.grad([v for v, _ in aims], wanted, [d for _, d in aims])
        found |= {r.name: value for r, value in zip(plan.gradients, gradients, strict=True)}
    return {n: value.detach().double().cpu() for n, value in found.items()}


def truth(plan: Any) -> dict[str, Any]:
    """The same by the contract's reference in fp64."""
    from bot.device.trial import Trial
    from bot.tree import load

    return Trial(plan, load(plan.reference, ROOT), "cpu").truth


def work(options: argparse.Namespace) -> None:
    """Compute this process's share of one kind of results and save it."""
    tree = options.theirs if options.worker == "theirs" else ROOT
    sys.path[:0] = [str(tree), str(ROOT)]
    import torch

    import fla

    if not Path(fla.__file__).resolve().is_relative_to(Path(tree).resolve()):
        raise SystemExit(f"fla: expected under {tree}, got {fla.__file__}")
    torch.set_num_threads(1)
    if options.worker == "theirs" and not options.tune:
        first_configurations()
    solve = truth if options.worker == "truth" else results
    found: dict[str, Any] = {}
    for i, (name, plan) in enumerate(plans(options)):
        if i % options.processes != options.part:
            continue
        try:
            found[name] = solve(plan)
        except Exception as error:  # noqa: BLE001  a refused call is a result of this comparison
            found[name] = f"{type(error).__name__}: {error}"[:200]
        torch.save(found, options.folder / f"{options.worker}-{options.part}.pt")


def gather(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Run all processes and collect their results by kind."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        arguments = [*sys.argv[1:], "--folder", folder]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        running = [
            subprocess.Popen(
                [sys.executable, __file__, *arguments, "--worker", kind, "--part", str(part)],
                env=environment,
            )
            for kind in KINDS
            if kind != "theirs" or options.theirs
            for part in range(options.processes)
        ]
        deadline = time.monotonic() + options.timeout_s
        for process in running:
            try:
                process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        kinds: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        for kind, found in kinds.items():
            for path in Path(folder).glob(f"{kind}-*.pt"):
                found.update(torch.load(path))
        return kinds


def errors(kinds: dict[str, dict[str, Any]], kind: str, names: list[str], result: str) -> float:
    """Relative RMS error of a result, pooled over the seeds of a cell."""
    pairs = [(kinds[kind][n][result], kinds["truth"][n][result]) for n in names]
    wrong = sum(float((a - b).square().sum()) for a, b in pairs)
    size = sum(float(b.square().sum()) for _, b in pairs)
    return math.sqrt(wrong / size) if size else math.sqrt(wrong)


def main() -> None:
    """Print the errors of every cell and result, and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--theirs", help="folder that holds the other `fla`")
    parser.add_argument("--entry-points", nargs="*", default=[])
    parser.add_argument("--only", nargs="*", default=[], help="words that a cell's id must hold")
    parser.add_argument("--sizes", nargs="*", default=[], help="contract variables, as T=500")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 3))
    parser.add_argument("--timeout-s", type=float, default=300.0)
    parser.add_argument("--tune", action="store_true", help="let the other tree tune its kernels")
    parser.add_argument("--worker", choices=KINDS, help="set by this script")
    parser.add_argument("--part", type=int, default=0, help="set by this script")
    parser.add_argument("--folder", type=Path, help="set by this script")
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    sys.path.insert(0, str(ROOT))
    named = list(plans(options))
    kinds = gather(options)
    report(options, named, kinds)


def report(
    options: argparse.Namespace, named: list[tuple[str, Any]], kinds: dict[str, dict[str, Any]]
) -> None:
    """One line a cell and result, refusals, and ratios by result and over all."""
    cells: dict[str, list[tuple[str, Any]]] = {}
    for name, plan in named:
        cells.setdefault(name.rpartition("@")[0], []).append((name, plan))
    wanted = [kind for kind in KINDS if kind != "theirs" or options.theirs]
    ratios: dict[str, list[float]] = {}
    for cell, entries in cells.items():
        names = [name for name, _ in entries]
        bad = {
            f"{kind}: {kinds[kind].get(name, 'no result in time')}"
            for kind in wanted
            for name in names
            if not isinstance(kinds[kind].get(name), dict)
        }
        if bad:
            print("NONE", cell, *sorted(bad)[:2], flush=True)
            continue
        for result in entries[0][1].results:
            found = [errors(kinds, kind, names, result.name) for kind in wanted[1:]]
            line = [f"{result.name:14s}", *(f"{e:.3e}" for e in found)]
            if options.theirs:
                step = ROUNDED[result.dtype]
                ratio = max(found[0], step) / max(found[1], step)
                key = f"{entries[0][1].dtype} {result.name}"
                ratios.setdefault(key, []).append(ratio)
                line.append(f"{ratio:7.3f}" + (" OVER" if not ratio <= 1.5 else ""))
            print(*line, cell, flush=True)
    if options.theirs:
        tuned = "tuned" if options.tune else "in the first configuration that launches, not tuned"
        print(f"ratios, ours / theirs ({tuned}), {options.seeds} seeds:")
    ratios["all"] = [value for values in ratios.values() for value in values]
    for key, values in sorted(ratios.items()):
        if values:
            mean = statistics.geometric_mean(values)
            over = sum(not v <= 1.5 for v in values)
            print(
                f"{key:20s} n {len(values):4d} mean {mean:.3f} worst {max(values):.3f} over {over}"
            )


if __name__ == "__main__":
    main()
