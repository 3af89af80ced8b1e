"""Quantiles against published tables, intervals against their definition."""

from __future__ import annotations

import math
import random

import pytest

from bot.statistics import beta_cdf, interval, log_ratio, t_quantile


@pytest.mark.parametrize(
    ("share", "freedom", "due"),
    [
        (0.975, 1, 12.7062), (0.975, 2, 4.3027), (0.975, 4, 2.7764), (0.975, 30, 2.0423),
        (0.95, 4, 2.1318), (0.995, 9, 3.2498), (0.9995, 3, 12.9240),
    ],
)  # fmt: skip
def test_t_quantile_is_that_of_the_tables(share: float, freedom: int, due: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(due, abs=6e-5 * due)
    assert t_quantile(1 - share, freedom) == pytest.approx(-due, abs=6e-5 * due)


def test_t_quantile_goes_to_the_normal_one() -> None:
    assert t_quantile(0.975, 1e6) == pytest.approx(1.959964, abs=1e-5)


@pytest.mark.parametrize(("share", "freedom"), [(0.0, 3), (1.0, 3), (0.5, 0), (math.nan, 3)])
def test_quantile_of_nonsense_is_refused(share: float, freedom: float) -> None:
    with pytest.raises(ValueError, match="needed"):
        t_quantile(share, freedom)


def test_beta_cdf_in_closed_form() -> None:
    for x in (0.0, 0.01, 0.3, 0.77, 1.0):
        assert beta_cdf(x, 1, 1) == pytest.approx(x, abs=1e-14)
        assert beta_cdf(x, 3, 1) == pytest.approx(x**3, abs=1e-14)
        assert beta_cdf(x, 0.5, 0.5) == pytest.approx(2 / math.pi * math.asin(x**0.5), abs=1e-13)


def test_interval_of_known_values() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2
    assert found.half == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert interval([5.0]).half == math.inf
    assert interval([5.0, 5.0]).half == 0
    with pytest.raises(ValueError, match="no values"):
        interval([])


def test_interval_covers_as_often_as_it_says() -> None:
    rng = random.Random(1)
    found = [interval([rng.gauss(0, 1) for _ in range(5)]) for _ in range(4000)]
    assert sum(abs(one.mean) <= one.half for one in found) / 4000 == pytest.approx(0.95, abs=0.015)


def test_log_ratio_cancels_linear_drift() -> None:
    # ABBA: base at times 0 and 3, head at 1 and 2, everything gets slower by 1 a step.
    base, head = [], []
    for quad in range(5):
        start = 1000 + 4 * quad
        base += [start, start + 3]
        head += [start + 1, start + 2]
    assert log_ratio(base, head) == pytest.approx(0, abs=2e-6)
    assert log_ratio(base, [1.03 * t for t in head]) == pytest.approx(math.log(1.03), abs=2e-6)


def test_half_a_quad_is_left_out() -> None:
    assert log_ratio([1, 1, 1], [2, 2, 99]) == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="quad"):
        log_ratio([1], [1])
