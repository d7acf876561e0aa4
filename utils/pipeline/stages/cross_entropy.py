"""The loss of a language model without a table of all its logits.

1,000 answer tokens times 49,152 logits in float32 are 200 MB, the loss keeps as much again, and its
gradient too. Here a few rows are computed at a time, and their gradient at once, while they lie in
the CPU's cache. Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", 2024,
https://arxiv.org/abs/2411.09009
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS = 64  # whose logits are held at a time


def soft_cross_entropy(hidden: Tensor, head: Tensor, token_ids: Tensor, probs: Tensor) -> Tensor:
    """Mean of `-sum(p * log_softmax(hidden @ head.T))`, a float32 scalar.

    Args:
        hidden: [N, hidden_size]; only this gets a gradient.
        head: [vocab_size, hidden_size], frozen; the products are taken in its dtype.
        token_ids: [N, k], what each row may be followed by.
        probs: [N, k], how probable each is: they sum to 1, or to 0 in rows that do not count.

    Raises:
        ValueError: `head` asks for a gradient. It would get none.
    """
    if torch.is_grad_enabled() and head.requires_grad:
        raise ValueError("The head must be frozen (requires_grad=False): it gets no gradient here.")
    loss: Tensor = _SoftCrossEntropy.apply(hidden, head, token_ids, probs)
    return loss


class _SoftCrossEntropy(torch.autograd.Function):
    """The gradient by the logits is `softmax(logits) - p`. It is at hand as soon as they are."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, token_ids: Tensor, probs: Tensor) -> Tensor:
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        loss = torch.zeros((), device=hidden.device)
        totals = probs.sum(dim=1, keepdim=True)
        for start in range(0, len(hidden), ROWS):
            rows = slice(start, start + ROWS)
            logits = (hidden[rows].to(head.dtype) @ head.T).float()
            log_sums = logits.logsumexp(dim=1, keepdim=True)
            loss += ((log_sums - logits.gather(1, token_ids[rows])) * probs[rows]).sum()
            if gradient is not None:
                slope = logits.sub_(log_sums).exp_().mul_(totals[rows])
                slope.scatter_add_(1, token_ids[rows], -probs[rows])
                gradient[rows] = (slope.to(head.dtype) @ head).to(gradient.dtype)
        count = totals.sum()
        if gradient is not None:
            ctx.save_for_backward(gradient, count)
        return loss / count

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        gradient, count = ctx.saved_tensors
        return gradient * (outer[0] / count).to(gradient.dtype), None, None, None
