"""Hostile and honest changes through a real tests lane."""

from __future__ import annotations

import pytest

from bot.change import Repository
from bot.check import Request, analyse, report
from bot.model import Report, Row, Verdict
from bot.run import Done, run_plan
from tests.bot.test_coverage import CONTRACT
from tests.bot.test_coverage import OP as TENSORS
from tests.conftest import ROOT, Workbench

OP = "def double(x):\n    return 2 * x\n"
WRONG = "def double(x):\n    return 2 * x + (x > 3)\n"
TESTS = """\
import pytest
from fla.toy import double


@pytest.mark.parametrize("x", [0, 1, 4])
def test_double(x):
    assert double(x) == x + x


def test_sign():
    assert double(-2) < 0


@pytest.mark.skip(reason="needs two machines")
def test_far_away():
    raise AssertionError
"""
FILE, OP_FILE = "tests/test_toy.py", "fla/toy.py"
COVERING = """\
from fla.toy import Tensor, double

def test_forward():
    double(Tensor())

def test_backward():
    double(Tensor("torch.float32", True)).backward()
"""
Files = dict[str, str | bytes | None]


@pytest.fixture
def repository(workbench: Workbench) -> Workbench:
    """A package of one function, its tests, and a policy that asks for them."""
    policy = (ROOT / "contracts/policy.yaml").read_text()
    lane = "machine: cpu, device: cpu, interpreter: true, required: true, timeout_s: 24"
    lanes = f'  "tests:cpu": {{{lane}}}\n'
    start, end = policy.index('  "interpret:cpu":'), policy.index("# Errors are taken")
    files: Files = {
        "contracts/policy.yaml": f"{policy[:start]}{lanes}\n{policy[end:]}",
        "fla/__init__.py": "",
        OP_FILE: OP,
        FILE: TESTS,
    }
    workbench.commit(files)
    return workbench


def run(repository: Workbench, files: Files) -> tuple[Report, Done]:
    """Commit a change, run its lane, and judge it."""
    repository.commit(files, branch="work")
    with Repository(repository.path) as opened:
        request = Request("main", "work")
        analysis = analyse(opened, request)
        done = run_plan(opened, analysis, lane=None, evidence_dir=None, progress=lambda _: None)
        return report(opened, analysis, request, None), done


def only(found: tuple[Report, Done]) -> Row:
    assert not found[1].failed
    (row,) = found[0].rows
    return row


def test_an_honest_change_is_green_and_says_whose_word_it_is(repository: Workbench) -> None:
    row = only(run(repository, {OP_FILE: OP.replace("2 * x", "x + x")}))
    assert (row.verdict, row.cell) == (Verdict.PASS, FILE)
    assert row.reason == "4 passed, 1 skipped, self-reported by the tests"


def test_a_wrong_function_fails_where_the_merge_base_passes(repository: Workbench) -> None:
    row = only(run(repository, {OP_FILE: WRONG}))
    assert row.verdict is Verdict.FAIL
    assert row.reason.startswith("test_double[4] fails here, passes at the merge base (")
    assert "assert 9 == (4 + 4)" in row.reason


def test_what_the_merge_base_fails_too_is_for_a_person(repository: Workbench) -> None:
    repository.commit({OP_FILE: WRONG})
    row = only(run(repository, {OP_FILE: WRONG.replace("2 * x", "x + x")}))
    assert row.verdict is Verdict.NOT_PROVEN
    assert "fails at the merge base too" in row.reason


CONFTEST = "tests/conftest.py"
SKIP = "@pytest.mark.skip\n"
FORGE = """\
import json, os, socket, stat
def tell(*lines):
    for fd in range(3, 200):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                for line in lines: os.write(fd, json.dumps(line).encode() + b"\\n")
        except OSError: pass
NAME = "tests/test_toy.py::test_double"
PASSED = {"kind": "test", "outcome": "passed", "seconds": 0.0}
FAULTY = {"kind": "file", "path": "tests/test_toy.py", "outcome": "skipped"}
"""


def doing(line: str, value: str = "2 * x") -> str:
    """An op that does something else first."""
    return f"{FORGE}\ndef double(x):\n    {line}\n    return {value}\n"


# The files of the change (with them comes a wrong function), the verdict, and why.
HOSTILE: dict[str, tuple[Files, Verdict, str]] = {
    "deletes-the-test": (
        {FILE: TESTS.replace("test_double", "check_double")},
        Verdict.FAIL,
        "has vanished",
    ),
    "drops-the-row": (
        {FILE: TESTS.replace("[0, 1, 4]", "[0, 1]")},
        Verdict.NOT_PROVEN,
        "test_double[4] no longer has these arguments",
    ),
    "empties-the-file": ({FILE: "import fla.toy\n"}, Verdict.FAIL, "reports no test"),
    "adds-a-skip": (
        {FILE: TESTS.replace("@pytest.mark.param", SKIP + "@pytest.mark.param")},
        Verdict.FAIL,
        "is newly skipped",
    ),
    "skips-a-row": (
        {FILE: TESTS.replace("1, 4]", "1, pytest.param(4, marks=pytest.mark.skip)]")},
        Verdict.FAIL,
        "test_double[4] is newly skipped",
    ),
    "skips-the-module": (
        {FILE: "import pytest\npytest.skip('no', allow_module_level=True)\n" + TESTS},
        Verdict.FAIL,
        "is newly skipped",
    ),
    "xfails": (
        {FILE: TESTS.replace("@pytest.mark.param", "@pytest.mark.xfail\n@pytest.mark.param")},
        Verdict.FAIL,
        "is newly skipped",
    ),
    "deselects-a-row": (
        {CONFTEST: "def pytest_collection_modifyitems(items):\n    del items[2]\n"},
        Verdict.NOT_PROVEN,
        "test_double[4] no longer has these arguments",
    ),
    "deselects-all": (
        {CONFTEST: "def pytest_collection_modifyitems(items):\n    items.clear()\n"},
        Verdict.FAIL,
        "reports no test",
    ),
    "exits-0-at-import": ({OP_FILE: "import os\nos._exit(0)\n"}, Verdict.FAIL, "without a word"),
    "exits-0-in-a-test": (
        {OP_FILE: doing("if x > 3: os._exit(0)")},
        Verdict.FAIL,
        "test_double[4] fails here, passes at the merge base (it did not run",
    ),
    "is-killed-in-a-test": (
        {OP_FILE: doing("if x > 3: os.kill(os.getpid(), 9)")},
        Verdict.FAIL,
        "test_double[4] fails here, passes at the merge base (it did not run",
    ),
    "breaks-the-collection": ({OP_FILE: "1 / 0\n"}, Verdict.FAIL, "ZeroDivisionError"),
    "breaks-the-conftest": ({CONFTEST: "1 / 0\n"}, Verdict.FAIL, "pytest ended with status"),
    "stops-early": (
        {CONFTEST: "def pytest_runtest_setup(item):\n    item.session.shouldstop = 'enough'\n"},
        Verdict.FAIL,
        "did not run",
    ),
    "turns-a-failure-into-a-pass": (
        {
            CONFTEST: "import pytest\n@pytest.hookimpl(wrapper=True)\n"
            "def pytest_runtest_makereport():\n"
            "    report = yield\n    report.outcome = 'passed'\n    return report\n"
        },
        Verdict.FAIL,
        "it raised, and a hook made that a pass",
    ),
    "tells-of-other-tests": (
        {OP_FILE: doing("tell({**PASSED, 'test': NAME + '[new]'})")},
        Verdict.FAIL,
        "names a test that was not collected",
    ),
    "tells-twice": (
        {OP_FILE: doing("tell(*({**PASSED, 'test': f'{NAME}[{n}]'} for n in (0, 1, 4)))")},
        Verdict.FAIL,
        "is told twice",
    ),
    "tells-a-verdict": (
        {OP_FILE: doing("tell({'kind': 'end', 'status': 0, 'verdict': 'pass'})")},
        Verdict.FAIL,
        "a line breaks its form",
    ),
    "tells-a-gigabyte": (
        {OP_FILE: doing("for _ in range(1 << 23): tell(*[FAULTY] * 50)")},
        Verdict.FAIL,
        "more than 150000 lines",
    ),
    "tells-one-long-line": ({OP_FILE: doing("tell('x' * (1 << 22))")}, Verdict.FAIL, "too long"),
    "prints-without-end": (
        {OP_FILE: doing("for _ in range(4096): os.write(2, b'x' * 65536)", "2 * x + (x > 3)")},
        Verdict.FAIL,
        "test_double[4] fails here",
    ),
    "hangs": (
        {OP_FILE: doing("if x > 3: __import__('time').sleep(1000)")},
        Verdict.FAIL,
        "it still ran when the time was over",
    ),
    "leaves-a-process-that-holds-the-channel": (
        {OP_FILE: doing("if x > 3 and not os.fork(): __import__('time').sleep(1000)")},
        Verdict.PASS,  # it did nothing to the tests; the sandbox ends the process
        "4 passed",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_change_is_not_green(repository: Workbench, name: str) -> None:
    files, verdict, reason = HOSTILE[name]
    row = only(run(repository, {OP_FILE: WRONG, **files}))
    assert row.verdict is verdict
    assert reason in row.reason


def test_a_hook_that_swallows_the_exception_is_not_seen(repository: Workbench) -> None:
    """What the lane cannot catch: a pass of its own tests is their own word, and says so."""
    swallow = (
        "import pytest\n@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_pyfunc_call(pyfuncitem):\n    return True\n"
    )
    found = run(repository, {OP_FILE: WRONG, CONFTEST: swallow})
    row = only(found)
    assert row.verdict is Verdict.PASS
    assert "self-reported" in row.reason
    # The static rule names the edit of the harness.
    assert [finding.path for finding in found[0].findings if finding.code == "TST001"] == [CONFTEST]


def test_a_forged_report_of_a_process_that_ends_is_not_seen(repository: Workbench) -> None:
    """The report is written where the code under test runs: it can be forged as a whole."""
    names = ("double[0]", "double[1]", "double[4]", "sign", "far_away")
    lines = [{"kind": "test", "outcome": "passed", "seconds": 0.0, "test": f"{FILE}::test_{n}"}
             for n in names]  # fmt: skip
    end = {"kind": "end", "status": 0}
    forged = doing(f"tell(*{[*lines, end]}); os._exit(0)")
    row = only(run(repository, {OP_FILE: forged}))
    assert (row.verdict, row.reason) == (Verdict.PASS, "5 passed, self-reported by the tests")


def test_a_moved_test_file_is_followed(repository: Workbench) -> None:
    moved = {FILE: None, "tests/unit/test_toy.py": TESTS}
    row = only(run(repository, {OP_FILE: OP.replace("2 * x", "x + x"), **moved}))
    assert (row.verdict, row.cell) == (Verdict.PASS, "tests/unit/test_toy.py")
    assert row.reason == "4 passed, 1 skipped, self-reported by the tests"


def test_the_removal_of_a_whole_file_is_for_a_person(repository: Workbench) -> None:
    row = only(run(repository, {OP_FILE: WRONG, FILE: None}))
    assert (row.verdict, row.cell) == (Verdict.NOT_PROVEN, FILE)
    assert row.reason == f"{FILE} is gone with its tests, a person decides"


def test_new_tests_need_no_base_and_must_pass(repository: Workbench) -> None:
    more = "\n\ndef test_new():\n    assert double(4) == 8\n"
    row = only(run(repository, {FILE: TESTS + more}))
    assert (row.verdict, row.reason.split(",")[0]) == (Verdict.PASS, "5 passed")


def test_a_new_test_that_fails_is_a_failure(repository: Workbench) -> None:
    more = "\n\ndef test_new():\n    assert double(4) == 9\n"
    row = only(run(repository, {FILE: TESTS + more}))
    assert row.verdict is Verdict.FAIL
    assert "test_new fails here, new" in row.reason


def test_nothing_of_ours_reaches_the_tests(
    repository: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CI", "GITHUB_TOKEN", "PYTEST_ADDOPTS", "PYTHONPATH", "FLA_CI_ENV"):
        monkeypatch.setenv(name, "--collect-only" if name == "PYTEST_ADDOPTS" else "1")
    seen = """

def test_surroundings(tmp_path):
    import os, sys
    known = {"CI", "GITHUB_TOKEN", "PYTEST_ADDOPTS", "PYTHONPATH", "FLA_CI_ENV"}
    assert not known & set(os.environ)
    assert os.environ["TRITON_INTERPRET"] == "1"
    (tmp_path / "file").write_text("x")
    assert "bot" not in sys.modules
"""
    row = only(run(repository, {FILE: TESTS + seen}))
    assert row.reason == "5 passed, 1 skipped, self-reported by the tests"


def test_coverage_may_not_fall(repository: Workbench) -> None:
    """An edited test that no longer goes backward through a cell turns the lane red."""
    contract = CONTRACT.replace("toylib.op", "fla.toy").replace("toylib", "fla")
    policy = (repository.path / "contracts/policy.yaml").read_text()
    lane = '  "interpret:cpu": {machine: cpu, device: cpu, required: false, timeout_s: 9}'
    files: Files = {
        "contracts/toy.yaml": contract.replace("correctness:sm90", "interpret:cpu"),
        "contracts/policy.yaml": policy.replace("lanes:\n", f"lanes:\n{lane}\n", 1),
        OP_FILE: TENSORS,
        FILE: COVERING,
    }
    repository.commit(files)
    found, done = run(repository, {FILE: COVERING.replace(".backward()", "")})
    assert not done.failed
    rows = [row for row in found.rows if row.lane == "tests:cpu"]
    assert {row.cell: row.verdict for row in rows} == {
        FILE: Verdict.PASS,
        "double[dtype=fp32,direction=backward]": Verdict.FAIL,
    }
    assert "no test goes backward through it any more" in rows[-1].reason


def test_a_missing_package_is_the_machines_fault(repository: Workbench) -> None:
    _, done = run(repository, {FILE: f"import nowhere_to_be_found\n{TESTS}"})
    (reason,) = done.failed.values()
    assert reason == f"{FILE} needs `nowhere_to_be_found`, which is not installed here"
