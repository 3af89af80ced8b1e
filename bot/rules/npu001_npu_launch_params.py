"""What: `num_warps` or `num_stages` given to a launch or a config of a Triton-Ascend kernel.

Why: an NPU core has no warps and no software pipeline of this kind: Triton-Ascend does not
support the two options. At best they are ignored and a reader (or a tuner that tries each value)
is misled; at worst the compiler unrolls more than the unified buffer holds.

Bad:
    triton.Config({"BK": 64}, num_warps=4, num_stages=2)
    kernel[grid](x, y, num_warps=8)

Good:
    triton.Config({"BK": 64})
    kernel[grid](x, y)

Limits: looks at the paths whose `{backend}` the policy lists under `ascend_backends`. Sees
launches, configs and dictionaries with these keys, not values handed through functions before they
reach a launch elsewhere.

Source: shared rule catalogue, row npu-launch-params.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from bot.kernels import Sources, dotted, last_part, launched
from bot.rules import Context, Hit, touched

_OPTIONS = ("num_warps", "num_stages")


def suspects(context: Context) -> Iterator[Hit]:
    """Only sources of Triton-Ascend backends, as the policy names them."""
    policy = context.policy
    ascend = [
        path
        for path in touched(context)
        if policy.place(path)[1].get("backend") in policy.python.ascend_backends
    ]
    yield from check(context.head.sources, ascend)


def check(sources: Sources, paths: Sequence[str]) -> Iterator[Hit]:
    """Every launch, config and dictionary in the given files."""
    for path in paths:
        module = sources.module(path)
        for node in ast.walk(module.tree) if module else ():
            for name, value in _options(node):
                message = f"{_place(node)} gives `{name}`, which Triton-Ascend does not support"
                yield Hit(path, value.lineno, value.end_lineno or value.lineno, message)


def _place(node: ast.AST) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
        return f"the launch of `{dotted(node.func.value) or 'a kernel'}`"
    return "a configuration"


def _options(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The options that a piece of code gives, and where they stand."""
    if isinstance(node, ast.Dict):
        for key in node.keys:
            if isinstance(key, ast.Constant) and key.value in _OPTIONS:
                yield str(key.value), key
    if isinstance(node, ast.Call) and (
        launched(node) or last_part(node.func) in ("Config", "dict")
    ):
        for keyword in node.keywords:
            if keyword.arg in _OPTIONS:
                yield keyword.arg, keyword.value
