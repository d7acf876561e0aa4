"""What lab 07 says of the worth of guesses: exercises 6 and 7."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from utils.checks.kit.compare_lists import KnownMistake, ListCase, compare_lists
from utils.checks.kit.runner import Mismatch, call, describe

# Exercise 6


def expected_by_brute_force(acceptance_rate: float, k: int) -> float:
    """Over all patterns of good and bad guesses: probability x (good ones in front + 1)."""
    total = 0.0
    for pattern in product((True, False), repeat=k):
        probability = math.prod(acceptance_rate if good else 1 - acceptance_rate
                                for good in pattern)  # fmt: skip
        total += probability * ((*pattern, False).index(False) + 1)
    return total


_BONUS = "k + 1 terms: the token that comes in any case, then a, a², ..., a^k."
_EXPECTED_MISTAKES: tuple[KnownMistake, ...] = (
    (lambda a, k: sum(a**i for i in range(1, k + 1)),
     "The step's own token is missing: recovered or bonus, there always is one.", _BONUS),
    (lambda a, k: sum(a**i for i in range(k)),
     "The bonus token is missing: when all k guesses are accepted, k + 1 tokens come.", _BONUS),
    (lambda a, k: sum(a**i for i in range(k + 2)),
     "There is one term too many: k guesses give at most k + 1 tokens.", _BONUS),
    (lambda a, k: k * a,
     "You count each guess on its own. A guess behind a rejected one is of no use: guess i counts "
     "only if all i guesses up to it are accepted, with probability a^i.", _BONUS),
    (lambda a, k: 1 + k * a,
     "You count each guess on its own. A guess behind a rejected one is of no use: guess i counts "
     "only if all i guesses up to it are accepted, with probability a^i.", _BONUS),
    (lambda a, k: (k + 1) * a**k,
     "You count only the case that all guesses are accepted.", _BONUS),
    (lambda a, k: 1 + a**k, "You count guesses only if all are accepted.", _BONUS),
    (lambda a, k: 1 / (1 - a) if a < 1 else k + 1,
     "This is the sum without end. There are only k guesses.", _BONUS),
)  # fmt: skip


def judge_expected_tokens(function: Callable[..., float]) -> str:
    """Check `expected_tokens(acceptance_rate, num_speculative_tokens)`."""
    cases = [(a, k) for k in (1, 2, 3, 5) for a in (0.5, 0.8, 0.0, 1.0)] + [(0.7, 0)]
    answers = [_number(function, a, k) for a, k in cases]
    for (a, k), got in zip(cases, answers, strict=True):
        expected = expected_by_brute_force(a, k)
        if math.isclose(got, expected, rel_tol=1e-6):
            continue
        says, look = "The number is wrong.", _BONUS
        for wrong, words, where in _EXPECTED_MISTAKES:
            if all(
                math.isclose(wrong(*case), answer, rel_tol=1e-6, abs_tol=1e-9)
                for case, answer in zip(cases, answers, strict=True)
            ):
                says, look = words, where
                break
        raise Mismatch(
            says, input=f"acceptance_rate {a}, num_speculative_tokens {k}",
            expected=f"{expected:.6g}", got=f"{got:.6g}", look=look,
        )  # fmt: skip
    return (
        f"Equal to the sum over all patterns of accepted and rejected guesses, in {len(cases)} "
        "cases, an acceptance rate of 1 included."
    )


def _number(function: Callable[..., Any], a: float, k: int) -> float:
    given = f"acceptance_rate {a}, num_speculative_tokens {k}"
    try:
        got = call(function, a, k, given=given)
    except Mismatch as wrong:
        if "ZeroDivisionError" in wrong.headline:
            raise Mismatch(
                "With an acceptance rate of 1, (1 - a^(k+1)) / (1 - a) is 0 / 0.", input=given,
                expected=f"{k + 1}", look="Return k + 1 there, or add up the terms one by one.",
            ) from None  # fmt: skip
        raise
    if isinstance(got, bool) or not isinstance(got, int | float) or math.isnan(got):
        raise Mismatch(f"Your function returned {describe(got)}; expected a number.", input=given)
    return got


# Exercise 7


def _gain(a: float, k: int, cost: float) -> float:
    return expected_by_brute_force(a, k) / (1 + k * cost)


def best_by_brute_force(a: float, most: int, cost: float) -> int:
    gains = [_gain(a, k, cost) for k in range(most + 1)]
    return gains.index(max(gains))


def _best(candidates: Sequence[int], gain: Callable[[int], float]) -> int:
    return max(candidates, key=gain) if candidates else 0


_GAIN = "The k with the largest `expected_tokens(a, k) / (1 + k * draft_token_cost)`, from 0 on."
_CHOICES = ((0.8, 6, 0.1), (0.6, 6, 0.1), (0.3, 6, 0.1), (0.05, 6, 0.1), (0.9, 4, 0.02),
            (0.7, 8, 0.3), (0.5, 5, 0.7), (0.0, 4, 0.1), (1.0, 4, 0.1), (0.9, 0, 0.1),
            (0.9, 1, 0.5), (0.4, 1, 0.3), (0.97, 8, 0.05))  # fmt: skip
_CHOICE_MISTAKES: tuple[KnownMistake, ...] = (
    (lambda a, most, c: max(1, best_by_brute_force(a, most, c)),
     "You never choose 0. Where guesses are mostly wrong, or dear, it is best not to guess.",
     "`range(max_num_speculative_tokens + 1)` begins with 0."),
    (lambda a, most, c: _best(range(1, most + 1), lambda k: _gain(a, k, c)),
     "You never choose 0. Where guesses are mostly wrong, or dear, it is best not to guess.",
     "`range(max_num_speculative_tokens + 1)` begins with 0."),
    (lambda a, most, c: most if a > 0 else 0,
     "The number of guesses does not matter to your cost. More guesses always give more tokens per "
     "step; what counts is tokens per time, and k guesses cost k times as much as one.", _GAIN),
    (lambda a, most, c: _best(range(most), lambda k: _gain(a, k, c)),
     "`max_num_speculative_tokens` itself is never chosen.",
     "`range(n)` ends with n - 1."),
    (lambda a, most, c: _best(range(most + 1), lambda k: expected_by_brute_force(a, k) - k * c),
     "You take the cost off the tokens. What counts is the quotient: tokens per time.", _GAIN),
    (lambda a, most, c: _best(range(most + 1),
                              lambda k: expected_by_brute_force(a, k) / (k * c if k else 1)),
     "The cost of the step itself is missing: a step costs 1, and each guess comes on top.", _GAIN),
    (lambda a, most, c: min(range(most + 1), key=lambda k: _gain(a, k, c)),
     "You choose the worst number of guesses.", _GAIN),
)  # fmt: skip


def judge_choose_num_speculative_tokens(function: Callable[..., int]) -> str:
    """Check `choose_num_speculative_tokens(acceptance_rate, max_num_..., draft_token_cost)`."""

    def as_list(*args: Any) -> list[int]:
        got = function(*args)
        if type(got) is not int:
            raise Mismatch(
                f"Your function returned {describe(got)}; expected an int, the number of guesses.",
                look="The best k itself, not what it gives.",
            )
        return [got]

    def wrap(wrong: Callable[..., int]) -> Callable[..., list[int]]:
        return lambda *args: [wrong(*args)]

    cases = [
        ListCase(
            f"acceptance_rate {a}, max_num_speculative_tokens {most}, draft_token_cost {cost}",
            (a, most, cost),
            [best_by_brute_force(a, most, cost)],
        )
        for a, most, cost in _CHOICES
    ]
    mistakes = [(wrap(wrong), says, look) for wrong, says, look in _CHOICE_MISTAKES]
    compare_lists(as_list, cases, mistakes, "Another number of guesses gives more tokens per time.")
    low, high = best_by_brute_force(0.3, 6, 0.1), best_by_brute_force(0.8, 6, 0.1)
    return (
        f"The best number in {len(cases)} situations. Where a guess costs a tenth of a step, and "
        f"up to 6 are allowed: {high} if 80 % are accepted, {low} if 30 % are."
    )
