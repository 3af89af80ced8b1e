"""An OpenAPI 3.0 schema becomes a JSON Schema that means the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.github.contract import load
from tools.trim_openapi import EXAMPLES, OPERATIONS, convert


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        (
            {"type": "string", "enum": ["a"], "nullable": True},
            {"type": ["string", "null"], "enum": ["a", None]},
        ),
        (
            {"anyOf": [{"type": "string"}], "nullable": True},
            {"anyOf": [{"anyOf": [{"type": "string"}]}, {"type": "null"}]},
        ),
        ({"type": "string", "description": "words", "example": 1, "x-y": 2}, {"type": "string"}),
        (
            {"properties": {"description": {"type": "string", "title": "t"}}},
            {"properties": {"description": {"type": "string"}}},
        ),
        ({"items": {"$ref": "#/components/schemas/a"}}, {"items": {"$ref": "#/schemas/a"}}),
        ({"additionalProperties": True}, {"additionalProperties": True}),
    ],
)
def test_convert(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert convert(given, set()) == wanted


def test_references_are_collected() -> None:
    wanted: set[str] = set()
    convert({"oneOf": [{"$ref": "#/components/schemas/a"}, {"$ref": "#/x/b"}]}, wanted)
    assert wanted == {"a", "b"}


def test_committed_contract_has_the_operations_that_the_tool_names() -> None:
    assert set(load().by_name) == set(OPERATIONS.split())
    assert set(EXAMPLES.split()) <= set(OPERATIONS.split())
