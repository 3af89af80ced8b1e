"""Reads one pull request as it is, decides, and writes what differs; every event only calls this.

Each write can be repeated, and their order is such that a stop between any two of them leaves
nothing green and nothing that the next turn does not mend.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from bot.github.actor import NO_HINT, Bot, Hint, is_waiting
from bot.github.case import MAX_PACKED, LaneResult, Standing
from bot.github.combine import together
from bot.github.connection import GitHubError, Gone, NotAllowed, NotFound, Refused
from bot.github.ledger import PREVIEW, READY, Overtaken, View, data_block
from bot.github.operate import EXECUTOR, PLANNER, Mode
from bot.github.publish import (
    compose,
    lane_summary,
    marked_head,
    new_body,
    notebook,
    notes,
    own_comments,
    summary,
)
from bot.github.queue import QueueBranch, groups_of
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
    Reaction,
    Step,
)
from bot.model import CheckState

__all__ = ["SPOILT", "Hint", "Reconciler", "verdict_name"]

ROUNDS = 4
SERVER = "https://github.com"
# GitHub marks a check stale after 14 days.
REFRESH = timedelta(days=7)
TRIES_BODY = 3
SPOILT = "infra: "  # how the title of what GitHub refused to be told begins
REACTIONS: tuple[Reaction, ...] = ("+1", "eyes", "confused", "-1")  # the worst last


class _Again(Exception):
    """Somebody else wrote meanwhile: read everything anew."""


@dataclass(slots=True)
class _Told:
    """What GitHub did not take of what people are told, and what stopped us otherwise.

    `lost`: the comment is among it, which without an App is the ledger.
    """

    refused: str = ""
    lost: bool = False
    trouble: GitHubError | None = None


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
        # Before our own verdict: as long as that is green, whoever dies comes here again.
        groups = self._doubted_groups(reader, green=green)
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
        self._plan_groups(reader, groups)
        for step in decision.steps:
            self._take(reader, step)
        told = self._tell(reader, decision)
        self._put(reader, self._last(first, decision, told))
        if told.trouble:
            raise told.trouble

    def _last(self, first: Decision, decision: Decision, told: _Told) -> Decision:
        """What the ledger holds in the end; `first`: the decision before anybody is answered."""
        if isinstance(told.trouble, NotAllowed):
            return _spoilt(first, str(told.trouble))
        if told.lost and not self.ledger.app:
            return _spoilt(first, f"the ledger is in a comment: {told.refused}")
        if told.trouble:
            return first
        # Without an App the comment has been written, and is the ledger as it stands.
        return _untold(decision, told.refused) if self.ledger.app else decision

    def _tell(self, reader: Reader, decision: Decision) -> _Told:
        """Reactions, comment and body.

        None of that may keep a verdict from being written: anybody can lock a conversation who may
        write, and a comment can be deleted at any moment.
        """
        told = _Told()
        alone, silent = reader.group is None, self.mode == "shadow"
        # Without an App and a comment nothing would tell that anybody was answered.
        tasks = list[Callable[[Reader, Decision], None]]()
        tasks += [self._react] if self.ledger.app or (alone and not silent) else []
        tasks += [self._comment] if alone and not (silent and self.ledger.app) else []
        tasks += [self._body] if alone and not silent else []
        for task in tasks:
            try:
                task(reader, decision)
            except (Refused, Gone, NotFound, NotAllowed) as error:
                if isinstance(error, NotAllowed) and "locked" not in str(error):
                    told.trouble = told.trouble or error  # a permission is missing: the job says so
                elif task == self._comment:
                    told.lost, told.refused = True, str(error)[:200]
                else:
                    told.refused = told.refused or str(error)[:200]
            except GitHubError as error:
                told.trouble = told.trouble or error
        return told

    def _take(self, reader: Reader, step: Step) -> None:
        """One step of a decision."""
        if isinstance(step, Open):
            self._open(reader, step)
        elif isinstance(step, Close):
            self._close(reader, step.result)
        elif isinstance(step, Cancel):
            self.client.cancel(step.run)
        elif isinstance(step, Plan):
            number = step.number or reader.number
            self.client.start(PLANNER, reader.branch(), {"pr": str(number)})
        elif isinstance(step, Queue):
            self._queue_again(reader)

    def _queue_again(self, reader: Reader) -> None:
        """A word has come: red groups that merge this pull request are planned anew."""
        # Who waits is looked at by itself.
        found = self._groups(reader.number)
        done = [(group, view) for group, view in found if not _is_waiting(view)]
        self._plan_groups(reader, (group for group, view in done if not _is_green(view)))

    def _doubted_groups(self, reader: Reader, *, green: bool) -> list[QueueBranch]:
        """Green groups that need another plan; those that merge what was green wait for it.

        A group may rest on a word that the pull request itself has no need of: if one may be gone,
        its groups are looked at, however it stands.
        """
        fell = not green and _is_green(reader.view)
        if self.mode == "off" or reader.group is not None or not (fell or reader.hint.doubt):
            return []
        found = [(group, view) for group, view in self._groups(reader.number) if _is_green(view)]
        for group, view in found if fell else ():
            with suppress(Overtaken):  # whoever has written looks at it anew, too
                self._hold(group, view)
        return [group for group, _ in found]

    def _groups(self, number: int) -> list[tuple[QueueBranch, View]]:
        """The merge groups that merge a pull request, and what the ledger says of each."""
        found = groups_of(number, self.queue())
        return [(group, self.ledger.read(group.sha, group.number)) for group in found]

    def _plan_groups(self, reader: Reader, groups: Iterable[QueueBranch]) -> None:
        """Start the planner for merge groups, once for each pull request that has some."""
        for number in sorted({group.number for group in groups}):
            self.client.start(PLANNER, reader.branch(), {"pr": str(number)})

    def _hold(self, group: QueueBranch, view: View) -> None:
        state, title = CheckState.IN_PROGRESS, "What it merges is not green any more: planned anew"
        update = {"state": state, "title": title}
        held = {n: item.model_copy(update=update) for n, item in view.standings.items()}
        self.ledger.put(view, group.sha, READY, state, title, title, held, sure=True)

    def _react(self, _: Reader, decision: Decision) -> None:
        """One reaction for each comment, the worst of its commands."""
        reactions = dict[int, Reaction]()
        for answer in decision.answers:
            found = (answer.reaction, reactions.get(answer.comment, answer.reaction))
            reactions[answer.comment] = max(found, key=REACTIONS.index)
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
        name = self._name(reader, standing)
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

    def _name(self, reader: Reader, standing: Standing) -> str:
        """The name of a verdict; what was said in shadow mode keeps its name while all is off."""
        unseen = self.mode == "off" and READY not in reader.view.shown
        if unseen and standing.number in reader.view.seals.get(PREVIEW, {}):
            return PREVIEW
        return verdict_name(self.mode, gated=standing.gated)

    def _leave(self, reader: Reader, number: int, name: str) -> None:
        """After a change of the base branch: the verdict of the other name is no longer ours."""
        if number not in reader.view.seals.get(name, {}):
            return
        others = reader.view.seals.pop(name).keys() - {number}
        left = {n: item for n, item in reader.view.standings.items() if n in others}
        worst = next((i for i in left.values() if i.state is not CheckState.SUCCESS), None)
        state, title = CheckState.FAILURE, "No pull request asks for this any more"
        if others - left.keys():
            title = "How others with this head stand cannot be read"
        elif left:
            state = worst.state if worst else CheckState.SUCCESS
            title = worst.title if worst else "Ready"
        self.ledger.put(reader.view, reader.pull.head.sha, name, state, title, title, left)

    def _comment(self, reader: Reader, decision: Decision) -> None:
        """One comment, the oldest; written when it differs, and never over a newer one."""
        own, data = own_comments(reader.comments, reader.us), ""
        kept = decision.standing
        known = [entry.result for entry in reader.view.entries if entry.result]
        results = {result.row: result for result in [*known, *reader.closed]}
        # Results stay, also while another plan is awaited.
        some = kept.case or kept.fault or kept.answered or kept.reused or results
        if some and not self.ledger.app:
            ordered = [results[row] for row in sorted(results)]
            data = data_block(kept, ordered, MAX_PACKED - 10_000)
        for extra in own[1:]:
            self.client.delete_comment(extra.id)
        old = own[0] if own else None
        before = marked_head(old.body) if old else ""
        silent = self.mode == "shadow"
        text = notebook(before, decision, data) if silent else compose(before, decision, data)
        if old is None:
            if not self._is_needed(reader, decision, data) or reader.pull.state == "closed":
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

    def _is_needed(self, reader: Reader, decision: Decision, data: str) -> bool:
        """Whether a comment is written where there is none yet."""
        if self.mode == "shadow":
            # What a machine is to run must be in the ledger; nothing else is worth a word.
            opens = any(isinstance(step, Open) for step in decision.steps)
            return opens or bool(reader.view.entries)
        needed = decision.state in (CheckState.FAILURE, CheckState.ACTION_REQUIRED)
        return needed or bool(decision.answers or data)

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


def verdict_name(mode: Mode, *, gated: bool) -> str:
    """What the verdict on a pull request into a branch is called."""
    return READY if gated and mode != "shadow" else PREVIEW


def _is_green(view: View) -> bool:
    shown = view.shown.get(READY)
    return shown is not None and shown.state == CheckState.SUCCESS


def _is_waiting(view: View) -> bool:
    return is_waiting(view.shown.get(READY))


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
    state, title = CheckState.FAILURE, f"{SPOILT}{why}"[:200]
    return replace(decision, state=state, title=title)


def _unsure(decision: Decision) -> Decision:
    """The decision while the base branch changes."""
    state, title = CheckState.IN_PROGRESS, "The base branch has changed"
    standing = decision.standing.model_copy(update={"state": state, "title": title})
    return replace(decision, standing=standing, state=state, title=title)
