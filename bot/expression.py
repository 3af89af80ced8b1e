"""The closed expression grammar of contracts: Python's syntax, our evaluator, never `eval`."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

__all__ = ["ATTRIBUTES", "Expression", "ExpressionError", "expression"]

MAX_LENGTH = 400
MAX_NODES = 120
MAX_INT = 2**63
MAX_RANGE = 65_536
Value = Any  # int, float, bool, str, None, a tuple of these, or a view with ATTRIBUTES

ATTRIBUTES = frozenset({"shape", "dtype", "ndim", "contiguous", "strides", "requires_grad"})


def _cdiv(number: int, by: int) -> int:
    return -(-number // by)


def _range(*bounds: int) -> tuple[int, ...]:
    found = range(*bounds)
    if len(found) > MAX_RANGE:
        raise ExpressionError(f"a range of more than {MAX_RANGE} numbers")
    return tuple(found)


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "abs": abs,
    "cdiv": _cdiv,
    "len": len,
    "max": max,
    "min": min,
    "range": _range,
    "sum": sum,
}
_BINARY: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Value, Value], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, group: item in group,
    ast.NotIn: lambda item, group: item not in group,
}
_UNARY: dict[type[ast.unaryop], Callable[[Value], Value]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


class ExpressionError(ValueError):
    """The text is outside the grammar, or has no value for these inputs."""


class Expression:
    """A parsed expression; `names` are the variables it reads."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tree = _parse(source)
        calls = {id(node.func) for node in ast.walk(self.tree) if isinstance(node, ast.Call)}
        nodes = [node for node in ast.walk(self.tree) if id(node) not in calls]
        self.names = frozenset(node.id for node in nodes if isinstance(node, ast.Name))

    def __call__(self, variables: Mapping[str, Value]) -> Value:
        """The value; every failure is an ExpressionError that quotes the expression."""
        try:
            return _value(self.tree, variables)
        except ExpressionError as error:
            raise ExpressionError(f"{error} in `{self.source}`") from error
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ExpressionError(f"`{self.source}` has no value: {error}") from error


@lru_cache(maxsize=4096)
def expression(source: str) -> Expression:
    """Parse, or raise ExpressionError that says what is not allowed."""
    return Expression(source)


def _parse(source: str) -> ast.expr:
    if len(source) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(source.strip(), mode="eval").body
    except SyntaxError as error:
        raise ExpressionError(f"`{source}` is not an expression: {error.msg}") from error
    except (ValueError, MemoryError, RecursionError) as error:
        raise ExpressionError(f"`{source}` is not an expression: {error}") from error
    nodes = list(ast.walk(tree))
    if len(nodes) > MAX_NODES:
        raise ExpressionError(f"`{source}` has more than {MAX_NODES} parts")
    for node in nodes:
        _allow(node, source)
    return tree


def _allow(node: ast.AST, source: str) -> None:
    if isinstance(node, ast.Call):
        known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        if not known or node.keywords:
            allowed = ", ".join(sorted(_FUNCTIONS))
            raise ExpressionError(f"`{source}`: only these functions may be called: {allowed}")
    elif isinstance(node, ast.Attribute):
        if node.attr not in ATTRIBUTES:
            allowed = ", ".join(sorted(ATTRIBUTES))
            raise ExpressionError(f"`{source}`: `.{node.attr}` is not one of {allowed}")
    elif isinstance(node, ast.Constant):
        if not isinstance(node.value, int | float | str | None):
            raise ExpressionError(f"`{source}`: {node.value!r} is not a number, word or None")
    elif not isinstance(node, _SYNTAX):
        raise ExpressionError(f"`{source}`: {type(node).__name__} is outside the grammar")


_SYNTAX = (
    *(ast.Name, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List),
    *(ast.Subscript, ast.Load, ast.And, ast.Or, *_BINARY, *_COMPARE, *_UNARY),
)


def _value(node: ast.expr, variables: Mapping[str, Value]) -> Value:
    value = _EVALUATORS[type(node)](node, variables)
    if isinstance(value, int) and abs(value) >= MAX_INT:
        raise ExpressionError("a number leaves 64 bits")
    return value


def _name(node: ast.Name, variables: Mapping[str, Value]) -> Value:
    if node.id not in variables:
        raise ExpressionError(f"unknown name `{node.id}`")
    return variables[node.id]


def _binary(node: ast.BinOp, variables: Mapping[str, Value]) -> Value:
    left, right = _value(node.left, variables), _value(node.right, variables)
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        # `"x" * 10**9` and tuple repetition would build what no contract needs.
        raise ExpressionError("arithmetic on something that is not a number")
    return _BINARY[type(node.op)](left, right)


def _bool(node: ast.BoolOp, variables: Mapping[str, Value]) -> Value:
    wanted = isinstance(node.op, ast.Or)
    value: Value = not wanted
    for part in node.values:
        value = _value(part, variables)
        if bool(value) is wanted:
            return value
    return value


def _compare(node: ast.Compare, variables: Mapping[str, Value]) -> bool:
    left = _value(node.left, variables)
    for op, part in zip(node.ops, node.comparators, strict=True):
        right = _value(part, variables)
        if not _COMPARE[type(op)](left, right):
            return False
        left = right
    return True


def _branch(node: ast.IfExp, variables: Mapping[str, Value]) -> Value:
    return _value(node.body if _value(node.test, variables) else node.orelse, variables)


def _call(node: ast.Call, variables: Mapping[str, Value]) -> Value:
    assert isinstance(node.func, ast.Name)
    return _FUNCTIONS[node.func.id](*(_value(item, variables) for item in node.args))


def _items(node: ast.Tuple | ast.List, variables: Mapping[str, Value]) -> tuple[Value, ...]:
    return tuple(_value(item, variables) for item in node.elts)


_EVALUATORS: dict[type[ast.expr], Callable[[Any, Mapping[str, Value]], Value]] = {
    ast.Constant: lambda node, _: node.value,
    ast.Name: _name,
    ast.BinOp: _binary,
    ast.UnaryOp: lambda node, v: _UNARY[type(node.op)](_value(node.operand, v)),
    ast.BoolOp: _bool,
    ast.Compare: _compare,
    ast.IfExp: _branch,
    ast.Call: _call,
    ast.Tuple: _items,
    ast.List: _items,
    ast.Subscript: lambda node, v: _value(node.value, v)[_value(node.slice, v)],
    ast.Attribute: lambda node, v: getattr(_value(node.value, v), node.attr),
}
