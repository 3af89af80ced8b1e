"""`fla-bot verify` through the real lanes, on a small op that runs on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from bot import verify as use_case
from bot.cli import main
from bot.evidence import Restart, RowEvidence
from bot.model import Row, Verdict
from bot.verify import Verification
from tests.conftest import Workbench
from tests.gaming.bench import CONTRACT, HONEST
from tests.gaming.test_stops import TOOL, read_until

POLICY = """
schema: fla-bot/policy@1
source_roots: [toy]
python: {tests: ["/tests/**/test_*.py"], inert: ["*.md"]}
areas:
  - {area: contract, globs: ["/contracts/"]}
  - {area: ops, globs: ["/toy/{op}.py"], contract: required}
lanes:
  "interpret:cpu":
    {machine: cpu, device: cpu, interpreter: true, required: true, timeout_s: 300}
  "benchmark:cpu": {machine: cpu, device: cpu, required: false, timeout_s: 300}
margins: {rms: 1.5, tile: 3.0}
"""
FASTER = HONEST.replace("state * 0.9", "0.9 * state")


@pytest.fixture
def toy(workbench: Workbench) -> Workbench:
    """A repository whose one op is the scan."""
    contract = CONTRACT.replace('["benchmark:cpu"]', '["interpret:cpu", "benchmark:cpu"]')
    workbench.commit(
        {
            "toy/__init__.py": "",
            "toy/scan.py": HONEST,
            "toy/reference.py": HONEST,
            "contracts/scan.yaml": contract.replace(
                "reference: toy.scan:scan", "reference: toy.reference:scan"
            ),
            "contracts/policy.yaml": POLICY,
        }
    )
    return workbench


def verify(toy: Workbench, *options: str) -> int:
    return main(["verify", "main", "--repo", str(toy.path), *options])


def test_right_code_is_timed_row_by_row(toy: Workbench, capsys: pytest.CaptureFixture[str]) -> None:
    toy.write({"toy/scan.py": FASTER})
    assert verify(toy, "--row", "fwd") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("correctness: ")
    assert said[1].startswith("pass       scan/fwd: ")
    assert said[1].endswith("shown, does not gate")
    assert said[2].startswith("mean ")
    assert said[2].endswith("% scan/fwd")


def test_speed_up_of_something_wrong_is_refused(
    toy: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = HONEST.replace("for t in range(x.shape[1])", "for t in range(x.shape[1] - 1)")
    wrong = wrong.replace("    return torch.stack", "    y.append(state)\n    return torch.stack")
    toy.write({"toy/scan.py": wrong, "toy/reference.py": wrong})
    toy.write({"contracts/policy.yaml": POLICY.replace("rms: 1.5", "rms: 99")})
    assert verify(toy) == 1
    said = capsys.readouterr().out
    assert "warning: contracts/policy.yaml is part of what judges; the gate uses" in said
    assert "fail       interpret:cpu scan[" in said
    assert said.strip().endswith("the gate is red: what is wrong is not timed")
    assert not list(Path(toy.path, ".fla-bot/evidence").rglob("benchmark*.json"))


def test_interrupted_benchmark_keeps_its_restarts(toy: Workbench) -> None:
    toy.write({"toy/scan.py": FASTER})
    argv = [TOOL, "run", "--lane", "benchmark:cpu", "--repo", str(toy.path), "--base", "main"]
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        read_until(screen, b"restart 3 of 5")
        process.send_signal(signal.SIGINT)
        read_until(screen, rb"(\d) of \1 rows kept; run again to go on")
    assert process.wait(timeout=60) == 130
    (file,) = toy.path.rglob(".fla-bot/evidence/*/benchmark*.json")
    stopped = json.loads(file.read_text())
    assert not stopped["complete"]
    kept = {row["row"]: row["restarts"] for row in stopped["rows"]}
    assert all(1 <= len(restarts) < 5 for restarts in kept.values())
    assert main(argv[1:]) == 0
    whole = json.loads(file.read_text())
    assert whole["complete"]
    # Rows that are shown only may be settled by few restarts; no restart is dropped.
    for row in whole["rows"]:
        before = kept[row["row"]]
        assert row["restarts"][: len(before)] == before


def test_times_of_wrong_calls_are_in_no_mean() -> None:
    def times(name: str, head: float) -> RowEvidence:
        blocks = [Restart(first="base", base=[1.0] * 4, head=[head] * 4)] * 3
        return RowEvidence(row=name, mode="graph", restarts=blocks)

    def told(name: str, verdict: Verdict, reason: str) -> Row:
        return Row(job="b", lane="l", op="o", cell=name, verdict=verdict, reason=reason)

    wrong, right = "scan/both", "scan/fwd"
    found = Verification(
        benchmark=[
            told(wrong, Verdict.FAIL, "audit: y of a timed call differs"),
            told(right, Verdict.FAIL, "slower: 1.00 -> 1.10 ms"),
        ],
        times=[times(wrong, 0.01), times(right, 1.1)],
    )
    assert found.summary() == "mean +10.0% over 1 rows, worst +10.0% scan/fwd; 1 left out"
    found.benchmark[1] = told(right, Verdict.FAIL, "impossible: less than a microsecond")
    assert found.summary() == "no row was timed whose times count"


def test_what_cannot_be_verified_is_said(
    toy: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.write({"README.md": "words"})
    assert verify(toy) == 1
    assert "no lane checks what the work tree changes" in capsys.readouterr().err
    toy.write({"toy/scan.py": HONEST + "# faster"})
    assert verify(toy, "--lane", "benchmark:sm99") == 1
    assert "no lane `benchmark:sm99`" in capsys.readouterr().err


def test_machine_without_the_device_of_a_lane_is_no_red(
    toy: Workbench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be checked here is; the rest wants another machine, and the exit status says so."""
    monkeypatch.setitem(use_case.TOOLS, "cuda", "a-tool-that-no-machine-has")
    on_cuda = POLICY.replace("device: cpu, required: false", "device: cuda, required: false")
    toy.commit({"contracts/policy.yaml": on_cuda})
    toy.write({"toy/scan.py": FASTER})
    assert verify(toy) == 3
    said = capsys.readouterr()
    count = said.out.splitlines()[0].split()[1]
    assert said.out.startswith(f"correctness: {count} of {count} cells pass\n")
    assert "warning" not in said.out
    assert "infra: benchmark:cpu wants a CUDA device, there is none here" in said.err
    nowhere = on_cuda.replace("device: cpu", "device: cuda")
    toy.commit({"contracts/policy.yaml": nowhere, "toy/scan.py": HONEST})
    toy.write({"toy/scan.py": FASTER})
    assert verify(toy) == 3
    said = capsys.readouterr()
    assert "interpret:cpu wants a CUDA device, there is none here: nothing can be" in said.err


def test_row_that_no_contract_has_is_named(
    toy: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.write({"toy/scan.py": FASTER})
    assert verify(toy, "--row", "decode") == 1
    assert "no row matches decode; there are scan/" in capsys.readouterr().err


def test_lanes_that_time_nothing_are_said_to(
    toy: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.write({"toy/scan.py": FASTER})
    assert verify(toy, "--lane", "interpret:cpu") == 1
    said = capsys.readouterr().out
    assert "nothing is timed by the lanes that were asked for; benchmark:cpu would" in said
