"""Exercises 4 and 5: which heads, and which rows and columns, a rank gets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.inputs import tensor


def draw_heads(c: Choices) -> Given:
    """Ranks that divide the KV heads, that do not, and now and then too many."""
    kv_heads, group_size = c.size(1, 16), c.pick((1, 2, 3, 4, 8))
    tp_size = c.integer(1, kv_heads + (1 if c.rarely(8) else 0))
    return Given(kv_heads * group_size, kv_heads, c.integer(0, tp_size - 1), tp_size)


def dealt_heads(num_heads: int, num_kv_heads: int, tp_rank: int, tp_size: int) -> Any:
    """As torch deals out numbers; each query head with the KV head that it shares."""
    if tp_size > num_kv_heads:
        raise ValueError
    kv = torch.arange(num_kv_heads).tensor_split(tp_size)[tp_rank].tolist()
    queries = [q for q in range(num_heads) if q * num_kv_heads // num_heads in kv]
    return range(queries[0], queries[-1] + 1), range(kv[0], kv[-1] + 1)


def _two_ranges(expected: Any, got: Any, given: Given) -> Fault | None:
    if not isinstance(got, tuple | list) or len(got) != 2:
        return Fault("form", "", "two ranges", got)
    for clause, want, came in zip(("queries", "kv"), expected, got, strict=True):
        if not isinstance(came, range):
            return Fault("form", "", want, came)
        if came != want:
            return Fault(clause, "", want, came)
    return None


def _split(number: int, rank: int, size: int) -> range:
    each, more = divmod(number, size)
    start = rank * each + min(rank, more)
    return range(start, start + each + (rank < more))


def _kv_only_divided(heads: int, kv_heads: int, rank: int, size: int) -> Any:
    """Query heads dealt out by themselves: they lose their KV head where it does not divide."""
    if size > kv_heads:
        raise ValueError
    return _split(heads, rank, size), _split(kv_heads, rank, size)


def _rounded_down(heads: int, kv_heads: int, rank: int, size: int) -> Any:
    if size > kv_heads:
        raise ValueError
    kv, group = kv_heads // size, heads // kv_heads
    return range(rank * kv * group, (rank + 1) * kv * group), range(rank * kv, (rank + 1) * kv)


def _rest_to_the_last(heads: int, kv_heads: int, rank: int, size: int) -> Any:
    queries, kv = _rounded_down(heads, kv_heads, rank, size)
    if rank == size - 1:
        queries, kv = range(queries.start, heads), range(kv.start, kv_heads)
    return queries, kv


def _rounded_up(heads: int, kv_heads: int, rank: int, size: int) -> Any:
    if size > kv_heads:
        raise ValueError
    kv, group = -(-kv_heads // size), heads // kv_heads
    mine = range(min(rank * kv, kv_heads), min((rank + 1) * kv, kv_heads))
    return range(mine.start * group, mine.stop * group), mine


def _too_many_ranks_allowed(heads: int, kv_heads: int, rank: int, size: int) -> Any:
    group, kv = heads // kv_heads, _split(kv_heads, rank, size)
    return range(kv.start * group, kv.stop * group), kv


def _round_robin(heads: int, kv_heads: int, rank: int, size: int) -> Any:
    if size > kv_heads:
        raise ValueError
    kv, group = range(rank, kv_heads, size), heads // kv_heads
    return range(rank * group, heads, size * group), kv


HEADS = Contract(
    inputs=draw_heads,
    judge=Returns(dealt_heads, wrong=_two_ranges),
    passed=lambda answer: (
        f"Right. With your function the bundled model's 9 heads on 2 ranks: "
        f"query heads {answer(9, 3, 0, 2)[0]} and {answer(9, 3, 1, 2)[0]}."
    ),
    clauses={
        "form": Clause("Expected a tuple of two ranges, like {expected}; got {got}."),
        "queries": Clause(
            "The query heads are wrong.",
            "Each KV head serves `num_heads // "
            "num_kv_heads` query heads that stand together. They stay together.",
        ),
        "kv": Clause("The KV heads are wrong.", "Shares differ by one at most, larger ones first."),
        "refuses": Clause("A rank would get no KV head: that must be refused with a {expected}."),
    },
    mistakes=(
        mistake(
            "The query heads are dealt out by themselves. Where KV heads do not divide, a rank "
            "gets queries whose KV head is elsewhere.",
            "Deal out KV heads; queries follow.",
            _kv_only_divided,
        ),
        mistake(
            "The heads that are left over belong to nobody.",
            "The first `num_kv_heads % tp_size` ranks get one more.",
            _rounded_down,
        ),
        mistake(
            "All that is left over goes to the last rank. All others wait for it.",
            "The first `num_kv_heads % tp_size` ranks get one more.",
            _rest_to_the_last,
        ),
        mistake(
            "Shares are rounded up, so the last ranks get too few, or none.",
            "Shares may differ by one at most.",
            _rounded_up,
        ),
        mistake(
            "A rank without a KV head is not refused.",
            "`if tp_size > num_kv_heads: raise ValueError(...)`.",
            _too_many_ranks_allowed,
        ),
        mistake(
            "Heads are dealt out one by one in turn. A rank's must stand together: it is one "
            "slice of the weight.",
            "Neighbouring heads.",
            _round_robin,
        ),
    ),
)


def draw_mlp(c: Choices) -> Given:
    """A stacked gate and up, and a down projection, whose width need not divide."""
    hidden, width = c.size(1, 6), c.size(1, 9)
    size = c.integer(1, min(4, width))
    gate_up = tensor(c, (2 * width, hidden), values=("plain",))
    return Given(
        gate_up, tensor(c, (hidden, width), values=("plain",)), c.integer(0, size - 1), size
    )


def cut_mlp(gate_up: Tensor, down: Tensor, tp_rank: int, tp_size: int) -> tuple[Tensor, Tensor]:
    """Column by column: those whose number falls to this rank."""
    width = down.shape[1]
    mine = torch.arange(width).tensor_split(tp_size)[tp_rank]
    return gate_up[torch.cat([mine, mine + width])], down[:, mine]


def _two_tensors(expected: Any, got: Any, given: Given) -> Fault | None:
    if not isinstance(got, tuple | list) or len(got) != 2:
        return Fault("form", "", "two tensors", got)
    for clause, want, came in zip(("gate_up", "down"), expected, got, strict=True):
        if says := difference(want, came):
            return Fault(clause, "", want, came, says)
    return None


def _cut_stacked(gate_up: Tensor, down: Tensor, rank: int, size: int) -> Any:
    """Cuts the stack of gate and up as if it were one matrix."""
    return gate_up.tensor_split(size)[rank], down.tensor_split(size, 1)[rank]


def _down_by_rows(gate_up: Tensor, down: Tensor, rank: int, size: int) -> Any:
    gate, up = gate_up.chunk(2)
    parts = [gate.tensor_split(size)[rank], up.tensor_split(size)[rank]]
    return torch.cat(parts), down.tensor_split(size)[rank]


def _down_whole(gate_up: Tensor, down: Tensor, rank: int, size: int) -> Any:
    return _down_by_rows(gate_up, down, rank, size)[0], down


def _gate_up_columns(gate_up: Tensor, down: Tensor, rank: int, size: int) -> Any:
    return gate_up.tensor_split(size, 1)[rank], down.tensor_split(size, 1)[rank]


def _equal_parts(gate_up: Tensor, down: Tensor, rank: int, size: int) -> Any:
    each = down.shape[1] // size
    mine = slice(rank * each, (rank + 1) * each)
    gate, up = gate_up.chunk(2)
    return torch.cat([gate[mine], up[mine]]), down[:, mine]


def _interleaved(gate_up: Tensor, down: Tensor, rank: int, size: int) -> Any:
    gate, up = (part.tensor_split(size)[rank] for part in gate_up.chunk(2))
    return torch.stack([gate, up], 1).flatten(0, 1), down.tensor_split(size, 1)[rank]


def _up_first(gate_up: Tensor, down: Tensor, rank: int, size: int) -> Any:
    gate, up = (part.tensor_split(size)[rank] for part in gate_up.chunk(2))
    return torch.cat([up, gate]), down.tensor_split(size, 1)[rank]


MLP = Contract(
    inputs=draw_mlp,
    judge=Returns(cut_mlp, wrong=_two_tensors),
    passed="Right, also where the width does not divide. The ranks' outputs add up to the whole "
    "MLP's, and nothing had to be sent in between.",
    clauses={
        "form": Clause("Expected a tuple of two tensors; got {got}."),
        "gate_up": Clause(
            "The rank's part of `gate_up` is wrong. {says}",
            "Rows of `gate_up` are outputs: the first half gate, the second up.",
        ),
        "down": Clause(
            "The rank's part of `down` is wrong. {says}", "The inputs of `down` are its columns."
        ),
    },
    mistakes=(
        mistake(
            "You cut the stack as one matrix: the first ranks get only rows of gate, the last "
            "only rows of up.",
            "`gate, up = gate_up.chunk(2)`; cut each; `torch.cat`.",
            _cut_stacked,
        ),
        mistake(
            "`down` is cut by its outputs. It takes what this rank's columns yield.",
            "`down.tensor_split(tp_size, dim=1)`.",
            _down_by_rows,
        ),
        mistake(
            "`down` is whole, but its inputs are only this rank's.",
            "`down.tensor_split(tp_size, dim=1)`.",
            _down_whole,
        ),
        mistake(
            "`gate_up` is cut by its inputs. Every rank has all of `x`: cut the outputs.",
            "Rows of a weight are outputs.",
            _gate_up_columns,
        ),
        mistake("Columns that are left over belong to nobody.", "`tensor_split`.", _equal_parts),
        mistake(
            "Rows of gate and up alternate. `silu_and_mul` expects all of gate first.",
            "`torch.cat([gate, up])`.",
            _interleaved,
        ),
        mistake("Up stands before gate.", "`torch.cat([gate, up])`.", _up_first),
    ),
    tell=lambda given: (
        f"gate_up {tuple(given.args[0].shape)}, down {tuple(given.args[1].shape)}, "
        f"tp_rank {given.args[2]}, tp_size {given.args[3]}"
    ),
    examples=100,
)
