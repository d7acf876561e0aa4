"""Expert parallel layers as they go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import mistake


def layer(
    weighted: bool = True,
    back_in_order: bool = True,
    all_slots: bool = True,
    local_number: bool = False,
    skip_empty: bool = False,
    overwrite: bool = False,
    by_expert: bool = False,
) -> Callable[..., Tensor]:
    """A right layer, and with any other setting than these a wrong one."""

    def forward(
        x: Tensor, ids: Tensor, weights: Tensor, run: Any, per_rank: int, group: Any
    ) -> Tensor:
        size = group.world_size
        if skip_empty and not len(x):
            return x.clone()
        chosen = ids if all_slots else ids[:, :1]
        flat = chosen.flatten()
        owner = flat // per_rank
        tokens = torch.arange(len(flat)) // max(1, chosen.shape[1])
        rows = [(owner == r).nonzero().flatten() for r in range(size)]
        if by_expert:
            rows = [r[flat[r].argsort(stable=True)] for r in rows]
        counts = torch.tensor([[len(r)] for r in rows])
        incoming = group.exchange_counts(counts).flatten().tolist()
        numbers = torch.cat(group.all_to_all([flat[r] for r in rows], incoming))
        arrived = torch.cat(group.all_to_all([x[tokens[r]] for r in rows], incoming))
        done = torch.empty_like(arrived)
        first = group.rank_in_group * per_rank
        for expert in range(first, first + per_rank):
            at = numbers == expert
            if at.any():
                done[at] = run(expert - first if local_number else expert, arrived[at])
        back = group.all_to_all(list(done.split(incoming)), [len(r) for r in rows])
        y = torch.zeros_like(x)
        places = torch.cat(rows)
        if not back_in_order:
            places = places.sort().values
        factor = weights[:, : chosen.shape[1]].flatten()[places, None] if weighted else 1.0
        results = torch.cat(back) * factor
        if overwrite:
            y[tokens[places]] = results
            return y
        return y.index_add_(0, tokens[places], results)

    return forward


def everybody_gets_everything(
    x: Tensor, ids: Tensor, weights: Tensor, run: Any, per_rank: int, group: Any
) -> Tensor:
    """All rows go to all ranks, and each sends back what its experts make of them."""
    size, hidden = group.world_size, x.shape[1]
    counts = torch.full((size, 1), len(x))
    incoming = group.exchange_counts(counts).flatten().tolist()
    arrived = torch.cat(group.all_to_all([x] * size, incoming))
    numbers = torch.cat(group.all_to_all([ids] * size, incoming))
    factors = torch.cat(group.all_to_all([weights] * size, incoming))
    done = torch.zeros(len(arrived), hidden)
    first = group.rank_in_group * per_rank
    for expert in range(first, first + per_rank):
        token, slot = (numbers == expert).nonzero(as_tuple=True)
        if len(token):
            done.index_add_(0, token, run(expert, arrived[token]) * factors[token, slot, None])
    back = group.all_to_all(list(done.split(incoming)), [len(x)] * size)
    return torch.stack(back).sum(0)


MISTAKES = (
    mistake(
        "The results are not weighted.",
        "`weights`, of the same token and place.",
        layer(weighted=False),
    ),
    mistake(
        "Results come back sorted by rank, and you take them in the order of the tokens.",
        "Keep the places of the rows that you sent to each rank.",
        layer(back_in_order=False),
        layer(back_in_order=False, by_expert=True),
    ),
    mistake(
        "Only each token's first expert is asked.",
        "`expert_ids` has `top_k` columns.",
        layer(all_slots=False),
    ),
    mistake(
        "You call an expert by its number on this rank.",
        "`run_expert` takes the number over all ranks.",
        layer(local_number=True),
    ),
    mistake(
        "A rank without tokens does not take part. The others wait for it for ever.",
        "Every rank must take part in every exchange.",
        layer(skip_empty=True),
    ),
    mistake(
        "A token with several experts keeps the result of the last one only.",
        "Add: `index_add_`.",
        layer(overwrite=True),
    ),
    mistake(
        "All rows go to all ranks. Right, and many times the bytes.",
        "Send each rank the rows for its experts only.",
        everybody_gets_everything,
    ),
)
