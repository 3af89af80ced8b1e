"""What one call is made with and what is read of it: guard bands, calls between, parts."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = triton.language

from bot.cells import Call, Result, TensorArg, row_major  # noqa: E402
from bot.device.arm import Arena  # noqa: E402
from bot.device.trial import REPEATS, Part, Trial  # noqa: E402
from bot.model import Outcome  # noqa: E402
from bot.worker.calls import SMALL, PoisonedAllocations, Refused, perform  # noqa: E402

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter"
)


@triton.jit
def count_kernel(out, size, SIZE: tl.constexpr):
    o = tl.arange(0, SIZE)
    tl.store(out + o, o.to(tl.float32), mask=o < size)


@interpreted
@pytest.mark.parametrize("allocate", [torch.empty, torch.zeros])
@pytest.mark.parametrize("size", [13, 14])
def test_store_past_the_end_is_seen_through_the_interpreter(
    allocate: Callable[..., Any], size: int
) -> None:
    with PoisonedAllocations() as allocations:
        out = allocate(13)
        count_kernel[(1,)](out, size, SIZE=16)
        count_kernel[(1,)](out, 1, SIZE=16)  # a later launch takes nothing back
        assert torch.equal(out, torch.arange(13.0))
        assert allocations.blocks
        if size == 13:
            allocations.check()
            return
        with pytest.raises(Refused, match="next to a tensor") as refused:
            allocations.check()
    assert refused.value.outcome is Outcome.GUARD


def grow(tensor: Any) -> None:
    tensor.resize_(99).fill_(1)


def grow_far(tensor: Any) -> None:
    tensor.resize_(99_999).fill_(1)


def set_elsewhere(tensor: Any) -> None:
    tensor.set_(torch.ones(99)).fill_(1)


def give_back(tensor: Any) -> None:
    tensor.untyped_storage().resize_(0)


CHANGES = [grow, grow_far, set_elsewhere]


@pytest.mark.parametrize("change", [*CHANGES, give_back])
def test_tensor_may_be_given_other_memory(change: Callable[[Any], None]) -> None:
    with PoisonedAllocations() as allocations:
        change(torch.empty(13))
        allocations.check()


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_written_before_that_stays_seen(change: Callable[[Any], None]) -> None:
    with PoisonedAllocations() as allocations:
        tensor = torch.empty(13)
        tensor.as_strided((1,), (1,), tensor.storage_offset() + 13).fill_(1)
        change(tensor)
        with pytest.raises(Refused):
            allocations.check()


def test_zeros_are_zeros_and_out_is_what_was_given() -> None:
    with PoisonedAllocations():
        assert not torch.zeros(3, 4, dtype=torch.int64).any()
        out = torch.empty(3)
        assert torch.zeros(3, out=out) is out


NAMES = ("x", "z")


def plan(seed: int = 3, size: int = 4) -> Call:
    """y, w of x, z: all float32, all of one shape."""
    shape = (2, 3, size)
    tensors = tuple(
        TensorArg(
            name=name, shape=shape, strides=row_major(shape), storage=6 * size, dtype="fp32",
            family="normal", content=None, requires_grad=True, constant=False, written=False,
            host=False, seed=seed + number,
        )
        for number, name in enumerate(NAMES)
    )  # fmt: skip
    results = {name: Result(name, shape, "fp32", (0, 0, 0)) for name in ("y", "w", "dx", "dz")}
    return Call(
        cell="c", target="t", reference="r", dtype="fp32", tensors=tensors, plain={},
        outputs=(results["y"], results["w"]), written=(), gradients=(results["dx"], results["dz"]),
        inference=False, seed=seed,
    )  # fmt: skip


def reference(x: Any, z: Any) -> Any:
    return x * z, x * x


class Pair(torch.autograd.Function):
    """The same by hand, with room for mistakes."""

    buffers: dict[str, Any] | None = None
    shared: str = ""
    fault: str = ""

    @classmethod
    def place(cls, name: str, value: Any) -> Any:
        """A result, in memory of its own or in the one that all calls share."""
        if cls.shared != name:
            return value
        assert cls.buffers is not None
        known = cls.buffers.setdefault(name, torch.empty_like(value))
        return known.copy_(value).detach()

    @staticmethod
    def forward(ctx: Any, x: Any, z: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.x, ctx.z = Pair.place("saved", x.detach().clone()), z.detach()
        return Pair.place("y", x * z), x * x

    @staticmethod
    def backward(ctx: Any, dy: Any, dw: Any) -> Any:
        if Pair.fault == "nothing-without-dy" and dy is None:
            return None, None
        if Pair.fault == "forgets-z" and not ctx.needs_input_grad[1]:
            ctx.z = torch.ones_like(ctx.z)
        dx = 0 if dy is None else dy * ctx.z
        dz = None if dy is None else dy * ctx.x
        return Pair.place("dx", dx if dw is None else dx + 2 * dw * ctx.x), dz


def ends(seed: int = 3, size: int = 4) -> Outcome:
    """How the calls of one draw end."""
    trial = Trial(plan(seed, size), reference, "cpu", partial=True)

    def go(memory: Arena) -> Outcome:
        perform(lambda **given: Pair.apply(given["x"], given["z"]), memory.order, memory.memory)
        return Outcome.RAN

    outcome, found = trial.run(go, REPEATS)
    assert set(found) in ({"y", "w", "dx", "dz"}, set())
    return outcome


@pytest.mark.parametrize("shared", ["", "y", "saved", "dx"])
def test_memory_that_calls_share_is_seen(monkeypatch: pytest.MonkeyPatch, shared: str) -> None:
    monkeypatch.setattr(Pair, "buffers", {})
    monkeypatch.setattr(Pair, "shared", shared)
    assert ends() is (Outcome.REPEAT if shared else Outcome.RAN)


def test_long_calls_do_without_another_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    backward, counts = Pair.backward, list[int]()
    monkeypatch.setattr(Pair, "backward", lambda *given: counts.append(1) or backward(*given))
    for size, due in ((SMALL // 12, 4), (SMALL // 12 + 1, 3)):
        counts.clear()
        assert ends(size=size) is Outcome.RAN
        assert len(counts) == due


@pytest.mark.parametrize("fault", ["", "nothing-without-dy", "forgets-z"])
def test_part_of_what_may_be_asked_for_is_right_too(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(Pair, "fault", fault)
    found = {ends(seed) for seed in range(20)}
    assert found == ({Outcome.RAN, Outcome.PARTIAL} if fault else {Outcome.RAN})


def test_part_follows_from_the_seed_and_leaves_something() -> None:
    parts = [Part.of(plan(seed)) for seed in range(20)]
    assert parts == [Part.of(plan(seed)) for seed in range(20)]
    assert {(*part.unseeded, *part.frozen) for part in parts} == {
        (output, gradient) for output in ("y", "w") for gradient in ("dx", "dz")
    }
    assert not Trial(plan(), reference, "cpu").part


def test_what_is_frozen_in_a_part_needs_gradients_again() -> None:
    trial = Trial(plan(), reference, "cpu", partial=True)
    seen: list[list[bool]] = []

    def go(memory: Arena) -> Outcome:
        def call(x: Any, z: Any) -> Any:
            seen.append([x.requires_grad, z.requires_grad])
            return reference(x, z)

        perform(call, memory.order, memory.memory)
        return Outcome.RAN

    for _ in range(2):
        assert trial.run(go, REPEATS)[0] is Outcome.RAN
    assert [all(flags) for flags in seen] == 2 * [True, True, True, False]
