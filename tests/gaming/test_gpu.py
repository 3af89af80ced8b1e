"""Cheats and honest changes that need an accelerator: timers, streams, graphs, caches, libraries.

The number of a fixture is the research note's. Run on a GPU: `pytest tests/gaming/test_gpu.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from bot.change import Repository
from bot.check import Analysis, Request, analyse
from bot.evidence import Evidence
from bot.judge import judge
from bot.judge.benchmark import speed
from bot.model import Job, Row, Verdict
from bot.report.figures import describe
from bot.run import run_cells
from tests.conftest import ROOT, Workbench
from tests.gaming.bench import CONTRACT, HONEST, evidence, measure, verdicts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
# 67 MB an argument: half a millisecond a call, and more than caches hold.
LARGE = CONTRACT.replace("B: 2, T: 16, D: 32", "B: 256, T: 16, D: 4096")
PATCHED_TIMERS = """
import ctypes, struct
_names = {line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line}
for _library in map(ctypes.CDLL, _names):
    for _name in ("cudaEventElapsedTime", "cudaEventElapsedTime_v2"):
        try:
            _at = ctypes.cast(getattr(_library, _name), ctypes.c_void_p).value
        except AttributeError:
            continue
        _page = ctypes.c_void_p(_at & ~4095)
        ctypes.CDLL(None).mprotect(_page, ctypes.c_size_t(8192), 7)
        # mov dword [rdi], 0.001f; xor eax, eax; ret
        ctypes.memmove(_at, b"\\xc7\\x07" + struct.pack("<f", 1e-3) + b"\\x31\\xc0\\xc3", 9)
"""
PERSISTING = """
import ctypes
_cudart = ctypes.CDLL(next(
    line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line))
class _Window(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t), ("ratio", ctypes.c_float),
                ("hit", ctypes.c_int), ("miss", ctypes.c_int), ("rest", ctypes.c_byte * 64)]
_scan = scan
def scan(x, w):
    _cudart.cudaDeviceSetLimit(6, ctypes.c_size_t(32 << 20))
    window = _Window(x.data_ptr(), min(x.numel() * 4, 32 << 20), 1.0, 2, 1)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _cudart.cudaStreamSetAttribute(stream, 1, ctypes.byref(window))
    return _scan(x, w)
"""
TWICE = "_once = scan\ndef scan(x, w):\n    _once(x, w)\n    return _once(x, w)\n"
# Name: what follows the honest source, and how the verdict begins.
HOSTILE = {
    "02-detour-of-the-timer": (PATCHED_TIMERS + TWICE, ("launches:", "slower:")),
    "03-side-stream-that-nobody-captures": (
        "_scan, _side = scan, []\n"
        "def scan(x, w):\n"
        "    if not _side: _side.append(torch.cuda.Stream())\n"
        "    y = torch.empty_like(x)\n"
        "    with torch.cuda.stream(_side[0]): y.copy_(_scan(x, w))\n"
        "    return y\n",
        ("audit:", "capture:"),
    ),
    "03-side-stream-without-join": (
        "_scan, _side = scan, []\n"
        "def scan(x, w):\n"
        "    if not _side: _side.append(torch.cuda.Stream())\n"
        "    y = torch.empty_like(x)\n"
        "    _side[0].wait_stream(torch.cuda.current_stream())\n"
        "    with torch.cuda.stream(_side[0]): y.copy_(_scan(x, w))\n"
        "    return y\n",
        ("audit:", "capture:", "raised:"),
    ),
    "04-says-done-before-it-is": (
        "torch.cuda.synchronize = lambda *_: None\n"
        "torch.cuda.Event.elapsed_time = lambda *_: 1.0\n",
        ("deferred:", "impossible:", "audit:"),
    ),
    "10-graph-with-stale-inputs": (
        "_scan, _kept = scan, {}\n"
        "def scan(x, w):\n"
        "    if x.shape not in _kept:\n"
        "        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()\n"
        "        stream.wait_stream(torch.cuda.current_stream())\n"
        "        with torch.cuda.stream(stream): _scan(x, w)\n"
        "        torch.cuda.current_stream().wait_stream(stream)\n"
        "        with torch.cuda.graph(graph): y = _scan(x, w)\n"
        "        _kept[x.shape] = graph, y\n"
        "    graph, y = _kept[x.shape]\n"
        "    graph.replay()\n"
        "    return y.clone()\n",
        ("audit:", "capture:"),
    ),
    "12-garbage-after-the-first-replay": (
        "_scan, _calls = scan, []\n"
        "def scan(x, w):\n"
        "    _calls.append(1)\n"
        "    return _scan(x, w) * (1.5 if len(_calls) > 20 else 1.0)\n",
        ("audit:",),
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_code_is_red_for_the_right_reason(name: str, tmp_path: Path) -> None:
    code, reasons = HOSTILE[name]
    text = LARGE if name.startswith("04") else CONTRACT
    rows = measure(tmp_path, f"{HONEST}\n{code}\n", device="cuda", text=text, timeout_s=60)
    verdict, said = verdicts(evidence(rows), text=text)["scan/fwd"]
    assert verdict is Verdict.FAIL, said
    assert said.startswith(reasons)


def test_patched_timers_alone_gain_nothing(tmp_path: Path) -> None:
    """2: by its own events head takes a microsecond; the outer clock does not know of them."""
    source = f"{HONEST}\n{PATCHED_TIMERS}\n"
    (row,) = measure(tmp_path, source, device="cuda", text=LARGE, timeout_s=60)
    verdict, said = verdicts(evidence([row]), text=LARGE)["scan/fwd"]
    assert verdict in (Verdict.PASS, Verdict.NOT_PROVEN), said
    assert "timer-mismatch" in said
    found = speed(row)
    assert found is not None
    assert abs(found.ratio.mean) < 0.03


def test_data_that_persist_in_a_cache_gain_nothing(tmp_path: Path) -> None:
    """14: each call has memory of its own, so that nothing is there to be kept."""
    source = f"{HONEST}\n{PERSISTING}\n"
    (row,) = measure(tmp_path, source, device="cuda", text=LARGE, timeout_s=60)
    verdict, said = verdicts(evidence([row]), text=LARGE)["scan/fwd"]
    found = speed(row)
    assert found is not None, said
    assert verdict is Verdict.FAIL or found.ratio.mean + found.ratio.half > -0.02, said


def test_honest_code_passes_forward_and_backward(tmp_path: Path) -> None:
    rows = measure(
        tmp_path, f"{HONEST}\n", device="cuda", rows=("scan/fwd", "scan/both"), timeout_s=60
    )
    for verdict, said in verdicts(evidence(rows)).values():
        assert verdict in (Verdict.PASS, Verdict.NOT_PROVEN), said


def cells(
    workbench: Workbench, op: str, change: Mapping[str, str], only: str
) -> tuple[Analysis, Job, Evidence]:
    """Evidence of some cells of an op of this repository, a change being made, on the GPU."""
    for folder in ("fla", "contracts"):
        shutil.copytree(
            ROOT / folder, workbench.path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    workbench.commit({})
    workbench.commit(dict(change), branch="work")
    with Repository(workbench.path) as repository:
        analysis = analyse(repository, Request("main", "work"))
        found = run_cells(
            repository,
            analysis,
            lane="correctness:sm90",
            only=only,
            seed=None,
            progress=lambda _: None,
        )
    ((job, evidence),) = (pair for pair in found if pair[0].op == op)
    ran = job.model_copy(update={"cells": [cell.cell for cell in evidence.cells]})
    return analysis, ran, evidence


def reasons(rows: list[Row]) -> set[str]:
    return {row.reason.split(":")[0] for row in rows if row.verdict is Verdict.FAIL}


L2NORM = "fla/modules/l2norm.py"
L2NORM_CELLS = "width=d64"
KDA_FP32 = "chunk_kda[dtype=fp32,params=fp32,direction=forward,layout=dense"
KDA_BF16 = "chunk_kda[dtype=bf16,params=fp32,direction=forward,layout=dense"


def edited(path: str, *edits: tuple[str, str]) -> dict[str, str]:
    """A file of ours with some texts replaced."""
    text = (ROOT / path).read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return {path: text}


def appended(path: str, code: str) -> dict[str, str]:
    return {path: f"{(ROOT / path).read_text()}\n\n{code}\n"}


CONFIG = "fla/ops/kda/config.py"
PLAN, OUTPUT = "fla/ops/kda/plan.py", "fla/ops/kda/chunk_output.py"
# Name: op, cells, change, and the reasons one of which must be given.
WRONG = {
    "11-super-batch": (
        "l2norm",
        L2NORM_CELLS,
        appended(
            L2NORM,
            "_honest, _waiting = l2norm, []\n"
            "def l2norm(x, eps=1e-6):\n"
            "    y = torch.empty_like(x) + 0 * x\n"
            "    _waiting.append((x, y))\n"
            "    if len(_waiting) == 8:\n"
            "        for old, out in _waiting: out.detach().copy_(_honest(old.detach(), eps))\n"
            "        _waiting.clear()\n"
            "    return y\n",
        ),
        {"poison", "budget", "tile", "row", "repeat", "raised"},
    ),
    "28-tf32-operands": (
        "kda", KDA_FP32, edited(PLAN, ('"tf32x3"', '"tf32"')), {"budget", "tile", "row", "slope"},
    ),
    "28-fp8-operands": (
        "kda",
        KDA_BF16,
        edited(
            OUTPUT,
            ("tl.dot(b_q, b_h,", "tl.dot(b_q.to(tl.float8e5).to(DT), b_h,"),
        ),
        {"budget", "tile", "row", "slope", "anchor"},
    ),
    "37-library-as-the-whole-op": (
        "l2norm",
        L2NORM_CELLS,
        appended(
            L2NORM,
            "def l2norm(x, eps=1e-6):\n"
            "    f = x.float()\n"
            "    ones = torch.ones(x.shape[-1], 1, device=x.device)\n"
            "    return (f * ((f * f) @ ones + eps).rsqrt()).to(x.dtype)\n",
        ),
        {"undeclared-kernel", "ghost"},
    ),
    "37-library-beside-the-kernel": (
        "l2norm",
        L2NORM_CELLS,
        appended(
            L2NORM,
            "_honest = l2norm\n"
            "def l2norm(x, eps=1e-6):\n"
            "    _work = torch.randn(1024, 1024, device=x.device)\n"
            "    _work @ _work\n"
            "    return _honest(x, eps)\n",
        ),
        {"undeclared-kernel"},
    ),
}  # fmt: skip
RIGHT = {
    "refactor": ("l2norm", L2NORM_CELLS, appended(L2NORM, "_UNUSED = 1")),
    "better-precision": (
        "kda",
        KDA_BF16,
        edited(PLAN, ('"tf32" if self.dtype == torch.bfloat16', '"tf32x3" if self.K')),
    ),
    "other-schedule": (
        "kda",
        KDA_BF16,
        edited(CONFIG, ("BV=128, num_warps=4, num_stages=2", "BV=128, num_warps=8, num_stages=1")),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernel_is_red_for_the_stated_reason(name: str, workbench: Workbench) -> None:
    op, only, change, wanted = WRONG[name]
    analysis, job, found = cells(workbench, op, change, only)
    books, part = analysis.books, analysis.plan.model_copy(update={"jobs": [job]})
    rows = judge(part, books.policy, books.contracts, {job.id: found}, books.anchors)
    assert reasons(rows) & wanted, [row.reason for row in rows]


@pytest.mark.parametrize("name", RIGHT)
def test_honest_change_is_green(name: str, workbench: Workbench) -> None:
    op, only, change = RIGHT[name]
    analysis, _, found = cells(workbench, op, change, only)
    books = analysis.books
    lines, fine = describe(found, books.contracts[op], books.policy, books.anchors.get(op))
    assert fine, lines
