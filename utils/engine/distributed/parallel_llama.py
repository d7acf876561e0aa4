"""The part of a Llama that one rank runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from utils.engine.attention.batch import Batch
from utils.engine.distributed.layers import ParallelLMHead, ParallelOps, VocabParallelEmbedding
from utils.engine.distributed.parallel_state import ParallelState
from utils.engine.distributed.shard import Shard, load_shard
from utils.engine.models.llama import LlamaForCausalLM, LlamaOps, rotary_cos_sin
from utils.engine.models.weights import checkpoint_views


@dataclass
class IntermediateTensors:
    """What a pipeline stage passes on to the next one.

    Args:
        tensors: "hidden_states" [T, hidden]. vLLM passes on "residual" beside it, because there the
            addition belongs to the next norm.
    """

    tensors: dict[str, Tensor]


class ParallelLlama(LlamaForCausalLM):
    """As `LlamaForCausalLM`, with this rank's heads, columns, rows and layers.

    Args:
        shard: what this rank holds.
        state: whom it talks to.
        ops: see `LlamaForCausalLM`.
        parallel_ops: what its distributed layers are made of.
    """

    def __init__(
        self, shard: Shard, state: ParallelState, ops: LlamaOps, parallel_ops: ParallelOps
    ) -> None:
        config = shard.config()
        super().__init__(config, ops)
        self.shard, self.state = shard, state
        row_parallel = parallel_ops.row_parallel_linear
        for layer in self.model.layers:
            attention: Any = layer.self_attn
            mlp: Any = layer.mlp
            # Before each of these is a column-parallel layer: qkv_proj, gate_up_proj, just smaller.
            attention.o_proj = row_parallel(
                config.num_attention_heads * config.head_dim, config.hidden_size, state.tp
            )
            mlp.down_proj = row_parallel(config.intermediate_size, config.hidden_size, state.tp)
        vocabularies = [
            Shard(shard.model, rank, shard.tp_size).vocabulary for rank in range(shard.tp_size)
        ]
        self.model.embed_tokens = VocabParallelEmbedding(
            shard.vocabulary, config.hidden_size, state.tp
        )
        self.lm_head = ParallelLMHead(config.hidden_size, [len(v) for v in vocabularies], state.tp)
        nothing: Any = nn.Identity()  # holds no weights
        if not shard.has_embedding:
            self.model.embed_tokens = nothing
        if not shard.has_lm_head:
            self.lm_head = self.model.norm = nothing
        self.requires_grad_(False)

    def tie_weights(self) -> None:
        """One memory for both embeddings, where this rank has both and the model has one."""
        if self.shard.model.tie_word_embeddings and self.shard.pp_size == 1:
            self.lm_head.weight = self.model.embed_tokens.weight

    def run_stage(
        self,
        input_ids: Tensor,
        positions: Tensor,
        batch: Batch,
        received: IntermediateTensors | None,
    ) -> Tensor | IntermediateTensors:
        """Run this rank's layers.

        Args:
            input_ids: [T]; only the first stage looks at them.
            positions: [T]
            received: from the stage before; None in the first.

        Returns:
            The last stage: hidden states [T, hidden]. The others: what the next stage needs.
        """
        if received is None:
            x = self.model.embed_tokens(input_ids)
        else:
            x = received.tensors["hidden_states"]
        cos, sin = rotary_cos_sin(positions, self.config.head_dim, self.config.rope_theta, x.dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin, batch)
        return (
            self.model.norm(x)
            if self.shard.has_lm_head
            else IntermediateTensors({"hidden_states": x})
        )


def load_parallel_model(
    path: Path,
    shard: Shard,
    state: ParallelState,
    dtype: torch.dtype,
    device: torch.device | str,
    ops: LlamaOps,
    parallel_ops: ParallelOps,
) -> ParallelLlama:
    """Build this rank's part, and fill it. Raises a ValueError where `load_shard` does."""
    with torch.device("meta"):
        model = ParallelLlama(shard, state, ops, parallel_ops)
    model = model.to(dtype).to_empty(device=device)
    model.tie_weights()
    load_shard(path, shard, checkpoint_views(model))
    return model
