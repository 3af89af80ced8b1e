"""Which calls are seen, which cells they are in, and what follows from that."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bot.cells import cells
from bot.change import Repository
from bot.check import Request, analyse, report
from bot.cli import main
from bot.contract import load
from bot.coverage import Coverage, needs_backward, read, unexercised
from bot.errors import UserError
from bot.evidence import CellUse
from bot.observe.calls import Watcher
from bot.recording import CallLine, Recording, parse
from tests.conftest import ROOT, Workbench

CONTRACT = """\
schema: fla-bot/contract@1
op: toy
status: enforced
sources: ["/toylib/"]
entry_points:
  double:
    target: toylib.op:double
    reference: toylib.op:double
    variables: {T: 4, dtype: fp32, backward: false, family: normal}
    args:
      x: {dims: [T], values: family, grad: true}
      twice: {value: false}
    outputs:
      - {name: y, dims: [T], budget: {fp32: 1.0e-6, fp16: 1.0e-3}}
    gradients:
      x: {budget: {fp32: 1.0e-6, fp16: 1.0e-3}}
    axes:
      dtype:
        values:
          fp32: {set: {dtype: fp32}, when: x.dtype == fp32}
          fp16: {set: {dtype: fp16}, when: x.dtype == fp16}
      direction:
        values:
          forward: {set: {backward: false}, when: not x.requires_grad}
          backward: {set: {backward: true}, when: x.requires_grad}
    lanes: ["correctness:sm90"]
"""
# A tensor as far as anybody looks; no torch, so that the test is quick.
OP = """\
from dataclasses import dataclass, field

@dataclass
class Tensor:
    dtype: str = "torch.float32"
    requires_grad: bool = False
    shape: tuple = (4,)
    is_leaf: bool = True
    hooks: list = field(default_factory=list)
    def stride(self):
        return (1,)
    def register_hook(self, hook):
        self.hooks.append(hook)
    def backward(self):
        for hook in self.hooks:
            hook(None)

def double(x, twice=False, **extra):
    if twice:
        double(x)
    if "bad" in extra:
        raise ValueError("bad")
    return Tensor(x.dtype, x.requires_grad, x.shape, is_leaf=False)
"""
INSIDE = "from toylib.op import double\n\ndef user(x):\n    return double(x)\n"
TESTS = """\
from toylib.op import Tensor, double
import pytest

def test_forward():
    double(Tensor())

@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_backward(dtype):
    double(Tensor(f"torch.{dtype}", True)).backward()

def test_no_backward():
    double(Tensor("torch.float16", True))

def test_stray():
    double(Tensor("torch.int8"))

def test_fails():
    double(Tensor("torch.float16"))
    assert False
"""


@dataclass
class Toy:
    """A package on disk, watched."""

    folder: Path
    watcher: Watcher
    modules: list[str] = field(default_factory=lambda: ["toylib", "toylib.op", "toylib.inside"])

    def load(self, name: str) -> ModuleType:
        __import__(name)
        return sys.modules[name]

    def calls(self) -> list[dict[str, Any]]:
        return self.watcher.take()


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    (tmp_path / "toylib").mkdir()
    for name, text in (("__init__", ""), ("op", OP), ("inside", INSIDE)):
        (tmp_path / f"toylib/{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    watcher = Watcher(["toylib.op:double", "toylib.op:absent", "elsewhere:function"])
    found = Toy(tmp_path, watcher)
    yield found
    watcher.remove()
    for name in found.modules:
        sys.modules.pop(name, None)


def test_a_call_is_seen_with_its_arguments_and_defaults(toy: Toy) -> None:
    toy.watcher.install()
    op = toy.load("toylib.op")
    op.double(op.Tensor(), more=object())
    (call,) = toy.calls()
    assert call["arguments"]["twice"] is False
    assert call["arguments"]["x"]["dtype"] == "torch.float32"
    assert call["arguments"]["more"] == {"other": "object"}
    assert not call["backward"]
    assert toy.calls() == []


def test_names_that_were_imported_before_are_wrapped_too(toy: Toy) -> None:
    op = toy.load("toylib.op")
    user = ModuleType("user")
    user.mine = op.double  # type: ignore[attr-defined]
    sys.modules["user"] = user
    try:
        toy.watcher.install()
        user.mine(op.Tensor())
    finally:
        del sys.modules["user"]
    assert len(toy.calls()) == 1


def test_only_the_users_own_calls_that_return_count(toy: Toy) -> None:
    toy.watcher.install()
    op, inside = toy.load("toylib.op"), toy.load("toylib.inside")
    inside.user(op.Tensor())
    assert toy.calls() == []
    with pytest.raises(ValueError, match="bad"):
        op.double(op.Tensor(), bad=1)
    with pytest.raises(TypeError):
        op.double()
    assert toy.calls() == []
    op.double(op.Tensor(), twice=True)
    op.double(op.Tensor(), twice=True)
    (call,) = toy.calls()
    assert call["arguments"]["twice"] is True


def test_backward_counts_when_a_gradient_arrives(toy: Toy) -> None:
    toy.watcher.install()
    op = toy.load("toylib.op")
    result = op.double(op.Tensor(requires_grad=True))
    (call,) = toy.calls()
    assert not call["backward"]
    result.backward()
    assert call["backward"]


def coverage(*calls: dict[str, Any]) -> Coverage:
    contract = load(CONTRACT.encode(), "toy.yaml")
    recording = Recording()
    lines = [
        {"kind": "collected", "tests": ["t"]},
        {"kind": "ready"},
        *({"kind": "call", "test": "t", "target": "toylib.op:double", **call} for call in calls),
        {"kind": "test", "test": "t", "outcome": "passed", "seconds": 0.0},
    ]
    for line in lines:
        assert recording.add(parse(json.dumps(line).encode())) == ""
    found = Coverage({"toy": contract})
    found.record(recording)
    return found


def one(dtype: str, *, grad: bool, backward: bool = False) -> dict[str, Any]:
    x = {"shape": [4], "strides": [1], "dtype": f"torch.{dtype}", "requires_grad": grad}
    return {"arguments": {"x": x, "twice": False}, "backward": backward}


def test_cells_are_told_apart_by_their_predicates() -> None:
    found = coverage(
        one("float32", grad=False),
        one("float16", grad=True),
        one("float32", grad=True, backward=True),
        one("int8", grad=False),
    )
    ((point,),) = [op.entry_points for op in found.ops()]
    assert {cell.cell: (len(cell.forward), len(cell.backward)) for cell in point.cells} == {
        "double[dtype=fp32,direction=forward]": (1, 0),
        "double[dtype=fp32,direction=backward]": (1, 1),
        "double[dtype=fp16,direction=forward]": (0, 0),
        "double[dtype=fp16,direction=backward]": (1, 0),
    }
    (stray,) = point.strays
    assert "no value of `dtype` fits" in stray.why
    # Called, but nobody came back: not exercised.
    assert {cell.cell for cell in found.ops()[0].missing} == {
        "double[dtype=fp16,direction=backward]",
        "double[dtype=fp16,direction=forward]",
    }


def test_order_is_by_name_with_what_is_missing_first() -> None:
    """Whatever order the recordings come in."""
    points = CONTRACT.partition("entry_points:\n")[2]
    contract = load((CONTRACT + points.replace("double:", "aside:", 1)).encode(), "toy.yaml")
    calls = [one("int8", grad=False), one("float32", grad=True, backward=True)]
    calls += [one("float16", grad=True), one("int16", grad=False)]
    seen = []
    for tests in (["t1", "t2"], ["t2", "t1"]):
        found = Coverage({"toy": contract})
        for test in tests:
            for call in calls[:: 1 if test == "t1" else -1]:
                found.points["toy", "double"].take(call_line(test, call))
        seen.append(found.ops())
    assert seen[0] == seen[1]
    aside, double = seen[0][0].entry_points
    assert (aside.entry_point, double.entry_point) == ("aside", "double")
    assert [cell.cell for cell in double.cells] == [
        "double[dtype=fp16,direction=forward]",
        "double[dtype=fp32,direction=forward]",
        "double[dtype=fp16,direction=backward]",
        "double[dtype=fp32,direction=backward]",
    ]
    assert [cell.exercised for cell in double.cells] == [False, False, False, True]
    assert double.cells[-1].forward == ["t1", "t2"]


def call_line(test: str, call: dict[str, Any]) -> CallLine:
    line = {"kind": "call", "test": test, "target": "toylib.op:double", **call}
    found = parse(json.dumps(line).encode())
    assert isinstance(found, CallLine)
    return found


def test_a_call_between_cells_names_what_it_combines() -> None:
    text = CONTRACT.replace("    lanes:", '    constraints: [dtype == "fp32"]\n    lanes:')
    contract = load(text.encode(), "toy.yaml")
    found = Coverage({"toy": contract})
    found.points["toy", "double"].take(call_line("t", one("float16", grad=False)))
    (stray,) = found.ops()[0].entry_points[0].strays
    assert stray.why == "no cell has dtype=fp16 with the rest of it"


def test_unexercised_cells_are_those_without_lane_and_test() -> None:
    contract = load(CONTRACT.encode(), "toy.yaml")
    found = [cell.id for cell in cells(contract, "double")]
    assert unexercised(contract, ["double"], [], []) == found
    deep = [c.id for c in cells(contract, "double") if needs_backward(contract, c)]
    half = [CellUse(op="toy", cell=cell, forward=["t"]) for cell in found]
    assert unexercised(contract, ["double"], [], half) == deep
    whole = [CellUse(op="toy", cell=cell, forward=["t"], backward=["t"]) for cell in found]
    assert unexercised(contract, ["double"], [], whole) == []
    base = [use.model_copy(update={"arm": "base"}) for use in whole]
    assert unexercised(contract, ["double"], [], base) == found


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in {
        "toylib/__init__.py": "",
        "toylib/op.py": OP,
        "contracts/toy.yaml": CONTRACT,
        "test_toy.py": TESTS,
        "conftest.py": "import toylib.op\n",
        "pytest.ini": "[pytest]\npythonpath = .\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    options = ["-p", "bot.observe.plugin", "--fla-bot-coverage=cov.jsonl", "-q"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    return tmp_path


def test_the_command_reads_a_recording(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["coverage", "--repo", str(package), str(package / "cov.jsonl")]
    assert main(argv) == 1
    text = capsys.readouterr().out
    assert "toy (enforced): 3 of 4 cells forward, 2 of 2 backward" in text
    assert "double[dtype=fp16,direction=forward]" in text  # only a test that fails calls it
    assert "1 tests: no value of `dtype` fits; test_toy.py::test_stray" in text
    assert main([*argv, "--format", "json"]) == 1
    (op,) = json.loads(capsys.readouterr().out)["ops"]
    by_cell = {cell["cell"]: cell for cell in op["entry_points"][0]["cells"]}
    assert by_cell["double[dtype=fp16,direction=backward]"]["backward"] == [
        "test_toy.py::test_backward[float16]"
    ]
    assert main([*argv, "--op", "toy"]) == 1
    text = capsys.readouterr().out
    assert "forward test_toy.py::test_forward" in text
    assert text.index("not exercised (1):") < text.index("called (3):")


def test_the_command_says_how_to_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", "--repo", str(ROOT)]) == 1
    assert "-p bot.observe.plugin --fla-bot-coverage=cov.jsonl" in capsys.readouterr().err
    assert main(["coverage", "--repo", str(ROOT), "--op", "nothing"]) == 1
    assert "no contract of `nothing`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]\n", "\x00" * 100, '{"kind": "end", "status": NaN}']
)
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cov.jsonl"
    path.write_text(text)
    if not text:
        assert [type(found) for found in read(path)] == [Recording]
        return
    with pytest.raises(UserError, match="neither a recording nor evidence"):
        list(read(path))
    with pytest.raises(UserError, match="No such file"):
        list(read(tmp_path / "absent"))


def test_a_cell_that_nothing_exercises_is_red(workbench: Workbench) -> None:
    policy = (ROOT / "contracts/policy.yaml").read_text()
    excluded = policy.replace(
        '  "correctness:sm90":\n', '  "correctness:sm90":\n    excludes: {dtype == "fp16": no}\n'
    ).replace("source_roots: [fla]", "source_roots: [toylib]")
    files: dict[str, str | bytes | None] = {
        "contracts/policy.yaml": excluded,
        "contracts/toy.yaml": CONTRACT,
        "toylib/__init__.py": "",
        "toylib/op.py": OP,
    }
    workbench.commit(files)
    workbench.commit({"toylib/op.py": OP.replace("(x)", "(x, False)")}, branch="work")
    with Repository(workbench.path) as repository:
        request = Request("main", "work")
        found = report(repository, analyse(repository, request), request, None)
    items = {item.id: item for item in found.checklist}
    assert items["unexercised:toy"].state == "failed"
    assert "nothing exercises 2 cells of toy" in items["unexercised:toy"].text
    assert items["declared:toy"].state == "n/a"
