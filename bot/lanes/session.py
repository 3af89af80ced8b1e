"""Everything that a job starts, and its end.

For the author of a lane:

    with Session(repository, lane, evidence=folder) as session:
        session.export("trusted", plan.trusted, roots)       # for the device process alone
        for arm in ("base", "head"):
            session.export(arm, commit, roots, confined=True)
        ours, theirs = socket.socketpair()
        device = session.start_device("bot.device", pass_fds=[ours.fileno()])  # has stdin, stdout
        session.confine()                  # probes; from here on `session.protection` is known
        session.start_worker("head", theirs, "bot.worker", *argv)   # takes `theirs` over
        session.serve(control, fresh)      # optional: new workers when the device asks for them
    environment = session.protection.into(environment)
    session.keep_logs(folder, job.id)

- A worker is `python -I -B -m MODULE CHANNEL TREE ARGUMENT...`: CHANNEL is the number under which
  it finds its end of the socket, TREE the path of its tree in there. Both are equal for both arms.
  Its current folder is TREE; HOME, TMPDIR and all caches are private.
- It sees the machine's /usr and /etc, python, the compilers on PATH, the package `bot`, its tree
  and, on a lane that wants one, the accelerator. `read_only=` of Session adds paths, at the same
  place.
- `trees[name]` is a tree's path on the host, which is what the device process needs.
- `confine` has to come after `start_device` (the probe tries to get at that very process) and
  before any code of a pull request runs. Without a device process it may come first.
- Start everything through the session: whatever else this process starts meanwhile is ended.
- Workers end with the thread that started them.
- `with` ends all of it and raises InfraError if something of a worker could not be ended.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bot.change import Repository
from bot.errors import InfraError
from bot.files import write_whole
from bot.lanes.cgroup import Cgroup
from bot.lanes.log import Log
from bot.lanes.processes import below, kill_all, make_subreaper, make_undumpable
from bot.lanes.protection import Protection, Targets
from bot.lanes.sandbox import DISK_BYTES, Box, Mode, View, compiler_paths, modes, python_paths
from bot.lanes.scratch import Scratch, sweep
from bot.policy import Lane
from bot.process import run, start
from bot.wire import receive, send

__all__ = ["Session"]

MAX_RESTARTS = 8
END_TIMEOUT_S = 30.0
# Both arms' channels have this number, so that it tells nothing of who was started first.
CHANNEL_FD = 100
MIN_MEMORY, MEMORY_SHARE = 2 << 30, 0.8
# What the operator of a machine sets, beside where programs and libraries are.
KEPT = (
    *("PATH", "LD_LIBRARY_PATH", "CC", "CUDA_HOME", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"),
    *("ASCEND_HOME_PATH", "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH"),
)


# All open sessions of this process, and what they have started: one must not end what is
# another's, nor undo what another still needs.
_open = list["Session"]()
_started = set[int]()


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    box: Box


class Session:
    """The processes of a job; all of them, and their folder, are gone when it ends."""

    def __init__(
        self,
        repository: Repository,
        lane: Lane,
        *,
        evidence: Path,
        read_only: Sequence[Path] = (),
    ) -> None:
        self.repository, self.lane = repository, lane
        self.evidence, self.read_only = evidence, tuple(read_only)
        self.trees: dict[str, Path] = {}
        self.places: dict[str, Path] = {}
        self.boxes: dict[str, Box] = {}
        self.workers: dict[str, _Worker] = {}
        self.devices: list[subprocess.Popen[bytes]] = []
        self.logs: dict[str, Log] = {}
        self.notes: list[str] = []
        self.protection = Protection(frozenset())
        self.timed_out = self.ended = False
        self.stopped = ""  # the signal that ended the job
        self.lock = threading.RLock()

    def __enter__(self) -> Session:
        sweep()
        Cgroup.sweep()
        self.evidence.mkdir(parents=True, exist_ok=True)  # what is not there cannot be protected
        self.scratch = Scratch()
        self.folder = self.scratch.path
        _open.append(self)
        # What a worker leaves behind becomes our child, wherever it hides.
        make_subreaper(on=True)
        make_undumpable(on=True)
        self.before = below(os.getpid())
        self.watchdog = threading.Timer(self.lane.timeout_s, self._time_is_over)
        self.watchdog.daemon = True
        self.watchdog.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.watchdog.cancel()
        try:
            self.kill()
        finally:
            for device in self.devices:
                for stream in filter(None, (device.stdin, device.stdout)):
                    with contextlib.suppress(OSError):  # what nobody will read any more
                        stream.close()
            _close(self.boxes)
            _open.remove(self)
            if not _open:
                make_undumpable(on=False)
                make_subreaper(on=False)
            self.scratch.close()

    def _time_is_over(self) -> None:
        self.timed_out = True
        with contextlib.suppress(InfraError):  # the end of the session tries again, and says it
            self.kill()

    def export(
        self, name: str, commit: str, roots: Sequence[str], *, confined: bool = False
    ) -> Path:
        """Write a tree; `confined`: workers named like it will run in it."""
        # Nothing that a worker sees of its place says which arm it is.
        place = self.folder / (secrets.token_hex(8) if confined else name)
        place.mkdir(mode=0o700)
        for part in ("tree", "home", "tmp", "root"):
            (place / part).mkdir(mode=0o755)
        self.repository.export(commit, list(roots), place / "tree")
        if confined:
            # A narrow umask of ours must not keep a worker from its own tree.
            run(["chmod", "-R", "a+rX", str(place / "tree")], cwd=place)
            self.places[name] = place
        self.trees[name] = place / "tree"
        # The reader of git objects was perhaps started just now, and is to live on.
        self.before |= below(os.getpid())
        return self.trees[name]

    def environment(self, home: Path, tmp: Path) -> dict[str, str]:
        """Nothing of ours crosses: no token, no CI variable, no cache, no home."""
        kept = {key: os.environ[key] for key in KEPT if key in os.environ}
        interpreter = {"TRITON_INTERPRET": "1"} if self.lane.interpreter else {}
        threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        return (
            kept
            | interpreter
            | dict.fromkeys(threads, "1")
            | {
                "HOME": str(home),
                "TMPDIR": str(tmp),
                "TRITON_CACHE_DIR": str(home / "triton"),
                "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
                "CUDA_CACHE_PATH": str(home / "cuda"),
                "XDG_CACHE_HOME": str(home / "cache"),
                "USER": "worker",
                "LOGNAME": "worker",
                "LANG": "C.UTF-8",
            }
        )

    def start_device(
        self, module: str, *argv: str, pass_fds: Sequence[int] = ()
    ) -> subprocess.Popen[bytes]:
        """A trusted process; the caller has its standard input and output."""
        home = self.folder / f"device-{len(self.devices)}"
        home.mkdir(mode=0o700)
        with self.lock:
            self._refuse_after_the_end()
            device = start(
                _python("bot.lanes.trusted", module, *argv),
                cwd=self.folder,
                env=self.environment(home, home),
                pass_fds=pass_fds,
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            self.devices.append(device)
            _started.add(device.pid)
        assert device.stderr is not None
        self._log("device", Log(device.stderr))
        return device

    def confine(self) -> Protection:
        """Find the strongest sandbox that works here, by trying to break out of each."""
        accelerator = self.lane.device != "cpu"
        hidden = tuple(self._hidden())
        compilers, self.notes = compiler_paths(hidden)
        self.view = View((*python_paths(), *compilers, *self.read_only), hidden, accelerator)
        best: tuple[Protection, dict[str, Box]] | None = None
        for mode in modes():
            found = self._try(mode)
            if found is None:
                continue
            if best is None or found[0].rank > best[0].rank:
                best, found = found, best
            _close(found[1] if found else {})
            if best[0].level == "namespace":
                break
        if best is None:
            raise InfraError(f"no worker can be started here: {'; '.join(self.notes)}")
        self.protection, self.boxes = best
        return self.protection

    def _hidden(self) -> list[Path]:
        """What a worker must never see, though it may lie below something that it does see."""
        found = [path for paths in self._secrets("").values() for path in paths]
        return [self.folder, *found]

    def _secrets(self, own: str) -> dict[str, list[Path]]:
        """By name, what the worker of an arm must not read or write."""
        git = self.repository.git("rev-parse", "--path-format=absolute", "--git-common-dir")
        others = [tree for name, tree in self.trees.items() if name != own]
        return {
            "trusted": [self.folder, *others],
            "checkout": [self.repository.root, Path(os.fsdecode(git.rstrip(b"\n")))],
            "evidence": [self.evidence],
            "home": [Path(os.path.expanduser("~"))],  # noqa: PTH111  # never raises
        }

    def _try(self, mode: Mode) -> tuple[Protection, dict[str, Box]] | None:
        boxes, held = dict[str, Box](), list[frozenset[str]]()
        try:
            for arm, place in self.places.items():
                boxes[arm] = Box(
                    mode, self.view, place, _memory_bytes(len(self.places)), DISK_BYTES
                )
            for arm, box in boxes.items():
                held.append(self._probe(arm, box))
        except (InfraError, OSError) as error:
            self.notes.append(f"{mode}: {error}")
            _close(boxes)
            return None
        return Protection(frozenset.intersection(*held)), boxes

    def _probe(self, arm: str, box: Box) -> frozenset[str]:
        pids = [os.getpid(), *(device.pid for device in self.devices)]
        targets = Targets(pids, self._secrets(arm))
        ours, theirs = socket.socketpair()
        try:
            with ours:
                self._start(arm, box, theirs, "bot.lanes.probe")
                answer = targets.ask(box, ours, self.view.visible)
                capped = box.cgroup.limited and bool(box.cgroup.pids())
        except (OSError, EOFError) as error:
            self.stop(arm)
            reason = self.logs.pop(arm).last_line() or "it said nothing"
            raise InfraError(f"the sandbox's probe did not answer: {reason}") from error
        finally:
            targets.close()
        self.stop(arm)
        self.logs.pop(arm)
        if not answer.accelerator:
            raise InfraError("the accelerator's driver does not answer inside the sandbox")
        if not answer.compiler:
            raise InfraError(
                "the lane's kernels need a C compiler, and none runs inside the sandbox: "
                "put gcc or clang on PATH, or name one with CC"
            )
        return answer.held | {"memory-capped"} if capped else answer.held

    def start_worker(
        self, arm: str, end: socket.socket, module: str, *argv: str, pass_fds: Sequence[int] = ()
    ) -> None:
        """An untrusted process in the tree of an arm, with this end of a channel.

        The end is closed here; the arm's worker before this one is ended first.
        """
        self._start(arm, self.boxes[arm], end, module, argv, pass_fds)

    def _start(
        self,
        arm: str,
        box: Box,
        end: socket.socket,
        module: str,
        argv: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
    ) -> None:
        with self.lock, end:
            self._refuse_after_the_end()
            self.stop(arm)
            box.prepare()
            fd = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, CHANNEL_FD)
            try:
                process = start(
                    box.command(_python(module, str(fd), str(box.tree), *argv)),
                    cwd=self.folder if box.has_namespaces else box.tree,
                    env=self.environment(box.home, box.tmp),
                    pass_fds=[fd, *pass_fds],
                )
                self.workers[arm] = _Worker(process, box)
                _started.add(process.pid)
            finally:
                os.close(fd)
        assert process.stdout is not None
        self._log(arm, Log(process.stdout))

    def _log(self, name: str, log: Log) -> None:
        """A name for each process of an arm; the latest has the plain one."""
        if name in self.logs:
            number = sum(known.partition(".")[0] == name for known in self.logs)
            self.logs[f"{name}.{number}"] = self.logs.pop(name)
        self.logs[name] = log

    def _refuse_after_the_end(self) -> None:
        if self.ended:
            raise InfraError("the lane's time was over" if self.timed_out else "the job has ended")

    def serve(
        self,
        control: socket.socket,
        fresh: Callable[[str], socket.socket],
        limit: int = MAX_RESTARTS,
    ) -> None:
        """Answer, in a thread, `{"restart": arm}` with a fresh worker's channel.

        `fresh` starts the worker of an arm; its predecessor is ended first.
        """
        arguments = (control, fresh, limit)
        threading.Thread(target=self._serve, args=arguments, daemon=True).start()

    def _serve(
        self, control: socket.socket, fresh: Callable[[str], socket.socket], left: int
    ) -> None:
        # OSError: the device process is gone in the middle of a message.
        with control, contextlib.suppress(OSError, EOFError):
            while True:
                arm = receive(control)[0].get("restart")
                if arm not in self.boxes:
                    send(control, {"refused": "no such arm"})
                elif not left:
                    send(control, {"refused": "too many workers of this job were restarted"})
                else:
                    left -= 1
                    self._restart(control, arm, fresh)

    def _restart(
        self, control: socket.socket, arm: str, fresh: Callable[[str], socket.socket]
    ) -> None:
        try:
            end = fresh(arm)
        except InfraError as error:
            send(control, {"refused": str(error)})
            return
        with end:
            send(control, {"arm": arm}, end.fileno())

    def stop(self, arm: str) -> None:
        """End an arm's worker with everything that belongs to it."""
        with self.lock:
            worker = self.workers.pop(arm, None)
            if worker is not None:
                self._stop([worker])

    def kill(self) -> None:
        """End everything; InfraError if something of a worker lives on."""
        with self.lock:
            self.ended = True
            workers = list(self.workers.values())
            for device in self.devices:
                _kill_group(device)
            self._stop(workers)
            for process in (*self.devices, *(worker.process for worker in workers)):
                process.wait()
                _started.discard(process.pid)

    def _stop(self, workers: Sequence[_Worker]) -> None:
        for worker in workers:
            # The first process of a namespace dies with `unshare`, and takes all others along.
            _kill_group(worker.process)
            worker.box.kill()
        end = time.monotonic() + END_TIMEOUT_S
        quiet = 0
        # A process whose parent ends while we look can be missed once, not three times.
        while quiet < 3:
            left = self._left(workers)
            if left and time.monotonic() > end:
                names = ", ".join(map(str, sorted(left)))
                raise InfraError(f"processes of a worker cannot be ended: {names}")
            kill_all(left)
            quiet = 0 if left else quiet + 1
            time.sleep(0.005)
        _started.difference_update(worker.process.pid for worker in workers)

    def _left(self, ended: Sequence[_Worker]) -> set[int]:
        """What lives on of workers that were ended, by descent and by user."""
        for worker in ended:
            worker.process.poll()
        going = {worker.process.pid for worker in ended if worker.process.returncode is None}
        devices = {device.pid for device in self.devices}
        living = _started - {worker.process.pid for worker in ended}
        if self.ended:
            living -= devices
        ours = below(os.getpid()) - self.before - below(*living) - living - devices
        return ours | going | {pid for worker in ended for pid in worker.box.left()}

    def keep_logs(self, folder: Path, job: str) -> None:
        """Write what processes printed, and why stronger sandboxes were not to be had.

        Never through a link that stands there.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, log in self.logs.items():
            write_whole(folder / f"{job}.{name}.log", log.text().encode())
        if self.notes:
            write_whole(folder / f"{job}.sandbox.log", "\n".join(self.notes).encode())


def _python(module: str, *argv: str) -> list[str]:
    # -I: neither the folder, nor PYTHON* variables, nor the user's site-packages count.
    return [sys.executable, "-I", "-B", "-m", module, *argv]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _close(boxes: Mapping[str, Box]) -> None:
    for box in boxes.values():
        box.close()


def _memory_bytes(workers: int) -> int:
    """What one worker may use: all of them and the device process have to live side by side."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(MIN_MEMORY, int(total * MEMORY_SHARE / max(2, workers)))
