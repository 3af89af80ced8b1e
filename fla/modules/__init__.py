"""Layers built from the kernels."""

# SPDX-License-Identifier: MIT

from fla.modules.l2norm import L2Norm

__all__ = ["L2Norm"]
