"""What lab 13 says of orders and sizes: exercises 2, 4 and 5.

Many orders are equally good. So these checks count the hits of the learner's order, and compare
with the best that there is.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from utils.checks.kit.runner import Mismatch, call, describe
from utils.sim.prompt_cache import find_cached_tokens

Parts = dict[str, list[str]]
_BLOCK = 4  # characters stand for tokens in the prompts of exercise 2

# Exercise 2


def rendered(parts: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[list[int]]:
    """The prompts of all requests with their parts in this order, a character for a token."""
    count = len(next(iter(parts.values())))
    return [[ord(c) for c in "".join(parts[name][i] for name in names)] for i in range(count)]


def hits_of(parts: Mapping[str, Sequence[str]], names: Sequence[str]) -> int:
    """Tokens that a cache with room for everything finds in these prompts."""
    return sum(find_cached_tokens(rendered(parts, names), _BLOCK))


def judge_order_parts(function: Callable[..., list[str]]) -> str:
    """Check `order_parts(parts)` by counting hits, beside the best of all orders."""
    rules, doc = "Answer in one line of JSON.", "Our shop opens at ten and closes at six."
    ids = [f"{n * 919 % 1000:03d} is the request. " for n in range(6)]
    tenants = ["tenant: Keller AG."] * 3 + ["tenant: Brun & Co."] * 3
    words = [f"{letter}-{ord(letter)}: where is my order?" for letter in "KDXASP"]
    cases: list[Parts] = [
        {"rules": [rules] * 3, "question": words[:3]},
        {"clock": ["09:41:07 ", "09:41:09 ", "09:42:30 "], "rules": [rules] * 3},
        {"id": ids, "tenant": tenants, "rules": [rules] * 6, "question": words},
        {"question": words, "id": ids, "rules": [rules] * 6, "document": [doc] * 6},
        {"tenant": tenants, "rules": [rules] * 6},
        {"long": [f"{n}" * 40 for n in range(4)], "short": ["Hi. "] * 4},
        {"a": ["x1. " * 3, "x2. " * 3] * 3, "b": [rules] * 6, "c": words},
        # Few values that take turns; more values that stay for a while.
        {"release": [f"version 1.{7 + n // 2}, new. " for n in range(6)],
         "tenant": [tenants[0], tenants[-1]] * 3},
        # One text is frequent, but the part has more different ones.
        {"language": ["Write in German. "] * 4 + ["Write in French. ", "Write in Polish. "],
         "tenant": tenants},
    ]  # fmt: skip
    answers = []
    for parts in cases:
        given = _shown(parts)
        copy = {name: list(values) for name, values in parts.items()}
        got = call(function, copy, given=given)
        if copy != parts:
            raise Mismatch("Your function changes the dictionary it was given.", input=given)
        if isinstance(got, (tuple, list)) and not all(isinstance(name, str) for name in got):
            raise Mismatch(f"Your function returned {describe(got)}; expected a list of names.",
                           input=given)  # fmt: skip
        if not isinstance(got, list) or sorted(got) != sorted(parts):
            raise Mismatch(
                f"Your function returned {describe(got)}; expected a list with each name once.",
                input=given, expected=f"the names {list(parts)}, in a good order",
            )  # fmt: skip
        answers.append(got)
    for parts, got in zip(cases, answers, strict=True):
        best = max(itertools.permutations(parts), key=lambda names: hits_of(parts, names))
        if hits_of(parts, got) == hits_of(parts, best):
            continue
        says, look = _explain_parts(cases, answers)
        raise Mismatch(
            says, input=_shown(parts), look=look,
            expected=f"an order such as {list(best)}: {hits_of(parts, best)} tokens found",
            got=f"{got}: {hits_of(parts, got)} tokens found",
        )  # fmt: skip
    worst = min(hits_of(cases[2], names) for names in itertools.permutations(cases[2]))
    return (
        f"As many hits as the best order, for {len(cases)} templates. In the one with four parts, "
        f"the worst order finds {worst} tokens, yours {hits_of(cases[2], answers[2])}."
    )


def _explain_parts(cases: Sequence[Parts], answers: Sequence[list[str]]) -> tuple[str, str]:
    count = "Count the different values of each part: `len(set(values))`. Fewest first."

    def by(key: Callable[[list[str]], Any]) -> list[list[str]]:
        return [sorted(parts, key=lambda name: key(parts[name])) for parts in cases]

    bugs = [
        ([list(parts) for parts in cases], "The order is left as it was.", count),
        (by(lambda v: -len(set(v))), "What changes most comes first: nothing behind it can be "
         "shared.", count),
        (by(lambda v: max(map(len, v))), "The shortest part comes first, whether it changes or "
         "not. How long a part is does not matter; how often it changes does.", count),
        (by(lambda v: -max(map(len, v))), "The longest part comes first, whether it changes or "
         "not. How long a part is does not matter; how often it changes does.", count),
        ([sorted(parts) for parts in cases], "The parts are sorted by their names.", count),
        (by(lambda v: sum(a != b for a, b in itertools.pairwise(v))), "You count how often a "
         "part changes from one request to the next. But the cache keeps all texts: a text that "
         "comes back later is found again.", count),
        (by(lambda v: -max(map(v.count, v))), "You look at each part's most frequent text only.",
         count),
        (by(lambda v: len(set(v)) > 1), "Parts that change a little are treated like parts that "
         "change with each request. A tenant's part is shared within the tenant.", count),
    ]  # fmt: skip
    for wrong, says, look in bugs:
        if list(answers) == wrong:
            return says, look
    return "Other orders find more tokens.", count


def _shown(parts: Parts) -> str:
    return "\n".join(f"{name}: {values}" for name, values in parts.items())


# Exercise 4


def judge_order_requests(function: Callable[..., list[int]]) -> str:
    """Check `order_requests(prompts)` by the hits in caches that have room for little."""
    dice = random.Random(4)
    one, two = [1] * 8, [2] * 8
    cases = [
        [[*one, 3], [*two, 3, 3], [*one, 4, 4, 4], [*two, 4]],
        [[*one, 5], [*two, 5], [*one, 5], [*two, 5]],  # a question that comes twice
        # A long common beginning, and behind it one that only some share.
        [[1] * 16 + [2 + n % 3] * 4 + [50 + n] for n in range(9)],
        *(_requests(dice, tenants, each) for tenants, each in ((2, 2), (3, 3), (4, 4), (6, 3))),
        # Some tenants share a beginning with each other: to order by the first token is too little.
        [[n % 2] * 8 + [2 + n % 3] * 8 + [50 + n] * 3 for n in range(12)],
    ]
    shown = ""
    for prompts in cases:
        given = f"{len(prompts)} prompts: {prompts}"
        copy = [list(prompt) for prompt in prompts]
        got = call(function, copy, given=given)
        if copy != prompts:
            raise Mismatch("Your function changes the list it was given.", input=given,
                           look="`sorted` makes a new list; `.sort()` does not.")  # fmt: skip
        if isinstance(got, list) and sorted(map(str, got)) == sorted(map(str, prompts)):
            raise Mismatch("You return the prompts. Expected their places in the list, so that the "
                           "answers can be brought back into order.", input=given,
                           look="`sorted(range(len(prompts)), key=...)`.")  # fmt: skip
        if not isinstance(got, list) or any(type(place) is not int for place in got):
            raise Mismatch(f"Your function returned {describe(got)}; expected a list of ints.",
                           input=given)  # fmt: skip
        if sorted(got) != list(range(len(prompts))):
            raise Mismatch("Each place must occur once, or a customer gets no answer, or two.",
                           input=given, expected=f"0 to {len(prompts) - 1}, each once",
                           got=f"`{got}`")  # fmt: skip
        room = max(-(-len(prompt) // 4) for prompt in prompts) + 1
        sent = find_cached_tokens([prompts[i] for i in got], 4, room)
        best = find_cached_tokens(sorted(prompts), 4, room)
        before = find_cached_tokens(prompts, 4, room)
        if sum(sent) < sum(best):
            same = all(
                call(function, [list(p) for p in case], given=f"{len(case)} prompts: {case}")
                == list(range(len(case)))
                for case in cases
            )
            raise Mismatch(
                "The order is left as it was." if same else
                "Prompts that share a beginning are not next to each other.",
                input=f"{given}\nin a cache of {room} blocks of 4 tokens",
                expected=f"at least {sum(best)} tokens found", got=f"{sum(sent)}, order `{got}`",
                look="Lists compare like words: sort the places by their prompts.",
            )  # fmt: skip
        shown = f"{sum(before)} tokens found as they came, {sum(sent)} in your order"
    return f"{len(cases)} lists of prompts, in caches with room for little more than one. " + (
        f"In the last one: {shown}."
    )


def _requests(dice: random.Random, tenants: int, each: int) -> list[list[int]]:
    stems = [[dice.randrange(100) for _ in range(16)] for _ in range(tenants)]
    own = iter(dice.sample(range(100, 999), tenants * each))
    return [stems[n % tenants] + [next(own)] * 3 for n in range(tenants * each)]


# Exercise 5


def judge_smallest_cache(function: Callable[..., int | None]) -> str:
    """Check `smallest_cache(hits_with, target, most)`: the answer, and how often it asks."""
    calls = 0
    for most, target, threshold in (
        (1, 5, 1), (2, 5, 1), (2, 5, 2), (7, 10, 3), (7, 10, 7), (8, 10, 1), (100, 10, 64),
        (100, 10, 65), (1000, 3, 1), (1000, 3, 1000), (1000, 3, 137), (10, 0, 1), (5, 10, None),
        (1, 5, None),
    ):  # fmt: skip
        day = _Day(most, target, threshold)
        got = call(function, day.hits_with, target, most, given=day.told)
        if got != threshold or isinstance(got, bool):
            raise Mismatch(
                _explain_size(got, threshold), input=day.told, expected=f"`{threshold}`",
                got=describe(got), look="Keep two ends: below `low` nothing is enough, `high` is "
                "enough. Ask in the middle, and move one of them.",
            )  # fmt: skip
        allowed = most.bit_length() + 2
        if day.calls > allowed:
            raise Mismatch(
                f"Right, but you asked {day.calls} times; {allowed} are allowed. Each question "
                "replays a whole day of requests.", input=day.told,
                look="More blocks never find less. So ask in the middle, and drop one half.",
            )  # fmt: skip
        calls = max(calls, day.calls)
    return f"Right for caches of up to 1000 blocks, with at most {calls} questions."


class _Day:
    """A day of requests whose hits reach `target` from `threshold` blocks on; None: never."""

    def __init__(self, most: int, target: int, threshold: int | None) -> None:
        self.most, self.target, self.threshold, self.calls = most, target, threshold, 0
        enough = f"{threshold} blocks are enough" if threshold else f"{most} blocks are not enough"
        self.told = f"target {target}, most {most}; {enough}"

    def hits_with(self, num_blocks: Any) -> int:
        if type(num_blocks) is not int or not 1 <= num_blocks <= self.most:
            raise Mismatch(
                f"`hits_with({num_blocks!r})` was called. A cache has at least 1 and at most "
                "`most` blocks.", input=self.told,
                look="Keep both ends of the range inside 1 .. most.",
            )  # fmt: skip
        self.calls += 1
        if self.calls > 10 * self.most + 10:
            raise Mismatch("Your search does not end.", input=self.told,
                           look="Each round must make the range smaller.")  # fmt: skip
        if self.threshold is not None and num_blocks >= self.threshold:
            return self.target
        return max(self.target - 1, 0) * num_blocks // self.most


def _explain_size(got: Any, threshold: int | None) -> str:
    if threshold is None:
        return "Even `most` blocks are not enough. Then the answer is None."
    if got is None:
        return "Your function returned None, but there is a size that is enough."
    if type(got) is int and got < threshold:
        return "That cache is too small: it does not reach the target."
    if type(got) is int and got > threshold:
        return "That cache is enough, but a smaller one is, too."
    return "That is no number of blocks."
