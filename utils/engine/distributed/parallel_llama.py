"""The part of a Llama that one rank runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from utils.engine.attention.batch import Batch, ContiguousBatch, PagedBatch
from utils.engine.attention.paged_attention import AttentionMetadata
from utils.engine.distributed.collectives import Work
from utils.engine.distributed.layers import ParallelLMHead, ParallelOps, VocabParallelEmbedding
from utils.engine.distributed.parallel_state import ParallelState
from utils.engine.distributed.shard import Shard, load_shard
from utils.engine.models.llama import LlamaForCausalLM, LlamaOps, rotary_cos_sin
from utils.engine.models.weights import checkpoint_views

MAX_RUNS = 4096  # that a timeline holds: nobody may ever take it


@dataclass
class IntermediateTensors:
    """What a pipeline stage passes on to the next one.

    Args:
        tensors: "hidden_states" [T, hidden]. vLLM passes on "residual" beside it, because there the
            addition belongs to the next norm.
    """

    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class StageRun:
    """A stage's work on one micro-batch: when it began and ended, in `perf_counter` seconds."""

    stage: int
    micro_batch: int
    begin: float
    end: float


class ParallelLlama(LlamaForCausalLM):
    """As `LlamaForCausalLM`, with this rank's heads, columns, rows and layers.

    Where a pipeline has several stages, it gets hidden states from the stage before, and passes
    its own on. `num_micro_batches` says into how many parts a batch is cut on the way; `timeline`
    tells what this stage did.

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
        self.num_micro_batches = 1
        self.timeline: deque[StageRun] = deque(maxlen=MAX_RUNS)
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

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, positions: Tensor, batch: Batch | None = None
    ) -> Tensor | None:
        """As `LlamaForCausalLM`: hidden states [T, hidden]; None from all stages but the last.

        With several micro-batches, this stage works on the next one while the stage after it works
        on this one.
        """
        pp, stage, dtype = self.state.pp, self.shard.pp_rank, next(self.parameters()).dtype
        parts = split_batch(batch, len(input_ids), self.num_micro_batches)
        outputs: list[Tensor] = []
        on_their_way: list[Work] = []
        for i, (rows, part) in enumerate(parts):
            received = None
            if not pp.is_first_rank:
                size = (rows.stop - rows.start, self.config.hidden_size)
                buffer = torch.empty(size, dtype=dtype)
                received = IntermediateTensors({"hidden_states": pp.recv(buffer, stage - 1)})
            begin = perf_counter()
            done = self.run_stage(input_ids[rows], positions[rows], part, received)
            self.timeline.append(StageRun(stage, i, begin, perf_counter()))
            if isinstance(done, IntermediateTensors):
                tensor = done.tensors["hidden_states"]
                on_their_way.append(pp.isend(tensor, stage + 1))
                outputs.append(tensor)  # must not change, nor be freed, before it has arrived
            else:
                outputs.append(done)
        for work in on_their_way:
            work.wait()
        return torch.cat(outputs) if self.shard.has_lm_head else None

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


def split_batch(batch: Batch | None, num_tokens: int, num_parts: int) -> list[tuple[slice, Batch]]:
    """Cut a flat batch between requests, into at most `num_parts` parts of about as many tokens.

    Args:
        batch: only a paged one is cut. None: one request, of which nothing is kept.
        num_tokens: that it holds.

    Returns:
        For each part, its rows in the flat batch, and what attention must know of them.
    """
    if not isinstance(batch, PagedBatch) or num_parts <= 1:
        return [(slice(0, num_tokens), batch or ContiguousBatch([num_tokens], [None]))]
    metadata = batch.metadata
    share = num_tokens / num_parts
    cuts, tokens = [0], 0
    for i, length in enumerate(metadata.query_lens):
        if tokens >= share * len(cuts) and len(cuts) < num_parts:
            cuts.append(i)
        tokens += length
    parts: list[tuple[slice, Batch]] = []
    row = 0
    for first, last in zip(cuts, [*cuts[1:], len(metadata.query_lens)], strict=True):
        rows = slice(row, row + sum(metadata.query_lens[first:last]))
        part = AttentionMetadata(
            metadata.query_lens[first:last],
            metadata.seq_lens[first:last],
            metadata.block_tables[first:last],
            metadata.slot_mapping[rows],
            {i - first: mask for i, mask in metadata.tree_masks.items() if first <= i < last},
        )
        parts.append((rows, PagedBatch(batch.kv_cache, part)))
        row = rows.stop
    return parts
