"""Properties, declared kernels, dispatch and configurations through the real lane.

The op is a gated running sum with states, small enough to break in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from bot import evidence
from bot.change import Repository
from bot.check import Request, analyse, evidence_folder, report
from bot.evidence import Evidence
from bot.kernels import most_configurations
from bot.model import Row, Verdict
from bot.run import run_plan
from tests.conftest import ROOT, Workbench

SCAN = """
import torch, triton
import triton.language as tl

from fla.ops.backends import dispatch


@triton.jit
def scan_fwd_kernel(x, a, o, h0, ht, cu, T, H, D: tl.constexpr, VARLEN: tl.constexpr,
                    INITIAL: tl.constexpr, FINAL: tl.constexpr):
    i_n, i_h = tl.program_id(0) // H, tl.program_id(0) % H
    bos, eos = i_n * T, i_n * T + T
    if VARLEN:
        bos, eos = tl.load(cu + i_n), tl.load(cu + i_n + 1)
    o_d = tl.arange(0, D)
    b_h = tl.zeros([D], dtype=tl.float32)
    if INITIAL:
        b_h = tl.load(h0 + (i_n * H + i_h) * D + o_d).to(tl.float32)
    for i_t in range(bos, eos):
        b_a = tl.load(a + i_t * H + i_h).to(tl.float32)
        b_h = b_a * b_h + tl.load(x + (i_t * H + i_h) * D + o_d).to(tl.float32)
        tl.store(o + (i_t * H + i_h) * D + o_d, b_h)
    if FINAL:
        tl.store(ht + (i_n * H + i_h) * D + o_d, b_h)


@triton.jit
def scan_bwd_kernel(a, o, do, h0, dht, dx, da, dh0, cu, T, H, D: tl.constexpr,
                    VARLEN: tl.constexpr, INITIAL: tl.constexpr, FINAL: tl.constexpr):
    i_n, i_h = tl.program_id(0) // H, tl.program_id(0) % H
    bos, eos = i_n * T, i_n * T + T
    if VARLEN:
        bos, eos = tl.load(cu + i_n), tl.load(cu + i_n + 1)
    o_d = tl.arange(0, D)
    b_r = tl.zeros([D], dtype=tl.float32)
    if FINAL:
        b_r = tl.load(dht + (i_n * H + i_h) * D + o_d)
    for i in range(bos, eos):
        i_t = bos + eos - 1 - i
        b_r += tl.load(do + (i_t * H + i_h) * D + o_d)
        b_s = tl.zeros([D], dtype=tl.float32)
        if i_t > bos:
            b_s = tl.load(o + ((i_t - 1) * H + i_h) * D + o_d)
        elif INITIAL:
            b_s = tl.load(h0 + (i_n * H + i_h) * D + o_d)
        tl.store(dx + (i_t * H + i_h) * D + o_d, b_r)
        tl.store(da + i_t * H + i_h, tl.sum(b_r * b_s))
        b_r *= tl.load(a + i_t * H + i_h)
    if INITIAL:
        tl.store(dh0 + (i_n * H + i_h) * D + o_d, b_r)


class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a, h0, cu, final):
        x, a = x.contiguous(), a.contiguous()
        B, T, H, D = x.shape
        N = B if cu is None else len(cu) - 1
        o = torch.empty_like(x)
        ht = x.new_empty(N, H, D) if final else None
        flags = {"VARLEN": cu is not None, "INITIAL": h0 is not None, "FINAL": final}
        scan_fwd_kernel[(N * H,)](x, a, o, h0, ht, cu, T, H, D=D, **flags)
        ctx.save_for_backward(a, o, h0, cu)
        ctx.final, ctx.sizes = final, (N, T, H, D)
        return o, ht

    @staticmethod
    def backward(ctx, do, dht):
        a, o, h0, cu = ctx.saved_tensors
        N, T, H, D = ctx.sizes
        dx, da = torch.empty_like(o), torch.empty_like(a)
        dh0 = None if h0 is None else torch.empty_like(h0)
        flags = {"VARLEN": cu is not None, "INITIAL": h0 is not None, "FINAL": ctx.final}
        dht = dht.contiguous() if ctx.final else None
        scan_bwd_kernel[(N * H,)](
            a, o, do.contiguous(), h0, dht, dx, da, dh0, cu, T, H, D=D, **flags
        )
        return dx, da, dh0, None, None


@dispatch("scan")
def scan(x, a, initial_state=None, output_final_state=False, cu_seqlens=None):
    return Scan.apply(x, a, initial_state, cu_seqlens, output_final_state)
"""
NAIVE = """
import torch


def naive_scan(x, a, initial_state=None, output_final_state=False, cu_seqlens=None):
    ends = [0, x.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    N = x.shape[0] if cu_seqlens is None else len(ends) - 1
    h0 = x.new_zeros(N, *x.shape[2:]) if initial_state is None else initial_state
    o, last = [], []
    for start, end, h in zip(ends, ends[1:], h0.split(x.shape[0])):
        for t in range(start, end):
            h = a[:, t, :, None] * h + x[:, t]
            o.append(h)
        last.append(h)
    return torch.stack(o, 1), torch.cat(last) if output_final_state else None
"""
CONTRACT = """
schema: fla-bot/contract@1
op: scan
status: enforced
owners: ["@fla-bot/kernels"]
sources: ["/fla/ops/scan/"]
entry_points:
  scan:
    target: fla.ops.scan:scan
    reference: fla.ops.scan.naive:naive_scan
    variables: {batch: 2, T: 37, H: 2, D: 8, C: 16, dtype: fp32, backward: false, packed: false,
                has_initial: false, final: false}
    derived: {B: 1 if packed else batch, N: 3 if packed else B, N1: N + 1}
    args:
      x: {dims: [B, T, H, D], grad: true}
      a: {dims: [B, T, H], values: unit, grad: true}
      initial_state: {dims: [N, H, D], present: has_initial, grad: true}
      output_final_state: {value: final}
      cu_seqlens:
        {dims: [N1], dtype: int64, content: "(0, 5, 20, T)", present: packed, constant: true}
    outputs:
      - {name: o, dims: [B, T, H, D], budget: {fp32: 1.0e-5}, tile: {B: 1, T: 16, H: 1}}
      - {name: final_state, dims: [N, H, D], present: final, budget: {fp32: 1.0e-5}, tile: {N: 1}}
    gradients:
      x: {budget: {fp32: 1.0e-5}, tile: {B: 1, T: 16, H: 1}}
      a: {budget: {fp32: 1.0e-4}, tile: {B: 1, T: 16, H: 1}}
      initial_state: {budget: {fp32: 1.0e-5}, tile: {N: 1}}
    axes:
      direction:
        values:
          forward: {set: {backward: false}, when: not x.requires_grad}
          backward: {set: {backward: true}, when: x.requires_grad}
      layout:
        values:
          dense: {set: {packed: false}, when: cu_seqlens is None}
          varlen: {set: {packed: true}, when: cu_seqlens is not None}
      states:
        values:
          none: {set: {has_initial: false, final: false}, when: initial_state is None}
          both: {set: {has_initial: true, final: true}, when: initial_state is not None}
      heads:
        values:
          two: {set: {H: 2}, when: "x.shape[2] == 2"}
          three: {set: {H: 3}, when: "x.shape[2] == 3"}
    listed:
      - {layout: varlen, states: both}
      - {states: both}
      - {layout: varlen, heads: three}
    properties:
      repeat: exact
      causal: {exactness: exact, axis: T, step: C, within: [x, a], bounds: cu_seqlens}
      linear: {exactness: exact, inputs: [x, initial_state], outputs: [o, final_state]}
      permutation: {exactness: exact, axes: [[B, N], [H]]}
      split:
        exactness: within-budget
        axis: T
        length: T
        step: C
        carry: {final_state: initial_state}
        first: {final: true}
        rest: {has_initial: true}
        packed: {bounds: cu_seqlens, axis: N, set: {packed: false, batch: 1}}
    dispatch:
      operation: scan
      kernels: [scan_fwd_kernel, scan_bwd_kernel]
    lanes: ["interpret:cpu"]
"""
INIT = "from fla.ops.scan.scan import scan\n"
Files = Mapping[str, str]
Lane = Callable[..., tuple[list[Row], Evidence]]


def broken(old: str, new: str, source: str = SCAN) -> str:
    assert old in source
    return source.replace(old, new)


@pytest.fixture
def lane(workbench: Workbench) -> Lane:
    """Commit `base` to main and `head` to a branch, run a lane, return its rows and evidence."""

    def go(
        head: Files | str,
        base: Files = MappingProxyType({}),
        contract: str = CONTRACT,
        name: str = "interpret:cpu",
    ) -> tuple[list[Row], Evidence]:
        files = {
            "fla/__init__.py": "",
            "fla/ops/__init__.py": "",
            "fla/ops/scan/__init__.py": INIT,
            "fla/ops/scan/scan.py": SCAN,
            "fla/ops/scan/naive.py": NAIVE,
            "contracts/scan.yaml": contract,
        }
        for path in ("fla/ops/backends/__init__.py", "fla/ops/backends/registry.py"):
            files[path] = (ROOT / path).read_text()
        policy = (ROOT / "contracts/policy.yaml").read_text()
        spec = "machine: cpu\n    device: cpu\n    interpreter: true\n    required: true\n"
        extra = f'lanes:\n  "configs:cpu":\n    {spec}    timeout_s: 600\n'
        files["contracts/policy.yaml"] = policy.replace("lanes:\n", extra, 1)
        workbench.commit(files | dict(base))
        change = {"fla/ops/scan/scan.py": head} if isinstance(head, str) else dict(head)
        workbench.commit(change, branch="work")
        with Repository(workbench.path) as repository:
            request = Request("main", "work")
            analysis = analyse(repository, request)
            done = run_plan(
                repository, analysis, lane=name, evidence_dir=None, progress=lambda _: None
            )
            assert not done.failed
            folder = evidence_folder(repository, analysis.plan)
            (job,) = (job for job in analysis.plan.jobs if job.lane == name)
            found = evidence.read(folder, job.id)
            assert isinstance(found, Evidence)
            rows = report(repository, analysis, request, None).rows
            return [row for row in rows if row.lane == name], found

    return go


def reasons(rows: list[Row]) -> set[str]:
    return {row.reason.split(":")[0] for row in rows if row.verdict is Verdict.FAIL}


def missed(found: Evidence) -> set[str]:
    """Properties that some result did not show."""
    held = [item for cell in found.cells for item in cell.properties]
    return {i.name for i in held if (i.error > 1e-5 if i.name == "split" else not i.equal)}


def test_honest_change_shows_all_properties_and_kernels(lane: Lane) -> None:
    rows, found = lane(SCAN + "\n\nUNUSED = 1\n")
    assert {row.verdict for row in rows} == {Verdict.PASS}, [row.reason for row in rows]
    shown = [{item.name for item in cell.properties} for cell in found.cells]
    assert set().union(*shown) == {"causal", "linear", "permutation", "split"}
    assert not missed(found)
    assert {k.kernel: (k.changed, k.raised) for k in found.kernels} == {
        "scan_fwd_kernel": (True, True),
        "scan_bwd_kernel": (True, True),
    }
    assert {cell.backend for cell in found.cells} == {"default"}
    assert all("scan_fwd_kernel" in cell.kernels for cell in found.cells)


LEAK = broken(
    "        tl.store(o + (i_t * H + i_h) * D + o_d, b_h)\n",
    "        o_n = ((i_t + 1) * H + i_h) * D + o_d\n"
    "        m_n = (i_h == 0) & (i_t + 1 < eos) & (i_t >= bos + (eos - bos - 1) // 16 * 16)\n"
    "        b_n = tl.load(x + o_n, mask=(o_d >= 0) & m_n, other=0.0)\n"
    "        tl.store(o + (i_t * H + i_h) * D + o_d, b_h + 1e-7 * b_n)\n",
)
CLAMP = broken("b_h = b_a * b_h + tl", "b_h = b_a * tl.minimum(b_h, 4.0) + tl")
DROPPED = broken(".to(tl.float32)\n    for", ".to(tl.float32) * 0.999\n    for")
NEIGHBOUR = broken(
    "b_h = tl.zeros([D], dtype=tl.float32)\n    if INITIAL",
    "b_h = tl.zeros([D], dtype=tl.float32) + tl.program_id(0) * 1e-8\n    if INITIAL",
)


@pytest.mark.parametrize(
    ("head", "name"),
    [(LEAK, "causal"), (CLAMP, "linear"), (DROPPED, "split"), (NEIGHBOUR, "permutation")],
    ids=["23-mask-off-by-one", "clamped-state", "lost-in-the-hand-over", "head-dependent"],
)
def test_broken_property_is_red(lane: Lane, head: str, name: str) -> None:
    rows, found = lane(head)
    assert reasons(rows)
    assert name in missed(found)


def test_ghost_kernel_is_red(lane: Lane) -> None:
    """38: the declared kernel is launched and what it computes is thrown away."""
    head = broken(
        "        ctx.save_for_backward(a, o, h0, cu)\n",
        "        from fla.ops.scan.naive import naive_scan\n"
        "        o, ht = naive_scan(x, a, h0, final, cu)\n"
        "        ctx.save_for_backward(a, o, h0, cu)\n",
    )
    rows, found = lane(head)
    assert "ghost" in reasons(rows)
    assert {k.kernel: k.changed for k in found.kernels}["scan_fwd_kernel"] is False


def test_kernel_that_is_never_launched_is_red(lane: Lane) -> None:
    head = SCAN + "\n\nfrom fla.ops.scan.naive import naive_scan as scan\n"
    rows, _ = lane(head)
    assert "ghost" in reasons(rows)


def test_fallback_that_hides_a_failure_is_red(lane: Lane) -> None:
    """D2: where the kernel fails, something else answers."""
    head = broken(
        "    return Scan.apply(x, a, initial_state, cu_seqlens, output_final_state)\n",
        "    try:\n"
        "        return Scan.apply(x, a, initial_state, cu_seqlens, output_final_state)\n"
        "    except Exception:\n"
        "        from fla.ops.scan.naive import naive_scan\n"
        "        return naive_scan(x, a, initial_state, output_final_state, cu_seqlens)\n",
    )
    rows, found = lane(head)
    assert "fallback" in reasons(rows)
    assert {k.kernel: k.raised for k in found.kernels}["scan_fwd_kernel"] is False


def test_cache_by_identity_of_a_changed_argument_is_red(lane: Lane) -> None:
    """42: the same object comes again with other content."""
    head = broken(
        "    return Scan.apply(x, a, initial_state, cu_seqlens, output_final_state)\n",
        "    if _cache and _cache[0] is a:\n"
        "        kept = _cache[1]\n"
        "    else:\n"
        "        kept = a * 1\n"
        "        _cache[:] = [a, kept.detach()]\n"
        "    same = a if a.requires_grad else kept\n"
        "    return Scan.apply(x, same, initial_state, cu_seqlens, output_final_state)\n"
        "_cache = []\n",
    )
    rows, _ = lane(head)
    assert reasons(rows) & {"budget", "tile", "row", "tail", "rms", "property"}


BACKEND = """
import torch
from fla.ops.backends import BaseBackend
from fla.ops.backends.registry import REGISTRY
from fla.ops.scan.scan import Scan


class Quick(BaseBackend):
    name = "quick"

    def scan(self, x, a, initial_state=None, output_final_state=False, cu_seqlens=None):
        return Scan.apply(x, a, initial_state, cu_seqlens, output_final_state)

    def scan_verifier(self, x, a, initial_state=None, output_final_state=False, cu_seqlens=None):
        if cu_seqlens is not None:
            return False, "packed"
        return True, None


REGISTRY.register("scan", Quick())
"""
DISPATCHED = CONTRACT.replace(
    "    lanes:",
    "      backends:\n"
    "        quick:\n"
    "          kernels: [scan_fwd_kernel]\n"
    "          verifier:\n"
    "            accepts: [{layout: dense}, {heads: three}]\n"
    "            rejects: [{layout: varlen}]\n"
    "    lanes:",
)
WITH_BACKEND = {
    "fla/ops/scan/quick.py": BACKEND,
    "fla/ops/scan/__init__.py": INIT + "from fla.ops.scan import quick\n",
}


def test_dispatch_is_checked_on_and_off(lane: Lane) -> None:
    head = {"fla/ops/scan/scan.py": SCAN + "\n\nUNUSED = 1\n"}
    rows, found = lane(head, WITH_BACKEND, DISPATCHED)
    assert {row.verdict for row in rows} == {Verdict.PASS}, [row.reason for row in rows]
    assert [(r.case, r.served) for r in found.routes] == [
        ("accepts", "quick"), ("accepts", "quick"), ("rejects", "default"), ("disabled", "default"),
    ]  # fmt: skip
    assert {cell.backend for cell in found.cells} == {"default", "quick"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("if cu_seqlens is not None", "if x.shape[2] == 3", "served a call that it must"),
        ("if cu_seqlens is not None", "if cu_seqlens.shape[0]", "must accept ended with raised"),
        ("return True, None", "return False, 'never'", "default served a call that it must accept"),
    ],
    ids=["accepts-too-much", "raises", "accepts-nothing"],
)
def test_wrong_verifier_is_red(lane: Lane, old: str, new: str, words: str) -> None:
    head = {"fla/ops/scan/quick.py": broken(old, new, BACKEND)}
    rows, _ = lane(head, WITH_BACKEND, DISPATCHED)
    assert any(words in row.reason for row in rows if row.verdict is Verdict.FAIL), rows


TUNED = broken(
    "@triton.jit\ndef scan_fwd_kernel(x, a, o, h0, ht, cu, T, H, D: tl.constexpr,",
    "@triton.autotune(configs=[triton.Config({'W': w}) for w in (1, 2, 4)], key=['T'])\n"
    "@triton.jit\n"
    "def scan_fwd_kernel(x, a, o, h0, ht, cu, T, H, D: tl.constexpr, W: tl.constexpr,",
)


def test_wrong_configuration_is_red_by_its_number(lane: Lane) -> None:
    wrong = broken("b_h = b_a * b_h + tl", "b_h = b_a * b_h * (1.0 if W < 4 else 0.5) + tl", TUNED)
    contract = CONTRACT.replace('lanes: ["interpret:cpu"]', 'lanes: ["configs:cpu"]')
    rows, found = lane(wrong, {"fla/ops/scan/scan.py": TUNED}, contract, "configs:cpu")
    assert {cell.configuration for cell in found.cells} == {0, 1, 2}
    failed = [row.reason for row in rows if row.verdict is Verdict.FAIL]
    assert failed
    assert all(reason.startswith("configuration 2: ") for reason in failed)


def test_all_right_configurations_are_green(lane: Lane) -> None:
    contract = CONTRACT.replace('lanes: ["interpret:cpu"]', 'lanes: ["configs:cpu"]')
    head = TUNED + "\n\nUNUSED = 1\n"
    rows, found = lane(head, {"fla/ops/scan/scan.py": TUNED}, contract, "configs:cpu")
    assert {row.verdict for row in rows} == {Verdict.PASS}, [row.reason for row in rows]
    assert len(found.cells) == 3 * len({cell.cell for cell in found.cells})
    assert found.configurations == 3


def test_configurations_that_nobody_can_count_prove_nothing(lane: Lane) -> None:
    counted = "(1, 2, 4)]"
    head = broken(counted, "range(1, 3)]", TUNED)
    contract = CONTRACT.replace('lanes: ["interpret:cpu"]', 'lanes: ["configs:cpu"]')
    rows, found = lane(head, {"fla/ops/scan/scan.py": TUNED}, contract, "configs:cpu")
    assert found.configurations is None
    assert {row.verdict for row in rows} == {Verdict.NOT_PROVEN}, [row.reason for row in rows]
    assert {cell.configuration for cell in found.cells} == {0, 1}


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("[C(1), C(2)]", (2, True)),
        ("[C(a, b) for a in (1, 2) for b in [3, 4, 5]]", (6, True)),
        ("ONE + [C(9)]", (4, True)),
        ("[*ONE, C(1)]", (4, True)),
        ("ONE if HOPPER else [C(1)]", (3, True)),
        ("[C(a) for a in (1, 2, 3) if a > 1]", (1, False)),
        ("made()", (1, False)),
        ("[C(a) for a in range(7)]", (1, False)),
        ("imported", (1, False)),
        ("GROWN", (2, False)),
        ("ONE * 2", (1, False)),
    ],
)
def test_configurations_are_counted_in_the_source(
    text: str, due: tuple[int, bool], tmp_path: Path
) -> None:
    (tmp_path / "kernel.py").write_text(
        "from elsewhere import imported\n"
        "ONE = [C(1), C(2), C(3)]\n"
        "GROWN = [C(1), C(2)]\n"
        "GROWN += [C(3)]\n"
        f"@triton.autotune(configs={text}, key=[])\n"
        "def kernel(): pass\n"
    )
    assert most_configurations(tmp_path) == due
