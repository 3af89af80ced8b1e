"""Scope, jobs, keys and packs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bot.change import Repository
from bot.check import Analysis, Request, analyse
from bot.model import Job
from bot.plan import _HARNESS, _packs
from tests.conftest import ROOT, Workbench

KERNEL = "fla/modules/l2norm.py"
USER = "from fla.modules.l2norm import l2norm\n\n\ndef user(x):\n    return l2norm(x)\n"
TEST = "from fla.modules.l2norm import l2norm\n\n\ndef test_norm():\n    assert l2norm\n"


@pytest.fixture
def repo(kernels: Workbench) -> Workbench:
    kernels.commit(
        {
            "fla/__init__.py": "",
            "fla/ops/gla/__init__.py": "from fla.ops.gla.chunk import user\n",
            "fla/ops/gla/chunk.py": USER,
            "fla/ops/other/__init__.py": "def alone(): ...\n",
            "fla/utils/__init__.py": "def helper(): ...\n",
            "tests/test_norm.py": TEST,
        }
    )
    return kernels


def look(repo: Workbench, files: dict[str, str | bytes | None], name: str) -> Analysis:
    repo.commit(files, branch=name)
    with Repository(repo.path) as repository:
        return analyse(repository, Request("main", name))


def jobs(analysis: Analysis) -> dict[str, Job]:
    return {job.id: job for job in analysis.plan.jobs}


def kernel_edit(repo: Workbench) -> dict[str, str | bytes | None]:
    text = (repo.path / KERNEL).read_text()
    return {KERNEL: text.replace("b_y = b_x * b_rstd[:, None]", "b_y = b_rstd[:, None] * b_x")}


def test_scope_follows_imports(repo: Workbench) -> None:
    found = look(repo, kernel_edit(repo), "work")
    assert found.scope.ops == ["l2norm"]
    assert found.scope.kernels == [f"{KERNEL}:l2norm_fwd_kernel"]
    assert "l2norm.l2norm" in found.scope.entry_points
    assert found.impact.tests == ("tests/test_norm.py",)


def test_helper_outside_of_the_contract_s_sources_still_reaches_it(repo: Workbench) -> None:
    text = (repo.path / KERNEL).read_text()
    used = text.replace(
        "import triton.language as tl\n",
        "import triton.language as tl\n\nfrom fla.utils import helper\n",
    ).replace("    rows, dy = _rows(x)", "    helper()\n        rows, dy = _rows(x)")
    repo.commit({KERNEL: used})
    repo.git("switch", "--quiet", "main")
    found = look(repo, {"fla/utils/__init__.py": "def helper():\n    return 1\n"}, "work")
    assert found.reached == {"l2norm": ["l2norm"]}
    assert [str(place) for place in found.because["l2norm"]] == ["fla/utils/__init__.py:1"]


def test_change_beside_plans_no_lane_of_the_op(repo: Workbench) -> None:
    found = look(repo, {"fla/ops/other/__init__.py": "def alone():\n    return 1\n"}, "work")
    assert {job.lane for job in found.plan.jobs} <= {"tests:cpu"}
    assert found.scope.ops == ["other"]


def test_comment_only_change_plans_nothing(repo: Workbench) -> None:
    text = (repo.path / KERNEL).read_text()
    found = look(repo, {KERNEL: text + "\n# a remark\n"}, "work")
    assert found.plan.jobs == []


def test_ops_without_enforced_contract_get_the_repository_s_own_tests(repo: Workbench) -> None:
    files = kernel_edit(repo) | {"fla/ops/gla/chunk.py": USER + "\n\nX = 1\n"}
    found = look(repo, files, "work")
    assert jobs(found)["tests-cpu-tests"].cells == ["tests/test_norm.py"]


def test_plan_is_the_same_each_time_and_no_two_jobs_prove_the_same(repo: Workbench) -> None:
    first = look(repo, kernel_edit(repo), "work")
    with Repository(repo.path) as repository:
        second = analyse(repository, Request("main", "work"))
    assert first.plan == second.plan
    pairs = [(job.lane, job.op) for job in first.plan.jobs]
    assert len(set(pairs)) == len(pairs)
    assert len({job.key for job in first.plan.jobs}) == len(pairs)
    assert all(job.because for job in first.plan.jobs)


def test_key_stays_over_a_rebase_and_changes_with_a_source(repo: Workbench) -> None:
    before = jobs(look(repo, kernel_edit(repo), "one"))
    repo.git("switch", "--quiet", "main")
    repo.commit({"README.md": "more"})
    after_docs = jobs(look(repo, kernel_edit(repo), "two"))
    assert {k: job.key for k, job in before.items()} == {k: j.key for k, j in after_docs.items()}
    repo.git("switch", "--quiet", "main")
    repo.commit({"fla/__init__.py": "X = 1\n"})
    after_code = jobs(look(repo, kernel_edit(repo), "three"))
    assert all(after_code[name].key != job.key for name, job in before.items())


def test_key_changes_with_what_results_are_judged_by(repo: Workbench) -> None:
    """A pass under one margin is none under another, and a fail neither."""
    before = jobs(look(repo, kernel_edit(repo), "one"))
    policy = (repo.path / "contracts/policy.yaml").read_text()
    frozen = (ROOT / "contracts/anchors/l2norm.json").read_text()
    assert "  rms: 1.5" in policy
    for number, change in enumerate(
        (
            {"contracts/policy.yaml": policy.replace("  rms: 1.5", "  rms: 1.4")},
            {"contracts/policy.yaml": policy, "contracts/anchors/l2norm.json": frozen},
        )
    ):
        repo.git("switch", "--quiet", "main")
        repo.commit(change)
        after = jobs(look(repo, kernel_edit(repo), f"work{number}"))
        cells = [name for name in before if not name.startswith("tests-")]
        assert cells
        assert all(after[name].key != before[name].key for name in cells)


IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.iter_modules(package.__path__, f"{name}."):
        importlib.import_module(module.name)
print(*(name for name in sys.modules if name.startswith("bot.")))
"""


def test_key_covers_all_code_that_measures_and_judges() -> None:
    folders = {name for name in _HARNESS if not name.endswith(".py")}
    assert folders == {"device", "judge", "lanes", "observe", "worker"}
    argv = [sys.executable, "-c", IMPORT_ALL, *(f"bot.{folder}" for folder in folders)]
    done = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert {f"{name}.py" for name in loaded - folders} == set(_HARNESS) - folders


@pytest.fixture
def many() -> list[Job]:
    return [
        Job(
            id=f"{lane}-{n}",
            lane=lane,
            op=str(n),
            cells=["c"],
            required=True,
            because=[],
            key=str(n),
        )
        for lane in ("correctness:sm90", "interpret:cpu", "benchmark:sm90")
        for n in range(200)
    ]


@pytest.mark.parametrize("most", [1, 3, 7, 256])
def test_packs_hold_every_job_once_and_one_lane_each(many: list[Job], most: int) -> None:
    packs = _packs(many, most)
    lanes = {job.id: job.lane for job in many}
    assert sorted(name for pack in packs for name in pack) == sorted(lanes)
    assert all(len({lanes[name] for name in pack}) == 1 for pack in packs)
    assert len(packs) <= max(most, 3)
