"""Workers that end, hang or talk, and the memory that calls are made in."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
import torch

from bot.cells import Call, Result, TensorArg, row_major
from bot.device.arm import Arm, arena
from bot.device.trial import REPEATS, Trial
from bot.model import Outcome
from bot.wire import READY, receive

Serve = Callable[[socket.socket], None]


def plan(shape: tuple[int, ...] = (2, 3, 4), *, backward: bool = True) -> Call:
    x = TensorArg(
        name="x", shape=shape, strides=row_major(shape), storage=torch.Size(shape).numel(),
        dtype="fp32", family="normal", content=None, requires_grad=backward, constant=False,
        written=False, host=False, seed=1,
    )  # fmt: skip
    y = Result("y", shape, "fp32", (0,) * len(shape))
    return Call(
        cell="c", target="t", reference="r", dtype="fp32", tensors=(x,), plain={}, outputs=(y,),
        written=(), gradients=(Result("dx", shape, "fp32", (0,) * len(shape)),) if backward else (),
        inference=False, seed=3,
    )  # fmt: skip


def serve(*answers: bytes | None) -> Serve:
    """A worker that imports and answers calls with these bytes; None: it ends without one."""

    def work(channel: socket.socket) -> None:
        with channel:
            receive(channel)
            channel.sendall(READY)
            for answer in answers:
                _, (fd,) = receive(channel)
                os.close(fd)
                if answer is None:
                    return
                channel.sendall(answer)
            channel.recv(1)

    return work


class Workers:
    """Hands out sockets, each with a worker behind it."""

    def __init__(self, *kinds: Serve) -> None:
        self.kinds, self.asked = list(kinds), 0

    def next(self) -> int | None:
        self.asked += 1
        if not self.kinds:
            return None
        ours, theirs = socket.socketpair()
        threading.Thread(target=self.kinds.pop(0), args=(theirs,), daemon=True).start()
        return ours.detach()


@pytest.fixture
def call() -> Iterator[Callable[[Arm], Outcome]]:
    memory = arena(plan(), "cpu")
    with closing(memory):
        yield lambda arm: arm.run(memory)


@pytest.fixture
def started() -> Iterator[Callable[..., Arm]]:
    with ExitStack() as stack:

        def start(workers: Workers, timeout_s: float = 20) -> Arm:
            fd = workers.next()
            assert fd is not None
            arm = Arm(fd, timeout_s, workers.next)
            stack.callback(arm.close)
            arm.start(["t"], 20)
            return arm

        yield start


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ((None,), Outcome.WORKER_DIED),
        ((b"RR",), Outcome.PROTOCOL),
        ((b"?", b"R"), Outcome.PROTOCOL),
        ((b"X", b"R"), Outcome.RAISED),
    ],
)
def test_next_call_is_served_again(
    answers: tuple[bytes | None, ...],
    outcome: Outcome,
    started: Callable[..., Arm],
    call: Callable[[Arm], Outcome],
) -> None:
    workers = Workers(serve(*answers), serve(b"R"))
    arm = started(workers)
    assert call(arm) is outcome
    assert call(arm) is Outcome.RAN
    assert workers.asked == (2 if len(answers) == 1 else 1)


def test_worker_that_hangs_costs_its_call(
    started: Callable[..., Arm], call: Callable[[Arm], Outcome]
) -> None:
    def hang(channel: socket.socket) -> None:
        with channel:
            receive(channel)
            channel.sendall(READY)
            _, (fd,) = receive(channel)
            os.close(fd)
            channel.recv(1)  # until the arm lets go

    workers = Workers(hang, serve(b"R"))
    arm = started(workers, 0.2)
    assert [call(arm), call(arm)] == [Outcome.TIMEOUT, Outcome.RAN]


def test_without_fresh_workers_nothing_runs_again(
    started: Callable[..., Arm], call: Callable[[Arm], Outcome]
) -> None:
    workers = Workers(serve(None))
    arm = started(workers)
    assert [call(arm) for _ in range(4)] == [Outcome.WORKER_DIED] * 4
    assert workers.asked == 2  # the host said no; it is not asked for every cell


def test_worker_that_cannot_import_is_not_replaced(
    started: Callable[..., Arm], call: Callable[[Arm], Outcome]
) -> None:
    workers = Workers(lambda channel: channel.close(), serve(b"R"))
    arm = started(workers)
    assert call(arm) is Outcome.WORKER_DIED
    assert workers.asked == 1


SHAPES = [(2, 3, 4), (5,), (2, 1), (1, 1, 1), (3, 0, 2), ()]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("expanded", [False, True])
def test_layouts_of_cotangents_hold_the_same_values(shape: tuple[int, ...], expanded: bool) -> None:
    trial = Trial(plan(shape), lambda x: 2 * x, "cpu", expanded=expanded)
    seeds = ("expanded", *REPEATS) if expanded else REPEATS
    seen: list[torch.Tensor] = []

    def perform(memory: object) -> Outcome:
        for repeat in memory.order["repeats"]:  # type: ignore[attr-defined]
            for spec in repeat["cotangents"]:
                flat = memory.flat(spec, spec["storage"])  # type: ignore[attr-defined]
                seen.append(flat.as_strided(spec["shape"], spec["strides"]).clone())
            for slot, value in ((repeat["outputs"][0], 2.0), (repeat["gradients"][0], 3.0)):
                memory.flat(slot, slot["storage"]).fill_(value)  # type: ignore[attr-defined]
        return Outcome.RAN

    outcome, results = trial.run(perform, seeds)
    assert outcome is Outcome.RAN
    assert set(results) == {"y", "dx"}
    assert len(seen) == len(seeds)
    assert all(torch.equal(one, trial.directions[0]) for one in seen)
    strides = [
        next(spec["strides"] for spec in repeat["cotangents"])
        for repeat in arena(trial.plan, "cpu", seeds).order["repeats"]
    ]
    if shape == (2, 3, 4):
        assert len(set(map(tuple, strides))) == len(seeds)
        assert ((4, 0, 1) in map(tuple, strides)) == expanded
    if expanded and len(shape) > 1 and shape[1]:
        assert torch.equal(trial.directions[0], trial.directions[0][:, :1].expand(shape))


def test_other_bits_are_a_fault_or_a_measured_spread() -> None:
    def perform(memory: object) -> Outcome:
        for number, repeat in enumerate(memory.order["repeats"]):  # type: ignore[attr-defined]
            for slot in (*repeat["outputs"], *repeat["gradients"]):
                memory.flat(slot, slot["storage"]).fill_(1 + number * 2.0**-10)  # type: ignore[attr-defined]
        return Outcome.RAN

    strict = Trial(plan(), lambda x: 2 * x, "cpu")
    assert strict.run(perform, REPEATS)[0] is Outcome.REPEAT
    loose = Trial(plan(), lambda x: 2 * x, "cpu", exact=False)
    assert loose.run(perform, REPEATS)[0] is Outcome.RAN
    assert loose.spread == {"y": 2.0**-9, "dx": 2.0**-9}
    assert strict.run(perform)[0] is Outcome.RAN


def test_truth_and_stand_in_are_of_the_drawn_inputs() -> None:
    trial = Trial(plan(), lambda x: x * x, "cpu")
    x = trial.inputs["x"].view(2, 3, 4).double()
    assert torch.equal(trial.truth["y"], x * x)
    assert torch.equal(trial.truth["dx"], 2 * x * trial.directions[0].double())
    assert trial.stand_in()["y"].dtype == torch.float64
    assert torch.equal(trial.stand_in()["y"].float(), (x * x).float())
