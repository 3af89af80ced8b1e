"""The parsed view of tests that rules share: what a file demands of the code under test.

Rows of `parametrize`, skips, limits of comparisons and the comparisons themselves, by function.
Everything is text or numbers, so that two versions of a file can be compared.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import ast
import copy
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import NamedTuple, TypeVar

from bot.kernels import Function, Module, dotted, last_part

__all__ = ["Axis", "Limit", "Unit", "cells", "likeness", "meaning_of", "units"]

_LIMIT_NAME = re.compile(
    r"(?:^|_)(?:[ar]?tols?|tolerances?|ratio|rel|abs|eps|err|threshold)(?:_|$)"
)
_SKIPS = frozenset({"skip", "skipif", "skipIf", "skipUnless", "xfail", "importorskip"})
_MAX_ROWS = 4096
Value = TypeVar("Value")


class Limit(NamedTuple):
    """Numbers that decide what a comparison accepts: one, or one for each branch or key."""

    values: tuple[float, ...]
    line: int


class Axis(NamedTuple):
    """One `parametrize`: argument names and rows of their values as text."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(slots=True)
class Unit:
    """A function of a file, or (named "") what stands outside of functions.

    `limits`, `comparisons` and `skips` are keyed by text that stays the same when only the number
    changes. A value is the line. `has_loop`: one comparison may stand for many.
    """

    name: str
    node: ast.AST
    line: int
    end_line: int
    limits: dict[str, Limit] = field(default_factory=dict)
    comparisons: dict[str, int] = field(default_factory=dict)
    lenient: dict[str, int] = field(default_factory=dict)
    skips: dict[str, int] = field(default_factory=dict)
    axes: list[Axis] = field(default_factory=list)
    has_loop: bool = False

    @property
    def is_test(self) -> bool:
        """Whether pytest runs it."""
        owner, _, name = self.name.rpartition(".")
        return name.startswith("test") and (not owner or owner.startswith("Test"))


def units(module: Module, comparisons: Sequence[str]) -> dict[str, Unit]:
    """The functions and methods of a file by name, and "" for the rest of it."""
    reader = _Reader(module, frozenset(comparisons))
    rest = Unit("", ast.Module([], []), 1, 1)
    found = {"": rest}
    for node, owners in _functions(module.tree.body, ()):
        if not isinstance(node, Function):
            reader.read_statement(rest, node)
            continue
        name = ".".join([*(owner.name for owner in owners), node.name])
        line = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        found[name] = Unit(name, node, line, node.end_lineno or node.lineno)
        reader.read_function(found[name], node, owners)
    return found


def meaning_of(node: ast.AST) -> str:
    """Code as text without comments, docstrings, annotations, decorators, layout and own name."""
    bare = copy.deepcopy(node)
    if isinstance(bare, Function):
        bare.name = ""
    return ast.dump(_Stripped().visit(bare))


def likeness(one: Unit, other: Unit) -> float:
    """How much of two functions' code is equal, statement by statement, 0 to 1."""
    # As in changed_lines: autojunk bounds the time that thousands of equal lines take.
    lines = [
        [line for item in getattr(unit.node, "body", []) for line in ast.unparse(item).split("\n")]
        for unit in (one, other)
    ]
    return SequenceMatcher(None, lines[0], lines[1]).ratio() if all(lines) else 0.0


class _Stripped(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns, node.decorator_list = None, []
        return self._body(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns, node.decorator_list = None, []
        return self._body(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._body(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Pass()
        return self.visit(ast.Assign([node.target], node.value))  # type: ignore[no-any-return]

    def _body(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> ast.AST:
        if node.body and isinstance(node.body[0], ast.Expr) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)


Owners = tuple[ast.ClassDef, ...]


def _functions(body: list[ast.stmt], owners: Owners) -> Iterator[tuple[ast.stmt, Owners]]:
    """Functions and other statements of a module, also in classes and under conditions."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, (*owners, node))
        elif isinstance(node, ast.If | ast.Try):
            blocks = [node.body, node.orelse, *(h.body for h in getattr(node, "handlers", ()))]
            for block in blocks:
                yield from _functions(block, owners)
        else:
            yield node, owners


class _Reader:
    """Reads the demands of one file's functions."""

    def __init__(self, module: Module, comparisons: frozenset[str]) -> None:
        self.module, self.comparisons = module, comparisons

    def read_function(self, unit: Unit, node: Function, owners: Owners) -> None:
        marks = [mark for item in (*owners, node) for mark in item.decorator_list]
        for mark in marks:
            self._read_mark(unit, mark)
        spec = node.args
        positional = [*spec.posonlyargs, *spec.args]
        pairs = [
            *zip(positional[len(positional) - len(spec.defaults) :], spec.defaults, strict=True),
            *zip(spec.kwonlyargs, spec.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            if default is not None:
                self._read_named(unit, argument.arg, default)
        self._read_block(unit, node.body, ())

    def read_statement(self, unit: Unit, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign) and _assigned(node) == "pytestmark":
            values = (
                node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
            )
            for value in values:
                self._read_mark(unit, value)
        self._read_block(unit, [node], ())

    def _read_mark(self, unit: Unit, mark: ast.expr) -> None:
        kind = last_part(mark)
        if kind in _SKIPS:
            unit.skips[_without_reason(mark)] = mark.lineno
        if kind != "parametrize" or not isinstance(mark, ast.Call) or len(mark.args) < 2:
            return
        names = _names(mark.args[0])
        elements = self._elements(mark.args[1])
        if not names or elements is None:
            return
        rows = [_row(element, len(names)) for element in elements]
        if None not in rows:
            unit.axes.append(Axis(tuple(names), tuple(filter(None, rows))))
        for element in elements:
            for keyword in element.keywords if isinstance(element, ast.Call) else ():
                for node in ast.walk(keyword.value) if keyword.arg == "marks" else ():
                    if isinstance(node, ast.Attribute) and node.attr in _SKIPS:
                        unit.skips[f"{node.attr} {ast.unparse(element)}"] = element.lineno

    def _elements(self, value: ast.expr, hops: int = 4) -> list[ast.expr] | None:
        """The rows of a literal list, of a comprehension over one, or of a module's constant."""
        if isinstance(value, ast.List | ast.Tuple):
            parts = [
                self._elements(item.value, hops - 1) if isinstance(item, ast.Starred) else [item]
                for item in value.elts
            ]
            return None if None in parts else [e for part in parts for e in part or ()]
        if isinstance(value, ast.ListComp) and len(value.generators) == 1:
            loop = value.generators[0]
            return None if loop.ifs or not hops else self._elements(loop.iter, hops - 1)
        if isinstance(value, ast.Name) and hops:
            bound = self.module.bindings.get(value.id, [])
            lists = [
                self._elements(b, hops - 1) if isinstance(b, ast.expr) else None for b in bound
            ]
            return None if None in lists or not lists else [e for one in lists for e in one or ()]
        return None

    def _read_block(self, unit: Unit, body: Sequence[ast.stmt], tests: tuple[str, ...]) -> None:
        for node in body:
            if isinstance(node, ast.If):
                self._read_expressions(unit, node.test, tests)
                test = ast.unparse(node.test)
                self._read_block(unit, node.body, (*tests, test))
                self._read_block(unit, node.orelse, (*tests, f"not ({test})"))
                continue
            if isinstance(node, ast.For | ast.While):
                unit.has_loop = True
            blocks = [getattr(node, name, None) or [] for name in ("body", "orelse", "finalbody")]
            blocks += [handler.body for handler in getattr(node, "handlers", ())]
            for block in blocks:
                self._read_block(unit, block, tests)
            if not any(blocks):
                self._read_simple(unit, node, tests)

    def _read_simple(self, unit: Unit, node: ast.stmt, tests: tuple[str, ...]) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            self._read_named(unit, _assigned(node), node.value)
        if isinstance(node, ast.Assert):
            self._read_assert(unit, node)
        self._read_expressions(unit, node, tests)

    def _read_named(self, unit: Unit, name: str, value: ast.expr) -> None:
        if _LIMIT_NAME.search(name.lower()):
            _add(unit.limits, name, self._limit(value))

    def _read_assert(self, unit: Unit, node: ast.Assert) -> None:
        test = node.test
        _add(unit.comparisons, f"assert {_blank(test)}", node.lineno)
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Lt | ast.LtE):
            limit = self._limit(test.comparators[0])
            if limit and any(value != int(value) for value in limit.values):
                _add(unit.limits, f"assert {ast.unparse(test.left)}", limit)

    def _read_expressions(self, unit: Unit, node: ast.AST, tests: tuple[str, ...]) -> None:
        for call in ast.walk(node):
            if not isinstance(call, ast.Call):
                continue
            kind = last_part(call.func)
            if kind in _SKIPS and dotted(call.func) == f"pytest.{kind}":
                unit.skips[" and ".join([*tests, kind])] = call.lineno
            elif kind in self.comparisons:
                self._read_comparison(unit, call, kind)

    def _read_comparison(self, unit: Unit, call: ast.Call, kind: str) -> None:
        label = _label(call)
        _add(unit.comparisons, label, call.lineno)
        first = 1 if kind == "approx" else 2
        slots = [(str(index), value) for index, value in enumerate(call.args) if index >= first]
        slots += [(item.arg or "**", item.value) for item in call.keywords]
        for slot, value in slots:
            if isinstance(value, ast.Constant) and value.value is True:
                _add(unit.lenient, f"{label} {slot}", call.lineno)
            elif slot.isdigit() or _LIMIT_NAME.search(slot):
                _add(unit.limits, f"{label} {slot}", self._limit(value))

    def _limit(self, value: ast.expr) -> Limit | None:
        numbers = _numbers(value)
        return Limit(tuple(numbers), value.lineno) if numbers else None


def _add(into: dict[str, Value], key: str, value: Value | None) -> None:
    """Keep equal keys apart by counting them."""
    if value is None:
        return
    for count in itertools.count():
        numbered = f"{key} #{count}" if count else key
        if numbered not in into:
            into[numbered] = value
            return


def _assigned(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else ""


def _label(call: ast.Call) -> str:
    """What is compared: the label that a comparison prints, or else its operands."""
    name = last_part(call.func)
    if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str):
        return f"{name} {call.args[0].value.strip()}"
    return f"{name} {', '.join(ast.unparse(item) for item in call.args[:2])}"


def _blank(node: ast.expr) -> str:
    return re.sub(r"\b\d+(\.\d*)?(e[+-]?\d+)?\b", "#", ast.unparse(node))


def _without_reason(mark: ast.expr) -> str:
    if not isinstance(mark, ast.Call):
        return last_part(mark)
    parts = [*mark.args, *(item.value for item in mark.keywords if item.arg != "reason")]
    return " ".join([last_part(mark), *map(ast.unparse, parts)])


def _numbers(value: ast.expr) -> list[float]:
    """The numbers of a literal, of both sides of a condition, of the values of a dictionary."""
    if isinstance(value, ast.Constant):
        known = isinstance(value.value, int | float) and not isinstance(value.value, bool)
        return [float(value.value)] if known else []  # type: ignore[arg-type]
    if isinstance(value, ast.IfExp):
        sides = [_numbers(value.body), _numbers(value.orelse)]
        return [*sides[0], *sides[1]] if all(sides) else []
    if isinstance(value, ast.Dict | ast.Tuple | ast.List):
        items = value.values if isinstance(value, ast.Dict) else value.elts
        parts = [_numbers(item) for item in items]
        return [number for part in parts for number in part] if all(parts) else []
    if isinstance(value, ast.BinOp):
        sides = [_numbers(value.left), _numbers(value.right)]
        if [len(side) for side in sides] == [1, 1]:
            left, right = sides[0][0], sides[1][0]
            if isinstance(value.op, ast.Mult):
                return [left * right]
            if isinstance(value.op, ast.Div) and right:
                return [left / right]
    return []


def _names(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [name.strip() for name in node.value.split(",") if name.strip()]
    if isinstance(node, ast.Tuple | ast.List):
        values = [item.value for item in node.elts if isinstance(item, ast.Constant)]
        return [str(value) for value in values] if len(values) == len(node.elts) else []
    return []


def _row(element: ast.expr, width: int) -> tuple[str, ...] | None:
    values = [element]
    if isinstance(element, ast.Call) and last_part(element.func) == "param":
        values = element.args
    if width > 1 and len(values) == 1 and isinstance(values[0], ast.Tuple | ast.List):
        values = values[0].elts
    return tuple(map(ast.unparse, values)) if len(values) == width else None


def cells(axes: Sequence[Axis]) -> list[dict[str, str]] | None:
    """All rows that the axes of a test span, or None when they are too many."""
    size = 1
    for axis in axes:
        size *= len(axis.rows)
    if not axes or size > _MAX_ROWS:
        return None
    return [
        {
            name: value
            for axis, row in zip(axes, rows, strict=True)
            for name, value in zip(axis.names, row, strict=True)
        }
        for rows in itertools.product(*(axis.rows for axis in axes))
    ]
