"""The trusted process of a benchmark lane: content, clock, audits. Reads its order from stdin.

What is timed is one launch of one graph of n calls, each with its own inputs and results, from the
byte that says "go" to the byte that says "done", on this process' clock. Both arms get the same
content and, with each "go", the same fresh values for every argument of every call; results of all
calls that were timed are looked at afterwards, and the arms have to agree.

Started as `python -I -m bot.device.bench`; nobody imports it but tests.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import math
import os
import secrets
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from pydantic import ValidationError

from bot.contract import Contract
from bot.device.audit import Look, differ, keep_worst
from bot.device.clock import ceilings, has_changed, reader
from bot.device.rows import ARMS, MOST_SLOTS, SLOTS, Content, Row, Times, arm_names
from bot.device.runner import REPORT_BYTES, Failed, Runner, shared_memory, wait_for
from bot.device.say import environment, say
from bot.device.trial import Trial
from bot.evidence import HUGE, Audit, Costs
from bot.model import Outcome
from bot.statistics import FEWEST, decisive, log_ratio, side
from bot.tree import TreeFinder, load

__all__ = ["Bench", "main"]

BLOCK_MS = 20.0
MEMORY_SHARE = 0.3  # of the device's memory, for the slots of one arm
ALLOCATIONS = 3  # a memory-bound row's restart: its time depends on where the memory lies
PAD_BYTES = 1 << 29
ALONE, EAGER_CALLS = 4, 8
_SIZED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Bench:
    """All rows of a job, over all restarts."""

    def __init__(
        self,
        rows: list[Row],
        runners: Mapping[str, Runner],
        device: str,
        *,
        quads: int,
        references: Mapping[str, Callable[..., Any]],
        show: Callable[[str, dict[str, Any]], None],
        edges: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.rows, self.runners, self.device = list(rows), runners, device
        self.quads, self.references, self.show = quads, references, show
        self.edges = edges
        self.read = reader(device)
        self.content = Content(device)
        self.payloads: list[bytes] = []
        self.rolls: list[list[int]] = []
        self.stages: dict[str, float] = {}

    def run(self, targets: Sequence[str], restarts: int, start_timeout_s: float) -> None:
        """Every restart has fresh processes, rows in random order, and a random first arm.

        A row that is settled by then is not measured again.
        """
        for number in range(restarts):
            if number and not any(map(self._is_open, self.rows)):
                break
            self.content.close()
            # One order for both arms: who compiles first does not pay for the other rows.
            self.rows.sort(key=lambda _: secrets.randbits(30))
            if number == 0:
                self._begin(targets, start_timeout_s)
            else:
                with self._stage("start"):
                    self._start(ARMS, targets, start_timeout_s)
            self._each(lambda row, n=number: self._measure(row, n), self._is_open)  # type: ignore[misc]
            for row in self.rows:
                self.show("row", row.evidence().model_dump(mode="json"))
            self.show("progress", {"restart": number + 1, "of": restarts})
        with self._stage("costs"):
            self._start(ARMS, targets, start_timeout_s)  # the last row may have ended an arm
            self._each(self._costs)
        for row in self.rows:
            self.show("row", row.evidence().model_dump(mode="json"))
        self.content.close()
        for runner in self.runners.values():
            runner.close()

    def _is_open(self, row: Row) -> bool:
        """Whether a row can be measured, and its time is not yet known well enough."""
        edge = self.edges.get(row.name)
        if row.fault or edge is None or row.mode != "graph":
            return not row.fault
        restarts = (times.evidence() for times in row.restarts)
        found = [log_ratio(r.base, r.head) for r in restarts if r.is_whole]
        return len(found) < FEWEST or side(decisive(found), edge) == "open"

    def _begin(self, targets: Sequence[str], start_timeout_s: float) -> None:
        """First calls; the merge base alone, while no process of head is there; then head."""
        with self._stage("start"):
            self._start(ARMS, targets, start_timeout_s)
        self._each(self._first_call)
        self.content.close()  # what head has seen is not what it will be measured with
        with self._stage("start"):
            self.runners["head"].stop(start_timeout_s)
            self._start(("base",), targets, start_timeout_s)
        for row in self.rows:
            if row.fault.startswith("base"):  # head may have been in its way: it tries alone
                row.fault, row.mode = "", "graph"
        with self._stage("calibrate"):
            self._each(self._calibrate)
        with self._stage("start"):
            self._start(("head",), targets, start_timeout_s)
        self._each(self._try_new, lambda row: row.fault.startswith("base"))

    def _start(self, names: Iterable[str], targets: Sequence[str], timeout_s: float) -> None:
        chosen = [self.runners[name] for name in names]
        for runner in chosen:
            runner.restart(targets)
        for runner in chosen:
            runner.wait_start(timeout_s)

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.stages[name] = self.stages.get(name, 0.0) + time.monotonic() - began

    def _each(
        self,
        step: Callable[[Row], None],
        wanted: Callable[[Row], bool] = lambda row: not row.fault,
    ) -> None:
        """All rows that are wanted; one that fails is not tried again, and may end the restart."""
        for row in [row for row in self.rows if wanted(row)]:
            gc.collect()
            try:
                step(row)
                self._drop()
            except Failed as error:
                row.fault = row.fault or str(error)
                if not row.restarts:
                    row.mode = "failed"
                if not self._recovers(error):
                    return

    def _drop(self) -> None:
        self._tell([n for n, runner in self.runners.items() if runner.is_started], {"do": "drop"})

    def _recovers(self, error: Failed) -> bool:
        """Whether the arms still obey; one that crashed or hangs is of no use to other rows."""
        if error.outcome in (Outcome.TIMEOUT, Outcome.WORKER_DIED, Outcome.PROTOCOL):
            return False
        try:
            self._drop()
        except Failed:
            return False
        return True

    def _tell(self, names: Iterable[str], order: dict[str, Any]) -> None:
        """The same order to several arms at once."""
        told = [self.runners[name] for name in names]
        for runner in told:
            runner.post(order)
        wait_for(told)

    def _first_call(self, row: Row) -> None:
        """Compiling is most of a job's first minutes: each arm has a core for it."""
        row.first_call_s = self._load(row, ARMS, "compile")

    def _load(self, row: Row, names: Sequence[str], stage: str = "load") -> dict[str, float]:
        """Content, and a first call of all arms at once; how many seconds each took."""
        with self._stage("content"):
            self.content.send([self.runners[name] for name in names], self.content.keys(row))
            order = self.content.order(row)
        with self._stage(stage), ThreadPoolExecutor(len(names)) as pool:
            futures = {name: pool.submit(self._begin_row, row, name, order) for name in names}
        return {name: future.result() for name, future in futures.items()}

    def _begin_row(self, row: Row, name: str, order: dict[str, Any]) -> float:
        """Seconds until an arm has made one call."""
        runner, size = self.runners[name], REPORT_BYTES + row.shared_bytes
        fd, runner.shared = shared_memory(size)
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZED)
            return runner.ask({**order, "do": "row", "size": size, "report": REPORT_BYTES}, fd)
        finally:
            os.close(fd)

    def _capture(self, row: Row, names: Sequence[str]) -> None:
        """Slots and graphs; eager in both arms if one of them cannot be captured."""
        self.payloads.clear()
        self.rolls = [list(row.rolls()) for _ in range(row.slots)]
        order = {
            "do": "capture",
            "rolls": self.rolls,
            "pad": secrets.randbelow(PAD_BYTES) if self._moves(row) else 0,
        }
        with self._stage("capture"):
            self._tell(names, {**order, "graph": row.mode == "graph"})
            reports = {name: self.runners[name].report() for name in names}
            failed = [name for name in names if not reports[name].get("graph")]
            if row.mode == "graph" and failed:
                row.mode = "eager"
                row.why = f"{failed[0]}: {reports[failed[0]].get('why')}"[:400]
                self._tell(names, {**order, "graph": False})

    def _moves(self, row: Row) -> bool:
        """Whether a row is measured in several allocations a restart."""
        return row.margin == "memory_bound" and self.device == "cuda"

    def _calibrate(self, row: Row) -> None:
        """How many calls fill a block, by the merge base alone and once for all restarts."""
        base = self.runners["base"]
        self._load(row, ("base",))
        if self.device == "cuda":
            total = torch.cuda.get_device_properties(0).total_memory
            most = max(1, min(MOST_SLOTS, int(MEMORY_SHARE * total) // row.slot_bytes))
            row.slots = min(SLOTS, most)
            self._capture(row, ("base",))
            null, go = (
                min(base.time(order, self._payload(row)) for _ in range(3))
                for order in ("null", "go")
            )
            ms = max(1e-3, 1e3 * (go - null) / row.slots)
            row.slots = min(max(SLOTS, math.ceil(BLOCK_MS / ms)), most)
        self._capture(row, ("base",))
        base.time("go", self._payload(row))
        seconds = [
            self._block(row, "base", self._payload(row), self._payload(row), [])
            for _ in range(ALONE)
        ]
        row.alone = self._per_call(row, seconds)

    def _try_new(self, row: Row) -> None:
        """A row that the merge base cannot run: whether head can; if not, it is not to blame."""
        self._load(row, ("head",))
        row.why = "the merge base cannot run this row, head can"

    def _payload(self, row: Row) -> bytes:
        payload = self.content.payload(row)
        self.payloads.append(payload)
        return payload

    def _block(self, row: Row, name: str, first: bytes, second: bytes, own: list[float]) -> float:
        """Seconds of one block, after an empty one: each block begins in the same state.

        Without that, whoever ran last is served faster (measured: 1.3% of a block of 20 ms).
        """
        runner = self.runners[name]
        null = runner.time("null", first)
        if name == "base":
            row.nulls.append(null)
        seconds = runner.time("go", second)
        with contextlib.suppress(Failed):
            value = runner.report().get("inner_ms")
            if isinstance(value, int | float) and 0 < value < HUGE:
                own.append(float(value) / row.slots)
        return seconds

    def _per_call(self, row: Row, seconds: list[float]) -> list[float]:
        """Milliseconds, without what an empty block costs the merge base at least.

        Head's empty blocks do not count: it could raise what is taken off.
        """
        null = min(row.nulls)
        return [1e3 * max(0.0, s - null) / row.slots for s in seconds]

    def _measure(self, row: Row, number: int) -> None:
        """One restart of one row."""
        names = arm_names()
        found = Times(names[0])
        if number == 0:
            found.alone = row.alone
        self._load(row, ARMS)
        parts = ALLOCATIONS if self._moves(row) else 1
        for _ in range(parts):
            # Which arm's memory was laid out first must not be a constant either.
            self._capture(row, arm_names())
            with self._stage("blocks"):
                self._quads(row, found, number, -(-self.quads // parts))
        row.restarts.append(found)

    def _quads(self, row: Row, found: Times, number: int, quads: int) -> None:
        """Quads ABBA and BAAB in turn: a place in the order favours neither arm."""
        warm = self._payload(row)
        for name in arm_names():
            self.runners[name].time("go", warm)
        # Everything is drawn before, so that no block waits longer for its turn than another.
        looks = [Look(row, secrets.randbelow(2)) for _ in range(quads)]
        drawn = [[(self._payload(row), self._payload(row)) for _ in range(2)] for _ in looks]
        times, late, inner = ({name: list[float]() for name in ARMS} for _ in range(3))
        before = self.read()
        row.nulls.clear()
        order = ARMS if found.first == "base" else ARMS[::-1]
        for look, payloads in zip(looks, drawn, strict=True):
            seen: dict[str, int] = dict.fromkeys(ARMS, 0)
            for name in (*order, *order[::-1]):
                first, second = payloads[seen[name]]
                times[name].append(self._block(row, name, first, second, inner[name]))
                look.ask(self.runners[name], seen[name], late[name])
                seen[name] += 1
            order = order[::-1]
        changed = has_changed(before, self.read())
        for look in looks:
            keep_worst(row.audits, look.audits(number, self.device))
        if number == 0 and row.is_small:
            keep_worst(row.audits, self._against_reference(row))
        if changed:
            found.dropped += 2 * quads
            return
        for name in ARMS:
            found.blocks[name] += self._per_call(row, times[name])
            found.audit_ms[name] = 1e3 * statistics.median(late[name])
            if inner[name]:
                found.inner[name] = statistics.median(inner[name])

    def _against_reference(self, row: Row) -> Iterator[Audit]:
        """One timed call of head against the reference in fp64."""
        payload, head = self._payload(row), self.runners["head"]
        head.time("go", payload)
        look = Look(row, 0)
        look.ask(head, 0, [])
        planned, offsets = row.call, iter(self.rolls[look.slot])
        trial = Trial(planned, self.references[planned.reference], self.device)
        keys = self.content.keys(row)
        rolled = [self.content.tensors[key].roll(next(offsets)) for key in keys]
        sources = dict(zip(self._names(row), keys, strict=True))
        moved = dict(zip(sources, rolled, strict=True))
        for one in self.payloads:
            for place, part in enumerate(row.patch.parts):
                source = self.content.tensors[sources[part.key]]
                row.patch.apply(place, moved[part.key], source, (one, look.slot, row.slots))
        count = len(planned.tensors)
        trial.inputs = {
            spec.name: flat for spec, flat in zip(planned.tensors, rolled[:count], strict=True)
        }
        trial.directions = [
            flat.view(r.shape) for r, flat in zip(row.seeded, rolled[count:], strict=True)
        ]
        for result, flat in zip(row.results, look.results["head"], strict=True):
            truth = trial.truth[result.name].reshape(-1)
            error, _ = differ(flat.to(self.device), truth.to(self.device), result)
            limit = 2 * row.budgets.get(result.name, 0.0)
            yield Audit(
                restart=0,
                slot=look.slot,
                against="reference",
                output=result.name,
                error=error,
                limit=limit,
            )

    @staticmethod
    def _names(row: Row) -> list[str]:
        """Of the tensors of a slot, in the order of their keys."""
        return [s.name for s in row.call.tensors] + [f"d/{r.name}" for r in row.seeded]

    def _costs(self, row: Row) -> None:
        """Counts of one eager call, last of all: a profiler stays in the process."""
        if self.device == "cpu":
            return
        self._load(row, ARMS)
        for name in ARMS:
            runner = self.runners[name]
            runner.ask({"do": "eager", "calls": 2})
            eager_ms = 1e3 * runner.ask({"do": "eager", "calls": EAGER_CALLS}) / EAGER_CALLS
            runner.ask({"do": "costs"})
            said = {"first_call_s": row.first_call_s.get(name, 0.0), "eager_ms": eager_ms}
            try:
                row.costs[name] = Costs.model_validate_json(json.dumps(runner.report() | said))
            except ValidationError as error:
                raise Failed(name, Outcome.PROTOCOL) from error


def main() -> None:
    """The job that stands on standard input."""
    order = json.load(sys.stdin)
    if order["device"] == "cuda" and not torch.cuda.is_available():
        say("refused", {"reason": "the lane needs a CUDA device; there is none here"})
        return
    contract = Contract.model_validate_json(json.dumps(order["contract"]))
    tree = Path(order["trusted_tree"]).resolve()
    sys.meta_path.insert(0, TreeFinder(tree, order["roots"]))
    rows = [Row.of(contract, name) for name in order["rows"]]
    named = {row.call.reference for row in rows if row.is_small}
    references = {reference: load(reference, tree) for reference in named}
    timeout_s = order["call_timeout_s"]
    runners: dict[str, Runner] = {
        n: Runner(n, socket.socket(fileno=order["arms"][n]), timeout_s) for n in ARMS
    }
    runners["head"].keywords = order["keywords"]
    bench = Bench(
        rows,
        runners,
        order["device"],
        quads=order["quads"],
        references=references,
        show=say,
        edges=order["edges"],
    )
    before = bench.read() | ceilings(order["device"])
    machine = environment(order).model_copy(update={"before": before})
    say("environment", machine.model_dump(mode="json"))
    gc.disable()
    try:
        targets = sorted({row.call.target for row in rows})
        bench.run(targets, order["restarts"], order["start_timeout_s"])
    except Failed as error:
        for row in rows:
            row.fault = row.fault or str(error)
            say("row", row.evidence().model_dump(mode="json"))
    machine = machine.model_copy(update={"after": bench.read()})
    say("environment", machine.model_dump(mode="json"))
    say("end", {"stages": bench.stages})


if __name__ == "__main__":
    main()
