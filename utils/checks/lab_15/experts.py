"""Exercise 9: tokens to their experts on other ranks, and back to their places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given
from utils.checks.kit.contracts.inputs import tensor
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_15.expert_mistakes import MISTAKES
from utils.checks.lab_15.judging import OnRanks, ThroughRun, on_ranks, results_of_ranks


def run_expert(expert: int, rows: Tensor) -> Tensor:
    """Expert number `e`: rows times `e + 1`, plus `e`."""
    return rows * (expert + 1) + expert


def draw_tokens(c: Choices) -> Given:
    """Each rank has its own tokens, or none; each token its own choice of experts."""
    size, per_rank, hidden = c.pick((2, 3, 2, 1)), c.integer(1, 3), c.integer(1, 2)
    experts = size * per_rank
    top_k = c.integer(1, min(3, experts))
    xs, choices, weights = [], [], []
    for _ in range(size):
        rows = c.some(lambda: c.shuffled(range(experts))[:top_k], 0, 4)
        xs.append(tensor(c, (len(rows), hidden), values=("plain",)))
        choices.append(torch.tensor(rows, dtype=torch.int64).view(len(rows), top_k))
        weights.append(tensor(c, (len(rows), top_k), values=("plain",), layouts=("contiguous",)))
    return Given(xs, choices, weights, per_rank, c.integer(0, 3))


def token_by_token(
    xs: list[Tensor], choices: list[Tensor], weights: list[Tensor], per_rank: int, order: int
) -> list[Tensor]:
    """One rank with all experts, one token after the other."""
    results = []
    for x, chosen, weight in zip(xs, choices, weights, strict=True):
        y = torch.zeros_like(x)
        for t in range(len(x)):
            for slot, expert in enumerate(chosen[t].tolist()):
                y[t] += weight[t, slot] * run_expert(expert, x[t])
        results.append(y)
    return results


def run_layer(
    answer: Callable[..., Any],
    xs: list[Tensor],
    choices: list[Tensor],
    weights: list[Tensor],
    per_rank: int,
    order: int,
) -> OnRanks:
    def on_rank(group: Any, x: Tensor, chosen: Tensor, weight: Tensor) -> Any:
        mine = range(group.rank_in_group * per_rank, (group.rank_in_group + 1) * per_rank)

        def run_mine(expert: int, rows: Tensor) -> Tensor:
            if int(expert) not in mine:
                raise Mismatch(
                    f"Rank {group.rank_in_group} was asked to run expert {int(expert)}, which "
                    f"lives on rank {int(expert) // per_rank}.",
                    look="Experts are numbered over all ranks: rank `r` has those from `r * "
                    "experts_per_rank` on.",
                )
            return run_expert(int(expert), rows)

        return answer(x, chosen, weight, run_mine, per_rank, group)

    return on_ranks(on_rank, list(zip(xs, choices, weights, strict=True)), order)


def _results_and_rows(expected: list[Tensor], got: OnRanks, given: Given) -> Fault | None:
    """Each row travels once there and once back; beside it a few numbers for each row and rank."""
    xs, choices, _, per_rank, _ = given.args
    size, hidden = len(xs), xs[0].shape[1]
    owner = [chosen // per_rank for chosen in choices]

    def most(rank: int) -> int:
        out = int((owner[rank] != rank).sum())
        back = sum(int((owner[other] == rank).sum()) for other in range(size) if other != rank)
        numbers = (out + back) * 3 * 8 + 8 * (size - 1) * (1 + 3 * per_rank)
        return (out + back) * hidden * 4 + numbers

    return results_of_ranks(expected, got, most)


def tell_tokens(given: Given) -> str:
    """Who has how many tokens, and which experts they chose."""
    xs, choices, _, per_rank, _ = given.args
    return f"{len(xs)} ranks, experts_per_rank {per_rank}, expert_ids of each rank " + ", ".join(
        str(chosen.tolist()) for chosen in choices
    )


EXPERTS = Contract(
    inputs=draw_tokens,
    judge=ThroughRun(token_by_token, run_layer, wrong=_results_and_rows),
    passed="Right, on 1 to 3 ranks, also where a rank has no tokens, or nobody wants its experts. "
    "Only the rows that must travel do.",
    clauses={
        "returns": Clause(
            "The tokens' results are wrong. {says}",
            "What comes back must find its "
            "token again: keep, for each row that you send, which token it was.",
        ),
        "raises": Clause(
            "{says}",
            "Every rank must take part in every exchange, also with "
            "nothing to send. What goes out and what comes in may differ in length.",
        ),
        "bytes": Clause(
            "A rank sends too much: {got}; {expected}.",
            "Send each rank only the rows "
            "for its experts, and each row's result only to where it came from.",
        ),
    },
    mistakes=MISTAKES,
    tell=tell_tokens,
    examples=60,
)
