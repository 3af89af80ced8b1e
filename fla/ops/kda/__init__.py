# SPDX-License-Identifier: MIT
"""Kimi Delta Attention."""

from fla.ops.kda.chunk import chunk_kda
from fla.ops.kda.fused_recurrent import fused_recurrent_kda

__all__ = ["chunk_kda", "fused_recurrent_kda"]
