# SPDX-License-Identifier: MIT
"""Device functions that place a program on its tokens and on its block of a state."""

import triton
import triton.language as tl

__all__ = ["chunk_program", "sequence_bounds", "sequence_span", "state_program"]


@triton.jit
def sequence_bounds(i_n, cu_seqlens, T):
    """First token and end (int64) of packed sequence i_n.

    Both are held within [0, T], so that a bad cu_seqlens gives wrong numbers but no stray access.
    """
    bos = tl.minimum(tl.maximum(tl.load(cu_seqlens + i_n).to(tl.int64), 0), T)
    eos = tl.minimum(tl.maximum(tl.load(cu_seqlens + i_n + 1).to(tl.int64), bos), T)
    return bos, eos


@triton.jit
def chunk_program(
    i_p, HV, cu_seqlens, chunk_indices, T, NT, BT: tl.constexpr, VARLEN: tl.constexpr
):
    """Place program i_p of the grid (chunks * HV).

    Dense: chunk i_c is the (i_c % NT)-th of batch entry i_c // NT. Varlen: chunk_indices
    [chunks, 2] names sequence and chunk; a negative sequence is padding and has no tokens.

    Returns the head, the index of the chunk's tile in chunk-major tensors (int64), the chunk's
    first token (int64, over the flattened batch) and its number of tokens.
    """
    i_c, i_h = i_p // HV, i_p % HV
    if VARLEN:
        i_n = tl.load(chunk_indices + i_c * 2).to(tl.int64)
        i_t = tl.load(chunk_indices + i_c * 2 + 1).to(tl.int64)
        bos, eos = sequence_bounds(tl.maximum(i_n, 0), cu_seqlens, T)
        first = tl.minimum(bos + i_t * BT, eos)
        rows = tl.where(i_n < 0, 0, tl.minimum(eos - first, BT))
    else:
        i_t = i_c % NT
        first = (i_c // NT).to(tl.int64) * T + i_t * BT
        rows = tl.minimum(T - i_t * BT, BT)
    return i_h, i_c.to(tl.int64) * HV + i_h, first, rows.to(tl.int32)


@triton.jit
def sequence_span(
    i_n, cu_seqlens, chunk_offsets, T, NT, CHUNKS, BT: tl.constexpr, VARLEN: tl.constexpr
):
    """First token (int64), length, first chunk (int64) and number of chunks of sequence i_n."""
    if VARLEN:
        bos, eos = sequence_bounds(i_n, cu_seqlens, T)
        length = (eos - bos).to(tl.int32)
        chunk = tl.load(chunk_offsets + i_n).to(tl.int64)
        count = tl.minimum(tl.cdiv(length, BT), tl.maximum(CHUNKS - chunk, 0).to(tl.int32))
    else:
        bos = i_n.to(tl.int64) * T
        length = T
        chunk = i_n.to(tl.int64) * NT
        count = NT
    return bos, length, chunk, count


@triton.jit
def state_program(
    HV, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    STATE_K: tl.constexpr, STATE_V: tl.constexpr,
):  # fmt: skip
    """Place a program of the grid (N * HV * cdiv(V, BV)) on BV value columns of a head's state.

    Returns the sequence (int64), the head, key rows, value columns, and the block's offsets
    [BK, BV] within one sequence's states, whose strides are STATE_K and STATE_V. BK covers K.
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v, i_h = tl.program_id(0) % NV, (tl.program_id(0) // NV) % HV
    i_n = (tl.program_id(0) // (NV * HV)).to(tl.int64)
    o_k = tl.arange(0, BK)
    o_d = i_v * BV + tl.arange(0, BV)
    o_state = i_h * (K * V) + o_k[:, None] * STATE_K + o_d[None, :] * STATE_V
    return i_n, i_h, o_k, o_d, o_state
