"""Git as data: the files of a change and the text of any object, without touching a work tree."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import difflib
import os
import posixpath
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Literal

from bot.errors import UserError
from bot.model import Because, Change, FileChange
from bot.process import ProgramFailed, run, start

__all__ = ["Repository", "changed_lines"]


REGULAR, LINK = ("100644", "100755"), "120000"
MAX_LINKS = 8
MAX_UNTRACKED = 4 << 20  # bytes; checkpoints and data lie beside many a checkout
MAX_DIFF = 1_000_000  # pairs of lines; a longer rewrite is named as one run
_STATUS: dict[str, Literal["added", "deleted", "modified", "renamed", "type-changed"]] = {
    "A": "added",
    "D": "deleted",
    "M": "modified",
    "R": "renamed",
    "T": "type-changed",
}


def _text(path: bytes) -> str:
    r"""A path as text; bytes that are no UTF-8 are written out as \xff."""
    return path.decode("utf-8", "backslashreplace")


def _quoted(path: Path) -> str:
    """A path for a list of paths: git unquotes it like a C string, so that a colon is no end."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class Repository:
    """A git repository; use it in a `with` block. One `git cat-file` serves all reads."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise UserError(f"{path} is not a git repository: it is no folder; use --repo")
        # Replacement objects and hooks of a foreign repository must not change what is read.
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
        }
        self._trees: dict[str, dict[str, tuple[str, str]]] = {}
        try:
            self.root = path
            top = self.git("rev-parse", "--show-toplevel").decode().rstrip("\n")
            self.bare = False
        except ProgramFailed as error:
            top, self.bare = self._bare(path, error), True
        self.root = Path(top)
        self.scratch = tempfile.TemporaryDirectory(prefix="fla-bot-")

    def _bare(self, path: Path, refused: ProgramFailed) -> str:
        """The folder of a bare repository, or what git says against it."""
        try:
            if self.git("rev-parse", "--is-bare-repository") == b"true\n":
                return self.git("rev-parse", "--absolute-git-dir").decode().rstrip("\n")
        except ProgramFailed:
            if "dubious ownership" in refused.stderr:
                raise UserError(refused.stderr) from refused
        message = f"{path} is not a git repository; use --repo"
        raise UserError(message) from refused

    def __enter__(self) -> Repository:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if "_reader" in self.__dict__:
            self._reader.kill()
            self._reader.communicate()
        self.scratch.cleanup()

    def _is_source(self, name: bytes) -> bool:
        """Whether an untracked path belongs to the change: our own folder and big data do not."""
        path = self.root / os.fsdecode(name)
        own = name.startswith(b".fla-bot/")
        return not own and (path.is_symlink() or path.stat().st_size <= MAX_UNTRACKED)

    def git(self, *argv: str, index: Path | None = None, stdin: bytes = b"") -> bytes:
        """Run git here; ProgramFailed if it says no."""
        env = self.env if index is None else {**self.env, "GIT_INDEX_FILE": str(index)}
        safe = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
        return run(["git", *safe, *argv], cwd=self.root, env=env, stdin=stdin)

    def commit(self, ref: str, purpose: str) -> str:
        """The commit of a ref, or a UserError that says which ref is unknown."""
        try:
            return self.git(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"
            ).decode()[:-1]
        except ProgramFailed as error:
            message = f"{purpose}: `{ref}` is no commit here; fetch it, or name another"
            raise UserError(message) from error

    def default_base(self) -> str:
        """The branch a pull request would go to: origin's default, else main or master."""
        for ref in ("refs/remotes/origin/HEAD", "refs/heads/main", "refs/heads/master"):
            try:
                self.git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
            except ProgramFailed:
                continue
            return ref
        raise UserError("no origin/HEAD, main or master to compare with; name one with --base")

    def work_tree(self) -> str:
        """The tree of the work tree as it is, untracked files included, ignored ones not.

        Index and objects go to a scratch folder: the repository is not written to.
        """
        if self.bare:
            raise UserError("a bare repository has no work tree; name the change with --head")
        objects = self.git("rev-parse", "--git-path", "objects").decode().rstrip("\n")
        scratch = Path(self.scratch.name)
        (scratch / "objects").mkdir(exist_ok=True)
        self.env |= {
            "GIT_OBJECT_DIRECTORY": str(scratch / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(self.root / objects),
        }
        index = scratch / "index"
        index.unlink(missing_ok=True)
        # What is tracked by the index that a commit would be made of, whatever HEAD has: staged
        # files belong to the work tree. Its entries only: git may skip files that it has flagged.
        staged = self.git("ls-files", "-z", "--stage", "--full-name", ":/")
        self.git("update-index", "-z", "--index-info", index=index, stdin=staged)
        self.git("add", "--update", "--", ":/", index=index)
        untracked = ("--others", "--exclude-standard", "--full-name")
        others = self.git("ls-files", "-z", *untracked, ":/", index=index)
        small = [name for name in others.split(b"\0")[:-1] if self._is_source(name)]
        if small:
            options = ("--pathspec-from-file=-", "--pathspec-file-nul")
            names = b"\0".join(b":(top,literal)" + name for name in small)
            self.git("add", *options, index=index, stdin=names)
        return self.git("write-tree", index=index).decode()[:-1]

    def change(self, base: str | None, head: str | None, trusted: str | None) -> Change:
        """The change from base to head; without head, the work tree."""
        base_commit = self.commit(self.default_base() if base is None else base, "base")
        tip = self.commit("HEAD" if head is None else head, "head")
        try:
            merge_base = self.git("merge-base", base_commit, tip).decode().split()[0]
        except ProgramFailed as error:
            message = "base and head share no history (a shallow clone? `git fetch --unshallow`)"
            raise UserError(message) from error
        try:
            head_tree = tip if head is not None else self.work_tree()
        except ProgramFailed as error:
            raise UserError(f"git cannot read the work tree: {error.stderr}") from error
        clean = head is None and head_tree == self.git("rev-parse", "HEAD^{tree}").decode()[:-1]
        return Change(
            base=base_commit,
            head=tip if clean else head_tree,
            merge_base=merge_base,
            trusted=base_commit if trusted is None else self.commit(trusted, "trusted"),
            files=tuple(self._files(merge_base, head_tree)),
            uncommitted=head is None and not clean,
        )

    def _files(self, old: str, new: str) -> Iterator[FileChange]:
        raw = self.git("diff-tree", "-r", "-z", "-M", "--raw", "--no-abbrev", old, new)
        parts = iter(_text(raw).split("\0"))
        for header in parts:
            if not header:
                break
            old_mode, new_mode, old_blob, new_blob, status = header.lstrip(":").split(" ")
            old_path = next(parts)
            path = next(parts) if status[0] in "RC" else old_path
            yield FileChange(
                path=path,
                status=_STATUS[status[0]],
                old_path=old_path,
                old_blob=old_blob if old_mode in REGULAR else None,
                new_blob=new_blob if new_mode in REGULAR else None,
                old_mode=old_mode,
                new_mode=new_mode,
            )
        yield from self._behind_links(old, new)

    def _behind_links(self, old: str, new: str) -> Iterator[FileChange]:
        """Links that are as they were and lead to something else: what is imported has changed."""
        links = {path: oid for path, (mode, oid) in self.tree(new).items() if mode == LINK}
        for path, oid in links.items():
            blobs = self.blob(old, path), self.blob(new, path)
            if self.tree(old).get(path) == (LINK, oid) and blobs[0] != blobs[1]:
                mode = REGULAR[0]
                yield FileChange(path, "modified", path, *blobs, old_mode=mode, new_mode=mode)

    def tree(self, commit: str) -> dict[str, tuple[str, str]]:
        """All paths of a commit or tree: mode and object."""
        if commit not in self._trees:
            entries: dict[str, tuple[str, str]] = {}
            for line in self.git("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]:
                head, _, path = line.partition(b"\t")
                mode, _, oid = head.decode().split(" ")
                name = _text(path)
                if name in entries:
                    raise UserError(f"two files have names that read as {name}")
                entries[name] = (mode, oid)
            self._trees[commit] = entries
        return self._trees[commit]

    @cached_property
    def _reader(self) -> subprocess.Popen[bytes]:
        return start(
            ["git", "cat-file", "--batch"],
            cwd=self.root,
            env=self.env,
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def read(self, oid: str) -> bytes:
        """The content of a blob."""
        stdin, stdout = self._reader.stdin, self._reader.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{oid}\n".encode())
        stdin.flush()
        header = stdout.readline().split()
        if len(header) != 3:
            raise UserError(f"object {oid} is missing here (a partial clone?)")
        content = stdout.read(int(header[2]))
        stdout.read(1)
        return content

    def read_path(self, commit: str, path: str) -> bytes | None:
        """A regular file of a commit; None for what is absent, a link or a submodule."""
        mode, oid = self.tree(commit).get(path, ("", ""))
        return self.read(oid) if mode in REGULAR else None

    def export(self, commit: str, roots: list[str], target: Path) -> None:
        """Write the files below `roots`; nothing leaves `target`.

        A link to a file of the same tree becomes that file, any other link is left out.
        """
        for path in self.tree(commit):
            parts = path.split("/")
            oid = self.blob(commit, path)
            if oid and parts[0] in roots and not {".", "..", ""} & set(parts):
                file = target.joinpath(*parts)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(self.read(oid))

    def blob(self, commit: str, path: str) -> str | None:
        """The blob behind a path, through links inside the tree."""
        tree = self.tree(commit)
        for _ in range(MAX_LINKS):
            mode, oid = tree.get(path, ("", ""))
            if mode != LINK:
                return oid if mode in REGULAR else None
            folder = path.rpartition("/")[0]
            path = posixpath.normpath(posixpath.join(folder, _text(self.read(oid))))
        return None


def changed_lines(path: str, old: bytes, new: bytes) -> list[Because]:
    """The runs of new lines that differ; a pure deletion is named by the line it stood before."""
    before, after = (text.decode(errors="replace").splitlines() for text in (old, new))
    last = max(1, len(after))
    skip = _common(before, after)
    before, after = before[skip:], after[skip:]
    cut = _common(before[::-1], after[::-1])
    before, after = before[: len(before) - cut], after[: len(after) - cut]
    if len(before) * len(after) > MAX_DIFF:
        runs = [(0, len(after))]
    else:
        # autojunk keeps thousands of equal lines from taking for ever.
        matcher = difflib.SequenceMatcher(None, before, after)
        opcodes = matcher.get_opcodes()
        runs = [(first, end) for kind, _, _, first, end in opcodes if kind != "equal"]
    return [
        Because(
            path=path,
            line=min(first + skip + 1, last),
            end_line=min(max(first + 1, end) + skip, last),
        )
        for first, end in runs
    ]


def _common(one: list[str], other: list[str]) -> int:
    """How many lines at the start are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
