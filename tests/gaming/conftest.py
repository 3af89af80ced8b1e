"""A repository with a short contract, and a way to run its interpreter lane on a hostile change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import pytest

from bot.change import Repository
from bot.check import Request, analyse, report
from bot.model import Report
from bot.run import run_plan
from tests.conftest import ROOT, Workbench

KERNEL = "fla/modules/l2norm.py"
NONE: Mapping[str, str] = MappingProxyType({})


class Run(Protocol):
    """Append code to the kernel file, and text to others; run the lane; return the report.

    `replaced`: files that become something else as a whole.
    """

    def __call__(
        self,
        code: str,
        files: Mapping[str, str] = ...,
        *,
        call_timeout_s: int = ...,
        replaced: Mapping[str, str] = ...,
    ) -> Report: ...


@pytest.fixture
def run(kernels: Workbench) -> Run:
    """Append code to the kernel file of a branch, run the lane, return the report."""
    contract = (kernels.path / "contracts/l2norm.yaml").read_text()
    lines = contract.splitlines(keepends=True)
    dropped = ("          fp16:", "          bf16:", "          d60:", "          d100:")
    dropped += ("          d512:", "          tiny:", "          large:", "          zeros:")
    dropped += ("          one:", "          transposed:", '      - layout != "transposed"')
    # What is appended here is PyTorch; declared kernels have tests of their own.
    dropped += ("    dispatch:",)
    short = "".join(line for line in lines if not line.startswith(dropped))
    short = short.replace("    constraints:\n", "")
    before, _, rest = short.partition("    benchmarks:\n")  # its rows name what was dropped
    short = before + rest[rest.index("    lanes:") :] if rest else short
    kernels.commit({"contracts/l2norm.yaml": short})
    text = (ROOT / KERNEL).read_text()

    def hostile(
        code: str,
        files: Mapping[str, str] = NONE,
        *,
        call_timeout_s: int = 60,
        replaced: Mapping[str, str] = NONE,
    ) -> Report:
        # Honest calls take as long as a busy machine makes them; only what hangs is cut short.
        policy = (kernels.path / "contracts/policy.yaml").read_text()  # a test may have edited it
        timeout = re.sub(r"call_timeout_s: \d+", f"call_timeout_s: {call_timeout_s}", policy)
        kernels.commit({"contracts/policy.yaml": timeout})
        paths = {name: kernels.path / name for name in files}
        old = {name: path.read_text() if path.exists() else "" for name, path in paths.items()}
        changed = {name: old[name] + new for name, new in files.items()}
        changed |= replaced
        kernels.commit({KERNEL: f"{text}\n\n{code}\n"} | changed, branch="hostile")
        with Repository(kernels.path) as repository:
            request = Request("main", "hostile")
            analysis = analyse(repository, request)
            run_plan(repository, analysis, lane=None, evidence_dir=None, progress=lambda _: None)
            return report(repository, analysis, request, None)

    return hostile
