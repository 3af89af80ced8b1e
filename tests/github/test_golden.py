"""The comment and the body block in eight situations, as people read them.

`FLA_BOT_GOLDEN=write pytest tests/github/test_golden.py` writes them anew; read the difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.github.double import Double
from tests.github.stage import BOOKS, KERNEL, Stage
from tests.github.world import Actor, Pull

GOLDEN = ROOT / "tests" / "golden"
Play = Callable[[Stage], Pull]


def stranger(stage: Stage) -> Pull:
    return stage.open(body="Faster.")


def running(stage: Stage) -> Pull:
    pull = stage.open(body="Faster.")
    stage.settle()
    stage.say(pull, "mona", f"/fla-bot approve {pull.sha}")
    return pull


def ready(stage: Stage) -> Pull:
    pull = running(stage)
    stage.settle()
    for run in stage.runs():
        stage.execute(run)
    return pull


def fails(stage: Stage) -> Pull:
    pull = running(stage)
    stage.settle()
    for run in stage.runs():
        stage.execute(run, rms=3e-4)
    return pull


def lost(stage: Stage) -> Pull:
    pull = running(stage)
    stage.settle()
    for run in stage.runs():
        stage.world.begin(run)
        stage.publish(run, {}, gate="failure")
        stage.world.finish(run, "failure")
    return pull


def looser(stage: Stage) -> Pull:
    contract = (BOOKS / "l2norm.yaml").read_text().replace("2.0e-7", "2.0e-5")
    pull = stage.open(files={**stage.kernel(), "contracts/l2norm.yaml": contract}, body="")
    stage.settle()
    stage.say(pull, "alice", "/fla-bot accept 0123456789abcdef")
    stage.settle()
    stage.say(pull, "alice", "/fla-bot help")
    return pull


def findings(stage: Stage) -> Pull:
    kernel = (ROOT / KERNEL).read_text()
    broken = f"{kernel}\n\ndef other(x):\n    return l2norm(x, 1, 2, 3, 4, 5, 6, 7)\n"
    more = "from fla.modules.l2norm import l2norm\n\nl2norm(1, 2, 3, 4, 5, 6, 7, nonsense=8)\n"
    return stage.open(files={KERNEL: broken, "fla/a|b`<img>@mona#1.py": more}, body="x\r\n")


def forged(stage: Stage) -> Pull:
    pull = ready(stage)
    stage.world.add_status(Actor("wes"), pull.sha, {"context": "fla-bot/ready", "state": "success"})
    stage.say(pull, "wes", "/fla-bot status")
    return pull


SITUATIONS: dict[str, Play] = {
    "stranger": stranger,
    "running": running,
    "ready": ready,
    "fails": fails,
    "lost": lost,
    "looser": looser,
    "findings": findings,
    "forged": forged,
}


def stable(text: str) -> str:
    """Without what differs each time: hashes, ids and digests."""
    text = re.sub(r"\b[0-9a-f]{40}\b", "<commit>", text)
    text = re.sub(r"\b[0-9a-f]{16}\b", "<digest>", text)
    text = re.sub(r"\b[0-9a-f]{12}\b", "<short>", text)
    text = re.sub(r"--seed [0-9a-z<>]+", "--seed N", text)
    return re.sub(r"answered=[0-9]+|generation=[0-9]+", lambda m: m[0].split("=")[0] + "=N", text)


@pytest.mark.parametrize("name", SITUATIONS)
def test_golden(name: str, github: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(github, tmp_path / "stage", monkeypatch, app=True)
    pull = SITUATIONS[name](stage)
    stage.settle()
    comment = "\n".join(stage.comments(pull)) or "(no comment)"
    text = stable(f"{comment}\n\n=== body ===\n{(pull.body or '').replace(chr(13), '')}\n")
    path = GOLDEN / f"{name}.md"
    if os.environ.get("FLA_BOT_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()
