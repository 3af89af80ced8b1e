# SPDX-License-Identifier: MIT
"""Device functions that place a program on its chunk of tokens."""

import triton
import triton.language as tl

__all__ = ["chunk_span", "sequence_span"]


@triton.jit
def chunk_span(i_c, cu_seqlens, chunk_indices, T, NT, BT: tl.constexpr, VARLEN: tl.constexpr):
    """First token (int64, over the flattened batch) and number of tokens of chunk i_c.

    Dense: chunk i_c is the (i_c % NT)-th of batch entry i_c // NT. Varlen: chunk_indices
    [chunks, 2] names sequence and chunk; a negative sequence is padding and has no tokens. Offsets
    are held within [0, T], so that a bad cu_seqlens gives wrong numbers but no stray access.
    """
    if VARLEN:
        i_n = tl.load(chunk_indices + i_c * 2).to(tl.int64)
        i_t = tl.load(chunk_indices + i_c * 2 + 1).to(tl.int64)
        at = cu_seqlens + tl.maximum(i_n, 0)
        bos = tl.minimum(tl.maximum(tl.load(at).to(tl.int64), 0), T)
        eos = tl.minimum(tl.maximum(tl.load(at + 1).to(tl.int64), bos), T)
        first = tl.minimum(bos + i_t * BT, eos)
        rows = tl.where(i_n < 0, 0, tl.minimum(eos - first, BT))
    else:
        i_t = i_c % NT
        first = (i_c // NT).to(tl.int64) * T + i_t * BT
        rows = tl.minimum(T - i_t * BT, BT)
    return first, rows.to(tl.int32)


@triton.jit
def sequence_span(
    i_n, cu_seqlens, chunk_offsets, T, NT, CHUNKS, BT: tl.constexpr, VARLEN: tl.constexpr
):
    """First token (int64), length, first chunk (int64) and number of chunks of sequence i_n."""
    if VARLEN:
        bos = tl.minimum(tl.maximum(tl.load(cu_seqlens + i_n).to(tl.int64), 0), T)
        eos = tl.minimum(tl.maximum(tl.load(cu_seqlens + i_n + 1).to(tl.int64), bos), T)
        length = (eos - bos).to(tl.int32)
        chunk = tl.load(chunk_offsets + i_n).to(tl.int64)
        count = tl.minimum(tl.cdiv(length, BT), tl.maximum(CHUNKS - chunk, 0).to(tl.int32))
    else:
        bos = i_n.to(tl.int64) * T
        length = T
        chunk = i_n.to(tl.int64) * NT
        count = NT
    return bos, length, chunk, count
