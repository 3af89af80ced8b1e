"""The place that untrusted code runs in: who it is, what it sees, how much it may take.

A `Box` turns a command into the same command inside. `MODES` go from strong to weak; what a mode
really holds on this machine is for a probe to say (protection.py), never for this file.

    namespaces       as root: another user; mounts, processes, network, IPC, host name of its own
    user-namespaces  the same without being root, where the kernel allows it
    other-user       as root, where namespaces are refused
    same-user        what is left
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from bot.lanes.cgroup import Cgroup
from bot.lanes.identity import Identity
from bot.lanes.processes import kill_all, owned_by, threads_of
from bot.lanes.scratch import remove
from bot.process import ProgramFailed, run

__all__ = ["DISK_BYTES", "Box", "Mode", "View", "compiler_paths", "modes", "python_paths"]

Mode = Literal["namespaces", "user-namespaces", "other-user", "same-user"]
TOOLS = ("sh", "setpriv", "prlimit")
SPACES = ("unshare", "mount", "umount", "pivot_root")
# What is the machine's own and holds no secret that a file's permissions do not guard.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/nix")
TOOLKITS = ("cuda*", "rocm*", "nvidia*", "amdgpu*", "intel*", "ascend*")
# What compiles, assembles and links a kernel and its launcher.
COMPILERS = ("gcc", "cc", "clang", "g++", "ptxas", "nvcc", "ld", "as")
PLAIN_NODES = ("null", "zero", "full", "random", "urandom")
ACCELERATORS = (
    *("nvidia*", "nvidia-caps/*", "nvidia-caps-imex-channels/*", "dri/*", "kfd"),
    *("davinci*", "devmm_svm", "hisi_hdc"),
)
DISK_BYTES, INODES = 4 << 30, 200_000
PROCESSES, FILES = 512, 4096
LINKS = 8
# Below these lies what has nothing to do with a compiler that is in their `bin`.
SHARED = tuple(map(Path, ("/", "/home", "/media", "/mnt", "/opt", "/run", "/srv", "/var")))
TREE, TMP = Path("/tree"), Path("/tmp")  # noqa: S108  # inside, where it is private


@dataclass(frozen=True, slots=True)
class View:
    """What workers may read besides their own tree, and what must stay hidden from them.

    `accelerator`: whether they get the device nodes of GPUs and NPUs.
    """

    visible: tuple[Path, ...]
    hidden: tuple[Path, ...]
    accelerator: bool


def modes() -> list[Mode]:
    """What is worth trying here, strongest first."""
    if not all(shutil.which(tool) for tool in TOOLS):
        return ["same-user"]
    root = os.geteuid() == 0
    found: list[Mode] = ["other-user", "same-user"] if root else ["same-user"]
    if all(_tool(tool) for tool in SPACES):
        found.insert(0, "namespaces" if root else "user-namespaces")
    return found


def _tool(name: str) -> str:
    """Its full path: an ordinary user's PATH often lacks /usr/sbin."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or ""


@cache
def python_paths() -> tuple[Path, ...]:
    """Where this interpreter and what it imports lie; of our own package the package alone."""
    code = "import json, sys; print('\\0'.join(sys.path))"
    listed = run([sys.executable, "-I", "-c", code], cwd=Path("/")).decode().strip().split("\0")
    program = Path(sys.executable)
    paths = [Path(sys.prefix), Path(sys.base_prefix), *map(Path, listed)]
    paths += [program.resolve().parent.parent, Path(__file__).parent.parent]
    for name in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        paths += [Path(name)] if name.startswith("/") else []
    paths += [store for path in map(Path, listed) for store in _stores(path)]
    return tuple(dict.fromkeys(path for path in paths if path.is_dir()))


def _stores(folder: Path) -> Iterator[Path]:
    """Where the packages of a folder lie that stand in it as links alone.

    Some installers link a package as a whole, others each file to the same path in a store.
    """
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.is_symlink():
            yield _linked(entry)
        elif entry.name.endswith(".dist-info"):
            file = entry / "METADATA"
            target = _linked(file) if file.is_symlink() else file
            if target != file and target.parts[-2:] == file.parts[-2:]:
                yield target.parent.parent


def _linked(link: Path) -> Path:
    """What a link names, as it spells it."""
    return Path(os.path.normpath(link.parent / link.readlink()))


def compiler_paths(hidden: Sequence[Path]) -> tuple[tuple[Path, ...], list[str]]:
    """Where the compilers on PATH (and `CC`) are installed, and why some cannot be shown.

    What holds something hidden, or lies in it, stays hidden.
    """
    secret = {path.resolve() for path in hidden} - {Path("/")}
    found, notes = dict[Path, None](), list[str]()
    for place in dict.fromkeys(_programs()):
        if any(place.is_relative_to(path) for path in SYSTEM):
            continue
        folder = place.parent
        prefix = folder.parent if folder.name == "bin" and folder.parent not in SHARED else folder
        real = prefix.resolve()
        near = any(real.is_relative_to(path) or path.is_relative_to(real) for path in secret)
        if near or Path("/") in (prefix, real):
            notes.append(f"{place} cannot be shown to workers: {prefix} is or holds what is ours")
        else:
            found[prefix] = None
    return tuple(found), notes


def _programs() -> Iterator[Path]:
    """Full paths of compilers: as they are spelled, and each that a link leads to."""
    chosen = os.environ.get("CC", "").split()[:1]
    for name in (*chosen, *COMPILERS):
        place = Path(shutil.which(name) or "")
        for _ in range(LINKS):
            if not place.is_absolute():
                break
            place = Path(os.path.normpath(place))
            yield place
            if not place.is_symlink():
                break
            place = place.parent / place.readlink()
        if place.is_absolute():
            yield place.resolve()


@dataclass(slots=True)
class Box:
    """A sandbox for one worker at a time; `folder` is its own place on the host's disk."""

    mode: Mode
    view: View
    folder: Path
    memory_bytes: int
    disk_bytes: int
    identity: Identity | None = None
    cgroup: Cgroup = field(default_factory=lambda: Cgroup((), limited=False))

    def __post_init__(self) -> None:
        if self.mode in ("namespaces", "other-user"):
            self.identity = Identity.take()
        self.cgroup = Cgroup.make(secrets.token_hex(8), self.memory_bytes)

    def prepare(self) -> None:
        """Empty folders to write in, for each process anew; namespaces bring theirs along."""
        if self.has_namespaces:
            return
        for folder in (self.home, self.tmp):
            remove(folder)
            folder.mkdir(mode=0o700)
            if self.identity is not None:
                os.chown(folder, self.identity.uid, self.identity.uid)
        if self.identity is not None:
            os.chown(self.folder, 0, self.identity.uid)
            self.folder.chmod(0o750)
            self.folder.parent.chmod(0o711)

    @property
    def has_namespaces(self) -> bool:
        """Whether it has a root folder and process numbers of its own."""
        return self.mode in ("namespaces", "user-namespaces")

    @property
    def tree(self) -> Path:
        """Where the code under test finds itself: the same for both arms where that can be."""
        return TREE if self.has_namespaces else self.folder / "tree"

    @property
    def home(self) -> Path:
        """Where it may write."""
        return TMP / "home" if self.has_namespaces else self.folder / "home"

    @property
    def tmp(self) -> Path:
        """Its folder for temporary files."""
        return TMP if self.has_namespaces else self.folder / "tmp"

    def command(self, argv: Sequence[str]) -> list[str]:
        """What to start to have `argv` run inside."""
        if not shutil.which("setpriv") or not shutil.which("prlimit"):
            return list(argv)
        # With us gone, kill -9 included, the kernel ends what follows.
        outer = ["setpriv", "--pdeathsig", "KILL", "--"]
        outer += ["sh", "-euc", self._enter(), "sh"]
        if not self.has_namespaces:
            return [*outer, *self._limits(), *self._powerless(), *argv]
        if self.mode == "user-namespaces":
            # With its new capabilities the process loses the wish to die with us.
            outer += [_tool("unshare"), "--user", "--map-root-user", "--"]
            outer += ["setpriv", "--pdeathsig", "KILL", "--"]
        spaces = ["--mount", "--pid", "--ipc", "--net", "--uts", "--propagation", "private"]
        outer += [_tool("unshare"), *spaces, "--fork", "--kill-child=KILL", "--"]
        inner = [*self._limits(), *self._powerless(), *argv]
        return [*outer, "sh", "-euc", "\n".join(self._script(inner))]

    def _enter(self) -> str:
        """Join the control group, be the first to go when memory runs out, and go on."""
        lines = [f"echo 0 > {shlex.quote(str(entry))}" for entry in self.cgroup.entries]
        lines.append("echo 1000 > /proc/self/oom_score_adj 2> /dev/null || :")
        return "\n".join([*lines, 'exec "$@"'])

    @property
    def limits(self) -> dict[str, int]:
        """Limits of a process that it cannot raise again.

        A core limit of 1 and not 0: to a core_pattern that is a program, 0 is no limit at all.
        """
        limits = {"core": 1, "nofile": FILES, "fsize": self.disk_bytes, "nproc": PROCESSES}
        if self.mode == "same-user":
            limits["nproc"] += threads_of(os.geteuid())  # all of a user's are counted
        if not self.view.accelerator and not self.cgroup.limited:
            limits["data"] = self.memory_bytes  # for each process; drivers reserve far more
        return limits

    def _limits(self) -> list[str]:
        words = (f"--{name}={value}:{value}" for name, value in self.limits.items())
        return ["prlimit", *words, "--"]

    def _powerless(self) -> list[str]:
        """No capability, no way to one, no group but those of the devices it needs."""
        words = ["setpriv", "--no-new-privs"]
        if self.mode != "same-user":
            words += ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
        if self.identity is not None:
            groups = ",".join(map(str, self._groups()))
            uid = str(self.identity.uid)
            words += ["--reuid", uid, "--regid", uid]
            words += ["--groups", groups] if groups else ["--clear-groups"]
        # A change of the user clears it.
        return [*words, "--pdeathsig", "KILL", "--"]

    def _groups(self) -> set[int]:
        if not self.view.accelerator:
            return set()
        found = {node.stat() for node in _nodes(ACCELERATORS)}
        closed = (status for status in found if status.st_mode & 0o006 != 0o006)
        return {status.st_gid for status in closed if status.st_mode & 0o060 == 0o060} - {0}

    def _script(self, argv: Sequence[str]) -> Iterator[str]:
        """Build a root folder in memory, go there, forget the old one, start `argv` as a child.

        The shell stays as the first process of the namespace: when `argv` ends, so does it, and
        with it every process that `argv` left behind. It keeps its user and capabilities, so that
        what runs beside it can neither trace nor signal it.
        """
        yield "umask 022"
        yield f"root={shlex.quote(str(self.folder / 'root'))}"
        yield f'mount() {{ {_tool("mount")} -n "$@"; }}'
        yield 'mount -t tmpfs -o mode=755,size=16m,nosuid,nodev none "$root"'
        yield from self._system()
        yield from self._devices()
        # What is visible may lie in some of them.
        yield 'mkdir -p "$root/proc" "$root/.old" "$root/run" "$root/var"'
        yield 'mount -t proc -o nosuid,nodev,noexec proc "$root/proc"'
        yield f'[ -e "$root/var/tmp" ] || ln -s {TMP} "$root/var/tmp"'
        # Harmless where it fails: then both arms have the host's name.
        yield "{ echo worker > /proc/sys/kernel/hostname; } 2> /dev/null || hostname worker || :"
        yield 'cd "$root"'
        yield f"{_tool('pivot_root')} . .old"
        yield "cd /"
        yield f"{_tool('umount')} -n -l /.old"
        yield "rmdir /.old"
        yield "mount -o remount,bind,ro,nosuid,nodev none /"
        yield f"cd {TREE}"
        yield "set +e"
        yield shlex.join(argv)
        yield "exit $?"

    def _system(self) -> Iterator[str]:
        """Bind what is visible, shallow before deep, and cover what is hidden below it."""
        for link in map(Path, SYSTEM):
            if link.is_symlink():
                yield f'ln -s {shlex.quote(str(link.readlink()))} "$root"{link}'
        kinds = _layers(self.view)
        covers = []
        for path, kind in sorted(kinds.items(), key=lambda item: len(item[0].parts)):
            target = f'"$root"{shlex.quote(str(path))}'
            yield f"mkdir -p {target}"
            if kind == "bind":
                yield f"mount -o rbind,{_flags(path)} {shlex.quote(str(path))} {target}"
            elif kind == "scratch":
                size = f"size={self.disk_bytes},nr_inodes={INODES}"
                yield f"mount -t tmpfs -o mode=1777,nosuid,nodev,{size} none {target}"
            else:
                yield f"mount -t tmpfs -o mode=755,nosuid,nodev,size=1m none {target}"
                covers.append(target)
        for target in covers:
            yield f"mount -o remount,bind,ro,nosuid,nodev none {target}"
        tree = self.folder / "tree"
        yield f'mkdir -p "$root{TREE}" "$root{self.home}"'
        yield f'chmod 777 "$root{self.home}"'
        yield f'mount -o bind,{_flags(tree)} {shlex.quote(str(tree))} "$root{TREE}"'
        if Path("/sys").is_dir():
            yield 'mkdir "$root/sys"'
            yield f'mount -o rbind,{_flags(Path("/sys"))} /sys "$root/sys"'
            # Control groups: a user may own some, and must not move there.
            yield 'mount -t tmpfs -o ro,nosuid,nodev,size=1m none "$root/sys/fs"'

    def _devices(self) -> Iterator[str]:
        yield 'mkdir "$root/dev" "$root/dev/shm"'
        size = f"size={self.disk_bytes},nr_inodes={INODES}"
        yield f'mount -t tmpfs -o mode=1777,nosuid,nodev,{size} none "$root/dev/shm"'
        patterns = PLAIN_NODES + (ACCELERATORS if self.view.accelerator else ())
        for node in sorted(set(_nodes(patterns))):
            target = f'"$root"{shlex.quote(str(node))}'
            yield f'mkdir -p "$root"{shlex.quote(str(node.parent))}'
            yield f": > {target}"
            yield f"mount --bind {shlex.quote(str(node))} {target}"
        yield 'ln -s /proc/self/fd "$root/dev/fd"'
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            yield f'ln -s /proc/self/fd/{number} "$root/dev/{name}"'

    def kill(self) -> None:
        """End what is inside and whatever else belongs to its user."""
        self.cgroup.kill()
        kill_all(self.cgroup.pids())
        if self.mode == "other-user":
            # One call for all that its user has: what forks fast outruns a list of numbers.
            assert self.identity is not None
            uid = str(self.identity.uid)
            become = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--"]
            with contextlib.suppress(ProgramFailed):  # there was nothing left
                run([*become, "sh", "-c", "kill -KILL -1"], cwd=Path("/"))

    def left(self) -> set[int]:
        """Processes of its user."""
        return owned_by({self.identity.uid}) if self.identity is not None else set()

    def close(self) -> None:
        """Give user number and control groups back; call it when nothing runs inside."""
        self.cgroup.remove()
        if self.identity is not None:
            self.identity.hold.close()


def _nodes(patterns: Sequence[str]) -> Iterator[Path]:
    for pattern in patterns:
        for node in Path("/dev").glob(pattern):
            if node.is_char_device():
                yield node


def _flags(path: Path) -> str:
    """Options of a read-only bind. In a user namespace none that the source has may be missing."""
    words = ["ro", "nosuid", "nodev"]
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        words.append("noexec")
    return ",".join(words)


Kind = Literal["bind", "cover", "scratch"]


def _layers(view: View) -> dict[Path, Kind]:
    """For each path that needs a mount what it becomes; the rest follows from what is above it."""
    binds = {path for path in map(Path, SYSTEM) if path.is_dir() and not path.is_symlink()}
    binds |= {path for name in TOOLKITS for path in Path("/opt").glob(name) if path.is_dir()}
    for path in view.visible:
        # As it is spelled and as it is: interpreters follow links and remember names.
        binds |= {Path(os.path.abspath(path)), path.resolve()}  # noqa: PTH100  # keeps links
    wanted: dict[Path, Kind] = dict.fromkeys(binds, "bind")
    # A checkout on python's path is hidden all the same; what of it is needed lies deeper.
    hidden = {path.resolve() for path in view.hidden if path.is_dir()}
    wanted |= dict.fromkeys(hidden - {Path(path) for path in SYSTEM}, "cover")
    wanted[TMP] = "scratch"
    found: dict[Path, Kind] = {}
    for path in sorted(wanted, key=lambda path: len(path.parts)):
        above = next((found[p] for p in path.resolve().parents if p in found), None)
        above = next((found[p] for p in path.parents if p in found), above)
        kind = wanted[path]
        needless = kind == "bind" and above == "bind"
        if not needless and not (kind == "cover" and above != "bind") and path != Path("/"):
            found[path] = kind
    return found
