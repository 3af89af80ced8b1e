"""What: a kernel or its launcher is changed, no test is, and no existing test reaches it.

Why: nothing that runs can tell whether it still works. 69 of 158 kernel changes of public history
touch no test; for most of them an existing one does, and those are not meant here.

Bad:
    a new tile size in `fla/ops/foo/chunk.py`, and nothing under tests/ that calls `chunk_foo`

Good:
    the same change with `tests/ops/test_foo.py`, or with one that was there before

Limits: "reaches" is by names, from the changed definitions through callers, dispatch and registries
to tests, for the file as a whole: a tested neighbour hides an untested kernel. It says nothing
about which shapes or options a test uses.

Source: shared rule catalogue, row untested-kernel.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterator

from bot.globs import matches
from bot.kernels import device_code
from bot.model import Confidence, Severity
from bot.rules import Context, Hit


def compare(context: Context) -> Iterator[Hit]:
    """One hit for each file with changed kernels that no test reaches."""
    if context.everything or _tests_changed(context):
        return
    for path in context.impact.unreached:
        module = context.head.sources.module(path)
        kernels = device_code(module) if module else set()
        found = {item.name: item.line for item in context.impact.changed if item.path == path}
        changed = sorted(found.keys() & kernels)
        if changed and not matches(path, context.policy.python.inert):
            line = found[changed[0]]
            yield Hit(
                path=path,
                line=line,
                end_line=line,
                message=f"no test reaches `{changed[0]}`, and the change brings none",
                severity=Severity.WARNING,
                confidence=Confidence.MEDIUM,
            )


def _tests_changed(context: Context) -> bool:
    globs = context.policy.python.tests
    return any(matches(item.path, globs) for item in context.impact.changed)
