"""One right answer for each exercise of lab 07b, as in the solution. Mistakes edit these."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def tree_attention_mask(parents: list[int]) -> torch.Tensor:
    mask = torch.eye(1 + len(parents), dtype=torch.bool)
    for guess, parent in enumerate(parents):
        mask[guess + 1] |= mask[parent + 1]  # all that the parent sees
    return mask


def follow_tree(
    draft_token_ids: list[int], parents: list[int], target_token_ids: list[int]
) -> list[int]:
    path: list[int] = []
    node = -1
    for guess, token_id in enumerate(draft_token_ids):
        if parents[guess] == node and token_id == target_token_ids[node + 1]:
            path.append(guess)
            node = guess
    return path


class MyEagleProposer:
    def __init__(self, hidden_states: Tensor) -> None:
        self.hidden_states = hidden_states

    def keep(self, slots: list[int], hidden_states: Tensor) -> None:
        self.hidden_states[slots] = hidden_states

    def states_before(self, slots: list[int], start: int, end: int) -> Tensor:
        states = self.hidden_states[[slots[i - 1] for i in range(start, end)]]
        if start == 0:
            states[0] = 0  # nothing comes before the first token
        return states

    def guess(
        self,
        hidden: Tensor,
        num_tokens: int,
        best_token: Callable[[Tensor], int],
        read: Callable[[int, Tensor], Tensor],
    ) -> list[int]:
        token_ids: list[int] = []
        while len(token_ids) < num_tokens:
            if token_ids:
                hidden = read(token_ids[-1], hidden)
            token_ids.append(best_token(hidden))
        return token_ids
