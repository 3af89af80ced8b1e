"""The ledger: check runs of our App, or commit statuses where there is none, of one head.

With an App its check runs hold everything, and nobody else can write them. Without one, statuses
hold states and digests, and the texts that belong to the digests stand in our comment.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from bot.github.case import MAX_TWINS, Case, LaneResult, RowId, Standing, pack, seal, unpack
from bot.github.client import MAX_ANNOTATIONS, Client
from bot.github.records import CheckRun, Status
from bot.github.rows import is_bare
from bot.github.situation import Entry
from bot.model import CheckState, Row, Verdict

__all__ = ["PREVIEW", "READY", "Ledger", "Overtaken", "Shown", "View", "data_block"]

READY, PREVIEW = "fla-bot/ready", "fla-bot/preview"
ROW = "fla-bot/lane"
MAX_TEXT = 65_000  # characters of a check run's summary or text; GitHub cuts at 65,535
MAX_DESCRIPTION = 140
_STANDING = re.compile(r"<!-- fla-bot:standing ([1-9][0-9]{0,9}) ([A-Za-z0-9+/=]+) -->")
_RESULT = re.compile(r"<!-- fla-bot:result ([A-Za-z0-9+/=]+) -->")
_SEALS = re.compile(r"\b([1-9][0-9]{0,9}):([0-9a-f]{16})\b")
_CONTEXT = re.compile(rf"{ROW}/([a-z]+:[a-z0-9]+)/([0-9]+)\.([0-9]+)")
# What a status's description does not take, or what would break the line that is read again.
_UNFIT = re.compile(r"[^ -~\u00a0-\ud7ff\ue000-\uffff]")
_DONE = re.compile(r"([0-9a-f]{16}) ([a-z-]+)(?: ([0-9a-f]{16}))?(?: .*)?")
PROVES_NOTHING = (Verdict.PASS, Verdict.SUPERSEDED)  # against another pull request
_STATES = {
    CheckState.QUEUED: "pending",
    CheckState.IN_PROGRESS: "pending",
    CheckState.SUCCESS: "success",
    # A status has no word for a person who is awaited; pending would read as a machine at work.
    CheckState.FAILURE: "failure",
    CheckState.ACTION_REQUIRED: "failure",
}


class Overtaken(Exception):
    """Somebody else has written a verdict since it was read."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A verdict as it stands on the head now; `text` is all of its content that we compare."""

    id: int
    state: str
    title: str
    text: str
    since: datetime
    annotations: int = 0


@dataclass(slots=True)
class View:
    """What the ledger says about one head.

    `seals`: whose standings each verdict holds, with their digests. `checks`: ids of rows.
    `elsewhere`: what runs of other pull requests on this head came to; without an App that is in
    their comments, and until these are read `untold` has the verdict and the digest of each. `us`:
    our App's login, where it has written anything.
    """

    shown: dict[str, Shown] = field(default_factory=dict)
    standings: dict[int, Standing] = field(default_factory=dict)
    seals: dict[str, dict[int, str]] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    forged: list[str] = field(default_factory=list)
    checks: dict[RowId, int] = field(default_factory=dict)
    elsewhere: list[LaneResult] = field(default_factory=list)
    untold: dict[RowId, tuple[str, str]] = field(default_factory=dict)
    us: str = ""


def data_block(standing: Standing, results: Sequence[LaneResult], limit: int) -> str:
    """What our comment carries where there is no App: the texts behind the digests."""
    lines = [f"<!-- fla-bot:standing {standing.number} {pack(standing)} -->"]
    for result in reversed(results):
        line = f"<!-- fla-bot:result {pack(result)} -->"
        if sum(map(len, lines)) + len(line) + len(lines) < limit:
            lines.append(line)
    return "\n".join(lines)


class Ledger:
    """Reads and writes the ledger of a repository; `app` says where it stands."""

    def __init__(self, client: Client, *, app: bool) -> None:
        self.client, self.app = client, app

    # Reading.

    def read(self, head: str, number: int, stored: str = "", plans: Sequence[Case] = ()) -> View:
        """The ledger of a head as one of its pull requests needs it; `stored`: our comment.

        `plans`: what is known of its plans from elsewhere.
        """
        view = View()
        if self.app:
            self._read_checks(view, head, number)
            return view
        statuses = self.client.statuses(head)
        us = self.client.identity.login
        ours = [s for s in statuses if s.creator is not None and s.creator.login == us]
        for status in statuses:
            if status.context == READY and status not in ours:
                view.forged.append(f"status by {_creator(status)}")
        for run in self.client.check_runs(head, READY):
            view.forged.append(f"check by {run.app.slug if run.app else 'nobody'}")
        view.forged = sorted(set(view.forged))
        self._read_statuses(view, head, number, ours, stored, plans)
        return view

    def _read_checks(self, view: View, head: str, number: int) -> None:
        texts: dict[str, dict[int, str]] = {}
        for run in self.client.check_runs(head):
            mine = run.app is not None and run.app.id == self.client.identity.app_id
            if run.name == READY and not mine:
                view.forged.append(f"check by {run.app.slug if run.app else 'nobody'}")
            if not mine:
                continue
            view.us = f"{run.app.slug}[bot]" if run.app else ""
            text = run.output.text or ""
            if run.name in (READY, PREVIEW):
                known = view.shown.get(run.name)
                if known is None or run.id > known.id:
                    view.shown[run.name] = _shown(run)
                    packed = {int(match[1]): match[2] for match in _STANDING.finditer(text)}
                    view.seals[run.name] = {key: seal(item) for key, item in packed.items()}
                    texts[run.name] = packed
            elif run.name.startswith(f"{ROW} "):
                self._read_row(view, run, number)
        view.forged = sorted(set(view.forged))
        # Whoever moves between the two names takes the standing along; READY is the stricter one.
        for name in (PREVIEW, READY):
            for text in texts.get(name, {}).values():
                if standing := unpack(Standing, text):
                    view.standings[standing.number] = standing

    def _read_row(self, view: View, run: CheckRun, number: int) -> None:
        row = RowId.find(run.external_id or "")
        if row is None or row.head != run.head_sha or row in view.checks:
            return
        match = _RESULT.search(run.output.text or "")
        result = unpack(LaneResult, match[1]) if match else None
        if row.number != number:
            view.elsewhere += [result] if result else []
            return
        if result is None and run.status == "completed":
            # GitHub marks what waits too long as stale.
            result = _lost(row, f"infra: its check ended as {run.conclusion}")
        assert run.started_at is not None
        view.entries.append(Entry(row, run.started_at, result))
        view.checks[row] = run.id

    def _read_statuses(
        self,
        view: View,
        head: str,
        number: int,
        ours: Sequence[Status],
        stored: str,
        plans: Sequence[Case],
    ) -> None:
        for name in (READY, PREVIEW):
            newest = next((item for item in ours if item.context == name), None)
            if newest is None:
                continue
            words = newest.description or ""
            view.shown[name] = Shown(newest.id, newest.state, words, words, newest.created_at)
            view.seals[name] = {int(key): digest for key, digest in _SEALS.findall(words)}
        self.unseal(view, stored)
        sealed = _sealed(stored)
        standing = view.standings.get(number)
        cases = [standing.case, *plans] if standing and standing.case else plans
        for row, posted, words in _rows(head, ours):
            match = _DONE.fullmatch(words)
            result = None
            done = match if match and match[2] not in ("queued", "running") else None
            if row.number != number:
                if done and done[2] not in PROVES_NOTHING:
                    view.untold[row] = (done[2], done[3] or "")
                continue
            if done:
                result = _result(row, done[3] or "", sealed)
                if result is None:
                    returned = _returned(row, standing) if done[2] == Verdict.FAIL else None
                    case = next((case for case in cases if case.plan == row.plan), None)
                    result = returned or _recall(row, done[2], case)
            view.entries.append(Entry(row, posted, result))

    def forged(self, view: View, head: str) -> tuple[str, ...]:
        """Verdicts of our name that are not ours; a job of that name makes such a check."""
        if not self.app:
            return tuple(view.forged)
        foreign = [item for item in self.client.statuses(head) if item.context == READY]
        return (*view.forged, *sorted({f"status by {_creator(item)}" for item in foreign}))

    def unseal(self, view: View, stored: str) -> None:
        """Take the standing in a comment of ours, and results, if a status names their digest."""
        for name in (PREVIEW, READY):
            for match in _STANDING.finditer(stored):
                sealed = view.seals.get(name, {}).get(int(match[1])) == seal(match[2])
                standing = unpack(Standing, match[2]) if sealed else None
                if standing is not None and standing.number == int(match[1]):
                    view.standings[standing.number] = standing
        results = _sealed(stored) if view.untold else {}
        for row, (_, digest) in list(view.untold.items()):
            if result := _result(row, digest, results):
                view.elsewhere.append(result)
                del view.untold[row]

    def elsewhere(self, view: View, cases: Sequence[Case]) -> list[LaneResult]:
        """What runs of other pull requests came to on this head; `cases`: plans that are known.

        To be asked once their comments were read: what is in none of them has lost its details.
        """
        bare = []
        for row, (word, _) in view.untold.items():
            # Its plan may be of an older base. Which keys its jobs had then nobody knows any more.
            same = [case for case in cases if case.head == row.head]
            exact = [case for case in same if case.plan == row.plan]
            case = next(iter([*exact, *same]), None)
            bare.append(_recall(row, word, case))
        return [*view.elsewhere, *bare]

    # Writing.

    def put(
        self,
        view: View,
        head: str,
        name: str,
        state: CheckState,
        title: str,
        summary: str,
        standings: Mapping[int, Standing],
        annotations: Sequence[Mapping[str, Any]] = (),
        *,
        renew: bool = False,
        sure: bool = False,
        gone: Collection[int] = (),
    ) -> bool:
        """Make the verdict over a head what it should be; False if it is that already.

        `sure`: look first if it still says what `view` knows. GitHub has no write that depends on
        what is there, so whoever writes between that look and ours is overwritten. `gone`: pull
        requests whose digests make room for others.
        """
        old = view.shown.get(name)
        ordered = [standings[number] for number in sorted(standings)]
        if not self.app:
            # The texts of the others stand in their own comments.
            kept = {n: held for n, held in view.seals.get(name, {}).items() if n not in gone}
            kept |= {item.number: seal(pack(item)) for item in ordered}
            last = sorted(kept.items())[-MAX_TWINS:]
            seals = " ".join(f"{number}:{digest}" for number, digest in last)
            words = _described(f"{title[: MAX_DESCRIPTION - len(seals) - 3]} · {seals}")
            if old and (old.state, old.title) == (_STATES[state], words) and not renew:
                return False
            if sure:
                self._compare(view, head, name)
            posted = self.client.post_status(head, name, _STATES[state], words, look=False)
            view.shown[name] = Shown(posted.id, posted.state, words, words, posted.created_at)
            view.seals[name] = kept
            return True
        text = "\n".join(
            f"<!-- fla-bot:standing {item.number} {pack(item)} -->" for item in ordered
        )
        output = {"title": title[:255], "summary": summary[:MAX_TEXT], "text": text}
        same = old is not None and (old.state, old.title, old.text) == (
            str(state),
            output["title"],
            f"{output['summary']}\n{text}",
        )
        if same and not renew:
            return False
        if sure:
            self._compare(view, head, name)
        added = list(annotations)[:MAX_ANNOTATIONS] if old is None or not old.annotations else []
        sent: dict[str, Any] = {**output, "annotations": added} if added else dict(output)
        body = {**_status(state), "output": sent}
        if old is not None and not renew:
            self.client.edit_check_run(old.id, body)
            number, since = old.id, old.since
        else:
            mark = f"{name} {head} {old.id if old else 0}"
            new = self.client.post_check_run(head, name, mark, body, look=False)
            number = new.id
            since = new.started_at or datetime.fromtimestamp(self.client.connection.now(), UTC)
        count = len(added) + (old.annotations if old else 0)
        shown = f"{output['summary']}\n{text}"
        view.shown[name] = Shown(number, str(state), output["title"], shown, since, count)
        view.seals[name] = {item.number: seal(pack(item)) for item in ordered}
        return True

    def _compare(self, view: View, head: str, name: str) -> None:
        """Raise if a verdict no longer holds the standings that were read."""
        if self.app:
            us = self.client.identity.app_id
            runs = [r for r in self.client.check_runs(head, name) if r.app and r.app.id == us]
            newest = max(runs, key=lambda run: run.id, default=None)
            text = (newest.output.text or "") if newest else ""
            now = {int(match[1]): seal(match[2]) for match in _STANDING.finditer(text)}
        else:
            login = self.client.identity.login
            ours = (s for s in self.client.statuses(head) if s.creator and s.creator.login == login)
            words = next((s.description or "" for s in ours if s.context == name), "")
            now = {int(key): digest for key, digest in _SEALS.findall(words)}
        if now != view.seals.get(name, {}):
            raise Overtaken(name)

    def open_row(self, row: RowId, words: str) -> None:
        """Write a row before its run is started."""
        if not self.app:
            self.client.post_status(
                row.head, _context(row), "pending", f"{row.plan} queued", look=False
            )
            return
        output = {"title": f"Queued on {row.lane}", "summary": words}
        body = {"status": "queued", "output": output}
        self.client.post_check_run(row.head, _name(row), str(row), body, look=False)

    def close_row(self, view: View, result: LaneResult, summary: str, url: str = "") -> None:
        """End a row: success is a pass, everything else a failure."""
        row, green = RowId.parse(result.row), result.verdict is Verdict.PASS
        if not self.app:
            words = f"{row.plan} {result.verdict} {seal(pack(result))} {result.note}"
            state = "success" if green else "failure"
            context = _context(row)
            self.client.post_status(
                row.head, context, state, _described(words), url or None, look=False
            )
            return
        text = f"<!-- fla-bot:result {pack(result)} -->"
        title = f"{result.verdict}: {result.note}" if result.note else str(result.verdict)
        output = {"title": title[:255], "summary": summary[:MAX_TEXT], "text": text}
        conclusion = "success" if green else "failure"
        body = {"status": "completed", "conclusion": conclusion, "output": output}
        body |= {"details_url": url} if url else {}
        if row in view.checks:
            self.client.edit_check_run(view.checks[row], body)
        else:
            self.client.post_check_run(row.head, _name(row), str(row), body, look=False)


def _shown(run: CheckRun) -> Shown:
    state = run.conclusion if run.status == "completed" else run.status
    text = f"{run.output.summary or ''}\n{run.output.text or ''}"
    assert run.started_at is not None
    count = run.output.annotations_count
    return Shown(run.id, state or "", run.output.title or "", text, run.started_at, count)


def _status(state: CheckState) -> dict[str, str]:
    if state in (CheckState.QUEUED, CheckState.IN_PROGRESS):
        return {"status": str(state)}
    return {"status": "completed", "conclusion": str(state)}


def _described(words: str) -> str:
    """Words as GitHub takes them for a status: short, and no character of four bytes."""
    return _UNFIT.sub("\N{REPLACEMENT CHARACTER}", words)[:MAX_DESCRIPTION]


def _creator(status: Status) -> str:
    return status.creator.login if status.creator else "nobody"


def _name(row: RowId) -> str:
    again = f" (again, {row.nonce})" if row.nonce else ""
    return f"{ROW} {row.lane} of #{row.number}, plan {row.plan}{again}"


def _context(row: RowId) -> str:
    return f"{ROW}/{row.lane}/{row.number}.{row.nonce}"


def _sealed(stored: str) -> dict[str, str]:
    """The results in a comment of ours, by their digests."""
    return {seal(match[1]): match[1] for match in _RESULT.finditer(stored)}


def _result(row: RowId, digest: str, sealed: Mapping[str, str]) -> LaneResult | None:
    """The result of a row, if it is in a comment."""
    result = unpack(LaneResult, sealed[digest]) if digest in sealed else None
    return result if result is not None and result.row == str(row) else None


def _rows(head: str, ours: Sequence[Status]) -> list[tuple[RowId, datetime, str]]:
    """Our rows of a head: when each was first written, and its newest words."""
    found: dict[RowId, tuple[datetime, str]] = {}
    for status in ours:  # newest first
        context = _CONTEXT.fullmatch(status.context)
        words = status.description or ""
        match = _DONE.fullmatch(words)
        if context is None or match is None:
            continue
        row = RowId(int(context[2]), head, match[1], context[1], int(context[3]))
        newest = found[row][1] if row in found else words
        found[row] = (status.created_at, newest)
    return [(row, posted, words) for row, (posted, words) in found.items()]


def _lost(row: RowId, note: str) -> LaneResult:
    return LaneResult(row=str(row), run=0, verdict=Verdict.LOST, note=note, keys={}, rows=[])


def _recall(row: RowId, word: str, case: Case | None) -> LaneResult:
    """A result whose details are gone: the status still says how it ended.

    It does not say which job of a lane has failed: so all have.
    """
    try:
        verdict = Verdict(word)
    except ValueError:
        verdict = Verdict.LOST
    jobs = [
        job
        for job in (case.report.plan.jobs if case else [])
        if job.lane == row.lane and verdict in (Verdict.PASS, Verdict.FAIL)
    ]
    note = "the details are in the artifact of the run"
    rows = [
        Row(job=j.id, lane=j.lane, op=j.op, cell="", verdict=verdict, reason=note) for j in jobs
    ]
    keys = {job.id: job.key for job in jobs}
    return LaneResult(row=str(row), run=0, verdict=verdict, note=note, keys=keys, rows=rows)


def _returned(row: RowId, standing: Standing | None) -> LaneResult | None:
    """What later heads were told of a row, and have kept until its head came back.

    None if no fail is among it; a job that nothing is known of may run again.
    """
    found = [item for item in (standing.reused if standing else ()) if item.row == str(row)]
    rows = [line for item in found for line in item.rows]
    if all(line.verdict is not Verdict.FAIL for line in rows):
        return next((item for item in found if is_bare(item)), None)
    keys = {job: key for item in found for job, key in item.keys.items()}
    samples = {name: values for item in found for name, values in item.samples.items()}
    update = {"verdict": Verdict.FAIL, "rows": rows, "keys": keys, "samples": samples}
    return found[0].model_copy(update=update)
