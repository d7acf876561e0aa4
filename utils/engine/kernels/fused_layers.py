"""All layers of a Llama in one call of C++ (csrc/layers.h), with packed weights."""

from __future__ import annotations

import torch
from torch import Tensor

from utils.engine.attention.batch import Batch, PagedBatch
from utils.engine.kernels.fast_ops import load_fast_ops
from utils.engine.models.llama import LlamaForCausalLM, LlamaModel


class FusedLayers:
    """See `AllLayers`. The model's weights are packed (see `pack_linears`).

    Args:
        scale: what attention scores are multiplied by.
        eps: of the norms.
    """

    def __init__(self, scale: float, eps: float) -> None:
        self.scale, self.eps = scale, eps

    def takes(self, batch: Batch) -> bool:
        """Paged batches without trees."""
        return isinstance(batch, PagedBatch) and not batch.metadata.tree_masks

    def __call__(
        self, model: LlamaModel, input_ids: Tensor, positions: Tensor, batch: Batch
    ) -> Tensor:
        assert isinstance(batch, PagedBatch)
        cache, metadata = batch.kv_cache, batch.metadata
        output: Tensor = torch.ops.llm_course.decoder_layers(
            *model.embed(input_ids, positions),
            model.packed_weights,
            cache.keys,
            cache.values,
            metadata.slot_mapping,
            *metadata.as_tensors,
            self.scale,
            self.eps,
        )
        return output


def fused_layers(model: LlamaForCausalLM) -> FusedLayers | None:
    """The fused layers of a model; None if its weights are not packed, or nothing is compiled."""
    if not model.model.packed_weights or load_fast_ops() is None:
        return None
    return FusedLayers(model.config.head_dim**-0.5, model.config.rms_norm_eps)
