"""runner/fla-bot-lane for real: what it refuses, what a lane sees, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runner.conftest import PLAN, RUNNER, UID, WORKER, Host


@pytest.fixture
def ready(host: Host, commits: Path) -> Host:
    """A host to which a plan and its commits were handed over."""
    host.hand_over("", commits)
    return host


def _processes(uid: int) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            # A zombie's command line is empty: it runs nothing any more.
            alive = entry.name.isdigit() and (entry / "cmdline").read_bytes()
            if alive and entry.stat().st_uid == uid:
                found.append(entry.name)
    return found


def test_lane_runs_with_fixed_arguments_and_gives_its_evidence_back(ready: Host) -> None:
    ended = ready.lane()
    assert (ended.status, ended.err) == (0, "")
    seen = (ready.evidence / "seen.json").read_text().splitlines()
    run = ready.prefix / "run/fla-bot/nobody"
    assert seen[0] == (
        f"argv run --plan {run}/plan.json --repo {run}/repo.git --evidence {run}/out"
    )
    assert seen[1] == "uid 0"
    assert not [line for line in seen if line.startswith(("GITHUB_", "SUDO_", "ACTIONS_"))]
    refs = subprocess.run(["git", "for-each-ref", "--format=%(refname)"], cwd=run / "repo.git",
                          check=True, capture_output=True, text=True)  # fmt: skip
    assert refs.stdout.split() == ["refs/fla-bot/head", "refs/heads/main"]


def test_lane_sees_its_own_processes_and_devices_only(ready: Host) -> None:
    ready.set(devices="/dev/tty /dev/null", read_only="/usr/share",
              environment="ASCEND_RT_VISIBLE_DEVICES=0")  # fmt: skip
    ready.hand_over('touch /usr/share/x 2>/dev/null && echo yes > "$out/wrote.json"; true')
    assert ready.lane().status == 0
    seen = (ready.evidence / "seen.json").read_text()
    assert int(seen.split("pids ")[1].split()[0]) < 6
    assert "ASCEND_RT_VISIBLE_DEVICES=0" in seen
    nodes = (ready.evidence / "dev.json").read_text().split()
    assert nodes == ["fd", "full", "null", "pts", "random", "shm", "tty", "urandom", "zero"]
    assert not (ready.evidence / "wrote.json").exists()
    assert not Path("/usr/share/x").exists()


REFUSED: tuple[tuple[tuple[str, ...], str, str | None, str], ...] = (
    (("--plan", "x"), PLAN, "65534", "no arguments"),
    (("",), PLAN, "65534", "no arguments"),
    ((), "0123456789ABCDEF", "65534", "not a plan id"),
    ((), "0" * 15, "65534", "not a plan id"),
    ((), "0" * 65, "65534", "not a plan id"),
    ((), f"{PLAN} ", "65534", "not a plan id"),
    ((), "../../etc/passwd", "65534", "not a plan id"),
    ((), "", "65534", "not a plan id"),
    ((), PLAN, None, "by root itself"),
    ((), PLAN, "0", "by root itself"),
    ((), PLAN, "-1", "by root itself"),
)


def test_refused(ready: Host) -> None:
    for argv, plan, sudo_uid, words in REFUSED:
        ended = ready.lane(*argv, plan=plan, sudo_uid=sudo_uid)
        assert (ended.status, words in ended.err) == (1, True), (argv, plan, ended)
    assert not ready.evidence.exists()


def test_user_without_configuration_is_refused(ready: Host) -> None:
    assert "daemon.conf" in ready.lane(sudo_uid="1").err


def test_configuration_that_is_not_understood_refuses_the_host(ready: Host) -> None:
    good = ready.conf.read_text()
    for line in ("nonsense", "job = $(touch /tmp/x)", "shell = sh", "job = `id`", "job="):
        ready.conf.write_text(f"{good}{line}\n")
        ended = ready.lane()
        assert (ended.status, ready.conf.name in ended.err) == (3, True), line


def _give_away(path: Path) -> None:
    os.chown(path, UID, UID)


def _open_up(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o020)


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".old"))
    path.symlink_to(path.with_suffix(".old"))


@pytest.mark.parametrize("spoil", [_give_away, _open_up, _link])
@pytest.mark.parametrize("place", ["etc/fla-bot/nobody.conf", "etc/fla-bot", "etc"])
def test_configuration_that_others_could_change_is_refused(
    ready: Host, spoil: object, place: str
) -> None:
    assert callable(spoil)
    spoil(ready.prefix / place)
    ended = ready.lane()
    assert ended.status == 3
    assert "others than root" in ended.err


def test_what_is_handed_over_must_be_plain_files_of_a_size(ready: Host) -> None:
    plan = ready.spool / "in/plan.json"
    plan.unlink()
    assert ready.lane().status == 3
    secret = ready.prefix / "secret"
    secret.write_text("x")
    plan.symlink_to(secret)
    assert ready.lane().status == 3
    plan.unlink()
    os.mkfifo(plan)
    assert ready.lane().status == 3
    plan.unlink()
    plan.write_bytes(b"#" * ((8 << 20) + 1))
    assert "larger than" in ready.lane().err
    ready.hand_over()
    (ready.spool / "in/objects.bundle").write_bytes(b"no bundle")
    assert "commits cannot be read" in ready.lane().err


def test_only_plain_evidence_of_a_size_comes_back(ready: Host) -> None:
    ready.hand_over("""
ln -s /etc/shadow "$out/link.json"
mkfifo "$out/fifo.json"
mkdir "$out/folder.json"
echo x > "$out/.hidden.json"; echo x > "$out/a b.json"; echo x > "$out/notes.txt"
head -c 17000000 /dev/zero > "$out/big.json"
echo '{}' > "$out/interpret:cpu.kda.json"
""")
    assert ready.lane().status == 0
    names = {path.name for path in ready.evidence.iterdir()}
    assert names == {"seen.json", "dev.json", "interpret:cpu.kda.json"}


def test_what_the_lane_prints_is_no_command_to_the_runner(ready: Host) -> None:
    ready.hand_over("printf '::add-mask::x\\n\\033[31m##[error]\\n'")
    ended = ready.lane()
    assert "::" not in ended.out
    assert "\033" not in ended.out


def test_evidence_of_an_earlier_lane_is_gone(ready: Host) -> None:
    ready.hand_over("echo x > $out/old.json")
    assert ready.lane().status == 0
    ready.hand_over("exit 3")
    ended = ready.lane()
    assert ended.status == 3
    assert list(ready.evidence.iterdir()) == []


def test_lane_that_fails_or_leaves_nothing_is_infrastructure(ready: Host) -> None:
    ready.hand_over("exit 70")
    assert ready.lane().status == 70
    ready.hand_over('rm -f "$out"/*')
    assert "no evidence" in ready.lane().err


def test_nothing_that_a_lane_starts_outlives_it(ready: Host) -> None:
    ready.hand_over(f"setsid setpriv --reuid={WORKER} sleep 600 < /dev/null > /dev/null 2>&1 &")
    assert ready.lane().status == 0
    assert _processes(WORKER) == []


@pytest.fixture
def stray() -> Iterator[subprocess.Popen[bytes]]:
    """A worker's process outside of every lane."""
    with subprocess.Popen(["setpriv", f"--reuid={WORKER}", "sleep", "600"]) as process:
        while Path(f"/proc/{process.pid}").stat().st_uid != WORKER:
            time.sleep(0.01)
        yield process
        process.kill()


def test_worker_outside_of_a_lane_is_ended(ready: Host, stray: subprocess.Popen[bytes]) -> None:
    assert ready.lane().status == 0
    assert stray.wait(5) == -signal.SIGKILL


def test_stop_ends_the_lane(ready: Host) -> None:
    ready.hand_over(f'touch "$out/here"; setpriv --reuid={WORKER} sleep 600')
    process = ready.start_lane()
    while not (ready.prefix / "run/fla-bot/nobody/out/here").exists():
        time.sleep(0.02)
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "stopped" in err
    assert _processes(WORKER) == []
    assert not ready.marker.exists()


def test_lane_that_takes_too_long_is_ended(ready: Host) -> None:
    ready.set(limit_s="1")
    ready.hand_over("sleep 600")
    ended = ready.lane()
    assert ended.status == 3
    assert "within 1 s" in ended.err


def _memory(host: Host, *values: int) -> None:
    """A stand-in that says these figures one after the other, the last one for ever."""
    figures = host.prefix / "figures"
    figures.write_text("".join(f"{value}\n" for value in values))
    probe = host.libexec / "device-memory"
    probe.write_text(
        f"#!/bin/bash\nhead -n1 {figures}\n(( $(wc -l < {figures}) < 2 )) || sed -i 1d {figures}\n"
    )
    host.set(memory="nvidia 0", baseline_mib="500")


def test_memory_that_comes_back_late_is_waited_for(ready: Host) -> None:
    _memory(ready, 400, 9000, 450)
    assert ready.lane().status == 0
    assert not ready.marker.exists()


def test_memory_that_stays_drains_the_host(ready: Host) -> None:
    _memory(ready, 400, 9000)
    ended = ready.lane()
    assert ended.status == 3
    assert "9000" in ready.marker.read_text()
    assert ready.evidence.exists()
    assert list(ready.evidence.iterdir()) == []
    _memory(ready, 400)
    assert "drained" in ready.lane().err
    assert "drained" in ready.hook().err
    ready.marker.unlink()
    assert ready.lane().status == 0


def test_memory_that_cannot_be_read_drains_the_host(ready: Host) -> None:
    ready.set(memory="nvidia 0", baseline_mib="500")
    (ready.libexec / "device-memory").write_text("#!/bin/bash\nexit 1\n")
    assert ready.lane().status == 3
    assert ready.marker.exists()


@pytest.mark.parametrize(
    ("lock", "how", "exclusive", "busy"),
    [
        ("device-null.lock", "--exclusive", "no", True),
        ("host.lock", "--shared", "no", False),
        ("host.lock", "--exclusive", "no", True),
        ("host.lock", "--shared", "yes", True),
    ],
)
def test_one_lane_a_device_and_none_beside_a_benchmark(
    ready: Host, lock: str, how: str, exclusive: str, busy: bool
) -> None:
    ready.set(devices="/dev/null", exclusive=exclusive)
    folder = ready.prefix / "run/fla-bot"
    folder.mkdir(parents=True)
    argv = ["flock", how, folder / lock, "sleep", "600"]
    with subprocess.Popen(argv, start_new_session=True) as other:
        while subprocess.run(["flock", "--nonblock", folder / lock, "true"]).returncode == 0:
            time.sleep(0.01)
        ended = ready.lane()
        os.killpg(other.pid, signal.SIGKILL)
    assert ended.status == (3 if busy else 0)
    assert ("busy" in ended.err) is busy


USAGES = """\
        NPU ID                         : 3
        Chip Count                     : 2

        HBM Capacity(MB)               : 65536
        HBM Usage Rate(%)              : 4
        Chip ID                        : 0

        HBM Capacity(MB)               : 65536
        HBM Usage Rate(%)              : 81
        Chip ID                        : 1
"""


@pytest.mark.parametrize(
    ("tool", "says", "argv", "shown"),
    [
        ("npu-smi", USAGES, ("ascend", "3", "0"), "2621"),
        ("npu-smi", USAGES, ("ascend", "3", "1"), "53084"),
        ("npu-smi", USAGES, ("ascend", "3", "2"), None),
        ("npu-smi", "dcmi module initialize failed", ("ascend", "3", "0"), None),
        ("nvidia-smi", "523\n", ("nvidia", "0"), "523"),
        ("nvidia-smi", "[N/A]\n", ("nvidia", "0"), None),
        ("nvidia-smi", "523\n", ("cat", "/etc/passwd"), None),
    ],
)
def test_device_memory(
    host: Host, tool: str, says: str, argv: tuple[str, ...], shown: str | None
) -> None:
    stub = host.prefix / tool
    stub.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    stub.chmod(0o755)
    # The script looks in the system's folders only, so the stand-in is put there, for us alone.
    inside = f'mount -t tmpfs x /usr/local/bin && cp {stub} /usr/local/bin && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inside, "sh", RUNNER / "device-memory", *argv],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout.strip() or None, done.returncode == 0) == (shown, shown is not None)
