"""A small op with a contract, and its benchmark on this machine's CPU between two given sources.

The arms are processes forked from the test: they import the op from a tree, as workers do.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bot import contract as contract_file
from bot.contract import Contract
from bot.evidence import Environment, Evidence, RowEvidence
from bot.judge import benchmark
from bot.model import Because, Job, Verdict
from bot.policy import Lane, Margins, Policy

HONEST = """
import torch

def scan(x, w):
    y, state = [], torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        state = state * 0.9 + x[:, t] * w
        y.append(state)
    return torch.stack(y, 1)
"""
CONTRACT = """
schema: fla-bot/contract@1
op: scan
status: enforced
sources: ["/toy/"]
entry_points:
  scan:
    target: toy.scan:scan
    reference: toy.scan:scan
    variables: {B: 2, T: 16, D: 32, dtype: fp32, backward: false}
    args:
      x: {dims: [B, T, D], grad: true}
      w: {dims: [D], grad: true}
    outputs:
      - {name: y, dims: [B, T, D], budget: {fp32: 1.0e-5}}
    gradients:
      x: {budget: {fp32: 1.0e-5}}
      w: {budget: {fp32: 1.0e-5}}
    axes:
      direction:
        values:
          forward: {set: {backward: false}, when: not x.requires_grad}
          backward: {set: {backward: true}, when: x.requires_grad}
    benchmarks:
      fwd: {margin: chunked, bytes: 8 * B * T * D, flops: 3 * B * T * D}
      both:
        axes: {direction: backward}
        margin: chunked
        bytes: 20 * B * T * D
        flops: 9 * B * T * D
    lanes: ["benchmark:cpu"]
"""


# A recurrence whose first argument has no part in its state.
GATED = HONEST.replace("scan(x, w)", "scan(q, x, w)").replace(
    "return torch.stack(y, 1)", "return q * torch.stack(y, 1)"
)
GATED_CONTRACT = CONTRACT.replace(
    "args:\n", "args:\n      q: {dims: [B, T, D], grad: true}\n"
).replace("gradients:\n", "gradients:\n      q: {budget: {fp32: 1.0e-5}}\n")


def contract(text: str = CONTRACT) -> Contract:
    """The op's contract."""
    return contract_file.load(text.encode(), "scan.yaml")


@contextmanager
def arm(tree: Path, source: str) -> Iterator[socket.socket]:
    """A worker whose tree holds this source."""
    from bot.worker.timing import main

    _plant(tree, source)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            own = theirs.fileno()
            os.closerange(3, own)
            os.closerange(own + 1, 256)
            log = os.open(tree / "log", os.O_CREAT | os.O_WRONLY)
            sys.stdout = sys.stderr = os.fdopen(log, "w")
            main([str(theirs.detach()), str(tree), "toy"])
        except EOFError:
            pass
        finally:
            os._exit(0)
    theirs.close()
    try:
        with ours:
            yield ours
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def program(
    tree: Path,
    source: str,
    start: tuple[str, str] = ("-m", "bot.worker.timing"),
    folder: Path | None = None,
) -> Iterator[socket.socket]:
    """The same as a program of its own: a fork of a process that used a GPU cannot use it."""
    _plant(tree, source)
    ours, theirs = socket.socketpair()
    argv = [sys.executable, "-I", *start, str(theirs.fileno()), str(tree), "toy"]
    with ours, (tree / "log").open("wb") as log:
        with theirs:
            worker = subprocess.Popen(
                argv, pass_fds=[theirs.fileno()], stdout=log, stderr=log, cwd=folder
            )
        try:
            yield ours
        finally:
            worker.kill()
            worker.wait()


def _plant(tree: Path, source: str) -> None:
    (tree / "toy").mkdir(parents=True)
    (tree / "toy/__init__.py").write_text("")
    (tree / "toy/scan.py").write_text(source)


def measure(
    folder: Path,
    head: str,
    *,
    base: str = HONEST,
    rows: tuple[str, ...] = ("scan/fwd",),
    restarts: int = 3,
    quads: int = 3,
    timeout_s: float = 4,
    text: str = CONTRACT,
    reference: str = HONEST,
    device: str = "cpu",
) -> list[RowEvidence]:
    """What the device process finds."""
    from bot.device.bench import Bench
    from bot.device.rows import Row
    from bot.device.runner import Failed, Runner

    namespace: dict[str, Any] = {}
    exec(reference, namespace)  # the reference, which is our own text
    planned = [Row.of(contract(text), row) for row in rows]
    start = arm if device == "cpu" else program
    with start(folder / "base", base) as one, start(folder / "head", head) as other:
        arms = {"base": Runner("base", one, timeout_s), "head": Runner("head", other, timeout_s)}
        references = {"toy.scan:scan": namespace["scan"]}
        bench = Bench(
            planned, arms, device, quads=quads, references=references, show=lambda *_: None
        )
        try:
            bench.run(["toy.scan:scan"], restarts, 20)
        except Failed as error:
            for plan in planned:
                plan.fault = plan.fault or str(error)
        finally:
            for one in arms.values():
                one.close()
    return [RowEvidence.model_validate_json(p.evidence().model_dump_json()) for p in planned]


def job(*rows: str, lane: str = "benchmark:sm90") -> Job:
    """A job over rows."""
    because = [Because(path="toy/scan.py", line=1, end_line=1)]
    return Job(
        id="bench", lane=lane, op="scan", cells=list(rows), required=True, because=because, key=""
    )


def policy() -> Policy:
    """A policy with both kinds of lane."""
    common = {"required": True, "timeout_s": 600}
    lanes = {
        "benchmark:sm90": Lane(machine="sm90", device="cuda", **common),
        "benchmark:cpu": Lane(machine="cpu", device="cpu", **common),
    }
    return Policy.model_construct(lanes=lanes, margins=Margins(rms=1.5, tile=3.0))


def evidence(rows: list[RowEvidence], **changes: Any) -> Evidence:
    """Evidence of these rows, from a machine whose ceilings are given."""
    before = {"bytes_per_s": 4.3e12, "flops_per_s": 7.9e14} | changes.pop("before", {})
    environment = Environment(
        python="3", torch="2", triton="3", device="NVIDIA H200", interpreter=False,
        protections=[], before=before,
    )  # fmt: skip
    oid = "0" * 40
    fields = {
        "plan": "p", "job": "bench", "lane": "benchmark:sm90", "head": oid, "merge_base": oid,
        "trusted": oid, "complete": True, "environment": environment, "rows": rows, "wall_s": 1.0,
    }  # fmt: skip
    return Evidence(**(fields | changes))


def verdicts(
    found: Evidence, *rows: str, lane: str = "benchmark:sm90", text: str = CONTRACT
) -> dict[str, tuple[Verdict, str]]:
    """What the judge says of each row."""
    names = rows or tuple(row.row for row in found.rows)
    said = benchmark.judge(job(*names, lane=lane), policy(), contract(text), found)
    return {name: (verdict, reason) for name, verdict, reason in said}
