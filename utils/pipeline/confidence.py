"""What a measurement can say, and what it cannot: intervals for right answers and perplexities.

120 messages are a sample. Another 120 of the same kind give another share, a few points away, and
so does another processor, which rounds near ties the other way. An interval says which true shares
agree with what was counted. The intervals here hold the true value in about 95 of 100 samples.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Z = 1.96  # standard deviations of a normal distribution to each side that hold 95 %


def share_interval(right: int, total: int) -> tuple[float, float]:
    """The true shares, from 0 to 1, that agree with `right` of `total` answers.

    Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", 1927.

    Raises:
        ValueError: no answers, or more right ones than there are.
    """
    if not 0 <= right <= total or total < 1:
        raise ValueError(f"{right} right answers of {total}: expected 0 <= right <= total, > 0.")
    share, spread = right / total, Z**2 / total
    center = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    return max(0.0, center - half), min(1.0, center + half)


def loss_interval(lost: int, won: int, total: int) -> tuple[float, float]:
    """The true losses, as shares from -1 to 1, that agree with two models on the same messages.

    Only messages on which the models differ say anything about a loss. That is why comparing on the
    same messages tells more than two shares from different ones.

    Agresti and Min, "Simple improved confidence intervals for comparing matched proportions", 2005:
    one half is added to each of the four counts of (right, wrong) x (right, wrong).

    Args:
        lost: messages that only the first model answered rightly.
        won: messages that only the second one did.
        total: all messages, those included on which both were right or both wrong.

    Raises:
        ValueError: negative counts, or more differences than messages.
    """
    if min(lost, won) < 0 or not 1 <= total >= lost + won:
        raise ValueError(
            f"{lost} lost and {won} won of {total} messages: expected counts of at least 0 that "
            "together are at most the messages."
        )
    lost_share, won_share = ((count + 0.5) / (total + 2) for count in (lost, won))
    loss = lost_share - won_share
    half = Z * math.sqrt((lost_share + won_share - loss**2) / (total + 2))
    return max(-1.0, loss - half), min(1.0, loss + half)


def ratio_interval(
    losses: Tensor,
    reference: Tensor,
    *,
    block: int = 32,
    draws: int = 2000,
    generator: torch.Generator | None = None,
) -> tuple[float, float, float]:
    """The ratio of two models' perplexities on the same text, and the ratios that agree with it.

    Both models predict the same tokens, so their losses are compared token by token: what makes a
    token hard for both of them cancels. Tokens near each other are not independent, so differences
    are averaged over blocks of neighboring tokens. Then as many blocks as there are, are drawn with
    replacement, again and again (a block bootstrap): the interval holds 95 % of the drawn ratios.

    Args:
        losses: minus log probabilities of the tokens, [n]; see `token_losses`.
        reference: the same tokens' losses under the model to compare with, [n].
        block: neighboring tokens in a block. Tokens after the last full block don't count.
        draws: how often to draw.
        generator: draws the blocks. Default: one with seed 0, so that each call gives the same.

    Returns:
        (ratio, low, high): perplexity divided by the reference's. Where 1 is between low and high,
        the text can't tell the two models apart.

    Raises:
        ValueError: different lengths, or fewer than two full blocks.
    """
    import torch

    if losses.shape != reference.shape or losses.ndim != 1:
        raise ValueError(
            f"Losses of {list(losses.shape)} and {list(reference.shape)} tokens: expected the same "
            "tokens of the same text, [n] each."
        )
    num_blocks = len(losses) // block
    if num_blocks < 2:
        raise ValueError(f"{len(losses)} tokens are fewer than two blocks of {block}.")
    generator = generator or torch.Generator().manual_seed(0)
    blocks = (losses - reference)[: num_blocks * block].view(num_blocks, block).mean(1)
    drawn = torch.randint(num_blocks, (draws, num_blocks), generator=generator)
    ratios = blocks[drawn].mean(1).exp()
    low, high = ratios.quantile(torch.tensor([0.025, 0.975]).to(ratios)).tolist()
    return blocks.mean().exp().item(), low, high
