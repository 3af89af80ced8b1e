"""runner/job-started.sh for real: which job may run on a host, and what it finds there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.runner.conftest import RUNNER, UID, Host


def test_the_one_job_runs_and_starts_clean(host: Host) -> None:
    for path in (host.work / ".git/config", host.work / "a/b", host.spool / "in/plan.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("left")
        for place in (path.parent, path):
            os.chown(place, UID, UID)
    (host.work / "link").symlink_to("/etc")
    ended = host.hook()
    assert (ended.status, ended.out, ended.err) == (0, "", "")
    assert list(host.work.iterdir()) == list((host.spool / "in").iterdir()) == []
    assert Path("/etc/passwd").exists()


EXECUTOR = ".github/workflows/fla-bot-executor.yml@refs/heads"
OTHERS: tuple[tuple[str, str | None], ...] = (
    ("GITHUB_REPOSITORY", "stranger/fla-bot"),
    ("GITHUB_EVENT_NAME", "pull_request"),
    ("GITHUB_EVENT_NAME", "pull_request_target"),
    ("GITHUB_EVENT_NAME", "push"),
    ("GITHUB_REF", "refs/heads/feature"),
    ("GITHUB_REF", "refs/pull/7/merge"),
    ("GITHUB_WORKFLOW_REF", f"fla-org/fla-bot/{EXECUTOR}/x"),
    ("GITHUB_WORKFLOW_REF", "fla-org/fla-bot/.github/workflows/ci.yml@refs/heads/main"),
    ("GITHUB_WORKFLOW_REF", f"stranger/fla-bot/{EXECUTOR}/main"),
    ("GITHUB_RUN_ATTEMPT", "2"),
    ("GITHUB_JOB", "other"),
    ("GITHUB_REPOSITORY", None),
    ("GITHUB_WORKFLOW_REF", None),
    ("GITHUB_WORKFLOW_REF", "x\n::add-mask::y"),
)


def test_any_other_job_is_refused(host: Host) -> None:
    left = host.work / "left"
    left.touch()
    for name, value in OTHERS:
        ended = host.hook({name: value})
        assert (ended.status, f"refused: {name} is" in ended.err) == (1, True), (name, value)
        assert "::" not in ended.err
    assert left.exists()


def test_workspace_elsewhere_is_refused(host: Host) -> None:
    for place in ("/", "/etc", str(host.prefix), str(host.work.parent), f"{host.work}/../../.."):
        ended = host.hook(GITHUB_WORKSPACE=place)
        assert ended.status == 1, place
        assert "workspace" in ended.err


def test_configuration_that_the_runner_could_change_is_refused(host: Host) -> None:
    os.chown(host.conf, UID, UID)
    ended = host.hook()
    assert ended.status == 3
    assert "others than root" in ended.err


def test_host_without_wrapper_or_drained_is_refused(host: Host) -> None:
    (host.libexec / "fla-bot-lane").chmod(0o775)
    assert host.hook().status == 3
    (host.libexec / "fla-bot-lane").chmod(0o755)
    host.marker.write_text("2026-11-30 gha: device memory stays")
    ended = host.hook()
    assert ended.status == 3
    assert "drained: 2026-11-30 gha: device memory stays" in ended.err


def test_leftovers_that_cannot_be_removed_stop_the_job(host: Host) -> None:
    folder = host.work / "owned-by-root"
    folder.mkdir()
    (folder / "file").touch()
    assert host.hook().status == 3


def test_scripts_run_from_an_installed_folder_only() -> None:
    done = subprocess.run([RUNNER / "job-started.sh"], capture_output=True, text=True, env={})
    assert done.returncode == 3
    assert "not an installed folder" in done.stderr


def test_installing_again_keeps_what_waits(host: Host) -> None:
    (host.spool / "in/plan.json").touch()
    conf = host.conf.read_text()
    again = host.prefix / "again.conf"
    again.write_text(conf)
    subprocess.run([RUNNER / "install.sh", "nobody", again, host.prefix], check=True)
    assert (host.spool / "in/plan.json").exists()
    assert host.conf.read_text() == conf
