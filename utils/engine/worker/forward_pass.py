"""A batch on its way through the model, the fastest there is for it."""

from __future__ import annotations

from torch import Tensor

from utils.engine.attention.batch import Batch
from utils.engine.models.llama import LlamaForCausalLM


def forward_pass(
    model: LlamaForCausalLM, input_ids: Tensor, positions: Tensor, batch: Batch
) -> Tensor | None:
    """Layer after layer; or all at once, where the model has something that takes this batch.

    Fast kernels and CUDA graphs are made for what a step usually holds. Trees of guesses, requests
    with caches of their own and loads layer by layer go the plain way.

    Returns:
        Hidden states [T, hidden]; None on ranks that have passed theirs on to another one.
    """
    fast = model.all_layers
    if fast is not None and fast.takes(batch):
        hidden: Tensor = model(input_ids, positions, batch, all_layers=fast)
        return hidden
    passed_on: Tensor | None = model(input_ids, positions, batch)
    return passed_on
