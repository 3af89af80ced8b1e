"""Summarises one Python source text: definitions, the names they use, imports and registry writes.

The summary depends on the text alone, so it may be cached by blob id together with `ANALYSER`.
The text is parsed, never imported or executed.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import ast
import re
import sys
import warnings
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["ANALYSER", "Decorator", "Definition", "Fault", "Import", "Summary", "summarise"]

# Part of every cache key: the tree that `ast` gives for a text depends on the interpreter.
ANALYSER = f"source-1-py{sys.version_info[0]}.{sys.version_info[1]}"

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_TEMPLATE = re.compile(r"[A-Za-z_]\w*(?:\.[\w*]+)*\.[\w*]+")
_FILE_NAME = re.compile(r"(?:[\w.-]+/)*[\w.-]*\w\.\w{1,5}|(?:[\w.-]+/)+[\w.-]+/?")
_LONGEST_STRING = 200
_IMPORT_CALLS = frozenset({"import_module", "__import__"})
_FIXTURE_CALLS = frozenset({"usefixtures", "getfixturevalue"})
_NAMESPACE_CALLS = frozenset({"globals", "vars"})

Scalar = str | int | float | bool | None


class Decorator(NamedTuple):
    """A decorator with those of its arguments that are constants."""

    name: str
    arguments: tuple[Scalar, ...] = ()
    keywords: tuple[tuple[str, Scalar], ...] = ()


class Definition(NamedTuple):
    """A piece of module code that can change by itself.

    `kind` is function, class, method, variable, import (only under a condition), statement or main.
    `writes` are the names a statement changes in place: a registry, an attribute's owner; of a
    function, the globals that it binds.
    `digest` ignores comments, docstrings and layout; it includes the conditions around the piece.
    """

    name: str
    kind: str
    digest: str
    line: int
    end_line: int
    decorators: tuple[Decorator, ...] = ()
    writes: tuple[str, ...] = ()


class Import(NamedTuple):
    """One imported name.

    `name` is empty for `import m`, `*` for a star. `alias` is the local name, empty when there is
    none. `owner` is the index of the definition that runs the import, -1 for module level.
    """

    module: str
    level: int
    name: str
    alias: str
    owner: int = -1
    is_typing_only: bool = False
    guard: str = ""


class Fault(NamedTuple):
    """Why a text could not be read as Python."""

    line: int
    message: str


class Summary(NamedTuple):
    """What impact analysis needs to know of one file.

    `references`, `strings` and `requests` map a name, a string that looks like a module or file
    name, and a possible fixture name to the indices of the definitions that use it.
    `exports` is a literal `__all__`; `order` is the digest of the sequence of executed statements.
    """

    definitions: tuple[Definition, ...] = ()
    references: Mapping[str, Sequence[int]] = {}
    imports: tuple[Import, ...] = ()
    strings: Mapping[str, Sequence[int]] = {}
    requests: Mapping[str, Sequence[int]] = {}
    exports: tuple[str, ...] | None = None
    has_dynamic_exports: bool = False
    order: str = ""
    fault: Fault | None = None

    def to_json(self) -> list[Any]:
        """Return lists, strings and numbers only."""
        return [
            [_trimmed(definition) for definition in self.definitions],
            self.references,
            [_trimmed(entry) for entry in self.imports],
            self.strings,
            self.requests,
            self.exports,
            self.has_dynamic_exports,
            self.order,
            self.fault,
        ]

    @classmethod
    def from_json(cls, data: Any) -> Summary:
        """Rebuild a summary.

        Raises:
            ValueError: the data does not have the shape that `to_json` writes.
        """
        try:
            definitions, references, imports, strings, requests, exports, dynamic, order, fault = (
                data
            )
            return cls(
                tuple([_definition(row) for row in definitions]),
                references,
                tuple([Import(*row) for row in imports]),
                strings,
                requests,
                None if exports is None else tuple(exports),
                dynamic,
                order,
                None if fault is None else Fault(*fault),
            )
        except (TypeError, ValueError, LookupError) as error:
            raise ValueError(f"summary: {error}") from error


def _trimmed(row: Definition | Import) -> list[Any]:
    """Drop trailing defaults: most of the cached text would be those."""
    values: list[Any] = list(row)
    defaults = row._field_defaults
    for field in reversed(row._fields):
        if field not in defaults or values[-1] != defaults[field]:
            break
        values.pop()
    return values


def _definition(row: Sequence[Any]) -> Definition:
    if len(row) == 5:
        return Definition(*row)
    decorators = tuple(
        Decorator(name, tuple(arguments), tuple((key, value) for key, value in keywords))
        for name, arguments, keywords in row[5]
    )
    name, kind, digest, line, end_line = row[:5]
    writes = tuple(row[6]) if len(row) > 6 else ()
    return Definition(name, kind, digest, line, end_line, decorators, writes)


def summarise(text: str | bytes) -> Summary:
    """Summarise a Python source; one that does not parse gives a summary with `fault`.

    Bytes are decoded as Python does it: by byte-order mark, coding comment or else UTF-8.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        return _Module().summary(tree)
    except SyntaxError as error:
        return Summary(fault=Fault(error.lineno or 0, error.msg))
    except (ValueError, RecursionError, MemoryError) as error:
        return Summary(fault=Fault(0, str(error) or type(error).__name__))


def _digest(parts: Iterable[str]) -> str:
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=8).hexdigest()


class _Scope:
    """Names that a piece of code loads and binds, and its normalised text."""

    __slots__ = (
        *("bound", "dynamic", "escaped", "imports", "loads", "parts", "requests", "strings"),
        "written",
    )

    def __init__(self, parts: list[str] | None = None) -> None:
        self.parts: list[str] = [] if parts is None else parts
        self.loads: set[str] = set()
        self.bound: set[str] = set()
        self.escaped: set[str] = set()
        self.written: set[str] = set()
        self.strings: set[str] = set()
        self.requests: set[str] = set()
        self.imports: list[Import] = []
        self.dynamic = False

    def nested(self) -> _Scope:
        """Open a function scope whose text is part of this one's."""
        return _Scope(self.parts)

    def absorb(self, inner: _Scope) -> None:
        """Take over from a closed function scope what is free in it."""
        bound = inner.bound - inner.escaped
        self.written |= inner.written | (inner.bound & inner.escaped)
        self.loads.update(name for name in inner.loads if name.partition(".")[0] not in bound)
        self.take_facts(inner)

    def take_facts(self, other: _Scope) -> None:
        """Take over all but names."""
        self.strings |= other.strings
        self.requests |= other.requests
        self.imports += other.imports
        self.dynamic = self.dynamic or other.dynamic


def _fields(node_type: type[ast.AST]) -> tuple[str, ...]:
    skipped = ("ctx", "type_comment", "kind", "type_ignores")
    return tuple(field for field in node_type._fields if field not in skipped)


_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {
    node_type: _fields(node_type)
    for node_type in vars(ast).values()
    if isinstance(node_type, type) and issubclass(node_type, ast.AST)
}


def _visit(node: ast.AST, scope: _Scope) -> None:
    """Read a node into the scope: the hot loop of a cold run."""
    node_type = node.__class__
    handler = _HANDLERS.get(node_type)
    if handler is not None:
        handler(node, scope)
        return
    parts = scope.parts
    parts.append(node_type.__name__)
    for field in _FIELDS[node_type]:
        value = getattr(node, field)
        if value.__class__ is list:
            parts.append("[")
            for item in value:
                if isinstance(item, ast.AST):
                    _visit(item, scope)
                else:
                    parts.append(repr(item))
            parts.append("]")
        elif isinstance(value, ast.AST):
            _visit(value, scope)
        else:
            parts.append(repr(value))


def _visit_all(nodes: Iterable[ast.AST | None], scope: _Scope) -> None:
    scope.parts.append("[")
    for node in nodes:
        if node is None:
            scope.parts.append("-")
        else:
            _visit(node, scope)
    scope.parts.append("]")


def _visit_name(node: ast.Name, scope: _Scope) -> None:
    # The mark keeps a name apart from a node type: digests must not collide by choice of names.
    scope.parts.append("$" + node.id)
    if node.ctx.__class__ is ast.Load:
        scope.loads.add(node.id)
    else:
        scope.bound.add(node.id)


def _visit_attribute(node: ast.Attribute, scope: _Scope) -> None:
    chain = [node.attr]
    value = node.value
    while isinstance(value, ast.Attribute):
        chain.append(value.attr)
        value = value.value
    if isinstance(value, ast.Name):
        chain.append(value.id)
        name = ".".join(reversed(chain))
        scope.parts.append(name)
        scope.loads.add(name)
    else:
        scope.parts += [".", *chain]
        _visit(value, scope)


def _visit_constant(node: ast.Constant, scope: _Scope) -> None:
    value = node.value
    scope.parts.append(repr(value))
    if isinstance(value, str) and ("." in value or "/" in value):
        _note_string(value, scope)


def _note_string(value: str, scope: _Scope) -> None:
    if len(value) <= _LONGEST_STRING and (_DOTTED.fullmatch(value) or _FILE_NAME.fullmatch(value)):
        scope.strings.add(value)


def _visit_joined(node: ast.JoinedStr, scope: _Scope) -> None:
    """Keep `f"a.{b}.c"` as the pattern `a.*.c`: module names are built like that."""
    scope.parts.append("JoinedStr")
    pattern = ""
    for value in node.values:
        if isinstance(value, ast.Constant):
            scope.parts.append(repr(value.value))
            pattern += str(value.value).replace("*", "?")
        else:
            _visit(value, scope)
            pattern += "*"
    scope.parts.append("]")
    if "*" in pattern and len(pattern) <= _LONGEST_STRING and _TEMPLATE.fullmatch(pattern):
        scope.strings.add(pattern)


def _visit_call(node: ast.Call, scope: _Scope) -> None:
    scope.parts.append("Call")
    _visit(node.func, scope)
    _visit_all(node.args, scope)
    _visit_all(node.keywords, scope)
    function = node.func
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    if name in _FIXTURE_CALLS:
        scope.requests.update(_literal_strings(node.args))
    elif name in _NAMESPACE_CALLS and not node.args:
        scope.dynamic = True
    elif name in _IMPORT_CALLS:
        for target in _literal_strings(node.args[:1]):
            module = target.lstrip(".")
            scope.imports.append(Import(module, len(target) - len(module), "", ""))


def _literal_strings(nodes: Iterable[ast.AST | None]) -> list[str]:
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def _visit_import(node: ast.Import, scope: _Scope) -> None:
    for alias in node.names:
        entry = Import(alias.name, 0, "", alias.asname or alias.name)
        scope.imports.append(entry)
        scope.parts += ["Import", *map(str, entry[:4])]


def _visit_import_from(node: ast.ImportFrom, scope: _Scope) -> None:
    for alias in node.names:
        entry = Import(node.module or "", node.level, alias.name, alias.asname or alias.name)
        scope.imports.append(entry)
        scope.parts += ["ImportFrom", *map(str, entry[:4])]


def _visit_global(node: ast.Global | ast.Nonlocal, scope: _Scope) -> None:
    scope.parts.append("global " + ",".join(node.names))
    scope.escaped.update(node.names)
    # A function that rebinds a module variable is one of its users: who calls it sees the change.
    scope.loads.update(node.names)


def _visit_function(node: ast.FunctionDef | ast.AsyncFunctionDef, scope: _Scope) -> None:
    scope.bound.add(node.name)
    _read_function(node, scope)


def _read_function(node: ast.FunctionDef | ast.AsyncFunctionDef, scope: _Scope) -> None:
    """Read a function into the scope around it; decorators and defaults belong to that one."""
    scope.parts += [node.__class__.__name__, node.name]
    _visit_all(node.decorator_list, scope)
    _read_parameters(node.args, scope)
    inner = scope.nested()
    inner.bound.update(argument.arg for argument in _parameters(node.args))
    if node.returns is not None:
        scope.parts.append("->")
        _visit(node.returns, _Scope(scope.parts))
    _visit_all(_without_docstring(node.body), inner)
    scope.absorb(inner)


def _visit_lambda(node: ast.Lambda, scope: _Scope) -> None:
    scope.parts.append("Lambda")
    _read_parameters(node.args, scope)
    inner = scope.nested()
    inner.bound.update(argument.arg for argument in _parameters(node.args))
    _visit(node.body, inner)
    scope.absorb(inner)


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    stars = [star for star in (arguments.vararg, arguments.kwarg) if star is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *stars]


def _read_parameters(arguments: ast.arguments, scope: _Scope) -> None:
    """Read a signature. Annotations count as text only: they say nothing about what runs."""
    for group in (arguments.posonlyargs, arguments.args, arguments.kwonlyargs):
        scope.parts.append("(")
        for argument in group:
            _read_parameter(argument, scope)
    for star in (arguments.vararg, arguments.kwarg):
        scope.parts.append("*")
        if star is not None:
            _read_parameter(star, scope)
    _visit_all(arguments.defaults, scope)
    _visit_all(arguments.kw_defaults, scope)


def _read_parameter(argument: ast.arg, scope: _Scope) -> None:
    scope.parts.append("$" + argument.arg)
    if argument.annotation is not None:
        scope.parts.append(":")
        _visit(argument.annotation, _Scope(scope.parts))


def _visit_annotated(node: ast.AnnAssign, scope: _Scope) -> None:
    scope.parts.append("AnnAssign")
    _visit(node.target, scope)
    _visit(node.annotation, _Scope(scope.parts))
    _visit_all([node.value], scope)


def _visit_class(node: ast.ClassDef, scope: _Scope) -> None:
    """Read a class inside a function or a class as a part of that."""
    scope.bound.add(node.name)
    scope.parts += ["ClassDef", node.name]
    _visit_all([*node.decorator_list, *node.bases, *node.keywords], scope)
    inner = scope.nested()
    _visit_all(_without_docstring(node.body), inner)
    scope.absorb(inner)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    return body[1:] if body and _is_docstring(body[0]) else body


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


_HANDLERS: dict[type[ast.AST], Callable[[Any, _Scope], None]] = {
    ast.Name: _visit_name,
    ast.Attribute: _visit_attribute,
    ast.Constant: _visit_constant,
    ast.JoinedStr: _visit_joined,
    ast.Call: _visit_call,
    ast.Import: _visit_import,
    ast.ImportFrom: _visit_import_from,
    ast.Global: _visit_global,
    ast.Nonlocal: _visit_global,
    ast.FunctionDef: _visit_function,
    ast.AsyncFunctionDef: _visit_function,
    ast.Lambda: _visit_lambda,
    ast.AnnAssign: _visit_annotated,
    ast.ClassDef: _visit_class,
}


class _Guard(NamedTuple):
    """The conditions around a piece of module code: they decide whether it exists."""

    digest: str = ""
    loads: frozenset[str] = frozenset()
    is_typing_only: bool = False

    def under(self, label: str, headers: Sequence[ast.AST]) -> tuple[_Guard, _Scope]:
        """Return the guard one level deeper, and what its header reads."""
        scope = _Scope([self.digest, label])
        _visit_all(headers, scope)
        loads = self.loads | scope.loads
        is_typing_only = self.is_typing_only or (label == "if" and _is_type_checking(headers[0]))
        return _Guard(_digest(scope.parts), frozenset(loads), is_typing_only), scope


def _is_type_checking(test: ast.AST) -> bool:
    return isinstance(test, ast.Name | ast.Attribute) and _dotted(test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


class _Module:
    """Collects the definitions of one module."""

    def __init__(self) -> None:
        self.definitions: list[Definition] = []
        self.loads: list[set[str]] = []
        self.imports: list[Import] = []
        self.strings: dict[str, list[int]] = {}
        self.requests: dict[str, list[int]] = {}
        self.exports: tuple[str, ...] | None = None
        self.dynamic = False
        self.order: list[str] = []

    def summary(self, tree: ast.Module) -> Summary:
        """Read the whole module."""
        self._block(_without_docstring(tree.body), _Guard())
        dynamic = self.dynamic or any(item.name == "__getattr__" for item in self.definitions)
        return Summary(
            tuple(self.definitions),
            self._references(),
            tuple(self.imports),
            self.strings,
            self.requests,
            self.exports,
            dynamic,
            _digest(self.order),
        )

    def _references(self) -> dict[str, list[int]]:
        """Keep the attributes only of imported names: elsewhere they say nothing about modules."""
        imported = {entry.alias.partition(".")[0] for entry in self.imports}
        references: dict[str, list[int]] = {}
        for index, loads in enumerate(self.loads):
            heads = {
                name if (head := name.partition(".")[0]) in imported else head for name in loads
            }
            for name in sorted(heads):
                references.setdefault(name, []).append(index)
        return references

    def _block(self, body: Iterable[ast.stmt], guard: _Guard) -> None:
        for node in body:
            reader = _STATEMENTS.get(node.__class__)
            if reader is not None:
                reader(self, node, guard)
            elif not _is_docstring(node) and not isinstance(node, ast.Pass):
                self._statement(node, guard)

    def _add(
        self,
        node: ast.AST,
        name: str,
        kind: str,
        scope: _Scope,
        *,
        decorators: tuple[Decorator, ...] = (),
        writes: tuple[str, ...] = (),
    ) -> None:
        index = len(self.definitions)
        digest = _digest(scope.parts)
        line: int = getattr(node, "lineno", 0)
        end: int = getattr(node, "end_lineno", None) or line
        decorated = [item.lineno for item in getattr(node, "decorator_list", ())]
        line = min([line, *decorated])
        self.definitions.append(Definition(name, kind, digest, line, end, decorators, writes))
        self.loads.append(scope.loads)
        self.imports += [entry._replace(owner=index) for entry in scope.imports]
        for text in sorted(scope.strings):
            self.strings.setdefault(text, []).append(index)
        for text in sorted(scope.requests):
            self.requests.setdefault(text, []).append(index)
        self.dynamic = self.dynamic or scope.dynamic
        if kind in ("variable", "statement"):
            self.order.append(digest)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, guard: _Guard) -> None:
        self._add_function(node, node.name, "function", guard)

    def _add_function(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        name: str,
        kind: str,
        guard: _Guard,
    ) -> None:
        scope = _guarded(guard)
        _read_function(node, scope)
        decorators = tuple(_decorator(item) for item in node.decorator_list)
        if _may_request_fixtures(node.name, decorators):
            scope.requests.update(argument.arg for argument in _parameters(node.args))
        writes = tuple(sorted(scope.written))
        self._add(node, name, kind, scope, decorators=decorators, writes=writes)

    def _class(self, node: ast.ClassDef, guard: _Guard) -> None:
        scope = _guarded(guard)
        scope.parts += ["ClassDef", node.name]
        _visit_all([*node.decorator_list, *node.bases, *node.keywords], scope)
        methods = [
            item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        inner = scope.nested()
        rest = [item for item in _without_docstring(node.body) if item not in methods]
        _visit_all([item for item in rest if not isinstance(item, ast.Pass)], inner)
        # A class body reads the module's name until it binds its own: `a = staticmethod(a)`.
        inner.bound.clear()
        scope.absorb(inner)
        decorators = tuple(_decorator(item) for item in node.decorator_list)
        self._add(node, node.name, "class", scope, decorators=decorators)
        for method in methods:
            self._add_function(method, f"{node.name}.{method.name}", "method", guard)

    def _import(self, node: ast.Import | ast.ImportFrom, guard: _Guard) -> None:
        scope = _Scope([guard.digest])
        _visit(node, scope)
        entries = [
            entry._replace(is_typing_only=guard.is_typing_only, guard=guard.digest)
            for entry in scope.imports
        ]
        self.imports += entries
        if guard.loads and not guard.is_typing_only:
            for entry in entries:
                piece = _guarded(guard)
                piece.parts += map(str, entry)
                self._add(node, entry.alias.partition(".")[0], "import", piece)

    def _assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, guard: _Guard) -> None:
        targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = _plain_names(targets)
        if names is None:
            self._statement(node, guard)
            return
        if "__all__" in names:
            self._note_exports(node)
        scope = _guarded(guard)
        _visit(node, scope)
        for name in names:
            self._add(node, name, "variable", scope)

    def _note_exports(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        """Keep `__all__` while every part of it is literal: half of it would hide names."""
        elements = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [None]
        names = _literal_strings(elements)
        before = self.exports if isinstance(node, ast.AugAssign) else ()
        is_known = before is not None and len(names) == len(elements)
        self.exports = (*before, *names) if before is not None and is_known else None

    def _statement(self, node: ast.stmt, guard: _Guard) -> None:
        scope = _guarded(guard)
        _visit(node, scope)
        writes = tuple(sorted(set(_written(node))))
        self._add(node, "", "statement", scope, writes=writes)
        for name in sorted(scope.bound):
            self._add(node, name, "variable", scope)

    def _if(self, node: ast.If, guard: _Guard) -> None:
        if _is_main(node.test):
            scope = _guarded(guard)
            _visit_all(node.body, scope)
            self._add(node, "__main__", "main", scope)
            self._block(node.orelse, guard)
            return
        inner, scope = guard.under("if", [node.test])
        self._take_header(scope)
        self._block(node.body, inner)
        otherwise, _ = guard.under("else", [node.test])
        self._block(node.orelse, otherwise)

    def _try(self, node: ast.Try | ast.TryStar, guard: _Guard) -> None:
        caught = [handler.type for handler in node.handlers if handler.type is not None]
        inner, _ = guard.under("try", caught)
        self._block(node.body, inner)
        for handler in node.handlers:
            header = [handler.type] if handler.type is not None else []
            self._block(handler.body, guard.under("except", header)[0])
        self._block(node.orelse, inner)
        self._block(node.finalbody, guard)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, guard: _Guard) -> None:
        if isinstance(node, ast.While):
            inner, scope = guard.under("while", [node.test])
        else:
            inner, scope = guard.under("for", [node.target, node.iter])
        self._bind_header(node, scope)
        self._block([*node.body, *node.orelse], inner)

    def _with(self, node: ast.With | ast.AsyncWith, guard: _Guard) -> None:
        inner, scope = guard.under("with", node.items)
        self._bind_header(node, scope)
        self._block(node.body, inner)

    def _bind_header(self, node: ast.AST, scope: _Scope) -> None:
        for name in sorted(scope.bound):
            self._add(node, name, "variable", scope)
        if not scope.bound:
            self._take_header(scope)

    def _take_header(self, scope: _Scope) -> None:
        self.imports += scope.imports
        self.dynamic = self.dynamic or scope.dynamic


def _guarded(guard: _Guard) -> _Scope:
    scope = _Scope([guard.digest] if guard.digest else [])
    scope.loads |= guard.loads
    return scope


_STATEMENTS: dict[type[ast.stmt], Callable[[_Module, Any, _Guard], None]] = {
    ast.FunctionDef: _Module._function,
    ast.AsyncFunctionDef: _Module._function,
    ast.ClassDef: _Module._class,
    ast.Import: _Module._import,
    ast.ImportFrom: _Module._import,
    ast.Assign: _Module._assignment,
    ast.AnnAssign: _Module._assignment,
    ast.AugAssign: _Module._assignment,
    ast.If: _Module._if,
    ast.Try: _Module._try,
    ast.TryStar: _Module._try,
    ast.For: _Module._loop,
    ast.AsyncFor: _Module._loop,
    ast.While: _Module._loop,
    ast.With: _Module._with,
    ast.AsyncWith: _Module._with,
}


def _decorator(node: ast.expr) -> Decorator:
    if not isinstance(node, ast.Call):
        return Decorator(_dotted(node))
    arguments = tuple(item.value for item in node.args if _is_scalar(item))  # type: ignore[attr-defined]
    keywords = tuple(
        (item.arg, item.value.value)  # type: ignore[attr-defined]
        for item in node.keywords
        if item.arg is not None and _is_scalar(item.value)
    )
    return Decorator(_dotted(node.func), arguments, keywords)


def _is_scalar(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(
        node.value, str | int | float | bool | None
    )


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    parts.append(node.id if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))


def _may_request_fixtures(name: str, decorators: Iterable[Decorator]) -> bool:
    if name.startswith(("test", "setup", "teardown", "pytest_")):
        return True
    return any(item.name.rpartition(".")[2].endswith("fixture") for item in decorators)


def _plain_names(targets: Iterable[ast.expr]) -> list[str] | None:
    """Return the names that an assignment binds, None when it also writes into an object."""
    names: list[str] = []
    for target in targets:
        if isinstance(target, ast.Name):
            names.append(target.id)
        elif isinstance(target, ast.Tuple | ast.List):
            inner = _plain_names(target.elts)
            if inner is None:
                return None
            names += inner
        elif isinstance(target, ast.Starred) and isinstance(target.value, ast.Name):
            names.append(target.value.id)
        else:
            return None
    return names


def _written(node: ast.AST) -> list[str]:
    """Return the names that a module-level statement changes in place.

    A call changes its receiver and registers its arguments with each other; an assignment into an
    object changes that object.
    """
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [name for target in targets for name in _roots(target)]
    names: list[str] = []
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
            values = [*call.args, *(keyword.value for keyword in call.keywords)]
            for value in [receiver, *values]:
                names += _roots(value)
    return names


def _roots(node: ast.AST | None) -> list[str]:
    if isinstance(node, ast.Attribute | ast.Name):
        name = _dotted(node)
        return [] if name.startswith("?") else [name]
    if isinstance(node, ast.Subscript | ast.Starred):
        return _roots(node.value)
    if isinstance(node, ast.Call):
        return _roots(node.func)
    if isinstance(node, ast.Tuple | ast.List):
        return [name for item in node.elts for name in _roots(item)]
    return []


def _is_main(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and len(test.ops) == 1
        and isinstance(test.ops[0], ast.Eq)
    )
