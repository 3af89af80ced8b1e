"""Every rule on its fixtures: exactly the marked lines, over all rules at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bot.change import Repository
from bot.check import Request, analyse, report
from bot.rules import code_of, findings, rules
from tests.conftest import ROOT, Workbench

FIXTURES = ROOT / "tests" / "rules"


def fixture_files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.py"))}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: code_of(rule)[0])
def test_rule_marks_exactly_the_expected_lines(rule: object, workbench: Workbench) -> None:
    folder = FIXTURES / code_of(rule)[0].lower()  # type: ignore[arg-type]
    files = fixture_files(folder)
    expected = {
        (name, number, code)
        for name, text in files.items()
        for number, line in enumerate(text.decode().splitlines(), 1)
        for code in re.findall(r"# expect: (\w+)", line)
    }
    assert {code for _, _, code in expected} >= {code_of(rule)[0]}  # type: ignore[arg-type]
    workbench.commit({})
    workbench.commit(dict(files), branch="work")
    with Repository(workbench.path) as repository:
        change = repository.change("main", "work", None)
        found = findings(change, {}, files)
    assert {(f.path, f.line, f.code) for f in found} == expected
    assert all(f.message and f.name and "line" not in f.message for f in found)


def test_each_rule_is_documented_and_has_a_fixture() -> None:
    codes = [code_of(rule)[0] for rule in rules()]
    assert len(set(codes)) == len(codes)
    assert {path.name for path in FIXTURES.iterdir()} == {code.lower() for code in codes}
    for rule in rules():
        for heading in ("What:", "Why:", "Bad:", "Good:", "Limits:", "Source:"):
            assert heading in (rule.__doc__ or "")


def test_only_what_the_change_adds_is_reported(kernels: Workbench) -> None:
    bad = "def f(x): ...\n\nf()\n"
    kernels.commit({"fla/modules/old.py": bad, "fla/modules/moved.py": "# moved\n" * 40 + bad})
    kernels.commit(
        {
            "fla/modules/old.py": "# one line down\n" + bad + "f(1, 2)\n",
            "fla/modules/moved.py": None,
            "fla/modules/there.py": "# moved\n" * 40 + bad,
        },
        branch="work",
    )
    with Repository(kernels.path) as repository:
        found = report(repository, analyse(repository, Request("main", "work")), None)
    assert [(f.path, f.line, f.code) for f in found.findings] == [
        ("fla/modules/old.py", 5, "CAL001")
    ]


def test_file_that_does_not_parse_is_a_finding(kernels: Workbench) -> None:
    kernels.commit(
        {"fla/modules/broken.py": "def f(:\n", "fla/modules/nul.py": b"a = '\0'"}, "work"
    )
    with Repository(kernels.path) as repository:
        found = report(repository, analyse(repository, Request("main", "work")), None)
    codes = [(f.path, f.code) for f in found.findings]
    assert codes == [("fla/modules/broken.py", "API000"), ("fla/modules/nul.py", "API000")]
