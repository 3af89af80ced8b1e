"""The parsed view of Python sources that rules share: definitions, imports, jit kernels."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = ["Module", "Sources", "Target", "calls", "dotted", "parse_module", "provided_names"]

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(slots=True)
class Module:
    """One file: top-level definitions and constants by name, imported names by what they mean."""

    path: str
    name: str
    tree: ast.Module
    definitions: dict[str, Definition] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    rebound: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Target:
    """A definition that a name leads to, and the module that holds it."""

    module: Module
    node: Definition


def module_name(path: str) -> str:
    """`fla/ops/kda/__init__.py` is `fla.ops.kda`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a chain of attributes, or an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


@lru_cache(maxsize=1024)
def parse_module(path: str, text: bytes) -> Module:
    """Parse a file; SyntaxError or ValueError where it is no Python."""
    module = Module(path, module_name(path), ast.parse(text))
    for node in _statements(module.tree):
        if isinstance(node, Definition):
            _bind(module, node.name)
            module.definitions[node.name] = node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    _bind(module, target.id)
                    module.constants[target.id] = node.value
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for local, meaning in _imported(module, node):
                module.imports[local] = meaning
    return module


def _bind(module: Module, name: str) -> None:
    """A name that is bound twice (`if HAS_X: def f ... else: def f ...`) has no single meaning."""
    if name in module.definitions or name in module.constants:
        module.rebound.add(name)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Module-level statements, also those under `if`, `try` and `with`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from _statements(child)


def _imported(module: Module, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            local = alias.asname or alias.name.split(".")[0]
            yield local, alias.name if alias.asname else local
        return
    package = module.name.split(".")
    if node.level:
        is_package = module.path.endswith("/__init__.py")
        package = package[: len(package) - node.level + is_package]
    origin = ".".join([*(package if node.level else []), *filter(None, [node.module])])
    for alias in node.names:
        yield alias.asname or alias.name, f"{origin}.{alias.name}"


def calls(node: ast.AST, local: frozenset[str] = frozenset()) -> Iterator[tuple[ast.Call, bool]]:
    """Every call below a node, and whether its first name is bound inside a function there."""
    for child in ast.iter_child_nodes(node):
        inner = local
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner = local | _bound_inside(child)
        if isinstance(child, ast.Call):
            func = child.func.value if isinstance(child.func, ast.Subscript) else child.func
            yield child, dotted(func).partition(".")[0] in local
        yield from calls(child, inner)


def _bound_inside(function: ast.AST) -> set[str]:
    bound = set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, Definition) and node is not function:
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return bound


class Sources:
    """The Python files of a tree, parsed on demand, and where the names in them lead."""

    def __init__(self, files: Mapping[str, bytes | None]) -> None:
        self.files = files

    def module(self, path: str) -> Module | None:
        """The parsed file, or None where there is none or it does not parse."""
        text = self.files.get(path)
        if text is None:
            return None
        try:
            return parse_module(path, text)
        except (SyntaxError, ValueError, RecursionError):
            return None

    def find(self, module: Module, name: str) -> Target | None:
        """The one definition behind a dotted name as `module` sees it."""
        head, _, rest = name.partition(".")
        if head in module.rebound:
            return None
        if not rest and head in module.definitions:
            return Target(module, module.definitions[head])
        if head in module.imports and head not in module.definitions | module.constants:
            return self._follow(".".join(filter(None, [module.imports[head], rest])), 8)
        return None

    def _follow(self, meaning: str, hops: int) -> Target | None:
        """Through packages that re-export, but not for ever."""
        owner, _, name = meaning.rpartition(".")
        if not owner or not hops:
            return None
        stem = owner.replace(".", "/")
        module = self.module(f"{stem}.py") or self.module(f"{stem}/__init__.py")
        if module is None or name in module.rebound:
            return None
        if name in module.definitions:
            return Target(module, module.definitions[name])
        if name in module.imports and name not in module.constants:
            return self._follow(module.imports[name], hops - 1)
        return None


def provided_names(target: Target) -> tuple[set[str], bool]:
    """Parameters that `heuristics` and `autotune` fill in, and whether these are all of them."""
    names: set[str] = set()
    complete = True
    for decorator in target.node.decorator_list:
        kind = dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if not isinstance(decorator, ast.Call) or kind.rpartition(".")[2] == "jit":
            continue
        if kind.rpartition(".")[2] not in ("heuristics", "autotune"):
            return names, False
        values = [*decorator.args, *(keyword.value for keyword in decorator.keywords)]
        known = [_config_keys(value, target.module) for value in values[:1]]
        names |= {name for keys in known for name in keys or ()}
        complete &= all(keys is not None for keys in known)
    return names, complete


def _config_keys(value: ast.expr, module: Module) -> set[str] | None:
    """Keys of the dictionaries in a heuristics mapping or a list of configs; None if unknown."""
    if isinstance(value, ast.Name):
        constant = module.constants.get(value.id)
        return None if constant is None else _config_keys(constant, module)
    if isinstance(value, ast.Dict):
        keys = {key.value for key in value.keys if isinstance(key, ast.Constant)}
        return {str(key) for key in keys} if len(keys) == len(value.keys) else None
    if isinstance(value, ast.ListComp):
        return _config_keys(value.elt, module)
    if isinstance(value, ast.List):
        parts = [_config_keys(item, module) for item in value.elts]
        return None if None in parts else set().union(*(part or set() for part in parts))
    if isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] == "Config":
        first = [*value.args, *(k.value for k in value.keywords if k.arg == "kwargs")]
        return _config_keys(first[0], module) if first else None
    return None
