"""Run one of our modules as a trusted process: closed to its own user, gone with its parent.

Started as `python -I -m bot.lanes.trusted MODULE ARGUMENT...`; nobody imports it.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import runpy
import sys

from bot.lanes.processes import die_with_parent, make_undumpable

if __name__ == "__main__":
    make_undumpable()
    die_with_parent()
    module = sys.argv[1]
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
