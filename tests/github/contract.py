"""GitHub's own description of its API, as a check of every request and reply of the tests.

contract.json is GitHub's OpenAPI cut to the operations that fla-bot calls (tools/trim_openapi.py).
The description is looser than the service in some places and stricter in one: OVERRIDES.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

HERE = Path(__file__).parent
# 2026-03-10 changes dispatch and drops fields (`x-github-breaking-changes` of the description).
API_VERSION = "2022-11-28"
MAX_PER_PAGE = 100  # "The number of results per page (max 100)", description of the parameter
MAX_COMMENT = 65_536
MAX_STATUS_DESCRIPTION = 140
# Only these take slashes as they are; elsewhere a branch name must be percent-encoded.
SLASHED = {
    "git/get-ref",
    "git/list-matching-refs",
    "repos/compare-commits-with-basehead",
    "repos/get-content",
}
LAST = {"path", "ref", "basehead"}
# Errors that every operation may answer with, described or not: expired token, missing permission,
# rate limits, conflicts, a service that is down. docs.github.com/rest troubleshooting pages.
COMMON_ERRORS = {400, 401, 403, 404, 409, 410, 415, 422, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Operation:
    """One operation of the description."""

    name: str
    method: str
    path: str
    data: dict[str, Any]
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class Call:
    """A request that belongs to an operation."""

    operation: Operation
    path: dict[str, str]
    query: dict[str, str]
    body: Any


class Contract:
    """Routes requests and lists what is wrong with them and with their replies."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data
        self.schemas: dict[str, Any] = data["schemas"]
        found = [_operation(name, item) for name, item in data["operations"].items()]
        # Literal first: /pulls/comments/1 is no pull request, /commits/{ref}/status no commit.
        self.operations = sorted(found, key=lambda item: -len(re.sub(r"{\w+}", "", item.path)))
        self.by_name = {item.name: item for item in found}

    def relaxed(self) -> Contract:
        """The same without required keys, for replies that are older than those keys."""
        return Contract(_without_required(self._data))

    def route(self, method: str, path: str) -> tuple[Operation, dict[str, str]] | None:
        """The operation that a request is for, and its path parameters."""
        for operation in self.operations:
            if operation.method == method and (match := operation.pattern.fullmatch(path)):
                return operation, match.groupdict()
        return None

    def request_faults(self, call: Call) -> list[str]:
        """All that is wrong with a request."""
        faults = [*self._query_faults(call), *self._body_faults(call)]
        for override in OVERRIDES:
            faults += override(call)
        return [f"{call.operation.name}: {fault}" for fault in faults]

    def reply_faults(self, operation: Operation, status: int, body: Any) -> list[str]:
        """All that is wrong with a reply; `body` is None where nothing was sent."""
        replies = {"304": None, **operation.data["replies"]}  # docs, conditional requests
        if str(status) not in replies:
            known = status in COMMON_ERRORS
            schema = {"$ref": "#/schemas/basic-error"} if known else False
        else:
            schema = replies[str(status)]
        if schema is None:
            faults = [] if body is None else ["a body where none is described"]
        elif schema is False:
            faults = [f"status {status} is not described"]
        else:
            faults = list(self.schema_faults(schema, body))
        faults = [f"{operation.name} {status}: {fault}" for fault in faults]
        return [fault for fault in faults if not any(known.search(fault) for known in ACCEPTED)]

    def schema_faults(self, schema: Any, value: Any) -> Iterator[str]:
        """What a value breaks of a schema."""
        for error in _validator(self, json.dumps(schema, sort_keys=True)).iter_errors(value):
            place = ".".join(str(part) for part in error.instance_path)
            # The value comes first and may be long; what is wrong with it comes last.
            text = error.message if len(error.message) < 300 else f"...{error.message[-200:]}"
            yield f"{place or 'body'}: {text}"

    def _query_faults(self, call: Call) -> Iterator[str]:
        known = {p["name"]: p for p in call.operation.data["parameters"] if p["in"] == "query"}
        for name, value in call.query.items():
            if name not in known:
                yield f"unknown query key `{name}`"  # GitHub ignores it: a filter that filters not
                continue
            yield from (
                f"query {name}: {fault}"
                for fault in self.schema_faults(known[name]["schema"], _typed(known[name], value))
            )

    def _body_faults(self, call: Call) -> Iterator[str]:
        schema = call.operation.data["body"]
        if call.body is None:
            if call.operation.data["body_required"]:
                yield "a body is required"
            return
        if schema is None:
            # docs: re-run and cancel take an optional object; the rest takes nothing.
            yield "a body where none is described"
            return
        if _is_bare_label_list(call):
            schema = {"items": {"type": "string"}, "type": "array"}
        yield from self.schema_faults(schema, call.body)
        yield from self._unknown_keys(schema, call.body, "")

    def _unknown_keys(self, schema: Any, value: Any, place: str) -> Iterator[str]:
        """GitHub ignores keys that it does not know; here a misspelt key is a fault."""
        properties, items = self._shape(schema)
        if isinstance(value, list) and items is not None:
            for item in value:
                yield from self._unknown_keys(items, item, f"{place.removesuffix('.')}[].")
        if isinstance(value, dict) and properties:
            for key, item in value.items():
                if key not in properties:
                    yield f"unknown body key `{place}{key}`"
                else:
                    yield from self._unknown_keys(properties[key], item, f"{place}{key}.")

    def _shape(self, schema: Any) -> tuple[dict[str, Any], Any]:
        while "$ref" in schema:
            schema = self.schemas[schema["$ref"].rsplit("/", 1)[1]]
        properties, items = dict(schema.get("properties", {})), schema.get("items")
        for branch in ("allOf", "anyOf", "oneOf"):
            for part in schema.get(branch, ()):
                more, inner = self._shape(part)
                properties, items = more | properties, items or inner
        return properties, items


@cache
def _validator(contract: Contract, schema: str) -> Any:
    """Compiled once; only schemas that a test meets are compiled at all."""
    return jsonschema_rs.Draft202012Validator({**json.loads(schema), "schemas": contract.schemas})


@cache
def load() -> Contract:
    """The contract, read once."""
    return Contract(json.loads((HERE / "contract.json").read_text()))


def _without_required(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_required(item) for item in value]
    if not isinstance(value, dict):
        return value
    # A property of the name `required` has a schema; the word has a list.
    return {
        # Without their keys several alternatives may fit.
        "anyOf" if key == "oneOf" else key: _without_required(item)
        for key, item in value.items()
        if not (key == "required" and isinstance(item, list))
    }


def _operation(name: str, data: dict[str, Any]) -> Operation:
    kinds = {p["name"]: p["schema"].get("type") for p in data["parameters"] if p["in"] == "path"}
    text = re.escape(data["path"]).replace(r"\{", "{").replace(r"\}", "}")
    for part in re.findall(r"{(\w+)}", text):
        inner = r"\d+" if kinds.get(part) == "integer" else "[^/]+"
        inner = ".+" if name in SLASHED and part in LAST else inner
        text = text.replace(f"{{{part}}}", f"(?P<{part}>{inner})")
    return Operation(name, data["method"], data["path"], data, re.compile(text))


def _typed(parameter: Mapping[str, Any], text: str) -> Any:
    kind = parameter["schema"].get("type")
    if kind == "integer" and re.fullmatch(r"-?\d+", text):
        return int(text)
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    return text


def _is_bare_label_list(call: Call) -> bool:
    """The description knows only {"labels": [...]}; the service takes a bare list too.

    Source: PyGithub 2.10.0 sends it, and its recording Issue.testAddAndRemoveLabels has the 200.
    """
    return call.operation.name in ("issues/add-labels", "issues/set-labels") and isinstance(
        call.body, list
    )


# Replies that differ from the description.
ACCEPTED = (
    # recordings PullRequest.setUp, Repository.testGetPullsWithArguments: the fork was deleted.
    re.compile(r"^(pulls/|repos/list-pull-requests).*head\.(repo|user|label): null is not"),
    # recording Organization.testCreateSecretSelected: nothing was pushed yet.
    re.compile(r"^repos/get 200: pushed_at: null is not"),
    # The enum of replies lacks `stale`; the words of checks/create say that GitHub sets it.
    re.compile(r'^checks/.*conclusion: "stale" is not one of'),
)
Override = Callable[[Call], list[str]]


def _long_comment(call: Call) -> list[str]:
    """No limit in the description; the service refuses more than 65,536 characters with 422.

    Source: ai-ticket#51 (the reply as PyGithub shows it) and danger#424.
    """
    named = call.operation.name in (
        "issues/create-comment",
        "issues/update-comment",
        "pulls/update",
    )
    body = call.body.get("body") if named and isinstance(call.body, dict) else None
    long = isinstance(body, str) and len(body) > MAX_COMMENT
    return [f"Body is too long (maximum is {MAX_COMMENT} characters)"] if long else []


def _long_description(call: Call) -> list[str]:
    """No limit in the description; the service refuses more than 140 characters with 422.

    Source: zappr#378 and argo-diff#49, both with the 422.
    """
    if call.operation.name != "repos/create-commit-status" or not isinstance(call.body, dict):
        return []
    text = call.body.get("description") or ""
    long = len(text) > MAX_STATUS_DESCRIPTION
    return [f"description is too long (maximum is {MAX_STATUS_DESCRIPTION} characters)"] * long


def _completed_without_conclusion(call: Call) -> list[str]:
    """checks/create does not force it in the schema, only in words; checks/update does.

    Source: description of `conclusion`: "Required if you provide completed_at or a status of
    completed".
    """
    if call.operation.name != "checks/create" or not isinstance(call.body, dict):
        return []
    completed = call.body.get("status") == "completed" or "completed_at" in call.body
    return ["completed without a conclusion"] * (completed and not call.body.get("conclusion"))


def _large_page(call: Call) -> list[str]:
    """The service silently gives 100 at most, so a larger page is a listing that loses items.

    Source: description of `per_page`, which has no `maximum`.
    """
    text = call.query.get("per_page", "30")
    sound = text.isdigit() and 1 <= int(text) <= MAX_PER_PAGE
    return [] if sound else [f"per_page {text} is not in 1..{MAX_PER_PAGE}"]


def _long_annotation(call: Call) -> list[str]:
    """Limits that stand only in the words of the annotation's schema (64 KB, 255 characters)."""
    if call.operation.name not in ("checks/create", "checks/update"):
        return []
    output = call.body.get("output") if isinstance(call.body, dict) else None
    faults = []
    for item in (output or {}).get("annotations", ()):
        sizes = [len(str(item.get(key, "")).encode()) for key in ("message", "raw_details")]
        if max(sizes) > 64 << 10 or len(item.get("title") or "") > 255:
            faults.append("annotation is too long (64 KB, title 255 characters)")
        columns = item.keys() & {"start_column", "end_column"}
        if columns and item.get("start_line") != item.get("end_line"):
            faults.append("columns need start_line equal to end_line")
    return faults


def _stale(call: Call) -> list[str]:
    """`stale` is in no request enum in words: "only GitHub can set it"; the enum is checked too."""
    body = call.body if isinstance(call.body, dict) else {}
    named = call.operation.name in ("checks/create", "checks/update")
    return ["only GitHub may conclude `stale`"] * (named and body.get("conclusion") == "stale")


OVERRIDES: tuple[Override, ...] = (
    _long_comment,
    _long_description,
    _completed_without_conclusion,
    _large_page,
    _long_annotation,
    _stale,
)
