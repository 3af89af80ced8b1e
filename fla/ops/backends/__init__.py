# SPDX-License-Identifier: MIT
"""Choice among implementations of an operation."""

from fla.ops.backends.registry import BackendRegistry, BaseBackend, Route, dispatch

__all__ = ["BackendRegistry", "BaseBackend", "Route", "dispatch"]
