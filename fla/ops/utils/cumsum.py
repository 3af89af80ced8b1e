# SPDX-License-Identifier: MIT
"""Running sums over the rows of a tile inside a kernel."""

import triton
import triton.language as tl

__all__ = ["cumsum_tile"]


@triton.jit
def cumsum_tile(b_x, BT: tl.constexpr, REVERSE: tl.constexpr, MATRIX: tl.constexpr):
    """Sum fp32 rows [BT, BK] from the first, or under REVERSE from the last, up to each row.

    Under MATRIX the sum is a product with a triangle of ones: x splits into three bf16 parts that
    hold all 24 bits of it and ones are exact, so only the accumulation rounds, as in a scan; it
    takes a small part of a scan's instructions.
    """
    if MATRIX:
        o_t = tl.arange(0, BT)
        o_sum = o_t[None, :] - o_t[:, None] if REVERSE else o_t[:, None] - o_t[None, :]
        b_one = tl.where(o_sum >= 0, 1.0, 0.0).to(tl.bfloat16)
        b_hi = b_x.to(tl.bfloat16)
        b_rest = b_x - b_hi.to(tl.float32)
        b_mid = b_rest.to(tl.bfloat16)
        b_lo = (b_rest - b_mid.to(tl.float32)).to(tl.bfloat16)
        b_sum = tl.dot(b_one, b_lo)
        b_sum = tl.dot(b_one, b_mid, b_sum)
        b_sum = tl.dot(b_one, b_hi, b_sum)
    else:
        b_sum = tl.cumsum(b_x, axis=0, reverse=REVERSE)
    return b_sum
