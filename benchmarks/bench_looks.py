# SPDX-License-Identifier: MIT
"""How often the benchmark's verdict is right, by resampling blocks that were recorded on a GPU.

`python benchmarks/bench_looks.py` draws runs from the equal arms in `tests/data/bench_blocks.json`,
which change places at random, makes head slower by a known share, and looks after three restarts
and more as the lane does. Printed: per cent of runs proved within the margin of 1%, proved slower,
and open after the last look, and restarts taken.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import Counter
from pathlib import Path

from bot.statistics import FEWEST, MOST, Side, decisive, log_ratio, side

RUNS = Path(__file__).resolve().parent.parent / "tests/data/bench_blocks.json"
SHARES = (0.0, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)


def run(
    restarts: list[list[list[float]]], scale: float, edge: float, rng: random.Random
) -> tuple[Side, int]:
    """What one run says, and after how many restarts."""
    values = list[float]()
    for restart in rng.sample(restarts, MOST):
        base, head = rng.sample(restart, 2)
        values.append(log_ratio(base, [scale * time for time in head]))
        if len(values) >= FEWEST and side(decisive(values), edge) != "open":
            break
    return side(decisive(values), edge), len(values)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--margin", type=float, default=1.0, help="per cent")
    options = parser.parse_args()
    recorded, rng = json.loads(RUNS.read_text()), random.Random(options.seed)
    edge = math.log1p(options.margin / 100)
    print(f"{'row':<8} {'slower':>7} {'within':>7} {'beyond':>7} {'open':>7} {'restarts':>9}")
    for kind in ("aa", "aa_both"):
        for share in SHARES:
            found = [run(recorded[kind], 1 + share / 100, edge, rng) for _ in range(options.runs)]
            sides = Counter(said for said, _ in found)
            parts = [f"{sides[name] / options.runs:7.1%}" for name in ("within", "beyond", "open")]
            mean = sum(count for _, count in found) / options.runs
            print(f"{kind:<8} {share:6.1f}% {' '.join(parts)} {mean:9.2f}")


if __name__ == "__main__":
    main()
