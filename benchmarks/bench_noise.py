# SPDX-License-Identifier: MIT
"""How often the benchmark lane is wrong: A/A runs, injected slowdowns, a real speed-up, on a GPU.

`python benchmarks/bench_noise.py --aa 8 --slow 1 3 5 --out runs.json` needs a CUDA device and `bot`
importable by `python -I`. It starts the lane's own device process and workers, without a sandbox,
over copies of this tree: with equal arms, with a kernel that spins after the op in one of them
(the share of the row's own time that is asked for), and with the slow tree as base. It prints each
row's verdict, then false fails, shares proved, detections and minutes; the evidence goes to --out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bot import contract as contract_file
from bot import policy as policy_file
from bot.contract import Contract
from bot.evidence import Environment, Evidence, RowEvidence
from bot.judge import benchmark
from bot.judge.benchmark import speed
from bot.lanes.benchmark import edges
from bot.model import Because, Job
from bot.policy import Policy

ROOT = Path(__file__).resolve().parent.parent
ROWS = ("chunk_kda/safe_fwd", "chunk_kda/safe_fwdbwd", "fused_recurrent_kda_fwd/decode")
SLOWED = "chunk_kda/safe_fwd"
MHZ, LAUNCH_US = 1980, 1.5
# Rows that must be told apart by the tree under test differ in a scale nobody uses.
SCALE, STEP = 0.08838834764831845, 1e-6
WRAPPER = """

import torch as _torch

_plain, _CYCLES = chunk_kda, {cycles}


def chunk_kda(*args, **kwargs):
    result = _plain(*args, **kwargs)
    if kwargs.get("scale") in _CYCLES:
        _torch.cuda._sleep(_CYCLES[kwargs["scale"]])
    return result
"""


def variant(share: float) -> tuple[str, float]:
    """The row that is slowed down by so many per cent, and the scale that marks it."""
    return f"{SLOWED}.{share:g}", SCALE * (1 + STEP * share)


def load_contract(shares: list[float]) -> Contract:
    """KDA's contract with a row more for each slowdown."""
    found = contract_file.load((ROOT / "contracts/kda.yaml").read_bytes(), "kda.yaml")
    data = found.model_dump(mode="json", by_alias=True)
    rows = data["entry_points"]["chunk_kda"]["benchmarks"]
    for share in shares:
        name, scale = variant(share)
        row = rows[SLOWED.partition("/")[2]]
        rows[name.partition("/")[2]] = row | {"set": row["set"] | {"scale": scale}}
    return Contract.model_validate_json(json.dumps(data))


def load_policy() -> Policy:
    """This repository's."""
    return policy_file.load((ROOT / "contracts/policy.yaml").read_bytes(), "policy.yaml")


class Processes:
    """The device process and both workers of one run, started before they are needed."""

    def __init__(self, trees: dict[str, Path], caches: Path) -> None:
        pairs = {arm: socket.socketpair() for arm in ("base", "head")}
        self.fds = {arm: ours.fileno() for arm, (ours, _) in pairs.items()}
        self.workers = []
        for arm, (_, theirs) in pairs.items():
            self.workers.append(self._start(arm, theirs, trees[arm], caches / trees[arm].name))
            theirs.close()
        self.device = subprocess.Popen(
            [sys.executable, "-I", "-m", "bot.device.bench"], pass_fds=list(self.fds.values()),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        for ours, _ in pairs.values():
            ours.close()

    def _start(
        self, arm: str, end: socket.socket, tree: Path, cache: Path
    ) -> subprocess.Popen[bytes]:
        environment = os.environ | {"TRITON_CACHE_DIR": f"{cache}-{arm}"}
        argv = ["bot.worker.timing", str(end.fileno()), str(tree), "fla"]
        return subprocess.Popen(
            [sys.executable, "-I", "-m", *argv], pass_fds=[end.fileno()], cwd=tree, env=environment
        )

    def run(self, order: dict[str, Any]) -> tuple[Environment, list[RowEvidence], float]:
        """The evidence of one job and how long it took."""
        began = time.monotonic()
        assert self.device.stdin is not None
        assert self.device.stdout is not None
        with self.device.stdin as stdin:
            stdin.write(json.dumps(order | {"arms": self.fds}).encode())
        rows, environment = {}, None
        for line in self.device.stdout:
            message = json.loads(line)
            if "row" in message:
                row = RowEvidence.model_validate_json(json.dumps(message["row"]))
                rows[row.row] = row
            elif "end" in message:
                stages = message["end"]["stages"]
                print({name: round(seconds, 1) for name, seconds in stages.items()})
            elif "environment" in message:
                environment = Environment.model_validate(message["environment"])
        seconds = time.monotonic() - began
        self.close()
        if environment is None:
            raise SystemExit("the device process did not start")
        return environment, list(rows.values()), seconds

    def close(self) -> None:
        """End all three."""
        for process in (self.device, *self.workers):
            process.kill()
            process.wait()


def judged(
    contract: Contract, environment: Environment, rows: list[RowEvidence]
) -> Iterator[tuple[RowEvidence, str, str]]:
    """Each row with the verdict of the lane's judge."""
    policy = load_policy()
    names = [row.row for row in rows]
    because = [Because(path="fla", line=1, end_line=1)]
    job = Job(
        id="noise", lane="benchmark:sm90", op="kda", cells=names, required=True, because=because,
        key="",
    )  # fmt: skip
    oid = "0" * 40
    evidence = Evidence(
        schema="fla-bot/evidence@2", plan="", job="noise", lane=job.lane, head=oid,
        merge_base=oid, trusted=oid, complete=True, environment=environment, rows=rows, wall_s=0,
    )  # fmt: skip
    said = {
        name: (v, reason) for name, v, reason in benchmark.judge(job, policy, contract, evidence)
    }
    for row in rows:
        yield row, str(said[row.row][0]), said[row.row][1]


def tree(folder: Path, name: str, cycles: dict[float, int]) -> Path:
    """A copy of our kernels, slowed down where a table says so."""
    place, module = folder / name, "fla/ops/kda/__init__.py"
    if not place.exists():  # later only the table changes: processes stand in that folder
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "fla", place / "fla", ignore=skipped)
    if cycles:
        wrapper = WRAPPER.replace("{cycles}", repr(cycles))
        (place / module).write_text((ROOT / module).read_text() + wrapper)
    return place


def main() -> None:
    """All runs, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--aa", type=int, default=8, help="A/A runs")
    parser.add_argument("--rows", nargs="+", default=list(ROWS))
    parser.add_argument("--few", nargs="+", help="rows of all A/A runs but the first")
    parser.add_argument("--slow", nargs="*", type=float, default=[1, 3, 5], help="per cent")
    parser.add_argument("--slow-runs", type=int, default=1)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--quads", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after so long")
    parser.add_argument("--out", type=Path, default=Path("bench_noise.json"))
    options = parser.parse_args()
    began, contract = time.monotonic(), load_contract(options.slow)
    folder = Path(tempfile.mkdtemp())
    plain = tree(folder, "plain", {})
    slow_rows = [variant(share)[0] for share in options.slow]
    order = {
        "contract": contract.model_dump(mode="json", by_alias=True), "roots": ["fla"],
        "trusted_tree": str(plain), "device": "cuda", "interpreter": False, "protections": [],
        "call_timeout_s": 180, "start_timeout_s": 120, "restarts": options.restarts,
        "quads": options.quads, "keywords": {},
        "edges": edges(contract, load_policy().margins, [*options.rows, *slow_rows]),
    }  # fmt: skip
    slow = folder / "slow"
    few = options.few or options.rows
    kinds = [("aa", plain, plain, options.rows)]
    if options.slow:
        last = slow_rows[-1:]
        kinds += [("slow", plain, slow, slow_rows), ("fast", slow, plain, last)] * options.slow_runs
    kinds += [("aa", plain, plain, few)] * (options.aa - 1)
    tree(folder, "slow", {0.0: 1})
    waiting = [
        Processes({"base": base, "head": head}, folder / "caches") for _, base, head, _ in kinds
    ]
    results = []
    for (kind, _, _, rows), processes in zip(kinds, waiting, strict=True):
        if time.monotonic() - began > options.seconds:
            processes.close()
            continue
        environment, found, seconds = processes.run({**order, "rows": rows})
        results.append((kind, seconds, list(judged(contract, environment, found))))
        print(f"{kind}: {seconds:.1f} s, clocks {environment.before} {environment.after}")
        for row, verdict, reason in results[-1][2]:
            print(f"  {verdict:10s} {row.row}: {reason}", flush=True)
        if kind == "aa" and len(results) == 1:
            cycles = spins(results[0][2], options.slow)
            tree(folder, "slow", cycles)
        stored = [
            (k, s, [row.model_dump(mode="json") for row, _, _ in rows]) for k, s, rows in results
        ]
        options.out.write_text(json.dumps(stored))
    summary(results)


def spins(rows: list[tuple[RowEvidence, str, str]], shares: list[float]) -> dict[float, int]:
    """How long the added kernel spins for each slowdown, by the row's own time."""
    found = next((speed(row) for row, _, _ in rows if row.row == SLOWED), None)
    if found is None:
        return {}
    microseconds = {s: max(0.0, 10 * s * found.base_ms - LAUNCH_US) for s in shares}
    return {variant(share)[1]: int(MHZ * us) for share, us in microseconds.items()}


def summary(results: list[tuple[str, float, list[tuple[RowEvidence, str, str]]]]) -> None:
    """False fails, shares proved, detections, minutes."""
    for kind in dict.fromkeys(kind for kind, _, _ in results):
        own = [(seconds, rows) for k, seconds, rows in results if k == kind]
        minutes = sum(seconds for seconds, _ in own) / len(own) / 60
        print(f"{kind}: {len(own)} runs, {minutes:.2f} minutes each")
        for name in dict.fromkeys(row.row for _, rows in own for row, _, _ in rows):
            chosen = [(row, v) for _, rows in own for row, v, _ in rows if row.row == name]
            counts = {v: sum(x == v for _, x in chosen) for v in sorted({x for _, x in chosen})}
            found = [s for row, _ in chosen if (s := speed(row))]
            means = [f"{100 * s.ratio.mean:+.2f}±{100 * s.ratio.half:.2f}" for s in found]
            print(f"  {name}: {counts} % {' '.join(means)}")


if __name__ == "__main__":
    main()
