"""What lab 04 says of slots: exercise 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from utils.checks.kit import block_pictures
from utils.checks.kit.runner import Mismatch, Passed, call, describe


def judge_slot_mapping(function: Callable[..., Any]) -> Passed:
    """Check `slot_mapping(block_ids, block_size, start, end)`."""
    cases = [
        ([3], 4, 0, 1), ([3], 4, 3, 4), ([3, 1], 4, 4, 5), ([3, 1], 4, 2, 6), ([3, 1], 4, 7, 8),
        ([4, 1, 6], 4, 0, 10), ([2, 0], 3, 0, 6), ([5, 2, 9], 1, 0, 3), ([7, 3], 16, 15, 17),
        ([2, 0], 4, 5, 5),
    ]  # fmt: skip
    answers = []
    for block_ids, size, start, end in cases:
        given = (
            f"block table {block_ids}, blocks of {size}, positions {start} to {end - 1}"
            if end > start
            else f"block table {block_ids}, blocks of {size}, start {start}, end {end}: no token"
        )
        got = call(function, list(block_ids), size, start, end, given=given)
        got = got.tolist() if isinstance(got, Tensor) else got
        if not isinstance(got, list | tuple):
            raise Mismatch(
                f"`slot_mapping` returned {describe(got)}; expected a list of slots.", input=given
            )
        answers.append((given, (block_ids, size, start, end), list(got)))
    for given, args, got in answers:
        expected = _slots(*args)
        if got != expected:
            says, look = next(
                (
                    (s, where)
                    for s, where, wrong in _SLOT_MISTAKES
                    if all(_same(wrong, *a) for a in answers)
                ),
                ("These are not the slots where the tokens lie.", "block * block_size + offset"),
            )
            block_ids, size, start, _ = args
            num_blocks = max(block_ids) + 2
            drawn = all(isinstance(slot, int) for slot in got) and num_blocks * size <= 64
            raise Mismatch(
                says, input=given, expected=describe(expected), got=describe(got), look=look,
                figure=block_pictures.slots(expected, got, start, num_blocks, size)
                if drawn else None,
                alt="The slots of memory with the tokens' positions, expected and yours.",
            )  # fmt: skip
    _refuses_a_short_table(function)
    block_ids, size, start, end = cases[5]
    mine = list(function(list(block_ids), size, start, end))
    figure = block_pictures.slots(mine, mine, start, 8, size)
    return Passed(
        f"Equal to laying out the memory slot by slot, in {len(cases)} cases. The picture: "
        f"{end} tokens of a request with the block table {block_ids}.",
        figure, "Ten tokens in three blocks of four slots, in the order 4, 1, 6.",
    )  # fmt: skip


def _slots(block_ids: Sequence[int], block_size: int, start: int, end: int) -> list[int]:
    """The oracle: write down every slot of every block in order, then cut out the piece."""
    every = [block * block_size + offset for block in block_ids for offset in range(block_size)]
    return every[start:end]


def _slot_mistake(formula: Callable[[Sequence[int], int, int], int]) -> Callable[..., list[int]]:
    def wrong(table: Sequence[int], size: int, start: int, end: int) -> list[int]:
        return [formula(table, size, position) for position in range(start, end)]

    return wrong


def _at(table: Sequence[int], place: int) -> int:
    return table[min(place, len(table) - 1)]


_SLOT_MISTAKES: list[tuple[str, str, Callable[..., list[int]]]] = [
    ("You return positions. The block table is ignored.",
     "Which block? `block_ids[position // block_size]`.",
     _slot_mistake(lambda t, s, p: p)),
    ("You count as if the blocks lay side by side behind the first one. They lie anywhere.",
     "Look up the block of *each* position: `block_ids[position // block_size]`.",
     _slot_mistake(lambda t, s, p: t[0] * s + p)),
    ("The block number is not multiplied by the block size: block 3 begins at slot "
     "3 * block_size.",
     "`block * block_size + offset`.",
     _slot_mistake(lambda t, s, p: t[p // s] + p % s)),
    ("The offset is missing: all tokens of a block get its first slot.",
     "`block * block_size + position % block_size`.",
     _slot_mistake(lambda t, s, p: t[p // s] * s)),
    ("The offset is counted from the start of the text, not from the start of the block.",
     "`position % block_size`.",
     _slot_mistake(lambda t, s, p: t[p // s] * s + p)),
    ("Off by one at a block boundary: the last token of a block is sought in the next block.",
     "Position block_size - 1 is still in block 0: `position // block_size`.",
     _slot_mistake(lambda t, s, p: _at(t, (p + 1) // s) * s + p % s)),
    ("Off by one at a block boundary: the first token of a block is sought in the block before.",
     "Position block_size is the first of block 1: `position // block_size`.",
     _slot_mistake(lambda t, s, p: t[max(0, p - 1) // s] * s + p % s)),
    ("All slots are one too high.",
     "The first token of a block lies at offset 0.",
     _slot_mistake(lambda t, s, p: t[p // s] * s + p % s + 1)),
    ("Neighbouring tokens are spread over the blocks in turn. A block holds `block_size` "
     "*consecutive* tokens.",
     "`position // block_size` says which block, `position % block_size` where in it.",
     _slot_mistake(lambda t, s, p: t[p % len(t)] * s + p // len(t))),
    ("You begin at position 0, and not at `start`.",
     "`for position in range(start, end)`.",
     lambda t, s, a, b: _slots(t, s, 0, b - a)),
    ("You return the slots of all positions from 0 to `end`. Those before `start` are in the cache "
     "already.",
     "`for position in range(start, end)`.",
     lambda t, s, a, b: _slots(t, s, 0, b)),
    ("One slot too many: `end` is not included.",
     "`range(start, end)`.",
     lambda t, s, a, b: _slots(t, s, a, b + 1)),
]  # fmt: skip


def _same(wrong: Callable[..., list[int]], _: str, args: Sequence[Any], got: list[int]) -> bool:
    return wrong(*args) == got


def _refuses_a_short_table(function: Callable[..., Any]) -> None:
    for block_ids, start, end in (([3, 1], 8, 9), ([3, 1], 6, 10), ([], 0, 1)):
        given = f"block table {block_ids}, blocks of 4, positions {start} to {end - 1}"
        try:
            got = function(list(block_ids), 4, start, end)
        except ValueError:
            continue
        except Exception as error:
            raise Mismatch(
                f"A table that is too short raised {type(error).__name__}; expected a ValueError "
                "that says what is wrong.",
                input=given, look="`if end > len(block_ids) * block_size: raise ValueError(...)`.",
            ) from None  # fmt: skip
        raise Mismatch(
            "The table is too short for these positions, and your function does not complain: "
            "the token would land in another request's block.",
            input=given, expected="ValueError", got=describe(got),
            look="`if end > len(block_ids) * block_size: raise ValueError(...)`.",
        )  # fmt: skip
