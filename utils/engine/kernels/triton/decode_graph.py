"""Decode steps as CUDA graphs.

A decode step of a small model is some ten small kernels a layer, and starting one costs the CPU
more than running it costs the card. A graph is a recording of all of them, started at once. It
repeats the same kernels on the same memory, so steps are padded up to a few sizes, and what changes
is copied into tensors that the graph reads. The kernels read each request's length from memory, so
one graph serves all lengths. https://pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from utils.engine.attention.paged_attention import AttentionMetadata
from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.kernels.recording import record
from utils.engine.models.llama import LlamaModel

RunLayers = Callable[..., Tensor]  # see `layers.run_layers`


class DecodeGraph:
    """All layers, recorded for `size` requests with one token each."""

    def __init__(
        self,
        run: RunLayers,
        model: LlamaModel,
        cache: PagedKVCache,
        size: int,
        most_blocks: int,
        pool: Any,
    ) -> None:
        device = cache.keys.device

        def numbers(*shape: int, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=torch.int64, device=device)

        # Rows that no request has: they write nowhere, and look at nothing.
        self.input_ids, self.positions = numbers(size), numbers(size)
        self.slots, self.seq_lens = numbers(size, value=-1), numbers(size)
        self.tables = numbers(size, most_blocks)
        self.starts = torch.arange(size + 1, device=device)
        self.filled = 0

        def layers() -> Tensor:
            return run(
                model,
                cache,
                self.input_ids,
                self.positions,
                self.slots,
                self.starts,
                self.seq_lens,
                self.tables,
                is_decode=True,
            )

        self.graph, self.out = record(layers, pool)

    def run(self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata) -> Tensor:
        """The last layer's output for the requests of a step: [requests, hidden].

        It lies in a tensor that the next run overwrites.
        """
        count = len(input_ids)
        _, seq_lens, tables = metadata.as_tensors
        if count < self.filled:
            self.slots[count:].fill_(-1)
            self.seq_lens[count:].zero_()
        self.filled = count
        self.input_ids[:count] = input_ids
        self.positions[:count] = positions
        self.slots[:count] = metadata.slot_mapping
        self.seq_lens[:count] = seq_lens
        self.tables[:count, : tables.shape[1]] = tables
        self.graph.replay()
        return self.out[:count]


class DecodeGraphs:
    """A graph for each size, recorded when a step first needs it. `replays` counts such steps."""

    def __init__(self, run: RunLayers, most_blocks: int) -> None:
        self.run, self.most_blocks, self.replays = run, most_blocks, 0
        self.graphs: WeakKeyDictionary[PagedKVCache, dict[int, DecodeGraph]] = WeakKeyDictionary()
        self.pool: Any = None  # memory that all graphs share: only one runs at a time

    def __call__(
        self,
        model: LlamaModel,
        cache: PagedKVCache,
        input_ids: Tensor,
        positions: Tensor,
        metadata: AttentionMetadata,
    ) -> Tensor:
        graphs, size = self.graphs.setdefault(cache, {}), padded_size(len(input_ids))
        if size not in graphs:
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            graphs[size] = DecodeGraph(self.run, model, cache, size, self.most_blocks, self.pool)
        self.replays += 1
        return graphs[size].run(input_ids, positions, metadata)


def padded_size(requests: int) -> int:
    """1, 2, 4, and then the multiples of 8, as in vLLM."""
    return 1 << (requests - 1).bit_length() if requests <= 4 else -(-requests // 8) * 8
