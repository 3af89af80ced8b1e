r"""False alarms of the numerical limits: two honest source trees as arms, in both directions.

    .venv/bin/python benchmarks/honest_arms.py --one . --other /tmp/variant --seeds 5
    python benchmarks/honest_arms.py --device cuda --lane correctness:sm90 \
        --one . --other /opt/fla-0.6.0/site-packages --seeds 20 --json honest.json

Each cell of the contracts' lane is drawn with many seeds and run by a real worker for each tree.
Both error figures are then compared with one as the merge base and the other as head, and the
other way round. Printed are, for each limit, the largest figure relative to its limit (1 is the
edge of a false alarm), where that was, and how many comparisons were over it.
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
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bot import contract as contract_file
from bot import policy as policy_file
from bot.cells import call
from bot.contract import Contract
from bot.device.arm import Arm
from bot.device.figures import compare
from bot.device.trial import Results, Trial
from bot.evidence import OutputFigures
from bot.judge.correctness import Limits, limits, measures
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

    def add(self, share: float, where: str) -> None:
        """One comparison."""
        self.count += 1
        if share > 1:
            self.reds += 1
            self.over.append(f"{share:.3g} {where}")
        if share > self.worst:
            self.worst, self.where = share, where


def main() -> None:
    """Run all cells and print the table."""
    options = _options()
    torch.set_num_threads(1)
    policy = policy_file.load((ROOT / "contracts/policy.yaml").read_bytes(), "policy.yaml")
    sys.meta_path.insert(0, TreeFinder(ROOT, policy.source_roots))
    trees = {"one": options.one.resolve(), "other": options.other.resolve()}
    records: dict[str, Record] = {}
    outcomes: list[str] = []
    began, done = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as scratch:
        for op in options.op:
            path = ROOT / "contracts" / f"{op}.yaml"
            contract = contract_file.load(path.read_bytes(), str(path))
            cells = [c for c in lane_cells(contract, policy, options.lane) if options.only in c.id]
            arms = _arms(trees, policy, contract, options, Path(scratch))
            for cell in cells[options.start :: options.every]:
                for seed in range(options.seeds):
                    for line in _compare(contract, policy, cell, seed, arms, options, records):
                        outcomes.append(line)
                        print(line, file=sys.stderr, flush=True)
                done += 1
                said = f"{done} cells, {time.monotonic() - began:.0f} s"
                print(said, end="\r", file=sys.stderr, flush=True)
                _write(options.json, records, outcomes)
    print(f"\n{done} cells x {options.seeds} seeds, {time.monotonic() - began:.0f} s")
    _print(records, outcomes)


def _write(path: Path | None, records: dict[str, Record], outcomes: Sequence[str]) -> None:
    """All that is known so far, so that a run that is ended early was not for nothing."""
    rows = {
        name: {"count": r.count, "reds": r.reds, "worst": r.worst, "at": r.where, "over": r.over}
        for name, r in records.items()
    }
    if path is not None:
        path.write_text(json.dumps({"limits": rows, "outcomes": outcomes}, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--one", type=Path, default=ROOT, help="a folder that holds `fla`")
    add("--other", type=Path, required=True, help="the other one")
    add("--op", nargs="+", default=["l2norm", "kda"])
    add("--lane", default="interpret:cpu", help="which cells: those that this lane can prove")
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--seeds", type=int, default=3)
    add("--first-seed", type=int, default=None, help="default: a random one")
    add("--only", default="", help="cells whose id holds this text")
    add("--every", type=int, default=1, help="take every n-th cell")
    add("--start", type=int, default=0, help="and begin with this one")
    add("--timeout", type=float, default=600, help="seconds a call may take")
    add("--json", type=Path)
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
    policy: Policy,
    cell: Cell,
    seed: int,
    arms: dict[str, Arm],
    options: argparse.Namespace,
    records: dict[str, Record],
) -> Iterator[str]:
    """Run one draw in both arms and take the figures both ways; what did not run is a line."""
    plan = call(contract, cell, options.first_seed + seed)
    reference = load(plan.reference, ROOT)
    trial = Trial(plan, reference, options.device, expanded=seed % 2 == 1)
    known = limits(contract, cell, policy.margins)
    with ThreadPoolExecutor(2) as pool:
        futures = {name: pool.submit(trial.run, arms[name].run) for name in ARMS}
        truth = trial.truth
        ended = {name: future.result() for name, future in futures.items()}
    for name, (outcome, _) in ended.items():
        if outcome is not Outcome.RAN:
            yield f"{name}: {outcome} in {cell.id}"
    if any(outcome is not Outcome.RAN for outcome, _ in ended.values()):
        return
    for head, base in (ARMS, ARMS[::-1]):
        found = _figures(trial, truth, ended[head][1], ended[base][1])
        _record(found, known, records, f"head={head} seed={plan.seed} {cell.id}")


def _figures(trial: Trial, truth: Results, head: Results, base: Results) -> list[OutputFigures]:
    return [compare(r, truth[r.name], head[r.name], base[r.name]) for r in trial.plan.results]


def _record(
    found: Sequence[OutputFigures], known: Limits, records: dict[str, Record], where: str
) -> None:
    for figures in found:
        for measure in measures(figures, known):
            share = measure.value / measure.limit if measure.value else 0.0
            both = f"{figures.head.rms:.2g} against {figures.base.rms:.2g}"
            place = f"{figures.name} {list(measure.at)} rms {both} {where}"
            records.setdefault(measure.name, Record()).add(share, place)


def _print(records: dict[str, Record], outcomes: Sequence[str]) -> None:
    print(f"{'limit':<8} {'compared':>9} {'largest / limit':>16} {'reds':>6}  where")
    for name, record in records.items():
        print(f"{name:<8} {record.count:>9} {record.worst:>16.3f} {record.reds:>6}  {record.where}")
    for name, record in records.items():
        for line in record.over[:10]:
            print(f"over {name}: {line}")
    print(f"calls that gave no result: {len(outcomes)}")


if __name__ == "__main__":
    main()
