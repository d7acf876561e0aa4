"""One right answer for each exercise of lab 07, as in the solution. Mistakes are edits of these."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def propose(
    token_ids: list[int],
    prompt_lookup_min: int,
    prompt_lookup_max: int,
    num_speculative_tokens: int,
) -> list[int]:
    for n in range(prompt_lookup_max, prompt_lookup_min - 1, -1):
        for start in range(len(token_ids) - n):
            end = start + n
            if token_ids[start:end] == token_ids[-n:]:
                return token_ids[end : end + num_speculative_tokens]
    return []


def verify_greedy(draft_token_ids: list[int], target_token_ids: list[int]) -> list[int]:
    output: list[int] = []
    for i, token_id in enumerate(draft_token_ids):
        if token_id != target_token_ids[i]:
            break
        output.append(token_id)
    return [*output, target_token_ids[len(output)]]


def is_accepted(
    token_id: int, target_probs: torch.Tensor, draft_probs: torch.Tensor, uniform: float
) -> bool:
    return uniform < float(target_probs[token_id] / draft_probs[token_id])


def recovered_probs(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    residual = (target_probs - draft_probs).clamp(min=0)
    return residual / residual.sum()


def rejection_sample(
    draft_token_ids: list[int],
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    generator: torch.Generator,
) -> list[int]:
    output: list[int] = []
    last = target_probs[-1]  # the bonus token's row, unless a guess is rejected
    for i, token_id in enumerate(draft_token_ids):
        if draft_probs is None:
            q = F.one_hot(torch.tensor(token_id), target_probs.shape[-1])
        else:
            q = draft_probs[i]
        uniform = torch.rand((), generator=generator).item()
        if not is_accepted(token_id, target_probs[i], q, uniform):
            last = recovered_probs(target_probs[i], q)
            break
        output.append(token_id)
    return [*output, torch.multinomial(last, 1, generator=generator).item()]  # type: ignore[list-item]


def expected_tokens(acceptance_rate: float, num_speculative_tokens: int) -> float:
    return sum(acceptance_rate**i for i in range(num_speculative_tokens + 1))


def choose_num_speculative_tokens(
    acceptance_rate: float, max_num_speculative_tokens: int, draft_token_cost: float
) -> int:
    return max(
        range(max_num_speculative_tokens + 1),
        key=lambda k: expected_tokens(acceptance_rate, k) / (1 + k * draft_token_cost),
    )
