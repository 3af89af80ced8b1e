"""The parsed view of Python sources that rules share: bindings, calls, jit kernels, launches."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Binding", "Call", "Counted", "Function", "Imported", "Module", "Provided", "Sources", "Target",
    "calls", "device_code", "dotted", "is_kernel", "last_part", "launched", "most_configurations",
    "parse_module", "provided_names",
]  # fmt: skip

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

# How many names lead to other names before we give up: a cycle of imports ends here.
_HOPS = 8


class Imported(NamedTuple):
    """A name that stands for something elsewhere: its absolute dotted name."""

    meaning: str


# What a name is bound to; None is what cannot be followed: a loop target, a computed value.
Binding = Definition | Imported | ast.expr | None
_Scope = Mapping[str, list[Binding]]


@dataclass(slots=True)
class Module:
    """One file: everything that its top-level names are bound to, conditions ignored.

    `has_escapes`: functions may bind names in ways that only a walk over all of them finds.
    """

    path: str
    name: str
    tree: ast.Module
    has_escapes: bool = False
    bindings: dict[str, list[Binding]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """A definition that a name leads to, the module that holds it, and an attribute of it."""

    module: Module
    node: Definition
    attribute: str = ""


class Call(NamedTuple):
    """A call, and what the names mean that are bound in the functions around it."""

    node: ast.Call
    scope: _Scope

    @property
    def name(self) -> str:
        """The callee's dotted name, a kernel's in a launch; empty for anything else."""
        func = self.node.func
        return dotted(func.value if isinstance(func, ast.Subscript) else func)


class Provided(NamedTuple):
    """Parameters that decorators of a kernel fill in; `is_complete`: there are no others."""

    names: set[str]
    is_complete: bool


def module_name(path: str) -> str:
    """`fla/ops/kda/__init__.py` is `fla.ops.kda`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def dotted(node: ast.AST | None) -> str:
    """`a.b.c` of a chain of attributes, or an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


def last_part(node: ast.expr) -> str:
    """`jit` of `triton.jit` and `triton.jit(...)`; `?` of what has no name."""
    name = dotted(node.func if isinstance(node, ast.Call) else node)
    return name.rpartition(".")[2] or "?"


def is_kernel(node: ast.AST) -> bool:
    """Whether a definition is compiled for a device."""
    return isinstance(node, Function) and "jit" in map(last_part, node.decorator_list)


def launched(node: ast.Call) -> bool:
    """Whether a call has the form `kernel[grid](...)`."""
    return isinstance(node.func, ast.Subscript)


def device_code(module: Module) -> set[str]:
    """Functions and methods (`Class.method`) of a file that are kernels or launch one."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, Function)]
            found |= {f"{node.name}.{item.name}" for item in methods if _is_device(item)}
        elif isinstance(node, Function) and _is_device(node):
            found.add(node.name)
    return found


def _is_device(node: ast.AST) -> bool:
    return is_kernel(node) or any(
        isinstance(call, ast.Call) and launched(call) for call in ast.walk(node)
    )


_BINDING_WORDS = (b"global ", b"nonlocal ", b":=", b"except ", b"match ")


@lru_cache(maxsize=1024)
def parse_module(path: str, text: bytes) -> Module:
    """Parse a file; SyntaxError or ValueError where it is no Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        escapes = any(word in text for word in _BINDING_WORDS)
        module = Module(path, module_name(path), ast.parse(text), escapes)
    for name, binding in _bound_by(module.tree.body, module):
        module.bindings.setdefault(name, []).append(binding)
    return module


def _bound_by(body: list[ast.stmt], module: Module) -> Iterator[tuple[str, Binding]]:
    """What a block binds, also under `if`, `try`, `with` and loops, but not in functions."""
    for node in body:
        if isinstance(node, Definition):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imported(module, node)
        elif isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) for t in node.targets):
            yield from ((target.id, node.value) for target in node.targets)  # type: ignore[attr-defined]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.value
        else:
            blocks = list(_blocks(node))
            yield from ((name, None) for name in _stored(node, apart_from=blocks))
            for block in blocks:
                yield from _bound_by(block, module)


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for part in ("body", "orelse", "finalbody"):
        block = getattr(node, part, None)
        if block:
            yield block
    for clause in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield clause.body


def _stored(node: ast.AST, apart_from: list[list[ast.stmt]]) -> Iterator[str]:
    """Names that an expression or a header binds in a way that we do not follow."""
    inner = {id(item) for block in apart_from for item in block}
    for child in ast.iter_child_nodes(node):
        if id(child) not in inner and not isinstance(child, ast.excepthandler | ast.match_case):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                yield child.id
            yield from _stored(child, apart_from)


def _imported(module: Module, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Imported]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            local = alias.asname or alias.name.split(".")[0]
            yield local, Imported(alias.name if alias.asname else local)
        return
    package = module.name.split(".")
    if node.level:
        is_package = module.path.endswith("/__init__.py")
        package = package[: len(package) - node.level + is_package]
    origin = ".".join([*(package if node.level else []), *filter(None, [node.module])])
    for alias in node.names:
        yield alias.asname or alias.name, Imported(f"{origin}.{alias.name}")


def calls(module: Module, lines: AbstractSet[int] | None = None) -> Iterator[Call]:
    """Every call of a file, in no order; with `lines`, of the top-level statements around them."""
    stack: list[tuple[ast.AST, _Scope]] = [
        (node, {})
        for node in module.tree.body
        if lines is None or not lines.isdisjoint(range(node.lineno, (node.end_lineno or 0) + 1))
    ]
    while stack:
        node, scope = stack.pop()
        if isinstance(node, ast.Call):
            yield Call(node, scope)
        if isinstance(node, Function | ast.Lambda):
            scope = {**scope, **_scope_of(node, module)}
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            scope = {**scope, **{name: [None] for name in _stored(node, [])}}
        stack += [(child, scope) for child in ast.iter_child_nodes(node)]


def _scope_of(function: Function | ast.Lambda, module: Module) -> dict[str, list[Binding]]:
    """What a function's own names mean."""
    spec = function.args
    stars = [star for star in (spec.vararg, spec.kwarg) if star is not None]
    names = [item.arg for item in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *stars)]
    scope: dict[str, list[Binding]] = {name: [None] for name in names}
    if isinstance(function, Function):
        for name, binding in _bound_by(function.body, module):
            scope.setdefault(name, []).append(binding)
        for name in _escaping(function) if module.has_escapes else ():
            scope[name] = [None]
    return scope


def _escaping(function: Function) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield from node.names
        elif isinstance(node, ast.NamedExpr):
            yield node.target.id
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest


class Sources:
    """The Python files of a tree, parsed on demand, and where the names in them lead."""

    def __init__(self, files: Mapping[str, bytes | None]) -> None:
        self.files = files
        self._modules: dict[str, Module | None] = {}

    def module(self, path: str) -> Module | None:
        """The parsed file, or None where there is none or it does not parse."""
        if path not in self._modules:
            text = self.files.get(path)
            try:
                self._modules[path] = None if text is None else parse_module(path, text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._modules[path] = None
        return self._modules[path]

    def find(self, module: Module, name: str) -> Target | None:
        """The one definition behind a dotted name as `module` sees it."""
        found = self.find_all(module, name)
        return found[0] if len(found) == 1 and not found[0].attribute else None

    def find_all(
        self, module: Module, name: str, scope: _Scope | None = None, hops: int = _HOPS
    ) -> list[Target]:
        """All definitions that a name may lead to; none at all if one of its meanings is unknown.

        `if HAS_X: def f ... else: def f ...` has two, `try: import f` with `f = None` none.
        """
        head, _, rest = name.partition(".")
        local = scope is not None and head in scope
        bindings = scope[head] if scope is not None and local else module.bindings.get(head)
        found: list[Target] = []
        for binding in bindings or [None]:
            # A function's own definitions are closures: they may be wrapped before they are used.
            known = None if local and isinstance(binding, Definition) else binding
            targets = self._bound(module, known, rest, scope if local else None, hops)
            if not targets:
                return []
            found += targets
        return found

    def _bound(
        self, module: Module, binding: Binding, rest: str, scope: _Scope | None, hops: int
    ) -> list[Target]:
        if not hops or binding is None:
            return []
        if isinstance(binding, Imported):
            return self._follow(".".join(filter(None, [binding.meaning, rest])), hops - 1)
        if isinstance(binding, Definition):
            simple = not rest or (isinstance(binding, ast.ClassDef) and "." not in rest)
            return [Target(module, binding, rest)] if simple else []
        if isinstance(binding, ast.IfExp):
            sides = [
                self._bound(module, side, rest, scope, hops - 1)
                for side in (binding.body, binding.orelse)
            ]
            return [*sides[0], *sides[1]] if all(sides) else []
        name = ".".join(filter(None, [dotted(binding), rest]))
        return self.find_all(module, name, scope, hops - 1) if dotted(binding) else []

    def _follow(self, meaning: str, hops: int) -> list[Target]:
        """Through packages that re-export."""
        parts = meaning.split(".")
        for end in range(len(parts) - 1, 0, -1):
            stem = "/".join(parts[:end])
            module = self.module(f"{stem}/__init__.py") or self.module(f"{stem}.py")
            if module is not None:
                return self.find_all(module, ".".join(parts[end:]), None, hops)
        return []

    def constant(self, module: Module, name: str, hops: int = _HOPS) -> tuple[Module, Binding]:
        """The only expression or definition behind a name, through imports, and where it stands."""
        bindings = module.bindings.get(name, [])
        binding = bindings[0] if len(bindings) == 1 else None
        if not isinstance(binding, Imported):
            return module, binding
        owner, _, last = binding.meaning.rpartition(".")
        stem = owner.replace(".", "/")
        origin = self.module(f"{stem}/__init__.py") or self.module(f"{stem}.py")
        return self.constant(origin, last, hops - 1) if origin and hops else (module, None)

    def meaning(self, module: Module, name: str) -> str:
        """The absolute dotted name of something imported, `torch.compile`; otherwise empty."""
        head, _, rest = name.partition(".")
        for binding in module.bindings.get(head, ()):
            if isinstance(binding, Imported):
                return ".".join(filter(None, [binding.meaning, rest]))
        return ""


class Counted(NamedTuple):
    """How many there are at least, and whether there can be no more."""

    least: int
    is_complete: bool


def most_configurations(tree: Path) -> Counted:
    """The longest list of an autotuner's configurations under a folder."""
    most = Counted(0, is_complete=True)
    for path in sorted(tree.rglob("*.py")):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            module = parse_module(path.name, path.read_bytes())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # what cannot be parsed cannot be imported either
        for node in ast.walk(module.tree):
            for decorator in getattr(node, "decorator_list", ()):
                if isinstance(decorator, ast.Call) and last_part(decorator).endswith("autotune"):
                    named = [item.value for item in decorator.keywords if item.arg == "configs"]
                    value = (*named, *decorator.args, None)[0]
                    found = _length(module, value, _HOPS)
                    known = most.is_complete and found.is_complete
                    most = Counted(max(most.least, found.least), known)
    return most


def _length(module: Module, value: ast.expr | None, hops: int) -> Counted:
    """How many items an expression for a list has; of several that it may be, the longest."""
    unknown = Counted(1, is_complete=False)
    if isinstance(value, ast.List | ast.Tuple):
        starred = [item.value for item in value.elts if isinstance(item, ast.Starred)]
        inner = [_length(module, item, hops) for item in starred]
        return _counted(inner, len(value.elts) - len(starred) + sum(n.least for n in inner))
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        sides = [_length(module, side, hops) for side in (value.left, value.right)]
        return _counted(sides, sum(n.least for n in sides))
    if isinstance(value, ast.IfExp):
        sides = [_length(module, side, hops) for side in (value.body, value.orelse)]
        return _counted(sides, max(n.least for n in sides))
    if isinstance(value, ast.ListComp | ast.GeneratorExp):
        if any(part.ifs for part in value.generators):
            return unknown
        parts = [_length(module, part.iter, hops) for part in value.generators]
        return _counted(parts, prod(n.least for n in parts))
    if isinstance(value, ast.Name) and hops:
        bound = module.bindings.get(value.id, ())
        named = [_length(module, b, hops - 1) for b in bound if isinstance(b, ast.expr)]
        found = _counted(named, max((n.least for n in named), default=1))
        # Imported, or a function: what it is lies elsewhere.
        return found if named and len(named) == len(bound) else found._replace(is_complete=False)
    return unknown


def _counted(parts: Iterable[Counted], least: int) -> Counted:
    return Counted(least, all(part.is_complete for part in parts))


def provided_names(sources: Sources, target: Target) -> Provided:
    """What `heuristics` and any `...autotune` give a kernel."""
    names: set[str] = set()
    complete = True
    for decorator in target.node.decorator_list:
        kind = last_part(decorator)
        if kind == "jit":
            continue
        if not isinstance(decorator, ast.Call) or not kind.endswith(("heuristics", "autotune")):
            return Provided(names, is_complete=False)
        named = [item.value for item in decorator.keywords if item.arg in ("configs", "values")]
        value = (*named, *decorator.args, None)[0]
        keys = None if value is None else _Configs(sources).keys(target.module, value, _HOPS)
        names |= keys or set()
        complete &= keys is not None
    return Provided(names, complete)


class _Configs:
    """Keys of the dictionaries in a heuristics mapping or a list of configs; None if unknown."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    def keys(self, module: Module, value: ast.expr, hops: int) -> set[str] | None:
        if not hops:
            return None
        if isinstance(value, ast.Name):
            where, bound = self.sources.constant(module, value.id)
            return self.keys(where, bound, hops - 1) if isinstance(bound, ast.expr) else None
        if isinstance(value, ast.Dict):
            return self._dictionary(module, value, hops)
        if isinstance(value, ast.ListComp | ast.GeneratorExp):
            return self.keys(module, value.elt, hops)
        if isinstance(value, ast.Starred):
            return self.keys(module, value.value, hops)
        if isinstance(value, ast.List | ast.Tuple):
            return self._union(module, value.elts, hops)
        if isinstance(value, ast.BinOp):
            return self._union(module, [value.left, value.right], hops)
        if isinstance(value, ast.IfExp):
            return self._union(module, [value.body, value.orelse], hops)
        if isinstance(value, ast.Call):
            return self._call(module, value, hops)
        return None

    def _union(self, module: Module, values: list[ast.expr], hops: int) -> set[str] | None:
        parts = [self.keys(module, value, hops) for value in values]
        return None if None in parts else set().union(*(part or set() for part in parts))

    def _dictionary(self, module: Module, value: ast.Dict, hops: int) -> set[str] | None:
        keys: set[str] = set()
        for key, item in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant):
                keys.add(str(key.value))
                continue
            inner = None if key else self.keys(module, item, hops)
            if inner is None:
                return None
            keys |= inner
        return keys

    def _call(self, module: Module, value: ast.Call, hops: int) -> set[str] | None:
        kind = last_part(value.func)
        if kind == "Config":
            named = [item.value for item in value.keywords if item.arg == "kwargs"]
            first = (*named, *value.args, None)[0]
            return None if first is None else self.keys(module, first, hops)
        if kind == "dict" and not value.args:
            names = {item.arg for item in value.keywords}
            return None if None in names else {str(name) for name in names}
        targets = self.sources.find_all(module, dotted(value.func))
        if len(targets) != 1 or not isinstance(targets[0].node, ast.FunctionDef):
            return None
        # A helper that returns one expression: `def configs(): return [triton.Config(...)]`.
        returned = [n.value for n in ast.walk(targets[0].node) if isinstance(n, ast.Return)]
        local = dict(_bound_by(targets[0].node.body, targets[0].module))
        if len(returned) != 1 or returned[0] is None or dotted(returned[0]) in local:
            return None
        return self.keys(targets[0].module, returned[0], hops - 1)
