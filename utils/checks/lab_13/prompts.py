"""Prompts that begin as others do: drawn, compared by brute force, and judged with a picture."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from utils.checks.kit.contracts import Choices, Fault
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.pictures.prefixes import prompts as found_blocks

ALT = "Each prompt in blocks: which are found, and which you predicted."
SHOWN = 800  # characters: longer lists of prompts are told by their lengths
# Few tokens, for equal blocks behind other blocks. Glued together, 1, 11 and 11, 1 are the same; so
# are 4464 and 70,000 in 16 bits.
TOKENS = ((1, 2, 3), (0, 1, 2), (1, 11, 111), (1, 11, 111), (4464, 70_000, 66_536))


def draw_prompts(
    c: Choices, block_size: int, *, inside: bool = False, longest: int = 1500
) -> list[list[int]]:
    """Prompts of a few kinds of blocks, some of them copied from earlier ones and cut.

    A prompt is drawn in blocks, so that the same list in smaller blocks is as wrong.

    Args:
        inside: no prompt ends at a block's end
        longest: the most tokens between two blocks
    """
    one, other, third = tokens = c.pick(TOKENS)
    rest = block_size - 1
    kinds = [
        [one] * block_size,
        [other] * block_size,
        [one] * rest + [other],  # differs in the last token alone
        [other] + [one] * rest,  # the same tokens in another order
        [third] * block_size,
    ]
    prompts: list[list[int]] = []

    def prompt() -> None:
        made: list[int] = []
        if c.rarely(3) and prompts:
            made = [*prompts[-1 - c.integer(0, len(prompts) - 1)]]
            made = made[: len(made) - c.integer(0, min(len(made), c.pick((2, 2, len(made)))))]
        for block in c.some(lambda: c.pick(kinds), 0, 3):
            made += block
        made += [c.pick(tokens)] * c.integer(int(inside), rest)
        if not made or (inside and len(made) % block_size == 0):
            made.append(one)
        prompts.append(made)

    c.some(prompt, 0, c.pick((7, 7, 7, 7, 7, 7, 7, 70)))
    if c.rarely(6):  # what these end with lies far behind what they begin with
        middle = [one + i for i in range(c.size(0, longest))]
        for first, last in ((one, one), (other, other), (one, other)):
            made = [first] * block_size + middle + [last] * block_size
            prompts.append(made + [last] * (inside and len(made) % block_size == 0))
    return prompts or [[one]]


def told(prompts: Sequence[Sequence[int]]) -> str:
    """Prompts in words; of long ones the lengths."""
    text = str(list(prompts))
    return text if len(text) < SHOWN else f"{len(prompts)}, of {[*map(len, prompts)]} tokens"


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal tokens do both begin?"""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same


def wrong_counts(
    expected: list[int], got: Any, prompts: Sequence[Sequence[int]], block_size: int
) -> Fault | None:
    """A fault if `got` isn't this list of whole numbers, with a picture of the prompts.

    Its clause is "form", "unit" (blocks are counted), "blocks" (no whole number of them), "all"
    (the whole prompt), "more" or "fewer".
    """
    says = difference(expected, got)
    whole = not says and all(isinstance(count, Integral) for count in got)
    if whole:
        return None
    if not says.startswith("Item"):
        return Fault("form", "", expected, got, says or "Expected whole numbers.")
    i = next(i for i, (n, m) in enumerate(zip(expected, got, strict=True)) if difference(n, m))
    if not isinstance(got[i], Integral):
        return Fault("form", "", expected, got, says)
    clause = "more" if got[i] > expected[i] else "fewer"
    if got[i] >= len(prompts[i]):
        clause = "all"
    elif [count * block_size for count in got] == expected:
        clause = "unit"
    elif got[i] % block_size:
        clause = "blocks"
    return Fault(
        clause,
        "",
        expected,
        got,
        f"Prompt {i} finds {expected[i]} of its tokens; you predict {got[i]}.",
        picture=lambda: (found_blocks(prompts, block_size, expected, got), ALT),
    )
