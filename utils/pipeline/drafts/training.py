"""The loop that makes a loss small."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from utils.pipeline.stages.finetune import one_cycle

MAX_GRAD_NORM = 1.0


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
    schedule = one_cycle(optimizer, learning_rate, steps, warmup=0.05)
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
