"""A batch on its way through the model, the fastest there is for it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from utils.engine.attention.batch import Batch
from utils.engine.models.llama import LlamaForCausalLM

# Without cuDNN's attention. It makes a plan for each new length, and a decode step brings new
# lengths: on an H200 a step of one request took 94 ms, and the card computed for 2 of them.
NO_PLANS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


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
    with _attention_of(input_ids.device.type):
        if fast is not None and fast.takes(batch):
            hidden: Tensor = model(input_ids, positions, batch, all_layers=fast)
            return hidden
        passed_on: Tensor | None = model(input_ids, positions, batch)
        return passed_on


def _attention_of(device: str) -> AbstractContextManager[None]:
    return sdpa_kernel(NO_PLANS) if device == "cuda" else nullcontext()
