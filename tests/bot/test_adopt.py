"""`fla-bot init`: what is read of a tree, what is written, and that nothing is lost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bot import adopt as use_case
from bot import contract, policy
from bot.adopt import Adoption, adopt, write
from bot.cache import Cache
from bot.change import Repository
from bot.cli import main
from bot.errors import UserError
from bot.runners import Runner, runners
from tests.conftest import Workbench

KERNEL = "import triton\n\n@triton.jit\ndef k(x): ...\n"
OP = {
    "net/__init__.py": "",
    "net/ops/__init__.py": "from .gate import chunk_gate\n",
    "net/ops/backends/__init__.py": "def choose(operation): return lambda f: f\n",
    "net/ops/utils/__init__.py": "def cumsum(x): ...\n",
    "net/ops/gate/__init__.py": (
        "from .chunk import chunk_gate, fast_gate, GateError\n"
        "from .fn import apply_gate\nfrom .naive import naive_gate\n"
        "__all__ = ['chunk_gate', 'fast_gate', 'apply_gate', 'naive_gate', 'GateError', 'lost']\n"
    ),
    "net/ops/gate/chunk.py": (
        KERNEL + "from net.ops.backends import choose\nfrom net.ops.utils import cumsum\n"
        "class GateError(Exception): ...\n"
        "@choose('gate')\ndef chunk_gate(q: torch.Tensor, k: 'torch.Tensor | None' = None, /, *a,"
        " scale: float = 1e-3, **kw) -> int: ...\n"
        "fast_gate = chunk_gate\n"
    ),
    "net/ops/gate/fn.py": (
        "class Gate(Function):\n    @staticmethod\n    def forward(ctx, q, scale=None): ...\n"
        "apply_gate = Gate.apply\n"
    ),
    "net/ops/gate/naive.py": "def naive_gate(q): ...\n",
    "net/ops/gate/backends/__init__.py": (
        "from net.ops.gate.backends.fast import Fast\nregistry = Registry('gate')\n"
        "registry.register(Fast())\n"
    ),
    "net/ops/gate/backends/fast/__init__.py": (
        "class Fast:\n    env_var: str | None = 'NET_FAST'\n    priority = 2\n"
        "    def chunk_gate(self): ...\n"
    ),
    "net/ops/gate/backends/fast/run.py": KERNEL,
    "net/ops/gate/README.md": "text",
    "net/modules/__init__.py": "",
    "net/modules/norm.py": KERNEL + "def norm(x, eps=1): ...\ndef norm_fwd(x): ...\n",
    "net/modules/mlp.py": "from net.modules.norm import norm, norm_fwd\nclass MLP: ...\n",
    "net/layers/mixer.py": "from net.ops import chunk_gate\n",
    "tests/ops/test_gate.py": "from net.ops.gate import chunk_gate\ndef test_it(): ...\n",
    "tests/test_all.py": "import net\ndef test_it(): ...\n",
    "docs/a.txt": "x",
    "scripts/pick.py": "x = 1\n",
    "README.md": "x",
    ".github/workflows/a.yml": (
        "on: push\njobs:\n  t:\n    runs-on: [self-hosted, nvidia-x9]\n    timeout-minutes: 7\n"
        "    steps:\n      - run: python scripts/pick.py && pytest\n"
    ),
    ".github/workflows/broken.yml": "jobs: {a: &x {runs-on: y}}\n",
}


def read(workbench: Workbench, tmp_path: Path) -> Adoption:
    with Repository(workbench.path) as repository:
        return adopt(repository, "HEAD", Cache(tmp_path / "cache.json"))


@pytest.fixture
def adopted(workbench: Workbench, tmp_path: Path) -> Adoption:
    workbench.commit(dict(OP))
    return read(workbench, tmp_path)


def draft(adopted: Adoption, op: str) -> contract.Contract:
    path = f"contracts/{op}.yaml"
    return contract.load(adopted.texts[path].encode(), path)


def test_draft_holds_what_the_text_tells_and_opens_the_rest(adopted: Adoption) -> None:
    gate = draft(adopted, "gate")
    assert (gate.status, gate.sources) == ("draft", ["/net/ops/gate/**/*.py"])
    assert gate.tests == ["/tests/ops/test_gate.py"]
    assert list(gate.entry_points) == ["apply_gate", "chunk_gate", "fast_gate", "lost"]
    point = gate.entry_points["chunk_gate"]
    assert point.target == "net.ops.gate:chunk_gate"
    assert point.compatibility
    assert point.compatibility.signature == "q, k=None, /, *a, scale=0.001, **kw"
    assert point.dispatch
    assert point.dispatch.operation == "gate"
    assert (point.dispatch.backends["fast"].variable, point.dispatch.backends["fast"].priority) == (
        "NET_FAST",
        2,
    )
    assert point.open == ["reference", "args", "outputs", "axes", "lanes", "budgets"]
    assert "# Tensors, by annotation: q, k." in adopted.texts["contracts/gate.yaml"]
    assert (
        "May be references, by name: net.ops.gate.naive:naive_gate."
        in (adopted.texts["contracts/gate.yaml"])
    )


def test_other_names_of_a_function_have_its_signature(adopted: Adoption) -> None:
    points = draft(adopted, "gate").entry_points
    texts = {name: p.compatibility and p.compatibility.signature for name, p in points.items()}
    assert texts["fast_gate"] == texts["chunk_gate"]
    assert texts["apply_gate"] == "q, scale=None"


def test_name_that_leads_nowhere_is_open_and_noted(adopted: Adoption) -> None:
    lost = draft(adopted, "gate").entry_points["lost"]
    assert lost.compatibility is None
    assert "signature" in lost.open
    assert any("`lost` has no known signature" in note for note in adopted.notes)


def test_module_with_kernels_exports_what_others_import(adopted: Adoption) -> None:
    assert list(draft(adopted, "norm").entry_points) == ["norm"]
    assert sorted(adopted.texts) == [
        "contracts/gate.yaml",
        "contracts/norm.yaml",
        "contracts/policy.yaml",
    ]


@pytest.mark.parametrize(
    ("path", "area", "captured"),
    [
        ("net/ops/gate/chunk.py", "ops", {"op": "gate"}),
        ("net/ops/new/chunk.py", "ops", {"op": "new"}),
        ("net/ops/gate/README.md", "docs", {}),
        ("net/ops/gate/backends/fast/run.py", "backend", {"op": "gate", "backend": "fast"}),
        ("net/ops/gate/backends/__init__.py", "dispatch", {"op": "gate"}),
        ("net/ops/backends/__init__.py", "dispatch", {}),
        ("net/ops/utils/__init__.py", "ops-common", {}),
        ("net/modules/norm.py", "module", {"op": "norm"}),
        ("net/modules/mlp.py", "modules-common", {}),
        ("net/layers/mixer.py", "layers", {}),
        ("net/other.py", "package", {}),
        ("scripts/pick.py", "ci", {}),
        ("contracts/gate.yaml", "contract", {}),
        ("tests/ops/test_gate.py", "tests", {}),
        (".editorconfig", "project", {}),
        ("elsewhere/new.c", None, {}),
    ],
)
def test_areas(adopted: Adoption, path: str, area: str | None, captured: dict[str, str]) -> None:
    found, values = adopted.policy.place(path)
    assert (found.area if found else None, values) == (area, captured)


def test_policy_asks_for_nothing(adopted: Adoption) -> None:
    assert {area.contract for area in adopted.policy.areas} == {"none"}
    assert {lane.required for lane in adopted.policy.lanes.values()} == {False}
    assert adopted.policy.python.dispatchers == ["choose"]
    assert adopted.policy.python.tests == ["/tests/**/test_*.py"]
    assert adopted.policy.pull_request == policy.PullRequest()


def test_lane_of_a_runner_and_a_workflow_that_cannot_be_read(adopted: Adoption) -> None:
    lane = adopted.policy.lanes["tests:x9"]
    assert (lane.device, lane.runs_on, lane.timeout_s) == (
        "cuda",
        ["self-hosted", "nvidia-x9"],
        420,
    )
    assert any("broken.yml" in note for note in adopted.notes)
    assert "broken.yml" in adopted.texts["contracts/policy.yaml"]


def test_same_tree_gives_same_bytes(workbench: Workbench, tmp_path: Path) -> None:
    workbench.commit(dict(OP))
    assert read(workbench, tmp_path).texts == read(workbench, tmp_path / "other").texts


def test_source_layout_and_star_import(workbench: Workbench, tmp_path: Path) -> None:
    files = {f"src/{name}": text for name, text in OP.items() if name.startswith("net/")}
    files["src/net/ops/gate/__init__.py"] = "from .chunk import *\n"
    workbench.commit(dict(files))
    adopted = read(workbench, tmp_path)
    assert adopted.policy.source_roots == ["src"]
    points = draft(adopted, "gate").entry_points
    assert list(points) == ["chunk_gate", "fast_gate"]
    assert points["chunk_gate"].target.startswith("net.ops.gate")
    assert adopted.policy.place("src/net/ops/gate/chunk.py")[1] == {"op": "gate"}


@pytest.mark.parametrize(
    ("files", "roots", "ops"),
    [
        ({}, ["src"], []),
        ({"a.txt": "x"}, ["src"], []),
        ({"kernel.py": KERNEL}, ["src"], []),
        ({"net/__init__.py": "", "net/a.py": "def f(): ..."}, ["net"], []),
        (
            {
                "net/__init__.py": "from net.scan import scan\n",
                "net/scan.py": KERNEL + "def scan(x): ...\n",
                "net/rest.py": "x = 1\n",
            },
            ["net"],
            ["scan"],
        ),
        ({"ops/scan/__init__.py": "def scan(x): ...\n"}, ["ops"], ["scan"]),
        ({"src/net/__init__.py": "", "src/build.sh": "", "src/net/test_a.py": "def test(): ..."},
         ["src"], []),
        ({"tools/deep/__init__.py": "", "tools/x.py": ""}, ["src"], []),
        ({"net/ops/__init__.py": "", "net/ops/scan.py": "__all__ = ['f']\ndef f(): ...\n"},
         ["net"], ["scan"]),
        ({"net/ops/bad/__init__.py": "def f(:\n"}, ["net"], []),
    ],
)  # fmt: skip
def test_odd_trees(
    workbench: Workbench, tmp_path: Path, files: dict[str, str], roots: list[str], ops: list[str]
) -> None:
    workbench.commit(dict(files))
    adopted = read(workbench, tmp_path)
    assert adopted.policy.source_roots == roots
    assert [op.name for op in adopted.seen.ops] == ops
    assert list(adopted.policy.lanes) == ["tests:cpu"]
    assert all(adopted.policy.place(path)[0] for path in adopted.seen.paths)


def test_hostile_names_stay_inside_their_lines(workbench: Workbench, tmp_path: Path) -> None:
    names = [b"-rf", b"a\nb: c", b"net/ops/x\xff/__init__.py", b"{op}", b'"q', b"we ird/[a]*.py"]
    for name in names:
        path = workbench.path / name.decode(errors="surrogateescape")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def f(x='# \\n---'): ...\n")
    workbench.commit({})
    adopted = read(workbench, tmp_path)
    policy.load(adopted.texts["contracts/policy.yaml"].encode(), "p")
    assert all(adopted.policy.place(path)[0] for path in adopted.seen.paths)


def test_files_that_are_there_are_kept_unless_forced(
    workbench: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    workbench.commit({**OP, "contracts/gate.yaml": "mine\n"})
    argv = ["init", "--repo", str(workbench.path)]
    assert main(argv) == 0
    assert "contracts/gate.yaml: kept" in capsys.readouterr().out
    assert (workbench.path / "contracts/gate.yaml").read_text() == "mine\n"
    assert main([*argv, "--force"]) == 0
    out = capsys.readouterr().out
    assert "contracts/gate.yaml: replaced" in out
    assert "contracts/policy.yaml: unchanged" in out


def test_print_writes_nothing(workbench: Workbench, capsys: pytest.CaptureFixture[str]) -> None:
    workbench.commit(dict(OP))
    assert main(["init", "--repo", str(workbench.path), "--print"]) == 0
    assert "--- # contracts/policy.yaml\n" in capsys.readouterr().out
    assert not (workbench.path / "contracts").exists()


def test_interruption_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, {"contracts/a.yaml": "x\n"}, force=True)
    assert list((tmp_path / "contracts").iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_folder_that_is_none_is_refused(tmp_path: Path, kind: str) -> None:
    place, outside = tmp_path / "contracts", tmp_path / "outside"
    if kind == "file":
        place.write_text("x")
    else:
        place.symlink_to(outside)
        if kind == "link":
            outside.mkdir()
    with pytest.raises(UserError, match="contracts"):
        write(tmp_path, {"contracts/a.yaml": "x\n"}, force=False)
    assert not outside.exists() or not list(outside.iterdir())


def test_check_works_at_once_and_is_not_red(
    workbench: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    workbench.commit(dict(OP))
    assert main(["init", "--repo", str(workbench.path)]) == 0
    workbench.commit({})
    workbench.commit({"net/ops/gate/naive.py": "def naive_gate(q): return q\n"}, branch="work")
    assert main(["check", "--repo", str(workbench.path), "--head", "work"]) == 0
    assert "in no area" not in capsys.readouterr().out


def test_unknown_commit_and_repository_without_one(
    workbench: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--repo", str(workbench.path)]) == 1
    assert "`HEAD` is no commit here" in capsys.readouterr().err


def named(text: str) -> list[tuple[tuple[str, ...], str, str]]:
    found, _ = runners({".github/workflows/w.yml": text.encode()})
    return [(runner.labels, runner.machine, runner.device) for runner in found]


@pytest.mark.parametrize(
    ("runs_on", "expected"),
    [
        ("ubuntu-22.04", [(("ubuntu-22.04",), "cpu", "cpu")]),
        ("[self-hosted, linux, x64, npu-z3]", [
            (("self-hosted", "linux", "x64", "npu-z3"), "z3", "npu")]),
        ("{group: amd-q7}", [((), "q7", "cuda")]),
        ("gpu-box", [(("gpu-box",), "gpubox", "")]),
        ("${{ matrix.os }}", [(("ubuntu-latest",), "cpu", "cpu"), (("nvidia-k8",), "k8", "cuda")]),
        ("${{ fromJSON(x) }}", []),
        ("[]", []),
    ],
)  # fmt: skip
def test_runner_of_labels(runs_on: str, expected: list[tuple[tuple[str, ...], str, str]]) -> None:
    matrix = "strategy: {matrix: {os: [ubuntu-latest], include: [{os: nvidia-k8}]}}"
    text = f"jobs:\n  j:\n    {matrix}\n    runs-on: {runs_on}\n"
    assert sorted(named(text)) == sorted(expected)


def test_runner_is_handed_to_a_called_workflow() -> None:
    called = (
        "on: {workflow_call: {inputs: {runner: {default: spare-m1}}}}\n"
        "jobs: {t: {runs-on: '${{ inputs.runner }}', steps: [{run: pytest}]}}\n"
    )
    caller = (
        "jobs: {a: {uses: ./.github/workflows/b.yml, with: {runner: nvidia-h7}},"
        " never: {if: false, runs-on: old-o1}}\n"
    )
    found, notes = runners(
        {".github/workflows/a.yml": caller.encode(), ".github/workflows/b.yml": called.encode()}
    )
    assert [(r.labels, r.tested) for r in found] == [(("nvidia-h7",), {"a.yml"})]
    assert not notes


def test_repository_is_read_and_not_imported(workbench: Workbench, tmp_path: Path) -> None:
    workbench.commit({**OP, "net/__init__.py": "raise SystemExit('imported')\n"})
    read(workbench, tmp_path)
    assert "net" not in sys.modules
    assert use_case.Adoption is Adoption
    assert Runner(("a",)).machine == ""
