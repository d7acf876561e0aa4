"""What lab 06 says of the two ways back from a preemption: exercise 6."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.runner import Passed
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
LARGE = Costs(
    num_weights=7 * 10**9,
    flops_per_pair=4 * 32 * 32 * 128,
    block_bytes=16 * 2 * 32 * 8 * 128 * 2,
    block_size=16,
    flops=2e14,
    bandwidth=2e10,
    seconds_per_copy=6e-4,
)


def draw(c: Choices) -> Given:
    """Each part may be the largest one, or 0; blocks that are full, or lack one token."""
    block_size = c.pick((c.size(1, 300), 16))
    num_tokens = c.size(1, 100_000)
    if c.rarely(3):
        num_tokens = max(1, block_size * c.size(1, 300) + c.pick((0, -1, 1)))
    costs = Costs(
        num_weights=10 ** c.integer(0, 10) * c.integer(1, 9),
        flops_per_pair=c.pick((0, 1)) * 10 ** c.integer(0, 8) * c.integer(1, 9),
        block_bytes=10 ** c.integer(0, 8) * c.integer(1, 9),
        block_size=block_size,
        flops=10.0 ** c.integer(0, 15) * c.integer(1, 9),
        bandwidth=10.0 ** c.integer(0, 12) * c.integer(1, 9),
        seconds_per_copy=c.pick((0.0, 1e-3, 6e-6, 2.0)),
    )
    return Given(num_tokens, costs)


def seconds(num_tokens: int, costs: Costs) -> tuple[float, float]:
    """Token by token, block by block, in exact fractions."""
    num_pairs = sum(range(1, num_tokens + 1))
    flops = 2 * costs.num_weights * num_tokens + costs.flops_per_pair * num_pairs
    copies = 2 * len(range(0, num_tokens, costs.block_size))
    per_copy = Fraction(costs.seconds_per_copy) + Fraction(costs.block_bytes) / Fraction(
        costs.bandwidth
    )
    return float(flops / Fraction(costs.flops)), float(copies * per_copy)


def _wrong(expected: tuple[float, float], got: Any, given: Given) -> Fault | None:
    pair = isinstance(got, tuple | list) and len(got) == 2
    if not pair or not all(isinstance(x, Real) for x in got):
        return Fault("pair", "", expected, got)
    told = [f"recompute {r:.5g} s, swap {s:.5g} s" for r, s in (expected, got)]
    for clause, want, came in zip(("recompute", "swap"), expected, got, strict=True):
        if says := difference(want, float(came), rtol=1e-9):
            other = expected[clause == "recompute"]
            swapped = not difference(other, float(came), rtol=1e-9)
            return Fault(
                "swapped" if swapped else clause,
                "",
                want,
                float(came),
                says=says,
                words=(told[0], told[1]),
            )
    return None


def _passed(answer: Any) -> Passed:
    lengths = [16 * 2**i for i in range(14)]
    both = [answer(n, LARGE) for n in lengths]
    crossing = next((n for n, (again, swap) in zip(lengths, both, strict=True) if again > swap), 0)
    return Passed(
        "Right in 150 situations. The figure shows your numbers for a large model: at "
        f"{crossing:,} tokens swapping is the cheaper way. To recompute costs more per token the "
        "longer the text, for attention looks at ever more tokens. To swap does not.",
        pictures.crossover(
            lengths,
            [again for again, _ in both],
            [swap for _, swap in both],
            "A model of 7 billion weights: short ones recompute, long ones swap",
        ),
        "What it costs to recompute and to swap, per token, over the number of tokens.",
    )


def _again(flops: Callable[[int, Costs], float]) -> Callable[[int, Costs], tuple[float, float]]:
    return lambda n, c: (flops(n, c) / c.flops, seconds(n, c)[1])


def _swap(
    copies: Callable[[int, Costs], float], started: Callable[[int, Costs], float] | None = None
) -> Callable[[int, Costs], tuple[float, float]]:
    def wrong(n: int, c: Costs) -> tuple[float, float]:
        starts = (started or copies)(n, c) * c.seconds_per_copy
        return seconds(n, c)[0], starts + copies(n, c) * c.block_bytes / c.bandwidth

    return wrong


def _blocks(n: int, c: Costs) -> int:
    return -(-n // c.block_size)


def _weights(n: int, c: Costs) -> int:
    return 2 * c.num_weights * n


def _pairs(n: int, c: Costs) -> int:
    return n * (n + 1) // 2 * c.flops_per_pair


TRIANGLE = "1 + 2 + ... + num_tokens = `num_tokens * (num_tokens + 1) / 2` pairs."
ROUND_UP = "Round up: `-(-num_tokens // costs.block_size)`."
RECOVERY_SECONDS = Contract(
    inputs=draw,
    judge=Returns(seconds, wrong=_wrong),
    passed=_passed,
    clauses={
        "pair": Clause(
            "Your function returned {got}; expected two numbers: seconds to recompute, "
            "and seconds to swap.",
            "`return recompute, swap`.",
        ),
        "swapped": Clause("The two numbers are swapped.", "`return recompute, swap`."),
        "recompute": Clause(
            "The seconds to recompute are wrong. {says}",
            "FLOPs of the weights and of the pairs of tokens, divided by `flops`.",
        ),
        "swap": Clause(
            "The seconds to swap are wrong. {says}",
            "Each block is copied out and in; each copy has a start, and bytes that flow.",
        ),
    },
    mistakes=(
        mistake(
            "Each weight costs *two* FLOPs per token: one multiplication and one addition.",
            "`2 * costs.num_weights * num_tokens`.",
            _again(lambda n, c: c.num_weights * n + _pairs(n, c)),
        ),
        mistake(
            "Attention is missing. Its share grows with the square of the length.",
            TRIANGLE,
            _again(_weights),
        ),
        mistake(
            "Attention is causal: a token looks at itself and at those *before* it. You count "
            "all pairs, in both directions.",
            TRIANGLE,
            _again(lambda n, c: _weights(n, c) + n * n * c.flops_per_pair),
        ),
        mistake(
            "You count one pair per token. The last token alone attends to all tokens before it.",
            TRIANGLE,
            _again(lambda n, c: _weights(n, c) + n * c.flops_per_pair),
        ),
        mistake(
            "Each token looks at itself, too: with this, n tokens make n (n + 1) / 2 pairs.",
            TRIANGLE,
            _again(lambda n, c: _weights(n, c) + n * n / 2 * c.flops_per_pair),
            _again(lambda n, c: _weights(n, c) + n * (n - 1) // 2 * c.flops_per_pair),
        ),
        mistake(
            "Only the last token is computed. All keys and values are gone, so all tokens are "
            "computed again.",
            "`2 * costs.num_weights * num_tokens`.",
            _again(lambda n, c: 2 * c.num_weights + n * c.flops_per_pair),
        ),
        mistake(
            "Every block travels twice: out to host memory, and later in again.",
            "`2 * num_blocks * ...`",
            _swap(_blocks),
        ),
        mistake(
            "Each copy has to be started, and that takes time, too.",
            "`costs.seconds_per_copy + costs.block_bytes / costs.bandwidth`, per block and "
            "direction.",
            _swap(lambda n, c: 2 * _blocks(n, c), lambda n, c: 0),
        ),
        mistake(
            "The copies are started one by one: `seconds_per_copy` is paid for each block, not "
            "once.",
            "Multiply the sum of both times by the number of copies.",
            _swap(lambda n, c: 2 * _blocks(n, c), lambda n, c: 2),
        ),
        mistake(
            "The last block is moved as a whole, even if it is not full.",
            ROUND_UP,
            _swap(lambda n, c: 2 * n / c.block_size),
        ),
        mistake(
            "The last block is forgotten if it is not full. Its tokens would be lost.",
            ROUND_UP,
            _swap(lambda n, c: 2 * (n // c.block_size)),
        ),
        mistake(
            "You move every token as if it were a whole block.", ROUND_UP, _swap(lambda n, c: 2 * n)
        ),
    ),
)
