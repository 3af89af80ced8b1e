"""Every rule on its fixtures: exactly the marked lines, over all rules at once."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from bot.change import Repository
from bot.check import Request, analyse, report
from bot.model import Finding, Severity
from bot.rules import code_of, rules
from tests.conftest import ROOT, Workbench

FIXTURES = ROOT / "tests" / "rules"
Files = dict[str, str | bytes | None]


def fixture_files(folder: Path) -> Files:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.py"))}


def fixture_sides(folder: Path) -> tuple[Files, Files]:
    """What stands at base and at head; a fixture without these folders is new as a whole."""
    if (folder / "head").is_dir():
        return fixture_files(folder / "base"), fixture_files(folder / "head")
    return {}, fixture_files(folder)


def findings(workbench: Workbench, *, everything: bool = False) -> list[Finding]:
    request = Request("main", "work", policy_dir=ROOT / "contracts", everything=everything)
    with Repository(workbench.path) as repository:
        return report(repository, analyse(repository, request), request, None).findings


def change(workbench: Workbench, base: Files, head: Files) -> list[Finding]:
    """The findings on a change; a path that head lacks is deleted."""
    workbench.commit(base)
    workbench.commit({**dict.fromkeys(base.keys() - head.keys()), **head}, branch="work")
    return findings(workbench)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: code_of(rule)[0])
def test_rule_marks_exactly_the_expected_lines(rule: ModuleType, workbench: Workbench) -> None:
    code = code_of(rule)[0]
    base, head = fixture_sides(FIXTURES / code.lower())
    expected = [
        (name, number, code)
        for name, text in head.items()
        if isinstance(text, bytes)
        for number, row in enumerate(text.decode().splitlines(), 1)
        for code in re.findall(r"# expect: (\w+)", row)
    ]
    assert code in {code for _, _, code in expected}
    found = change(workbench, base, head)
    assert sorted((f.path, f.line, f.code) for f in found) == sorted(expected)
    assert all(f.message and f.name and "line" not in f.message for f in found)


def test_each_rule_is_documented_and_has_a_fixture() -> None:
    codes = [code_of(rule)[0] for rule in rules()]
    assert len(set(codes)) == len(codes)
    folders = {path.name for path in FIXTURES.iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == {code.lower() for code in codes}
    for rule in rules():
        for heading in ("What:", "Why:", "Bad:", "Good:", "Limits:", "Source:"):
            assert heading in (rule.__doc__ or "")


def test_only_what_the_change_adds_is_reported(workbench: Workbench) -> None:
    bad = "def f(x): ...\n\nf()\n"
    base: Files = {"fla/old.py": bad, "fla/moved.py": "# moved\n" * 40 + bad}
    head: Files = {
        "fla/old.py": "# one down\n" + bad + "f(1, 2)\n",
        "fla/there.py": "# moved\n" * 40 + bad,
    }
    found = change(workbench, base, head)
    assert [(f.path, f.line, f.code) for f in found] == [("fla/old.py", 5, "CAL001")]
    everywhere = findings(workbench, everything=True)
    assert {f.path for f in everywhere} == {"fla/old.py", "fla/there.py"}


CALLER = "from fla.a import f as g\n\n\ndef use(x):\n    return g(x, 1, scale=2)\n"


@pytest.mark.parametrize(
    ("before", "after", "is_broken"),
    [
        ("def f(x, y, scale): ...\n", "def f(x, y, factor): ...\n", True),
        ("def f(x, y, scale): ...\n", "def f(x, y, scale, eps): ...\n", True),
        ("def f(x, y, **rest): ...\n", "def f(x, y): ...\n", True),
        ("def f(x, y, scale): ...\n", "def f(x, y, scale=1, eps=0): ...\n", False),
        ("def f(x, y, scale): ...\n", "def f(x, *, y, scale): ...\n", True),
        ("def f(x, y): ...\n", "def f(x, y):\n    return x\n", False),
        ("from fla.b import f\n", "from fla.c import f\n", True),
    ],
)
def test_unchanged_caller_of_an_edited_signature(
    workbench: Workbench, before: str, after: str, is_broken: bool
) -> None:
    others: Files = {
        "fla/user.py": CALLER,
        "fla/b.py": "def f(x, y, scale): ...\n",
        "fla/c.py": "def f(x, y): ...\n",
    }
    found = change(workbench, {**others, "fla/a.py": before}, {**others, "fla/a.py": after})
    expected = [("fla/user.py", "CAL001")] if is_broken else []
    assert [(f.path, f.code) for f in found] == expected


def test_weakened_gate_is_an_error_when_kernels_are_edited(workbench: Workbench) -> None:
    kernel = "import triton\n\n\n@triton.jit\ndef kernel(x):\n    return x{}\n"
    test = "from fla.k import kernel\n\n\ndef test_it(x):\n    assert_close('o', x, x, {})\n"
    base: Files = {"fla/k.py": kernel.format(""), "tests/test_k.py": test.format("0.005")}
    gate: Files = {**base, "tests/test_k.py": test.format("0.02")}
    (found,) = change(workbench, base, gate)
    assert (found.code, found.severity) == ("TST001", Severity.WARNING)
    workbench.commit({"fla/k.py": kernel.format(" + 1")})
    (found,) = findings(workbench)
    assert found.severity is Severity.ERROR
    assert "also edits `kernel`" in found.message


def test_moved_test_is_not_removed_and_cannot_hide_a_higher_limit(workbench: Workbench) -> None:
    test = "def test_it(x):\n    assert_close('o', x, x, {})\n"
    keep = "def test_other(x):\n    assert x\n"
    base: Files = {"tests/test_a.py": test.format("0.005") + keep}
    moved: Files = {"tests/test_a.py": keep, "tests/test_b.py": test.format("0.005")}
    assert change(workbench, base, moved) == []
    workbench.commit({"tests/test_b.py": test.format("0.05")})
    assert [(f.path, f.line) for f in findings(workbench)] == [("tests/test_b.py", 2)]


def test_op_removed_as_a_whole_leaves_no_reference_behind(workbench: Workbench) -> None:
    naive = "def naive_toy(x):\n    return x\n"
    base: Files = {"fla/ops/toy/naive.py": naive, "fla/ops/toy/chunk.py": "def toy(x): ...\n"}
    keep: Files = {"fla/ops/toy/chunk.py": "def toy(x): ...\n"}
    (found,) = change(workbench, base, keep)
    assert (found.code, found.path) == ("TST001", "fla/ops/toy/naive.py")
    workbench.commit({"fla/ops/toy/chunk.py": None})
    assert findings(workbench) == []


def test_file_that_does_not_parse_is_a_finding(workbench: Workbench) -> None:
    head: Files = {"fla/broken.py": "def f(:\n", "fla/nul.py": b"a = '\0'"}
    found = change(workbench, {}, head)
    codes = [(f.path, f.code) for f in found]
    assert codes == [("fla/broken.py", "API000"), ("fla/nul.py", "API000")]
