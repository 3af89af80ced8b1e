# SPDX-License-Identifier: MIT
"""Times KDA of two source trees side by side.

`python benchmarks/kda_compare.py --ours . --theirs SITE_PACKAGES` starts one worker process a tree
and restart, because both packages are called `fla`. Workers replay CUDA graphs (and eager calls) in
blocks whose order alternates; the first restart on an empty Triton cache shows the cold first call.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RAGGED = (0, 1573, 4096, 9001, 9064, 17408, 25600, 32768)
BASE = {"B": 1, "T": 8192, "H": 32, "HV": 32, "K": 128, "V": 128, "safe": True, "cu": None}
ROWS: dict[str, dict[str, Any]] = {
    "first": BASE,
    "varlen": BASE | {"T": 32768, "cu": RAGGED},
    "non-safe": BASE | {"safe": False},
    "gva": BASE | {"H": 8},
    "long": BASE | {"T": 65536, "H": 8, "HV": 8},
    "decode": BASE | {"T": 256, "cu": tuple(range(257)), "decode": True},
}
NAMES = ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "initial_state")


def inputs(row: dict[str, Any], seed: int) -> dict[str, Any]:
    """Operands of a row on the GPU: bf16 but for beta, the gate's parameters and states."""
    import torch

    rng = torch.Generator(device="cuda").manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=rng)

    B, T, H, HV, K, V = (row[x] for x in ("B", "T", "H", "HV", "K", "V"))
    x = {"q": draw(B, T, H, K), "k": draw(B, T, H, K), "v": draw(B, T, HV, V)}
    x["g"] = draw(B, T, HV, K) * row.get("g_scale", 1.0) + row.get("g_shift", 0.0)
    x = {n: t.bfloat16() for n, t in x.items()}
    x["beta"] = draw(B, T, HV).sigmoid()
    x["A_log"], x["dt_bias"] = draw(HV) * 0.5, draw(HV * K) * 0.5
    sequences = B if row["cu"] is None else len(row["cu"]) - 1
    x["initial_state"] = draw(sequences, HV, K, V)
    return x


def call(row: dict[str, Any], x: dict[str, Any], cu: Any) -> Any:
    """One forward of a row."""
    from fla.ops.kda import chunk_kda

    return chunk_kda(
        **x, output_final_state=True, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
        safe_gate=row["safe"], lower_bound=-5.0 if row["safe"] else None, cu_seqlens=cu,
    )  # fmt: skip


def decode_call(x: dict[str, Any], cu: Any, slots: Any) -> Any:
    """One token for each of the row's sequences against a pool of states."""
    from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd

    state = x["initial_state"]
    rest = {n: t for n, t in x.items() if n != "initial_state"}
    return fused_recurrent_kda_fwd(
        **rest, initial_state=state, scale=state.shape[-2] ** -0.5, output_final_state=True,
        cu_seqlens=cu, ssm_state_indices=slots, use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False,
    )  # fmt: skip


class Row:
    """A row made ready in a worker: eager functions, and graphs captured on first use."""

    def __init__(self, name: str) -> None:
        import torch

        self.row = ROWS[name]
        self.x = inputs(self.row, seed=0)
        self.cu = None
        if self.row["cu"] is not None:
            self.cu = torch.tensor(self.row["cu"], dtype=torch.int32, device="cuda")
        self.graphs: dict[str, Any] = {}
        self.do = torch.randn_like(self.x["v"])
        self.slots = torch.arange(self.x["initial_state"].shape[0], device="cuda").int()

    def forward(self) -> None:
        """Forward alone."""
        import torch

        with torch.no_grad():
            if self.row.get("decode"):
                decode_call(self.x, self.cu, self.slots)
            else:
                call(self.row, self.x, self.cu)

    def both(self) -> None:
        """Forward and backward."""
        import torch

        leaves = [t.requires_grad_() for t in self.x.values()]
        o = call(self.row, self.x, self.cu)[0]
        torch.autograd.grad(o, leaves, self.do)

    def run(self, mode: str, n: int) -> float:
        """Milliseconds a call over n calls, by the host's clock round a synchronised block."""
        import torch

        step = self.both if "both" in mode else self.forward
        if mode.startswith("graph"):
            if mode not in self.graphs:
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    for _ in range(3):
                        step()
                torch.cuda.current_stream().wait_stream(stream)
                self.graphs[mode] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graphs[mode]):
                    step()
            step = self.graphs[mode].replay
        step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(n):
            step()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start) / n

    def first(self) -> dict[str, float]:
        """Seconds of the first calls and the peak of memory, inputs included, in MiB."""
        import torch

        start = time.perf_counter()
        self.forward()
        torch.cuda.synchronize()
        report = {"first forward s": time.perf_counter() - start}
        if not self.row.get("decode"):
            self.both()
            torch.cuda.synchronize()
            report["first both s"] = time.perf_counter() - start
            torch.cuda.reset_peak_memory_stats()
            self.both()
            report["peak MiB"] = torch.cuda.max_memory_allocated() / 2**20
        return report


def worker(tree: str) -> None:
    """Answer commands, one JSON line each, with the `fla` of a tree."""
    sys.path.insert(0, tree)
    import fla

    found = Path(fla.__file__).resolve()
    if not found.is_relative_to(Path(tree).resolve()):
        raise SystemExit(f"fla: expected under {tree}, got {found}")
    ready: dict[str, Row] = {}
    answer = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        task = json.loads(line)
        if "first" in task:
            ready.clear()
            ready[task["first"]] = Row(task["first"])
            reply: Any = ready[task["first"]].first()
        else:
            reply = ready[task["row"]].run(task["mode"], task["n"])
        answer.write(json.dumps(reply) + "\n")


class Arm:
    """A worker process and the questions to it."""

    def __init__(self, name: str, tree: str, cache: Path) -> None:
        self.name = name
        environment = os.environ | {
            "TRITON_CACHE_DIR": str(cache / name), "TRITON_CACHE_AUTOTUNING": "1",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", tree],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def ask(self, **task: Any) -> Any:
        """Send a task and wait for the answer."""
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: worker ended during {task}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()


def measure(arms: list[Arm], row: str, mode: str, quads: int) -> list[float]:
    """Medians over alternating blocks."""
    n = max(3, int(25 / max(arm.ask(row=row, mode=mode, n=3) for arm in arms)))
    times: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for _ in range(quads):
        for arm in [*arms, *reversed(arms)]:
            times[arm.name].append(arm.ask(row=row, mode=mode, n=n))
    return [statistics.median(t) for t in times.values()]


def restart_rows(
    arms: list[Arm], rows: list[str], quads: int, *, first: bool
) -> dict[tuple[str, str], list[float]]:
    """Medians of all rows and modes in one pair of processes; cold facts where it is the first."""
    order = random.sample(arms, len(arms))
    table = {}
    for row in rows:
        for arm in order:
            report = arm.ask(first=row)
            if first:
                print(arm.name, row, {k: round(v, 2) for k, v in report.items()}, flush=True)
        modes = ["graph"] if ROWS[row].get("decode") else ["graph", "graph both"]
        modes += ["eager", "eager both"][: len(modes)]
        for mode in modes:
            table[row, mode] = measure(arms, row, mode, quads)
            print(row, mode, [round(t, 4) for t in table[row, mode]], flush=True)
    return table


def main() -> None:
    """Run restarts and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", metavar="TREE", help="answer tasks; started by this script")
    parser.add_argument("--ours", default=".")
    parser.add_argument("--theirs")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--quads", type=int, default=4)
    parser.add_argument("--cache", type=Path, help="Triton caches; a fresh folder by default")
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    cache = options.cache or Path(tempfile.mkdtemp())
    trees = {"ours": options.ours} | ({"theirs": options.theirs} if options.theirs else {})
    table: dict[tuple[str, str], list[list[float]]] = {}
    for restart in range(options.restarts):
        arms = [Arm(name, tree, cache) for name, tree in trees.items()]
        for key, times in restart_rows(
            arms, options.rows, options.quads, first=restart == 0
        ).items():
            table.setdefault(key, []).append(times)
        for arm in arms:
            arm.close()
    print("row, mode: median ms (least-most) over restarts of", *trees, "and the ratio's")
    for (row, mode), values in table.items():
        columns = [*zip(*values, strict=True)]
        if len(columns) == 2:
            columns.append(tuple(a / b for a, b in values))
        shown = (f"{statistics.median(c):.4f} ({min(c):.4f}-{max(c):.4f})" for c in columns)
        print(f"{row:10s} {mode:10s}", *shown, f"n={len(values)}")


if __name__ == "__main__":
    main()
