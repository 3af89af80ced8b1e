"""One webhook event to the writes that it calls for; nothing is sent from here."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bot.change import Repository
from bot.check import Request, analyse, report
from bot.errors import Fault, UserError
from bot.github.records import Write
from bot.model import CheckState, Oid, Report
from bot.report.markdown import body_block, comment, put_block

__all__ = ["handle"]

CHECK_NAME = "fla-bot/ready"
MAX_EVENT_BYTES = 25 << 20  # GitHub caps webhook payloads at 25 MB
MAX_BODY = 65_536
_ACTIONS = frozenset({"opened", "reopened", "synchronize", "edited", "ready_for_review"})


class _Payload(BaseModel):
    """The few fields that are read; GitHub sends many more."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Commit(_Payload):
    sha: Oid
    ref: str


class _PullRequest(_Payload):
    number: int = Field(ge=1)
    title: str
    body: str | None
    base: _Commit
    head: _Commit


class _RepositoryName(_Payload):
    full_name: str = Field(pattern=r"^[A-Za-z0-9-]+/([A-Za-z0-9_-][A-Za-z0-9_.-]*|\.[\w-][\w.-]*)$")


class _Action(_Payload):
    action: str


class _Event(_Action):
    pull_request: _PullRequest
    repository: _RepositoryName


Payload = TypeVar("Payload", bound=_Payload)


def handle(
    repository: Repository, path: Path, name: str | None, evidence_dir: Path | None
) -> list[Write]:
    """The writes for an event; an event of a kind that is not ours is an error."""
    if name not in ("pull_request", "pull_request_target"):
        known = "pull_request, pull_request_target"
        given = f"`{name}`" if name else "none (set --event-name or GITHUB_EVENT_NAME)"
        raise UserError(f"event kind {given} is not handled; known kinds: {known}")
    if _read(path, _Action).action not in _ACTIONS:
        return []
    event = _read(path, _Event)
    pull = event.pull_request
    request = Request(
        base=pull.base.sha,
        head=pull.head.sha,
        trusted=pull.base.sha,
        title=pull.title,
        body=pull.body or "",
    )
    found = report(repository, analyse(repository, request), request, evidence_dir)
    return list(_writes(event, found))


def _read(path: Path, model: type[Payload]) -> Payload:
    try:
        if path.stat().st_size > MAX_EVENT_BYTES:
            raise UserError(faults=[Fault(str(path), 0, 0, "larger than any GitHub payload")])
        return model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(faults=[Fault(str(path), 0, 0, error.strerror or str(error))]) from error
    except ValidationError as error:
        faults = [
            Fault(str(path), 0, 0, f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}")
            for item in error.errors(include_url=False, include_input=False)
        ]
        raise UserError(faults=faults) from error


def _writes(event: _Event, found: Report) -> list[Write]:
    root, number = f"/repos/{event.repository.full_name}", event.pull_request.number
    writes = [Write(method="POST", path=f"{root}/check-runs", body=_check_run(found))]
    if found.state is not CheckState.SUCCESS:
        # A ready change needs no comment; the check says it.
        body = {"body": comment(found)}
        writes.append(Write(method="POST", path=f"{root}/issues/{number}/comments", body=body))
    old = event.pull_request.body or ""
    new = put_block(old, body_block(found))
    # A body without room keeps its text; check and comment say the same.
    if new != old and len(new) <= MAX_BODY:
        writes.append(Write(method="PATCH", path=f"{root}/pulls/{number}", body={"body": new}))
    return writes


def _check_run(found: Report) -> dict[str, Any]:
    """A check run in one of the five states that `fla-bot/ready` may have."""
    running = found.state in (CheckState.QUEUED, CheckState.IN_PROGRESS)
    state = (
        {"status": str(found.state)}
        if running
        else {
            "status": "completed",
            "conclusion": str(found.state),
        }
    )
    summary = comment(found)
    return {
        "name": CHECK_NAME,
        "head_sha": found.change.head,
        **state,
        "output": {"title": found.headline[:255], "summary": summary},
    }
