"""`fla-bot check` and its neighbours as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bot.cli import main
from bot.model import CheckState, Report, Verdict
from tests.conftest import Workbench

KERNEL = "fla/modules/l2norm.py"


def check(
    capsys: pytest.CaptureFixture[str], workbench: Workbench, *argv: str
) -> tuple[int, Report]:
    code = main(["check", "--repo", str(workbench.path), "--format", "json", *argv])
    return code, Report.model_validate_json(capsys.readouterr().out)


def items(report: Report) -> dict[str, str]:
    return {item.id: str(item.state) for item in report.checklist}


def test_kernel_change_waits_for_evidence(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (kernels.path / KERNEL).read_text()
    kernels.write({KERNEL: text.replace("TILE = 4096", "TILE = 2048")})
    code, report = check(capsys, kernels)
    assert code == 0
    assert (report.verdict, report.state) == (Verdict.WAITING, CheckState.IN_PROGRESS)
    assert report.scope.ops == ["l2norm"]
    assert report.scope.entry_points == ["l2norm.l2norm"]
    job = next(job for job in report.plan.jobs if job.required)
    line = text.split("TILE = 4096")[0].count("\n") + 1
    assert [str(place) for place in job.because] == [f"{KERNEL}:{line}"]
    assert any("dtype=bf16" in cell for cell in job.cells)
    assert "declared:l2norm" not in items(report)


def test_cells_that_no_required_lane_proves_are_declared(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = (kernels.path / "contracts/policy.yaml").read_text()
    lane = "    call_timeout_s: 60\n"
    excluded = policy.replace(lane, f"{lane}    excludes: {{'dtype == \"bf16\"': why}}\n", 1)
    kernels.commit({"contracts/policy.yaml": excluded})
    text = (kernels.path / KERNEL).read_text()
    kernels.write({KERNEL: text.replace("TILE = 4096", "TILE = 2048")})
    _, report = check(capsys, kernels)
    job = next(job for job in report.plan.jobs if job.required)
    assert not any("dtype=bf16" in cell for cell in job.cells)
    assert items(report)["declared:l2norm"] == "n/a"


def test_change_of_nothing_that_matters_is_ready(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels.write({"docs/x.md": "text"})
    code, report = check(capsys, kernels)
    assert (code, report.state, report.plan.jobs) == (0, CheckState.SUCCESS, [])
    assert [(area.area, area.paths) for area in report.scope.areas] == [("docs", ["docs/x.md"])]


def test_path_of_no_area_widens_to_everything(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels.write({"strange.cfg": "text"})
    _, report = check(capsys, kernels)
    assert report.scope.unknown == ["strange.cfg"]
    assert any(line.startswith("strange.cfg:") for line in report.scope.widened)
    assert report.impact.contracts == ["l2norm"]
    assert {job.op for job in report.plan.jobs} >= {"l2norm"}


def test_call_that_does_not_bind_is_red_and_names_its_line(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (kernels.path / KERNEL).read_text()
    kernels.write(
        {KERNEL: text.replace("return l2norm(x, self.eps)", "return l2norm(x, epsilon=1)")}
    )
    code, report = check(capsys, kernels)
    line = text.split("return l2norm(x, self.eps)")[0].count("\n") + 1
    assert (code, report.state) == (1, CheckState.FAILURE)
    assert [(f.code, f.path, f.line) for f in report.findings] == [("CAL001", KERNEL, line)]


@pytest.mark.parametrize(
    ("path", "old", "new", "item"),
    [
        ("contracts/l2norm.yaml", "fp32: 2.0e-7", "fp32: 1.0e-1", "contract-change:l2norm"),
        ("contracts/policy.yaml", "rms: 1.5", "rms: 9.5", "policy-change"),
        ("contracts/l2norm.yaml", None, None, "removed:l2norm"),
    ],
)
def test_weaker_gate_needs_a_person(
    kernels: Workbench,
    capsys: pytest.CaptureFixture[str],
    path: str,
    old: str | None,
    new: str | None,
    item: str,
) -> None:
    text = (kernels.path / path).read_text()
    kernels.write({path: None if old is None or new is None else text.replace(old, new, 1)})
    _, report = check(capsys, kernels)
    assert items(report)[item] == "human"
    assert report.state is CheckState.ACTION_REQUIRED


def test_trusted_contract_judges_not_the_proposed_one(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (kernels.path / "contracts/l2norm.yaml").read_text()
    kernels.write({"contracts/l2norm.yaml": text.replace('["interpret:cpu", ', "[")})
    _, report = check(capsys, kernels)
    lanes = ["benchmark:sm90", "correctness:sm90", "interpret:cpu"]
    assert [job.lane for job in report.plan.jobs] == lanes


def test_contract_that_cannot_be_read_is_red(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    other = (kernels.path / "contracts/l2norm.yaml").read_text()
    kernels.write({"contracts/l2norm.yaml": "schema: [", "contracts/new.yaml": other})
    code, report = check(capsys, kernels)
    assert code == 1
    assert {state.op: state.status for state in report.contracts} == {
        "l2norm": "invalid",
        "new": "invalid",
    }


def test_new_op_needs_a_person_and_its_own_contract_plans_jobs(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (kernels.path / "contracts/l2norm.yaml").read_text()
    other = text.replace("op: l2norm", "op: other").replace(
        "/fla/modules/l2norm", "/fla/modules/other"
    )
    other = other.replace("fla.modules.l2norm", "fla.modules.other")
    kernel = (kernels.path / KERNEL).read_text()
    kernels.write({"contracts/other.yaml": other, "fla/modules/other.py": kernel})
    _, report = check(capsys, kernels)
    assert items(report)["new-op:other"] == "human"
    assert {job.op for job in report.plan.jobs if job.lane != "tests:cpu"} == {"other"}


def test_required_area_without_contract_is_red(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = (kernels.path / "contracts/policy.yaml").read_text()
    area = '  - {area: ops, globs: ["/fla/ops/{op}/"], contract: required}\nlanes:'
    kernels.commit({"contracts/policy.yaml": policy.replace("lanes:", area, 1)})
    kernels.write({"fla/ops/gla/chunk.py": "x = 1\n"})
    code, report = check(capsys, kernels)
    assert code == 1
    assert items(report)["contract:gla"] == "failed"


def test_many_drafts_take_one_line_and_prove_nothing(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = "schema: fla-bot/contract@1\nop: {0}\nstatus: draft\nsources: [/fla/ops/{0}.py]\n"
    draft += "entry_points:\n  run:\n    target: fla.ops.{0}:run\n    open: [reference]\n"
    ops = [f"op{n}" for n in range(5)]
    code = {f"fla/ops/{op}.py": "def run():\n    return 0\n" for op in ops}
    kernels.commit({**code, **{f"contracts/{op}.yaml": draft.format(op) for op in ops}})
    kernels.commit(
        {"tests/test_ops.py": "from fla.ops.op0 import run\n\n\ndef test_run(): run()\n"}
    )
    kernels.write({path: text.replace("0", "1") for path, text in code.items()})
    code_, report = check(capsys, kernels)
    assert [name for name in items(report) if name.startswith("contract:")] == []
    assert items(report)["drafts"] == "n/a"
    assert (code_, report.headline) == (0, "No required lane guards this change")
    assert report.next_step == "run the tests that reach it"
    assert main(["check", "--repo", str(kernels.path)]) == 0
    assert "tests that reach it: tests/test_ops.py" in capsys.readouterr().out


def test_policy_from_a_folder_where_trusted_has_none(
    workbench: Workbench, kernels_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workbench.commit({"fla/modules/l2norm.py": "x = 1\n"})
    workbench.write({"fla/modules/l2norm.py": "x = 2\n"})
    assert main(["check", "--repo", str(workbench.path)]) == 1
    assert "name a folder with --policy" in capsys.readouterr().err
    _, report = check(capsys, workbench, "--policy", str(kernels_folder))
    assert report.policy_source == "folder contracts"
    assert report.scope.ops == ["l2norm"]


@pytest.fixture
def kernels_folder(tmp_path: Path, contract_text: bytes) -> Path:
    from tests.conftest import ROOT

    folder = tmp_path / "contracts"
    folder.mkdir()
    for name in ("l2norm.yaml", "policy.yaml"):
        (folder / name).write_bytes((ROOT / "contracts" / name).read_bytes())
    return folder


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["check", "--repo", "/"], 1, "not a git repository"),
        (["check", "--repo", "REPO", "--base", "nope"], 1, "`nope` is no commit here"),
        (["check", "--repo", "REPO", "--trusted", "nope"], 1, "trusted: `nope`"),
        (["run", "--repo", "REPO", "--lane", "moon"], 1, "no lane `moon`; the policy has"),
        (["contract", "validate", "/nope.yaml"], 1, "/nope.yaml: No such file"),
    ],
)
def test_wrong_input_says_what_to_do(
    kernels: Workbench, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, words: str
) -> None:
    assert main([str(kernels.path) if word == "REPO" else word for word in argv]) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["chek"], ["check", "--format", "xml"], ["github", "handle"]])
def test_wrong_usage_exits_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_validate_prints_every_fault(
    kernels: Workbench, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("schema: fla-bot/contract@1\nop: 1x\nwhat: 2\n")
    good = kernels.path / "contracts/policy.yaml"
    assert main(["contract", "validate", str(good), str(bad)]) == 1
    out, err = capsys.readouterr()
    assert f"{good}: ok" in out
    assert f"{bad}:2:1: `op`" in err
    assert f"{bad}:3:1: unknown key `what`" in err


def test_terminal_shows_no_escape_codes_off_a_tty(
    kernels: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "fla/modules/\x1b[31m-rf.py"
    kernels.write({name: "def f(x): ...\nf()\n"})
    assert main(["check", "--repo", str(kernels.path)]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "CAL001" in out
    assert "-rf.py:2" in out


def test_published_schemas_are_up_to_date() -> None:
    from bot.schemas import schemas
    from tests.conftest import ROOT

    for name, text in schemas().items():
        assert (ROOT / "contracts" / "schemas" / f"{name}.json").read_text() == text, "make schemas"
        assert json.loads(text)["$id"] == f"fla-bot/{name}@{2 if name == 'evidence' else 1}"
