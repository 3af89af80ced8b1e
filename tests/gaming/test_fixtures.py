"""The numbered cheats of the research note that the correctness lane meets; one tiny change each.

The number of a fixture is the note's. Those that need a clock are in test_benchmark.py, those about
properties and declared kernels in test_properties.py, those about processes in test_sandbox.py.
"""

from __future__ import annotations

import pytest

from bot.model import CheckState, ItemState, Report, Verdict
from tests.gaming.conftest import Run

HONEST = "_honest = l2norm\n"
# Number and name: code, files beside the kernel, and the reasons one of which must be given.
FIXTURES: dict[str, tuple[str, dict[str, str], set[str]]] = {
    "07-cache-by-address": (
        HONEST + "_cache = {}\n"
        "def l2norm(x, eps=1e-6):\n"
        "    key = x.data_ptr()\n"
        "    if key not in _cache: _cache[key] = _honest(x, eps)\n"
        "    return _cache[key] * 1",
        {},
        {"shape", "tail", "tile", "row", "budget", "grad-missing", "raised"},
    ),
    "08-cache-by-fingerprint": (
        HONEST + "_cache = {}\n"
        "def l2norm(x, eps=1e-6):\n"
        "    key = x.shape, x.stride(), x.requires_grad, bool(x.flatten()[0] > 0)\n"
        "    if key not in _cache: _cache[key] = _honest(x, eps).detach()\n"
        "    return _cache[key] * 1 if not x.requires_grad else _honest(x, eps)",
        {},
        {"tail", "tile", "row", "budget"},
    ),
    "12-right-for-some-calls": (
        HONEST + "_calls = []\n"
        "def l2norm(x, eps=1e-6):\n"
        "    _calls.append(1)\n"
        "    return _honest(x, eps) * (1 if len(_calls) < 10 else 0.5)",
        {},
        {"budget", "repeat", "tile", "tail", "row"},
    ),
    "16-returns-what-was-there": (
        "def l2norm(x, eps=1e-6):\n    return torch.empty_like(x) + 0 * x",
        {},
        {"poison"},
    ),
    "17-leaves-out-the-last-partial-block": (
        HONEST + "def l2norm(x, eps=1e-6):\n"
        "    y = _honest(x, eps)\n"
        "    last = x.shape[1] // 16 * 16\n"
        "    keep = torch.ones(x.shape[1], dtype=x.dtype)\n"
        "    keep[last:] = 0\n"
        "    return y * keep[None, :, None, None]",
        {},
        {"tile", "row", "budget"},
    ),
    "18-allocates-by-another-name": (
        "def l2norm(x, eps=1e-6):\n"
        "    from fla.modules.latest_kernel import scratch\n"
        "    y = scratch(x)\n"
        "    y[:, :-1] = (x / (x.square().sum(-1, True) + eps).sqrt())[:, :-1]\n"
        "    return y",
        {
            "fla/modules/latest_kernel.py": (
                "import torch\n"
                "def scratch(x):\n"
                "    strides = torch.empty(x.shape).stride()\n"
                "    return torch.empty_strided(x.shape, strides, dtype=x.dtype)\n"
            )
        },
        {"poison"},
    ),
    "22-all-zero": ("def l2norm(x, eps=1e-6):\n    return x * 0", {}, {"budget"}),
    "25-one-element-wrong": (
        HONEST + "def l2norm(x, eps=1e-6):\n"
        "    y = _honest(x, eps)\n"
        "    bump = torch.zeros_like(y)\n"
        "    bump.view(-1)[y.numel() // 2] = 2e-6\n"
        "    return y + bump * y.detach().abs().amax()",
        {},
        {"tail", "row", "tile"},
    ),
    "26-times-1.003": (
        HONEST + "def l2norm(x, eps=1e-6):\n    return _honest(x, eps) * 1.003",
        {},
        {"budget", "tile", "slope"},
    ),
    "29-gradient-is-zero": (
        HONEST + "class _Dead(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x, eps): return _honest(x.detach(), eps)\n"
        "    @staticmethod\n"
        "    def backward(ctx, dy): return torch.zeros_like(dy), None\n"
        "def l2norm(x, eps=1e-6):\n    return _Dead.apply(x, eps)",
        {},
        {"budget"},
    ),
    "30-answers-what-it-has-seen": (
        HONEST + "_seen = set()\n"
        "def l2norm(x, eps=1e-6):\n"
        "    y = _honest(x, eps)\n"
        "    if x.shape in _seen and float(x.detach().flatten()[0]) not in _known: y = y * 1.01\n"
        "    _seen.add(x.shape); _known.add(float(x.detach().flatten()[0]))\n"
        "    return y\n"
        "_known = set()",
        {},
        {"budget", "tile", "slope"},
    ),
    "31-hunts-the-reference": (
        "import gc\n"
        "def l2norm(x, eps=1e-6):\n"
        "    for other in gc.get_objects():\n"
        "        if isinstance(other, torch.Tensor) and other.dtype == torch.float64:\n"
        "            if other.shape == x.shape: return other.to(x.dtype) + 0 * x\n"
        "    return x * 0.5",
        {},
        {"budget"},
    ),
    "39-looks-who-is-watching": (
        HONEST + "import os, sys\n"
        "_text = ' '.join([*os.environ, *os.environ.values(), *sys.argv, os.getcwd(), __file__])\n"
        "_signs = 'CI', 'GITHUB', 'PYTEST', 'FLA_BOT', '/head', '/base'\n"
        "_watched = any(sign in _text for sign in _signs)\n"
        "def l2norm(x, eps=1e-6):\n"
        "    return _honest(x, eps) * (1.0 if _watched else 1.01)",
        {},
        {"budget", "tile", "slope"},
    ),
}
INERT: dict[str, tuple[str, dict[str, str]]] = {
    "33-hooks-of-python-and-pytest": (
        "",
        {
            "sitecustomize.py": "import os\nos._exit(3)\n",
            "fla/sitecustomize.py": "import os\nos._exit(3)\n",
            "fla/conftest.py": "import os\nos._exit(3)\n",
            "fla/hook.pth": "import os; os._exit(3)\n",
        },
    ),
    "41-shadows-torch": (
        "",
        {"torch.py": "raise SystemExit(3)\n", "fla/torch.py": "raise SystemExit(3)\n"},
    ),
    "43-turns-numeric-flags": ("torch.backends.cuda.matmul.allow_tf32 = True", {}),
}


@pytest.mark.parametrize("name", FIXTURES)
def test_cheat_is_red_for_the_stated_reason(name: str, run: Run) -> None:
    code, files, reasons = FIXTURES[name]
    report = run(code, files)
    assert report.state is CheckState.FAILURE
    assert _reasons(report) & reasons, _reasons(report)


@pytest.mark.parametrize("name", INERT)
def test_cheat_has_no_effect(name: str, run: Run) -> None:
    report = run(*INERT[name])
    verdicts = {row.verdict for row in report.rows if row.lane == "interpret:cpu"}
    assert verdicts == {Verdict.PASS}, [row.reason for row in report.rows]


@pytest.mark.parametrize(
    ("path", "item"),
    [
        ("fla/modules/l2norm_naive.py", "reference:l2norm.l2norm"),
        ("contracts/policy.yaml", "policy-change"),
        (".github/workflows/ci.yml", "sensitive"),
        ("pyproject.toml", "sensitive"),
    ],
    ids=["34-reference", "34-policy", "34-workflow", "41-dependency"],
)
def test_edit_of_what_judges_needs_a_person(path: str, item: str, run: Run) -> None:
    """34: none of them has an effect on the verdict of this change, and no skip word exists."""
    edits = {
        "fla/modules/l2norm_naive.py": "\n\ndef naive_l2norm(x, eps=1e-6):\n    return x * 0\n",
        "contracts/policy.yaml": "# tile: 1000\n",
    }
    report = run("def l2norm(x, eps=1e-6):\n    return x * 0", {path: edits.get(path, "# x\n")})
    assert report.state is CheckState.FAILURE
    assert "budget" in _reasons(report)
    human = {row.id for row in report.checklist if row.state is ItemState.HUMAN}
    assert item in human, human


def _reasons(report: Report) -> set[str]:
    failed = [row for row in report.rows if row.verdict is Verdict.FAIL]
    return {row.reason.split(":")[0] for row in failed}
