"""Cut GitHub's OpenAPI description down to what fla-bot calls; run by hand on updates.

    npm pack @octokit/openapi@23.0.2
    python tools/trim_openapi.py octokit-openapi-23.0.2.tgz tests/github

Writes contract.json (parameters, bodies and replies as JSON Schema) and examples.json (the reply
bodies that GitHub publishes), each with the package's name, version and licence.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import argparse
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SPEC = "package/generated/api.github.com.json"
OPERATIONS = """
actions/cancel-workflow-run actions/create-workflow-dispatch actions/download-artifact
actions/force-cancel-workflow-run actions/get-artifact actions/get-job-for-workflow-run
actions/get-repo-variable actions/get-workflow actions/get-workflow-run
actions/get-workflow-run-attempt actions/list-artifacts-for-repo
actions/list-jobs-for-workflow-run actions/list-repo-variables actions/list-repo-workflows
actions/list-self-hosted-runners-for-repo actions/list-workflow-run-artifacts
actions/list-workflow-runs actions/list-workflow-runs-for-repo actions/re-run-job-for-workflow-run
actions/re-run-workflow actions/re-run-workflow-failed-jobs
apps/create-installation-access-token apps/get-authenticated apps/get-repo-installation
checks/create checks/get checks/get-suite checks/list-annotations checks/list-for-ref
checks/list-for-suite checks/list-suites-for-ref checks/rerequest-run checks/update
git/get-ref git/get-tree git/list-matching-refs
issues/add-labels issues/create-comment issues/delete-comment issues/get issues/get-comment
issues/list-comments issues/list-comments-for-repo issues/list-events
issues/list-labels-on-issue issues/remove-label
issues/set-labels issues/update-comment
pulls/get pulls/list pulls/list-commits pulls/list-files pulls/update
rate-limit/get
reactions/create-for-issue-comment reactions/delete-for-issue-comment
reactions/list-for-issue-comment
repos/compare-commits-with-basehead repos/create-commit-status repos/get repos/get-branch
repos/get-branch-rules repos/get-collaborator-permission-level repos/get-combined-status-for-ref
repos/get-commit repos/get-content repos/get-environment repos/get-status-checks-protection
repos/list-branches repos/list-commit-statuses-for-ref repos/list-deployment-branch-policies
repos/list-pull-requests-associated-with-commit
users/get-authenticated
"""
# The reply bodies that tests/github/double.py starts from.
EXAMPLES = """
actions/create-workflow-dispatch actions/get-artifact actions/get-job-for-workflow-run
actions/get-repo-variable actions/get-workflow actions/get-workflow-run
actions/list-self-hosted-runners-for-repo
apps/create-installation-access-token apps/get-authenticated apps/get-repo-installation
checks/get checks/get-suite checks/list-annotations git/get-ref git/get-tree issues/get
issues/get-comment
issues/list-labels-on-issue pulls/get pulls/list pulls/list-commits pulls/list-files rate-limit/get
reactions/create-for-issue-comment repos/compare-commits-with-basehead repos/create-commit-status
repos/get repos/get-branch repos/get-branch-rules repos/get-collaborator-permission-level
repos/get-combined-status-for-ref repos/get-commit repos/get-content repos/get-environment
repos/get-status-checks-protection repos/list-branches repos/list-deployment-branch-policies
"""
WORDS = {"description", "example", "examples", "externalDocs", "title", "deprecated", "xml"}
BRANCHES = ("allOf", "anyOf", "oneOf")


def main() -> None:
    """Read the package's tarball, write the two files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tarball", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    with tarfile.open(given.tarball) as archive:
        spec, package, licence = (
            _member(archive, name) for name in (SPEC, "package/package.json", "package/LICENSE")
        )
    source = json.loads(package)
    head = {
        "package": source["name"],
        "version": source["version"],
        "changed": "trimmed by tools/trim_openapi.py",
        "license": " ".join(licence.decode().split()),
    }
    api = json.loads(spec)
    _write(given.folder / "contract.json", {**head, **contract(api)})
    _write(given.folder / "examples.json", {**head, "examples": examples(api)})


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    content = archive.extractfile(name)
    assert content is not None, name
    return content.read()


def _write(path: Path, data: dict[str, Any]) -> None:
    """One line an entry, so that an update can be read as a diff."""
    parts = []
    for key, value in data.items():
        if isinstance(value, dict):
            lines = ",\n".join(
                f"{json.dumps(name)}: {json.dumps(item, separators=(',', ':'), sort_keys=True)}"
                for name, item in sorted(value.items())
            )
            parts.append(f"{json.dumps(key)}: {{\n{lines}\n}}")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def operations(api: dict[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Identifier, method, path and description of every operation that is wanted."""
    found = {
        item["operationId"]: (method, path, item)
        for path, methods in api["paths"].items()
        for method, item in methods.items()
        if isinstance(item, dict) and "operationId" in item
    }
    for name in OPERATIONS.split():
        yield name, *found[name]


def contract(api: dict[str, Any]) -> dict[str, Any]:
    """The wanted operations and every schema that they reach."""
    result: dict[str, Any] = {"operations": {}, "schemas": {}}
    wanted: set[str] = set()
    for name, method, path, item in operations(api):
        result["operations"][name] = _operation(api, method, path, item, wanted)
    while missing := wanted - result["schemas"].keys():
        for name in missing:
            schema = api["components"]["schemas"][name]
            result["schemas"][name] = convert(schema, wanted)
    return result


def _operation(
    api: dict[str, Any], method: str, path: str, item: dict[str, Any], wanted: set[str]
) -> dict[str, Any]:
    parameters = [_resolve(api, entry) for entry in item.get("parameters", [])]
    body = item.get("requestBody", {})
    return {
        "method": method.upper(),
        "path": path,
        "apps": item["x-github"]["enabledForGitHubApps"],
        "parameters": [
            {
                "name": entry["name"],
                "in": entry["in"],
                "required": entry.get("required", False),
                "schema": convert(entry["schema"], wanted),
            }
            for entry in parameters
        ],
        "body": _json_schema(body, wanted),
        "body_required": body.get("required", False),
        "replies": {
            status: _json_schema(_resolve(api, reply), wanted)
            for status, reply in item["responses"].items()
        },
    }


def _json_schema(holder: dict[str, Any], wanted: set[str]) -> Any:
    content = holder.get("content", {})
    media = content.get("application/json") or content.get("application/vnd.github.object")
    return convert(media["schema"], wanted) if media and "schema" in media else None


def _resolve(api: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in item:
        found: Any = api
        for part in item["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        item = found
    return item


def convert(schema: Any, wanted: set[str]) -> Any:
    """An OpenAPI 3.0 schema as JSON Schema: words dropped, `nullable` written out, refs ours."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        wanted.add(name)
        return {"$ref": f"#/schemas/{name}"}
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in WORDS or key == "nullable" or key.startswith("x-"):
            continue
        result[key] = _convert_value(key, value, wanted)
    return _with_null(result) if schema.get("nullable") else result


def _convert_value(key: str, value: Any, wanted: set[str]) -> Any:
    if key == "properties":
        return {name: convert(item, wanted) for name, item in value.items()}
    if key in BRANCHES:
        return [convert(item, wanted) for item in value]
    if key in ("items", "additionalProperties", "not"):
        return convert(value, wanted)
    return value


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    if any(branch in schema for branch in BRANCHES):
        return {"anyOf": [schema, {"type": "null"}]}
    if "enum" in schema and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    return schema


def examples(api: dict[str, Any]) -> dict[str, Any]:
    """The first published body of each wanted operation, lists cut to one item."""
    result: dict[str, Any] = {}
    for name, _, _, item in operations(api):
        for status, reply in item["responses"].items():
            content = _resolve(api, reply).get("content", {}).get("application/json", {})
            shown = list(content.get("examples", {}).values())
            if name in EXAMPLES.split() and status.startswith("2") and shown:
                result[name] = _shorten(_resolve(api, shown[0])["value"])
    return result


def _shorten(value: Any) -> Any:
    if isinstance(value, list):
        return [_shorten(item) for item in value[:1]]
    if isinstance(value, dict):
        return {key: _shorten(item) for key, item in value.items()}
    return value


if __name__ == "__main__":
    main()
