"""Runs `fla-bot check` over a list of real changes: crashes, unknown files, verdicts, time, memory.

Every check is a process of its own, as a user starts it. `--cold` empties the cache before each.
Usage: python benchmarks/check_history.py REPOSITORY PRS.jsonl --policy DIR [--cold] [--most N]
       [--reports DIR]
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple


class Run(NamedTuple):
    """One process."""

    seconds: float
    megabytes: float
    status: int
    report: dict[str, Any]
    message: str


def run(argv: list[str], env: dict[str, str]) -> Run:
    """Start, wait, and take the child's own peak memory."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        child = subprocess.Popen(argv, stdout=out, stderr=err, env=env)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text, message = out.read(), err.read().decode(errors="replace")
    report = json.loads(text) if text.startswith(b"{") else {}
    return Run(seconds, usage.ru_maxrss / 1024, child.returncode, report, message)


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least this share does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> int:
    """Print the table; 1 if a check crashed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("changes", type=Path)
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--most", type=int, default=None)
    parser.add_argument("--reports", type=Path)
    arguments = parser.parse_args()
    lines = arguments.changes.read_text().splitlines()
    changes = [json.loads(line) for line in lines][: arguments.most]
    cache = Path(tempfile.mkdtemp(prefix="fla-bot-cache-"))
    env = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    # As an installed tool: its bytecode lies beside it.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    tool = [str(Path(sys.executable).with_name("fla-bot")), "check", "--format", "json"]
    tool += ["--repo", str(arguments.repository), "--policy", str(arguments.policy)]
    runs = {}
    for change in changes:
        argv = [*tool, "--base", change["parent"], "--head", change["sha"]]
        if arguments.cold:
            shutil.rmtree(cache, ignore_errors=True)
        else:
            run(argv, env)  # the first run fills the cache
        runs[change["sha"]] = found = run(argv, env)
        if arguments.reports:
            arguments.reports.mkdir(parents=True, exist_ok=True)
            name = f"{change['pr'] or 0}-{change['sha'][:10]}.json"
            (arguments.reports / name).write_text(json.dumps(found.report, indent=1))
    shutil.rmtree(cache, ignore_errors=True)
    return show(list(runs.items()), cold=arguments.cold)


def show(runs: list[tuple[str, Run]], *, cold: bool) -> int:
    """Print what was measured."""
    crashed = [
        (sha, found) for sha, found in runs if found.status not in (0, 1) or not found.report
    ]
    for sha, found in crashed:
        print(f"CRASH {sha[:12]} status {found.status}: {found.message.strip()[-300:]}")
    reports = [found.report for _, found in runs if found.report]
    files = sum(len(report["change"]["files"]) for report in reports)
    unknown = [path for report in reports for path in report["scope"]["unknown"]]
    seconds = [found.seconds for _, found in runs]
    findings = Counter(f["code"] for report in reports for f in report["findings"])
    tests = [len(report["impact"]["tests"]) for report in reports]
    print(f"{len(runs)} changes, {len(crashed)} crashed, {files} changed files")
    print(f"in no area: {len(unknown)} ({100 * len(unknown) / max(1, files):.1f}%)")
    for path, count in Counter(unknown).most_common(10):
        print(f"    {count:4} {path}")
    print("verdicts:", dict(Counter(report["state"] for report in reports)))
    print("findings:", dict(findings))
    print(f"tests selected: median {statistics.median(tests):g}, max {max(tests)}")
    print(f"widened: {sum(bool(report['scope']['widened']) for report in reports)} changes")
    print(
        f"{'cold' if cold else 'warm'}: p50 {quantile(seconds, 0.5):.2f} s, "
        f"p99 {quantile(seconds, 0.99):.2f} s, max {max(seconds):.2f} s; "
        f"peak memory {max(found.megabytes for _, found in runs):.0f} MB"
    )
    return bool(crashed)


if __name__ == "__main__":
    sys.exit(main())
