"""Quantiles and intervals of small samples; nothing but the standard library."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

__all__ = [
    "FEWEST", "MOST", "UNIFORM", "Interval", "Side", "allowance", "beta_cdf", "decisive",
    "f_quantile", "interval", "log_ratio", "settled", "side", "t_quantile",
]  # fmt: skip

# Restarts after which a row may be settled, and after which nothing more is measured.
FEWEST, MOST = 3, 5
Side = Literal["within", "beyond", "open"]

# How often the scatter of two errors of equal size may exceed its allowance.
CHANCE = 1e-5
# From here on chance adds less than two hundredths.
MANY = 1 << 17
# The rms of a rounding error that may be anywhere within half a step, relative to that half.
UNIFORM = 1 / math.sqrt(3)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the half width of its confidence interval, infinite where one value stands."""

    mean: float
    half: float
    count: int


def interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """The two-sided t-interval of the mean of independent values."""
    count = len(values)
    if not count:
        raise ValueError("no values")
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, math.inf, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    quantile = t_quantile((1 + level) / 2, count - 1)
    return Interval(mean, quantile * math.sqrt(variance / count), count)


def decisive(values: Sequence[float]) -> Interval:
    """The interval that decides after so many restarts.

    Who looks more often errs more often. With these levels a head exactly at the edge is proved to
    be within it in 2.7% of runs, as with one look at 95% (benchmarks/bench_looks.py); looks after
    the last are those of later runs.
    """
    return interval(values, 0.96 if len(values) == MOST else 0.98)


def side(found: Interval, edge: float) -> Side:
    """Whether a log ratio is proved to be within an edge, or beyond it and above zero."""
    if found.mean + found.half < edge:
        return "within"
    return "beyond" if found.mean - found.half > 0 and found.mean >= edge else "open"


def log_ratio(base: Sequence[float], head: Sequence[float]) -> float:
    """Mean of log head/base over ABBA quads: two blocks of each arm, in order, are one quad.

    Drift that is linear in time cancels within a quad.
    """
    quads = min(len(base), len(head)) // 2
    if not quads:
        raise ValueError("no complete quad")
    logs = [math.log(h / b) for b, h in zip(base[: 2 * quads], head[: 2 * quads], strict=True)]
    return math.fsum(logs) / len(logs)


@lru_cache(maxsize=256)
def t_quantile(share: float, freedom: float) -> float:
    """Where Student's t with `freedom` degrees of freedom has `share` of its mass below."""
    if not (0 < share < 1 and freedom > 0):
        raise ValueError("a share in (0, 1) and positive degrees of freedom are needed")
    if share < 0.5:
        return -t_quantile(1 - share, freedom)
    tail = 2 * (1 - share)
    # P(|T| > t) = I_x(freedom / 2, 1 / 2) at x = freedom / (freedom + t^2).
    x = _solve(lambda y: beta_cdf(y, freedom / 2, 0.5), tail)
    return math.sqrt(freedom * (1 - x) / x) if x > 0 else math.inf


def settled(budget: float | None) -> float:
    """An error so small that it is not held against the merge base's: a share of the budget.

    In fp32 and with decays of hundreds a chunk, honest kernels (another chunk size) differ by ten
    times and are far below the budget. Never more than some hundred roundings of fp32: where half
    operands make budgets large, an fp32 state that is good to five digits has to stay so.
    """
    return min((budget or 0.0) / 4, 2.0**-15)


@lru_cache(maxsize=4096)
def allowance(count: int) -> float:
    """By how much the rms errors of two equally good kernels over `count` numbers may differ.

    Errors are sums of many small roundings. The quotient of two mean squares over n independent
    ones of equal size follows the F distribution with (n, n) degrees of freedom; a limit on the
    quotient of rms errors grows by the square root of its quantile at 1 - CHANCE. That is 1.02 for
    a hundred thousand numbers, 1.2 for 512, 2.2 for 32, and so much for fewer than 4 that only
    absolute limits say anything about them.
    """
    count = min(max(count, 1), MANY)
    return math.sqrt(f_quantile(CHANCE, count, count))


def f_quantile(tail: float, first: float, second: float) -> float:
    """What an F distributed number with (first, second) degrees exceeds with chance `tail`."""
    if not (0 < tail < 1 and first > 0 and second > 0):
        raise ValueError("a tail in (0, 1) and positive degrees of freedom are needed")
    # P(F > f) = I_x(second / 2, first / 2) at x = second / (second + first f).
    x = _solve(lambda y: beta_cdf(y, second / 2, first / 2), tail)
    return second * (1 - x) / (first * x) if x > 0 else math.inf


def _solve(increasing: Callable[[float], float], target: float) -> float:
    """The place in (0, 1) where an increasing function takes a value, by bisection."""
    low, high = 0.0, 1.0
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return middle
        low, high = (middle, high) if increasing(middle) < target else (low, middle)


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b): the CDF of Beta(a, b)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    # The continued fraction converges fast below the mean; above it the mirror image is used.
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(1 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(scale + a * math.log(x) + b * math.log1p(-x)) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """The denominator of I_x(a, b) as a continued fraction, evaluated by Lentz's method."""
    tiny = 1e-300
    value, c, d = 1.0, 1.0, 0.0
    for step in range(1, 1000):
        half = step // 2
        if step % 2:
            top = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            top = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        d = 1 / (1 + top * d or tiny)
        c = 1 + top / c or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
