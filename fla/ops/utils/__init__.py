# SPDX-License-Identifier: MIT
"""Tables, scans and solves that ops are built from."""
