"""Exercises 6 and 7: a row-parallel layer, and embeddings of which each rank has some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, mistake
from utils.checks.kit.contracts.inputs import tensor
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_15.judging import OnRanks, ThroughRun, on_ranks, results_of_ranks
from utils.engine.distributed.layers import RowParallelLinear, VocabParallelEmbedding

PLAIN = ("plain", "plain", "ties")


def draw_row(c: Choices) -> Given:
    """An input and a weight, cut along their common dimension into uneven parts."""
    tokens, out = c.size(0, 4), c.size(1, 5)
    widths = [c.size(1, 4) for _ in range(c.pick((2, 3, 2, 1)))]
    xs = [tensor(c, (tokens, width), values=PLAIN) for width in widths]
    weights = [tensor(c, (out, width), values=PLAIN) for width in widths]
    return Given(xs, weights, c.integer(0, 3))


def whole_product(xs: list[Tensor], weights: list[Tensor], order: int) -> list[Tensor]:
    """What one rank with everything computes."""
    return [torch.cat(xs, 1) @ torch.cat(weights, 1).T] * len(xs)


def run_row(cls: Any, xs: list[Tensor], weights: list[Tensor], order: int) -> OnRanks:
    def on_rank(group: Any, x: Tensor, weight: Tensor) -> Tensor:
        layer = cls(weight.shape[1], weight.shape[0], group)
        if not isinstance(layer, nn.Module):
            raise Mismatch("Your class is no `nn.Module`: the engine could not load its weight.")
        held = dict(layer.named_parameters())
        if [*held] != ["weight"]:
            raise Mismatch(
                "The layer must have one parameter, called `weight`.",
                expected="`['weight']`",
                got=f"`{[*held]}`",
                look="`self.weight = nn.Parameter(torch.empty(...))`. A plain tensor is "
                "not loaded, and a bias would be added once by every rank.",
            )
        if held["weight"].shape != weight.shape:
            raise Mismatch(
                "The weight's shape is wrong.",
                expected=f"`{tuple(weight.shape)}`",
                got=f"`{tuple(held['weight'].shape)}`",
                look="Outputs are rows: `(output_size, input_size)`.",
            )
        layer.requires_grad_(False)
        held["weight"].copy_(weight)
        return layer(x)

    return on_ranks(on_rank, list(zip(xs, weights, strict=True)), order)


def _ring_of_outputs(expected: list[Tensor], got: OnRanks, given: Given) -> Fault | None:
    size, out = len(expected), expected[0]
    most = 2 * (size - 1) * -(-out.numel() // size) * out.element_size()
    return results_of_ranks(expected, got, lambda _: most, same_bits=True)


class _Alone(RowParallelLinear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class _Gathers(RowParallelLinear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(self.group.all_gather(F.linear(x, self.weight)[None]).unbind()).sum(0)


class _SumsInputs(RowParallelLinear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.group.all_reduce(x), self.weight)


class _Twice(RowParallelLinear):
    def forward(self, x: Tensor) -> Tensor:
        return self.group.all_reduce(super().forward(x))


class _Forgets(RowParallelLinear):
    """Calls the all-reduce, and returns its own part."""

    def forward(self, x: Tensor) -> Tensor:
        own = F.linear(x, self.weight)
        self.group.all_reduce(own)
        return own


class _Mean(RowParallelLinear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / self.group.world_size


ROW = Contract(
    inputs=draw_row,
    judge=ThroughRun(whole_product, run_row, wrong=_ring_of_outputs),
    passed="Right: every rank has the whole product, from parts of different widths.",
    clauses={
        "returns": Clause(
            "The output is wrong. {says}",
            "The parts' products must be added up: `self.group.all_reduce(...)`.",
        ),
        "same bits": Clause("The ranks have different bits.", "`self.group.all_reduce(...)`."),
        "bytes": Clause("A rank sends too much: {got}; {expected}.", "One all-reduce."),
    },
    mistakes=(
        mistake(
            "Each rank returns its own summand, not the sum.",
            "Return what `self.group.all_reduce(F.linear(x, self.weight))` returns: a new tensor.",
            _Alone,
            _Forgets,
        ),
        mistake(
            "All summands are gathered everywhere: more bytes than an all-reduce.",
            "`self.group.all_reduce(...)`.",
            _Gathers,
        ),
        mistake(
            "The inputs are added up. They are different columns, not summands.",
            "First the product, then the sum.",
            _SumsInputs,
        ),
        mistake(
            "The sum is added up once more: a rank's result is `world_size` times too large.",
            "One all-reduce.",
            _Twice,
        ),
        mistake("The mean, not the sum.", "No division.", _Mean),
    ),
    tell=lambda given: (
        f"{len(given.args[0])} ranks, shapes of their x {[tuple(x.shape) for x in given.args[0]]}"
    ),
    examples=60,
)


def draw_vocabulary(c: Choices) -> Given:
    """A table cut between neighbouring tokens; a rank may have none of what is asked for."""
    sizes = [c.size(1, 4) for _ in range(c.pick((2, 3, 2, 1)))]
    table = tensor(c, (sum(sizes), c.size(1, 4)), values=PLAIN)
    ids = c.some(lambda: c.integer(0, sum(sizes) - 1), 0, 6)
    return Given(torch.tensor(ids, dtype=torch.int64), list(table.split(sizes)), c.integer(0, 3))


def looked_up(input_ids: Tensor, tables: list[Tensor], order: int) -> list[Tensor]:
    return [torch.cat(tables)[input_ids]] * len(tables)


def _vocabularies(tables: list[Tensor]) -> list[range]:
    ends = torch.tensor([len(t) for t in tables]).cumsum(0).tolist()
    return [range(end - len(t), end) for end, t in zip(ends, tables, strict=True)]


def run_embedding(
    answer: Callable[..., Any], input_ids: Tensor, tables: list[Tensor], order: int
) -> OnRanks:
    def on_rank(group: Any, table: Tensor, vocabulary: range) -> Any:
        return answer(input_ids, table, vocabulary, group)

    return on_ranks(on_rank, list(zip(tables, _vocabularies(tables), strict=True)), order)


def _right_embedding(ids: Tensor, table: Tensor, vocabulary: range, group: Any) -> Tensor:
    layer = VocabParallelEmbedding(vocabulary, table.shape[1], group).requires_grad_(False)
    layer.weight.copy_(table)
    return layer(ids)


def _wrong_lookup(shift: bool, mask: bool, reduce: bool, last: int = 0) -> Callable[..., Tensor]:
    def lookup(ids: Tensor, table: Tensor, vocabulary: range, group: Any) -> Tensor:
        local = ids - vocabulary.start if shift else ids
        elsewhere = (ids < vocabulary.start) | (ids >= vocabulary.stop - last)
        found = table[local.clamp(0, len(table) - 1)]
        found = found.masked_fill(elsewhere[:, None], 0.0) if mask else found
        return group.all_reduce(found) if reduce else found

    return lookup


def _mask_below_only(ids: Tensor, table: Tensor, vocabulary: range, group: Any) -> Tensor:
    found = table[(ids - vocabulary.start).clamp(0, len(table) - 1)]
    return group.all_reduce(found.masked_fill((ids < vocabulary.start)[:, None], 0.0))


def _only_if_mine(ids: Tensor, table: Tensor, vocabulary: range, group: Any) -> Tensor:
    """Takes part only if it has something to give: the others wait for ever."""
    mine = (ids >= vocabulary.start) & (ids < vocabulary.stop)
    found = torch.zeros(len(ids), table.shape[1])
    found[mine] = table[ids[mine] - vocabulary.start]
    return group.all_reduce(found) if mine.any() else found


def _changes_ids(ids: Tensor, table: Tensor, vocabulary: range, group: Any) -> Tensor:
    found = _right_embedding(ids.clone(), table, vocabulary, group)
    ids[(ids < vocabulary.start) | (ids >= vocabulary.stop)] = 0
    return found


EMBEDDING = Contract(
    inputs=draw_vocabulary,
    judge=ThroughRun(looked_up, run_embedding, wrong=_ring_of_outputs),
    passed="Right, on 1 to 3 ranks with parts of different sizes; also where a rank has none of "
    "the tokens.",
    clauses={
        "returns": Clause(
            "The embeddings are wrong. {says}",
            "Zeros for tokens that live "
            "elsewhere, then an all-reduce: one summand of each is not zero.",
        ),
        "raises": Clause(
            "{says}",
            "Every rank must take part in the all-reduce. And an index must "
            "lie in this rank's table, also for tokens that live elsewhere.",
        ),
        "same bits": Clause("The ranks have different bits.", "`group.all_reduce(...)`."),
        "bytes": Clause("A rank sends too much: {got}; {expected}.", "One all-reduce."),
    },
    mistakes=(
        mistake(
            "Token ids are used as they are; this rank's table begins at `vocabulary.start`.",
            "`input_ids - vocabulary.start`.",
            _wrong_lookup(False, True, True),
        ),
        mistake(
            "Tokens that live elsewhere are not set to zero: their sum has foreign rows in it.",
            "`masked_fill`.",
            _wrong_lookup(True, False, True),
        ),
        mistake(
            "Only this rank's tokens are there; nobody adds up.",
            "`group.all_reduce(...)`.",
            _wrong_lookup(True, True, False),
        ),
        mistake(
            "Tokens beyond this rank's vocabulary are not set to zero.",
            "Two conditions: below `start`, and from `stop` on.",
            _mask_below_only,
        ),
        mistake(
            "The last token of a rank's vocabulary is taken for a foreign one.",
            "`range.stop` is the first that does not belong to it.",
            _wrong_lookup(True, True, True, last=1),
        ),
        mistake(
            "A rank that has none of the tokens does not take part; the others wait for ever.",
            "Every rank must call `all_reduce`.",
            _only_if_mine,
        ),
        mistake(
            "Your code changes `input_ids`. The caller still needs them.",
            "`masked_fill` makes a new tensor.",
            _changes_ids,
        ),
    ),
    tell=lambda given: (
        f"input_ids {given.args[0].tolist()}, vocabularies {_vocabularies(given.args[1])}"
    ),
    examples=60,
)
