"""The wheel and what it needs: `bot` only, and no torch."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, Workbench

KERNEL = "fla/modules/l2norm.py"
EDIT = {KERNEL: (ROOT / KERNEL).read_text().replace("TILE = 4096", "TILE = 2048")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # A copy, so that no build folder is left in the checkout.
    source = out / "source"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    for name in filter(None, names):
        path = ROOT / name.decode()
        if path.is_file() and name.split(b"/")[0] in (
            b"bot",
            b"fla",
            b"pyproject.toml",
            b"README.md",
            b"LICENSE",
        ):
            target = source / name.decode()
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*build, str(source)], check=True, capture_output=True)
    return next(out.glob("*.whl"))


def test_wheel_holds_bot_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"bot"}
    assert "bot/py.typed" in names
    assert any(name.startswith("bot/rules/cal001") for name in names)


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its own dependencies only."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=True)
    pip = [
        str(folder / "bin/python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-warn-script-location",
    ]
    constraints = ["--disable-pip-version-check", "-c", str(ROOT / "constraints/ci.txt")]
    subprocess.run([*pip, *constraints, str(wheel)], check=True, capture_output=True)
    return folder


def test_bot_imports_and_checks_where_torch_is_not_installed(
    bare: Path, kernels: Workbench
) -> None:
    program = (
        "import importlib.util as u, pkgutil, importlib, bot\n"
        "assert u.find_spec('torch') is None and u.find_spec('triton') is None\n"
        "skip = ('bot.device', 'bot.worker', 'bot.observe')\n"
        "names = [m.name for m in pkgutil.walk_packages(bot.__path__, 'bot.')]\n"
        "names = [n for n in names if not n.startswith(skip)]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(len(names))\n"
    )
    python = [str(bare / "bin/python"), "-I"]
    done = subprocess.run([*python, "-c", program], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 15
    kernels.write(EDIT)
    check = [str(bare / "bin/fla-bot"), "check", "--repo", str(kernels.path)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Waiting for evidence" in done.stdout


def test_lane_without_torch_is_an_infrastructure_error(bare: Path, kernels: Workbench) -> None:
    kernels.write(EDIT)
    run = [str(bare / "bin/fla-bot"), "run", "--repo", str(kernels.path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 3
    assert "infra:" in done.stderr
    assert "torch" in done.stderr
