"""From the lines of a device process to the evidence of a job."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ValidationError

from bot.errors import InfraError
from bot.evidence import Environment, Evidence
from bot.lanes.session import Session
from bot.model import Job, Plan

__all__ = ["Interrupted", "evidence", "evidence_of", "finished", "messages", "told"]

Model = TypeVar("Model", bound=BaseModel)
Lines = Sequence[dict[str, Any]]


class Interrupted(KeyboardInterrupt):
    """A signal ended a job; its workers are gone, `evidence` is what was measured by then."""

    def __init__(self, signal: str, evidence: Evidence) -> None:
        self.evidence = evidence
        super().__init__(signal)


def messages(stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    """What a device process says, line by line; one that it did not end does not count."""
    with stream:
        yield from (_read(line) for line in stream if line.endswith(b"\n"))


def _read(line: bytes) -> dict[str, Any]:
    """One line; InfraError if it refuses the job."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise InfraError("the device process wrote something unreadable") from error
    if not isinstance(message, dict):
        raise InfraError("the device process wrote something unreadable")
    if "refused" in message:
        raise InfraError(str(message["refused"].get("reason")))
    return message


def told(lines: Lines, kind: str, model: type[Model]) -> list[Model]:
    """All things of a kind that a device process told."""
    try:
        return [model.model_validate_json(json.dumps(m[kind])) for m in lines if kind in m]
    except ValidationError as error:
        raise InfraError(f"the device process wrote something unreadable: {error}") from error


def _unfinished(lines: Lines, session: Session) -> str:
    """Why the lines are not all that was due; empty if they are."""
    if any("end" in message for message in lines):
        return ""
    if session.stopped:
        return f"{session.stopped} interrupted it; run again to go on"
    return "the lane's time was over" if session.timed_out else "the device process ended early"


def evidence_of(plan: Plan, job: Job, lines: Lines, session: Session, **found: Any) -> Evidence:
    """Evidence from what a device process told; `found`: the lists that the lane's kind fills."""
    machines = told(lines, "environment", Environment)
    if not machines and session.stopped:
        raise KeyboardInterrupt(session.stopped)
    if not machines:
        last = session.logs["device"].last_line()
        raise InfraError(f"the device process did not start: {last or 'no message'}")
    environment = session.protection.into(machines[-1])
    return evidence(plan, job, _unfinished(lines, session), environment, **found)


def finished(session: Session, found: Evidence) -> Evidence:
    """What a job found, once its session is over; Interrupted if that was a signal's doing."""
    if session.stopped:
        raise Interrupted(session.stopped, found)
    return found


def evidence(plan: Plan, job: Job, note: str, environment: Environment, **found: Any) -> Evidence:
    """Evidence for a job of a plan; a note says what is missing."""
    return Evidence(
        schema="fla-bot/evidence@2",
        plan=plan.hash,
        job=job.id,
        lane=job.lane,
        head=plan.head,
        merge_base=plan.merge_base,
        trusted=plan.trusted,
        complete=not note,
        note=note,
        environment=environment,
        **found,
    )
