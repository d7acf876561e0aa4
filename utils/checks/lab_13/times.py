"""Seconds to the first token, from two measurements: exercise 6."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake

Measurements = tuple[tuple[int, float], tuple[int, float]]


def draw_times(c: Choices) -> Given:
    """Measurements in any order; what is left lies below, between and above them."""
    fixed = c.pick((0.02, 0.5, 3.7e-6, 40.0)) * c.integer(1, 9)
    per_token = c.pick((0.001, 2.3e-7, 0.3)) * c.integer(1, 9)
    short = c.size(1, 20_000)
    long = short + c.size(1, 20_000)
    pair = [(n, fixed + n * per_token) for n in (short, long)]
    left = c.size(1, 20_000)
    cached = c.size(0, 20_000)
    return Given(tuple(pair[::-1] if c.rarely(2) else pair), left + cached, cached)


def on_the_line(measurements: Measurements, num_tokens: int, num_cached_tokens: int) -> float:
    """Two measurements weighed, in exact fractions."""
    (n, at_n), (m, at_m) = measurements
    share = Fraction(num_tokens - num_cached_tokens - n, m - n)
    return float((1 - share) * Fraction(at_n) + share * Fraction(at_m))


def _fit(measurements: Measurements) -> tuple[float, float]:
    """The line through both measurements: seconds at zero tokens, and seconds per token."""
    (n, at_n), (m, at_m) = measurements
    slope = (at_m - at_n) / (m - n)
    return at_n - n * slope, slope


def _line(measurements: Measurements, left: float) -> float:
    start, slope = _fit(measurements)
    return start + slope * left


def _mean(measurements: Measurements, which: int) -> float:
    return measurements[which][1] / measurements[which][0]


def _upside_down(measurements: Measurements) -> float:
    (n, at_n), (m, at_m) = measurements
    return (m - n) / (at_m - at_n)


_FIT = (
    "`per_token = (seconds_2 - seconds_1) / (tokens_2 - tokens_1)`; the rest of a measurement "
    "is the fixed cost."
)
_LEFT = "What is left to compute is `num_tokens - num_cached_tokens`."
_FIXED = "A measurement is taken for the fixed cost, but it paid for tokens, too."
_Seconds = Callable[[Measurements, int, int], Any]


def _both(answer: Callable[[Measurements, int, int], float]) -> tuple[_Seconds, _Seconds]:
    """The same mistake with the measurements in the other order."""
    return answer, lambda m, n, c: answer((m[1], m[0]), n, c)


PREDICT_TTFT = Contract(
    inputs=draw_times,
    judge=Returns(on_the_line, rtol=1e-6, atol=1e-10),
    passed="Right for 150 requests: a fixed cost, and a cost for each token that is left.",
    clauses={"returns": Clause("The time is wrong. {says}", f"{_FIT} {_LEFT}")},
    tell=lambda given: (
        "measurements (tokens, seconds) {}; a prompt of {} tokens, of which {} are found".format(
            *given.args
        )
    ),
    mistakes=(
        mistake("The cached tokens are paid for again.", _LEFT, lambda m, n, c: _line(m, n)),
        mistake(
            "You count the tokens that were found, not those that are left.",
            _LEFT,
            lambda m, n, c: _line(m, c),
        ),
        mistake(
            "The fixed cost of a step is missing: a prompt of which nearly everything is found "
            "would be answered in no time.",
            _FIT,
            lambda m, n, c: _fit(m)[1] * (n - c),
        ),
        mistake(
            "You divide one measurement by its tokens. Then the fixed cost hides in the cost "
            "per token.",
            _FIT,
            *_both(lambda m, n, c: _mean(m, 0) * (n - c)),
        ),
        mistake(
            _FIXED,
            _FIT,
            *_both(lambda m, n, c: m[0][1] + _fit(m)[1] * (n - c)),
            *_both(lambda m, n, c: m[0][1] + _fit(m)[1] * (n - c - 1)),
            lambda m, n, c: min(m)[1] + _fit(m)[1] * (n - c),
        ),
        mistake(
            "You take the share of the hits off the whole time. The fixed cost is not saved by "
            "a hit.",
            _LEFT,
            lambda m, n, c: _line(m, n) * (1 - c / n),
        ),
        mistake(
            "You divide tokens by seconds: that is tokens per second, not seconds per token.",
            _FIT,
            lambda m, n, c: _fit(m)[0] + _upside_down(m) * (n - c),
            *_both(lambda m, n, c: m[0][1] + _upside_down(m) * (n - c - m[0][0])),
        ),
        mistake(
            "You start from the seconds of one measurement, and count the tokens from the "
            "other one.",
            "Both from the same measurement.",
            *_both(lambda m, n, c: m[1][1] + _fit(m)[1] * (n - c - m[0][0])),
        ),
        mistake(
            "You never predict less than the faster measurement. A prompt with fewer tokens "
            "left is faster still.",
            "The line goes on below the shorter prompt.",
            lambda m, n, c: max(min(m[0][1], m[1][1]), _line(m, n - c)),
        ),
        mistake(
            "That is milliseconds; expected seconds.", _LEFT, lambda m, n, c: 1e3 * _line(m, n - c)
        ),
    ),
)
