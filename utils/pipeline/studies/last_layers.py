"""Train only the last layers of a model: what the others hand up never changes, so it is kept.

Below the lowest matrix that is trained, a forward pass gives the same in every step. Computing it
once per batch makes a step of two layers out of thirty about fifteen times as fast: fast enough to
compare settings in a lesson.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.pipeline.stages.packed_batches import Batch


@torch.no_grad()
def keep_last_layers(model: Any, batches: Sequence[Batch], keep: int = 2) -> list[Tensor]:
    """Cut all layers of a Llama-like model but the last, and return what they are given.

    Args:
        model: with the attention `finetune.ATTENTION`; it loses its other layers.
        batches: what it reads.
        keep: layers that stay.

    Returns:
        Of each batch the input of the first layer that stays, [1, T, hidden_size].

    Raises:
        ValueError: the model has not more than `keep` layers.
    """
    count = len(model.model.layers)
    if not 0 < keep < count:
        raise ValueError(f"keep={keep}: expected 1 to {count - 1} of the model's {count} layers.")
    handed_up = []
    for batch in batches:
        states = model.model(
            batch.input_ids,
            position_ids=batch.position_ids,
            lengths=batch.lengths,
            use_cache=False,
            output_hidden_states=True,
        ).hidden_states
        handed_up.append(states[count - keep].clone())
    model.model.layers = model.model.layers[-keep:]
    return handed_up


def last_layers_loss(model: Any, batch: Batch, handed_up: Tensor) -> Tensor:
    """The loss of the answers in `batch`, float32, from what `keep_last_layers` returned for it."""
    logits = model(
        inputs_embeds=handed_up,
        position_ids=batch.position_ids,
        lengths=batch.lengths,
        use_cache=False,
        logits_to_keep=batch.predictors,
    ).logits[0]
    return F.cross_entropy(logits.float(), batch.targets)
