"""Exercises 1 to 3: a ring that adds up, a ring that tells everybody, and both together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given
from utils.checks.kit.contracts.inputs import tensor
from utils.checks.lab_15 import ring_mistakes as wrong
from utils.checks.lab_15.judging import OnRanks, ThroughRun, on_ranks, results_of_ranks

VALUES = ("plain", "plain", "large", "ties")
WAYS = (
    "Every rank sends and receives in the same step. If all wait to send before anybody receives, "
    "all wait for ever: start both (`isend`, `irecv`), then wait for both."
)
CLAUSES = {
    "raises": Clause("{says}", WAYS),
    "neighbour": Clause(
        "In a ring a rank sends to the next one only. Here: {got}.",
        "The next rank is `(rank + 1) % world_size`.",
    ),
    "changes": Clause(
        "What a rank was given is changed. Its owner still needs it.",
        "A buffer to receive into is a new tensor: `torch.empty_like(...)`.",
    ),
}


def _size(c: Choices) -> int:
    return c.pick((2, 3, 2, 3, 4, 5, 1))


def draw_chunks(c: Choices) -> Given:
    """Each rank has a chunk for each rank; chunk `i` has the same shape everywhere."""
    size, tail = _size(c), ((3,) if c.rarely(4) else ())
    shapes = [(c.size(0, 6), *tail) for _ in range(size)]
    dtype = c.pick((torch.float32, torch.float32, torch.float64))
    per_rank = [[tensor(c, s, values=VALUES).to(dtype) for s in shapes] for _ in range(size)]
    return Given(per_rank, c.integer(0, 3))


def added_chunks(chunks: list[list[Tensor]], order: int) -> list[Tensor]:
    """Rank `r` gets the sum of everybody's chunk `r`."""
    return [torch.stack(of_all).sum(0) for of_all in zip(*chunks, strict=True)]


def run_reduce_scatter(answer: Callable[..., Any], chunks: list[list[Tensor]], order: int) -> Any:
    return on_ranks(answer, [(mine,) for mine in chunks], order, bare=True)


def _all_but_own(expected: list[Tensor], got: OnRanks, given: Given) -> Fault | None:
    chunks = given.args[0]

    def most(rank: int) -> int:
        return sum(chunk.nbytes for i, chunk in enumerate(chunks[rank]) if i != rank)

    return results_of_ranks(expected, got, most, ring=True)


def tell_ranks(given: Given) -> str:
    """Sizes of what the ranks have; numbers only where there are few."""
    per_rank = given.args[0]
    shapes = [tuple(t.shape) for t in (per_rank[0] if isinstance(per_rank[0], list) else per_rank)]
    words = f"{len(per_rank)} ranks, shapes {shapes}"
    numbers = [
        [_rounded(t) for t in mine] if isinstance(mine, list) else _rounded(mine)
        for mine in per_rank
    ]
    return words + (f", {numbers}" if len(str(numbers)) < 120 else "")


def _rounded(tensor: Tensor) -> Any:
    return (tensor.double() * 100).round().div(100).tolist()


REDUCE_SCATTER = Contract(
    inputs=draw_chunks,
    judge=ThroughRun(added_chunks, run_reduce_scatter, wrong=_all_but_own),
    passed="Right, on 1 to 5 ranks, also where chunks have different sizes or none at all. Each "
    "rank sends every chunk but its own, once.",
    clauses=CLAUSES
    | {
        "returns": Clause(
            "The sum is wrong. {says}",
            "Write down for 3 ranks who holds which "
            "chunk after each step. Chunk `r` must end at rank `r`.",
        ),
        "bytes": Clause(
            "A rank sends more than it must: {got}; {expected}.",
            "Pass on one chunk in each of `world_size - 1` steps.",
        ),
    },
    mistakes=wrong.REDUCE_SCATTER,
    tell=tell_ranks,
    examples=60,
)


def draw_owned(c: Choices) -> Given:
    """A tensor of each rank's own, of different sizes."""
    size, tail = _size(c), ((2,) if c.rarely(4) else ())
    owned = [tensor(c, (c.size(0, 6), *tail), values=VALUES) for _ in range(size)]
    like = [[torch.full_like(t, 7) for t in owned] for _ in owned]  # only their shapes count
    return Given(owned, like, c.integer(0, 3))


def all_tensors(owned: list[Tensor], like: list[list[Tensor]], order: int) -> list[list[Tensor]]:
    return [list(owned) for _ in owned]


def run_all_gather(
    answer: Callable[..., Any], owned: list[Tensor], like: list[list[Tensor]], order: int
) -> Any:
    return on_ranks(answer, list(zip(owned, like, strict=True)), order, bare=True)


def _all_but_next(expected: list[list[Tensor]], got: OnRanks, given: Given) -> Fault | None:
    owned = given.args[0]

    def most(rank: int) -> int:
        return sum(t.nbytes for i, t in enumerate(owned) if i != (rank + 1) % len(owned))

    return results_of_ranks(expected, got, most, ring=True)


ALL_GATHER = Contract(
    inputs=draw_owned,
    judge=ThroughRun(all_tensors, run_all_gather, wrong=_all_but_next),
    passed="Right, on 1 to 5 ranks and with tensors of different sizes. Each rank sends every "
    "tensor but its next neighbour's, once.",
    clauses=CLAUSES
    | {
        "returns": Clause(
            "A rank has not got what the others have, in their order. {says}",
            "In step `s` a rank passes on what it got in step `s - 1`: that of rank `rank - s`.",
        ),
        "bytes": Clause(
            "A rank sends more than it must: {got}; {expected}.",
            "After `world_size - 1` steps everybody has everything.",
        ),
    },
    mistakes=wrong.ALL_GATHER,
    tell=tell_ranks,
    examples=60,
)


def draw_tensors(c: Choices) -> Given:
    """Each rank's summand: any shape, any place in memory."""
    size = _size(c)
    shape = [c.size(0, 9)] + [c.size(0, 3) for _ in range(c.integer(0, 2))]
    return Given([tensor(c, shape, values=VALUES) for _ in range(size)], c.integer(0, 3))


def sums(tensors: list[Tensor], order: int) -> list[Tensor]:
    return [torch.stack(tensors).sum(0)] * len(tensors)


def run_all_reduce(answer: Callable[..., Any], tensors: list[Tensor], order: int) -> Any:
    return on_ranks(answer, [(mine,) for mine in tensors], order, bare=True)


def _twice_the_share(expected: list[Tensor], got: OnRanks, given: Given) -> Fault | None:
    size, mine = len(given.args[0]), given.args[0][0]
    largest = math.ceil(mine.numel() / size)
    most = 2 * (size - 1) * largest * mine.element_size()
    return results_of_ranks(expected, got, lambda _: most, ring=True, same_bits=True)


ALL_REDUCE = Contract(
    inputs=draw_tensors,
    judge=ThroughRun(sums, run_all_reduce, wrong=_twice_the_share),
    passed="Right: the sum, with the same bits on all ranks, for any shape and any number of ranks "
    "up to 5. Nobody sends more than 2 (N - 1) chunks.",
    clauses=CLAUSES
    | {
        "returns": Clause(
            "The sum is wrong. {says}",
            "Cut the flat tensor into chunks, "
            "reduce-scatter, all-gather, put together, give it its shape.",
        ),
        "same bits": Clause(
            "The ranks have different bits: each has added up in another order.",
            "Add up each number on one rank, and copy the sum from there.",
        ),
        "bytes": Clause(
            "A rank sends too much: {got}; {expected}, 2 (N - 1) chunks.",
            "Send chunks, not the whole tensor.",
        ),
    },
    mistakes=wrong.ALL_REDUCE,
    tell=tell_ranks,
    examples=60,
)
