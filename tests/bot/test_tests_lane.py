"""Verdicts of a tests lane from its evidence, and reports that must not be believed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bot.evidence import Environment, Evidence
from bot.judge.tests import GONE, judge
from bot.lanes.tests import _edited
from bot.model import Change, FileChange, Job, Verdict
from bot.policy import load
from bot.recording import MAX_LINE, Recording, parse
from tests.conftest import ROOT

FILE = "tests/test_a.py"
POLICY = load((ROOT / "contracts/policy.yaml").read_bytes(), "policy.yaml")


def verdicts(
    *tests: tuple[str, str, str | None], complete: bool = True, note: str = "", **more: Any
) -> list[tuple[str, Verdict, str]]:
    environment = Environment(
        python="3", torch="2", triton="3", device="cpu", interpreter=True, protections=[]
    )
    data = {
        "schema": "fla-bot/evidence@2",
        "plan": "p",
        "job": "tests-cpu-tests",
        "lane": "tests:cpu",
        **dict.fromkeys(("head", "merge_base", "trusted"), "0" * 40),
        "complete": complete,
        "environment": environment.model_dump(mode="json"),
        "tests": [{"test": t, "head": h, "base": b, "note": note} for t, h, b in tests],
        "wall_s": 1.0,
        **more,
    }
    evidence = Evidence.model_validate_json(json.dumps(data))
    job = Job(
        id="tests-cpu-tests", lane="tests:cpu", op="tests", cells=[FILE], required=True,
        because=[], key="",
    )  # fmt: skip
    return list(judge(job, POLICY, None, evidence))


T, U = f"{FILE}::test_x[1]", f"{FILE}::test_x[2]"
GOOD = (U, "passed", None)


@pytest.mark.parametrize(
    ("entry", "verdict"),
    [
        ((T, "passed", None), Verdict.PASS),
        ((T, "failed", "passed"), Verdict.FAIL),
        ((T, "failed", "skipped"), Verdict.FAIL),
        ((T, "failed", "missing"), Verdict.FAIL),
        ((T, "failed", "failed"), Verdict.NOT_PROVEN),
        ((T, "error", "error"), Verdict.NOT_PROVEN),
        ((T, "error", "passed"), Verdict.FAIL),
        ((T, "skipped", "skipped"), Verdict.PASS),
        ((T, "skipped", "missing"), Verdict.PASS),
        ((T, "skipped", "passed"), Verdict.FAIL),
        ((T, "skipped", "failed"), Verdict.FAIL),
        ((T, "missing", "passed"), Verdict.NOT_PROVEN),  # the function lives on
        ((f"{FILE}::test_y", "missing", "passed"), Verdict.FAIL),
        ((f"{FILE}::test_y", "missing", "failed"), Verdict.NOT_PROVEN),
        ((FILE, "error", None), Verdict.FAIL),
        ((FILE, "error", "passed"), Verdict.FAIL),
    ],
)
def test_one_entry_decides_its_file(entry: tuple[str, str, str | None], verdict: Verdict) -> None:
    (found,) = verdicts(GOOD, entry)
    assert found[:2] == (FILE, verdict)


def test_a_file_without_a_passing_test_is_never_green() -> None:
    assert [found[1] for found in verdicts()] == [Verdict.FAIL]
    assert [found[1] for found in verdicts((T, "skipped", "skipped"))] == [Verdict.NOT_PROVEN]
    assert [found[1] for found in verdicts((FILE, "missing", "missing"))] == [Verdict.NOT_PROVEN]
    assert [found[1] for found in verdicts((FILE, "missing", "passed"))] == [Verdict.FAIL]
    gone = verdicts((FILE, "missing", "passed"), note=GONE)
    assert [found[1] for found in gone] == [Verdict.NOT_PROVEN]


def test_incomplete_evidence_is_lost_unless_something_failed() -> None:
    assert [found[1] for found in verdicts(GOOD, complete=False)] == [Verdict.LOST]
    open_ = verdicts(GOOD, (T, "failed", None), complete=False)
    assert [found[1] for found in open_] == [Verdict.LOST]
    failed = verdicts(GOOD, (T, "failed", "passed"), complete=False)
    assert [found[1] for found in failed] == [Verdict.FAIL]


def test_evidence_about_other_files_is_lost() -> None:
    for entries in ([("tests/b.py::t", "passed", None)], [GOOD, GOOD]):
        assert [found[:2] for found in verdicts(*entries)] == [("", Verdict.LOST)]


def test_coverage_that_falls_fails_its_cell() -> None:
    use = {"op": "toy", "cell": "f[a=b]", "forward": ["t"], "backward": ["t"]}
    base = {**use, "arm": "base"}
    for head, fails in (
        ([use], 0),
        ([], 1),
        ([{**use, "backward": []}], 1),
        ([{**use, "op": "other"}], 1),
    ):
        found = verdicts(GOOD, coverage=[base, *head])
        assert [one[0] for one in found] == [FILE, *["f[a=b]"] * fails]


def say(*lines: dict[str, Any]) -> str:
    recording = Recording()
    faults = (recording.add(parse(json.dumps(line).encode())) for line in lines)
    return next((fault for fault in faults if fault), "")


COLLECTED = {"kind": "collected", "tests": ["t"]}
READY, END = {"kind": "ready"}, {"kind": "end", "status": 0}
BEGIN = {"kind": "begin", "test": "t"}
PASSED = {"kind": "test", "test": "t", "outcome": "passed", "seconds": 0.0}


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([COLLECTED, READY, PASSED, END], ""),
        ([COLLECTED, PASSED], "not collected"),
        ([COLLECTED, READY, {**PASSED, "test": "u"}], "not collected"),
        ([COLLECTED, READY, PASSED, PASSED], "told twice"),
        ([COLLECTED, READY, COLLECTED], "collected after"),
        ([COLLECTED, READY, PASSED, END, END], "after the end"),
        ([COLLECTED, READY, BEGIN, BEGIN], "begins in another"),
    ],
)
def test_a_report_that_contradicts_itself_is_refused(
    lines: list[dict[str, Any]], fault: str
) -> None:
    found = say(*lines)
    assert fault in found
    assert bool(found) == bool(fault)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"kind": "verdict"}',
        b'{"kind": "end", "status": NaN}',
        b'{"kind": "end", "status": 0, "verdict": "pass"}',
        b'{"kind": "end", "status": 256}',
        b'{"kind": "test", "test": "t", "outcome": "green", "seconds": 0.0}',
        b'{"kind": "test", "test": "t", "outcome": "passed", "seconds": 1e999}',
        b"[" * 60_000,
        b" " * (MAX_LINE + 1),
        b'\xff{"kind": "ready"}',
    ],
)
def test_a_line_of_another_form_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the words are for a person
        parse(text)


@pytest.mark.parametrize(
    ("changed", "edited"),
    [
        (["fla/a.py"], set()),
        (["tests/ops/test_b.py"], {"tests/ops/test_b.py"}),
        (["tests/ops/conftest.py"], {"tests/ops/test_b.py"}),
        (["tests/helper.py"], {"tests/ops/test_b.py", "tests/test_a.py"}),
        (["conftest.py"], {"tests/ops/test_b.py", "tests/test_a.py"}),
        (["README.md", "tests/data.txt"], set()),
    ],
)
def test_edited_tests_are_those_near_an_edit(changed: list[str], edited: set[str]) -> None:
    files = tuple(
        FileChange(path, "modified", path, "a", "b", "100644", "100644") for path in changed
    )
    change = Change("0" * 40, "1" * 40, "0" * 40, "0" * 40, files)
    assert _edited(change, POLICY, ["tests/test_a.py", "tests/ops/test_b.py"]) == edited
