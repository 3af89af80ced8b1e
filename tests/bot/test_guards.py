"""What only a person may let through, and what a change cannot hide from the gate."""

from __future__ import annotations

import os

import pytest

from bot.cli import main
from bot.model import CheckState, Report
from tests.conftest import Workbench

KERNEL, NAIVE = "fla/modules/l2norm.py", "fla/modules/l2norm_naive.py"


def check(capsys: pytest.CaptureFixture[str], repo: Workbench, *argv: str) -> Report:
    main(["check", "--repo", str(repo.path), "--format", "json", *argv])
    return Report.model_validate_json(capsys.readouterr().out)


def states(report: Report) -> dict[str, str]:
    return {item.id: str(item.state) for item in report.checklist}


@pytest.mark.parametrize(
    "files",
    [
        {"fla/modules/__init__.py": "from fla.modules import l2norm as m\nm.l2norm = abs\n"},
        {"fla/modules/l2norm/__init__.py": "def l2norm(x, eps=1e-6):\n    return x * 0\n"},
        {"fla/__init__.py": "import torch\n\ntorch.Tensor.contiguous = lambda self: self * 0\n"},
    ],
    ids=["package-rebinds", "package-shadows", "parent-patches"],
)
def test_what_importing_an_entry_point_runs_belongs_to_it(
    kernels: Workbench, capsys: pytest.CaptureFixture[str], files: dict[str, str]
) -> None:
    kernels.commit(
        {"tests/test_x.py": "from fla.modules.l2norm import l2norm\n\n\ndef test_x(): ...\n"}
    )
    kernels.write(dict(files))
    report = check(capsys, kernels)
    assert "interpret-cpu-l2norm" in {job.id for job in report.plan.jobs}
    assert report.state is not CheckState.SUCCESS


def test_edited_reference_needs_a_person(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (kernels.path / NAIVE).read_text()
    kernels.write({NAIVE: text.replace("return x / ", "return 0 * x / ")})
    assert states(check(capsys, kernels))["reference:l2norm.l2norm"] == "human"
    kernels.write({NAIVE: text.replace('"""Return', '"""Give back')})
    assert "reference:l2norm.l2norm" not in states(check(capsys, kernels))


@pytest.mark.parametrize("path", ["bot/judge.py", ".github/workflows/x.yml", "Makefile"])
def test_edit_of_what_judges_or_builds_needs_a_person(
    kernels: Workbench, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    kernels.write({path: "x = 1\n"})
    report = check(capsys, kernels)
    assert states(report)["sensitive"] == "human"
    assert report.state is CheckState.ACTION_REQUIRED


def test_stale_branch_is_not_accused_of_what_moved_on_main(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = (kernels.path / "contracts/l2norm.yaml").read_text()
    kernels.commit({"README.md": "x"}, branch="old")
    kernels.git("switch", "--quiet", "main")
    other = contract.replace("op: l2norm", "op: other").replace(
        "fla/modules/l2norm", "fla/modules/other"
    )
    other = other.replace("fla.modules.l2norm", "fla.modules.other")
    tighter = contract.replace("fp32: 2.0e-7", "fp32: 1.0e-7")
    kernels.commit({"contracts/l2norm.yaml": tighter, "contracts/other.yaml": other})
    report = check(capsys, kernels, "--head", "old")
    assert report.plan.jobs == []
    assert report.state is CheckState.SUCCESS


def test_tighter_contract_is_judged_by_itself(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = (kernels.path / "contracts/l2norm.yaml").read_text()
    value = '          d7: {set: {D: 7}, when: "x.shape[-1] == 7"}\n      rows:\n'
    kernels.write({"contracts/l2norm.yaml": contract.replace("      rows:\n", value, 1)})
    report = check(capsys, kernels)
    assert states(report)["contract-change:l2norm"] == "done"
    assert any("width=d7" in cell for job in report.plan.jobs for cell in job.cells)
    assert report.state is CheckState.IN_PROGRESS


def test_lane_that_the_policy_lacks_is_a_fault(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = (kernels.path / "contracts/l2norm.yaml").read_text()
    kernels.write(
        {"contracts/l2norm.yaml": contract.replace('["interpret:cpu", ', '["interpret:x", ')}
    )
    report = check(capsys, kernels)
    assert states(report)["contract:l2norm"] == "failed"
    assert "lane `interpret:x` is not in the policy" in report.next_step


def test_work_tree_that_git_cannot_read_is_explained(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels.write({".gitattributes": "*.py filter=broken\n", "fla/modules/new.py": "x = 1\n"})
    kernels.git("config", "filter.broken.clean", "/nope")
    kernels.git("config", "filter.broken.required", "true")
    assert main(["check", "--repo", str(kernels.path)]) == 1
    assert "git cannot read the work tree" in capsys.readouterr().err


def test_big_untracked_data_is_left_out(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels.write({"model.bin": b"\0" * (5 << 20), "fla/modules/new.py": "x = 1\n"})
    assert check(capsys, kernels).change.files == ["fla/modules/new.py"]


def test_tests_lane_runs_and_is_shown_as_the_tests_own_word(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels.commit({"tests/test_a.py": "from fla.modules import other\n\n\ndef test_a(): ...\n"})
    kernels.commit({"fla/modules/other.py": "X = 1\n"}, branch="work")
    change = ["--repo", str(kernels.path), "--base", "main", "--head", "work"]
    assert main(["run", "--lane", "tests:cpu", *change]) == 0
    assert "tests-cpu-tests.json" in capsys.readouterr().out
    report = check(capsys, kernels, "--base", "main", "--head", "work")
    (item,) = [item for item in report.checklist if item.id == "job:tests-cpu-tests"]
    assert (item.state, item.evidence) == ("done", "1 passed, self-reported by the tests")


def test_own_folder_is_no_part_of_the_change(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    before = check(capsys, kernels).change.head
    kernels.write({".fla-bot/evidence/x/y.json": "{}"})
    assert check(capsys, kernels).change.head == before


def test_suppression_silences_its_line_and_needs_a_person(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "def f(x): ...\n\n\nf(){note}\nf()  # fla-bot: ignore[CAL001]\n"
    note = "  # fla-bot: ignore[CAL001] called from generated code"
    kernels.write({"fla/modules/new.py": bad.format(note=note)})
    report = check(capsys, kernels)
    assert [(f.code, f.line) for f in report.findings] == [("CAL001", 5)]  # no reason, no effect
    assert states(report)["suppressions"] == "human"
    assert [s.line for s in report.suppressions] == [4]
    kernels.commit({})
    kernels.git("branch", "--force", "base")
    kernels.write({"fla/modules/new.py": "# moved down\n" + bad.format(note=note)})
    again = check(capsys, kernels, "--base", "base")
    assert again.suppressions == []


def test_name_that_is_no_utf8_can_be_reported(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    name = os.fsdecode(b"\xff.py")
    (kernels.path / "fla/modules" / name).write_bytes(b"def f(x): ...\nf()\n")
    report = check(capsys, kernels)
    assert "fla/modules/\\xff.py" in report.change.files
    assert [f.path for f in report.findings] == ["fla/modules/\\xff.py"]


def test_deep_code_is_a_finding_and_no_crash(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels.write(
        {
            "fla/modules/sum.py": "x = " + "1 + " * 5000 + "1\n",
            "fla/modules/chain.py": "x = a" + ".b()" * 3000 + "\n",
            "fla/modules/minus.py": "x = " + "-" * 50000 + "1\n",
        }
    )
    report = check(capsys, kernels)
    assert {f.code for f in report.findings} == {"API000"}
    assert len({f.path for f in report.findings}) == 3


@pytest.mark.parametrize("how", ["json", "markdown", "terminal"])
def test_closed_pipe_does_not_change_the_exit_status(kernels: Workbench, how: str) -> None:
    import subprocess
    import sys
    from pathlib import Path

    kernels.write({"fla/modules/new.py": "def f(x): ...\nf()\n" * 400})
    tool = str(Path(sys.executable).with_name("fla-bot"))
    argv = [tool, "check", "--repo", str(kernels.path), "--format", how]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    message = child.stderr.read()
    child.stderr.close()
    assert (child.wait(), message) == (1, b"")
