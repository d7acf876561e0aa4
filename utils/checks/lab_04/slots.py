"""What lab 04 says of slots: exercise 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit import block_pictures
from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.runner import Passed

DRAWN = 64  # slots in a picture


def draw(c: Choices) -> Given:
    """Any blocks of any size; chunks that begin anywhere, end at a boundary, are empty, or are
    longer than the table."""
    table = c.some(lambda: c.size(0, 200_000, small=6), 0, 5)
    long = c.integer(1, 1500) if c.rarely(12) else 0
    table = list(dict.fromkeys([*table, *range(200_001, 200_001 + long)]))
    size = c.pick((1, 2, 4)) if long else c.size(1, 300)
    room = len(table) * size
    if not room or c.rarely(6):
        end = room + c.pick((1, 2, size, 3 * size))
        return Given(table, size, end - c.pick((1, c.integer(0, end))), end)
    end = c.pick((room, c.integer(0, room), c.integer(0, len(table)) * size))
    most = min(end, 3 * size + 1)
    return Given(table, size, end - c.pick((c.integer(0, most), end, min(1, end))), end)


def laid_out(block_ids: list[int], block_size: int, start: int, end: int) -> list[int]:
    """Write down every slot of every block in order, then cut out the piece."""
    every = [block * block_size + offset for block in block_ids for offset in range(block_size)]
    if end > len(every):
        raise ValueError
    return every[start:end]


def _tell(given: Given) -> str:
    table, size, start, end = given.args
    which = f"positions {start} to {end - 1}" if end > start else f"start {start}, end {end}"
    blocks = str(table) if len(table) < 12 else f"[{table[0]}, {table[1]}, ...] of {len(table)}"
    return f"block table {blocks}, blocks of {size}, {which}"


def _wrong(expected: list[int], got: Any, given: Given) -> Fault | None:
    """A tensor of slots is welcome, too."""
    got = got.tolist() if isinstance(got, Tensor) else got
    whole = isinstance(got, list) and all(type(slot) is int for slot in got)
    if not whole:
        return Fault("ints", "", expected, got)
    if says := difference(expected, got):
        table, size, start, _ = given.args

        def picture() -> tuple[Figure | None, str]:
            num_blocks = max([*table, *(slot // size for slot in got)]) + 1
            if num_blocks * size > DRAWN or min(got, default=0) < 0:
                return None, ""
            figure = block_pictures.slots(expected, got, start, num_blocks, size)
            return figure, "The slots of memory with the tokens' positions, expected and yours."

        return Fault("returns", "", expected, got, says, picture=picture)
    return None


def _by(formula: Callable[[Sequence[int], int, int], int]) -> Callable[..., list[int]]:
    """`formula(block_ids, block_size, position)` for each position."""

    def wrong(table: Sequence[int], size: int, start: int, end: int) -> list[int]:
        if end > len(table) * size:
            raise ValueError
        return [formula(table, size, position) for position in range(start, end)]

    return wrong


def _cut(begin: Callable[..., int], stop: Callable[..., int]) -> Callable[..., list[int]]:
    def wrong(table: list[int], size: int, start: int, end: int) -> list[int]:
        laid_out(table, size, start, end)
        every = laid_out(table, size, 0, len(table) * size)
        return every[begin(start, end) : stop(start, end)]

    return wrong


def _passed(answer: Any) -> Passed:
    table = [4, 1, 6]
    mine = [int(slot) for slot in answer(list(table), 4, 0, 10)]
    return Passed(
        "Equal to laying out the memory slot by slot, on 150 random tables. The picture: 10 tokens "
        f"of a request with the block table {table}.",
        block_pictures.slots(mine, mine, 0, 8, 4),
        "Ten tokens in three blocks of four slots, in the order 4, 1, 6.",
    )


SLOT_MAPPING = Contract(
    inputs=draw,
    judge=Returns(laid_out, own=True, wrong=_wrong),
    tell=_tell,
    passed=_passed,
    clauses={
        "ints": Clause(
            "Expected a list of slots, as ints; got {got}.",
            "`slots.append(block * block_size + offset)`.",
        ),
        "returns": Clause(
            "These are not the slots where the tokens lie. {says}",
            "`block_ids[position // block_size] * block_size + position % "
            "block_size`, for `position in range(start, end)`.",
        ),
        "refuses": Clause(
            "The table is too short for these positions, and your function does not "
            "complain: the token would land in another request's block.",
            "`if end > len(block_ids) * block_size: raise ValueError(...)`.",
        ),
    },
    mistakes=(
        mistake(
            "You return positions. The block table is ignored.",
            "Which block? `block_ids[position // block_size]`.",
            _by(lambda t, s, p: p),
        ),
        mistake(
            "You count as if the blocks lay side by side behind the first one. They lie anywhere.",
            "Look up the block of *each* position.",
            _by(lambda t, s, p: t[0] * s + p),
        ),
        mistake(
            "The block number is not multiplied by the block size: block 3 begins at slot "
            "3 * block_size.",
            "`block * block_size + offset`.",
            _by(lambda t, s, p: t[p // s] + p % s),
        ),
        mistake(
            "The offset is missing: all tokens of a block get its first slot.",
            "`block * block_size + position % block_size`.",
            _by(lambda t, s, p: t[p // s] * s),
        ),
        mistake(
            "The offset is counted from the start of the text, not from the start of the block.",
            "`position % block_size`.",
            _by(lambda t, s, p: t[p // s] * s + p),
        ),
        mistake(
            "Off by one at a block boundary.",
            "Position block_size - 1 is the last of block "
            "0, position block_size the first of block 1: `position // block_size`.",
            _by(lambda t, s, p: t[min((p + 1) // s, len(t) - 1)] * s + p % s),
            _by(lambda t, s, p: t[max(0, p - 1) // s] * s + p % s),
        ),
        mistake(
            "Neighbouring tokens are spread over the blocks in turn. A block holds "
            "`block_size` *consecutive* tokens.",
            "`position // block_size` says which block, `position % block_size` where in it.",
            _by(lambda t, s, p: t[p % len(t)] * s + p // len(t)),
        ),
        mistake(
            "You begin at position 0, and not at `start`.",
            "`for position in range(start, end)`.",
            _cut(lambda a, b: 0, lambda a, b: b - a),
        ),
        mistake(
            "You return the slots of all positions from 0 to `end`. Those before `start` are "
            "in the cache already.",
            "`for position in range(start, end)`.",
            _cut(lambda a, b: 0, lambda a, b: b),
        ),
        mistake(
            "One slot too many: `end` is not included.",
            "`range(start, end)`.",
            _cut(lambda a, b: a, lambda a, b: b + 1),
        ),
        mistake(
            "A table that is too short raises an IndexError. Expected a ValueError that says "
            "what is wrong.",
            "`if end > len(block_ids) * block_size: raise ValueError(...)`.",
            lambda t, s, a, b: [t[p // s] * s + p % s for p in range(a, b)],
        ),
    ),
)
