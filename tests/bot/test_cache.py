"""The cache: what it keeps, and how it treats files that are broken or not ours."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from bot.cache import MAX_ENTRIES, Cache, cache_folder
from bot.change import Repository
from bot.source import summarise
from bot.trees import MANY, summaries
from tests.conftest import Workbench


def test_values_come_back_in_a_new_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "cache.json"
    cache = Cache(path)
    assert cache.get("a", "k") is None
    cache.put("a", "k", [1, {"x": None}])
    cache.save()
    assert Cache(path).get("a", "k") == [1, {"x": None}]
    assert [file.name for file in path.parent.iterdir()] == ["cache.json"]


def broken(path: Path) -> list[bytes]:
    good = path.read_bytes()
    version = good.split(b" ")[0].decode()

    def signed(body: bytes) -> bytes:
        return f"{version} {hashlib.sha256(body).hexdigest()}\n".encode() + body

    return [
        b"",
        b"\x80\x04\x95pickle",
        good[:-3],
        good.replace(b"1", b"2"),
        b"other " + good.partition(b" ")[2],
        signed(b"[1, 2]"),
        signed(b'{"a": [1]}'),
        signed(b"[" * 100_000),
        signed(b"\xff"),
    ]


def test_broken_or_foreign_cache_is_rebuilt_silently(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    cache = Cache(path)
    cache.put("a", "k", 1)
    cache.save()
    for content in broken(path):
        path.write_bytes(content)
        again = Cache(path)
        assert again.entries == {}, content[:40]
        again.put("a", "k", 1)
        again.save()
        assert Cache(path).get("a", "k") == 1


def test_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "cache.json")
    cache.put("a", "k", 1)
    cache.save()
    assert cache.get("a", "k") == 1
    assert Cache(tmp_path / "file" / "cache.json").get("a", "k") is None


def test_only_what_was_used_is_kept_once_there_is_too_much(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    cache = Cache(path)
    for number in range(MAX_ENTRIES + 1):
        cache.put("old", str(number), 0)
    cache.save()
    cache = Cache(path)
    assert cache.get("old", "7") == 0
    cache.put("new", "k", 1)
    cache.save()
    assert {kind: len(group) for kind, group in Cache(path).entries.items()} == {"old": 1, "new": 1}


def test_folder_follows_xdg_and_ignores_a_relative_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/fla-bot")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "fla-bot"


def test_summaries_are_parsed_once_a_blob_and_by_two_processes_alike(
    workbench: Workbench, tmp_path: Path
) -> None:
    files = {f"p/m{n}.py": f"def f{n}(x):\n    return g{n}(x)\n" for n in range(MANY + 5)}
    (workbench.path / "link.py").symlink_to("p/m0.py")
    commit = workbench.commit({**files, "p/bad.py": "def f(:", "p/text.md": "x"})
    path = tmp_path / "cache.json"
    with Repository(workbench.path) as repository:
        cache = Cache(path)
        first = summaries(repository, commit, cache)
        cache.save()
        assert set(first) == {*files, "p/bad.py", "link.py"}
        assert first["link.py"] == first["p/m0.py"]
        assert first["p/m3.py"] == summarise(files["p/m3.py"])
        assert first["p/bad.py"].fault is not None
        again = Cache(path)
        assert summaries(repository, commit, again) == first
        assert not again.changed
        # An entry of a shape that is not ours is computed anew.
        again.entries["source"] = {key: json.loads("[1]") for key in again.entries["source"]}
        assert summaries(repository, commit, again) == first
