"""Reads one pull request as it is, decides, and writes what differs; every event only calls this.

Each write can be repeated, and their order is such that a stop between any two of them leaves
nothing green and nothing that the next turn does not mend.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from bot.github.actor import NO_HINT, Bot, Hint, is_waiting
from bot.github.case import MAX_PACKED, LaneResult
from bot.github.combine import together
from bot.github.connection import GitHubError, Gone, NotAllowed, NotFound, Refused
from bot.github.ledger import PREVIEW, READY, Overtaken, View, data_block
from bot.github.operate import EXECUTOR, PLANNER
from bot.github.publish import (
    compose,
    lane_summary,
    marked_head,
    new_body,
    notes,
    own_comments,
    summary,
)
from bot.github.queue import groups_of
from bot.github.reader import Reader
from bot.github.records import Branch, Comment
from bot.github.situation import (
    Cancel,
    Close,
    Decision,
    Nothing,
    Open,
    Plan,
    Queue,
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
        decision = None
        for _ in range(ROUNDS):
            reader = reader or Reader(self, number, hint, group)
            reader.hint = hint
            try:
                decision = reader.decide()
            except Nothing:
                return decision
            try:
                self._apply(reader, decision)
            except (_Again, Overtaken):
                reader = None
                continue
            self.record(decision)
            return decision
        return decision

    def end(self, view: View, result: LaneResult) -> None:
        """Close a row of another head than the one that is decided about."""
        self.ledger.close_row(view, result, lane_summary(result), self.run_url(result.run))

    def run_url(self, run: int) -> str:
        """Where people see a run."""
        return f"{SERVER}/{self.client.repository}/actions/runs/{run}" if run else ""

    # Writing.

    def _apply(self, reader: Reader, decision: Decision) -> None:
        """Write what differs; what is green comes last."""
        green = decision.state is CheckState.SUCCESS
        if reader.hint.result is not None:
            # What a machine has worked for is kept before anything else.
            self._close(reader, reader.hint.result)
        old = reader.view.standings.get(reader.number)
        # Whoever dies before the end has answered nobody.
        first = _silent(decision, reader)
        if green and old is not None and old.base_ref != decision.standing.base_ref:
            # Auto-merge may be on: what was green for one branch must not be so for another.
            self._put(reader, _unsure(first))
        if not green and not (decision.answers and _is_known(reader, first)):
            self._put(reader, first)
        if self.mode == "off":
            return
        for step in decision.steps:
            self._take(reader, step)
        untold, trouble = self._tell(reader, decision)
        if isinstance(trouble, NotAllowed):
            last = _spoilt(first, str(trouble))
        elif untold and not self.ledger.app:
            last = _spoilt(first, f"the ledger is in a comment: {untold}")
        else:
            last = first if trouble else _untold(decision, untold)
        self._put(reader, last)
        if trouble:
            raise trouble

    def _tell(self, reader: Reader, decision: Decision) -> tuple[str, GitHubError | None]:
        """Reactions, comment and body: what GitHub does not take, and what stopped us otherwise.

        None of that may keep a verdict from being written: anybody can lock a conversation who may
        write, and a comment can be deleted at any moment.
        """
        untold = ""
        trouble: GitHubError | None = None
        shown = self.mode != "shadow" and reader.group is None
        # Without an App and a comment nothing would tell that anybody was answered.
        tasks = list[Callable[[Reader, Decision], None]]()
        tasks += [self._react] if shown or self.ledger.app else []
        tasks += [self._comment, self._body] if shown else []
        for task in tasks:
            try:
                task(reader, decision)
            except (Refused, Gone, NotFound, NotAllowed) as error:
                if isinstance(error, NotAllowed) and "locked" not in str(error):
                    trouble = trouble or error  # a permission is missing: the job says so
                else:
                    untold = untold or str(error)[:200]
            except GitHubError as error:
                trouble = trouble or error
        return untold, trouble

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
        elif isinstance(step, Queue):
            self._queue_again(reader)

    def _queue_again(self, reader: Reader) -> None:
        """A word has come: red groups that merge this pull request are planned anew."""
        red = set[int]()
        for group in groups_of(reader.number, self.queue()):
            shown = self.ledger.read(group.sha, group.number).shown.get(READY)
            # Who waits is looked at by itself.
            if not is_waiting(shown) and shown is not None and shown.state != CheckState.SUCCESS:
                red.add(group.number)
        for number in sorted(red):
            self.client.start(PLANNER, reader.branch(), {"pr": str(number)})

    def _react(self, _: Reader, decision: Decision) -> None:
        """One reaction for each comment, the worst of its commands."""
        reactions = dict[int, str]()
        for answer in decision.answers:
            if reactions.get(answer.comment) != "-1":
                reactions[answer.comment] = answer.reaction
        refused = None
        for comment, reaction in reactions.items():
            try:
                self.client.react(comment, reaction)
            except NotFound:
                continue  # deleted meanwhile
            except (Refused, NotAllowed) as error:
                refused = error
        if refused is not None:
            raise refused

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

    def _put(self, reader: Reader, decision: Decision) -> None:
        standing, head = decision.standing, reader.pull.head.sha
        name = READY if standing.gated and self.mode != "shadow" else PREVIEW
        # In the statuses of a token the others keep their digests; here they keep their texts.
        mine = reader.view.seals.get(name, {}) if self.ledger.app else {}
        others = [i for n, i in reader.view.standings.items() if n in mine and n != standing.number]
        state, title = decision.state, decision.title
        held = [] if reader.crowded else together(standing, others)
        if held is None:
            held, state = [standing], CheckState.FAILURE
            title = f"{len(others)} other pull requests have this head: too many to be kept"
        shown = reader.view.shown.get(name)
        open_ = state in (CheckState.QUEUED, CheckState.IN_PROGRESS)
        green = state is CheckState.SUCCESS
        self.ledger.put(
            reader.view,
            head,
            name,
            state,
            title,
            summary(decision),
            {item.number: item for item in held},
            notes(decision.report.findings) if decision.report else (),
            renew=shown is not None and open_ and reader.now - shown.since > REFRESH,
            sure=green or bool(others) or not reader.is_fresh(),
            gone=reader.gone,
        )
        self._leave(reader, standing.number, PREVIEW if name == READY else READY)

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
        own, data = own_comments(reader.comments, reader.us), ""
        kept = decision.standing
        if not self.ledger.app and (kept.case or kept.fault or kept.answered):
            known = [entry.result for entry in reader.view.entries if entry.result]
            results = {result.row: result for result in [*known, *reader.closed]}
            ordered = [results[row] for row in sorted(results)]
            data = data_block(decision.standing, ordered, MAX_PACKED - 10_000)
        for extra in own[1:]:
            self.client.delete_comment(extra.id)
        old = own[0] if own else None
        text = compose(marked_head(old.body) if old else "", decision, data)
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
            if not reader.is_fresh() and self.client.comment(old.id).body != old.body:
                raise _Again  # a newer one is not overwritten
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


def _is_known(reader: Reader, decision: Decision) -> bool:
    """Whether the ledger holds the plan and nothing is green: the rest may come at the end."""
    old, new = reader.view.standings.get(reader.number), decision.standing
    green = any(item.state == CheckState.SUCCESS for item in reader.view.shown.values())
    return not green and old is not None and (old.case, old.gated) == (new.case, new.gated)


def _silent(decision: Decision, reader: Reader) -> Decision:
    """The decision before anybody is answered."""
    old = reader.view.standings.get(reader.number)
    update = {
        "answered": reader.answered(),
        "edits": reader.edits(),
        "replies": old.replies if old else [],
        "untold": old.untold if old else "",
    }
    return replace(decision, standing=decision.standing.model_copy(update=update))


def _untold(decision: Decision, why: str) -> Decision:
    """The decision with what GitHub did not take."""
    standing = decision.standing.model_copy(update={"untold": why})
    return replace(decision, standing=standing)


def _spoilt(decision: Decision, why: str) -> Decision:
    """The decision where the bot lacks what it needs: red, and it says what."""
    state, title = CheckState.FAILURE, f"infra: {why}"[:200]
    return replace(decision, state=state, title=title)


def _unsure(decision: Decision) -> Decision:
    """The decision while the base branch changes."""
    state, title = CheckState.IN_PROGRESS, "The base branch has changed"
    standing = decision.standing.model_copy(update={"state": state, "title": title})
    return replace(decision, standing=standing, state=state, title=title)
