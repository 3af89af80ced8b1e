"""The stateful model finds bugs: each is planted by itself, where nothing else would hold it up.

A model that finds nothing shows nothing: this is the measure of `test_model.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase

import bot.github.decide
import bot.github.executor
import bot.github.lanes
import bot.github.reader
import bot.github.reconcile
from bot.github import approvals
from bot.github.case import Case, LaneResult
from bot.github.commands import Command
from bot.github.lanes import Lanes
from bot.github.reconcile import Reconciler
from bot.github.rows import gathered as real_gathered
from bot.github.rows import lane_rows as real_rows
from bot.github.situation import Decision, Entry, Situation
from bot.model import Row, Verdict
from tests.github.model import run_model

EXAMPLES, STEPS = 60, 14
Patch = pytest.MonkeyPatch
real_decide = bot.github.decide.decide
real_grants = approvals.grants


def approvals_of_any_head(patch: Patch) -> None:
    """An approval counts for whatever head comes later."""

    def grants(pull: Any, heard: list[Any], *rest: Any) -> Any:
        new = Command("approve", (pull.head.sha,))
        told = [replace(item, command=new) if item.command.kind == "approve" else item
                for item in heard]  # fmt: skip
        return real_grants(pull, told, *rest)

    patch.setattr(bot.github.decide, "grants", grants)


def waiting_is_passed(patch: Patch) -> None:
    """A lane whose run is under way counts as passed."""

    def lane_rows(*arguments: Any) -> list[Row]:
        return [row.model_copy(update={"verdict": Verdict.PASS})
                if row.reason == "on its way" else row
                for row in real_rows(*arguments)]  # fmt: skip

    patch.setattr(bot.github.lanes, "lane_rows", lane_rows)


def comment_is_not_searched(patch: Patch) -> None:
    """A comment is written without a look for one that is there."""
    patch.setattr(bot.github.reconcile, "own_comments", lambda *_: [])


def nothing_is_reaped(patch: Patch) -> None:
    """Runs that ended without a word stay open."""
    patch.setattr(Lanes, "_lost", lambda *_: "")


def forgeries_are_believed(patch: Patch) -> None:
    """A check or status of our name counts, whoever posted it."""

    def decide(now: Situation) -> Decision:
        return real_decide(replace(now, forged=()))

    patch.setattr(bot.github.reader, "decide", decide)


def red_is_run_away_from(patch: Patch) -> None:
    """A fail may be tried again, and a later pass replaces it."""

    def lane_rows(case: Case, lane: str, entries: Sequence[Entry], reused: Any) -> list[Row]:
        return real_rows(case, lane, [e for e in entries if e.id.lane == lane][-1:], reused)

    def again(self: Lanes, lane: str) -> bool:
        mine = [e for e in self.entries if e.id.lane == lane and e.id.plan == self.case.plan]
        return all(e.result is not None and e.result.verdict is not Verdict.PASS for e in mine)

    patch.setattr(bot.github.lanes, "lane_rows", lane_rows)
    patch.setattr(Lanes, "may_run_again", again)


def base_changes_in_silence(patch: Patch) -> None:
    """What was green for one branch stays so while another one is decided about."""
    real = Reconciler._put

    def put(self: Reconciler, reader: Any, decision: Decision) -> None:
        if decision.title != "The base branch has changed":
            real(self, reader, decision)

    patch.setattr(Reconciler, "_put", put)


def words_are_for_any_head(patch: Patch) -> None:
    """A waiver counts for the head that is there when it is heard."""
    patch.setattr(approvals, "_is_early", lambda *_: "")


def ended_runs_are_forgotten(patch: Patch) -> None:
    """What a run has found does not count once somebody has ended it."""
    patch.setattr(bot.github.executor, "only_fails", lambda _: None)


def the_next_head_knows_no_fail(patch: Patch) -> None:
    """Each pass on an earlier head counts again, whatever became of that job later."""

    def gathered(results: Sequence[LaneResult], keys: Any = None) -> list[LaneResult]:
        rows = [[r for r in item.rows if r.verdict is not Verdict.FAIL] for item in results]
        told = [item.model_copy(update={"rows": kept, "verdict": Verdict.LOST})
                for item, kept in zip(results, rows, strict=True)]  # fmt: skip
        return real_gathered(told, keys)

    patch.setattr(bot.github.lanes, "gathered", gathered)


BUGS: dict[Callable[[Patch], None], str] = {
    approvals_of_any_head: "code runs without a word for it",
    waiting_is_passed: "green without proof",
    comment_is_not_searched: "two comments",
    nothing_is_reaped: "it waits for ever",
    forgeries_are_believed: "a forgery is not told",
    red_is_run_away_from: "green over a fail",
    base_changes_in_silence: "green for the old base and for the new one",
    words_are_for_any_head: "green over a fail",
    ended_runs_are_forgotten: "green over a fail",
    the_next_head_knows_no_fail: "green over a fail",
}


@pytest.mark.full
@pytest.mark.parametrize("app", [True, False], ids=["app", "token"])
@pytest.mark.parametrize(("plant", "words"), BUGS.items(), ids=[bug.__name__ for bug in BUGS])
def test_model_finds_the_planted_bug(
    base: Case, monkeypatch: Patch, plant: Callable[[Patch], None], words: str, app: bool
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=words):
        run_model(base, app=app, examples=EXAMPLES, steps=STEPS, phases=(Phase.generate,))
