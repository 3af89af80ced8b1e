# SPDX-License-Identifier: MIT
"""Device functions that several ops share."""
