"""Prompts that begin as others do: drawn, compared by brute force, and told."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from utils.checks.kit.contracts import Choices, Fault
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.prefix_pictures import prompts as found_blocks

ALT = "Each prompt in blocks: which are found, and which you predicted."
# Few tokens, for equal blocks behind other blocks. Glued together, 1, 11 and 11, 1 are the same; so
# are 4464 and 70,000 in 16 bits.
TOKENS = ((1, 2, 3), (0, 1), (1, 11, 111), (4464, 70_000, 66_536))


def draw_prompts(
    c: Choices, block_size: int, *, inside: bool = False, longest: int = 1500
) -> list[list[int]]:
    """Prompts that are copied from earlier ones: cut, lengthened, with a token or two changed.

    Args:
        inside: no prompt ends at a block's end
        longest: so many tokens may be added at once
    """
    tokens, kind = c.pick(TOKENS), c.integer(0, 9)
    prompts: list[list[int]] = []

    def prompt() -> None:
        start: list[int] = []
        if prompts and not c.rarely(4):
            earlier = prompts[-1 - c.integer(0, len(prompts) - 1)]
            cut = c.pick((0, c.integer(0, 2), c.integer(0, len(earlier))))
            start = earlier[: len(earlier) - cut]
        if start and c.rarely(3):  # and then as another one goes on
            place, behind = c.integer(0, len(start)), c.pick(prompts)
            start = start[:place] + behind[place:]
        if start and c.rarely(4):
            start[c.integer(0, len(start) - 1)] = c.pick(tokens)
        if start and c.rarely(6):  # the same tokens in another order
            one, other = (c.integer(0, len(start) - 1) for _ in range(2))
            start[one], start[other] = start[other], start[one]
        rest = c.integer(0, 2 * block_size + 1)
        new = [c.pick(tokens) for _ in range(max(rest, not start))]
        if kind == 9:  # long prompts: the new part counts upwards
            new += [tokens[-1] + i for i in range(c.size(0, longest))]
        prompts.append([*start, *new])

    c.some(prompt, 1, {8: 70, 9: 6}.get(kind, 7))
    if c.rarely(6):  # what one and another end with lies far behind what they begin with
        middle = [tokens[0] + i for i in range(c.size(0, longest))]
        one, other = ([token] * c.integer(1, 2 * block_size) for token in tokens[:2])
        prompts += [[*one, *middle, *one], [*other, *middle, *other], [*one, *middle, *other]]
    for made in prompts:
        if inside and len(made) % block_size == 0:
            made.append(tokens[0])
    return prompts


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal tokens do both begin?"""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same


def wrong_counts(
    expected: list[int], got: Any, prompts: Sequence[Sequence[int]], block_size: int
) -> Fault | None:
    """A fault if `got` isn't this list of whole numbers, with a picture of the prompts."""
    says = difference(expected, got)
    if not says and all(isinstance(count, Integral) for count in got):
        return None
    if says.startswith("Item"):
        i = next(i for i, (n, m) in enumerate(zip(expected, got, strict=True)) if difference(n, m))
        says = f"Prompt {i} finds {expected[i]} of its tokens, not {got[i]}."
    return Fault(
        "returns",
        "",
        expected,
        got,
        says or "Expected whole numbers.",
        picture=lambda: (found_blocks(prompts, block_size, expected, got), ALT),
    )
