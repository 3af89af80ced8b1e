"""Puts the rules to a repository's history: known bugs, and real changes one by one.

Bugs: the parent of a fix is inspected with `everything`; the rule must report something there, in a
file of the bug, that it does not report at the fix; `elsewhere` counts what is left in other files.
A commit that introduced a bug (role `offending`) is inspected as a change. Changes: all findings,
and their number per rule. Tree: all findings on the newest commit.
Usage: python benchmarks/rules_history.py GIT_DIR BUGS.jsonl PRS.jsonl [--policy FILE] [--part PART]
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from bot.cache import Cache
from bot.change import Repository
from bot.impact import Impact, Index, impact
from bot.kernels import Sources
from bot.model import Change, Finding
from bot.policy import Policy, load
from bot.rules import Context, Tree, code_of, inspect, rules
from bot.trees import Files, summaries

# Which rule each candidate of the bug list stands for.
RULE_OF = {"CALLBIND": "CAL001", "TESTWEAK": "TST001", "NPULAUNCH": "NPU001"}
Row = Mapping[str, Any]


class History:
    """Trees and changes of a repository, through the code that `fla-bot check` uses."""

    def __init__(self, repository: Repository, policy: Policy, cache: Cache) -> None:
        self.repository, self.policy, self.cache = repository, policy, cache
        self.index = lru_cache(maxsize=4)(self._index)

    def _index(self, commit: str) -> Index:
        return Index(summaries(self.repository, commit, self.cache), self.policy.python)

    def tree(self, commit: str) -> Tree:
        """Sources and summaries of a commit."""
        return Tree(Sources(Files(self.repository, commit)), self.index(commit).summaries)

    def findings(self, base: str, head: str, *, everything: bool) -> list[Finding]:
        """What all rules say of a change, or of its head as a whole."""
        return inspect(self.context(base, head, everything=everything)).findings

    def context(self, base: str, head: str, *, everything: bool) -> Context:
        """All that rules may look at."""
        change = self.repository.change(base, head, None)
        found = Impact() if everything else self._impact(change)
        base_tree, head_tree = self.tree(change.merge_base), self.tree(change.head)
        return Context(change, self.policy, {}, base_tree, head_tree, found, everything)

    def _impact(self, change: Change) -> Impact:
        paths = {path for file in change.files for path in (file.path, file.old_path)}
        return impact(self.index(change.merge_base), self.index(change.head), paths)


def bug_rows(history: History, bugs: list[Row]) -> Iterator[tuple[str, str, str, str, str]]:
    """Class, case, rule, whether it is flagged, whether the fix is clean."""
    for bug in bugs:
        codes = {RULE_OF[name] for name in bug["candidate_rules"] if name in RULE_OF}
        for code in sorted(codes):
            if bug["sha_role"] == "offending":
                found = history.findings(bug["parent_sha"], bug["fix_sha"], everything=False)
                hits = [item for item in found if item.code == code]
                yield bug["bug_class"], bug["case_id"], code, _marks(hits), "n/a"
                continue
            parent, fix = (
                Counter(
                    (item.path, item.message)
                    for item in history.findings(commit, commit, everything=True)
                    if item.code == code
                )
                for commit in (bug["parent_sha"], bug["fix_sha"])
            )
            gone = parent - fix
            sites = {path for path, _ in gone} | {site["file"] for site in bug["sites"]}
            left = [path for path, _ in fix.elements() if path in sites]
            names = "; ".join(f"{path}: {message}" for path, message in gone)
            state = f"{len(left)} left" if left else "clean"
            others = f", {fix.total() - len(left)} elsewhere"
            yield bug["bug_class"], bug["case_id"], code, names or "no", state + others


def _marks(hits: list[Finding]) -> str:
    return "; ".join(f"{item.path}:{item.line}: {item.message}" for item in hits) or "no"


def show_bugs(history: History, bugs: list[Row]) -> None:
    """Print a line for each bug and the sums for each class."""
    flagged: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    clean: Counter[tuple[str, str]] = Counter()
    for kind, case, code, parent, fix in bug_rows(history, bugs):
        total[kind, code] += 1
        clean[kind, code] += fix.startswith("clean")
        flagged[kind, code] += parent != "no"
        print(f"{code} {kind:24} {case:12} fix: {fix:20} flagged: {parent[:400]}")
    for kind, code in sorted(total):
        print(
            f"{code} {kind:24} {flagged[kind, code]} of {total[kind, code]} flagged, "
            f"{clean[kind, code]} fixes clean"
        )


def show_changes(history: History, changes: list[Row], only: str | None) -> None:
    """Print the findings on each change, their number and the time."""
    counts: Counter[str] = Counter()
    hit: Counter[str] = Counter()
    times = []
    for row in changes:
        context = history.context(row["parent"], row["sha"], everything=False)
        start = time.perf_counter()
        found = inspect(context).findings
        times.append(time.perf_counter() - start)
        counts.update(item.code for item in found)
        hit.update({item.code for item in found})
        for item in found:
            if only in (None, item.code):
                place = f"{item.path}:{item.line}"
                print(
                    f"#{row['pr']} {row['sha'][:8]} {item.code} {item.severity} "
                    f"{place} {item.message} {item.witness}"
                )
    for code in counts:
        print(f"{code}: {counts[code]} findings on {hit[code]} of {len(changes)} changes")
    times.sort()
    print(
        f"rules alone: median {statistics.median(times) * 1000:.0f} ms, "
        f"p99 {times[int(len(times) * 0.99)] * 1000:.0f} ms, most {times[-1] * 1000:.0f} ms"
    )


def show_tree(history: History, commit: str) -> None:
    """Print what the rules say of a whole tree."""
    found = history.findings(commit, commit, everything=True)
    for item in found:
        print(f"{item.code} {item.path}:{item.line}: {item.message}")
    print(f"{commit[:9]}: {len(found)} findings")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("git_dir", type=Path)
    parser.add_argument("bugs", type=Path)
    parser.add_argument("changes", type=Path)
    parser.add_argument("--policy", type=Path, default=Path("contracts/policy.yaml"))
    parser.add_argument("--part", choices=("bugs", "changes", "tree"))
    parser.add_argument("--code", choices=[code_of(rule)[0] for rule in rules()])
    options = parser.parse_args()
    # As the command does: syntax trees make no garbage, and looking for it doubles the time.
    gc.disable()
    policy = load(options.policy.read_bytes(), str(options.policy))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        subprocess.run(["git", "init", "--quiet", folder], check=True)
        objects = (options.git_dir / "objects").resolve()
        (work / ".git/objects/info/alternates").write_text(f"{objects}\n")
        with Repository(work) as repository:
            history = History(repository, policy, Cache(work / "cache.json"))
            if options.part in (None, "bugs"):
                show_bugs(history, _rows(options.bugs))
            if options.part in (None, "changes"):
                show_changes(history, _rows(options.changes), options.code)
            if options.part in (None, "tree"):
                newest = ["git", "--git-dir", str(options.git_dir), "rev-parse", "HEAD"]
                done = subprocess.run(newest, check=True, capture_output=True, text=True)
                show_tree(history, done.stdout.strip())


def _rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
