# SPDX-License-Identifier: MIT
"""Lets the tests of ops import the modules beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
