# SPDX-License-Identifier: MIT
"""Finds compiled kernels that read a uniform register which no instruction writes.

`python benchmarks/kda_cubins.py ~/.triton/cache`: ptxas 12.8, which Triton 3.6 brings along, drops
the base of matrix descriptors from some kernels with wgmma. Their results are wrong and may be
read from anywhere, though the source is right. Needs no GPU; the exit status is 1 on a find.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import triton

LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T0-9]+\s+)?([A-Z0-9_.]+)\s*(.*?);")
UNIFORM_RESULT = ("U", "R2UR", "S2UR", "REDUX", "VOTEU", "LDCU")


def written(op: str, operands: list[str]) -> range:
    """Uniform registers that an instruction writes."""
    found = re.fullmatch(r"UR(\d+)", operands[0])
    if not found or not op.startswith(UNIFORM_RESULT):
        return range(0)
    width = 4 if ".128" in op else 2 if ".64" in op or "WIDE" in op else 1
    return range(int(found[1]), int(found[1]) + width)


def read(op: str, operands: list[str]) -> Iterator[int]:
    """Uniform registers that an instruction reads, descriptors included."""
    text = ",".join(operands[len(written(op, operands)) > 0 :])
    for kind, first in re.findall(r"(g?desc)\[UR(\d+)\]", text):
        # Descriptors of both matrices; the first is idle where that matrix is in registers.
        idle = 2 if kind == "gdesc" and re.match(r"R\d+", operands[1]) else 0
        yield from range(int(first) + idle, int(first) + (4 if kind == "gdesc" else 2))
    yield from map(int, re.findall(r"\bUR(\d+)\b", re.sub(r"g?desc\[UR\d+\]", "", text)))


def unwritten(path: Path) -> dict[int, str]:
    """Uniform registers without a writer, each with the first instruction that reads it."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    done = subprocess.run([tool, "-c", path], capture_output=True, text=True, check=True)
    writers: set[int] = set()
    readers: dict[int, str] = {}
    for op, rest in LINE.findall(done.stdout):
        operands = [operand.strip() for operand in rest.split(",")]
        writers.update(written(op, operands))
        for register in read(op, operands):
            readers.setdefault(register, f"{op} {rest}")
    return {r: text for r, text in sorted(readers.items()) if r not in writers}


def main() -> None:
    """Scan all cubins below a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--name", default="kda_", help="start of the kernels' names")
    options = parser.parse_args()
    paths = sorted(options.cache.rglob(f"{options.name}*.cubin"))
    found = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, registers in zip(paths, pool.map(unwritten, paths), strict=True):
            if registers:
                found += 1
                print(path, *(f"UR{r}: {text}" for r, text in registers.items()), flush=True)
    print(f"{len(paths)} kernels, {found} with unwritten registers")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
