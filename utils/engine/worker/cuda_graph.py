"""Decode steps as CUDA graphs: `LLM(kernels="cuda_graph")`.

A decode step of a small model is some ten small kernels a layer, and starting each of them costs
the CPU more than running it costs the card. A graph is a recording of all of them that is started
at once. It repeats the same kernels on the same memory, so shapes and addresses must stay: steps
are padded up to a few sizes, and what changes is copied into buffers that the graph reads.
https://pytorch.org/docs/stable/notes/cuda.html#cuda-graphs

These graphs hold PyTorch's kernels. `LLM(kernels="triton")` has its own, of fewer and faster ones.
docs/hardware.md says what each takes on a card.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from utils.engine.attention.batch import Batch, PagedBatch
from utils.engine.attention.paged_attention import AttentionMetadata, DecodeGroup
from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.kernels.recording import record
from utils.engine.models.llama import LlamaModel


class DecodeGraph:
    """All layers, recorded for `size` requests of at most `num_blocks` blocks, one token each."""

    def __init__(
        self,
        model: LlamaModel,
        kv_cache: PagedKVCache,
        x: Tensor,
        cos: Tensor,
        size: int,
        num_blocks: int,
    ) -> None:
        def buffer(*shape: int, dtype: torch.dtype = x.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=x.device)

        self.x = buffer(size, x.shape[1])
        self.cos, self.sin = buffer(size, cos.shape[1]), buffer(size, cos.shape[1])
        self.slots = buffer(size, dtype=torch.int64)
        self.table = buffer(size, num_blocks, dtype=torch.int64)
        self.mask = buffer(size, 1, 1, num_blocks * kv_cache.block_size)
        self.positions = torch.arange(num_blocks * kv_cache.block_size, device=x.device)
        rows = torch.arange(size, device=x.device)
        group = DecodeGroup(rows, self.table.view(-1), self.mask)
        tables = [self.table[0]] * size  # the group stands for them
        # Kept as long as the graph: it knows addresses, and reads whatever lies there later.
        self.batch = batch = PagedBatch(
            kv_cache,
            AttentionMetadata([1] * size, [1] * size, tables, self.slots, decode_groups=[group]),
        )

        def all_layers() -> Tensor:
            hidden = self.x
            for layer in model.layers:
                hidden = layer(hidden, self.cos, self.sin, batch)
            return hidden

        # The recording writes into slot 0, and so does the run before it. What lies there is put
        # back.
        first = kv_cache.device_memory[:, :, 0, 0].clone()
        self.graph, self.out = record(all_layers)
        kv_cache.device_memory[:, :, 0, 0] = first

    def run(self, x: Tensor, cos: Tensor, sin: Tensor, metadata: AttentionMetadata) -> Tensor:
        """The last layer's output for the requests of a step: [requests, hidden].

        Rows that no request has are copies of the first one's: they write the same once more. The
        result lies in a buffer, which the next run overwrites.
        """
        count = len(x)
        _, seq_lens, tables = metadata.as_tensors
        beyond = self.positions >= seq_lens[:, None, None, None]
        mask = torch.zeros_like(beyond, dtype=x.dtype).masked_fill_(beyond, -torch.inf)
        for buffer, new in (
            (self.x, x),
            (self.cos, cos),
            (self.sin, sin),
            (self.slots, metadata.slot_mapping),
            (self.table[:, : tables.shape[1]], tables),
            (self.mask, mask),
        ):
            buffer[:count] = new
            buffer[count:] = new[:1]
        self.graph.replay()
        return self.out[:count]


class CudaGraphs:
    """Runs decode steps as graphs (see `AllLayers`).

    A graph is recorded when its size is first seen: requests and blocks, each rounded up to a power
    of two. `replays` counts the steps that ran on one.
    """

    def __init__(self) -> None:
        self.graphs: WeakKeyDictionary[PagedKVCache, dict[tuple[int, int], DecodeGraph]] = (
            WeakKeyDictionary()
        )
        self.replays = 0

    def takes(self, batch: Batch) -> bool:
        """Batches of single tokens."""
        return (
            isinstance(batch, PagedBatch)
            and not batch.metadata.tree_masks
            and all(query_len == 1 for query_len in batch.metadata.query_lens)
        )

    def __call__(
        self, model: LlamaModel, input_ids: Tensor, positions: Tensor, batch: Batch
    ) -> Tensor:
        assert isinstance(batch, PagedBatch)
        x, cos, sin = model.embed(input_ids, positions)
        metadata = batch.metadata
        longest = max(len(table) for table in metadata.block_tables)
        key = (max(2, _power_of_two(len(x))), _power_of_two(longest))
        graphs = self.graphs.setdefault(batch.kv_cache, {})
        if key not in graphs:
            graphs[key] = DecodeGraph(model, batch.kv_cache, x, cos, *key)
        self.replays += 1
        return graphs[key].run(x, cos, sin, metadata)


def _power_of_two(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()
