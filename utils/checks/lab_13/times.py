"""What lab 13 says of the time to the first token: exercise 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import Mismatch, call, describe

Measurements = tuple[tuple[int, float], tuple[int, float]]


def _fit(measurements: Measurements) -> tuple[float, float]:
    """The line through both measurements: seconds at zero tokens, and seconds per token."""
    (n, at_n), (m, at_m) = measurements
    slope = (at_m - at_n) / (m - n)
    return at_n - n * slope, slope


def _line(measurements: Measurements, left: float) -> float:
    start, slope = _fit(measurements)
    return start + slope * left


_FIT = "`per_token = (seconds_2 - seconds_1) / (tokens_2 - tokens_1)`; the rest of a measurement " \
       "is the fixed cost."  # fmt: skip
_LEFT = "What is left to compute is `num_tokens - num_cached_tokens`."
BUGS: list[tuple[Callable[[Measurements, int, int], float], str, str]] = [
    (lambda m, n, c: _line(m, n), "The cached tokens are paid for again.", _LEFT),
    (lambda m, n, c: _line(m, c), "You count the tokens that were found, not those that are left.",
     _LEFT),
    (lambda m, n, c: _fit(m)[1] * (n - c),
     "The fixed cost of a step is missing: a prompt of which nearly everything is found would be "
     "answered in no time.", _FIT),
    (lambda m, n, c: m[1][1] / m[1][0] * (n - c),
     "You divide one measurement by its tokens. Then the fixed cost hides in the cost per token, "
     "and a short prompt looks far too fast.", _FIT),
    (lambda m, n, c: m[0][1] / m[0][0] * (n - c),
     "You divide one measurement by its tokens. Then the fixed cost hides in the cost per token, "
     "and a long prompt looks far too slow.", _FIT),
    (lambda m, n, c: m[0][1] + _fit(m)[1] * (n - c),
     "The first measurement is taken for the fixed cost, but it paid for tokens, too.", _FIT),
    (lambda m, n, c: m[0][1] + _fit(m)[1] * (n - c - 1),
     "The first measurement is taken for the cost of a step with one token, but it paid for more "
     "tokens.", _FIT),
    (lambda m, n, c: _line(m, n) * (1 - c / n),
     "You take the share of the hits off the whole time. The fixed cost is not saved by a hit.",
     _LEFT),
    (lambda m, n, c: _line(m, n - c - 1), "One token is missing.", _LEFT),
    (lambda m, n, c: _line(m, n - c + 1), "One token too many.", _LEFT),
    (lambda m, n, c: _fit(m)[0] + (m[1][0] - m[0][0]) / (m[1][1] - m[0][1]) * (n - c),
     "You divide tokens by seconds: that is tokens per second, not seconds per token.", _FIT),
    (lambda m, n, c: m[0][1] + (m[1][0] - m[0][0]) / (m[1][1] - m[0][1]) * (n - c - m[0][0]),
     "You divide tokens by seconds: that is tokens per second, not seconds per token.", _FIT),
    (lambda m, n, c: m[1][1] + _fit(m)[1] * (n - c - m[0][0]),
     "You start from the seconds of one measurement, and count the tokens from the other one.",
     "Both from the same measurement."),
    (lambda m, n, c: max(min(m[0][1], m[1][1]), _line(m, n - c)),
     "You never predict less than the faster measurement. A prompt with fewer tokens left is "
     "faster still.", "The line goes on below the shorter prompt."),
    (lambda m, n, c: 1e3 * _line(m, n - c), "That is milliseconds; expected seconds.", _LEFT),
]  # fmt: skip


def judge_predict_ttft(function: Callable[..., float]) -> str:
    """Check `predict_ttft(measurements, num_tokens, num_cached_tokens)` against the line itself."""
    cases: list[tuple[Measurements, int, int]] = [
        (((10, 0.030), (110, 0.130)), 110, 0),
        (((10, 0.030), (110, 0.130)), 60, 0),
        (((10, 0.030), (110, 0.130)), 300, 256),
        (((1, 0.040), (257, 0.424)), 362, 256),
        (((400, 0.170), (48, 0.052)), 362, 256),  # the longer one first
        (((48, 0.052), (400, 0.170)), 257, 256),
    ]
    answers: list[Any] = []
    for measurements, num_tokens, num_cached in cases:
        given = _told(measurements, num_tokens, num_cached)
        got = call(function, measurements, num_tokens, num_cached, given=given)
        if isinstance(got, bool) or not isinstance(got, int | float):
            raise Mismatch(f"Your function returned {describe(got)}; expected seconds, a number.",
                           input=given)  # fmt: skip
        answers.append(got)
    for (measurements, num_tokens, num_cached), got in zip(cases, answers, strict=True):
        want = _line(measurements, num_tokens - num_cached)
        if _close(got, want):
            continue
        says, look = "The time is wrong.", f"{_FIT} {_LEFT}"
        for wrong, words, where in BUGS:
            if all(_close(a, wrong(*c)) for a, c in zip(answers, cases, strict=True)):
                says, look = words, where
                break
        raise Mismatch(
            says, input=_told(measurements, num_tokens, num_cached),
            expected=f"{want:.4f} s", got=f"{got:.4f} s", look=look,
        )  # fmt: skip
    return f"Right for {len(cases)} requests: a fixed cost, and a cost for each token that is left."


def _close(a: float, b: float) -> bool:
    return abs(a - b) < 1e-9 + 1e-6 * abs(b)


def _told(measurements: Measurements, num_tokens: int, num_cached: int) -> str:
    return (
        f"measurements (tokens, seconds) {measurements}; a prompt of {num_tokens} tokens, of which "
        f"{num_cached} are found"
    )
