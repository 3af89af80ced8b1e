"""Measures which of the test files that real changes edited impact analysis selects.

Each change is put to it with its test edits taken out: head's tree with the parent's tests.
Rules were chosen on the half of the changes whose id starts with an even digit; the others are the
hold-out. `edited` counts every edited test file, `meant` leaves out edits of comments and layout.
Usage: python benchmarks/impact_recall.py REPOSITORY PRS.jsonl --policy FILE [--show tune|hold|all]
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from bot.change import REGULAR, Repository
from bot.impact import Impact, Index, impact
from bot.policy import Python, load
from bot.source import Summary, summarise

TESTS = "tests/"
APART = ("#880", "#816")


class Objects:
    """Blobs of commits and summaries of blobs, each read once."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.known: dict[str, Summary] = {}

    def commit_tree(self, commit: str) -> dict[str, str]:
        """Return blob ids of a commit by path."""
        entries = self.repository.tree(commit).items()
        return {path: oid for path, (mode, oid) in entries if mode in REGULAR}

    def summary(self, oid: str) -> Summary:
        """Return the summary of a blob."""
        if oid not in self.known:
            self.known[oid] = summarise(self.repository.read(oid))
        return self.known[oid]


class Row(NamedTuple):
    """One measured change."""

    name: str
    sha: str
    edited: list[str]
    meant: list[str]
    answer: Impact
    test_count: int
    milliseconds: float

    def recall(self, edited: list[str]) -> float:
        """Return the part of the edited test files that is selected."""
        return sum(path in self.answer.tests for path in edited) / len(edited)


def measure(objects: Objects, change: dict[str, object], settings: Python) -> Row:
    """Ask for the impact of one change without its test edits."""
    base = objects.commit_tree(str(change["parent"]))
    real = objects.commit_tree(str(change["sha"]))
    head = {path: oid for path, oid in real.items() if not path.startswith(TESTS)}
    head |= {path: oid for path, oid in base.items() if path.startswith(TESTS)}
    changed = [path for path in base.keys() | head.keys() if base.get(path) != head.get(path)]
    before = {path: objects.summary(oid) for path, oid in base.items() if path.endswith(".py")}
    after = {path: objects.summary(oid) for path, oid in head.items() if path.endswith(".py")}
    start = time.perf_counter()
    answer = impact(Index(before, settings), Index(after, settings), changed)
    elapsed = (time.perf_counter() - start) * 1000
    edited = [path for path in sorted(base) if _is_edited_test(path, base, real)]
    meant = [
        path for path in edited if _digests(objects, base[path]) != _digests(objects, real[path])
    ]
    tests = [path for path in base if _is_test(path)]
    if not changed:
        edited = meant = []
    name = f"#{change['pr']}"
    return Row(name, str(change["sha"])[:9], edited, meant, answer, len(tests), elapsed)


def _is_test(path: str) -> bool:
    return (
        path.startswith(TESTS)
        and path.rpartition("/")[2].startswith("test_")
        and path[-3:] == ".py"
    )


def _is_edited_test(path: str, base: dict[str, str], real: dict[str, str]) -> bool:
    return _is_test(path) and path in real and base[path] != real[path]


def _digests(objects: Objects, oid: str) -> list[tuple[str, str]]:
    return [(item.name, item.digest) for item in objects.summary(oid).definitions]


def is_tuning(row: Row) -> bool:
    """Tell whether a change may be looked at while rules are chosen."""
    return int(row.sha[0], 16) % 2 == 0


def report(title: str, rows: list[Row]) -> None:
    """Print recall and size of the selection for a set of changes."""
    rest = [row for row in rows if row.name not in APART]
    for label, chosen in (("", rest), ("+ those apart", rows)):
        for kind in ("edited", "meant"):
            measured = [row for row in chosen if getattr(row, kind)]
            recall = statistics.mean(row.recall(getattr(row, kind)) for row in measured)
            sizes = [len(row.answer.tests) for row in measured]
            print(
                f"{title:5} {label:14} {kind:6} n={len(measured):3} recall={recall:.4f} "
                f"selected median={statistics.median(sizes):.1f} mean={statistics.mean(sizes):.1f}"
            )
    sizes = [len(row.answer.tests) for row in rest]
    print(f"{title:5} all changes, n={len(sizes)}: selected median={statistics.median(sizes):.1f}")


def show(row: Row) -> None:
    """Print one line for a change with edited tests."""
    missed = [path for path in row.edited if path not in row.answer.tests]
    names = [path if path in row.meant else f"{path} (layout only)" for path in missed]
    steps = sorted({entry.scope for entry in row.answer.widened})
    print(
        f"{row.name:6} {row.sha} selected {len(row.answer.tests):3}/{row.test_count:3} "
        f"recall {row.recall(row.edited):.2f} {row.milliseconds:5.1f} ms "
        f"widened {','.join(steps) or '-'} missed {names[:4] or '-'}"
    )


def main() -> None:
    """Measure all changes of a list."""
    parser = argparse.ArgumentParser()
    parser.add_argument("repository", type=Path)
    parser.add_argument("changes", type=Path)
    parser.add_argument("--policy", type=Path, required=True, help="policy.yaml")
    parser.add_argument("--show", choices=("tune", "hold", "all"), default="tune")
    options = parser.parse_args()
    settings = load(options.policy.read_bytes(), str(options.policy)).python
    with Repository(options.repository) as repository:
        run(Objects(repository), settings, options)


def run(objects: Objects, settings: Python, options: argparse.Namespace) -> None:
    """Measure and print."""
    changes = [json.loads(line) for line in options.changes.read_text().splitlines()]
    rows = []
    for change in changes:
        rows.append(measure(objects, change, settings))
        gc.collect()
    tune = [row for row in rows if is_tuning(row)]
    hold = [row for row in rows if not is_tuning(row)]
    shown = {"tune": tune, "hold": hold, "all": rows}[options.show]
    for row in shown:
        if row.edited:
            show(row)
    if options.show != "hold":
        report("tune", tune)
    if options.show != "tune":
        report("hold", hold)
        report("all", rows)
    times = sorted(row.milliseconds for row in rows)
    last = times[int(len(times) * 0.99)]
    print(f"impact alone: median {statistics.median(times):.1f} ms, p99 {last:.1f} ms")
    print_summary_times(objects, str(changes[0]["sha"]))


def print_summary_times(objects: Objects, commit: str) -> None:
    """Print what one tree costs without a cache and with one."""
    tree = objects.commit_tree(commit)
    texts = [objects.repository.read(oid) for path, oid in tree.items() if path.endswith(".py")]
    # As a short-lived process would: the collector would walk all that this one holds.
    gc.disable()
    start = time.perf_counter()
    cached = json.dumps([summarise(text).to_json() for text in texts])
    parsed = time.perf_counter()
    for data in json.loads(cached):
        Summary.from_json(data)
    loaded = time.perf_counter()
    print(
        f"{len(texts)} files: parsed in {parsed - start:.2f} s by one process, "
        f"loaded from {len(cached) / 1e6:.1f} MB of JSON in {(loaded - parsed) * 1000:.0f} ms"
    )


if __name__ == "__main__":
    main()
