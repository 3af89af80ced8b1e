"""The few fields of a webhook payload that are read; GitHub sends many more."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bot.errors import Fault, UserError
from bot.model import Oid

__all__ = ["Event", "read_event"]

MAX_BYTES = 25 << 20  # GitHub caps webhook payloads at 25 MB
KNOWN = (
    "pull_request", "pull_request_target", "issue_comment", "workflow_run", "workflow_dispatch",
    "schedule",
)  # fmt: skip
MAX_NUMBER = 2**31
Number = Annotated[int, Field(ge=1, lt=MAX_NUMBER)]
_NUMBER = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)


class _Payload(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Account(_Payload):
    login: str
    type: str = "User"


class _Commit(_Payload):
    sha: Oid
    ref: str


class _PullRequest(_Payload):
    number: Number
    title: str = ""
    body: str | None = None
    base: _Commit
    head: _Commit


class _Repository(_Payload):
    full_name: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9-]+/([A-Za-z0-9_-][A-Za-z0-9_.-]*|\.[\w-][\w.-]*)$")
    ]


class _Issue(_Payload):
    number: Number
    pull_request: dict[str, object] | None = None


class _Comment(_Payload):
    body: str | None = ""
    user: _Account | None = None


class _Run(_Payload):
    event: str
    head_branch: str | None
    head_sha: Oid


class Event(_Payload):
    """A payload and the kind of its event; what a kind does not have is None."""

    name: str
    action: str = ""
    sender: _Account | None = None
    before: Oid | None = None
    pull_request: _PullRequest | None = None
    repository: _Repository | None = None
    issue: _Issue | None = None
    comment: _Comment | None = None
    workflow_run: _Run | None = None
    inputs: dict[str, object] | None = None

    def inputs_pr(self) -> int:
        """The pull request that a dispatch names."""
        text = str((self.inputs or {}).get("pr", ""))
        # One spelling only: the concurrency group of the job is named after the text.
        if not _NUMBER.fullmatch(text) or int(text) >= MAX_NUMBER:
            raise UserError("the input `pr` is not the number of a pull request")
        return int(text)


def read_event(path: Path, name: str | None) -> Event:
    """A payload file; an event of a kind that is not ours is an error."""
    if name not in KNOWN:
        given = f"`{name}`" if name else "none (set --event-name or GITHUB_EVENT_NAME)"
        words = f"event kind {given} is not handled; known kinds: {', '.join(KNOWN)}"
        raise UserError(words)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(faults=[Fault(str(path), 0, 0, "larger than any GitHub payload")])
        event = _Named.model_validate_json(path.read_bytes())
        if event.pull_request is None and name.startswith("pull_request"):
            raise UserError(faults=[Fault(str(path), 0, 0, "pull_request: Field required")])
        return Event.model_validate({**dict(event), "name": name})
    except OSError as error:
        raise UserError(faults=[Fault(str(path), 0, 0, error.strerror or str(error))]) from error
    except ValidationError as error:
        faults = [
            Fault(str(path), 0, 0, f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}")
            for item in error.errors(include_url=False, include_input=False)
        ]
        raise UserError(faults=faults) from error


class _Named(Event):
    """The payload itself, which does not say its kind."""

    name: str = ""
