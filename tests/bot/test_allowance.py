"""What chance alone may do to the quotient of two errors."""

from __future__ import annotations

import math
import random

import pytest

from bot.statistics import CHANCE, allowance, f_quantile

# Upper quantiles as printed tables have them.
TABLE = [
    (0.05, 1, 1, 161.4476),
    (0.05, 2, 2, 19.0),
    (0.05, 5, 10, 3.3258),
    (0.05, 10, 5, 4.7351),
    (0.01, 10, 10, 4.8491),
    (0.025, 1, 10, 6.9367),
    (0.001, 4, 4, 53.4358),
    (0.05, 120, 120, 1.3519),
    (0.01, 60, 60, 1.8363),
]


@pytest.mark.parametrize(("tail", "first", "second", "value"), TABLE)
def test_quantiles_are_those_of_the_tables(
    tail: float, first: int, second: int, value: float
) -> None:
    assert f_quantile(tail, first, second) == pytest.approx(value, abs=5.1e-5)


@pytest.mark.parametrize("tail", [0.5, 1e-2, 1e-5, 1e-9])
def test_closed_forms(tail: float) -> None:
    # P(F > f) is 1 / (1 + f) for (2, 2), and F of (1, 1) is the square of a Cauchy number.
    assert f_quantile(tail, 2, 2) == pytest.approx(1 / tail - 1, rel=1e-9)
    cauchy = 1 / math.tan(math.pi * tail / 2)
    assert f_quantile(tail, 1, 1) == pytest.approx(cauchy**2, rel=1e-7)


def test_arguments_are_checked() -> None:
    for arguments in ((0, 1, 1), (1, 1, 1), (0.1, 0, 1), (0.1, 1, -1)):
        with pytest.raises(ValueError, match="tail"):
            f_quantile(*arguments)


def test_allowance_falls_to_one() -> None:
    counts = [1, 2, 3, 4, 8, 16, 32, 64, 512, 4096, 1 << 15, 1 << 17]
    values = [allowance(count) for count in counts]
    assert values == sorted(values, reverse=True)
    assert allowance(0) == allowance(1)
    assert allowance(4) == pytest.approx(math.sqrt(f_quantile(CHANCE, 4, 4)))
    assert 1.2 < allowance(512) < 1.25
    assert 1 < allowance(1 << 17) == allowance(1 << 30) < 1.02


@pytest.mark.parametrize("count", [2, 4, 8, 32])
def test_equal_errors_stay_below_it(count: int) -> None:
    """At a chance of 1e-5 each, 20 000 pairs of equally large errors exceed it hardly ever."""
    numbers = random.Random(count)
    most = allowance(count)

    def rms() -> float:
        return math.sqrt(sum(numbers.gauss(0, 1) ** 2 for _ in range(count)))

    assert sum(rms() > most * rms() for _ in range(20_000)) <= 2
