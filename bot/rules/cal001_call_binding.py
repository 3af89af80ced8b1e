"""What: a call, `Function.apply` or `kernel[grid](...)` that does not fit its callee's signature.

Why: a renamed or added parameter that one caller missed fails only when that path runs, and many
paths of a kernel repository run on hardware that the author does not have. 22 of 222 mined bugs.

Bad:
    def scale(x, factor): ...
    scale(x, factr=2)

Good:
    scale(x, factor=2)

Limits: looks at callees that are found without running anything: functions of the same file and
imported ones, through re-exports. Left out: `*args`/`**kwargs` at the call hide missing arguments;
functions under decorators other than jit, autotune and heuristics; names bound more than once or
inside a function.

Source: shared rule catalogue, row call-binding.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from bot.kernels import Module, Sources, Target, calls, dotted, provided_names
from bot.rules import Context, Hit

# Triton takes these at every launch, whatever the kernel's own parameters are.
_LAUNCH_OPTIONS = frozenset(
    {"num_warps", "num_stages", "num_ctas", "maxnreg", "warmup", "launch_pdl", "grid", "debug"}
    | {"waves_per_eu", "matrix_instr_nonkdim", "kpack", "launch_cooperative_grid", "stream"}
)
_JIT = frozenset({"jit", "autotune", "heuristics"})


@dataclass(frozen=True, slots=True)
class _Callee:
    """A signature to bind to, without the parameters that the caller does not give."""

    name: str
    arguments: ast.arguments
    drop_first: bool
    provided: frozenset[str]
    complete: bool
    launch: bool


def check(context: Context) -> Iterator[Hit]:
    """Every call in the reported files."""
    for path in context.paths:
        module = context.sources.module(path)
        if module is None:
            continue
        for node, local in calls(module.tree):
            callee = None if local else _callee(context.sources, module, node)
            problem = _problem(callee, node) if callee else None
            if problem:
                yield Hit(path, node.lineno, node.end_lineno or node.lineno, problem)


def _callee(sources: Sources, module: Module, node: ast.Call) -> _Callee | None:
    func = node.func
    launch = isinstance(func, ast.Subscript)
    name = dotted(func.value if isinstance(func, ast.Subscript) else func)
    if not name:
        return None
    if name.endswith(".apply"):
        return _apply(sources, module, name.removesuffix(".apply"))
    target = sources.find(module, name)
    if target is None or isinstance(target.node, ast.ClassDef):
        return None
    kinds = {_decorator(item) for item in target.node.decorator_list}
    if kinds - _JIT or (launch and "jit" not in kinds):
        return None
    provided, complete = provided_names(target) if launch else (set[str](), True)
    return _Callee(name, target.node.args, False, frozenset(provided), complete, launch)


def _decorator(node: ast.expr) -> str:
    return dotted(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2] or "?"


def _apply(sources: Sources, module: Module, name: str) -> _Callee | None:
    target = sources.find(module, name)
    if target is None or not isinstance(target.node, ast.ClassDef):
        return None
    if not any(dotted(base).rpartition(".")[2] == "Function" for base in target.node.bases):
        return None
    forward = _method(target, "forward")
    # Without a setup_context method, forward's first parameter is ctx, which apply supplies.
    drop = _method(target, "setup_context") is None
    if forward is None:
        return None
    return _Callee(f"{name}.apply", forward.args, drop, frozenset(), True, False)


def _method(target: Target, name: str) -> ast.FunctionDef | None:
    assert isinstance(target.node, ast.ClassDef)
    for node in target.node.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    return None


def _problem(callee: _Callee, node: ast.Call) -> str | None:
    """Why the call does not bind, in words that name callee and argument."""
    spec = callee.arguments
    positional = [*spec.posonlyargs, *spec.args][callee.drop_first :]
    names = [argument.arg for argument in positional]
    starred = any(isinstance(item, ast.Starred) for item in node.args)
    keywords = [keyword.arg for keyword in node.keywords]
    if not starred and len(node.args) > len(names) and spec.vararg is None:
        most, got = len(names), len(node.args)
        return f"`{callee.name}` takes {most} positional arguments, the call gives {got}"
    taken = set(names[: 0 if starred else len(node.args)])
    by_name = {argument.arg for argument in spec.args} | {a.arg for a in spec.kwonlyargs}
    for keyword in filter(None, keywords):
        if keyword in taken:
            return f"`{callee.name}` gets `{keyword}` twice"
        option = callee.launch and keyword in _LAUNCH_OPTIONS
        if keyword not in by_name and spec.kwarg is None and not option:
            return f"`{callee.name}` has no parameter `{keyword}`"
    if starred or None in keywords or not callee.complete:
        return None
    given = taken | set(filter(None, keywords)) | callee.provided
    missing = [name for name in _required(spec, names) if name not in given]
    if missing:
        return f"`{callee.name}` misses {', '.join(f'`{name}`' for name in missing)}"
    return None


def _required(spec: ast.arguments, names: list[str]) -> list[str]:
    needed = names[: len(names) - len(spec.defaults)] if spec.defaults else names
    pairs = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    return [*needed, *(argument.arg for argument, default in pairs if default is None)]
