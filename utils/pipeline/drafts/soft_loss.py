"""Cross-entropy against soft targets, and the loop that makes it small.

Hinton et al., "Distilling the Knowledge in a Neural Network", 2015,
https://arxiv.org/abs/1503.02531
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from utils.pipeline.drafts.target_answers import SoftTargets

ROWS = 512  # of logits that are held in memory at a time: never a whole [N, vocab_size] matrix
MAX_GRAD_NORM = 1.0


class _SoftCrossEntropy(torch.autograd.Function):
    """Mean over N rows of `-sum(p * log_softmax(hidden @ lm_head.T))`.

    The gradient with regard to the logits is `softmax(logits) - p`. It is at hand as soon as the
    logits are, so the forward pass multiplies it out and lets the logits go.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, lm_head: Tensor, token_ids: Tensor, probs: Tensor
    ) -> Tensor:
        gradient = torch.empty_like(hidden)
        loss = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), ROWS):
            rows = slice(start, start + ROWS)
            logits = (hidden[rows].to(lm_head.dtype) @ lm_head.T).float()
            log_z = logits.logsumexp(dim=-1, keepdim=True)
            loss += ((log_z - logits.gather(1, token_ids[rows])) * probs[rows]).sum()
            difference = logits.sub_(log_z).exp_().scatter_add_(1, token_ids[rows], -probs[rows])
            gradient[rows] = difference.to(lm_head.dtype) @ lm_head
        ctx.save_for_backward(gradient / len(hidden))
        return loss / len(hidden)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0], None, None, None


def soft_cross_entropy(hidden: Tensor, lm_head: Tensor, targets: SoftTargets) -> Tensor:
    """Mean cross-entropy, a float32 scalar; only `hidden` gets a gradient.

    Args:
        hidden: [N, hidden_size], float32.
        lm_head: [V, hidden_size]; the matrix products are taken in its dtype.
        targets: [N, k], token ids below V.
    """
    return _SoftCrossEntropy.apply(hidden, lm_head, targets.token_ids, targets.probs)


def minimize(
    next_loss: Callable[[int], Tensor],
    parameters: list[nn.Parameter],
    steps: int,
    learning_rate: float,
    title: str,
) -> list[float]:
    """Train `parameters` with AdamW, and return the loss of each step.

    Args:
        next_loss: gives the loss, a scalar, of step 0, 1, ...
        parameters: what to train.
        steps: how often. The learning rate rises during the first 5 % and falls after that.
        learning_rate: at its highest.
        title: of the progress bar.

    Raises:
        RuntimeError: the loss became NaN or infinite.
    """
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=steps, pct_start=0.05, cycle_momentum=False
    )
    losses: list[float] = []
    progress = tqdm(range(steps), desc=title, unit="step")
    for step in progress:
        loss = next_loss(step)
        losses.append(loss.item())
        if not torch.isfinite(loss):
            raise RuntimeError(
                f"The loss became {loss.item()} at step {step + 1}. Lower the learning rate "
                f"(now {learning_rate:g})."
            )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
        optimizer.step()
        schedule.step()
        progress.set_postfix(loss=f"{losses[-1]:.2f}")
    return losses


def measures(losses: list[float]) -> dict[str, float]:
    """The first loss, and the mean of the last ones."""
    tail = losses[-20:]
    return {"first_loss": losses[0], "last_loss": sum(tail) / len(tail)}
