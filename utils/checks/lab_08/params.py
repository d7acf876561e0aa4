"""What lab 08 says of the checks of sampling parameters: exercise 1."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake

NAN, INF = float("nan"), float("inf")


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

    def __str__(self) -> str:
        given = {k: v for k, v in vars(self).items() if repr(v) != repr(getattr(RawParams, k))}
        if "min_tokens" in given:
            given["max_tokens"] = self.max_tokens
        return ", ".join(f"{name}={value!r}" for name, value in given.items()) or "defaults"


class Rule(NamedTuple):
    """Values that must be refused, and what it would mean to let them through."""

    name: str
    values: tuple[Any, ...]
    why: str


NO_INTEGERS = (1.5, 2.0, "3", NAN, None)
ALLOWED: dict[str, tuple[Any, ...]] = {
    "n": (1, 2, 64, 10_000),
    "temperature": (1.0, 0.0, 2.0, 0, 2, 1e-6, 0.7, 1.999),
    "top_p": (1.0, 1, 0.5, 1e-9, 0.9999),
    "top_k": (0, -1, 1, 50, 10**6),
    "min_p": (0.0, 1.0, 0, 1, 0.5, 1e-9),
    "max_tokens": (16, None, 1, 10**6),
    "min_tokens": (0, 1, 5, 16),
    "stop": (None, "END", ["END"], ["\n\n", "User:", " "], []),
}
RULES = (
    Rule("n", (0, -1), "There would be no answer."),
    Rule("n", NO_INTEGERS, "It counts answers, and there is no half one."),
    Rule("temperature", (-0.1, -1e-9, -INF), "It would turn the order of the tokens around."),
    Rule("temperature", (2.5, 2.001, INF), "Beyond 2 there is only noise."),
    Rule("temperature", (NAN,), "A comparison with NaN is always False."),
    Rule("top_p", (0.0, 0, -0.5), "No token would be left to draw."),
    Rule("top_p", (1.1, 1.0001, INF), "A probability is at most 1."),
    Rule("top_p", (NAN,), "A comparison with NaN is always False."),
    Rule("top_k", NO_INTEGERS, "It counts tokens."),
    Rule("top_k", (-2, -100), "Only -1 has a meaning: keep all tokens."),
    Rule("min_p", (-0.1, -1e-9, 1.1, 1.0001, INF), "It is a part of a probability."),
    Rule("min_p", (NAN,), "A comparison with NaN is always False."),
    Rule("max_tokens", (0, -1), "A request that may not answer would wait forever."),
    Rule("max_tokens", NO_INTEGERS[:-1], "It counts tokens."),
    Rule("min_tokens", (-1, -7), "It counts tokens."),
    Rule("min_tokens", NO_INTEGERS, "It counts tokens."),
    Rule(
        "stop",
        ("", ["END", ""], [""], ["", "END"]),
        "The empty string is found in every text: the answer would end at once.",
    ),
    Rule("stop", ([5], ["END", None], [["END"]]), "Only strings can be found in a text."),
)
PAIRS = (  # rules that need two arguments
    Rule("n", (2, 3, 64), "Greedy sampling gives the same answer each time."),
    Rule("min_tokens", (17, 18, 10**7), "Both cannot be kept."),
)


def draw(c: Choices) -> RawParams:
    """Mostly allowed values; in most of the inputs one argument is broken, now and then two."""
    params = RawParams()
    for name in c.some(lambda: c.pick(list(ALLOWED)), 0, 4):
        setattr(params, name, c.pick(ALLOWED[name]))
    for rule in c.some(lambda: c.pick(RULES + PAIRS), 0, 1 + c.rarely(5)):
        setattr(params, rule.name, copy.deepcopy(c.pick(rule.values)))
        if rule == PAIRS[0]:
            params.temperature = c.pick((0.0, 0))
        elif rule == PAIRS[1]:
            params.max_tokens = c.pick((16, 1))
    return params


def broken(params: RawParams) -> Iterator[Rule]:
    """The rules that these arguments break."""
    for rule in RULES:
        if repr(getattr(params, rule.name)) in map(repr, rule.values):
            yield rule
    if type(params.n) is int and params.n > 1 and params.temperature == 0:
        yield PAIRS[0]
    if type(params.max_tokens) is type(params.min_tokens) is int and (
        params.min_tokens > params.max_tokens
    ):
        yield PAIRS[1]


def refuse(params: Any) -> None:
    """The right answer, from the list of examples."""
    for rule in broken(params):
        raise ValueError(f"{rule.name} {getattr(params, rule.name)!r}")


def play(stage: Stage, function: Callable[..., Any], case: RawParams) -> None:
    """One call; who is named, and what is said of it."""

    def verdict(params: RawParams) -> tuple[str | None, Any]:
        try:
            return None, function(params)
        except ValueError as error:
            return str(error), None

    params, rules = copy.deepcopy(case), list(broken(case))
    got = stage.do(verdict, params)
    if repr(case) != repr(params):
        stage.blame("changes", repr(case), repr(params))
    if isinstance(got, Raised):
        if not rules:
            stage.blame("raises", "no error", got)
        if got.error is AssertionError:
            stage.blame("assert", "a ValueError", "an AssertionError")
        stage.blame("other error", "a ValueError", got)
    message, returned = got
    if returned is not None:
        stage.blame("returns", "nothing", returned)
    if not rules and message is not None:
        stage.blame("refuses", "no error", f"`{case}` is refused, and it is allowed")
    if rules and message is None:
        clause = f"rule {(RULES + PAIRS).index(rules[0])}"
        stage.blame(clause, f"a ValueError about `{rules[0].name}`", f"`{case}` is let through")
    if rules and message is not None:
        named = [rule for rule in rules if re.search(rf"\b{rule.name}\b", message)]
        names = " or ".join(dict.fromkeys(f"`{rule.name}`" for rule in rules))
        if not named:
            stage.blame("name", names, f"ValueError: {message}")
        values = [getattr(case, rule.name) for rule in named]
        if not any(_says(message, value) for value in values):
            stage.blame("value", f"the value `{values[0]!r}`", f"ValueError: {message}")


def _says(message: str, value: Any) -> bool:
    """Whether a message holds a value; of a list, one item that is at fault will do."""
    faulty = [v for v in value if v == "" or type(v) is not str] if type(value) is list else []
    return str(value) in message or any(repr(v) in message for v in (value, *faulty))


def _without(*numbers: int) -> Callable[[Any], None]:
    """The right answer, but some rules are forgotten."""

    def check(params: Any) -> None:
        for rule in broken(params):
            if (RULES + PAIRS).index(rule) not in numbers:
                raise ValueError(f"{rule.name} {getattr(params, rule.name)!r}")

    return check


NANS = [number for number, rule in enumerate(RULES) if "NaN" in rule.why]


def _none_compared(params: Any) -> None:
    if params.max_tokens is None:
        raise TypeError("'<' not supported between instances of 'NoneType' and 'int'")
    refuse(params)


CHECK_SAMPLING_PARAMS = Contract(
    inputs=draw,
    judge=InLockstep(play, refuse),
    passed="All that is allowed is let through, edges included. What breaks a rule is refused, "
    "with the name and the value of what is wrong.",
    clauses={
        "changes": Clause("Your function changes the parameters. It only looks at them."),
        "assert": Clause(
            "You use `assert`. Python drops every assert when it is started with `-O`, and then "
            "nothing is checked.",
            "`if ...: raise ValueError(...)`.",
        ),
        "other error": Clause(
            "{says} Expected is a ValueError that names the argument.",
            "Ask for the type first, or for None, then compare.",
        ),
        "returns": Clause(
            "Your function returned `{got}`. Nobody looks at that; a bad request would go on.",
            "`raise ValueError(...)`, and return nothing.",
        ),
        "refuses": Clause("{got}.", "The edges belong to the range."),
        "name": Clause("The error does not say that {expected} is wrong."),
        "value": Clause(
            "The error does not say which value it got. Whoever reads it in a log has to guess.",
            "`{value!r}` in an f-string.",
        ),
    }
    | {
        f"rule {i}": Clause(
            f"{{got}}. {rule.why}",
            "Say what is right, and refuse the rest: `if not 0 <= x <= 2: raise`.",
        )
        for i, rule in enumerate(RULES + PAIRS)
    },
    mistakes=(
        mistake(
            "Every NaN is let through. A comparison with NaN is always False, so `x < 0 or "
            "x > 2` lets it pass.",
            "`not 0 <= x <= 2` does not.",
            _without(*NANS),
        ),
        mistake(
            "`max_tokens=None` is an error: `None` is not supported between `<` and a number.",
            "`max_tokens is None or ...`.",
            _none_compared,
        ),
    ),
    examples=400,
)
