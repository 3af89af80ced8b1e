"""Reads one pull request as it is, decides, and writes what differs; every event only calls this.

Each write can be repeated, and their order is such that a stop between any two of them leaves
nothing green and nothing that the next turn does not mend.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from bot.github.case import MAX_PACKED, LaneResult, pack
from bot.github.connection import NotFound
from bot.github.ledger import PREVIEW, READY, View, data_block
from bot.github.operate import EXECUTOR, PLANNER
from bot.github.publish import (
    Marked,
    compose,
    lane_summary,
    new_body,
    notes,
    own_comments,
    read_mark,
    summary,
)
from bot.github.reader import NO_HINT, Bot, Hint, Reader
from bot.github.records import Branch, Comment
from bot.github.situation import (
    Cancel,
    Close,
    Decision,
    Nothing,
    Open,
    Plan,
    Step,
)
from bot.model import CheckState

__all__ = ["Hint", "Reconciler"]

ROUNDS = 4
SERVER = "https://github.com"
# GitHub marks a check stale after 14 days.
REFRESH = timedelta(days=7)
TRIES_BODY = 3


class _Again(Exception):
    """Somebody else wrote meanwhile: read everything anew."""


class Reconciler(Bot):
    """Brings pull requests to what they should be."""

    def look(self, number: int, group: Branch | None = None) -> Reader:
        """What GitHub says of a pull request, or of a merge group of it."""
        return Reader(self, number, NO_HINT, group)

    def reconcile(
        self,
        number: int,
        hint: Hint = NO_HINT,
        *,
        group: Branch | None = None,
        reader: Reader | None = None,
    ) -> Decision | None:
        """One pull request, or a merge group, of which only its own check is written.

        None if it calls for nothing. `reader`: what was just read of it.
        """
        decision, before = None, None
        for _ in range(ROUNDS):
            reader = reader or Reader(self, number, hint, group, before=before)
            reader.hint = hint
            try:
                decision = reader.decide()
            except Nothing:
                return decision
            try:
                wrote_green = self._apply(reader, decision)
            except _Again:
                reader = before = None
                continue
            self.record(decision)
            if not wrote_green:
                return decision
            reader, before = None, reader
            # What was made green must still be: somebody else may have written meanwhile.
            hint = replace(hint, fresh=None, result=None)
        return decision

    def end(self, view: View, result: LaneResult) -> None:
        """Close a row of another head than the one that is decided about."""
        self.ledger.close_row(view, result, lane_summary(result), self.run_url(result.run))

    def run_url(self, run: int) -> str:
        """Where people see a run."""
        return f"{SERVER}/{self.client.repository}/actions/runs/{run}" if run else ""

    # Writing.

    def _apply(self, reader: Reader, decision: Decision) -> bool:
        """Write what differs; True if the verdict was made green."""
        green = decision.state is CheckState.SUCCESS
        if reader.hint.result is not None:
            # What a machine has worked for is kept before anything else.
            self._close(reader, reader.hint.result)
        old = reader.view.standings.get(reader.number)
        if green and old is not None and old.base_ref != decision.standing.base_ref:
            # Auto-merge may be on: what was green for one branch must not be so for another.
            self._put(reader, _unsure(decision))
        if not green:
            self._put(reader, decision)
        if self.mode == "off":
            return False
        for step in decision.steps:
            self._take(reader, step)
        self._react(decision)
        if self.mode != "shadow" and reader.group is None:
            self._comment(reader, decision)
            self._body(reader, decision)
        return self._put(reader, decision) if green else False

    def _take(self, reader: Reader, step: Step) -> None:
        """One step of a decision."""
        if isinstance(step, Open):
            self._open(reader, step)
        elif isinstance(step, Close):
            self._close(reader, step.result)
        elif isinstance(step, Cancel):
            self.client.cancel(step.run)
        elif isinstance(step, Plan):
            self.client.start(PLANNER, reader.branch(), {"pr": str(reader.number)})

    def _react(self, decision: Decision) -> None:
        """One reaction for each comment, the worst of its commands."""
        reactions = dict[int, str]()
        for answer in decision.answers:
            if reactions.get(answer.comment) != "-1":
                reactions[answer.comment] = answer.reaction
        for comment, reaction in reactions.items():
            with suppress(NotFound):  # deleted meanwhile
                self.client.react(comment, reaction)

    def _open(self, reader: Reader, step: Open) -> None:
        row = step.id
        if not step.written:
            self.ledger.open_row(row, f"Plan id `{row}`")
        inputs = {"plan": str(row)}
        self.client.dispatch(EXECUTOR, reader.branch(), inputs, str(row), look=False)

    def _close(self, reader: Reader, result: LaneResult) -> None:
        url = self.run_url(result.run)
        self.ledger.close_row(reader.view, result, lane_summary(result), url)
        reader.closed.append(result)

    def _put(self, reader: Reader, decision: Decision) -> bool:
        standing, head = decision.standing, reader.pull.head.sha
        name = READY if standing.gated and self.mode != "shadow" else PREVIEW
        # In the statuses of a token the others keep their digests; here they keep their texts.
        mine = reader.view.seals.get(name, {}) if self.ledger.app else {}
        others = {n: item for n, item in reader.view.standings.items() if n in mine}
        standings = {**others, standing.number: standing}
        if sum(len(pack(item)) for item in standings.values()) > MAX_PACKED:
            standings = {n: item.model_copy(update={"case": None}) for n, item in others.items()}
            standings[standing.number] = standing
        shown = reader.view.shown.get(name)
        open_ = decision.state in (CheckState.QUEUED, CheckState.IN_PROGRESS)
        renew = shown is not None and open_ and reader.now - shown.since > REFRESH
        wrote = self.ledger.put(
            reader.view,
            head,
            name,
            decision.state,
            decision.title,
            summary(decision, head),
            standings,
            notes(decision.report.findings) if decision.report else (),
            renew=renew,
        )
        self._leave(reader, standing.number, PREVIEW if name == READY else READY)
        return wrote and decision.state is CheckState.SUCCESS

    def _leave(self, reader: Reader, number: int, name: str) -> None:
        """After a change of the base branch: the verdict of the other name is no longer ours."""
        if number not in reader.view.seals.get(name, {}):
            return
        left = {
            n: reader.view.standings[n]
            for n in reader.view.seals.pop(name)
            if n != number and n in reader.view.standings
        }
        worst = next((i for i in left.values() if i.state is not CheckState.SUCCESS), None)
        state, title = CheckState.FAILURE, "No pull request asks for this any more"
        if left:
            state = worst.state if worst else CheckState.SUCCESS
            title = worst.title if worst else "Ready"
        self.ledger.put(reader.view, reader.pull.head.sha, name, state, title, title, left)

    def _comment(self, reader: Reader, decision: Decision) -> None:
        """One comment, the oldest; written when it differs, and never over a newer one."""
        head, own = reader.pull.head.sha, own_comments(reader.comments, reader.us)
        data = ""
        if not self.ledger.app and decision.standing.case is not None:
            known = [entry.result for entry in reader.view.entries if entry.result]
            results = {result.row: result for result in [*known, *reader.closed]}
            ordered = [results[row] for row in sorted(results)]
            data = data_block(decision.standing, ordered, MAX_PACKED - 10_000)
        for extra in own[1:]:
            self.client.delete_comment(extra.id)
        old = own[0] if own else None
        mark = read_mark(old.body) if old else Marked(0, 0, "", "", "")
        text = compose(mark, decision, head, data, decision.answers)
        if old is None:
            needed = decision.state in (CheckState.FAILURE, CheckState.ACTION_REQUIRED)
            if not (needed or decision.answers or data):
                return
            if reader.pull.state == "closed":
                return
            made = self.client.post_comment(reader.number, text.split("\n")[0], text, look=False)
            self._drop_extra(reader, made)
            return
        if text == old.body.replace("\r\n", "\n"):
            return
        try:
            if not reader.is_fresh():
                now = read_mark(self.client.comment(old.id).body)
                if now.generation > mark.generation:
                    raise _Again
            self.client.edit_comment(old.id, text)
        except NotFound as error:
            raise _Again from error

    def _drop_extra(self, reader: Reader, made: Comment) -> None:
        """Two publishers at once both wrote one: the older stays."""
        if self.client.dry_run:
            return
        own = own_comments(self.client.comments(reader.number), reader.us)
        for extra in own[1:]:
            self.client.delete_comment(extra.id)
        if own and own[0].id != made.id:
            raise _Again

    def _body(self, reader: Reader, decision: Decision) -> None:
        """Our block in the body: read again, replaced, and verified in GitHub's own reply."""
        report = decision.report
        if report is None or reader.pull.state == "closed":
            return
        if new_body(reader.pull.body or "", report) == (reader.pull.body or ""):
            return
        fresh = reader.is_fresh()
        for attempt in range(TRIES_BODY):
            again = attempt > 0 or not fresh
            old = (self.client.pull(reader.number) if again else reader.pull).body or ""
            new = new_body(old, report)
            if new == old:
                return
            written = self.client.edit_body(reader.number, new)
            reader.real = reader.real.model_copy(update={"body": written})
            if written.replace("\r\n", "\n") == new.replace("\r\n", "\n"):
                return


def _unsure(decision: Decision) -> Decision:
    """The decision while the base branch changes."""
    state, title = CheckState.IN_PROGRESS, "The base branch has changed"
    standing = decision.standing.model_copy(update={"state": state, "title": title})
    return replace(decision, standing=standing, state=state, title=title)
