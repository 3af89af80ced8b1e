"""Whether an entry point still has the signature that its contract promises."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import ast

from bot.contract import EntryPoint, parameters
from bot.kernels import Sources

__all__ = ["keywords", "signature_faults"]


def signature_faults(point: EntryPoint, sources: Sources) -> str:
    """What a caller of the promised signature would miss in a tree, or nothing.

    The function may take more than promised, as long as the rest has defaults.
    """
    module, _, name = point.target.partition(":")
    stem = module.replace(".", "/")
    found = sources.module(f"{stem}/__init__.py") or sources.module(f"{stem}.py")
    if found is None or name not in found.bindings:
        return f"there is no {point.target}"
    promised = parameters(point.compatibility.signature) if point.compatibility else None
    faults = []
    # What a name leads to may depend on conditions: each function must fit. What leads to
    # something else than a function (`f = Function.apply`) cannot be told from here.
    for target in sources.find_all(found, name):
        if isinstance(target.node, ast.FunctionDef) and not target.attribute:
            actual = target.node.args
            faults += [f"`{arg}` is no parameter" for arg in point.args if not _takes(actual, arg)]
            faults += _differences(promised, actual) if promised is not None else []
    return "; ".join(dict.fromkeys(faults))


def keywords(old: EntryPoint, new: EntryPoint) -> dict[str, str | None]:
    """What a later contract calls arguments of an earlier one; None for those that it has not.

    The first one without a name is the first new one that is declared alike, and so on.
    """
    left = {name: spec for name, spec in new.args.items() if name not in old.args}
    found: dict[str, str | None] = {}
    for name, spec in old.args.items():
        if name not in new.args:
            found[name] = next((other for other, like in left.items() if like == spec), None)
            left.pop(found[name] or "", None)
    return found


def _takes(actual: ast.arguments, name: str) -> bool:
    names = {argument.arg for argument in (*actual.args, *actual.kwonlyargs)}
    return name in names or actual.kwarg is not None


def _defaults(spec: ast.arguments) -> dict[str, str | None]:
    """Parameters in order of position, then keyword-only ones; the default as text or None."""
    positional = [*spec.posonlyargs, *spec.args]
    texts = [None] * (len(positional) - len(spec.defaults)) + [*map(ast.unparse, spec.defaults)]
    found = dict(zip((argument.arg for argument in positional), texts, strict=True))
    for argument, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        found[argument.arg] = None if default is None else ast.unparse(default)
    return found


def _differences(promised: ast.arguments, actual: ast.arguments) -> list[str]:
    want, have = _defaults(promised), _defaults(actual)
    faults = [f"`{name}` is gone" for name in want if name not in have]
    faults += [
        f"`{name}` has the default {have[name] or 'none'}, promised {want[name] or 'none'}"
        for name in want
        if name in have and want[name] != have[name] and want[name] != "..."
    ]
    faults += [
        f"`{name}` is new and has no default"
        for name in have
        if name not in want and have[name] is None
    ]
    order = [a.arg for a in (*promised.posonlyargs, *promised.args)]
    now = [a.arg for a in (*actual.posonlyargs, *actual.args)]
    if not faults and now[: len(order)] != order:
        faults.append(f"positions are {', '.join(now)}, promised {', '.join(order)}")
    return faults
