"""Prompts that are sent one after another, and what of them is found: exercise 7."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit import prefix_pictures
from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference

Prompts = Sequence[Sequence[int]]
ALT = "Each prompt in blocks, and which of them are found."


def draw(c: Choices) -> Given:
    """Prompts that begin as earlier ones do, and end with or within a block."""
    block_size = c.pick((4, 2, 1, 3, 16))
    long = c.rarely(10)
    offset = c.pick((0, 0, 70_000))
    prompts: list[list[int]] = []

    def prompt() -> None:
        start: list[int] = []
        if prompts and not c.rarely(4):
            earlier = prompts[-1 - c.integer(0, len(prompts) - 1)]
            start = earlier[: len(earlier) - c.integer(0, len(earlier))]
        blocks = c.integer(0, 40 if long else 2)
        tail = blocks * block_size + c.pick((0, 1, c.integer(0, block_size)))
        # Few tokens, for equal blocks behind other blocks; and such as 1, 11 and 1, 1, 1.
        kinds = c.pick(((1, 2, 3), (1,), (1, 11, 111)))
        new = [offset + c.pick(kinds) for _ in range(max(tail, not start))]
        prompts.append([*start, *new])

    c.some(prompt, 0, 7)
    return Given(prompts, block_size)


def found_tokens(prompts: Prompts, block_size: int) -> list[int]:
    """Brute force: compare each prompt with each earlier one, token by token."""
    found = []
    for number, prompt in enumerate(prompts):
        # What an earlier prompt leaves behind are its full blocks.
        earlier = [p[: len(p) // block_size * block_size] for p in prompts[:number]]
        found.append(min(common(earlier, prompt), len(prompt) - 1) // block_size * block_size)
    return found


def common(earlier: Prompts, prompt: Sequence[int]) -> int:
    """With how many tokens does the prompt begin as one of the earlier ones does?"""
    best = 0
    for other in earlier:
        same = 0
        while same < min(len(other), len(prompt)) and other[same] == prompt[same]:
            same += 1
        best = max(best, same)
    return best


def _wrong(expected: list[int], got: Any, given: Given) -> Fault | None:
    says = difference(expected, got)
    prompts, size = given.args
    draw_it = functools.partial(_picture, prompts, size, expected, got)
    return Fault("returns", "", expected, got, says, picture=draw_it) if says else None


def _picture(prompts: Prompts, size: int, want: list[int], got: Any) -> tuple[Figure, str]:
    short = max(map(len, prompts)) <= 40 * size
    shown = prompts if short else [p[: 40 * size] for p in prompts]
    return prefix_pictures.prompts(shown, size, want, got), ALT


def _tell(given: Given) -> str:
    prompts, size = given.args
    shown = [p if len(p) <= 40 else [*p[:12], "...", *p[-4:]] for p in prompts]
    return f"block_size {size}, prompts {shown}"


Rule = Callable[[Prompts, Sequence[int], int], int]


def _per_prompt(rule: Rule) -> Callable[[Prompts, int], list[int]]:
    """A prediction made of a rule for (earlier prompts, prompt, block_size)."""
    return lambda prompts, size: [rule(prompts[:i], p, size) for i, p in enumerate(prompts)]


def _anywhere(earlier: Prompts, p: Sequence[int], size: int) -> int:
    seen = {tuple(e[i : i + size]) for e in earlier for i in range(0, len(e) - size + 1, size)}
    count = 0
    while count < (len(p) - 1) // size and tuple(p[count * size :][:size]) in seen:
        count += 1
    return count * size


FIRST_MIN = "First `min(found, len(prompt) - 1)`, then round down to whole blocks."
DOWN = "Round down: `// block_size * block_size`."
EVERY = "Compare with every earlier prompt."
PREDICT = Contract(
    inputs=draw,
    judge=Returns(found_tokens, wrong=_wrong),
    tell=_tell,
    passed="",
    examples=200,
    clauses={
        "returns": Clause(
            "The prediction is wrong. {says}",
            "The longest beginning in common with any earlier prompt, in full "
            "blocks; at least one token is left over.",
        )
    },
    mistakes=(
        mistake(
            "A prompt that is found as a whole leaves no token to compute. At least one is "
            "always computed, and with it its whole block.",
            FIRST_MIN,
            _per_prompt(lambda e, p, s: common(e, p) // s * s),
        ),
        mistake(
            "The rounding comes too early. When the last token must be computed, its whole "
            "block is.",
            FIRST_MIN,
            _per_prompt(lambda e, p, s: min(common(e, p) // s * s, len(p) - 1)),
        ),
        mistake(
            "You count single tokens. Only full blocks are found.",
            DOWN,
            _per_prompt(lambda e, p, s: min(common(e, p), len(p) - 1)),
        ),
        mistake(
            "You round up. A block that is equal only in part is not found.",
            DOWN,
            _per_prompt(lambda e, p, s: min(-(-common(e, p) // s), (len(p) - 1) // s) * s),
        ),
        mistake(
            "Only the prompt just before is searched. The cache keeps all earlier ones.",
            EVERY,
            _per_prompt(lambda e, p, s: min(common(e[-1:], p), len(p) - 1) // s * s),
        ),
        mistake(
            "Only the very first prompt is searched. The cache keeps all earlier ones.",
            EVERY,
            _per_prompt(lambda e, p, s: min(common(e[:1], p), len(p) - 1) // s * s),
        ),
        mistake(
            "Blocks are compared without what comes before them. Equal tokens behind another "
            "prefix have other keys and values.",
            "Compare prefixes, from the first token on.",
            _per_prompt(_anywhere),
        ),
        mistake(
            "You count blocks; expected tokens.",
            "Multiply by `block_size`.",
            _per_prompt(lambda e, p, s: min(common(e, p), len(p) - 1) // s),
        ),
        mistake(
            "One block too few: the last found block is always left out. That is needed only "
            "when nothing else would be left to compute.",
            FIRST_MIN,
            _per_prompt(lambda e, p, s: max(0, common(e, p) // s * s - s)),
        ),
        mistake(
            "The first prompt finds itself. Only *earlier* prompts are in the cache.",
            "Look the prompt up first, then remember it.",
            _per_prompt(lambda e, p, s: (len(p) - 1) // s * s),
        ),
    ),
)
