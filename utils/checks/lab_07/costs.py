"""What guesses are worth: exercises 6 and 7."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference

# Exercise 6


def draw_rate(c: Choices) -> Given:
    """Rates from 0 to 1, both included, and close to them; few guesses and many."""
    rate = c.pick((0.5, 0.0, 1.0, 0.8, 1e-6, 1 - 1e-6, *(2 * [c.real(0.0, 1.0)])))
    return Given(rate, c.size(0, 600))


def mean_tokens(acceptance_rate: float, num_speculative_tokens: int) -> float:
    """Over all that can happen: n guesses accepted and the next one not, or all k accepted."""
    a, k = acceptance_rate, num_speculative_tokens
    stopped = ((n + 1) * a**n * (1 - a) for n in range(k))
    return math.fsum([*stopped, (k + 1) * a**k])


def _number(expected: float, got: Any, given: Given) -> Fault | None:
    if got is not None and (not isinstance(got, Real) or isinstance(got, bool)):
        return Fault("form", "", expected, got)
    says = difference(expected, got, 1e-6)
    return Fault("returns", "", expected, got, says) if says else None


BONUS = "k + 1 terms: the token that comes in any case, then a, a², ..., a^k."
EXPECTED_TOKENS = Contract(
    inputs=draw_rate,
    judge=Returns(mean_tokens, wrong=_number),
    passed="Equal to the sum over all that can happen to k guesses, for rates from 0 to 1, both "
    "included, and up to 600 guesses.",
    clauses={
        "form": Clause("Your function returned {got}; expected a number.", BONUS),
        "returns": Clause("{says}", BONUS),
    },
    mistakes=(
        mistake(
            "The step's own token is missing: recovered or bonus, there always is one.",
            BONUS,
            lambda a, k: sum(a**i for i in range(1, k + 1)),
        ),
        mistake(
            "The bonus token is missing: when all k guesses are accepted, k + 1 tokens come.",
            BONUS,
            lambda a, k: sum(a**i for i in range(k)),
        ),
        mistake(
            "There is one term too many: k guesses give at most k + 1 tokens.",
            BONUS,
            lambda a, k: sum(a**i for i in range(k + 2)),
        ),
        mistake(
            "You count each guess on its own. A guess behind a rejected one is of no use: "
            "guess i counts only if all i guesses up to it are accepted, with probability a^i.",
            BONUS,
            lambda a, k: k * a,
            lambda a, k: 1 + k * a,
        ),
        mistake(
            "You count only the case that all guesses are accepted.",
            BONUS,
            lambda a, k: (k + 1) * a**k,
            lambda a, k: 1 + k * a**k,
        ),
        mistake(
            "This is the sum without end. There are only k guesses.",
            BONUS,
            lambda a, k: 1 / (1 - a) if a < 1 else k + 1,
        ),
        mistake(
            "With an acceptance rate of 1, (1 - a^(k+1)) / (1 - a) is 0 / 0.",
            "Return k + 1 there, or add up the terms one by one.",
            lambda a, k: (1 - a ** (k + 1)) / (1 - a),
        ),
    ),
)


# Exercise 7


def _gain(a: float, k: int, cost: float) -> float:
    return mean_tokens(a, k) / (1 + k * cost)


def draw_situation(c: Choices) -> Given:
    """The best number stands out, or is tied in numbers that no rounding touches."""
    most = c.size(0, 120)
    kind = c.pick(("any", "any", "any", "any", "tie", "free"))
    if kind == "tie":  # one guess gives as much as none; with 1.0 all numbers do
        rate = c.pick((0.5, 0.0, 0.25, 1.0))
        return Given(rate, most, rate)
    rate = c.pick((0.8, 0.0, 1.0, *(3 * [c.real(0.0, 0.99)])))
    cost = 0.0 if kind == "free" else c.pick((0.1, 0.02, 1e-4, *(2 * [c.real(0.001, 2.0)])))
    while kind == "any" and not _stands_out(rate, most, cost):
        cost += 0.0137
    if kind == "free":
        most = min(most, 8)  # beyond it, a^k is lost in the sum's rounding
        rate = max(rate, 0.1)
    return Given(rate, most, cost)


def _stands_out(a: float, most: int, cost: float) -> bool:
    gains = sorted((_gain(a, k, cost) for k in range(most + 1)), reverse=True)
    return len(gains) == 1 or gains[1] < gains[0] * (1 - 1e-7)


def best_number(
    acceptance_rate: float, max_num_speculative_tokens: int, draft_token_cost: float
) -> int:
    gains = [
        _gain(acceptance_rate, k, draft_token_cost) for k in range(max_num_speculative_tokens + 1)
    ]
    return next(k for k, gain in enumerate(gains) if gain > max(gains) * (1 - 1e-12))


def _best(candidates: Sequence[int], gain: Callable[[int], float]) -> int:
    return max(candidates, key=gain) if candidates else 0


def _by(gain: Callable[[float, int, float], float], start: int = 0, end: int = 1) -> Any:
    """An answer that maximises something over `range(start, most + end)`."""
    return lambda a, most, cost: _best(range(start, most + end), lambda k: gain(a, k, cost))


def _choice(expected: int, got: Any, given: Given) -> Fault | None:
    if not isinstance(got, Integral) or isinstance(got, bool):
        return Fault("form", "", expected, got)
    if got == expected:
        return None
    a, most, cost = given.args
    if not 0 <= int(got) <= most:
        return Fault("range", "", expected, got)
    mine, yours = (f"`{k}`, {_gain(a, k, cost):.6g} tokens per time" for k in (expected, int(got)))
    tied = _gain(a, int(got), cost) > _gain(a, expected, cost) * (1 - 1e-12)
    clause = "tie" if tied else "returns"
    return Fault(clause, "", expected, int(got), words=(mine, yours))


GAIN = "The k with the largest `expected_tokens(a, k) / (1 + k * draft_token_cost)`, from 0 on."
CHOOSE = Contract(
    inputs=draw_situation,
    judge=Returns(best_number, wrong=_choice),
    passed=lambda answer: (
        "The best number in each situation, the smallest of equally good ones. "
        "Where a guess costs a tenth of a step, and up to 6 are allowed: "
        f"{answer(0.8, 6, 0.1)} if 80 % are accepted, {answer(0.3, 6, 0.1)} if 30 % are."
    ),
    clauses={
        "form": Clause(
            "Your function returned {got}; expected an int, the number of guesses.",
            "The best k itself, not what it gives.",
        ),
        "range": Clause("The number must be from 0 to `max_num_speculative_tokens`.", GAIN),
        "tie": Clause(
            "A smaller number gives as many tokens per time, and less work.",
            "Replace the best so far only by one that is better: `>`, not `>=`.",
        ),
        "returns": Clause("Another number of guesses gives more tokens per time.", GAIN),
    },
    mistakes=(
        mistake(
            "You never choose 0. Where guesses are mostly wrong, or dear, it is best not to guess.",
            "`range(max_num_speculative_tokens + 1)` begins with 0.",
            lambda a, most, cost: max(1, best_number(a, most, cost)),
            _by(_gain, start=1),
            lambda a, most, cost: min(most, max(1, best_number(a, most, cost))),
        ),
        mistake(
            "The number of guesses does not matter to your cost. More guesses always give more "
            "tokens per step; what counts is tokens per time, and k guesses cost k times as "
            "much as one.",
            GAIN,
            lambda a, most, cost: most if a > 0 else 0,
            lambda a, most, cost: most,
            _by(lambda a, k, cost: sum(a**i for i in range(k + 1))),
            _by(lambda a, k, cost: mean_tokens(a, k)),
        ),
        mistake(
            "`max_num_speculative_tokens` itself is never chosen.",
            "`range(n)` ends with n - 1.",
            _by(_gain, end=0),
        ),
        mistake(
            "You take the cost off the tokens. What counts is the quotient: tokens per time.",
            GAIN,
            _by(lambda a, k, cost: mean_tokens(a, k) - k * cost),
        ),
        mistake(
            "The cost of the step itself is missing: a step costs 1, and each guess comes on top.",
            GAIN,
            _by(lambda a, k, cost: mean_tokens(a, k) / (k * cost or 1)),
        ),
        mistake(
            "You choose the worst number of guesses.",
            GAIN,
            _by(lambda a, k, cost: -_gain(a, k, cost)),
        ),
    ),
)
