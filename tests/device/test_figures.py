"""What the limits see of the faults that kernels have, and that they leave honest ones alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod

import pytest
import torch

from bot.cells import Result
from bot.device.figures import compare
from bot.evidence import HUGE, Draw, OutputFigures
from bot.judge.limits import Limits, measures, standing
from bot.policy import Margins
from tests.device import emulation
from tests.device.emulation import Inputs, Tensor

MARGINS = Margins(rms=1.5, tile=4.0)
BUDGETS = {"o": 5e-3, "ht": 8e-3}


def result(name: str, shape: tuple[int, ...]) -> Result:
    tile = (1, 64, 1, 0) if name == "o" else (1, 1, 0, 0)
    dtype = "bf16" if name == "o" else "fp32"
    return Result(name, shape, dtype, tile, budget=BUDGETS[name])


def figures(name: str, true: Tensor, head: Tensor, base: Tensor) -> OutputFigures:
    return compare(result(name, tuple(true.shape)), true, head.double(), base.double())


def reds(found: OutputFigures, shape: tuple[int, ...]) -> set[str]:
    known = Limits({found.name: result(found.name, shape)}, {}, MARGINS)
    return {measure.name for measure in measures(found, known) if not measure.holds}


@cache
def case(slow: bool) -> tuple[Inputs, Tensor, Tensor]:
    given = emulation.draw(7, slow=slow)
    return given, emulation.truth(given)[0], emulation.kernel(given)[0]


def seen(slow: bool, change: Callable[[Inputs, Tensor], Tensor]) -> set[str]:
    given, true, base = case(slow)
    return reds(figures("o", true, change(given, base.clone()), base), tuple(true.shape))


def wrong_elements(share: float) -> Callable[[Inputs, Tensor], Tensor]:
    def change(_: Inputs, o: Tensor) -> Tensor:
        torch.manual_seed(11)
        flat = o.flatten()
        at = torch.randperm(flat.numel())[: max(1, round(share * flat.numel()))]
        flat[at] = flat[at.roll(1)] + flat.std()
        return flat.view(o.shape)

    return change


def last_token_zero(_: Inputs, o: Tensor) -> Tensor:
    o[:, -1, 3] = 0
    return o


def stale_tile(_: Inputs, o: Tensor) -> Tensor:
    o[:, 128:192, 3] = o[:, 64:128, 3]
    return o


FAULTS: dict[str, tuple[Callable[[Inputs, Tensor], Tensor], set[str]]] = {
    "mask-off-by-one": (lambda x, _: emulation.kernel(x, future=True)[0], {"tile", "row"}),
    "state-dropped": (lambda x, _: emulation.kernel(x, drop_state=True)[0], {"tile"}),
    "channel-undecayed": (lambda x, _: emulation.kernel(x, undecayed=True)[0], {"tile"}),
    "last-token-zero": (last_token_zero, {"tile", "row", "tail"}),
    "1e-5-wrong": (wrong_elements(1e-5), {"tail"}),
    "1e-3-wrong": (wrong_elements(1e-3), {"tail", "rms"}),
    "stale-tile": (stale_tile, {"tile", "row", "tail"}),
    "x1.003": (lambda _, o: o * 1.003, {"slope"}),
    "x1.01": (lambda _, o: o * 1.01, {"slope", "rms"}),
    "fp8-operands": (
        lambda x, _: emulation.kernel(x, operand=emulation.fp8)[0], {"budget", "tile", "rms"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_seen(name: str, slow: bool) -> None:
    change, by = FAULTS[name]
    assert by <= seen(slow, change)


def test_state_that_stagnates_in_bf16_is_seen() -> None:
    given = emulation.stagnant(3)
    true, base = emulation.truth(given)[1], emulation.kernel(given)[1]
    head = emulation.kernel(given, state=emulation.bf16)[1]
    assert {"tile", "rms"} <= reds(figures("ht", true, head, base), tuple(true.shape))


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_other_chunk_size_is_honest_both_ways(seed: int, slow: bool) -> None:
    given = emulation.draw(seed, slow=slow, T=192)
    true, one, other = (
        f(given) for f in (emulation.truth, emulation.kernel, lambda x: emulation.kernel(x, 32))
    )
    for i, name in enumerate(("o", "ht")):
        shape = tuple(true[i].shape)
        assert reds(figures(name, true[i], one[i], other[i]), shape) == set()
        assert reds(figures(name, true[i], other[i], one[i]), shape) == set()


def noisy(true: Tensor, size: float) -> Tensor:
    return true + size * torch.randn(true.shape, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def fault(found: OutputFigures, known: Limits) -> str | None:
    """Why one draw of one output is red, None if it is not."""
    over = standing([Draw(seed=0, secret=True, outputs=[found])], known)
    return over[1] if over else None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_always_fails(value: float) -> None:
    true = torch.randn(1, 70, 2, 8, dtype=torch.float64)
    base = noisy(true, 1e-3)
    head = base.clone()
    head[0, 66, 1, 3] = value
    for other in (base, head):  # also where the merge base gives the same
        found = figures("o", true, head, other)
        assert found.head.rms == found.worst_tile == found.worst_row == HUGE
        known = Limits({"o": result("o", tuple(true.shape))}, {}, MARGINS)
        assert fault(found, known) == "budget: o at [0, 66, 1, 3] is not finite"
    assert figures("o", true, base, head).worst_tile < 1


def test_worst_places_are_where_the_error_is() -> None:
    true = torch.randn(2, 70, 3, 8, dtype=torch.float64)
    base = noisy(true, 1e-3)
    head = noisy(true, 1e-3)
    head[1, 68, 2, 5] += 1
    found = figures("o", true, head, base)
    assert (found.worst_at, found.row_at) == ([1, 64, 2, 0], [1, 68, 2, 0])
    assert found.tail_at == [1, 68, 2, 5]
    assert found.elements == true.numel()
    assert found.head.max_abs == pytest.approx(1, abs=0.01)
    biased = figures("o", true, torch.cat((true[:, :, :1], 1.01 * true[:, :, 1:]), 2), base)
    assert biased.slope_at[2] in (1, 2)
    assert biased.head.slope == pytest.approx(0.01, rel=0.4)


def test_exact_base_asks_for_no_more_than_rounding() -> None:
    true = torch.randn(1, 64, 4, 32, dtype=torch.float64).float().double()
    shape = tuple(true.shape)
    rounded = true * (1 + 2.0**-24 * (2 * torch.rand(shape, dtype=torch.float64) - 1))
    fp32 = Result("o", shape, "fp32", (1, 16, 1, 0), budget=2e-7)
    known = Limits({"o": fp32}, {}, MARGINS)
    assert fault(compare(fp32, true, rounded, true), known) is None
    assert fault(compare(fp32, true, true, true), known) is None
    worse = compare(fp32, true, true + 1.5e-7 * torch.randn_like(true), true)
    assert fault(worse, known) is not None


def test_zero_truth_wants_zeros() -> None:
    true = torch.zeros(1, 4, 2, 8, dtype=torch.float64)
    assert figures("o", true, true, true).head.rms == 0
    some = true.clone()
    some[0, 1, 0, 0] = 1e-30
    found = figures("o", true, some, true)
    assert found.head.rms == found.head.tail == HUGE
    assert "budget" in reds(found, tuple(true.shape))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 1, 4), (), (1,), (5,), (2, 1), (1, 1, 1, 1)])
def test_small_shapes_have_figures(shape: tuple[int, ...]) -> None:
    true = torch.randn(shape, dtype=torch.float64)
    spec = Result("o", shape, "fp32", tuple(1 if i == 0 else 0 for i in range(len(shape))))
    found = compare(spec, true, noisy(true, 1e-6), noisy(true, 1e-6))
    assert found.elements == prod(shape)
    assert found.head.rms < 1


def test_few_numbers_give_no_false_alarm() -> None:
    """dA_log has one number a head: two equal kernels differ there by any factor."""
    for count in (1, 2, 4, 8, 32):
        spec = Result("dA_log", (count,), "fp32", (1,))
        known = Limits({"dA_log": spec}, {}, MARGINS)
        for _ in range(300):
            true = torch.randn(count, dtype=torch.float64)
            sides = (noisy(true, 1e-4), noisy(true, 1e-4))
            found = measures(compare(spec, true, *sides), known)
            assert [m for m in found if not m.holds and m.name != "budget"] == []


def test_far_below_the_budget_nothing_is_compared() -> None:
    """In fp32, honest kernels differ by ten times where decays are fast; the budget is above."""
    true = torch.randn(1, 64, 4, 32, dtype=torch.float64)
    spec = Result("o", tuple(true.shape), "fp32", (1, 16, 1, 0), budget=2e-5)
    known = Limits({"o": spec}, {}, MARGINS)

    def over(own: float, other: float) -> set[str]:
        found = compare(spec, true, noisy(true, own), noisy(true, other))
        return {m.name for m in measures(found, known) if not m.holds}

    assert over(2e-6, 1e-7) == set()
    assert "rms" in over(1.9e-5, 1e-7)
    assert over(1.2e-5, 9e-6) == set()
    assert over(3e-5, 9e-6) == {"budget", "rms"}


def test_one_dominant_token_makes_an_rms_of_few_numbers() -> None:
    true = torch.randn(1, 128, 2, 4, dtype=torch.float64)
    spec = Result("o", tuple(true.shape), "fp32", (1, 16, 1, 0), budget=1.0)
    even = compare(spec, true, noisy(true, 1e-3), noisy(true, 1e-3))
    assert 400 < even.effective <= even.elements == true.numel()
    true[:, 40] *= 1000
    assert compare(spec, true, noisy(true, 1e-3), noisy(true, 1e-3)).effective < 30
    # What head makes of it does not count.
    bad = noisy(true / 1000, 1e-3)
    bad[0, 3, 0, 0] += 100
    true[:, 40] /= 1000
    assert compare(spec, true, bad, noisy(true, 1e-3)).effective > 400


def test_a_tile_may_be_as_wrong_as_its_neighbours_were() -> None:
    """Not as those of another head, nor as those more than a chunk away."""
    true = torch.randn(1, 1024, 2, 8, dtype=torch.float64)
    base, head = (true + 1e-2 * torch.randn_like(true) for _ in range(2))
    base[:, 128:192, 0] += 0.1 * torch.randn(1, 64, 8, dtype=torch.float64)
    for start, one_head, most in ((192, 0, 4.0), (64, 0, 4.0), (128, 1, 99.0), (512, 0, 99.0)):
        moved = head.clone()
        moved[:, start : start + 64, one_head] += 0.1 * torch.randn(1, 64, 8, dtype=torch.float64)
        found = compare(Result("o", (1, 1024, 2, 8), "bf16", (1, 64, 1, 0)), true, moved, base)
        assert (found.worst_tile < 4) == (most < 5), (start, one_head, found.worst_tile)


def test_short_last_tile_has_its_own_allowance() -> None:
    """The last row alone is a tile of 8 numbers; the full tiles are held to the margin."""
    true = torch.randn(1, 65, 1, 8, dtype=torch.float64)
    base = noisy(true, 1e-2)
    full, short = base.clone(), base.clone()
    full[:, :64] = true[:, :64] + 8 * (base - true)[:, :64]
    short[:, 64:] = true[:, 64:] + 8 * (base - true)[:, 64:]
    assert figures("o", true, full, base).worst_tile > 3
    assert figures("o", true, short, base).worst_tile < 3
