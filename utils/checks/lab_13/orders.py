"""The order of a prompt's parts, and of prompts: exercises 2 and 4. Many orders are right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.runner import describe
from utils.checks.lab_13.prompts import common, draw_prompts
from utils.sim.prompt_cache import find_cached_tokens

Parts = Mapping[str, Sequence[str]]

# Exercise 2

NAMES = ("rules", "question", "clock", "tenant", "id", "language", "document")
# What a text looks like, by its number. Some are told apart late, or by case or spaces alone.
KINDS: tuple[Callable[[int], str], ...] = (
    lambda n: f"Question {n}?",
    lambda n: "x" * (n + 1),
    lambda n: "Answer in one line of JSON. " * 4 + str(n),
    lambda n: " " * n + "Ada",
    lambda n: "".join(c.upper() if n >> i & 1 else c for i, c in enumerate("clinicandmore")),
    lambda n: str(10 * n),
    lambda n: f"{n % 3}, {n // 3}",
    lambda n: "" if n == 0 else f"{n}",
)


def draw_parts(c: Choices) -> Given:
    """Constants, texts that come back, that stay for a while, that are new each time."""
    requests = 1 + (c.size(0, 300) if c.rarely(4) else c.integer(0, 6))
    parts: dict[str, list[str]] = {}

    def part() -> None:
        text, values = c.pick(KINDS), 1 + c.integer(0, requests - 1)
        order = c.pick(("in turn", "for a while", "mostly one"))
        numbers = {
            "in turn": [i % values for i in range(requests)],
            "for a while": [i * values // requests for i in range(requests)],
            "mostly one": [max(0, i - requests + values) for i in range(requests)],
        }[order]
        free = [name for name in NAMES if name not in parts]
        parts[c.pick(free)] = [text(number) for number in numbers]

    c.some(part, 1, len(NAMES))
    return Given({} if c.rarely(40) else parts)


def distinct_texts(parts: Parts) -> dict[str, int]:
    """How many different texts each part has: each is looked for among those before it."""
    return {
        name: sum(text not in texts[:i] for i, text in enumerate(texts))
        for name, texts in parts.items()
    }


def _wrong_names(expected: dict[str, int], got: Any, given: Given) -> Fault | None:
    if got is None or not isinstance(got, list):
        says = "Is the `return` missing?" if got is None else "Expected a list of names."
        return Fault(
            "returns", "", list(expected), got, f"Your function returned {describe(got)}. {says}"
        )
    if not all(isinstance(name, str) for name in got):
        return Fault(
            "returns",
            "",
            list(expected),
            got,
            f"Your function returned {describe(got)}; expected a list of names.",
        )
    if sorted(got) != sorted(expected):
        return Fault("returns", "", list(expected), got, "The list must hold each name once.")
    counts = [expected[name] for name in got]
    if counts == sorted(counts):
        return None

    def told(names: Sequence[str]) -> str:
        return ", ".join(f"{name} ({expected[name]})" for name in names)

    best = sorted(expected, key=lambda name: expected[name])
    words = f"{told(best)}; in brackets: different texts", told(got)
    return Fault("order", "", expected, got, words=words)


def _by(key: Callable[[Sequence[str]], Any]) -> Callable[[Parts], list[str]]:
    return lambda parts: sorted(parts, key=lambda name: key(parts[name]))


_COUNT = "Count the different values of each part: `len(set(values))`. Fewest first."
_LENGTH = (
    "whether it changes or not. How long a part is does not matter; how often it changes does."
)


def _passed_parts(answer: Callable[[Any], list[str]]) -> str:
    ids = [f"{n * 919 % 1000:03d} is the request. " for n in range(6)]
    parts = {
        "id": ids,
        "tenant": ["tenant: Keller AG."] * 3 + ["tenant: Brun & Co."] * 3,
        "rules": ["Answer in one line of JSON."] * 6,
    }

    def found(names: Sequence[str]) -> int:
        prompts = [[ord(c) for n in names for c in parts[n][i]] for i in range(6)]
        return sum(find_cached_tokens(prompts, 4))

    worst, yours = min(map(found, itertools.permutations(parts))), found(answer(dict(parts)))
    return (
        "Right on 200 templates. With a token for each letter, six prompts made of "
        f"{', '.join(parts)} find {worst} tokens in the worst order, {yours} in yours."
    )


ORDER_PARTS = Contract(
    inputs=draw_parts,
    judge=Returns(distinct_texts, wrong=_wrong_names),
    passed=_passed_parts,
    examples=200,
    tell=lambda given: "\n".join(f"{n}: {v}" for n, v in given.args[0].items()) or "no parts",
    clauses={
        "order": Clause(
            "A part that takes more different values stands in front of one that takes fewer.",
            _COUNT,
        ),
        "changes": Clause("Your function changes the dictionary it was given."),
    },
    mistakes=(
        mistake("The order is left as it was.", _COUNT, lambda parts: list(parts)),
        mistake(
            "What changes most comes first: nothing behind it can be shared.",
            _COUNT,
            _by(lambda texts: -len(set(texts))),
        ),
        mistake(
            f"The shortest part comes first, {_LENGTH}",
            _COUNT,
            _by(lambda texts: max(map(len, texts))),
            _by(lambda texts: len(texts[0])),
        ),
        mistake(
            f"The longest part comes first, {_LENGTH}",
            _COUNT,
            _by(lambda texts: -max(map(len, texts))),
            _by(lambda texts: -len(texts[0])),
        ),
        mistake("The parts are sorted by their names.", _COUNT, lambda parts: sorted(parts)),
        mistake(
            "You count how often a part changes from one request to the next. But the cache "
            "keeps all texts: a text that comes back later is found again.",
            _COUNT,
            _by(lambda texts: sum(a != b for a, b in itertools.pairwise(texts))),
        ),
        mistake(
            "You look at each part's most frequent text only.",
            _COUNT,
            _by(lambda texts: -max(map(texts.count, texts))),
        ),
        mistake(
            "Parts that change a little are treated like parts that change with each request. "
            "A tenant's part is shared within the tenant.",
            _COUNT,
            _by(lambda texts: len(set(texts)) > 1),
        ),
    ),
)

# Exercise 4


def draw_batch(c: Choices) -> Given:
    return Given(draw_prompts(c, c.pick((1, 2, 4, 16))))


def _wrong_places(expected: int, got: Any, given: Given) -> Fault | None:
    """Does each prompt share as much with the one just before it as with any before that?

    A prompt's last token is computed in any case, so it need not be shared.
    """
    (prompts,) = given.args
    each = f"0 to {expected - 1}, each once"
    if isinstance(got, list) and any(isinstance(item, list) for item in got):
        return Fault(
            "returns",
            "",
            each,
            got,
            "You return the prompts. Expected their places in "
            "the list, so that the answers can be brought back into order.",
            "`sorted(range(len(prompts)), key=...)`.",
        )
    if not isinstance(got, list) or not all(isinstance(place, Integral) for place in got):
        missing = " Is the `return` missing?" if got is None else ""
        return Fault(
            "returns",
            "",
            each,
            got,
            f"Your function returned {describe(got)}; expected a list of ints.{missing}",
        )
    if sorted(got) != list(range(expected)):
        return Fault(
            "returns",
            "",
            each,
            got,
            "Each place must occur once, or a customer gets no answer, or two.",
        )
    for sent in range(1, len(got)):
        place, before = got[sent], got[sent - 1]
        most = len(prompts[place]) - 1
        shared = [min(common(prompts[place], prompts[other]), most) for other in got[:sent]]
        if shared[-1] < max(shared):
            best = got[shared.index(max(shared))]
            words = (
                f"prompt {place} next to prompt {best}: {max(shared)} tokens are found",
                f"order {[int(n) for n in got]}: it comes after prompt {before}, with which it "
                f"shares {shared[-1]}",
            )
            return Fault("order", "", None, got, words=words)
    return None


_SORT = "Lists compare like words: sort the places by their prompts."


def _sorted_by(key: Callable[[list[int]], Any]) -> Callable[[Any], list[int]]:
    return lambda prompts: sorted(range(len(prompts)), key=lambda i: key(prompts[i]))


def _passed_batch(answer: Callable[[Any], list[int]]) -> str:
    prompts = [[tenant] * 40 + [100 + n] * 5 for n in range(3) for tenant in range(6)]
    came, sent = (
        sum(find_cached_tokens([prompts[i] for i in order], 4, 14))
        for order in (range(18), answer([list(prompt) for prompt in prompts]))
    )
    return (
        "Right on 200 batches. 18 prompts of six tenants, in a cache with room for little more "
        f"than one: {came} tokens found as they came, {sent} in your order."
    )


ORDER_REQUESTS = Contract(
    inputs=draw_batch,
    judge=Returns(len, wrong=_wrong_places),
    passed=_passed_batch,
    examples=200,
    tell=lambda given: f"{len(given.args[0])} prompts: {given.args[0]}",
    clauses={
        "order": Clause("Prompts that share a beginning are not next to each other.", _SORT),
        "changes": Clause(
            "Your function changes the list it was given.",
            "`sorted` makes a new list; `.sort()` does not.",
        ),
    },
    mistakes=(
        mistake("The order is left as it was.", _SORT, lambda prompts: list(range(len(prompts)))),
        mistake(
            "Only the first token decides. Behind it, prompts differ as well.",
            _SORT,
            _sorted_by(lambda prompt: prompt[0]),
        ),
        mistake("The prompts are sorted by their length.", _SORT, _sorted_by(len)),
        mistake(
            "The prompts are sorted from their ends. Only what stands in front is shared.",
            _SORT,
            _sorted_by(lambda prompt: prompt[-1]),
            _sorted_by(lambda prompt: prompt[::-1]),
        ),
        mistake(
            "The tokens are compared without their order.",
            _SORT,
            _sorted_by(sorted),
            _sorted_by(sum),
        ),
        mistake(
            "Equal prompts get the same place. Each place must occur once.",
            "`sorted(range(len(prompts)), key=...)` sorts the places themselves.",
            lambda prompts: [prompts.index(prompt) for prompt in sorted(prompts)],
        ),
    ),
)
