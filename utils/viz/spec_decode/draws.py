"""What a rejection sampler draws, counted."""

from __future__ import annotations

import torch
from torch import Tensor

from utils.engine import RejectionSampler


def count_draws(
    sampler: RejectionSampler, p: Tensor, q: Tensor, count: int, seed: int = 1
) -> tuple[Tensor, float]:
    """Guess one token from q and let the sampler judge it, `count` times.

    Args:
        p, q: [vocab_size], of the target and of the draft.

    Returns:
        How often each token came out first, [vocab_size], and the share of accepted guesses.
    """
    generator = torch.Generator().manual_seed(seed)
    guesses = torch.multinomial(q, count, replacement=True, generator=generator).tolist()
    target = torch.stack([p, p])  # the second row gives the bonus token
    counts, accepted = torch.zeros(len(p)), 0
    for guess in guesses:
        tokens = sampler.sample([guess], q[None], target, generator)
        counts[tokens[0]] += 1
        accepted += len(tokens) - 1
    return counts, accepted / count
