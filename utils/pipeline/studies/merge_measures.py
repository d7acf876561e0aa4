"""How far two models are from each other on right answers, and how sure each is of them.

One pass over prompts with their right answers (teacher forcing) gives the logits at all answer
tokens. Everything else is computed from these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.pipeline.stages.packed_batches import ATTENTION, Batch, answer_states
from utils.pipeline.stages.perplexity import exp_or_inf, perplexity


@dataclass(frozen=True)
class Measures:
    """One model, against a reference model, on the same tokens.

    Attributes:
        answer: perplexity of the right answers.
        text: perplexity of plain English; nan if it was not measured.
        max_logit: largest difference of a logit.
        kl: mean over tokens of KL(reference || model), in nats.
        same_token: share of positions at which both find the same token most probable.
        token_losses: cross-entropy of each right token, in nats, [N].
        token_kl: KL(reference || model) at each of them, in nats, [N].
    """

    answer: float
    text: float
    max_logit: float
    kl: float
    same_token: float
    token_losses: Tensor = field(repr=False, compare=False)
    token_kl: Tensor = field(repr=False, compare=False)


@torch.inference_mode()
def answer_logits(model: Any, batch: Batch) -> Tensor:
    """The logits that predict the answer tokens of a batch, float32 [N, vocab_size]."""
    model.set_attn_implementation(ATTENTION)
    states, head = answer_states(model, batch)
    return (states @ head.T).float()


def compare_logits(
    reference: Tensor, logits: Tensor, targets: Tensor, text: float = math.nan
) -> Measures:
    """Measure a model by its logits.

    Args:
        reference, logits: [N, vocab_size], of the reference and of the model.
        targets: the right tokens, [N].
        text: perplexity of plain English, passed on.

    Raises:
        ValueError: the shapes do not belong together.
    """
    if reference.shape != logits.shape or targets.shape != logits.shape[:1]:
        raise ValueError(
            f"Logits {list(reference.shape)} and {list(logits.shape)} for {list(targets.shape)} "
            "targets: all must be of the same tokens."
        )
    targets = targets.to(logits.device)
    ours, theirs = logits.log_softmax(-1), reference.log_softmax(-1)
    losses = F.nll_loss(ours, targets, reduction="none")
    token_kl = (theirs.exp() * (theirs - ours)).sum(-1)
    return Measures(
        answer=exp_or_inf(losses.mean().item()),
        text=text,
        max_logit=(logits - reference).abs().max().item(),
        kl=max(0.0, token_kl.mean().item()),  # not -1e-9
        same_token=(ours.argmax(-1) == theirs.argmax(-1)).float().mean().item(),
        token_losses=losses,
        token_kl=token_kl,
    )


def text_perplexity(model: Any, tokenizer: Any, max_tokens: int = 512) -> float:
    """Perplexity of the first tokens of the shipped novel, in one window."""
    model.set_attn_implementation("sdpa")
    return perplexity(
        model, max_tokens=max_tokens, context=max_tokens, tokenizer=tokenizer, use_tqdm=False
    )
