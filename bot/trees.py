"""Summaries of all Python files of a commit, parsed once per blob."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bot.cache import Cache
from bot.change import Repository
from bot.source import Summary, summarise

__all__ = ["Files", "summaries"]

# From here on a second process pays for its start (measured: 15 ms, and 2 ms a file).
MANY = 60
KIND = "source"


class Files(Mapping[str, bytes | None]):
    """The Python files of a commit, read when they are asked for."""

    def __init__(self, repository: Repository, commit: str) -> None:
        self.repository, self.commit = repository, commit

    def __getitem__(self, path: str) -> bytes | None:
        oid = self.repository.blob(self.commit, path)
        return None if oid is None else self.repository.read(oid)

    def __iter__(self) -> Iterator[str]:
        return (path for path in self.repository.tree(self.commit) if path.endswith(".py"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def summaries(repository: Repository, commit: str, cache: Cache) -> dict[str, Summary]:
    """By path. A link is the file that it leads to inside the tree, as in an import."""
    paths = (path for path in repository.tree(commit) if path.endswith(".py"))
    found = {path: repository.blob(commit, path) for path in paths}
    blobs = {path: oid for path, oid in found.items() if oid is not None}
    known: dict[str, Summary] = {}
    for oid in set(blobs.values()):
        summary = _restore(cache.get(KIND, oid))
        if summary is not None:
            known[oid] = summary
    missing = sorted(set(blobs.values()) - set(known))
    texts = [repository.read(oid) for oid in missing]
    for oid, summary in zip(missing, _parse(texts), strict=True):
        known[oid] = summary
        cache.put(KIND, oid, summary.to_json())
    return {path: known[oid] for path, oid in blobs.items()}


def _restore(data: object) -> Summary | None:
    try:
        return None if data is None else Summary.from_json(data)
    except ValueError:
        return None


def _parse(texts: list[bytes]) -> list[Summary]:
    if len(texts) < MANY:
        return [summarise(text) for text in texts]
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # fork: the children need nothing but the parser that is already here.
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        return list(pool.map(summarise, texts, chunksize=16))
