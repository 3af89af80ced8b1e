# SPDX-License-Identifier: MIT
"""Where launch configurations come from: this package fixes them and keeps no tuning results."""

from __future__ import annotations

from enum import Enum

__all__ = ["FLA_CACHE_MODE", "CacheMode"]


class CacheMode(Enum):
    """Sources of a kernel's launch configuration."""

    DEFAULT = "default"

    def uses_default_config(self) -> bool:
        """Whether kernels run in configurations fixed in the source."""
        return self is CacheMode.DEFAULT


FLA_CACHE_MODE = CacheMode.DEFAULT
