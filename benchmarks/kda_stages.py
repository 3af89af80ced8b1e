# SPDX-License-Identifier: MIT
"""Bytes, FLOPs, roofline and measured time of each stage of chunked KDA, forward and backward.

`python benchmarks/kda_stages.py` on a GPU; the ceilings are arguments, measured by a
large copy and a large bf16 product. Bytes count each tensor of a stage once, so that what programs
share in the cache is free; FLOPs count the products that a kernel issues, masked halves included.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

ROOT = Path(__file__).resolve().parents[1]


def stages(B: int, T: int, HV: int, K: int, V: int, levels: int) -> dict[str, tuple[int, float]]:
    """Bytes and FLOPs by kernel, for bf16 operands and chunks of 64, queries and keys per HV."""
    C = 64
    rows = B * T * HV
    chunks = rows // C
    k, v, c, G, h = 2 * rows * K, 2 * rows * V, 2 * rows * C, 4 * rows * K, 2 * chunks * K * V
    score, mix_k, mix_v, state = C * C * K, C * C * K, C * C * V, C * K * V
    flop = {
        "kda_fwd_intra": 2 * levels * score + 3 * C * C * K + 4 * C**3,
        "kda_fwd_factors": mix_k + mix_v,
        "kda_fwd_state": 2 * state,
        "kda_fwd_output": state + mix_v,
        "kda_bwd_state": 3 * state,
        "kda_bwd_values": 3 * mix_v,
        "kda_bwd_keys": 3 * state + 4 * levels * score + 3 * C * C * K,
    }
    size = {
        "kda_fwd_intra": 3 * k + G + 2 * c,
        "kda_fwd_factors": 2 * k + v + G + c + 3 * k + v,
        "kda_fwd_state": 2 * k + 2 * v + h,
        "kda_fwd_output": k + 2 * v + c + h,
        "kda_bwd_state": 3 * k + 3 * v + h,
        "kda_bwd_values": 6 * v + 3 * c,
        "kda_bwd_keys": 6 * k + G + 3 * v + 2 * c + 2 * h,
    }
    return {name: (size[name], 2.0 * chunks * flop[name]) for name in flop}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("B", 1), ("T", 8192), ("H", 32), ("K", 128), ("V", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--tbps", type=float, default=4.3, help="memory bandwidth, TB/s")
    parser.add_argument("--tflops", type=float, default=790.0, help="bf16 rate, TFLOP/s")
    parser.add_argument("--non-safe", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from fla.ops.kda import chunk_kda

    B, T, H, K, V = options.B, options.T, options.H, options.K, options.V

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda")

    x = {"q": draw(B, T, H, K), "k": draw(B, T, H, K), "v": draw(B, T, H, V), "g": draw(B, T, H, K)}
    x = {n: t.bfloat16() for n, t in x.items()}
    x |= {"beta": draw(B, T, H).sigmoid(), "A_log": draw(H), "dt_bias": draw(H * K)}
    leaves = [t.requires_grad_() for t in x.values()]
    do = draw(B, T, H, V).bfloat16()

    def step() -> None:
        o = chunk_kda(
            **x, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
            safe_gate=not options.non_safe, lower_bound=None if options.non_safe else -5.0,
        )[0]  # fmt: skip
        torch.autograd.grad(o, leaves, do)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    repeats = 10
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
    events = {e.key: e for e in trace.key_averages()}
    print("stage             calls      MiB   GFLOP  bytes us  FLOPs us  floor us  measured us")
    for name, (size, flop) in stages(B, T, H, K, V, 6 if options.non_safe else 3).items():
        event = events[f"{name}_kernel"]
        by_bytes, by_flops = size / options.tbps / 1e6, flop / options.tflops / 1e6
        print(
            f"{name:18s} {event.count / repeats:4.0f} {size / 2**20:8.0f} {flop / 1e9:7.1f} "
            f"{by_bytes:9.0f} {by_flops:9.0f} {max(by_bytes, by_flops):9.0f} "
            f"{event.self_device_time_total / event.count:12.0f}"
        )
    total = sum(e.self_device_time_total for e in events.values()) / repeats
    print(f"all kernels of a forward and backward: {total:.0f} us")


if __name__ == "__main__":
    main()
