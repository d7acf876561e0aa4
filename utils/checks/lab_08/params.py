"""What lab 08 says of the checks of sampling parameters: exercise 1."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from utils.checks.kit.runner import Mismatch, call

NAN = float("nan")


@dataclass
class RawParams:
    """What a user asked for, not checked yet. Names and defaults are those of `SamplingParams`."""

    n: Any = 1
    temperature: Any = 1.0
    top_p: Any = 1.0
    top_k: Any = 0
    min_p: Any = 0.0
    max_tokens: Any = 16
    min_tokens: Any = 0
    stop: Any = None


class Rule(NamedTuple):
    """An example, whose fault it is (None: it is fine), and what a wrong verdict would mean."""

    arguments: dict[str, Any]
    culprit: str | None
    why: str


def _fine(why: str = "", **arguments: Any) -> Rule:
    return Rule(arguments, None, why)


def _bad(culprit: str, why: str, **arguments: Any) -> Rule:
    return Rule(arguments, culprit, why)


RULES = (
    _fine("These are the defaults."),
    _fine(n=3),
    _bad("n", "There would be no answer.", n=0),
    _bad("n", "There is no half answer.", n=1.5),
    _bad("n", "Greedy sampling gives the same answer each time.", n=2, temperature=0.0),
    _fine("0 is greedy sampling.", temperature=0.0),
    _fine("Above 1 the choice gets more random, and 2 is still allowed.", temperature=2.0),
    _bad("temperature", "It would turn the order of the tokens around.", temperature=-0.1),
    _bad("temperature", "Beyond 2 there is only noise.", temperature=2.5),
    _bad("temperature", "A comparison with NaN is always False, so `x < 0 or x > 2` lets it pass. "
         "`not 0 <= x <= 2` does not.", temperature=NAN),
    _fine(top_p=0.01),
    _bad("top_p", "No token would be left to draw.", top_p=0.0),
    _bad("top_p", "A probability is at most 1.", top_p=1.1),
    _bad("top_p", "A comparison with NaN is always False.", top_p=NAN),
    _fine("-1 keeps all tokens.", top_k=-1),
    _fine("0 keeps all tokens.", top_k=0),
    _fine("More than the vocabulary keeps all tokens.", top_k=10**6),
    _bad("top_k", "One cannot keep a negative number of tokens; only -1 has a meaning.", top_k=-2),
    _bad("top_k", "It counts tokens.", top_k=1.5),
    _fine(min_p=1.0),
    _bad("min_p", "It is a part of a probability.", min_p=-0.1),
    _bad("min_p", "It is a part of a probability.", min_p=1.1),
    _fine("None is: as many as fit.", max_tokens=None),
    _fine(max_tokens=1),
    _bad("max_tokens", "A request that may not answer would wait forever.", max_tokens=0),
    _bad("max_tokens", "It counts tokens.", max_tokens=2.5),
    _fine(min_tokens=16, max_tokens=16),
    _fine("With `max_tokens=None` there is no upper limit.", min_tokens=100, max_tokens=None),
    _bad("min_tokens", "It counts tokens.", min_tokens=-1),
    _bad("min_tokens", "Both cannot be kept.", min_tokens=17, max_tokens=16),
    _fine(stop="END"),
    _fine(stop=["\n\n", "User:"]),
    _bad("stop", "The empty string is found in every text: the answer would end at once.", stop=""),
    _bad("stop", "The empty string is found in every text: the answer would end at once.",
         stop=["END", ""]),
    _bad("stop", "Only strings can be found in a text.", stop=[5]),
)  # fmt: skip


def judge_check_sampling_params(function: Callable[..., Any]) -> str:
    """Check `check_sampling_params(params)` on each of `RULES`."""
    for rule in RULES:
        _judge(function, rule)
    bad = sum(rule.culprit is not None for rule in RULES)
    return (
        f"{len(RULES) - bad} requests let through, {bad} refused, each with the name and the value "
        "of what is wrong."
    )


def _judge(function: Callable[..., Any], rule: Rule) -> None:
    given = ", ".join(f"{name}={value!r}" for name, value in rule.arguments.items()) or "defaults"
    error, returned = _ask(function, RawParams(**rule.arguments), given)
    if isinstance(error, AssertionError):
        raise Mismatch(
            "You use `assert`. Python drops every assert when it is started with `-O`, and then "
            "nothing is checked.",
            input=given, look="`if ...: raise ValueError(...)`.",
        )  # fmt: skip
    if returned is not None:
        raise Mismatch(
            f"Your function returned `{returned!r}`. Nobody looks at that; a bad request would go "
            "on.",
            input=given, look="`raise ValueError(...)`, and return nothing.",
        )  # fmt: skip
    if rule.culprit is None:
        if error is not None:
            raise Mismatch(
                f"`{given}` is refused, and it is allowed. {rule.why}".strip(), input=given,
                expected="no error", got=f"ValueError: {error}",
            )  # fmt: skip
        return
    if error is None:
        raise Mismatch(
            f"`{given}` is let through. {rule.why}", input=given,
            expected=f"a ValueError about `{rule.culprit}`", got="no error",
        )  # fmt: skip
    value = rule.arguments[rule.culprit]
    if not re.search(rf"\b{rule.culprit}\b", str(error)):
        raise Mismatch(
            f"The error does not say that `{rule.culprit}` is wrong.", input=given,
            expected=f"a message with the name `{rule.culprit}`", got=f"ValueError: {error}",
        )  # fmt: skip
    if repr(value) not in str(error) and str(value) not in str(error):
        raise Mismatch(
            "The error does not say which value it got. Whoever reads it in a log has to guess.",
            input=given, expected=f"a message with the value `{value!r}`",
            got=f"ValueError: {error}",
        )  # fmt: skip


def _ask(
    function: Callable[..., Any], params: RawParams, given: str
) -> tuple[Exception | None, Any]:
    """The learner's verdict: the error that it raised, and what it returned."""

    def caught() -> tuple[Exception | None, Any]:
        try:
            return None, function(params)
        except (ValueError, AssertionError) as error:
            return error, None

    verdict: tuple[Exception | None, Any] = call(caught, given=given)
    return verdict
