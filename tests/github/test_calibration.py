"""Traffic that PyGithub recorded from the real GitHub satisfies the same contract.

The recordings (LGPL) are not part of this repository: the test job takes them from PyGithub's
source package. They reach back to 2012, so replies may lack keys that GitHub added since.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from pydantic import BaseModel

from bot.github import records
from tests.github.contract import Call, Contract, load

PACKAGE = "PyGithub==2.10.0"
BLOCK = 11  # lines of one exchange: ten parts and an empty one
UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectionError|Temporary failure in name resolution|Max retries|"
    r"Network is unreachable|timed out|from versions: none"
)


@dataclass(frozen=True)
class Exchange:
    """One request of a recording and its reply."""

    file: str
    call: Call
    status: int
    year: int
    reply: Any


@pytest.fixture(scope="session")
def recordings(request: pytest.FixtureRequest) -> Path:
    """PyGithub's source package, downloaded once for a checkout."""
    folder = request.config.cache.mkdir("pygithub")
    found = sorted(folder.glob("*ithub-2.10.0.tar.gz"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", "PyGithub", "--dest", str(folder), PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = sorted(folder.glob("*ithub-2.10.0.tar.gz"))
        if done.returncode or not found:
            reason = f"{PACKAGE}'s source package cannot be had: {done.stderr[-600:]}"
            (pytest.skip if may_skip(done.stderr, os.environ) else pytest.fail)(reason)
    return found[0]


def may_skip(stderr: str, environment: Mapping[str, str]) -> bool:
    """Only without a registry, and never in CI, where a skip would go unseen."""
    return not environment.get("CI") and UNREACHABLE.search(stderr) is not None


def test_calibration_is_skipped_only_without_a_registry() -> None:
    down = "WARNING: NewConnectionError: Temporary failure in name resolution"
    assert may_skip(down, {})
    assert not may_skip(down, {"CI": "true"})
    assert may_skip("ERROR: Could not find a version (from versions: none)", {})
    assert not may_skip("ERROR: Could not find a version (from versions: 2.9.1)", {})


@pytest.fixture(scope="session")
def exchanges(recordings: Path) -> list[Exchange]:
    """Every recorded exchange of an operation of ours."""
    with tarfile.open(recordings) as archive:
        return [
            exchange
            for member in archive
            if "/ReplayData/" in member.name
            and member.name.endswith(".txt")
            and "BadAttributes" not in member.name  # broken by hand
            for exchange in _parse(Path(member.name).name, archive.extractfile(member).read())
        ]


def _parse(file: str, text: bytes) -> Iterator[Exchange]:
    lines = text.decode().split("\n")
    for start in range(0, len(lines) - BLOCK + 1, BLOCK):
        _, method, host, _, url, _, body, status, headers, reply = lines[start : start + BLOCK - 1]
        if not status.isdigit():
            return  # a download: its content fills the lines that follow
        if host == "api.github.com" and (found := load().route(method, urlsplit(url).path)):
            query = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
            call = Call(*found, query, _json(body))
            dated = re.search(r"'[Dd]ate', '\w+, \d+ \w+ (\d{4})", headers)
            year = int(dated[1]) if dated else 0
            yield Exchange(file, call, int(status), year, _json(reply))


def _json(text: str) -> Any:
    return None if text in ("", "None") else json.loads(text)


# Recorded requests that the contract refuses although GitHub took them, by our own strictness.
REQUESTS = {
    "checks/update: unknown body key `head_sha`": 1,  # ignored by GitHub
    "actions/list-workflow-runs-for-repo: query exclude_pull_requests": 1,  # Python's `True`
    "git/list-matching-refs: unknown query key `per_page`": 1,  # ignored by GitHub
}
# Recorded replies that break more than a missing key.
REPLIES = {
    "repos/get-branch 200: protection.enforce_admins": 1,  # a bool, of 2018
}
# Operations whose recordings satisfy the contract to the last key.
EXACT = {
    "actions/cancel-workflow-run", "actions/create-workflow-dispatch", "actions/get-artifact",
    "actions/get-job-for-workflow-run", "actions/get-workflow", "actions/get-workflow-run",
    "actions/get-workflow-run-attempt",
    "actions/list-artifacts-for-repo", "actions/list-jobs-for-workflow-run",
    "actions/list-repo-variables", "actions/list-repo-workflows",
    "actions/list-self-hosted-runners-for-repo", "actions/list-workflow-run-artifacts",
    "actions/re-run-workflow", "actions/re-run-workflow-failed-jobs",
    "apps/create-installation-access-token", "apps/get-authenticated",
    "apps/get-repo-installation", "checks/create", "checks/get", "checks/get-suite",
    "checks/list-annotations", "checks/list-for-ref", "checks/list-for-suite",
    "checks/list-suites-for-ref", "checks/update", "git/list-matching-refs",
}  # fmt: skip


def _shape(fault: str, depth: int = 2) -> str:
    """A fault without its particulars."""
    return ": ".join(fault.split(": ")[:depth])


def test_recordings_reach_our_operations(exchanges: list[Exchange]) -> None:
    operations = {exchange.call.operation.name for exchange in exchanges}
    assert len(exchanges) > 650
    assert len(operations) >= 60
    assert operations >= EXACT


def test_recorded_requests_satisfy_the_contract(exchanges: list[Exchange]) -> None:
    found = Counter(
        _shape(fault)
        for exchange in exchanges
        if exchange.status < 400
        for fault in load().request_faults(exchange.call)
    )
    assert found == REQUESTS


def test_recorded_replies_satisfy_the_contract_but_for_missing_keys(
    exchanges: list[Exchange],
) -> None:
    contract = load().relaxed()
    found = Counter(_shape(fault) for item in exchanges for fault in _reply_faults(contract, item))
    assert found == REPLIES


def test_recorded_replies_of_checks_and_actions_satisfy_it_exactly(
    exchanges: list[Exchange],
) -> None:
    found = {
        exchange.call.operation.name for exchange in exchanges if _reply_faults(load(), exchange)
    }
    assert not found & EXACT


def _reply_faults(contract: Contract, exchange: Exchange) -> list[str]:
    operation = contract.by_name[exchange.call.operation.name]
    return contract.reply_faults(operation, exchange.status, exchange.reply)


# Before that, repositories had no `full_name` and runs no `display_title`.
OLDEST: dict[type[BaseModel], int] = {
    records.Repository: 2015,
    records.Pull: 2015,
    records.Run: 2023,
}
RECORDS: dict[str, tuple[str, type[BaseModel]]] = {
    "actions/get-workflow-run": ("", records.Run),
    "actions/list-jobs-for-workflow-run": ("jobs", records.Job),
    "checks/create": ("", records.CheckRun),
    "checks/get": ("", records.CheckRun),
    "checks/list-for-ref": ("check_runs", records.CheckRun),
    "checks/update": ("", records.CheckRun),
    "git/list-matching-refs": ("[]", records.Ref),
    "issues/create-comment": ("", records.Comment),
    "issues/get-comment": ("", records.Comment),
    "issues/list-comments": ("[]", records.Comment),
    "pulls/get": ("", records.Pull),
    "pulls/list": ("[]", records.Pull),
    "pulls/list-commits": ("[]", records.Commit),
    "pulls/list-files": ("[]", records.File),
    "repos/get": ("", records.Repository),
    "repos/get-collaborator-permission-level": ("", records.Role),
}


def test_recorded_replies_can_be_read_by_our_records(exchanges: list[Exchange]) -> None:
    read: Counter[str] = Counter()
    for exchange in exchanges:
        name = exchange.call.operation.name
        if name not in RECORDS or exchange.status not in (200, 201):
            continue
        key, kind = RECORDS[name]
        if exchange.year < OLDEST.get(kind, 0):
            continue
        reply = exchange.reply
        for item in [reply] if not key else reply if key == "[]" else reply[key]:
            kind.model_validate(item)
            read[name] += 1
    assert set(read) == set(RECORDS)
