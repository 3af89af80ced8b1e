"""Events derived from GitHub's published examples, to the writes that they call for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bot.cli import main
from bot.report.markdown import BEGIN, END
from examples.three_branches import ENDINGS, build
from tests.conftest import Workbench

WEBHOOKS = Path(__file__).parent / "webhooks"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's three branches, with the evidence of a real run for each."""
    repository = tmp_path_factory.mktemp("judged") / "repository"
    build(repository)
    for branch in ENDINGS:
        argv = ["run", "--repo", str(repository), "--base", "main", "--head", branch]
        assert main(argv) == 0
    return repository


def event(repository: Path, branch: str, example: str, **changes: Any) -> dict[str, Any]:
    """One of GitHub's examples, about a branch of ours."""

    def commit(ref: str) -> str:
        argv = ["git", "rev-parse", ref]
        return subprocess.run(
            argv, cwd=repository, check=True, capture_output=True, text=True
        ).stdout.strip()

    payload: dict[str, Any] = json.loads((WEBHOOKS / f"pull_request.{example}.json").read_text())
    payload["pull_request"]["base"] |= {"sha": commit("main"), "ref": "main"}
    payload["pull_request"]["head"] |= {"sha": commit(branch), "ref": branch}
    payload["pull_request"] |= changes
    return payload


def handle(
    repository: Path,
    payload: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> list[dict[str, Any]]:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(payload))
    argv = ["github", "handle", str(path), "--event-name", "pull_request_target", "--dry-run"]
    assert main([*argv, "--repo", str(repository)]) == 0
    out = capsys.readouterr().out
    decoder, writes, at = json.JSONDecoder(), [], 0
    while at < len(out.rstrip()) and out.lstrip().startswith("{"):
        write, at = decoder.raw_decode(out, at)
        at += 1
        writes.append(write)
    return writes


@pytest.mark.parametrize("branch", ENDINGS)
@pytest.mark.parametrize("example", ["opened", "synchronize"])
def test_three_branches_end_as_on_the_command_line(
    judged: Path,
    branch: str,
    example: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    payload = event(judged, branch, example, body="My change.\r\n\r\nFixes a tile.")
    writes = handle(judged, payload, tmp_path, capsys)
    check = writes[0]["body"]
    assert (writes[0]["method"], writes[0]["path"]) == (
        "POST",
        "/repos/Codertocat/Hello-World/check-runs",
    )
    assert check["name"] == "fla-bot/ready"
    assert check["head_sha"] == payload["pull_request"]["head"]["sha"]
    assert (check["status"], check["conclusion"]) == ("completed", ENDINGS[branch])
    comments = [write for write in writes if write["path"].endswith("/issues/2/comments")]
    assert len(comments) == (ENDINGS[branch] != "success")
    body = writes[-1]["body"]["body"]
    assert writes[-1]["path"] == "/repos/Codertocat/Hello-World/pulls/2"
    assert body.startswith("My change.\r\n\r\nFixes a tile.\r\n\r\n" + BEGIN)
    assert body.count(BEGIN) == body.count(END) == 1
    if branch == "wrong":
        assert "l2norm\\[dtype=fp32" in comments[0]["body"]["body"]
        assert "fla/modules/l2norm.py:85" in comments[0]["body"]["body"]


def test_change_without_evidence_is_in_progress(
    judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(event(judged, "mended", "opened")))
    argv = ["github", "handle", str(path), "--event-name", "pull_request", "--dry-run"]
    empty = tmp_path / "none"
    assert main([*argv, "--repo", str(judged), "--evidence", str(empty)]) == 0
    check, _ = json.JSONDecoder().raw_decode(capsys.readouterr().out)
    assert check["body"]["status"] == "in_progress"
    assert "conclusion" not in check["body"]


def test_action_that_changes_nothing_writes_nothing(
    judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    payload = {**event(judged, "mended", "opened"), "action": "labeled"}
    assert handle(judged, payload, tmp_path, capsys) == []


@pytest.mark.parametrize(
    ("name", "payload", "words"),
    [
        ("moon_landing", {}, "event kind `moon_landing` is not handled; known kinds"),
        (None, {}, "none (set --event-name or GITHUB_EVENT_NAME)"),
        ("pull_request", {}, "pull_request: Field required"),
        ("pull_request", [], "should be an object"),
        ("pull_request", {"action": "opened"}, "pull_request: Field required"),
    ],
)
def test_wrong_events_say_what_is_wrong(
    kernels: Workbench,
    name: str | None,
    payload: object,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GITHUB_EVENT_NAME", raising=False)
    path = tmp_path / "event.json"
    path.write_text(json.dumps(payload))
    argv = ["github", "handle", str(path), "--dry-run", "--repo", str(kernels.path)]
    assert main([*argv, *(["--event-name", name] if name else [])]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{", "\0", None])
def test_file_that_is_no_event(
    kernels: Workbench, content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "event.json"
    if content is not None:
        path.write_text(content)
    argv = ["github", "handle", str(path), "--event-name", "pull_request", "--dry-run"]
    assert main([*argv, "--repo", str(kernels.path)]) == 1
    assert str(path) in capsys.readouterr().err


def test_head_that_is_not_here_is_named(
    judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    payload = event(judged, "mended", "opened")
    payload["pull_request"]["head"]["sha"] = "0" * 40
    path = tmp_path / "event.json"
    path.write_text(json.dumps(payload))
    argv = ["github", "handle", str(path), "--event-name", "pull_request", "--dry-run"]
    assert main([*argv, "--repo", str(judged)]) == 1
    assert "is no commit here; fetch it" in capsys.readouterr().err


def test_bundled_example_is_the_readme_command() -> None:
    """`make check` runs the same three branches through the command itself."""
    done = subprocess.run(
        [sys.executable, "examples/three_branches.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 branches ended as they must" in done.stdout
