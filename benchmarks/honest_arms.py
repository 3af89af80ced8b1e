r"""False alarms of the numerical limits: two honest source trees as arms, in both directions.

    .venv/bin/python benchmarks/honest_arms.py --one . --other /tmp/variant --seeds 5
    python benchmarks/honest_arms.py --device cuda --lane correctness:sm90 \
        --one . --other /opt/fla-0.6.0/site-packages --seeds 20 --figures honest.jsonl

Each cell of the contracts' lane is drawn with many seeds and run by a real worker for each tree.
Both error figures are then compared with one as the merge base and the other as head, and the
other way round. Printed are, for each limit, the largest figure relative to its limit (1 is the
edge of a false alarm), where that was, and how many comparisons were over it. `--figures` keeps
what was measured; `--again FILE...` judges it by the limits of now, without running anything.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from bot import contract as contract_file
from bot import policy as policy_file
from bot.cells import call
from bot.contract import Contract
from bot.device.arm import Arm
from bot.device.figures import compare
from bot.device.trial import Results, Trial
from bot.evidence import OutputFigures
from bot.judge.limits import CHANCE, Limits, limits, measures
from bot.model import Cell, Outcome
from bot.plan import lane_cells
from bot.policy import Policy
from bot.tree import TreeFinder, load

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S, ARMS = 300, ("one", "other")


@dataclass(slots=True)
class Record:
    """The largest figure of one limit relative to it, and how often it was exceeded."""

    count: int = 0
    reds: int = 0
    worst: float = 0.0
    where: str = ""
    over: list[str] = field(default_factory=list)
    places: dict[str, list[float]] = field(default_factory=dict)

    def add(self, share: float, place: str, where: str) -> None:
        """One comparison of an output of a cell, which `place` names."""
        self.count += 1
        if share > 1:
            self.reds += 1
            self.over.append(f"{share:.3g} {where}")
            self.places.setdefault(place, []).append(share)
        if share > self.worst:
            self.worst, self.where = share, where


def main() -> None:
    """Run all cells, or read what ran, and print the table."""
    options = _options()
    torch.set_num_threads(1)
    policy = policy_file.load((ROOT / "contracts/policy.yaml").read_bytes(), "policy.yaml")
    records: dict[str, Record] = {}
    outcomes: list[str] = []
    cells: dict[str, dict[str, Cell]] = {}
    for line in _read(options.again) if options.again else _measured(policy, options):
        if "outcome" in line:
            outcomes.append(line["outcome"])
            continue
        contract = _contract(line["op"])
        if line["op"] not in cells:
            cells[line["op"]] = {c.id: c for c in lane_cells(contract, policy, options.lane)}
        found = [OutputFigures.model_validate(figures) for figures in line["outputs"]]
        known = limits(contract, cells[line["op"]][line["cell"]], policy.margins)
        _record(found, known, records, line)
    _print(records, outcomes)


@cache
def _contract(op: str) -> Contract:
    path = ROOT / "contracts" / f"{op}.yaml"
    return contract_file.load(path.read_bytes(), str(path))


def _read(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for path in files:
        for line in path.read_text().splitlines():
            yield json.loads(line)


def _measured(policy: Policy, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line for each draw and direction, kept as soon as there is one."""
    sys.meta_path.insert(0, TreeFinder(ROOT, policy.source_roots))
    trees = {"one": options.one.resolve(), "other": options.other.resolve()}
    began, done = time.monotonic(), 0
    with (
        tempfile.TemporaryDirectory() as scratch,
        options.figures.open("a") if options.figures else nullcontext() as kept,
    ):
        for op in options.op:
            contract = _contract(op)
            cells = [c for c in lane_cells(contract, policy, options.lane) if options.only in c.id]
            arms = _arms(trees, policy, contract, options, Path(scratch))
            for cell in cells[options.start :: options.every]:
                for seed in range(options.seeds):
                    for line in _compare(contract, cell, seed, arms, options):
                        if kept is not None:
                            print(json.dumps(line), file=kept, flush=True)
                        if "outcome" in line:
                            print(line["outcome"], file=sys.stderr, flush=True)
                        yield line
                done += 1
                said = f"{done} cells, {time.monotonic() - began:.0f} s"
                print(said, end="\r", file=sys.stderr, flush=True)
    print(f"\n{done} cells x {options.seeds} seeds, {time.monotonic() - began:.0f} s")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--one", type=Path, default=ROOT, help="a folder that holds `fla`")
    add("--other", type=Path, default=ROOT, help="the other one")
    add("--op", nargs="+", default=["l2norm", "kda"])
    add("--lane", default="interpret:cpu", help="which cells: those that this lane can prove")
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--seeds", type=int, default=3)
    add("--first-seed", type=int, default=None, help="default: a random one")
    add("--only", default="", help="cells whose id holds this text")
    add("--every", type=int, default=1, help="take every n-th cell")
    add("--start", type=int, default=0, help="and begin with this one")
    add("--timeout", type=float, default=600, help="seconds a call may take")
    add("--figures", type=Path, help="keep what was measured there, a line for each draw")
    add("--again", type=Path, nargs="+", help="judge kept figures, run nothing")
    options = parser.parse_args()
    if options.first_seed is None:
        options.first_seed = secrets.randbits(40)
    return options


def _arms(
    trees: dict[str, Path],
    policy: Policy,
    contract: Contract,
    options: argparse.Namespace,
    scratch: Path,
) -> dict[str, Arm]:
    arms = {}
    for name, tree in trees.items():
        ours, theirs = socket.socketpair()
        home = scratch / f"{contract.op}-{name}"
        home.mkdir()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment |= {"HOME": str(home), "TRITON_CACHE_DIR": str(home / "triton")}
        environment |= {"OMP_NUM_THREADS": "1"}
        if options.device == "cpu":
            environment["TRITON_INTERPRET"] = "1"
        roots = ",".join(policy.source_roots)
        with (scratch / f"{contract.op}-{name}.log").open("wb") as log:
            subprocess.Popen(
                [sys.executable, "-I", "-m", "bot.worker", str(theirs.fileno()), str(tree), roots],
                cwd=home, env=environment, pass_fds=[theirs.fileno()], stdout=log, stderr=log,
            )  # fmt: skip
        theirs.close()
        arms[name] = Arm(ours.detach(), options.timeout)
        targets = sorted({point.target for point in contract.entry_points.values()})
        arms[name].start(targets, START_TIMEOUT_S)
        if arms[name].lost:
            text = (scratch / f"{contract.op}-{name}.log").read_text(errors="replace")
            raise SystemExit(f"{name}: the worker did not start\n{text[-4000:]}")
    return arms


def _compare(
    contract: Contract,
    cell: Cell,
    seed: int,
    arms: dict[str, Arm],
    options: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    """Run one draw in both arms and take the figures both ways; what did not run is a line."""
    plan = call(contract, cell, options.first_seed + seed)
    reference = load(plan.reference, ROOT)
    trial = Trial(plan, reference, options.device, expanded=seed % 2 == 1)
    with ThreadPoolExecutor(2) as pool:
        futures = {name: pool.submit(trial.run, arms[name].run) for name in ARMS}
        truth = trial.truth
        ended = {name: future.result() for name, future in futures.items()}
    for name, (outcome, _) in ended.items():
        if outcome is not Outcome.RAN:
            yield {"outcome": f"{name}: {outcome} in {cell.id}"}
    if any(outcome is not Outcome.RAN for outcome, _ in ended.values()):
        return
    for head, base in (ARMS, ARMS[::-1]):
        found = _figures(trial, truth, ended[head][1], ended[base][1])
        outputs = [figures.model_dump(mode="json") for figures in found]
        about = {"op": contract.op, "cell": cell.id, "head": head, "seed": plan.seed}
        yield {**about, "outputs": outputs}


def _figures(trial: Trial, truth: Results, head: Results, base: Results) -> list[OutputFigures]:
    return [compare(r, truth[r.name], head[r.name], base[r.name]) for r in trial.plan.results]


def _record(
    found: Sequence[OutputFigures], known: Limits, records: dict[str, Record], line: dict[str, Any]
) -> None:
    where = f"head={line['head']} seed={line['seed']} {line['cell']}"
    for figures in found:
        for measure in measures(figures, known):
            share = measure.value / measure.limit if measure.value else 0.0
            both = f"{figures.head.rms:.2g} against {figures.base.rms:.2g}"
            told = f"{figures.name} {list(measure.at)} rms {both} {where}"
            place = f"{figures.name} head={line['head']} {line['cell']}"
            records.setdefault(measure.name, Record()).add(share, place, told)


def _print(records: dict[str, Record], outcomes: Sequence[str]) -> None:
    print(f"{'limit':<8} {'compared':>9} {'largest / limit':>16} {'reds':>6}  where")
    for name, record in records.items():
        print(f"{name:<8} {record.count:>9} {record.worst:>16.3f} {record.reds:>6}  {record.where}")
    for name, record in records.items():
        once = sum(len(p) == 1 and p[0] <= CHANCE for p in record.places.values())
        if several := len(record.places) - once:
            print(f"{name}: outputs that are over in several seeds or by far: {several}")
        if once:
            print(f"{name}: outputs that are over in one seed, which a job draws again: {once}")
        for line in record.over[:10]:
            print(f"over {name}: {line}")
    print(f"calls that gave no result: {len(outcomes)}")


if __name__ == "__main__":
    main()
