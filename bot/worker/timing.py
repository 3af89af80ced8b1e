"""Timed calls in the worker: many slots, one graph, and costs that only this process can count.

Started once an arm, `python -I -m bot.worker.timing CHANNEL TREE ROOTS`. It imports torch and no
code under test, and forks a process for each restart: with memory, device context and placement of
its own, and without what an earlier one left behind. Compiled kernels stay in its caches, data
could too: each restart gets other content.

The device process owns clock, content and comparison. What is reported from here (whether a call
could be captured, events' times, counts of launches) is the word of the process under test.

Each call has its own inputs: the device's content, every tensor rolled by an offset of its own for
each slot. No call can then stand in for another: results of a recurrence over rolled inputs are no
roll of its results, and where they are (a pointwise op) rolling costs as much as computing. With
"go" come places of fresh values for each argument of each slot, so that nothing computed before it
is right, and each "go" runs each slot once.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bot.lanes.processes import (
    below,
    die_with_parent,
    kill_all,
    make_subreaper,
    make_undumpable,
)
from bot.model import Outcome
from bot.tree import TreeFinder
from bot.wire import ANSWERS, DONE, POISON, READY, TORCH_NAMES, receive
from bot.worker.calls import Refused, find_gradients, find_outputs
from bot.worker.patch import Patch
from bot.worker.targets import Function, functions

__all__ = ["main", "serve"]

DTYPES = {name: getattr(torch, word) for name, word in TORCH_NAMES.items()}
_LETTERS = {outcome: letter for letter, outcome in ANSWERS.items()}
_GROUPS = ("outputs", "written", "gradients")
WARM_CALLS = 2
SPIN_S = 0.003 if (os.cpu_count() or 1) >= 4 else 0.0
Spec = dict[str, Any]


def main(argv: Sequence[str]) -> None:
    """Fork a process for each channel that comes, when the one before it is gone."""
    orders = socket.socket(fileno=int(argv[0]))
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):
        import triton  # noqa: F401  # so that no restart pays for it
    make_subreaper(on=True)
    # This process ends what code under test left behind, which has the same user: no memory and no
    # socket of it are to be had.
    make_undumpable()
    while True:
        order, fds = receive(orders)
        # Ours, those of the process before included: they would run beside the next one.
        while left := below(os.getpid()):
            kill_all(left)
        if order["do"] == "stop":
            orders.sendall(READY)
            continue
        (fd,) = fds
        if os.fork() == 0:
            die_with_parent()
            make_undumpable(on=False)
            orders.close()
            with contextlib.suppress(EOFError), socket.socket(fileno=fd) as channel:
                serve(channel, Path(argv[1]).resolve(), argv[2].split(","))
            sys.stdout.flush()
            os._exit(0)
        os.close(fd)
        orders.sendall(READY)


def serve(channel: socket.socket, tree: Path, roots: Sequence[str]) -> None:
    """Import the code under test, then obey orders until the channel closes."""
    sys.meta_path.insert(0, TreeFinder(tree, roots))
    order, _ = receive(channel)
    known = functions(order, tree)
    channel.sendall(READY)
    obey(channel, known)


def obey(channel: socket.socket, functions: dict[str, Function]) -> None:
    """Answer each order with one byte."""
    bench = Bench(functions)
    while True:
        _await(channel)
        order, fds = receive(channel)
        payload = _payload(channel, order.get("payload", 0))
        try:
            answer = bench.obey(order, payload, fds[0] if fds else -1)
        except Refused as error:
            traceback.print_exc()
            answer = _LETTERS[error.outcome]
        except Exception:  # noqa: BLE001  # the tree under test may raise anything; the log has it
            traceback.print_exc()
            answer = _LETTERS[Outcome.RAISED]
        sys.stderr.flush()
        channel.sendall(answer)


def _await(channel: socket.socket) -> None:
    """Stay awake for a moment: orders that belong together come at once, and waking takes time."""
    end = time.perf_counter() + SPIN_S
    while time.perf_counter() < end:
        try:
            channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            continue
        return


def _payload(channel: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = channel.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return data


@dataclass(slots=True)
class Slots:
    """Memory of all calls: for each argument one tensor with a row a slot."""

    memory: dict[str, torch.Tensor]
    inputs: list[dict[str, torch.Tensor]]
    cotangents: list[list[torch.Tensor]]


@dataclass(slots=True)
class Row:
    """What is timed: the call, the file shared with the device process, slots and graph."""

    order: Spec
    shared: mmap.mmap
    slots: Slots
    graph: Any = None
    pad: Any = None
    fresh: list[torch.Tensor] | None = None
    patch: Patch | None = None
    results: list[list[torch.Tensor]] = field(default_factory=list)


class Bench:
    """Rows of one process, one at a time; content stays from row to row."""

    def __init__(self, functions: dict[str, Function]) -> None:
        self.functions = functions
        self.blobs: dict[str, torch.Tensor] = {}
        self.row: Row | None = None

    def obey(self, order: Spec, payload: bytearray, fd: int) -> bytes:
        """Do one thing and say how it ended."""
        if order["do"] in ("go", "null"):
            return self._timed(order["do"] == "go", payload)
        if order["do"] == "blob":
            self._blob(order, fd)
        elif order["do"] == "row":
            self._start(order, fd)
        elif order["do"] == "capture":
            self._capture(order)
        elif order["do"] == "eager":
            self._eager(order["calls"])
        elif order["do"] == "audit":
            self._audit(order)
        elif order["do"] == "costs":
            self._costs()
        elif order["do"] == "drop":
            self.row = None
            _tidy()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
        else:
            raise Refused(Outcome.PROTOCOL, f"unknown order {order['do']!r}")
        return _LETTERS[Outcome.RAN]

    def _blob(self, order: Spec, fd: int) -> None:
        """Content of one tensor, in a file that nobody can write any more."""
        with mmap.mmap(fd, order["size"], prot=mmap.PROT_READ) as memory:
            os.close(fd)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the buffer is not writable
                flat = torch.frombuffer(memory, dtype=DTYPES[order["dtype"]])
            flat = flat[: order["count"]]
            self.blobs[order["id"]] = flat.to(order["device"], copy=True)
            del flat

    def _start(self, order: Spec, fd: int) -> None:
        """The first call of a row, in one slot, with the content as it came."""
        self.row = None
        _tidy()
        shared = mmap.mmap(fd, order["size"])
        os.close(fd)
        unrolled = [[0] * (len(order["tensors"]) + len(order["cotangents"]))]
        self.row = Row(order, shared, self._slots(order, unrolled))
        self._call(self.row, 0)
        _synchronize(order)

    def _slots(self, order: Spec, rolls: list[list[int]]) -> Slots:
        """Fresh memory for as many calls as there are lists of offsets."""
        specs = [*order["tensors"], *order["cotangents"]]
        memory, shared = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
        for place, spec in enumerate(specs):
            blob = self.blobs[spec["blob"]]
            if spec["constant"] or spec["host"]:
                shared[spec["key"]] = blob.cpu() if spec["host"] else blob.clone()
                continue
            rows = torch.empty((len(rolls), spec["storage"]), dtype=blob.dtype, device=blob.device)
            for row, offsets in zip(rows, rolls, strict=True):
                by = offsets[place]
                row[by:] = blob[: blob.numel() - by]
                row[:by] = blob[blob.numel() - by :]
            memory[spec["key"]] = rows

        def tensor(spec: Spec, slot: int) -> torch.Tensor:
            flat = memory[spec["key"]][slot] if spec["key"] in memory else shared[spec["key"]]
            view = flat.as_strided(spec["shape"], spec["strides"]).detach()
            return view.requires_grad_() if spec["requires_grad"] else view

        # An argument that is constant between calls is one object.
        once = {s["key"]: tensor(s, 0) for s in specs if s["key"] in shared}
        calls = range(len(rolls))
        inputs = [
            {s["name"]: once.get(s["key"], tensor(s, slot)) for s in order["tensors"]}
            for slot in calls
        ]
        return Slots(memory, inputs, [[tensor(s, i) for s in order["cotangents"]] for i in calls])

    def _call(self, row: Row, slot: int) -> list[torch.Tensor]:
        """One call; its results in the order of outputs, written arguments, gradients."""
        order, inputs = row.order, row.slots.inputs[slot]
        function = self.functions[order["target"]]
        with torch.inference_mode(order["inference"]):
            values = find_outputs(function(**inputs, **order["plain"]), order["outputs"], inputs)
            found = find_gradients(values, row.slots.cotangents[slot], inputs, order["gradients"])
        written = [inputs[spec["name"]] for spec in order["written"]]
        return [value.detach() for value in (*values, *written, *found)]

    def _capture(self, order: Spec) -> None:
        """Make all slots and, unless told otherwise, one graph of a call in each."""
        row = self._row()
        row.graph, row.results = None, []
        row.fresh = row.patch = None
        row.slots, row.pad = Slots({}, [], []), None
        _tidy()
        if order["pad"]:
            row.pad = torch.empty(order["pad"], dtype=torch.uint8, device=row.order["device"])
        row.slots = self._slots(row.order, order["rolls"])
        row.patch = self._patch(row)
        why = self._record(row) if order["graph"] else "not asked for"
        if row.graph is None:
            self._warm(row)
        # What warming up wrote must not be seen.
        fresh = self._slots(row.order, order["rolls"][:1])
        for name, rows in row.slots.memory.items():
            rows[0].copy_(fresh.memory[name][0])
        self._check_overlap(row)
        self._poison(row)
        _synchronize(row.order)
        self._report({"graph": row.graph is not None, "why": why})

    def _patch(self, row: Row) -> Patch:
        order = row.order
        specs = {spec["key"]: spec for spec in (*order["tensors"], *order["cotangents"])}
        sources = {part["key"]: self.blobs[specs[part["key"]]["blob"]] for part in order["patch"]}
        slots = len(row.slots.inputs)
        return Patch(order["patch"], row.slots.memory, sources, slots, order["device"])

    def _warm(self, row: Row) -> None:
        for _ in range(WARM_CALLS):
            self._call(row, 0)
        _synchronize(row.order)

    def _record(self, row: Row) -> str:
        """Capture; a sentence where that cannot be done."""
        if row.order["device"] == "cpu":
            return "no graphs on this device"
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._warm(row)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                row.results = [self._call(row, slot) for slot in range(len(row.slots.inputs))]
        except Exception as error:  # noqa: BLE001  # whatever stops a capture makes an eager row
            traceback.print_exc()
            row.results = []
            _tidy()
            torch.cuda.synchronize()
            return f"{type(error).__name__}: {error}".split("\n")[0][:300]
        row.graph = graph
        return ""

    def _check_overlap(self, row: Row) -> None:
        """Results of two calls in one memory: one of them was not computed, or is lost."""
        taken = set[int]()
        written = len(row.order["written"])
        first = sum("offset" in spec for spec in row.order["outputs"])
        for results in row.results:
            fresh = [*results[:first], *results[first + written :]]
            own = {t.untyped_storage().data_ptr() for t in fresh if t.numel()}
            if own & taken:
                raise Refused(Outcome.ALIAS, "results of two calls lie in the same memory")
            taken |= own

    def _poison(self, row: Row) -> None:
        """Refill every result that is not also an argument: what is not computed again shows."""
        if row.fresh is None:
            row.fresh = list(self._fresh(row))
        for whole in row.fresh:
            whole.fill_(POISON)
        if row.graph is None:
            row.results, row.fresh = [], None  # the next calls get this memory again

    def _fresh(self, row: Row) -> Iterator[torch.Tensor]:
        """The whole memory of each result, as bytes."""
        known = {
            t.untyped_storage().data_ptr()
            for inputs, directions in zip(row.slots.inputs, row.slots.cotangents, strict=True)
            for t in (*inputs.values(), *directions)
        }
        for result in (result for results in row.results for result in results):
            storage = result.untyped_storage()
            if result.numel() and storage.data_ptr() not in known:
                known.add(storage.data_ptr())
                whole = torch.empty(0, dtype=torch.uint8, device=result.device)
                yield whole.set_(storage)

    def _timed(self, is_call: bool, payload: bytearray) -> bytes:  # noqa: FBT001  # hot path
        """The timed part, between "go" and the answer."""
        row = self._row()
        assert row.patch is not None  # what is timed was captured before
        row.patch(payload)
        if row.order["device"] == "cpu":
            if is_call:
                self._calls(row)
            return DONE
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        if is_call and row.graph is not None:
            row.graph.replay()
        elif is_call:
            self._calls(row)
        end.record()
        torch.cuda.synchronize()
        self._report({"inner_ms": start.elapsed_time(end)})
        return DONE

    def _calls(self, row: Row) -> None:
        row.results = [self._call(row, slot) for slot in range(len(row.slots.inputs))]

    def _eager(self, calls: int) -> None:
        row = self._row()
        for i in range(calls):
            self._call(row, i % len(row.slots.inputs))
        _synchronize(row.order)

    def _audit(self, order: Spec) -> None:
        """Hand over parts of all results of all slots, more of one slot, then poison all."""
        row = self._row()
        offset = order["offset"]
        for place, places in enumerate(order["places"]):
            index = torch.tensor(places, dtype=torch.int64, device=row.order["device"])
            chosen = [row.results[i][place].reshape(-1)[index] for i in range(order["slots"])]
            offset = _hand_over(row, torch.cat(chosen), offset)
        if order["ranges"]:
            for result, (start, count) in zip(
                row.results[order["slot"]], order["ranges"], strict=True
            ):
                offset = _hand_over(row, result.reshape(-1)[start : start + count], offset)
        self._poison(row)
        _synchronize(row.order)

    def _row(self) -> Row:
        if self.row is None:
            raise Refused(Outcome.PROTOCOL, "no row is loaded")
        return self.row

    def _report(self, message: Spec) -> None:
        """Text at the beginning of the shared file, ended by a zero byte."""
        row = self._row()
        text = json.dumps(message).encode()[: row.order["report"] - 1]
        row.shared[: len(text) + 1] = text + b"\0"

    def _costs(self) -> None:
        """What one eager call costs besides time, its index tensors being new objects."""
        row = self._row()
        if row.order["device"] == "cpu":
            self._report({})
            return
        self._warm(row)
        self._refresh(row)
        torch.cuda.reset_peak_memory_stats()
        before, held = torch.cuda.memory_stats(), torch.cuda.memory_allocated()
        with _waits() as waits:
            kept = self._call(row, 0)
        after = torch.cuda.memory_stats()
        peak = torch.cuda.max_memory_allocated() - held
        del kept
        launches, syncs = self._launches(row)
        key = "allocation.all.allocated"
        self._report(
            {
                "launches": launches,
                "syncs": max(syncs, len(waits)),
                "allocations": after[key] - before[key],
                "peak_bytes": max(0, peak),
                **_tuned(self.functions[row.order["target"]]),
            }
        )

    def _refresh(self, row: Row) -> None:
        """New objects for what is constant between calls: nothing cached by identity serves."""
        for spec in row.order["tensors"]:
            if spec["constant"]:
                row.slots.inputs[0][spec["name"]] = row.slots.inputs[0][spec["name"]].clone()

    def _launches(self, row: Row) -> tuple[int, int]:
        """Launches and waits of one call, as the profiler sees them."""
        from torch.profiler import ProfilerActivity, profile, record_function

        self._refresh(row)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            with record_function("fla-bot-call"):
                self._call(row, 0)
            torch.cuda.synchronize()
        events = list(found.events())
        spans = [e.time_range for e in events if e.name == "fla-bot-call" and not _on_device(e)]
        span = spans[0]
        names = [
            event.name
            for event in events
            if span.start <= event.time_range.start <= span.end and not _on_device(event)
        ]
        launches = sum(name.startswith(_LAUNCHES) for name in names)
        return launches, sum(name.startswith(_WAITS) for name in names)


_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperative", "cudaGraphLaunch")
_WAITS = (
    *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
    *("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize"),
)


def _on_device(event: Any) -> bool:
    return "cuda" in str(getattr(event, "device_type", "")).lower()


@contextlib.contextmanager
def _waits() -> Iterator[list[str]]:
    """The calls that make the host wait for the device, as torch warns of them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found: list[str] = []
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found += [str(w.message) for w in caught if "called a synchronizing" in str(w.message)]


def _tuned(function: Function) -> Spec:
    """Autotuners of the packages under test: how many configurations each has, and its choice."""
    root = str(getattr(function, "__module__", "")).partition(".")[0]
    numbers, chosen = dict[str, int](), dict[str, str]()
    for name, module in list(sys.modules.items()):
        if not root or name.partition(".")[0] != root:
            continue
        for key, value in list(vars(module).items()):
            while value is not None and not hasattr(value, "configs"):
                value = vars(value).get("fn") if hasattr(value, "__dict__") else None
            if isinstance(getattr(value, "configs", None), list) and hasattr(value, "cache"):
                numbers[key] = len(value.configs)
                picked = sorted({str(config) for config in value.cache.values()})
                chosen[key] = "; ".join(picked)[:400]
    return {"configurations": numbers, "chosen": {k: v for k, v in chosen.items() if v}}


def _hand_over(row: Row, part: torch.Tensor, offset: int) -> int:
    """Into the shared file; where the next part goes."""
    count, size = int(part.numel()), int(part.element_size())
    if count:
        flat = torch.frombuffer(row.shared, dtype=part.dtype, count=count, offset=offset)
        flat.copy_(part)
    return (offset + count * size + 63) // 64 * 64


def _synchronize(order: Spec) -> None:
    if order["device"] != "cpu":
        torch.cuda.synchronize()


def _tidy() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    with contextlib.suppress(EOFError):
        main(sys.argv[1:])
