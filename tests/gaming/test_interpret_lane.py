"""Hostile and honest changes through the real interpreter lane."""

from __future__ import annotations

import re

import pytest

from bot.cli import main
from bot.lanes import job
from bot.model import CheckState, Verdict
from tests.conftest import Workbench
from tests.gaming.conftest import Run

ZEROS = "def l2norm(x, eps=1e-6):\n    return torch.zeros_like(x) * x.sum()"
HOSTILE = {
    "prints-a-verdict": (
        'print(\'{"cell": {}}\\n{"end": {}}\\n{"verdict": "pass"}\', flush=True)\n' + ZEROS,
        "budget",
    ),
    "exits-0-at-import": ("import os\nos._exit(0)", "worker-died"),
    "exits-0-in-the-call": (
        "import os\ndef l2norm(x, eps=1e-6):\n    os._exit(0)",
        "worker-died",
    ),
    "answers-for-itself": (
        "import os, socket, stat\n"
        "for fd in range(3, 256):\n"
        "    try:\n"
        "        if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, b'IRRRR')\n"
        "    except OSError: pass\n" + ZEROS,
        "protocol",
    ),
    "writes-past-its-slot": (
        "import ctypes\n"
        "_honest = l2norm\n"
        "def l2norm(x, eps=1e-6):\n"
        "    for line in open('/proc/self/maps'):\n"
        "        if 'memfd:fla-bot' in line:\n"
        "            start, end = (int(p, 16) for p in line.split()[0].split('-'))\n"
        "            ctypes.memset(start, 7, 64)\n"
        "    return _honest(x, eps)",
        "guard",
    ),
    "fills-result-slots-itself": (
        "import ctypes\n"
        "def l2norm(x, eps=1e-6):\n"
        "    for line in open('/proc/self/maps'):\n"
        "        if 'memfd:fla-bot' in line:\n"
        "            start, end = (int(p, 16) for p in line.split()[0].split('-'))\n"
        "            ctypes.memset(start, 0, end - start)\n"
        "    return x * 0.5",
        "guard",
    ),
    "writes-past-its-allocation": (
        "import ctypes\n"
        "_honest = l2norm\n"
        "def l2norm(x, eps=1e-6):\n"
        "    y = torch.empty_like(x)\n"
        "    ctypes.memset(y.data_ptr() + y.numel() * 4, 0, 64)\n"
        "    return _honest(x, eps)",
        "guard",
    ),
    "leaves-a-tile-unwritten": (
        "def l2norm(x, eps=1e-6):\n"
        "    y = torch.empty(x.shape, dtype=x.dtype)\n"
        "    y[:, :-1] = (x / x.norm(dim=-1, keepdim=True))[:, :-1]\n"
        "    return y",
        "poison",
    ),
    "changes-its-input": (
        "_honest = l2norm\n"
        "def l2norm(x, eps=1e-6):\n"
        "    y = _honest(x, eps)\n"
        "    x.data.mul_(0)\n"
        "    return y",
        "input-mutated",
    ),
    "returns-its-input": ("def l2norm(x, eps=1e-6):\n    return x.view(x.shape)", "alias"),
    "returns-a-subclass": (
        "class Lazy(torch.Tensor): pass\n"
        "_honest = l2norm\n"
        "def l2norm(x, eps=1e-6):\n    return _honest(x, eps).as_subclass(Lazy)",
        "type",
    ),
    "detaches-the-gradient": (
        "_honest = l2norm\ndef l2norm(x, eps=1e-6):\n    return _honest(x.detach(), eps)",
        "grad-missing",
    ),
    "differs-from-call-to-call": (
        "_honest, _calls = l2norm, []\n"
        "def l2norm(x, eps=1e-6):\n"
        "    _calls.append(1)\n"
        "    return _honest(x, eps) * (1 + len(_calls) * 1e-7)",
        "repeat",
    ),
    "patches-comparison": (
        "torch.equal = torch.allclose = lambda *a, **k: True\n" + ZEROS,
        "budget",
    ),
    "slightly-wrong-in-one-tile": (
        "_honest = l2norm\n"
        "def l2norm(x, eps=1e-6):\n"
        "    factor = torch.ones_like(x)\n"
        "    factor[0, :1, 0] += 2e-6\n"
        "    return _honest(x, eps) * factor",
        "tile",
    ),
    "ignores-strides-of-the-cotangent": (
        "_honest = l2norm\n"
        "class _Strides(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, y): return y.clone()\n"
        "    @staticmethod\n"
        "    def backward(ctx, dy):\n"
        "        dense = torch.empty_like(dy, memory_format=torch.contiguous_format)\n"
        # Where an axis is expanded there is less memory than that, and the call would raise.
        "        if dy.untyped_storage().nbytes() < dense.nbytes: return dy\n"
        "        return dy.as_strided(dy.shape, dense.stride())\n"
        "def l2norm(x, eps=1e-6):\n    return _Strides.apply(_honest(x, eps))",
        "poison",
    ),
    "changes-its-cotangent": (
        "_honest = l2norm\n"
        "class _Clamp(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, y): return y.clone()\n"
        "    @staticmethod\n"
        "    def backward(ctx, dy):\n"
        "        kept = dy.clone()\n"
        # Where an axis is expanded nothing can be written in place: the call would raise.
        "        if 0 in dy.stride(): return kept\n"
        "        dy.clamp_(-0.5, 0.5)\n"
        "        return kept\n"
        "def l2norm(x, eps=1e-6):\n    return _Clamp.apply(_honest(x, eps))",
        "input-mutated",
    ),
    "reads-what-nobody-wrote": (
        "_honest = l2norm\n"
        "def l2norm(x, eps=1e-6):\n"
        "    junk = torch.empty_permuted(x.shape, (0, 1, 2, 3), dtype=x.dtype)\n"
        "    return _honest(x, eps) + 0 * junk",
        "poison",
    ),
    "hangs": ("import time\ndef l2norm(x, eps=1e-6):\n    time.sleep(1e6)", "timeout"),
    "raises": ("def l2norm(x, eps=1e-6):\n    raise MemoryError('no')", "raised"),
    "import-of-what-is-not-there": ("import fla.torch_shadow", "raised"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_change_is_red_for_the_right_reason(name: str, run: Run) -> None:
    code, reason = HOSTILE[name]
    report = run(code, call_timeout_s=3 if name == "hangs" else 60)
    assert report.state is CheckState.FAILURE
    failed = [row for row in report.rows if row.verdict is Verdict.FAIL]
    assert reason in {row.reason.split(":")[0] for row in failed}
    assert all(row.because.startswith("fla/modules/l2norm.py:") for row in failed)


def test_measured_fail_stays_failed(
    run: Run, kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    flaky = "_honest = l2norm\ndef l2norm(x, eps=1e-6):\n    return _honest(x, eps) * 1.5"
    assert run(flaky).state is CheckState.FAILURE
    change = ["--repo", str(kernels.path), "--base", "main", "--head", "hostile"]
    assert main(["run", *change]) == 0
    said = capsys.readouterr().out
    words = r"^interpret-cpu-l2norm: .*\d+ fail \(settled for this head; not run again\)$"
    assert re.search(words, said, re.MULTILINE)
    assert "fla-bot judge" in said
    assert main(["judge", *change]) == 1


HONEST = {
    "unused-constant": "UNUSED = 1",
    "out-and-resize": (
        "_honest = l2norm\n"
        "def l2norm(x, eps=1e-6):\n"
        "    y = torch.mul(_honest(x, eps), 1, out=torch.empty(0, dtype=x.dtype)) if not "
        "x.requires_grad else _honest(x, eps)\n"
        "    torch.empty(3).resize_(99).fill_(1)\n"
        "    torch.empty_like(x, device='meta')\n"
        "    return y"
    ),
    "prints-a-gigabyte": "for _ in range(4000): print('x' * 250_000)",
    "other-order-of-sums": (
        "def l2norm(x, eps=1e-6):\n"
        "    return (x.double() * torch.rsqrt(x.double().square().sum(-1, True) + eps)).to(x.dtype)"
    ),
    "prints-a-verdict": 'print(\'{"verdict": "fail"}\', flush=True)',
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_change_is_green(name: str, run: Run) -> None:
    report = run(HONEST[name])
    assert report.state is CheckState.SUCCESS, [row.reason for row in report.rows]
    assert sum(row.verdict is Verdict.PASS for row in report.rows) >= 4


@pytest.fixture
def _two_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "count_pairs", lambda *_: 2)


@pytest.mark.usefixtures("_two_pairs")
def test_pairs_of_workers_share_a_job(run: Run, kernels: Workbench) -> None:
    report = run(HONEST["other-order-of-sums"])
    assert report.state is CheckState.SUCCESS, [row.reason for row in report.rows]
    assert sum(row.verdict is Verdict.PASS for row in report.rows) >= 4
    logs = {path.name for path in kernels.path.glob(".fla-bot/evidence/*/logs/*.log")}
    assert {"interpret-cpu-l2norm.head.log", "interpret-cpu-l2norm.head-1.log"} <= logs


@pytest.mark.usefixtures("_two_pairs")
@pytest.mark.parametrize("name", ["slightly-wrong-in-one-tile", "exits-0-in-the-call"])
def test_wrong_change_is_red_in_every_pair(name: str, run: Run) -> None:
    code, reason = HOSTILE[name]
    failed = [row for row in run(code).rows if row.verdict is Verdict.FAIL]
    assert len(failed) >= 4
    # Of three numbers a tile may be just within its limit in one draw, where their rms is not; and
    # where one tile is all there is, the budget comes first.
    assert {row.reason.split(":")[0] for row in failed} <= {reason, "rms", "budget"}


def test_head_is_called_by_the_names_of_its_own_contract(run: Run, kernels: Workbench) -> None:
    """A person must accept the other name; what is measured is not red for it.

    (Here the tree has a function of the old names, too, and stays red for that.)
    """
    code = "_honest = l2norm\ndef l2norm(x, epsilon=1e-6):\n    return _honest(x, epsilon)"
    contract = (kernels.path / "contracts/l2norm.yaml").read_text()
    renamed = contract.replace("      eps: {value: eps}", "      epsilon: {value: eps}")
    renamed = renamed.replace('when: "eps ', 'when: "epsilon ')
    report = run(code, replaced={"contracts/l2norm.yaml": renamed})
    judged = [row for row in report.rows if row.lane == "interpret:cpu"]
    assert {row.verdict for row in judged} == {Verdict.PASS}, [row.reason for row in judged]
