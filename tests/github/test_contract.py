"""The contract refuses what GitHub refuses, and what GitHub would silently ignore."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.github.bodies import EXAMPLES
from tests.github.contract import HERE, Call, load

SHA = "a" * 40
ROOT = "/repos/octo-org/kernels"


def faults(method: str, path: str, body: Any = None, **query: str) -> list[str]:
    """What is wrong with a request."""
    found = load().route(method, ROOT + path)
    assert found, path
    return load().request_faults(Call(*found, query, body))


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/issues/comments/1", "issues/get-comment"),
        ("/issues/1/comments", "issues/list-comments"),
        ("/issues/1", "issues/get"),
        ("/commits/feature%2Fx/status", "repos/get-combined-status-for-ref"),
        ("/commits/abc", "repos/get-commit"),
        ("/contents/a/b.py", "repos/get-content"),
        ("/branches/feature%2Fx", "repos/get-branch"),
        ("/git/ref/heads/feature/x", "git/get-ref"),
        ("/git/matching-refs/heads/gh-readonly-queue/main", "git/list-matching-refs"),
        ("/actions/artifacts/1/zip", "actions/download-artifact"),
        ("/compare/a...b/c", "repos/compare-commits-with-basehead"),
    ],
)
def test_literal_parts_come_first(path: str, operation: str) -> None:
    found = load().route("GET", ROOT + path)
    assert found
    assert found[0].name == operation


@pytest.mark.parametrize("path", ["/pulls/one", "/issues/1/likes", "/commits/a/b", ""])
def test_unknown_paths_have_no_operation(path: str) -> None:
    assert load().route("GET", f"/repos/octo-org/kernels/nowhere{path}") is None


OUTPUT = {"title": "t", "summary": "s"}
ANNOTATION = {
    "path": "a.py",
    "start_line": 1,
    "end_line": 1,
    "annotation_level": "failure",
    "message": "m",
}
CHECK = {"name": "fla-bot/ready", "head_sha": SHA}


def check(**more: Any) -> dict[str, Any]:
    return {**CHECK, **more}


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("POST", "/check-runs", check(conclusion="green"), "green"),
        ("POST", "/check-runs", check(status="done"), "done"),
        ("POST", "/check-runs", check(status="completed"), "completed without a conclusion"),
        ("POST", "/check-runs", check(conclusion="stale"), "only GitHub may conclude"),
        ("POST", "/check-runs", {"name": "x"}, "head_sha"),
        ("POST", "/check-runs", check(output={"title": "t"}), "summary"),
        ("POST", "/check-runs", check(output={**OUTPUT, "summary": "x" * 65_536}), "65535"),
        (
            "POST",
            "/check-runs",
            check(output={**OUTPUT, "annotations": [ANNOTATION] * 51}),
            "more than 50 items",
        ),
        (
            "POST",
            "/check-runs",
            check(output={**OUTPUT, "annotations": [{**ANNOTATION, "annotation_level": "bad"}]}),
            "bad",
        ),
        (
            "POST",
            "/check-runs",
            check(output={**OUTPUT, "annotations": [{**ANNOTATION, "colum": 1}]}),
            "unknown body key `output.annotations[].colum`",
        ),
        (
            "POST",
            "/check-runs",
            check(output={**OUTPUT, "annotations": [{**ANNOTATION, "title": "x" * 256}]}),
            "annotation is too long",
        ),
        (
            "POST",
            "/check-runs",
            check(
                output={
                    **OUTPUT,
                    "annotations": [{**ANNOTATION, "end_line": 2, "start_column": 1}],
                }
            ),
            "columns need",
        ),
        ("POST", "/check-runs", check(external="x"), "unknown body key `external`"),
        ("PATCH", "/check-runs/1", {"status": "completed"}, "not valid under any"),
        ("PATCH", "/check-runs/1", {"head_sha": SHA}, "unknown body key `head_sha`"),
        ("POST", "/issues/1/comments", None, "a body is required"),
        ("POST", "/issues/1/comments", {"body": "x" * 65_537}, "Body is too long"),
        ("PATCH", "/issues/comments/1", {"body": "x" * 65_537}, "Body is too long"),
        ("PATCH", "/pulls/1", {"body": "x" * 65_537}, "Body is too long"),
        ("PATCH", "/pulls/1", {"state": "merged"}, "merged"),
        ("POST", "/issues/comments/1/reactions", {"content": "thumbs"}, "thumbs"),
        ("POST", f"/statuses/{SHA}", {"state": "green"}, "green"),
        (
            "POST",
            f"/statuses/{SHA}",
            {"state": "success", "description": "x" * 141},
            "description is too long",
        ),
        ("POST", "/actions/workflows/x.yml/dispatches", {"inputs": {}}, "ref"),
        (
            "POST",
            "/actions/workflows/x.yml/dispatches",
            {"ref": "main", "inputs": {f"i{n}": "x" for n in range(26)}},
            "more than 25 properties",
        ),
        ("DELETE", "/issues/comments/1", {"body": "x"}, "a body where none is described"),
        ("PUT", "/issues/1/labels", [1], "1"),
    ],
)
def test_wrong_bodies_are_refused(method: str, path: str, body: Any, words: str) -> None:
    found = faults(method, path, body)
    assert found
    assert any(words in fault for fault in found), found


@pytest.mark.parametrize(
    ("path", "query", "words"),
    [
        ("/pulls", {"per_page": "101"}, "per_page 101"),
        ("/pulls", {"per_page": "many"}, "per_page many"),
        ("/pulls", {"stat": "open"}, "unknown query key `stat`"),
        ("/pulls", {"state": "merged"}, "merged"),
        (f"/commits/{SHA}/check-runs", {"filter": "newest"}, "newest"),
        ("/git/matching-refs/heads/x", {"per_page": "100"}, "unknown query key `per_page`"),
    ],
)
def test_wrong_queries_are_refused(path: str, query: dict[str, str], words: str) -> None:
    found = faults("GET", path, **query)
    assert any(words in fault for fault in found), found


@pytest.mark.parametrize(
    ("method", "path", "body", "query"),
    [
        ("POST", "/check-runs", check(status="in_progress", output=OUTPUT), {}),
        ("POST", "/check-runs", check(conclusion="action_required", external_id="x"), {}),
        ("PATCH", "/check-runs/1", {"status": "completed", "conclusion": "success"}, {}),
        ("POST", "/issues/1/comments", {"body": "x" * 65_536}, {}),
        ("PUT", "/issues/1/labels", ["bug"], {}),
        ("PUT", "/issues/1/labels", {"labels": ["bug"]}, {}),
        ("GET", "/pulls", None, {"state": "open", "per_page": "100", "page": "2"}),
        ("GET", "/actions/runs", None, {"exclude_pull_requests": "true"}),
        (
            "POST",
            "/actions/workflows/x.yml/dispatches",
            {"ref": "main", "inputs": {"plan": "p"}, "return_run_details": True},
            {},
        ),
    ],
)
def test_right_requests_pass(method: str, path: str, body: Any, query: dict[str, str]) -> None:
    assert faults(method, path, body, **query) == []


def test_replies_are_held_to_their_status() -> None:
    contract = load()
    operation = contract.by_name["issues/create-comment"]
    body = EXAMPLES["issues/get-comment"]
    assert contract.reply_faults(operation, 201, body) == []
    assert "not described" in contract.reply_faults(operation, 200, body)[0]
    assert contract.reply_faults(operation, 201, {**body, "id": "one"})
    assert contract.reply_faults(operation, 201, {**body, "user": None}) == []
    assert contract.reply_faults(operation, 502, {"message": "Server Error"}) == []
    assert contract.reply_faults(contract.by_name["issues/delete-comment"], 204, {})


@pytest.mark.parametrize("name", ["contract.json", "examples.json"])
def test_files_name_their_source_and_licence(name: str) -> None:
    data = json.loads((HERE / name).read_text())
    assert (data["package"], data["version"]) == ("@octokit/openapi", "23.0.2")
    assert "Copyright (c) 2020 Octokit contributors" in data["license"]
    assert "Permission is hereby granted" in data["license"]
