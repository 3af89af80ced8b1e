# SPDX-License-Identifier: MIT
"""Kernels of linear attention with the paths and signatures of flash-linear-attention."""
