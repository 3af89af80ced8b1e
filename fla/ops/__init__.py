# SPDX-License-Identifier: MIT
"""Ops, one package each."""
