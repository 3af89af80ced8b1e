"""A pull request's event to the writes that it calls for, with no GitHub; nothing is sent.

The change is judged from the clone and the evidence beside it, by the code that writes for real.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from bot.change import Repository
from bot.check import Request, analyse, report
from bot.errors import UserError
from bot.github.case import Standing
from bot.github.client import Client
from bot.github.connection import Token
from bot.github.events import read_event
from bot.github.ledger import READY, Ledger, View
from bot.github.publish import compose, new_body, notes, summary
from bot.github.records import Write
from bot.github.situation import Decision
from bot.model import CheckState

__all__ = ["handle"]

_ACTIONS = frozenset({"opened", "reopened", "synchronize", "edited", "ready_for_review"})


def handle(
    repository: Repository, path: Path, name: str | None, evidence_dir: Path | None
) -> list[Write]:
    """The writes for an event; one that is not about a pull request's head calls for none."""
    event = read_event(path, name)
    pull = event.pull_request
    if pull is None or event.action not in _ACTIONS:
        return []
    if event.repository is None:
        raise UserError(f"{path}: repository: Field required")
    request = Request(
        base=pull.base.sha,
        head=pull.head.sha,
        trusted=pull.base.sha,
        title=pull.title,
        body=pull.body or "",
    )
    found = report(repository, analyse(repository, request), request, evidence_dir)
    head, state, title = found.change.head, found.state, found.headline
    standing = Standing(
        number=pull.number,
        base_ref=pull.base.ref,
        gated=True,
        state=state,
        title=title,
        since=datetime.now(UTC),
    )
    decision = Decision(standing, state, title, found, head)
    client = Client(event.repository.full_name, Token(""), dry_run=True)
    ledger = Ledger(client, app=True)
    ledger.put(View(), head, READY, state, title, summary(decision), {}, notes(found.findings))
    if state is not CheckState.SUCCESS:
        # A ready change needs no comment; the check says it.
        text = compose("", decision, "")
        client.post_comment(pull.number, text.split("\n")[0], text, look=False)
    old = pull.body or ""
    if (new := new_body(old, found)) != old:
        client.edit_body(pull.number, new)
    return client.writes
