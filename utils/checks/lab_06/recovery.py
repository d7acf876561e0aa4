"""What lab 06 says of the two ways back from a preemption: exercise 6."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.runner import Mismatch, Passed, call, describe
from utils.checks.lab_06 import pictures


@dataclass(frozen=True)
class Costs:
    """What a model needs, and what a machine can do.

    Args:
        num_weights: weights that each token is multiplied with.
        flops_per_pair: FLOPs of attention for one pair of tokens, all layers and heads together.
        block_bytes: bytes of the keys and values in one block.
        block_size: tokens in a block.
        flops: FLOP/s of the machine.
        bandwidth: bytes/s between the KV cache and host memory.
        seconds_per_copy: to start the copy of one block, in one direction.
    """

    num_weights: int
    flops_per_pair: int
    block_bytes: int
    block_size: int
    flops: float
    bandwidth: float
    seconds_per_copy: float


# 32 layers, 32 query heads and 8 KV heads of 128 numbers each, 16-bit keys and values. A block is
# 64 pieces, the keys and the values of each layer, and to start the copy of one takes about 10 µs.
_LARGE = Costs(
    num_weights=7 * 10**9, flops_per_pair=4 * 32 * 32 * 128, block_bytes=16 * 2 * 32 * 8 * 128 * 2,
    block_size=16, flops=2e14, bandwidth=2e10, seconds_per_copy=6e-4,
)  # fmt: skip
_CASES = [
    (1000, Costs(10**9, 0, 10**6, 500, 1e12, 1e9, 0.0)),
    (4000, Costs(10**9, 10**8, 10**6, 500, 1e12, 1e9, 0.0)),
    (4000, Costs(10**9, 10**8, 10**6, 16, 1e12, 1e9, 1e-3)),
    (1200, Costs(10**9, 10**5, 10**8, 500, 1e12, 1e9, 1e-2)),
    (20000, _LARGE),
]


def _seconds(num_tokens: int, costs: Costs) -> tuple[float, float]:
    """Token by token, block by block."""
    flops = 0
    for position in range(num_tokens):
        flops += 2 * costs.num_weights + (position + 1) * costs.flops_per_pair
    swap = 0.0
    for _ in range(0, num_tokens, costs.block_size):
        for _ in ("out", "in"):
            swap += costs.seconds_per_copy + costs.block_bytes / costs.bandwidth
    return flops / costs.flops, swap


def judge_recovery_seconds(function: Callable[..., Any]) -> Passed:
    """Check `recovery_seconds(num_tokens, costs)`."""
    answers = []
    for num_tokens, costs in _CASES:
        given = _told(num_tokens, costs)
        got = call(function, num_tokens, costs, given=given)
        if (
            not isinstance(got, tuple | list)
            or len(got) != 2
            or not all(isinstance(x, int | float) for x in got)
        ):
            raise Mismatch(
                f"Your function returned {describe(got)}; expected two numbers: seconds to "
                "recompute, and seconds to swap.",
                input=given, look="`return recompute, swap`.",
            )  # fmt: skip
        answers.append((float(got[0]), float(got[1])))
    for (num_tokens, costs), got in zip(_CASES, answers, strict=True):
        want = _seconds(num_tokens, costs)
        if _close(got, want):
            continue
        says, look = _explain(answers)
        raise Mismatch(
            says, input=_told(num_tokens, costs), look=look,
            expected=f"recompute {want[0]:.5g} s, swap {want[1]:.5g} s",
            got=f"recompute {got[0]:.5g} s, swap {got[1]:.5g} s",
        )  # fmt: skip
    lengths = [16 * 2**i for i in range(14)]
    both = [call(function, n, _LARGE) for n in lengths]
    crossing = next((n for n, (again, swap) in zip(lengths, both, strict=True) if again > swap), 0)
    return Passed(
        f"Right in {len(_CASES)} situations. The figure shows your numbers for a large model: at "
        f"{crossing:,} tokens swapping is the cheaper way. To recompute costs more per token the "
        "longer the text, for attention looks at ever more tokens. To swap does not.",
        pictures.crossover(
            lengths, [again for again, _ in both], [swap for _, swap in both],
            "A model of 7 billion weights: short ones recompute, long ones swap",
        ),
        "What it costs to recompute and to swap, per token, over the number of tokens.",
    )  # fmt: skip


def _told(num_tokens: int, costs: Costs) -> str:
    return f"num_tokens {num_tokens}, {costs}"


def _close(got: tuple[float, float], want: tuple[float, float]) -> bool:
    return all(math.isclose(a, b, rel_tol=2e-3) for a, b in zip(got, want, strict=True))


def _explain(answers: list[tuple[float, float]]) -> tuple[str, str]:
    """Which part is wrong in all cases, and what it looks like."""
    wanted = [_seconds(*case) for case in _CASES]
    swapped = [(swap, again) for again, swap in wanted]
    if all(_close(got, want) for got, want in zip(answers, swapped, strict=True)):
        return "The two numbers are swapped.", "`return recompute, swap`."
    for part, bugs in enumerate(_BUGS):
        got = [answer[part] for answer in answers]
        want = [pair[part] for pair in wanted]
        if all(map(lambda a, b: math.isclose(a, b, rel_tol=2e-3), got, want)):
            continue
        for says, look, wrong in bugs:
            made = [wrong(*case) for case in _CASES]
            if all(map(lambda a, b: math.isclose(a, b, rel_tol=2e-3), got, made)):
                return says, look
        name = ("recompute", "swap")[part]
        return (
            f"The seconds to {name} are wrong.",
            "Divide what is to be done by what is done per second.",
        )
    raise AssertionError("explain is only called for wrong answers")


def _pairs(n: int) -> float:
    return n * (n + 1) / 2


def _num_blocks(n: int, c: Costs) -> int:
    return -(-n // c.block_size)


def _per_block(c: Costs) -> float:
    return c.seconds_per_copy + c.block_bytes / c.bandwidth


_BUGS: tuple[list[tuple[str, str, Callable[[int, Costs], float]]], ...] = (
    [
        ("Each weight costs *two* FLOPs per token: one multiplication and one addition.",
         "`2 * costs.num_weights * num_tokens`.",
         lambda n, c: (c.num_weights * n + _pairs(n) * c.flops_per_pair) / c.flops),
        ("Attention is missing. Its share grows with the square of the length.",
         "`num_tokens * (num_tokens + 1) / 2` pairs.",
         lambda n, c: 2 * c.num_weights * n / c.flops),
        ("Attention is causal: a token looks at itself and at those *before* it. You count all "
         "pairs, in both directions.", "`num_tokens * (num_tokens + 1) / 2` pairs.",
         lambda n, c: (2 * c.num_weights * n + n * n * c.flops_per_pair) / c.flops),
        ("You count one pair per token. The last token alone attends to all tokens before it.",
         "1 + 2 + ... + num_tokens = `num_tokens * (num_tokens + 1) / 2` pairs.",
         lambda n, c: (2 * c.num_weights * n + n * c.flops_per_pair) / c.flops),
        ("Only the last token is computed. All keys and values are gone, so all tokens are "
         "computed again.", "`2 * costs.num_weights * num_tokens`.",
         lambda n, c: (2 * c.num_weights + n * c.flops_per_pair) / c.flops),
    ],
    [
        ("Every block travels twice: out to host memory, and later in again.",
         "`2 * num_blocks * ...`",
         lambda n, c: _num_blocks(n, c) * _per_block(c)),
        ("Each copy has to be started, and that takes time, too.",
         "`costs.seconds_per_copy + costs.block_bytes / costs.bandwidth`, per block and direction.",
         lambda n, c: 2 * _num_blocks(n, c) * c.block_bytes / c.bandwidth),
        ("The copies are started one by one: `seconds_per_copy` is paid for each block, not once.",
         "Multiply the sum of both times by the number of copies.",
         lambda n, c: 2 * (c.seconds_per_copy + _num_blocks(n, c) * c.block_bytes / c.bandwidth)),
        ("The last block is moved as a whole, even if it is not full.",
         "Round up: `-(-num_tokens // costs.block_size)`.",
         lambda n, c: 2 * (n / c.block_size) * _per_block(c)),
        ("The last block is forgotten if it is not full. Its tokens would be lost.",
         "Round up: `-(-num_tokens // costs.block_size)`.",
         lambda n, c: 2 * (n // c.block_size) * _per_block(c)),
        ("You move every token as if it were a whole block.",
         "`num_blocks = -(-num_tokens // costs.block_size)`.",
         lambda n, c: 2 * n * _per_block(c)),
    ],
)  # fmt: skip
