"""Changes read from git."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.change import Repository, changed_lines
from bot.errors import UserError
from tests.conftest import Workbench


def test_statuses_modes_and_odd_names(workbench: Workbench) -> None:
    workbench.commit({"a.py": "a = 1\n" * 30, "gone": "x", "kept": "k", "-n\n\"'": "odd"})
    (workbench.path / "kept").unlink()
    (workbench.path / "kept").symlink_to("/etc/passwd")
    head = workbench.commit(
        {"a.py": None, "b.py": "a = 1\n" * 30, "gone": None, "-n\n\"'": "new", "c.bin": b"\0\1"},
        branch="work",
    )
    with Repository(workbench.path) as repository:
        change = repository.change("main", "work", None)
        files = {file.path: file for file in change.files}
        assert change.head == head
        assert {p: f.status for p, f in files.items()} == {
            "b.py": "renamed",
            "gone": "deleted",
            "kept": "type-changed",
            "-n\n\"'": "modified",
            "c.bin": "added",
        }
        assert files["b.py"].old_path == "a.py"
        assert files["kept"].new_blob is None  # a link is no text
        assert repository.read(files["-n\n\"'"].new_blob or "") == b"new"


def test_work_tree_is_read_without_a_trace(workbench: Workbench) -> None:
    workbench.commit({"a.py": "a\n", ".gitignore": "junk\n"})
    workbench.write({"a.py": "b\n", "new.py": "n\n", "junk": "j"})
    before = sorted(str(p) for p in (workbench.path / ".git").rglob("*"))
    with Repository(workbench.path) as repository:
        change = repository.change("main", None, None)
        assert change.uncommitted
        assert [(f.path, f.status) for f in change.files] == [
            ("a.py", "modified"),
            ("new.py", "added"),
        ]
        assert repository.read_path(change.head, "new.py") == b"n\n"
    assert sorted(str(p) for p in (workbench.path / ".git").rglob("*")) == before
    assert workbench.git("status", "--short") == "M a.py\n?? new.py"


def test_staged_files_belong_to_the_work_tree(workbench: Workbench) -> None:
    """What it holds is what a commit of all there is would hold, however much is staged."""
    tracked = ("edited", "moved", "unstaged", "flagged")
    workbench.commit({name: f"{name}\n" for name in tracked} | {".gitignore": "ignored*\n"})
    workbench.write({"new": "old\n", "ignored": "i\n", "fleeting": "f\n", "intended": "n\n"})
    workbench.git("add", "new", "fleeting")
    workbench.git("add", "--force", "ignored")
    workbench.git("add", "--intent-to-add", "intended")
    workbench.git("mv", "moved", "there")
    workbench.git("rm", "--cached", "unstaged")
    workbench.git("update-index", "--assume-unchanged", "flagged")
    workbench.write({"new": "new\n", "flagged": "edited\n", "fleeting": None, "edited": None})
    before = workbench.git("status", "--short")
    with Repository(workbench.path) as repository:
        change = repository.change("main", None, None)
        assert {file.path: file.status for file in change.files} == {
            "edited": "deleted",
            "flagged": "modified",
            "ignored": "added",
            "intended": "added",
            "new": "added",
            "there": "renamed",
        }
        assert repository.read_path(change.head, "new") == b"new\n"
        assert repository.read_path(change.head, "unstaged") == b"unstaged\n"
    assert workbench.git("status", "--short") == before


def test_staged_submodule_belongs_to_the_work_tree(workbench: Workbench) -> None:
    commit = workbench.commit({"a.py": "a\n"})
    (workbench.path / "part").mkdir()
    workbench.git("update-index", "--add", "--cacheinfo", f"160000,{commit},part")
    with Repository(workbench.path) as repository:
        change = repository.change("main", None, None)
    assert [(file.path, file.new_mode) for file in change.files] == [("part", "160000")]


def test_clean_work_tree_is_its_commit(workbench: Workbench) -> None:
    head = workbench.commit({"a.py": "a\n"})
    with Repository(workbench.path) as repository:
        change = repository.change(None, None, None)
    assert (change.head, change.uncommitted, change.files) == (head, False, ())


def test_export_stays_below_the_target(workbench: Workbench, tmp_path: Path) -> None:
    (workbench.path / "fla").mkdir()
    (workbench.path / "fla" / "link").symlink_to("/etc")
    commit = workbench.commit({"fla/a.py": "a", "torch.py": "x"})
    target = tmp_path / "out"
    target.mkdir()
    with Repository(workbench.path) as repository:
        repository.export(commit, ["fla"], target)
    assert [str(p.relative_to(target)) for p in target.rglob("*")] == ["fla", "fla/a.py"]


def test_refs_that_are_wrong_say_so(workbench: Workbench, tmp_path: Path) -> None:
    workbench.commit({"a": "a"})
    workbench.git("switch", "--quiet", "--orphan", "island")
    workbench.commit({"b": "b"})
    with Repository(workbench.path) as repository:
        with pytest.raises(UserError, match="`nope` is no commit here"):
            repository.change("main", "nope", None)
        with pytest.raises(UserError, match="--output=x"):
            repository.change("--output=x", None, None)
        with pytest.raises(UserError, match="share no history"):
            repository.change("main", "island", None)
    with pytest.raises(UserError, match="not a git repository"):
        Repository(tmp_path)
    with pytest.raises(UserError, match="not a git repository"):
        Repository(tmp_path / "absent")


def test_changed_lines_name_new_lines() -> None:
    old, new = b"a\nb\nc\nd\n", b"a\nB\nc\nd\ne\n"
    assert [str(place) for place in changed_lines("f", old, new)] == ["f:2", "f:5"]
    assert [str(place) for place in changed_lines("f", old, b"a\nd\n")] == ["f:2"]
    assert [str(place) for place in changed_lines("f", old, b"")] == ["f:1"]
