"""YAML read as plain data with a line and column for every value, and validated all at once."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from bot.errors import Fault, UserError

__all__ = ["Document", "Strict", "parse", "validate"]

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
Place = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

# YAML 1.2's core schema. PyYAML resolves 1.1, where `on` is true and `1e-6` a string.
_WORDS = {"null": None, "~": None, "": None, "true": True, "false": False}
_INT = re.compile(r"[-+]?[0-9]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")


class Strict(BaseModel):
    """What crosses a file or a process: unknown keys refused, values never changed afterwards."""

    # Built when first used: a command needs few of the models, and they are costly.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


@dataclass(slots=True)
class Document:
    """Plain data of a YAML text and where each value stands."""

    path: str
    data: Any = None
    marks: dict[Place, tuple[int, int]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def fault(self, place: Place, message: str) -> Fault:
        """A fault at a value, or at the nearest thing round it that has a mark."""
        for end in range(len(place), -1, -1):
            if place[:end] in self.marks:
                return Fault(self.path, *self.marks[place[:end]], message)
        return Fault(self.path, 0, 0, message)


def parse(text: bytes, path: str) -> Document:
    """Read YAML; anchors can blow up and duplicate keys get lost, so both are faults."""
    document = Document(path)
    if len(text) > MAX_BYTES:
        raise UserError(faults=[Fault(path, 0, 0, f"{len(text)} bytes; the limit is {MAX_BYTES}")])
    try:
        _refuse_anchors(text.decode(), document)
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except UnicodeDecodeError as error:
        raise UserError(faults=[Fault(path, 0, 0, f"not UTF-8: {error}")]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise UserError(faults=[Fault(path, line, column, f"not YAML: {error.problem}")]) from error
    except yaml.YAMLError as error:
        raise UserError(faults=[Fault(path, 0, 0, f"not YAML: {error}")]) from error
    if root is not None:
        document.data = _plain(root, (), document)
    return document


def _refuse_anchors(text: str, document: Document) -> None:
    """Checked on events, before an alias is expanded or a deep document is built."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        mark = event.start_mark
        assert mark is not None
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            fault = Fault(document.path, mark.line + 1, mark.column + 1, "nested too deeply")
            raise UserError(faults=[fault])
        if getattr(event, "anchor", None):
            message = "anchors and aliases are not allowed; write the value out"
            fault = Fault(document.path, mark.line + 1, mark.column + 1, message)
            raise UserError(faults=[fault])


def _plain(node: Node, place: Place, document: Document) -> Any:
    document.marks[place] = (node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, SequenceNode):
        return [_plain(item, (*place, i), document) for i, item in enumerate(node.value)]
    if isinstance(node, MappingNode):
        return dict(_pairs(node, place, document))
    assert isinstance(node, ScalarNode)
    return _scalar(node, place, document)


def _pairs(node: MappingNode, place: Place, document: Document) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for key, value in node.value:
        inner = (*place, str(key.value))
        document.marks[inner] = (key.start_mark.line + 1, key.start_mark.column + 1)
        if not isinstance(key, ScalarNode):
            document.faults.append(document.fault(inner, "a key must be a plain word"))
        elif key.value in seen:
            document.faults.append(document.fault(inner, f"key `{key.value}` stands twice"))
        else:
            seen.add(key.value)
            mark = document.marks[inner]
            yield key.value, _plain(value, inner, document)
            document.marks[inner] = mark


def _scalar(node: ScalarNode, place: Place, document: Document) -> Any:
    text: str = node.value
    if node.style:  # quoted or block: the C composer gives "" for plain ones, the Python one None
        return text
    if text.lower() in _WORDS and text in (text.lower(), text.capitalize()):
        return _WORDS[text.lower()]
    if _INT.match(text) and len(text) < 20:
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    if node.tag.startswith("!"):
        document.faults.append(document.fault(place, f"tag {node.tag} is not allowed"))
    return text


def validate(document: Document, model: type[Model]) -> Model:
    """The document as a model; every fault of the file in one UserError."""
    faults = list(document.faults)
    if document.data is None:
        message = "the file is empty; `fla-bot init` writes a first one, with its keys"
        raise UserError(faults=[*faults, Fault(document.path, 1, 1, message)])
    try:
        # JSON mode: strict, and yet lists may become tuples and words enumerations.
        value = model.model_validate_json(json.dumps(document.data))
    except ValidationError as error:
        found = [(item["loc"], dict(item)) for item in error.errors(include_url=False)]
        said = {_place(place): _sentence(_place(place), item) for place, item in found}
        faults += [document.fault(place, sentence) for place, sentence in said.items()]
    if faults:
        raise UserError(faults=faults)
    return value


_SCALARS = ("bool", "int", "float", "str")
_WANTED = {
    **dict.fromkeys(
        ("model_type", "model_attributes_type", "dict_type"), "a mapping, `key: value`"
    ),
    "list_type": "a list, `[one, other]`",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
}


def _place(place: Place) -> Place:
    """Of a value that may be one of several plain ones, and is none, what all faults are about."""
    return (*place[:-1], "") if place and place[-1] in _SCALARS else place


def _sentence(place: Place, item: dict[str, Any]) -> str:
    name = ".".join(str(part) for part in place if part != "")
    if item["type"] == "extra_forbidden":
        return f"unknown key `{place[-1]}`"
    if item["type"] == "missing":
        return f"`{name}` is missing"
    if place[-1:] == ("",):
        return f"`{name}`: expected a number, text, true, false or null"
    if item["type"] in _WANTED:
        return f"{f'`{name}`' if name else 'the file'}: expected {_WANTED[item['type']]}"
    if item["type"] == "string_pattern_mismatch":
        return f"`{name}`: `{item['input']}` does not fit {item['ctx']['pattern']}"
    message = str(item["msg"]).removeprefix("Value error, ")
    return f"`{name}`: {message[:1].lower()}{message[1:]}" if name else message
