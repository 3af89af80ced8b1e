# SPDX-License-Identifier: MIT
"""Triangular solve inside a kernel: the inverse that the delta rule's WY form needs."""

import triton
import triton.language as tl

__all__ = ["solve_delta"]


@triton.jit
def solve_delta(b_A, b_beta, BT: tl.constexpr, PRECISION: tl.constexpr):
    """Return P = (I + A diag(beta))^-1 A for strictly lower A [BT, BT] fp32, beta [BT] fp32.

    The inverses used by the caller follow without a division: (I + A diag(beta))^-1 = I - P
    diag(beta) and (I + diag(beta) A)^-1 = I - diag(beta) P. Blocks of 16 rows are solved by forward
    substitution, exact in fp32 also where powers of A grow (collinear keys); then pairs of solved
    blocks are joined, 16 + 16 and 32 + 32, by two products each.
    """
    NB: tl.constexpr = BT // 16
    o_b = tl.arange(0, NB)
    o_r = tl.arange(0, 16)
    m_same = o_b[:, None, None, None] == o_b[None, None, :, None]
    b_L = b_A * b_beta[None, :]
    b_P3 = tl.sum(tl.where(m_same, tl.reshape(b_A, [NB, 16, NB, 16]), 0.0), 2)
    b_L3 = tl.sum(tl.where(m_same, tl.reshape(b_L, [NB, 16, NB, 16]), 0.0), 2)
    for i in range(1, 16):
        m_i = o_r[None, :, None] == i
        b_l = tl.sum(tl.where(m_i, b_L3, 0.0), 1)  # [NB, 16], row i of every block
        b_u = tl.sum(b_l[:, :, None] * b_P3, 1)
        b_P3 = tl.where(m_i, b_P3 - b_u[:, None, :], b_P3)
    b_P = tl.reshape(tl.where(m_same, b_P3[:, :, None, :], 0.0), [BT, BT])

    o_t = tl.arange(0, BT)
    for i in range(BT // 32):
        m = 16 << i
        m_pair = (o_t[:, None] // (2 * m) == o_t[None, :] // (2 * m)) & (
            (o_t[:, None] & m) > (o_t[None, :] & m)
        )
        b_X = tl.where(m_pair, b_A, 0.0)
        b_X -= tl.dot(b_X, b_beta[:, None] * b_P, input_precision=PRECISION)
        b_P += b_X - tl.dot(b_P * b_beta[None, :], b_X, input_precision=PRECISION)
    return b_P
