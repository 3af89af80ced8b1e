# SPDX-License-Identifier: MIT
"""Runs KDA's kernels, forward and backward, dense and packed, under compute-sanitizer.

`python benchmarks/kda_sanitize.py` on a GPU: memcheck (stray and misaligned accesses) and racecheck
(hazards in shared memory) over small calls of every kernel. PyTorch's caching allocator is switched
off, so that each tensor is an allocation of its own and an access beside it is seen.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("memcheck", "racecheck")
PLACES = (
    "/usr/local/cuda/bin/compute-sanitizer",
    "/usr/local/cuda/compute-sanitizer/compute-sanitizer",
)

BASE: dict[str, Any] = {
    "B": 1, "T": 130, "H": 2, "HV": 2, "K": 128, "V": 128, "dtype": "bfloat16", "bound": -5.0,
    "cu": None, "options": {},
}  # fmt: skip
PACKED = (0, 1, 1, 34, 130)
CALLS: dict[str, dict[str, Any]] = {
    "dense": BASE,
    "dense, odd sizes": BASE | {"B": 2, "T": 65, "K": 60, "V": 40, "bound": None},
    "dense, 16 channels": BASE | {"K": 16, "V": 40},
    "dense, chunks of 32": BASE | {"T": 70, "K": 64, "V": 64, "options": {"chunk_size": 32}},
    "dense, fp32": BASE | {"T": 70, "H": 1, "HV": 1, "dtype": "float32"},
    "dense, fp16, values per head": BASE | {"T": 70, "H": 1, "K": 64, "V": 64, "dtype": "float16"},
    "packed": BASE | {"cu": PACKED},
    "packed, 16 channels": BASE | {"cu": PACKED, "K": 16, "V": 16, "dtype": "float16"},
    "packed, softplus": BASE | {"cu": PACKED, "K": 64, "V": 64, "bound": None},
    "packed, fp32": BASE | {"cu": PACKED, "H": 1, "HV": 1, "K": 32, "V": 32, "dtype": "float32"},
    "packed, table on the device": BASE | {
        "cu": PACKED, "K": 64, "V": 64, "options": {"use_graph": True, "max_num_seqs": 6},
    },
    "packed, 256 channels": BASE | {"cu": PACKED, "H": 1, "HV": 1, "K": 256, "V": 256},
}  # fmt: skip


def inputs(row: dict[str, Any]) -> dict[str, Any]:
    """Operands, drawn on the host: every launch on the GPU is checked and costs time."""
    import torch

    rng = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng)

    B, T, H, HV, K, V = (row[x] for x in ("B", "T", "H", "HV", "K", "V"))
    x = {"q": draw(B, T, H, K), "k": draw(B, T, H, K), "v": draw(B, T, HV, V)}
    x["g"] = draw(B, T, HV, K)
    x = {n: t.to(getattr(torch, row["dtype"])) for n, t in x.items()}
    x |= {"beta": draw(B, T, HV), "A_log": 0.5 * draw(HV), "dt_bias": 0.5 * draw(HV * K)}
    sequences = B if row["cu"] is None else len(row["cu"]) - 1
    x["initial_state"] = draw(sequences, HV, K, V)
    return {n: t.cuda() for n, t in x.items()}


def run(name: str) -> None:
    """Chunked forward and backward, the recurrence, and where packed a step of paged decoding."""
    import torch

    from fla.ops.kda import chunk_kda, fused_recurrent_kda
    from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd

    row = CALLS[name]
    x = {n: t.requires_grad_() for n, t in inputs(row).items()}
    cu = None if row["cu"] is None else torch.tensor(row["cu"], dtype=torch.int32).cuda()
    common = {
        "use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True, "lower_bound": row["bound"], "cu_seqlens": cu,
    }  # fmt: skip
    o, state = chunk_kda(**x, **common, output_final_state=True, **row["options"])
    aims = [torch.ones_like(o), torch.ones_like(state)]
    torch.autograd.grad([o, state], list(x.values()), aims)
    with torch.no_grad():
        fused_recurrent_kda(**x, **common, output_final_state=True)
        if cu is not None:
            slots = torch.tensor([3, -1, 0, 1], dtype=torch.int32).cuda()
            fused_recurrent_kda_fwd(**x, **common, scale=None, ssm_state_indices=slots)
    torch.cuda.synchronize()
    print("ran", name, flush=True)


def sanitizer() -> str:
    """Path of the tool."""
    found = shutil.which("compute-sanitizer") or next((p for p in PLACES if Path(p).exists()), None)
    if found is None:
        raise SystemExit("compute-sanitizer: expected on the PATH or in the CUDA toolkit's folder")
    return found


def main() -> None:
    """Run all calls under each tool and fail where one reports anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", nargs="+", default=list(TOOLS), choices=TOOLS)
    parser.add_argument("--calls", nargs="+", default=list(CALLS), choices=list(CALLS))
    parser.add_argument("--inner", action="store_true", help="make the calls; set by this script")
    options = parser.parse_args()
    if options.inner:
        sys.path.insert(0, str(ROOT))
        for name in options.calls:
            run(name)
        return
    inner = [sys.executable, __file__, "--inner", "--calls", *options.calls]
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    running = {
        tool: subprocess.Popen(
            [sanitizer(), "--tool", tool, "--error-exitcode", "9", *inner],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for tool in options.tools
    }  # fmt: skip
    failed = False
    for tool, process in running.items():
        said = process.communicate()[0]
        lines = said.splitlines()
        failed |= process.returncode != 0
        print(f"{tool}: exit status {process.returncode}", *lines[:60], *lines[-12:], sep="\n  ")
    sys.exit(failed)


if __name__ == "__main__":
    main()
