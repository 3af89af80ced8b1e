"""What was measured stays: a fail on every head and plan of its job, samples in any order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bot.github.case import LaneResult, RowId
from bot.github.connection import GitHubError
from bot.github.ledger import PREVIEW
from bot.github.operate import EXECUTOR
from bot.github.rows import MAX_SAMPLES, UNUSED, gathered, only_fails
from bot.model import Row, Verdict
from tests.conftest import ROOT
from tests.github.double import Fault
from tests.github.stage import KERNEL, MENDED, RUNNING, Content, Stage, evidence_of
from tests.github.test_rerun import Reruns, reruns
from tests.github.test_second_look import stacked
from tests.github.test_third_look import OTHER, no_news, with_other_op
from tests.github.test_trust import CONTRACT, jobs, red
from tests.github.world import Actor, Pull, Run

__all__ = ["no_news", "reruns"]

WRONG, RIGHT = 0.5, 1e-8
SMALLER = ("min(32, TILE // columns)", "min(8, TILE // columns)")
MORE: dict[str, Content] = {"docs/more.md": "more\n"}


def lane(run: Run) -> str:
    return RowId.parse(run.inputs["plan"]).lane


def begin(stage: Stage, runs: list[Run]) -> None:
    """The machines are at work."""
    for run in runs:
        stage.world.begin(run)
        stage.gate(run)
        stage.gate(run, "lane")
        run.deaf = True  # whoever cancels it ends its lane: `publish` runs all the same


def end(stage: Stage, runs: list[Run], found: dict[int, dict[str, bytes]]) -> None:
    """The publishers come, however late."""
    for run in runs:
        stage.publish(run, found[run.id], lane="success")
        stage.world.finish(run)
    stage.settle()


def measured(stage: Stage, rms: float) -> tuple[Pull, list[Run], dict[int, dict[str, bytes]]]:
    """All lanes have measured this, and none has told yet."""
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    runs = stage.runs()
    begin(stage, runs)
    return pull, runs, {run.id: stage.evidence(run, rms=rms) for run in runs}


def push_back(stage: Stage, pull: Pull, sha: str) -> None:
    """Somebody pushes an earlier commit again."""
    stage.world.push(pull.head, owner=pull.owner, author=pull.author, sha=sha)
    stage.git.git("update-ref", f"refs/pull/{pull.number}/head", sha)
    stage.settle()


# Runs that are ended before they tell what they have measured.


def cancel(stage: Stage, pull: Pull) -> Callable[[], None]:
    """Ends the runs; what is given asks for them again."""
    stage.say(pull, "alice", "/fla-bot cancel")
    return lambda: stage.say(pull, "alice", "/fla-bot rerun")


def close(stage: Stage, pull: Pull) -> Callable[[], None]:
    stage.world.edit_pull(pull, Actor("alice"), state="closed")
    return lambda: stage.world.edit_pull(pull, Actor("alice"), state="open")


def push(stage: Stage, pull: Pull) -> Callable[[], None]:
    head = pull.sha
    stage.push(pull, MORE)
    return lambda: push_back(stage, pull, head)


@pytest.mark.parametrize("how", [cancel, close, push])
def test_fail_outlives_the_end_of_its_run(
    stage: Stage, how: Callable[[Stage, Pull], Callable[[], None]]
) -> None:
    pull, runs, found = measured(stage, WRONG)
    again = how(stage, pull)
    stage.settle()
    end(stage, runs, found)
    again()
    stage.settle()
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) == "failure"
    assert stage.standing(pull).title.endswith(("fail", "fails"))


def test_fail_outlives_a_bot_that_is_switched_off(gated: Stage) -> None:
    pull, runs, found = measured(gated, WRONG)
    gated.mode = "off"
    gated.reap(pull)
    end(gated, runs, found)
    gated.mode = "on"
    gated.reap(pull)
    assert gated.ready(pull) == "failure"
    assert gated.standing(pull).title.endswith(("fail", "fails"))


@pytest.mark.parametrize("how", [cancel, close, push])
def test_pass_of_an_ended_run_is_dropped(
    stage: Stage, how: Callable[[Stage, Pull], Callable[[], None]]
) -> None:
    pull, runs, found = measured(stage, RIGHT)
    again = how(stage, pull)
    stage.settle()
    end(stage, runs, found)
    again()
    stage.settle()
    assert stage.ready(pull) != "success"
    stage.turn_green(pull)
    assert {run.id for run in stage.world.runs.values()} > {run.id for run in runs}


def moved_on(stage: Stage) -> tuple[Pull, list[Run], dict[int, dict[str, bytes]]]:
    """All lanes of the head before this one have measured a fail, and none has told yet."""
    pull, runs, found = measured(stage, WRONG)
    stage.push(pull, MORE)
    stage.settle()
    return pull, runs, found


@pytest.mark.usefixtures("no_news")
def test_fail_outlives_the_trouble_of_its_publisher(stage: Stage) -> None:
    pull, runs, found = moved_on(stage)
    write = "checks/update" if stage.has_app else "repos/create-commit-status"
    for run in runs:
        stage.github.fail(Fault(write, 400, "no", times=1))
        with pytest.raises(GitHubError):
            stage.publish(run, found[run.id], lane="success")
        stage.github.faults.clear()
        stage.world.finish(run, "failure")
    assert pull.number in stage.due()["due"]
    stage.reap()
    stage.approve(pull)
    assert stage.runs() == []
    assert stage.ready(pull) == "failure"
    assert stage.due()["due"] == []


def test_fail_of_an_earlier_head_outlives_a_bot_that_is_switched_off(stage: Stage) -> None:
    pull, runs, found = moved_on(stage)
    stage.mode = "off"
    end(stage, runs, found)
    stage.mode = "on"
    stage.push(pull, {"docs/most.md": "most\n"})
    stage.settle()
    stage.approve(pull)
    assert stage.runs() == []
    assert stage.ready(pull) == "failure"


def test_fail_that_was_told_on_the_next_head_is_of_one_job_only(stage: Stage) -> None:
    pull = two_ops(stage)
    runs = stage.runs()
    begin(stage, runs)
    found = {run.id: both(stage, pull, run, WRONG, RIGHT) for run in runs}
    stage.push(pull, MORE)
    stage.settle()
    end(stage, runs, found)
    for _ in range(2):
        stage.reap(pull)
        fails = [row.op for item in stage.standing(pull).reused for row in item.rows]
        assert set(fails) == {"l2norm"}


def test_fail_that_comes_late_counts_on_the_next_head(stage: Stage) -> None:
    pull, runs, found = measured(stage, WRONG)
    stage.push(pull, MORE)
    stage.settle()
    end(stage, runs, found)
    assert stage.ready(pull) == "failure"
    stage.approve(pull)
    assert stage.runs() == []
    stage.push(pull, {"docs/most.md": "most\n"})
    stage.settle()
    assert stage.ready(pull) == "failure"
    assert stage.runs() == []


def test_fail_that_comes_before_the_next_plan_counts_in_it(stage: Stage) -> None:
    pull, runs, found = measured(stage, WRONG)
    head = pull.sha
    stage.push(pull, MORE)
    stage.world.take_events()
    end(stage, runs, found)
    assert pull.sha != head
    stage.settle()
    stage.reap(pull)
    stage.settle()
    assert stage.ready(pull) == "failure"
    assert stage.standing(pull).title.endswith(("fail", "fails"))


@pytest.mark.parametrize("rms", [WRONG, RIGHT])
def test_only_a_fail_outlives_its_plan(stage: Stage, rms: float) -> None:
    """The base gets a contract that makes the plan another one, with the old jobs in it."""
    with_other_op(stage)
    pull, runs, found = measured(stage, rms)
    keys = {job.id: job.key for job in stage.case(pull).report.plan.jobs}
    wider = OTHER.replace("/fla/modules/other.py", f"/{KERNEL}")
    stage.put("main", {"contracts/other.yaml": wider})
    stage.reap()
    stage.settle()
    case = stage.case(pull)
    assert keys.items() < {job.id: job.key for job in case.report.plan.jobs}.items()
    assert stage.standing(pull).plans
    end(stage, runs, found)
    rows = {e.id: e.result for e in stage.view(pull).entries if e.result}
    old = {str(row): result.verdict for row, result in rows.items() if row.plan != case.plan}
    words = {old[run.inputs["plan"]] for run in runs if lane(run).startswith("correctness")}
    assert words == {Verdict.FAIL if rms == WRONG else Verdict.SUPERSEDED}
    assert stage.ready(pull) == ("failure" if rms == WRONG else stage.ready(pull))
    stage.reap(pull)
    assert stage.standing(pull).plans == []  # nothing can come of it any more


def test_job_that_passed_beside_a_fail_is_measured_again(stage: Stage) -> None:
    pull = two_ops(stage)
    runs = stage.runs()
    begin(stage, runs)
    found = {run.id: both(stage, pull, run, WRONG, RIGHT) for run in runs}
    cancel(stage, pull)
    stage.settle()
    end(stage, runs, found)
    (entry,) = [e for e in stage.view(pull).entries if e.id.lane.startswith("correctness")]
    assert entry.result
    assert {row.op: row.verdict for row in entry.result.rows} == {"l2norm": Verdict.FAIL}
    assert set(entry.result.keys) == {"correctness-sm90-l2norm"}


# Jobs of an equal key.


def two_ops(stage: Stage) -> Pull:
    """An approved change of two ops, which share each lane."""
    with_other_op(stage)
    other = (ROOT / KERNEL).read_text().replace("l2norm", "other").replace(*MENDED, 1)
    stage.world.take_events()
    pull = stage.open(files={**stage.kernel(), "fla/modules/other.py": other})
    stage.settle()
    stage.approve(pull)
    return pull


def both(stage: Stage, pull: Pull, run: Run, rms: float, other: float | None) -> dict[str, bytes]:
    """The evidence of both ops; of the other one there may be none."""
    case = stage.case(pull)
    found = evidence_of(case, lane(run), rms, CONTRACT)
    return found if other is None else {**found, **evidence_of(case, lane(run), other, OTHER)}


def test_fail_that_comes_back_with_its_head_is_of_one_job_only(stage: Stage) -> None:
    pull = two_ops(stage)
    for run in stage.runs():
        begin(stage, [run])
        stage.publish(run, both(stage, pull, run, WRONG, RIGHT))
        stage.world.finish(run)
    first = pull.sha
    stage.push(pull, MORE)
    stage.settle()
    push_back(stage, pull, first)
    assert stage.ready(pull) == "failure"
    stage.push(pull, {"docs/most.md": "most\n"})
    stage.settle()
    assert stage.ready(pull) == "failure"
    for name in jobs(stage, pull):
        if "l2norm" in name:
            stage.say(pull, "mona", f"/fla-bot waive {name} known")
    stage.settle()
    assert stage.ready(pull) == "success"
    assert stage.runs() == []


def test_fail_of_nobody_knows_which_job_is_of_all(stage: Stage) -> None:
    """Without an App the texts are in the comment, which somebody deletes."""
    pull = two_ops(stage)
    for run in stage.runs():
        begin(stage, [run])
        stage.publish(run, both(stage, pull, run, WRONG, RIGHT))
        stage.world.finish(run)
    for comment in list(stage.world.comments.values()):
        if comment.body in stage.comments(pull):
            stage.world.delete_comment(comment, Actor("mona"))
    stage.settle()
    stage.reap(pull)
    stage.settle()
    stage.push(pull, MORE)
    stage.settle()
    assert stage.ready(pull) == "failure"
    assert stage.runs() == []


def measure_again(stage: Stage, pull: Pull, rms: float) -> None:
    """The one lane that waits runs; the other op is right in it."""
    (run,) = stage.runs()
    begin(stage, [run])
    stage.publish(run, both(stage, pull, run, rms, RIGHT))
    stage.world.finish(run)


def flaky(stage: Stage) -> Pull:
    """One job passes, another on its lane is lost; in the rerun for that the first one fails."""
    pull = two_ops(stage)
    for run in stage.runs():
        begin(stage, [run])
        lost = lane(run).startswith("correctness")
        stage.publish(run, both(stage, pull, run, RIGHT, None if lost else RIGHT))
        stage.world.finish(run)
    stage.say(pull, "alice", "/fla-bot rerun")
    stage.settle()
    measure_again(stage, pull, WRONG)
    assert stage.ready(pull) == "failure"
    return pull


def test_fail_of_an_equal_job_stays_on_the_next_heads(stage: Stage) -> None:
    pull = flaky(stage)
    for number in range(2):
        stage.push(pull, {f"docs/{number}.md": "more\n"})
        stage.settle()
        assert stage.ready(pull) == "failure"
        stage.approve(pull)
        asked = stage.say(pull, "alice", "/fla-bot rerun")
        stage.settle()
        assert stage.runs() == []
        (told,) = [r.text for r in stage.standing(pull).replies if r.comment == asked.id]
        assert "a fail stays a fail" in told
    stage.push(pull, stage.kernel(SMALLER))
    stage.settle()
    stage.approve(pull)
    runs = stage.runs()
    begin(stage, runs)
    end(stage, runs, {run.id: both(stage, pull, run, RIGHT, RIGHT) for run in runs})
    assert stage.ready(pull) == "success"


def test_fail_comes_back_with_the_code(stage: Stage) -> None:
    pull = red(stage)
    stage.push(pull, stage.kernel(SMALLER))
    stage.settle()
    stage.turn_green(pull)
    stage.push(pull, stage.kernel())
    stage.settle()
    assert stage.ready(pull) == "failure"
    assert stage.standing(pull).title.endswith(("fail", "fails"))


def test_fail_outlives_a_plan_that_is_void_and_comes_again(gated: Stage) -> None:
    pull = red(gated)
    gated.push(pull, MORE)
    gated.settle()
    assert gated.ready(pull) == "failure"
    for text in (CONTRACT.replace("fp32: 2.0e-7", "fp32: 1.9e-7"), CONTRACT):
        gated.put("main", {"contracts/l2norm.yaml": text})
        gated.reap()
        gated.settle()
    assert gated.ready(pull) == "failure"
    assert gated.standing(pull).title.endswith(("fail", "fails"))


def test_waiver_is_for_a_head_also_where_the_fail_is_of_another(stage: Stage) -> None:
    pull = red(stage)
    stage.push(pull, MORE)
    stage.settle()
    for job in jobs(stage, pull):
        stage.say(pull, "mona", f"/fla-bot waive {job} known, see #1")
    stage.settle()
    assert stage.ready(pull) == "success"


def result_of(key: str, verdict: Verdict, head: str = "1") -> LaneResult:
    row = Row(job="j", lane="l", op="o", cell="c", verdict=verdict, reason="r")
    name = str(RowId(1, head * 40, "a" * 16, "interpret:cpu", 0))
    return LaneResult(row=name, run=1, verdict=verdict, note="", keys={"j": key}, rows=[row])


def test_what_is_kept_of_other_heads_is_bounded() -> None:
    fails = [result_of(str(number), Verdict.FAIL) for number in range(99)]
    passes = [result_of(str(number), Verdict.PASS) for number in range(99)]
    kept = gathered([*passes, *fails, *passes], {"j": "0"})
    whole = {result.keys["j"] for result in kept if result.rows}
    assert whole == {"0", *map(str, range(69, 99))}
    assert {result.keys["j"] for result in kept} == set(map(str, range(99)))
    assert {result.verdict for result in kept} == {Verdict.FAIL}
    assert gathered(passes, {"j": "7"}) == [passes[7]]
    assert only_fails(passes[0]) is None


def test_group_that_fails_is_not_tried_until_it_passes(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.turn_green(pull)
    gated.put("main", {"fla/modules/__init__.py": '"""Newer."""\n'})
    head = queued(gated, pull)
    runs = [run for run in gated.runs() if head in run.inputs["plan"]]
    assert len(runs) == 2
    for run in runs:
        begin(gated, [run])
        gated.publish(run, evidence(gated, pull, head, run, WRONG))
        gated.world.finish(run)
    assert gated.verdict(head) == "failure"
    assert gated.ready(pull) == "success"  # its own head is another job
    leave(gated, head)
    gated.put("main", {"docs/newer.md": "newer\n"})
    again = queued(gated, pull)
    assert again != head
    assert gated.runs() == []
    assert gated.verdict(again) == "failure"


def queued(stage: Stage, pull: Pull) -> str:
    """In the merge queue, and the reaper has seen it."""
    head = stage.enqueue(pull)
    stage.reap()
    stage.settle()
    return head


def leave(stage: Stage, head: str) -> None:
    """A group is taken out of the queue."""
    branches = stage.world.branches
    for place in [place for place, sha in branches.items() if sha == head]:
        del branches[place]
        stage.git.git("update-ref", "-d", f"refs/heads/{place[1]}")


def evidence(stage: Stage, pull: Pull, head: str, run: Run, rms: float) -> dict[str, bytes]:
    case = stage.view(pull, head).standings[pull.number].case
    assert case
    return evidence_of(case, lane(run), rms)


# Samples.


def test_ledger_gives_the_newest_run_first(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    for number in range(3):
        for run in stage.runs():
            begin(stage, [run])
            stage.publish(run, {})
            stage.world.finish(run)
        if number < 2:
            stage.say(pull, "alice", "/fla-bot rerun")
            stage.settle()
    posted = [e.posted for e in stage.view(pull).entries if e.id.lane.startswith("correctness")]
    assert len(posted) == 3
    assert posted == sorted(posted, reverse=True)


@pytest.mark.parametrize("newest_first", [True, False])
def test_rerun_is_held_to_all_samples_in_any_order(reruns: Reruns, newest_first: bool) -> None:
    counts = []
    for _ in range(3):
        assert reruns.run(1.01, spread=0.02) is Verdict.NOT_PROVEN
        result = reruns.results[-1]
        counts += [len(values) for values in result.samples.values()]
        if newest_first:
            reruns.results.sort(key=lambda item: sum(map(len, item.samples.values())))
        else:
            reruns.results.reverse()
    assert counts == [5, 10, 15]


def slow(key: str, count: int, head: str = "1") -> LaneResult:
    """A job that is not proven after so many samples."""
    samples = {f"{key} row machine": [0.01] * count, "another row machine": [0.02]}
    update = {"samples": samples}
    return result_of(key, Verdict.NOT_PROVEN, head).model_copy(update=update)


def test_samples_go_with_the_job_to_the_next_head() -> None:
    (kept,) = gathered([slow("k", 5), slow("k", 10), slow("k", 5), slow("z", 9)], {"j": "k"})
    assert kept.rows == []
    assert kept.samples == {"k row machine": [0.01] * 10}
    assert gathered([kept], {"j": "k"}) == [kept]
    passed = result_of("k", Verdict.PASS, "2")
    assert gathered([kept, passed], {"j": "k"}) == [passed]
    assert gathered([slow("k", MAX_SAMPLES + 1)], {"j": "k"}) == []


def test_next_head_is_held_to_the_samples_of_this_one(reruns: Reruns) -> None:
    assert reruns.run(1.01, spread=0.02) is Verdict.NOT_PROVEN
    reruns.earlier = gathered(reruns.results)
    reruns.results.clear()
    assert reruns.run(1.01, spread=0.02) is Verdict.NOT_PROVEN
    assert [len(values) for values in reruns.results[0].samples.values()] == [10]


# Orders that no machine may carry out.


def refused(stage: Stage, pull: Pull, words: str) -> None:
    """An order that starts nothing, and says why."""
    stage.approve(pull)
    asked = stage.say(pull, "alice", "/fla-bot run")
    stage.settle()
    assert stage.runs() == []
    assert [r.text for r in stage.standing(pull).replies if r.comment == asked.id] == [words]
    (reaction,) = [r for r in stage.world.reactions.values() if r.comment == asked.id]
    assert reaction.content == "-1"


def test_draft_runs_on_nobodys_word(stage: Stage) -> None:
    pull = stage.open(draft=True)
    stage.settle()
    refused(stage, pull, "the pull request is a draft: mark it as ready")
    stage.world.set_draft(pull, Actor("alice"), draft=False)
    stage.settle()
    assert len(stage.runs()) == 2


def test_preview_runs_on_nobodys_word(stage: Stage) -> None:
    stage.world.push("old", sha=stage.world.tip("main"))
    stage.git.git("branch", "old", "main")
    stage.put("old", {"contracts/policy.yaml": None, "contracts/l2norm.yaml": None})
    stage.git.git("switch", "--quiet", "main")
    stage.world.take_events()
    pull = stage.open(base="old")
    stage.settle()
    refused(stage, pull, "a preview: old has no policy, so no machine runs")
    assert stage.ready(pull) == "none"
    assert stage.ready(pull, PREVIEW) not in RUNNING


def test_run_whose_dispatch_was_lost_waits_while_it_is_a_draft(stage: Stage) -> None:
    pull = stage.open()
    stage.settle()
    stage.approve(pull)
    runs = stage.world.runs
    for run in stage.runs():
        del runs[run.id]
    stage.world.set_draft(pull, Actor("alice"), draft=True)
    stage.world.advance(minutes=15)
    stage.settle()
    stage.reap(pull)
    assert stage.runs() == []


def test_runs_that_the_gate_turned_away_use_no_minutes(gated: Stage) -> None:
    pull = gated.open()
    gated.settle()
    gated.approve(pull)
    for _ in range(12):
        runs = gated.runs()
        assert len(runs) == 2
        for run in runs:
            gated.world.begin(run)
            gated.publish(run, {}, lane="skipped")
            gated.world.finish(run)
    notes = [e.result.note for e in gated.view(pull).entries if e.result]
    assert notes == [UNUSED] * 24


def test_runs_that_a_push_has_ended_use_no_more_than_their_time(gated: Stage) -> None:
    pull = gated.open("wes", fork=False)
    gated.settle()
    for count in range(1, 9):
        assert len(gated.runs()) == 2
        gated.world.advance(minutes=1)
        edit = ("min(32, TILE // columns)", f"min({count}, TILE // columns)")
        gated.push(pull, gated.kernel(edit), "wes")
        gated.settle()
    assert len(gated.runs()) == 2


def test_runs_that_were_ended_late_have_used_their_time(gated: Stage) -> None:
    pull = gated.open("wes", fork=False)
    gated.settle()
    for count in range(1, 9):
        for run in gated.runs():
            gated.world.begin(run)
        gated.world.advance(minutes=50)
        edit = ("min(32, TILE // columns)", f"min({count}, TILE // columns)")
        gated.push(pull, gated.kernel(edit), "wes")
        gated.settle()
    assert gated.runs() == []
    assert "has used 240 of 240 minutes today" in gated.comments(pull)[0]


# Merge groups that are gone.


@pytest.mark.usefixtures("no_news")
def test_runs_of_a_merge_group_end_with_it(gated: Stage) -> None:
    first, second = gated.open(), gated.open("bob", {"docs/b.md": "b\n"})
    gated.settle()
    gated.turn_green(first)
    gated.approve(second)
    gated.put("main", {"fla/modules/__init__.py": '"""Newer."""\n'})
    above = stacked(gated, first, second)
    gated.reap()
    gated.settle()
    runs = [run for run in gated.world.runs.values() if run.workflow.file == EXECUTOR]
    running = {run.id for run in runs if run.status != "completed"}
    assert len(running) == 4
    gated.reap(second)
    assert {run.id for run in gated.runs()} == running
    leave(gated, above)
    assert second.number in gated.due()["due"]
    gated.reap()
    assert len(gated.runs()) == 2
    assert not any(above in run.inputs["plan"] for run in gated.runs())
    assert second.number not in gated.due()["due"]
