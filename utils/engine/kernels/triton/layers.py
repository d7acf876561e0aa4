"""All layers of a Llama on kernels in Triton: `LLM(kernels="triton")`.

Matrix products are PyTorch's. All that stands between them is fused into as few kernels as its data
allow: norm with the sum before it, rotation with the write into the cache, attention, gate. Decode
steps are started as CUDA graphs (see `decode_graph.py`).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from utils.engine.attention.batch import Batch, PagedBatch
from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.kernels.triton.activation import silu_and_mul
from utils.engine.kernels.triton.decode_graph import DecodeGraphs
from utils.engine.kernels.triton.norms import fused_add_rms_norm, rms_norm
from utils.engine.kernels.triton.rotary import rotary_and_cache
from utils.engine.kernels.triton.unified_attention import unified_attention
from utils.engine.models.llama import LlamaModel


class TritonLayers:
    """See `AllLayers`.

    Args:
        most_blocks: of one request; a graph's block table is that wide.
        graphs: start decode steps as CUDA graphs.
    """

    def __init__(self, most_blocks: int, graphs: bool = True) -> None:
        self.graphs = DecodeGraphs(run_layers, most_blocks) if graphs else None

    @property
    def replays(self) -> int:
        """How many steps ran on a graph."""
        return self.graphs.replays if self.graphs else 0

    def takes(self, batch: Batch) -> bool:
        """Paged batches without trees."""
        return isinstance(batch, PagedBatch) and not batch.metadata.tree_masks

    def __call__(
        self, model: LlamaModel, input_ids: Tensor, positions: Tensor, batch: Batch
    ) -> Tensor:
        assert isinstance(batch, PagedBatch)
        metadata, cache = batch.metadata, batch.kv_cache
        is_decode = len(input_ids) == len(metadata.query_lens)
        if is_decode and self.graphs:
            return self.graphs(model, cache, input_ids, positions, metadata)
        return run_layers(
            model,
            cache,
            input_ids,
            positions,
            metadata.slot_mapping,
            *metadata.as_tensors,
            is_decode=is_decode,
        )


def run_layers(
    model: LlamaModel,
    cache: PagedKVCache,
    input_ids: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    is_decode: bool,
) -> Tensor:
    """What the last layer makes of a flat batch: [T, hidden]. For the tensors see
    `AttentionMetadata`; `is_decode`: each request has one token."""
    x, cos, sin = model.embed(input_ids, positions)
    residual, out = x, None
    for i, layer in enumerate(model.layers):
        attention: Any = layer.self_attn
        mlp: Any = layer.mlp
        normed = _norm(layer.input_layernorm, residual, out)
        qkv = attention.qkv_proj(normed)
        query = rotary_and_cache(qkv, cos, sin, cache.keys[i], cache.values[i], slot_mapping)
        attended = unified_attention(
            query,
            cache.keys[i],
            cache.values[i],
            query_start_loc,
            seq_lens,
            block_tables,
            attention.scale,
            is_decode,
        )
        out = attention.o_proj(attended.flatten(1))
        normed = _norm(layer.post_attention_layernorm, residual, out)
        out = mlp.down_proj(silu_and_mul(mlp.gate_up_proj(normed)))
    return residual if out is None else residual + out


def _norm(norm: Any, residual: Tensor, out: Tensor | None) -> Tensor:
    """The norm of what is there so far, with what the last part gave added to it."""
    if out is None:
        return rms_norm(residual, norm.weight, norm.eps)
    return fused_add_rms_norm(out, residual, norm.weight, norm.eps)
