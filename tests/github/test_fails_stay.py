"""A fail is held against its commit, whoever opens it again and however many came after it."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest

from bot.github.approvals import UNSURE
from bot.github.case import MAX_STANDING, LaneResult, RowId, Standing, pack
from bot.github.combine import FULL, bounded
from bot.github.ledger import READY
from bot.github.records import Commit
from bot.github.rows import MAX_BARE, MAX_FAILS, adverse, fails_of, gathered, is_bare, is_full
from bot.model import CheckState, Row, Verdict
from tests.github import bodies
from tests.github.stage import RUNNING, Content, Stage
from tests.github.test_results_stay import MORE, WRONG, begin, evidence, leave, no_news, queued
from tests.github.test_second_look import codes
from tests.github.test_third_look import LOOSER
from tests.github.test_trust import jobs, red
from tests.github.world import Actor, Pull

__all__ = ["no_news"]


def turned_red(stage: Stage, author: str = "wes") -> Pull:
    """A pull request on a branch of the repository, all of whose cells fail."""
    pull = stage.open(author, fork=False)
    stage.settle()
    execute(stage, WRONG)
    assert stage.ready(pull) == "failure"
    return pull


def execute(stage: Stage, rms: float = 1e-8) -> None:
    for run in stage.runs():
        stage.execute(run, rms=rms)
    stage.settle()


def close(stage: Stage, pull: Pull) -> None:
    stage.world.edit_pull(pull, Actor("wes"), state="closed")
    stage.settle()


def open_again(stage: Stage, sha: str, **more: Any) -> Pull:
    """Another pull request of a commit that is there."""
    pull = stage.world.open_pull("wes", base="main", sha=sha, fork=False, **more)
    stage.git.git("update-ref", f"refs/pull/{pull.number}/head", sha)
    stage.settle()
    return pull


def title(stage: Stage, pull: Pull) -> str:
    return stage.view(pull).shown[READY].title


# Other pull requests of a commit.


def test_closing_a_red_pull_request_gives_no_second_draw_of_its_commit(stage: Stage) -> None:
    first = turned_red(stage)
    close(stage, first)
    second = open_again(stage, first.sha)
    assert stage.runs() == []
    assert stage.ready(second) == "failure"
    assert "cells of l2norm on correctness:sm90 fail" in title(stage, second)
    stage.say(second, "wes", "/fla-bot rerun")
    stage.settle()
    assert stage.runs() == []


def test_fail_of_an_earlier_commit_goes_along(stage: Stage) -> None:
    """On the commit itself nothing has run: it failed on the one before."""
    first = turned_red(stage)
    stage.push(first, MORE)
    stage.settle()
    assert stage.runs() == []
    close(stage, first)
    second = open_again(stage, first.sha)
    assert stage.runs() == []
    assert stage.ready(second) == "failure"


@pytest.mark.usefixtures("no_news")
@pytest.mark.parametrize("is_deleted", [False, True])
def test_fail_without_details_counts_when_the_base_has_moved(
    stage: Stage, is_deleted: bool
) -> None:
    """Its plan is another one by then; with a token its details go when the comment does."""
    first = turned_red(stage)
    sha = first.sha
    if is_deleted:
        for comment in list(stage.world.comments.values()):
            stage.world.delete_comment(comment, Actor("wes"))
    else:
        stage.push(first, MORE)
        stage.settle()
    close(stage, first)
    stage.merge({"docs/other.md": "x\n"})
    stage.world.take_events()
    second = open_again(stage, sha)
    execute(stage)
    assert stage.ready(second) == "failure"


def test_fail_goes_along_to_the_next_commit_of_the_other_pull_request(stage: Stage) -> None:
    first = turned_red(stage)
    close(stage, first)
    second = open_again(stage, first.sha)
    stage.push(second, MORE)
    stage.settle()
    execute(stage)
    assert stage.ready(second) == "failure"


def test_fail_goes_along_where_nobody_saw_the_other_pull_request_with_it(stage: Stage) -> None:
    """A push comes before its first event is handled."""
    first = turned_red(stage)
    close(stage, first)
    second = stage.world.open_pull("wes", base="main", sha=first.sha, fork=False)
    stage.world.take_events()
    stage.push(second, MORE)
    stage.settle()
    execute(stage)
    assert stage.ready(second) == "failure"


def test_what_passed_for_another_pull_request_proves_nothing(stage: Stage) -> None:
    first = stage.open("wes", fork=False)
    stage.settle()
    execute(stage)
    assert stage.ready(first) == "success"
    close(stage, first)
    second = open_again(stage, first.sha)
    assert stage.ready(second) != "success"
    execute(stage)
    assert stage.ready(second) == "success"


@pytest.mark.usefixtures("no_news")
def test_closing_frees_nobody_of_what_failed_on_the_commit(stage: Stage) -> None:
    """Both are open: one has passed, and waits for the other, which fails and goes."""
    first = stage.open("wes", fork=False)
    second = open_again(stage, first.sha)
    runs = stage.runs()
    own = [run for run in runs if RowId.parse(run.inputs["plan"]).number == second.number]
    others = [run for run in runs if run not in own]
    assert own
    assert others
    for run in own:
        stage.execute(run)
    for run in others:
        stage.execute(run, rms=WRONG)
    stage.settle()
    assert stage.standing(second).state is CheckState.SUCCESS
    assert stage.ready(second) == "failure"
    close(stage, first)
    assert stage.ready(second) in RUNNING
    assert stage.due()["due"] == [second.number]
    stage.reap()
    stage.settle()
    assert stage.ready(second) == "failure"
    assert stage.due()["due"] == []


def test_fail_of_a_merge_group_is_held_against_others_with_that_head(gated: Stage) -> None:
    first = gated.open("wes", fork=False)
    gated.settle()
    execute(gated)
    gated.put("main", {"fla/modules/__init__.py": '"""Newer."""\n'})
    head = queued(gated, first)
    for run in [run for run in gated.runs() if head in run.inputs["plan"]]:
        begin(gated, [run])
        gated.publish(run, evidence(gated, first, head, run, WRONG))
        gated.world.finish(run)
    assert gated.verdict(head) == "failure"
    leave(gated, head)
    close(gated, first)
    second = open_again(gated, first.sha)
    execute(gated)
    assert gated.ready(second) == "success"  # on the head itself nothing has failed
    again = queued(gated, second)
    assert again != head
    assert gated.runs() == []
    assert gated.verdict(again) == "failure"


def test_details_that_are_gone_count_for_the_whole_lane(stage: Stage) -> None:
    """Without an App they are in a comment, which a writer may delete."""
    first = turned_red(stage)
    close(stage, first)
    for comment in [c for c in stage.world.comments.values() if c.number == first.number]:
        del stage.world.comments[comment.id]
    second = open_again(stage, first.sha)
    execute(stage)
    assert stage.ready(second) == "failure"


# Fails of the past.


def other_kernel(stage: Stage, rows: int) -> dict[str, Content]:
    return stage.kernel(("min(32, TILE // columns)", f"min({rows}, TILE // columns)"))


def test_no_fail_is_forgotten_for_newer_ones(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bot.github.rows.MAX_FAILS", 2)
    pull = turned_red(stage)
    for rows in (8, 4, 2):
        stage.world.advance(days=1)
        stage.push(pull, other_kernel(stage, rows))
        stage.settle()
        execute(stage, WRONG)
    assert any(is_bare(result) for result in stage.standing(pull).reused)
    stage.push(pull, stage.kernel())
    stage.settle()
    assert stage.runs() == []
    assert stage.ready(pull) == "failure"
    assert "fail" in title(stage, pull)


@pytest.mark.usefixtures("no_news")
def test_where_no_more_fails_can_be_kept_nothing_is_green(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.github.rows.MAX_FAILS", 1)
    monkeypatch.setattr("bot.github.rows.MAX_BARE", 1)
    pull = turned_red(stage)
    stage.push(pull, other_kernel(stage, 8))
    stage.settle()
    execute(stage)
    assert stage.ready(pull) == "failure"
    assert FULL[:40] in title(stage, pull)
    stage.reap()
    assert stage.due()["due"] == []


def failed(number: int, *names: str, head: str = "") -> LaneResult:
    """A run whose jobs all fail."""
    sha = sha256((head or str(number)).encode()).hexdigest()
    keys = {name: sha256(f"{number} {name}".encode()).hexdigest()[:16] for name in names}
    rows = [
        Row(job=name, lane="correctness:sm90", op="l2norm", cell=f"{name}-{number}",
            verdict=Verdict.FAIL, reason=f"an error of {number} where 1.0 is allowed")
        for name in names
    ]  # fmt: skip
    row = RowId(7, sha[:40], sha[40:56], "correctness:sm90", 0)
    return LaneResult(row=str(row), run=number, verdict=Verdict.FAIL, note="", keys=keys, rows=rows)


def standing(reused: list[LaneResult]) -> Standing:
    return Standing(
        number=7, base_ref="main", gated=True, state=CheckState.SUCCESS, title="Ready",
        since=datetime.now(UTC), reused=reused,
    )  # fmt: skip


def test_old_fails_shrink_to_their_keys() -> None:
    results = [failed(i, "a", "b") for i in range(100)]
    kept = gathered(results, {})
    assert fails_of(kept) == fails_of(results)
    assert sum(bool(result.rows) for result in kept) == MAX_FAILS
    assert len([result for result in kept if is_bare(result)]) == 100 - MAX_FAILS // 2
    assert gathered(kept, {}) == kept
    assert fails_of(gathered([*kept, failed(100, "a")], {})) == fails_of([*kept, failed(100, "a")])


@pytest.mark.parametrize(("runs", "each"), [(1000, 1), (20, 200)])
def test_a_standing_has_room_for_as_many_fails_as_are_kept(runs: int, each: int) -> None:
    names = [f"correctness-sm90-l2norm-{i}" for i in range(each)]
    kept = gathered([failed(i, *names) for i in range(runs)], {})
    assert is_full(kept)
    found = bounded(standing(kept))
    assert (found.state, FULL in found.title) == (CheckState.FAILURE, True)
    assert len(pack(found)) < MAX_STANDING * 3 // 4
    bare = [result for result in kept if is_bare(result)]
    assert len(pack(standing(bare))) < MAX_BARE
    # It stays so.
    assert is_full(gathered([*kept, failed(runs, *names)], {}))


def test_samples_of_another_pull_request_speak_against_a_job_and_a_pass_does_not() -> None:
    bad = failed(1, "a")
    key = bad.keys["a"]
    samples = {f"{key} row machine": [0.1, 0.2]}
    left = bad.model_copy(update={"verdict": Verdict.NOT_PROVEN, "rows": [], "samples": samples})
    good = bad.rows[0].model_copy(update={"verdict": Verdict.PASS})
    passed = bad.model_copy(update={"verdict": Verdict.PASS, "rows": [good]})
    assert [result.samples for result in adverse([left])] == [samples]
    assert adverse([passed]) == []
    assert fails_of([passed, bad]) == {("a", key)}


# Who wrote it.


def test_commit_of_no_account(gated: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """GitHub's description allows `{}` for an author that it does not know."""
    old = bodies.Bodies.commit

    def commit(self: bodies.Bodies, *args: Any, **more: Any) -> Any:
        body = old(self, *args, **more)
        return {**body, "author": {}, "committer": {}} if "commit" in body else body

    monkeypatch.setattr(bodies.Bodies, "commit", commit)
    pull = red(gated)
    gated.say(pull, "eve", f"/fla-bot waive {jobs(gated, pull)[0]} for fun")
    gated.settle()
    gated.reap(pull)
    assert "may waive" in gated.comments(pull)[0]


def test_commit_is_read_with_an_author_or_without() -> None:
    found = Commit.model_validate({"sha": "1", "author": {}, "committer": {"login": "ada"}})
    assert found.author is None
    assert found.committer is not None


def test_people_are_told_that_the_commits_are_too_many(
    gated: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.github.parts.MAX_COMMITS", 1)
    pull = gated.open(files={"contracts/l2norm.yaml": LOOSER})
    gated.settle()
    gated.say(pull, "mona", f"/fla-bot accept {codes(gated, pull)[0]}")
    gated.say(pull, "alice", f"/fla-bot accept {codes(gated, pull)[0]}")
    gated.settle()
    assert f"- mona: {UNSURE}" in gated.comments(pull)[0]
    assert "- alice: who wrote or pushed the change may not" in gated.comments(pull)[0]


def test_nobody_may_waive_where_the_commits_are_too_many(
    gated: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = red(gated)
    monkeypatch.setattr("bot.github.parts.MAX_COMMITS", 1)
    gated.world.advance(minutes=5)
    gated.say(pull, "mona", f"/fla-bot waive {jobs(gated, pull)[0]} flaky")
    gated.settle()
    assert f"- mona: {UNSURE}" in gated.comments(pull)[0]
