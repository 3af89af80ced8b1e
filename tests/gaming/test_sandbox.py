"""What code in a sandbox can do to us: nothing, or nothing that the evidence keeps silent about."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import bot.check
from bot.change import Repository
from bot.check import Request, analyse
from bot.errors import InfraError
from bot.evidence import Environment
from bot.lanes import protection, sandbox, scratch, session
from bot.lanes.cgroup import Cgroup
from bot.lanes.processes import below, start_time
from bot.lanes.protection import NEEDS, Protection, advice, sentence
from bot.lanes.sandbox import Mode, View
from bot.lanes.session import Session
from bot.model import CheckState, Report, Verdict
from bot.policy import Lane
from bot.wire import receive, send
from tests.conftest import Workbench
from tests.gaming.conftest import Run

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
LANE = Lane(machine="cpu", device="cpu", required=True, timeout_s=3600)
DISK = 64 << 20
real_python = session._python


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; a minute is longer than any machine needs."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def run_code(module: str, *argv: str) -> list[str]:
    """A worker whose module is a text of Python; everything else as it is."""
    if "\n" not in module:
        return real_python(module, *argv)
    return [sys.executable, "-I", "-B", "-c", module, *argv]


class Laboratory:
    """A session with a device process, in whose sandbox tests run code."""

    def __init__(self, found: Session, places: dict[str, str]) -> None:
        self.session, self.places = found, places

    @property
    def device(self) -> subprocess.Popen[bytes]:
        return self.session.devices[0]

    def start(self, code: str, arm: str = "head") -> socket.socket:
        """Run code with the places as `t`, its channel as `fd` and its tree as `tree`."""
        head = (
            "import json, os, shutil, signal, socket, subprocess, sys, time\n"
            "from pathlib import Path\n"
            "fd, tree, t = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])\n"
            "print('ran', flush=True)\n"
        )
        ours, theirs = socket.socketpair()
        try:
            text = head + textwrap.dedent(code)
            self.session.start_worker(arm, theirs, text, json.dumps(self.places))
        except InfraError:
            ours.close()
            raise
        return ours

    def run(self, code: str, arm: str = "head") -> str:
        """Run code to its end and return what it printed."""
        with self.start(code, arm):
            status = self.session.workers[arm].process.wait(timeout=60)
            text = self.session.logs[arm].text()
        assert text.startswith("ran\n"), (status, text)
        return text.removeprefix("ran\n")


@contextlib.contextmanager
def laboratory(path: Path, modes: list[Mode] | None = None) -> Iterator[Laboratory]:
    """A repository with a secret, evidence with a secret, two arms that differ."""
    (path / "repository").mkdir()
    bench = Workbench(path / "repository")
    base = bench.commit({"fla/__init__.py": "ARM = 'base'\n", "secret.py": "judge\n"})
    head = bench.commit({"fla/__init__.py": "ARM = 'head'\n"})
    evidence = path / "evidence"
    evidence.mkdir(mode=0o700)
    (evidence / "old.json").write_text("{}")
    home = path / "home"
    home.mkdir(mode=0o700)
    (home / ".netrc").write_text("password")
    with (
        pytest.MonkeyPatch.context() as lasting,
        Repository(bench.path) as repository,
        Session(repository, LANE, evidence=evidence) as found,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        lasting.setattr(session, "_python", run_code)
        found.export("trusted", base, ["fla"])
        found.export("base", base, ["fla"], confined=True)
        found.export("head", head, ["fla"], confined=True)
        found.start_device("http.server", "0")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(home))
            patch.setattr(session, "DISK_BYTES", DISK)
            if modes:
                patch.setattr(session, "modes", lambda: modes)
            found.confine()
        places = {
            "repository": str(bench.path),
            "evidence": str(evidence),
            "home": str(home),
            "reference": str(found.trees["trusted"]),
            "other": str(found.trees["base"]),
            "host": str(os.getpid()),
            "device": str(found.devices[0].pid),
            "port": str(server.getsockname()[1]),
            "disk": str(DISK),
        }
        yield Laboratory(found, places)


@pytest.fixture(scope="module")
def strongest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    """The best sandbox of this machine, which has to be one with namespaces."""
    with laboratory(tmp_path_factory.mktemp("strongest")) as found:
        if found.session.protection.level != "namespace":
            pytest.skip(f"no namespaces for uid {os.geteuid()}: {found.session.notes}")
        yield found


@pytest.fixture(scope="module")
def other_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    """A sandbox of a root user whose machine has no namespaces for him."""
    with laboratory(tmp_path_factory.mktemp("other"), ["other-user", "same-user"]) as found:
        yield found


@pytest.fixture
def weakest(tmp_path: Path) -> Iterator[Laboratory]:
    """What is left to an ordinary user whose machine has no namespaces for her."""
    with laboratory(tmp_path, ["same-user"]) as found:
        yield found


# Each prints BREACH if it gets what it wants.
ATTACKS = {
    "reads-the-trusted-tree": "open(t['reference'] + '/fla/__init__.py'); print('BREACH')",
    "reads-the-other-arm": "open(t['other'] + '/fla/__init__.py'); print('BREACH')",
    "looks-for-the-other-arm": """
        for above in (Path(tree).parent, Path(tree).parent.parent, Path('/tmp'), Path('/var/tmp')):
            for found in above.rglob('fla/__init__.py'):
                if not found.is_relative_to(tree) and 'ARM' in found.read_text():
                    print('BREACH')
        """,
    "reads-evidence": "os.listdir(t['evidence']); print('BREACH')",
    "writes-evidence": "open(t['evidence'] + '/forged.json', 'w'); print('BREACH')",
    "replaces-evidence": "open(t['evidence'] + '/old.json', 'w'); print('BREACH')",
    "changes-the-checkout": "open(t['repository'] + '/secret.py', 'a'); print('BREACH')",
    "changes-the-bot": """
        import bot.tree
        open(bot.tree.__file__, 'a'); print('BREACH')
        """,
    "changes-python": "open(sys.prefix + '/pyvenv.cfg', 'a'); print('BREACH')",
    "changes-site-packages": """
        import sysconfig
        Path(sysconfig.get_path('purelib'), 'evil.pth').touch(); print('BREACH')
        """,
    "reads-home": "open(t['home'] + '/.netrc'); print('BREACH')",
    "forges-output-of-others": """
        for entry in Path('/proc').glob('[0-9]*/fd/*'):
            if entry.parts[2] != str(os.getpid()):
                try: os.open(entry, os.O_WRONLY | os.O_NONBLOCK); print('BREACH', entry)
                except OSError: pass
        """,
    "reads-memory-of-others": """
        for entry in Path('/proc').glob('[0-9]*/mem'):
            if entry.parts[2] != str(os.getpid()):
                try: entry.open('rb'); print('BREACH', entry)
                except OSError: pass
        """,
    "reads-environment-of-others": """
        for entry in Path('/proc').glob('[0-9]*/environ'):
            if entry.parts[2] != str(os.getpid()):
                try: entry.read_bytes(); print('BREACH', entry)
                except OSError: pass
        """,
    "traces-others": """
        import ctypes
        for entry in Path('/proc').glob('[0-9]*'):
            if entry.name != str(os.getpid()):
                if ctypes.CDLL(None).ptrace(0x4206, int(entry.name), None, None) == 0:
                    print('BREACH', entry)
        """,
    "takes-their-files": """
        import ctypes
        for pid in (1, int(t['device']), int(t['host'])):
            try: pidfd = os.pidfd_open(pid)
            except OSError: continue
            if ctypes.CDLL(None).syscall(438, pidfd, 1, 0) >= 0: print('BREACH', pid)
        """,
    "enters-their-namespaces": """
        import ctypes
        for pid in (1, int(t['device']), int(t['host'])):
            for kind in ('mnt', 'pid', 'net'):
                try: fd2 = os.open(f'/proc/{pid}/ns/{kind}', os.O_RDONLY)
                except OSError: continue
                if ctypes.CDLL(None).setns(fd2, 0) == 0: print('BREACH', pid, kind)
        """,
    "becomes-root": "os.setuid(0); open('/etc/shadow'); print('BREACH')",
    "joins-groups": "os.setgroups([0, 4, 6]); print('BREACH')",
    "uses-a-setuid-program": """
        done = subprocess.run(['su', '-c', 'echo BREACH'], capture_output=True, text=True, input='')
        print(done.stdout)
        """,
    "raises-limits": """
        import resource
        for kind in (resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
            try: resource.setrlimit(kind, (resource.RLIM_INFINITY,) * 2); print('BREACH', kind)
            except (OSError, ValueError): pass
        """,
    "is-spared-when-memory-runs-out": """
        Path('/proc/self/oom_score_adj').write_text('-1000'); print('BREACH')
        """,
    "tunes-the-kernel": """
        for name in ('kernel/core_pattern', 'vm/drop_caches', 'kernel/modprobe'):
            try: os.open('/proc/sys/' + name, os.O_WRONLY); print('BREACH', name)
            except OSError: pass
        """,
    "leaves-its-control-group": """
        for entry in Path('/sys/fs/cgroup').rglob('cgroup.procs'):
            try: entry.write_text(str(os.getpid())); print('BREACH', entry)
            except OSError: pass
        """,
    "makes-a-device": "os.mknod('/tmp/disk', 0o60600, os.makedev(8, 0)); print('BREACH')",
    "opens-disks": """
        for name in ('/dev/mem', '/dev/kmsg', '/dev/vda', '/dev/sda', '/dev/nvme0n1', '/dev/kvm'):
            try: os.open(name, os.O_RDWR); print('BREACH', name)
            except OSError: pass
        """,
    "makes-namespaces-of-its-own": """
        script = '''
            for place in $(cut -d" " -f5 /proc/self/mountinfo | sort -r); do umount -l $place; done
            mount -o remount,rw,bind / ; mount -o remount,rw,bind /tree ; : > /tree/written
            cat "$1/fla/__init__.py" "$2/fla/__init__.py"
            '''
        command = ['unshare', '--user', '--map-root-user', '--mount', 'sh', '-c', script, 'sh']
        command += [t['reference'], t['other']]
        done = subprocess.run(command, capture_output=True, text=True)
        print('BREACH' if 'ARM' in done.stdout or Path(tree, 'written').exists() else '')
        """,
    "deletes-its-tree": """
        shutil.rmtree(tree, ignore_errors=True)
        print('' if Path(tree, 'fla/__init__.py').exists() else 'BREACH')
        """,
    "plants-a-link-in-its-tree": "os.symlink('/etc/passwd', tree + '/fla/link'); print('BREACH')",
    "writes-elsewhere": """
        for place in ('/', '/usr', '/etc', '/opt', '/var', '/run', '/home', '/srv', '/sys'):
            try: Path(place, 'x').touch(); print('BREACH', place)
            except OSError: pass
        """,
    "sees-processes": """
        for entry in Path('/proc').glob('[0-9]*'):
            if entry.name not in ('1', str(os.getpid())): print('BREACH', entry)
        """,
    "signals-the-device": "os.kill(int(t['device']), signal.SIGTERM); print('BREACH')",
    "signals-the-host": "os.kill(int(t['host']), signal.SIGURG); print('BREACH')",
    "connects-to-this-machine": """
        socket.create_connection(('127.0.0.1', int(t['port'])), timeout=5); print('BREACH')
        """,
    "sends-a-datagram": """
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 9))
        print('BREACH')
        """,
}
# What the level `user` does not promise.
SHARED = {"sees-processes", "connects-to-this-machine", "sends-a-datagram"}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_in_namespaces_has_no_effect(name: str, strongest: Laboratory) -> None:
    assert "BREACH" not in strongest.run(ATTACKS[name])
    assert strongest.device.poll() is None


@ROOT_ONLY
@pytest.mark.parametrize("name", sorted(ATTACKS.keys() - SHARED))
def test_attack_of_another_user_has_no_effect(name: str, other_user: Laboratory) -> None:
    assert other_user.session.protection.level == "user"
    assert "BREACH" not in other_user.run(ATTACKS[name])
    assert other_user.device.poll() is None


def test_attacks_are_no_blanks(weakest: Laboratory) -> None:
    """Where nothing stops them, those that need no root do get what they want."""
    assert weakest.session.protection.level == "process"
    for name in ("reads-the-trusted-tree", "reads-the-other-arm", "writes-evidence"):
        assert "BREACH" in weakest.run(ATTACKS[name])


BOTH = pytest.mark.parametrize("kind", ["strongest", pytest.param("other_user", marks=ROOT_ONLY)])
DAEMON = """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 256)
            os.chdir('/')
            time.sleep(1e6)
        os._exit(0)
    os.wait()
    os.write(fd, b'up')
    os.read(fd, 1)
    """


@pytest.fixture
def lab(kind: str, request: pytest.FixtureRequest) -> Laboratory:
    """The laboratory of a kind."""
    found = request.getfixturevalue(kind)
    assert isinstance(found, Laboratory)
    return found


def inside(lab: Laboratory) -> set[tuple[int, int]]:
    """Processes of head's worker, by number and start."""
    pid = lab.session.workers["head"].process.pid
    found = below(pid) | {pid} | lab.session.boxes["head"].left()
    return {(pid, start_time(pid)) for pid in found}


def living(processes: set[tuple[int, int]]) -> list[str]:
    """Those that live on, as the kernel describes them."""
    found = [Path(f"/proc/{pid}/status") for pid, start in processes if start_time(pid) == start]
    return [path.read_text() for path in found]


@BOTH
def test_daemon_ends_with_its_worker(lab: Laboratory) -> None:
    with lab.start(DAEMON) as channel:
        assert channel.recv(2) == b"up"
        found = inside(lab)
        channel.send(b"x")
        lab.session.workers["head"].process.wait(timeout=60)
        lab.session.stop("head")
    assert len(found) >= 2
    assert living(found) == []


@BOTH
def test_fork_bomb_is_bounded_and_ends(lab: Laboratory) -> None:
    bomb = """
        while True:
            try: os.fork()
            except OSError: time.sleep(0.01)
        """
    with lab.start(bomb):
        wait_for(lambda: len(inside(lab)) > sandbox.PROCESSES // 2)
        found = inside(lab)
        lab.session.stop("head")
    assert len(found) <= sandbox.PROCESSES + 8  # those outside that hold the namespace
    assert living(found) == []
    assert lab.run("print('fine')") == "fine\n"


def test_nothing_is_kept_for_the_next_process(strongest: Laboratory) -> None:
    """Fixture 9 of the note: results saved in memory or on disk, to be replayed."""
    places = "os.environ['HOME'], os.environ['TMPDIR'], '/dev/shm'"
    strongest.run(f"for place in ({places}): Path(place, 'saved').touch()")
    strongest.run(f"for place in ({places}): Path(place, 'saved').touch()", "base")
    seen = strongest.run(f"print([p for p in ({places}) if Path(p, 'saved').exists()])")
    assert seen == "[]\n"


def test_disk_fills_up_to_its_cap(strongest: Laboratory) -> None:
    fill = """
        total = 0
        for place in (os.environ['HOME'], os.environ['TMPDIR'], '/dev/shm'):
            for number in range(100):
                try:
                    with open(f'{place}/{number}', 'wb') as file:
                        while True: total += file.write(bytes(1 << 20))
                except OSError:
                    continue
        print(total)
        """
    assert DISK < int(strongest.run(fill)) <= 3 * DISK


@BOTH
def test_memory_is_capped(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    box = lab.session.boxes["head"]
    if not box.cgroup.limited:
        pytest.skip("no control group with a memory limit can be made here")
    name = (
        "memory.max"
        if (box.cgroup.folders[-1] / "memory.max").exists()
        else ("memory.limit_in_bytes")
    )
    file = box.cgroup.folders[-1] / name
    before = file.read_text()
    file.write_text(str(256 << 20))
    try:
        assert "got it" not in lab.run("b'x' * (1 << 30)\nprint('got it')")
        assert lab.device.poll() is None
        assert lab.run("print('fine')") == "fine\n"
    finally:
        file.write_text(before)


@BOTH
def test_gigabyte_of_output_is_cut(lab: Laboratory) -> None:
    text = lab.run("for _ in range(1000): os.write(1, b'x' * (1 << 20))\nprint('end')")
    assert len(text) < 100_000
    assert "bytes left out" in text
    assert text.endswith("end\n")


def test_arms_look_alike(strongest: Laboratory) -> None:
    look = """
        print(sys.argv[:-1], os.getcwd(), socket.gethostname(), os.getpid(), dict(os.environ))
        print([entry for entry in os.listdir('/proc/self/fd')], os.getppid())
        print(Path('/proc/self/comm').read_text(), os.listdir(tree), os.listdir('/'))
        print(Path('/proc/self/mountinfo').read_text(), Path('/proc/1/cmdline').read_text())
        """
    seen = {arm: strongest.run(look, arm) for arm in ("base", "head")}
    for text in seen.values():
        assert re.findall(".{,40}(?:base|head)[^a-z].{,40}", text) == []
    lines = [text.splitlines()[:2] for text in seen.values()]
    assert lines[0] == lines[1]


def test_worker_writes_nowhere_that_lasts(strongest: Laboratory) -> None:
    plant = """
        for place in (os.environ['HOME'], os.environ['TMPDIR'], '/dev/shm'):
            os.symlink('/etc/passwd', place + '/link')
            os.symlink(t['evidence'], place + '/folder')
        """
    strongest.run(plant)
    place = strongest.session.places["head"]
    assert sorted(entry.name for entry in place.iterdir()) == ["home", "root", "tmp", "tree"]
    assert not any(
        (place / name).iterdir()
        for name in ("home", "root", "tmp")
        if any((place / name).iterdir())
    )


@ROOT_ONLY
def test_planted_links_and_deep_folders_are_removed_as_such(tmp_path: Path) -> None:
    plant = """
        os.chdir(os.environ['HOME'])
        os.symlink(t['evidence'], 'folder')
        os.mkdir('closed'); os.mkdir('closed/in'); os.chmod('closed', 0)
        for _ in range(3000):
            os.mkdir('d' * 100); os.chdir('d' * 100)
        """
    with laboratory(tmp_path, ["other-user"]) as found:
        found.run(plant)
        folder = found.session.folder
        home = found.session.boxes["head"].home
        assert (home / "folder").is_symlink()
    assert not folder.exists()
    assert (tmp_path / "evidence/old.json").exists()


def test_log_is_not_written_through_a_link(weakest: Laboratory, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "job.head.log").symlink_to(victim)
    weakest.run("print('mine')")
    weakest.session.keep_logs(logs, "job")
    assert victim.read_text() == "kept"
    assert "mine" in (logs / "job.head.log").read_text()


@BOTH
def test_device_process_gets_fresh_workers(lab: Laboratory) -> None:
    host, control = socket.socketpair()
    answer = "os.write(fd, str(os.getpid()).encode())\nos.read(fd, 1)"

    def fresh(arm: str) -> socket.socket:
        return lab.start(answer, arm)

    with control:
        lab.session.serve(host, fresh, limit=2)
        for arm in ("head", "base"):
            send(control, {"restart": arm})
            reply, (fd,) = receive(control)
            assert reply == {"arm": arm}
            with socket.socket(fileno=fd) as channel:
                assert channel.recv(9).isdigit()
        send(control, {"restart": "judge"})
        assert receive(control) == ({"refused": "no such arm"}, [])
        send(control, {"restart": "head"})
        assert "too many" in receive(control)[0]["refused"]


def test_nothing_starts_after_the_end(weakest: Laboratory) -> None:
    weakest.session.kill()
    with pytest.raises(InfraError, match="has ended"):
        weakest.start("print('still here')")


def test_level_follows_from_what_held() -> None:
    assert Protection(frozenset()).level == "process"
    assert Protection(NEEDS["user"]).level == "user"
    assert Protection(NEEDS["namespace"]).level == "namespace"
    for name in NEEDS["user"]:
        assert Protection(NEEDS["user"] - {name}).level == "process"
    for name in NEEDS["namespace"]:
        weaker = (NEEDS["namespace"] | NEEDS["user"]) - {name}
        assert Protection(weaker).level in ("user", "process")


def test_what_a_process_says_of_itself_does_not_count() -> None:
    said = Environment(
        python="3", torch="2", triton="3", device="cpu", interpreter=True, protection="namespace",
        protections=["everything"],
    )  # fmt: skip
    found = Protection(frozenset({"rlimits"})).into(said)
    assert (found.protection, found.protections) == ("process", ["rlimits"])
    assert sentence(found) == (
        "sandbox: process (1 of 21 protections held; without checkout-unreadable, "
        "checkout-unwritable, disk-capped, evidence-unreadable and 16 more)"
    )
    most = Protection(NEEDS["user"] | NEEDS["namespace"]).into(said)
    assert sentence(most) == "sandbox: namespace (20 of 21 protections held; without memory-capped)"
    assert advice(found) != advice(said) == ""


@ROOT_ONLY
def test_machine_without_namespaces_gives_the_next_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "unshare").write_text("#!/bin/sh\necho no namespaces for you >&2\nexit 1\n")
    (tools / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    with laboratory(tmp_path) as found:
        assert found.session.protection.level == "user"
        assert "no namespaces for you" in found.session.notes[0]


def test_folder_of_a_killed_run_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours, other = scratch.Scratch(), tmp_path / "fla-bot-job-killed"
    other.mkdir()
    (other / ".lock").touch()
    (other / "tree").mkdir()
    (tmp_path / "fla-bot-job-link").symlink_to(tmp_path / "else")
    (tmp_path / "else").mkdir()
    (tmp_path / "fla-bot-job-starting").mkdir()
    scratch.sweep()
    assert ours.path.exists()
    assert not other.exists()
    assert (tmp_path / "else").exists()
    assert (tmp_path / "fla-bot-job-starting").exists()
    ours.close()
    assert not ours.path.exists()


HOST = """
import os, socket, sys, tempfile
from pathlib import Path
from bot.change import Repository
from bot.lanes import session
from bot.lanes.cgroup import Cgroup
from bot.lanes.processes import below, start_time
from tests.gaming import test_sandbox
repository, scratch, mode, code = sys.argv[1:]
tempfile.tempdir = scratch
session._python = test_sandbox.run_code
session.modes = lambda: [mode]
with Repository(Path(repository)) as found, session.Session(
    found, test_sandbox.LANE, evidence=Path(scratch, 'evidence')
) as lab:
    lab.export('head', 'HEAD', ['fla'], confined=True)
    lab.confine()
    ours, theirs = socket.socketpair()
    lab.start_worker('head', theirs, 'import os, sys, time\\nfd = int(sys.argv[1])\\n' + code)
    ours.recv(2)
    print(*(f'{pid}:{start_time(pid)}' for pid in below(os.getpid())), flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("mode", ["namespaces", "user-namespaces", "other-user"])
def test_killed_host_leaves_no_process(mode: str, tmp_path: Path, workbench: Workbench) -> None:
    """Without namespaces a daemon lives until the next run: that one ends it."""
    if (os.geteuid() == 0) == (mode == "user-namespaces"):
        pytest.skip(f"{mode}: not for uid {os.geteuid()}")
    workbench.commit({"fla/__init__.py": ""})
    # With several pytest processes there is a folder more for each.
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)  # another user has to get to its home
    arguments = [str(workbench.path), str(tmp_path), mode, textwrap.dedent(DAEMON)]
    root = str(Path(__file__).parent.parent.parent)
    host = subprocess.run(
        [sys.executable, "-c", HOST, *arguments],
        capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    if not host.stdout and mode == "user-namespaces":
        pytest.skip(host.stderr.splitlines()[-1])
    assert host.returncode == -9, host.stderr
    pairs = (word.split(":") for word in host.stdout.split())
    started = {(int(pid), int(start)) for pid, start in pairs}
    assert len(started) >= 3
    if mode == "other-user":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(tmp_path))
            scratch.sweep()
            Cgroup.sweep()
    wait_for(lambda: not [text for text in living(started) if "zombie" not in text])


def test_what_is_visible_can_lie_inside_what_is_hidden(tmp_path: Path) -> None:
    """A virtual environment in a checkout in a toolkit's folder: each level undoes the last."""
    opened = tmp_path / "opt"
    hidden = opened / "checkout"
    inside = hidden / "venv"
    inside.mkdir(parents=True)
    visible = (opened, hidden, inside)  # an editable install puts a checkout on python's path
    layers = sandbox._layers(View(visible, (hidden, tmp_path), accelerator=False))
    assert layers[opened] == "bind"
    assert layers[hidden] == "cover"
    assert layers[inside] == "bind"
    assert tmp_path not in layers


def test_packages_that_are_links_are_shown_where_they_lie(tmp_path: Path) -> None:
    """Of files that are linked one by one only those count that a store has at the same path."""
    packages, store = tmp_path / "site-packages", tmp_path / "store"
    for name in ("own", "linked", "renamed"):
        info = f"{name}-1.dist-info"
        (packages / info).mkdir(parents=True)
        (store / name / info).mkdir(parents=True)
        (store / name / info / "METADATA").touch()
    (packages / "own-1.dist-info/METADATA").touch()
    (packages / "linked-1.dist-info/METADATA").symlink_to(
        store / "linked/linked-1.dist-info/METADATA"
    )
    (packages / "renamed-1.dist-info/METADATA").symlink_to(
        store / "linked/linked-1.dist-info/METADATA"
    )
    (packages / "whole").symlink_to("../store/whole")
    assert set(sandbox._stores(packages)) == {store / "linked", store / "whole"}
    assert list(sandbox._stores(tmp_path / "absent")) == []


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A compiler outside of the system's folders: its program, which needs a file beside it."""
    with tempfile.TemporaryDirectory(prefix="gcc-", dir="/var/tmp") as folder:
        place = Path(folder)
        place.chmod(0o755)
        for part in ("bin", "lib", "links"):
            (place / part).mkdir()
        (place / "lib/crt.o").write_text("linked")
        program = place / "bin/gcc"
        program.write_text(f"#!/bin/sh\ncat {place}/lib/crt.o\n")
        program.chmod(0o755)
        (place / "links/clang").symlink_to("../bin/gcc")
        monkeypatch.setenv("PATH", f"{place / 'bin'}:{os.environ['PATH']}")
        yield program


def test_compilers_are_shown_where_they_are_installed(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = compiler.parent.parent
    assert sandbox.compiler_paths([tmp_path]) == ((prefix,), [])
    monkeypatch.setenv("CC", str(prefix / "links/clang"))
    found, _ = sandbox.compiler_paths([tmp_path])
    assert set(found) == {prefix, prefix / "links"}  # a folder that is no `bin` is shown alone
    for hidden in (prefix, prefix / "lib", prefix.parent):
        found, notes = sandbox.compiler_paths([hidden])
        assert prefix not in found
        assert any(str(compiler) in note for note in notes)
    monkeypatch.setenv("CC", "'")
    assert sandbox.compiler_paths([tmp_path])[0] == (prefix,)


@pytest.mark.usefixtures("strongest")
def test_worker_runs_the_compiler_and_cannot_change_it(compiler: Path, tmp_path: Path) -> None:
    with laboratory(tmp_path) as lab:
        assert lab.session.protection.level == "namespace", lab.session.notes
        said = lab.run(
            f"""
            print(subprocess.run(["gcc"], capture_output=True, text=True).stdout)
            try:
                Path({str(compiler)!r}).write_text("mine")
            except OSError as error:
                print("refused")
            """
        )
        assert said.split() == ["linked", "refused"]


def test_accelerator_without_a_compiler_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protection, "_needs_compiler", lambda _: True)
    monkeypatch.setenv("CC", "/nowhere/gcc")
    said = pytest.raises(InfraError, match="kernels need a C compiler, and none runs inside")
    with said, laboratory(tmp_path):
        pass


def environment_of(kernels: Workbench) -> Environment:
    """What the only evidence says of the machine."""
    (file,) = kernels.path.glob(".fla-bot/evidence/*/*.json")
    return Environment.model_validate(json.loads(file.read_text())["environment"])


def log_of(kernels: Workbench, arm: str) -> str:
    """What the worker of an arm printed last."""
    (file,) = kernels.path.glob(f".fla-bot/evidence/*/logs/*.{arm}.log")
    return file.read_text()


def reasons(report: Report) -> set[str]:
    """The codes of what failed."""
    failed = [row for row in report.rows if row.verdict is Verdict.FAIL]
    return {row.reason.split(":")[0] for row in failed}


BUSY = """
import ctypes, glob, os, resource, shutil, signal, socket, subprocess, threading

_gained = []

def _try(name, attempt):
    try:
        attempt()
        _gained.append(name)
    except BaseException as error:
        print(name, 'refused:', error, flush=True)

def _forge():
    line = b'{"end": {}}\\n'
    for path in glob.glob('/proc/[0-9]*/fd/*'):
        if path.split('/')[2] not in (str(os.getpid()), 'self'):
            os.write(os.open(path, os.O_WRONLY), line)
            return
    raise OSError('nothing to forge')

def _find(*patterns):
    found = [path for pattern in patterns for path in glob.glob(pattern, recursive=True)]
    own = os.path.realpath(os.getcwd())
    found = [path for path in found if not os.path.realpath(path).startswith(own)]
    if not found:
        raise OSError('nothing found')
    return found

def _delegate():
    places = [f'{top}/fla/modules/l2norm.py' for top in ('../base', '../*', '/tmp/**', '/home/**')]
    return _find(*places)

def _evidence():
    return _find('/tmp/**/evidence/**', '/root/*', '/home/*')

def _trace():
    for path in glob.glob('/proc/[0-9]*'):
        pid = int(path.split('/')[2])
        if pid != os.getpid() and ctypes.CDLL(None).ptrace(0x4206, pid, None, None) == 0:
            return
    raise OSError('nobody to trace')

def _daemon():
    # Waits for the run to end, then makes its evidence green.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                for path in glob.glob('/tmp/**/interpret-cpu-l2norm.json', recursive=True):
                    open(path, 'w').write('{}')
                threading.Event().wait(1)
        os._exit(0)

_try('device output', _forge)
_try('other arm', _delegate)
_try('evidence', _evidence)
_try('network', lambda: socket.create_connection(('1.1.1.1', 53), timeout=3))
_try('trace', _trace)
_try('limits', lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1 << 20, 1 << 20)))
_try('tree', lambda: os.unlink('fla/modules/l2norm.py'))
_daemon()
"""


def test_honest_results_count_whatever_else_is_tried(
    strongest: Laboratory, run: Run, kernels: Workbench
) -> None:
    report = run(BUSY + "if _gained: raise RuntimeError(_gained)")
    assert environment_of(kernels).protection == "namespace"
    assert report.state is CheckState.SUCCESS, log_of(kernels, "head")
    assert log_of(kernels, "head").count("refused:") == 7
    with Repository(kernels.path) as repository:
        request = Request("main", "hostile")
        again = bot.check.report(repository, analyse(repository, request), request, None)
    assert again.state is CheckState.SUCCESS


def test_wrong_results_stay_wrong_whatever_else_is_tried(
    strongest: Laboratory, run: Run, kernels: Workbench
) -> None:
    cheat = (
        "if not _gained:\n"
        "    def l2norm(x, eps=1e-6):\n"
        "        return torch.zeros_like(x) * x.sum()\n"
    )
    report = run(BUSY + cheat)
    assert environment_of(kernels).protection == "namespace"
    assert report.state is CheckState.FAILURE, log_of(kernels, "head")
    assert "budget" in reasons(report)


def test_worker_that_loses_its_channel_is_red(run: Run) -> None:
    code = (
        "import os\n"
        "_honest = l2norm\n"
        "def l2norm(x, eps=1e-6):\n"
        "    if not x.requires_grad: return _honest(x, eps)\n"
        "    os.closerange(3, 1024)\n"
        "    for _ in range(64): os.open('/dev/null', os.O_RDWR)\n"
        "    return _honest(x, eps)"
    )
    report = run(code)
    assert report.state is CheckState.FAILURE
    assert reasons(report) & {"worker-died", "timeout", "protocol"}


def test_weak_sandbox_proves_nothing_where_the_policy_asks_for_more(
    run: Run, kernels: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = (kernels.path / "contracts/policy.yaml").read_text()
    lane = "    machine: cpu\n    device: cpu\n    interpreter: true\n"
    assert lane in policy
    stricter = policy.replace(lane, f"{lane}    min_protection: user\n")
    kernels.commit({"contracts/policy.yaml": stricter})
    monkeypatch.setattr(session, "modes", lambda: ["same-user"])
    report = run("UNUSED = 1")
    judged = [row for row in report.rows if row.lane == "interpret:cpu"]
    assert {row.verdict for row in judged} == {Verdict.NOT_PROVEN}, [r.reason for r in judged]
    assert environment_of(kernels).protection == "process"


def test_crash_in_a_cell_costs_that_cell_alone(run: Run) -> None:
    """The workers of cells that end badly are replaced; the host starts eight new ones at most."""
    crash = (
        "import os\n"
        "_honest = l2norm\n"
        "def l2norm(x, eps=1e-6):\n"
        "    if x.requires_grad: os.kill(os.getpid(), 9)\n"
        "    return _honest(x, eps)"
    )
    report = run(crash)
    judged = [row for row in report.rows if row.lane == "interpret:cpu"]
    ended = {("backward" in row.cell, row.verdict) for row in judged}
    assert ended == {(True, Verdict.FAIL), (False, Verdict.PASS)}
