"""The scripts of runner/ are free of what shellcheck knows, and sudo reads its part."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runner.conftest import RUNNER

SCRIPTS = sorted(
    p for p in RUNNER.iterdir() if p.read_text().startswith(("#!/bin/bash", "# shell"))
)


def test_shellcheck() -> None:
    tool = Path(sys.executable).parent / "shellcheck"
    assert len(SCRIPTS) == 6
    done = subprocess.run([tool, "-x", *SCRIPTS], capture_output=True, text=True, cwd=RUNNER)
    assert done.returncode == 0, done.stdout
    assert not [p.name for p in SCRIPTS if "shellcheck disable" in p.read_text()]


def test_sudoers() -> None:
    rule = (RUNNER / "sudoers").read_text().splitlines()[-1]
    # The empty string allows no argument; without it any would do.
    assert rule.endswith('NOPASSWD: /usr/local/libexec/fla-bot/fla-bot-lane ""')
    visudo = shutil.which("visudo", path="/usr/sbin:/usr/bin")
    if visudo is None:
        pytest.skip("sudo is not installed")
    subprocess.run([visudo, "--check", "--quiet", "--file", RUNNER / "sudoers"], check=True)
