"""AWQ's search for the best clipping of weights, as one small matrix product per group.

Both AWQ tools try ten clipping ratios per group of weights and keep the one with the least output
error. They do it on 512 tokens with tensors of [outputs, tokens, groups, group size], which takes
a quarter of an hour on two cores. The error they measure is a quadratic form,

    mean over tokens of (x · w' - x · w)² = d S dᵀ,    d = w' - w,  S = xᵀ x / num_tokens

so the tokens can be summed up first: S has [group size, group size] per group. Same ratios, same
tokens, same choice; about a hundred times less work.

Lin et al., "AWQ: Activation-aware Weight Quantization", 2023, https://arxiv.org/abs/2306.00978
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


@torch.no_grad()
def best_clip(
    weight: Tensor,
    inputs: Tensor,
    group_size: int,
    round_trip: Callable[[Tensor], Tensor],
    *,
    n_grid: int = 20,
    max_shrink: float = 0.5,
    n_sample_token: int = 512,
) -> Tensor:
    """Return the magnitude at which to clip each group of weights, [out, groups, 1].

    Args:
        weight: of a linear layer, [out, in].
        inputs: of that layer, [..., in].
        group_size: weights per group; it divides `in`.
        round_trip: quantizes and dequantizes weights [out, in]; same shape.
        n_grid, max_shrink: ratios 1, 1 - 1/n_grid, ... down to 1 - max_shrink (not reached).
        n_sample_token: about how many evenly spaced tokens to measure on.
    """
    x = inputs.reshape(-1, inputs.shape[-1])  # [tokens, in]
    x = x[:: max(1, x.shape[0] // n_sample_token)].to(weight.device, torch.float32)
    x = x.unflatten(-1, (-1, group_size)).transpose(0, 1)  # [groups, tokens, group]
    second_moment = x.transpose(1, 2) @ x / x.shape[1]  # [groups, group, group]
    groups = weight.unflatten(-1, (-1, group_size))  # [out, groups, group]
    largest = groups.abs().amax(dim=-1, keepdim=True)  # [out, groups, 1]
    best = largest.clone()
    least_error = torch.full_like(largest, torch.inf, dtype=torch.float32)
    for step in range(int(max_shrink * n_grid)):
        limit = largest * (1 - step / n_grid)
        clipped = torch.clamp(groups, -limit, limit)
        rounded = round_trip(clipped.flatten(1)).unflatten(-1, (-1, group_size))
        delta = (rounded.float() - groups.float()).transpose(0, 1)  # [groups, out, group]
        error = ((delta @ second_moment) * delta).sum(-1).t().unsqueeze(-1)  # [out, groups, 1]
        better = error < least_error
        least_error = torch.where(better, error, least_error)
        best = torch.where(better, limit, best)
    return best
