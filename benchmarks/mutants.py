# SPDX-License-Identifier: MIT
"""Wrong kernels, drawn by a seed from small edits of ours: which of them does the gate let through?

`python benchmarks/mutants.py --count 60 --seed 0` writes each mutant into a copy of `fla` and runs
the cells of the op's contract in it and in the tree as it is, with the lane's own trials, workers
and limits (figures only, no properties), until the first red. What survives every cell is printed
with its edit. `--list` only shows the edits that are drawn.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import torch

from bot import contract as contract_file
from bot import policy as policy_file
from bot.cells import call
from bot.contract import Contract
from bot.device.arm import Arm
from bot.device.figures import compare
from bot.device.trial import Results, Trial
from bot.evidence import Draw
from bot.judge.limits import FURTHER, is_open, limits, standing
from bot.model import Cell, Outcome
from bot.plan import lane_cells
from bot.policy import Policy
from bot.tree import TreeFinder, load

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ("fla/modules/l2norm.py", "fla/ops/common", "fla/ops/kda", "fla/ops/utils")
# References and host-side helpers are not under test here.
LEFT_OUT = ("reference.py", "naive.py", "checks.py", "config.py", "__init__.py")


@dataclass(frozen=True)
class Mutant:
    """One edit: bytes `start:end` of a file become `new`."""

    operator: str
    path: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.operator}: {self.path}:{self.line} `{self.old}` -> `{self.new}`"

    def apply(self, source: bytes) -> bytes:
        """The file with the edit."""
        return source[: self.start] + self.new.encode() + source[self.end :]


class _File:
    """A parsed source file whose nodes can be cut out as text."""

    def __init__(self, root: Path, path: str) -> None:
        self.path = path
        self.source = (root / path).read_bytes()
        self.starts = [0, *(m.end() for m in re.finditer(b"\n", self.source))]
        self.tree = ast.parse(self.source)

    def span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def mutant(self, operator: str, node: ast.expr, new: str) -> Mutant:
        start, end = self.span(node)
        return Mutant(operator, self.path, node.lineno, start, end, self.text(node), new)


def _kernels(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = {ast.unparse(d).split("(")[0].rpartition(".")[2] for d in node.decorator_list}
            if "jit" in names:
                yield node


@dataclass(frozen=True)
class _Site:
    """An expression of a kernel."""

    file: _File
    kernel: ast.FunctionDef
    node: ast.expr

    def text(self, node: ast.expr) -> str:
        return self.file.text(node)

    def binary(self, *kinds: type[ast.operator]) -> tuple[str, str] | None:
        """Both sides, where the node is one of these operations."""
        if isinstance(self.node, ast.BinOp) and isinstance(self.node.op, kinds):
            return self.text(self.node.left), self.text(self.node.right)
        return None

    def call(self, *names: str) -> list[str] | None:
        """The arguments, where the node calls one of these functions."""
        if not isinstance(self.node, ast.Call):
            return None
        name = ast.unparse(self.node.func).rpartition(".")[2]
        return [self.text(argument) for argument in self.node.args] if name in names else None

    def compared(self) -> Iterator[str]:
        """The comparison with its bound on the other side."""
        assert isinstance(self.node, ast.Compare)
        sign = _FLIPS[type(self.node.ops[0])]
        yield f"{self.text(self.node.left)} {sign} {self.text(self.node.comparators[0])}"

    def compares(self, *kinds: type[ast.cmpop]) -> bool:
        return isinstance(self.node, ast.Compare) and isinstance(self.node.ops[0], kinds)

    def updates(self) -> bool:
        """Whether the node is the right-hand side of `x += ...`."""
        lines = (n for n in ast.walk(self.kernel) if isinstance(n, ast.AugAssign))
        return any(line.value is self.node for line in lines)


# Each operator yields the texts that may replace an expression.
Operator = Callable[[_Site], Iterator[str]]
_FLIPS: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


def mask(site: _Site) -> Iterator[str]:
    """A bound that is off by one, and a mask with one of its conditions gone."""
    if site.compares(ast.Lt, ast.LtE):
        yield from site.compared()
    if (sides := site.binary(ast.BitAnd)) and all("m_" in side for side in sides):
        yield f"({sides[0]} | {sides[1]})"


def order(site: _Site) -> Iterator[str]:
    """The diagonal taken in or left out, and the first step of a loop forgotten."""
    if site.compares(ast.Gt, ast.GtE):
        yield from site.compared()
    if (arguments := site.call("range")) and len(arguments) == 1:
        yield f"range(1, {arguments[0]})"


def decay(site: _Site) -> Iterator[str]:
    """A decay of the wrong sign, a little too strong, or forgotten."""
    if arguments := site.call("exp", "exp2"):
        assert isinstance(site.node, ast.Call)
        name = site.text(site.node.func)
        yield f"{name}(-({arguments[0]}))"
        yield f"{name}(1.01 * ({arguments[0]}))"
        yield f"{name}(0.0 * ({arguments[0]}))"


def state(site: _Site) -> Iterator[str]:
    """An update that is lost or taken twice."""
    if site.updates():
        yield f"0.0 * ({site.text(site.node)})"
        yield f"2.0 * ({site.text(site.node)})"


def heads(site: _Site) -> Iterator[str]:
    """Quotient and remainder taken for each other."""
    for kind, sign in ((ast.FloorDiv, "%"), (ast.Mod, "//")):
        if sides := site.binary(kind):
            yield f"(({sides[0]}) {sign} ({sides[1]}))"


def gradient(site: _Site) -> Iterator[str]:
    """A sign turned in a backward kernel."""
    if "bwd" in site.kernel.name and "b_" in site.text(site.node):
        for kind, sign in ((ast.Add, "-"), (ast.Sub, "+")):
            if sides := site.binary(kind):
                yield f"({sides[0]} {sign} ({sides[1]}))"


def tail(site: _Site) -> Iterator[str]:
    """The last block, or the last row of one, left out."""
    if arguments := site.call("cdiv"):
        yield f"(({arguments[0]}) // ({arguments[1]}))"
    if (sides := site.binary(ast.Sub)) and sides[1] == "1":
        yield f"({sides[0]} - 2)"


def scale(site: _Site) -> Iterator[str]:
    """A factor forgotten or slightly wrong."""
    if (sides := site.binary(ast.Mult)) and _FACTORS.search(site.text(site.node)):
        yield f"(1.003 * ({sides[0]} * {sides[1]}))"
        yield sides[0]


_FACTORS = re.compile(r"\bscale\b|BETA_SCALE|\bb_b\b|\bb_r[qk]?\b")


def precision(site: _Site) -> Iterator[str]:
    """Sums and operands of fewer bits than promised."""
    text = site.text(site.node)
    if site.updates() or ((arguments := site.call("to")) and "float32" in arguments[0]):
        yield f"({text}).to(tl.float16).to(tl.float32)"


OPERATORS: dict[str, Operator] = {
    "mask": mask, "decay": decay, "state": state, "head mapping": heads, "gradient": gradient,
    "tail": tail, "scale": scale, "precision": precision, "order": order,
}  # fmt: skip


def candidates(root: Path) -> list[Mutant]:
    """Every edit that can be drawn, in the order of files and lines."""
    found = list[Mutant]()
    for name in KERNELS:
        paths = [root / name] if name.endswith(".py") else sorted((root / name).glob("*.py"))
        for path in paths:
            if path.name not in LEFT_OUT:
                found += _candidates(_File(root, str(path.relative_to(root))))
    return found


def _candidates(file: _File) -> Iterator[Mutant]:
    for kernel in _kernels(file.tree):
        inside = [node for line in kernel.body for node in ast.walk(line)]
        for node in (n for n in inside if isinstance(n, ast.expr)):
            for name, operator in OPERATORS.items():
                for new in operator(_Site(file, kernel, node)):
                    yield file.mutant(name, node, new)


def draw(found: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """As many of each operator as the count allows, chosen by the seed, no line twice."""
    generator = random.Random(seed)
    shuffled = sorted(found, key=lambda _: generator.random())
    chosen: list[Mutant] = []
    lines: set[tuple[str, int]] = set()
    while len(chosen) < count:
        before = len(chosen)
        for name in OPERATORS:
            fresh = (m for m in shuffled if m.operator == name and (m.path, m.line) not in lines)
            mutant = next(fresh, None)
            if mutant is not None and len(chosen) < count:
                chosen.append(mutant)
                lines.add((mutant.path, mutant.line))
        if len(chosen) == before:
            break
    return chosen


@dataclass
class Bench:
    """The cells of one op and what the tree as it is makes of them, each computed once."""

    contract: Contract
    policy: Policy
    lane: str
    device: str
    seed: int
    cells: list[Cell] = field(default_factory=list)
    known: dict[tuple[str, int], tuple[Trial, Results]] = field(default_factory=dict)
    base: Arm | None = None
    lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Cells with new axis values first: most mutants fall early."""
        left = lane_cells(self.contract, self.policy, self.lane)
        random.Random(self.seed).shuffle(left)
        seen: set[tuple[str, str, str]] = set()

        def news(cell: Cell) -> int:
            return sum((cell.entry_point, *value) not in seen for value in cell.values)

        while left:
            best = max(left, key=news)
            seen |= {(best.entry_point, *value) for value in best.values}
            self.cells.append(best)
            left.remove(best)

    def first_red(self, tree: Path, scratch: Path, limit_s: float) -> tuple[str, int, float]:
        """Why a tree is red (empty: it is not), after how many cells and seconds."""
        began, done = time.monotonic(), 0
        arm = _worker(tree, self, scratch)
        try:
            for cell in self.cells:
                if time.monotonic() - began > limit_s:
                    break
                done += 1
                if reason := self._red(arm, cell):
                    return f"{reason} in {cell.id}", done, time.monotonic() - began
        finally:
            arm.close()
        return "", done, time.monotonic() - began

    def _red(self, arm: Arm, cell: Cell) -> str:
        """Why a job would fail this cell; like a job it draws again what may be chance."""
        known, draws = limits(self.contract, cell, self.policy.margins), list[Draw]()
        while not draws or (len(draws) <= FURTHER and is_open(draws, known)):
            trial, base = self._known(cell, self.seed + len(draws))
            outcome, head = trial.run(arm.run)
            if outcome is not Outcome.RAN:
                return str(outcome)
            results = trial.plan.results
            figures = [compare(r, trial.truth[r.name], head[r.name], base[r.name]) for r in results]
            draws.append(Draw(seed=trial.plan.seed, secret=True, outputs=figures))
        stays = standing(draws, known)
        return " ".join(stays[1].split()[:2]) if stays else ""

    def _known(self, cell: Cell, seed: int) -> tuple[Trial, Results]:
        """What the tree as it is makes of a draw; one that is red by itself would prove nothing."""
        with self.lock:
            if (cell.id, seed) not in self.known:
                plan = call(self.contract, cell, seed)
                trial = Trial(plan, load(plan.reference, ROOT), self.device)
                assert self.base is not None
                outcome, found = trial.run(self.base.run)
                assert outcome is Outcome.RAN, f"{outcome} in {cell.id}"
                assert trial.truth  # computed once, before threads ask for it
                self.known[cell.id, seed] = trial, found
            return self.known[cell.id, seed]

    def prepare(self, scratch: Path) -> None:
        """Run the tree as it is."""
        self.base = _worker(ROOT, self, scratch)
        for cell in self.cells:
            self._known(cell, self.seed)


def _worker(tree: Path, bench: Bench, scratch: Path) -> Arm:
    ours, theirs = socket.socketpair()
    home = Path(tempfile.mkdtemp(dir=scratch))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment |= {"HOME": str(home), "TRITON_CACHE_DIR": str(home / "triton")}
    environment |= {"OMP_NUM_THREADS": "1"}
    if bench.device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    roots = ",".join(bench.policy.source_roots)
    with (home / "log").open("wb") as log:
        subprocess.Popen(
            [sys.executable, "-I", "-m", "bot.worker", str(theirs.fileno()), str(tree), roots],
            cwd=home, env=environment, pass_fds=[theirs.fileno()], stdout=log, stderr=log,
        )  # fmt: skip
    theirs.close()
    arm = Arm(ours.detach(), 120)
    arm.start(sorted({p.target for p in bench.contract.entry_points.values()}), 300)
    return arm


def main() -> None:
    """Draw, run, and print what survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--lane", default="interpret:cpu")
    parser.add_argument("--limit", type=float, default=600, help="seconds a mutant may take")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = candidates(ROOT)
    chosen = draw(found, options.count, options.seed)
    print(f"{len(chosen)} of {len(found)} edits", dict(Counter(m.operator for m in found)))
    if options.list:
        print(*chosen, sep="\n")
        return
    torch.set_num_threads(1)
    policy = policy_file.load((ROOT / "contracts/policy.yaml").read_bytes(), "policy.yaml")
    sys.meta_path.insert(0, TreeFinder(ROOT, policy.source_roots))
    lines: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        scratch = Path(name)
        benches = {}
        for op in ("l2norm", "kda"):
            path = ROOT / "contracts" / f"{op}.yaml"
            contract = contract_file.load(path.read_bytes(), str(path))
            bench = Bench(contract, policy, options.lane, options.device, options.seed)
            began = time.monotonic()
            bench.prepare(scratch)
            print(f"{op}: {len(bench.cells)} cells, {time.monotonic() - began:.0f} s", flush=True)
            benches[op] = bench

        def run(mutant: Mutant) -> None:
            tree = Path(tempfile.mkdtemp(dir=scratch))
            shutil.copytree(ROOT / "fla", tree / "fla")
            file = tree / mutant.path
            file.write_bytes(mutant.apply(file.read_bytes()))
            bench = benches["l2norm" if "modules" in mutant.path else "kda"]
            reason, cells, seconds = bench.first_red(tree, scratch, options.limit)
            verdict = f"red ({reason})" if reason else "SURVIVES"
            print(f"{verdict} after {cells} cells, {seconds:.0f} s: {mutant}", flush=True)
            lines.append({"mutant": str(mutant), "red": reason, "cells": cells})
            if options.json:
                options.json.write_text(json.dumps(lines, indent=1))
            shutil.rmtree(tree)

        list(pool.map(run, chosen))
    alive = [line for line in lines if not line["red"]]
    print(f"{len(lines) - len(alive)} of {len(lines)} red; survivors:")
    for line in alive:
        print(f"  {line['mutant']} ({line['cells']} cells)")


if __name__ == "__main__":
    main()
