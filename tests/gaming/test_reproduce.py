"""A failing row says how to run its cell again, and that run shows where it is wrong."""

from __future__ import annotations

import shlex

import pytest

from bot.cli import main
from bot.model import Verdict
from tests.conftest import Workbench
from tests.gaming.conftest import Run

# Wrong in one row, by less than the contract's budget for the whole.
WRONG = (
    "_honest = l2norm\n"
    "def l2norm(x, eps=1e-6):\n"
    "    factor = torch.ones_like(x)\n"
    "    factor[-1, -1, -1] += 2e-6\n"
    "    return _honest(x, eps) * factor"
)


def test_printed_command_shows_the_same_fault(
    run: Run, kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = [row for row in run(WRONG).rows if row.verdict is Verdict.FAIL]
    (row, *_) = [row for row in failed if row.reason.startswith(("tile:", "row:", "tail:"))]
    written = sorted(kernels.path.rglob(".fla-bot/**/*"))
    reason, _, command = row.reason.partition("; reproduce: ")
    kind = reason.partition(":")[0]
    program, *argv = shlex.split(command)
    assert program == "fla-bot"
    change = ["--repo", str(kernels.path), "--base", "main", "--head", "hostile"]
    capsys.readouterr()
    assert main([*argv, *change]) == 1
    out = capsys.readouterr().out
    seed = argv[argv.index("--seed") + 1]
    assert row.cell in out
    assert f"seed {seed}" in out
    # Each column of the table is explained above it.
    table = next(line for line in out.splitlines() if line.strip().startswith("output "))
    explained = {line.split()[0] for line in out.partition(table)[0].splitlines()[1:]}
    assert set(table.split()) - {"output", "elements"} <= explained
    assert any(kind in line.partition("OVER")[2] for line in out.splitlines()), out
    # Nothing of it can be taken for evidence.
    assert sorted(kernels.path.rglob(".fla-bot/**/*")) == written


def test_single_cells_need_their_lane(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels.commit({"fla/modules/l2norm.py": "UNUSED = 1\n"}, branch="work")
    change = ["run", "--repo", str(kernels.path), "--base", "main", "--head", "work"]
    for argv, says in (
        (["--only", "l2norm"], "name the cell with --only and its lane with --lane"),
        (["--seed", "1", "--lane", "interpret:cpu"], "name the cell with --only"),
        (["--only", "no-such", "--lane", "interpret:cpu"], "no cell of lane `interpret:cpu`"),
        (["--only", "x", "--lane", "tests:cpu"], "does not run cells"),
        (["--only", "x", "--lane", "correctness:none"], "no job of lane `correctness:none`"),
    ):
        assert main([*change, *argv]) == 1
        assert says in capsys.readouterr().err
    for seed in ("-1", "x", str(2**63)):
        with pytest.raises(SystemExit):
            main([*change, "--only", "x", "--lane", "interpret:cpu", "--seed", seed])
