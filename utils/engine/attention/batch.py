"""A flat batch: whose tokens are in it, and where the keys and values before them lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from utils.engine.attention.kv_cache import KVCache
from utils.engine.attention.ops import AttentionOps
from utils.engine.attention.paged_attention import AttentionMetadata, paged_attention
from utils.engine.attention.paged_kv_cache import PagedKVCache, slot_mapping


class Batch(Protocol):
    """Knows which tokens of a flat batch belong together, and where the tokens before them are."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, ops: AttentionOps, scale: float
    ) -> Tensor:
        """Keep the new keys and values, then attend to them and to those kept before.

        Args:
            query: [T, H, D]
            key: [T, H_kv, D]
            value: [T, H_kv, D]

        Returns:
            [T, H, D]
        """


@dataclass(frozen=True)
class ContiguousBatch:
    """Each request has a cache of its own.

    The first `query_lens[0]` tokens belong to request 0, the next `query_lens[1]` to request 1.
    A cache may be None: nothing comes before these tokens, and nothing is kept.
    """

    query_lens: list[int]
    kv_caches: Sequence[KVCache | None]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, ops: AttentionOps, scale: float
    ) -> Tensor:
        outputs = []
        parts = (tensor.split(self.query_lens) for tensor in (query, key, value))
        for q, k, v, cache in zip(*parts, self.kv_caches, strict=True):
            if cache is not None:
                k, v = cache.append(layer, k, v)  # [all tokens of the request, H_kv, D]
            outputs.append(ops.attention(q, k, v, scale))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


@dataclass(frozen=True)
class PagedBatch:
    """All requests have their keys and values in blocks of one cache."""

    kv_cache: PagedKVCache
    metadata: AttentionMetadata

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, ops: AttentionOps, scale: float
    ) -> Tensor:
        # All requests write before any reads: one may have hit blocks that another fills just now.
        cache = self.kv_cache
        slots = self.metadata.slot_mapping
        if ops.reshape_and_cache is None:
            cache.write(layer, key, value, slots)
        else:
            ops.reshape_and_cache(key, value, cache.keys[layer], cache.values[layer], slots)
        paged = ops.paged_attention
        if paged is None or self.metadata.tree_masks:  # trees are more than an op is asked for
            paged = partial(paged_attention, attend_one=ops.attention)
        return paged(query, cache.keys[layer], cache.values[layer], self.metadata, scale)


class Span(NamedTuple):
    """The tokens of one request in a flat batch: `num_new` of them from position `start` on."""

    block_ids: list[int]
    start: int
    num_new: int


def paged_batch(
    kv_cache: PagedKVCache, spans: Sequence[Span], tree_masks: dict[int, Tensor] | None = None
) -> PagedBatch:
    """The flat batch of these spans. For `tree_masks` see `AttentionMetadata`."""
    device, size = kv_cache.keys.device, kv_cache.block_size
    query_lens = [span.num_new for span in spans]
    seq_lens = [span.start + span.num_new for span in spans]
    slots = [slot for ids, start, n in spans for slot in slot_mapping(ids, size, start, start + n)]
    # Blocks for guesses to come hold nothing to look at yet.
    tables = [span.block_ids[: -(-n // size)] for span, n in zip(spans, seq_lens, strict=True)]
    width = max(map(len, tables), default=0)
    padded = [block for table in tables for block in [*table, *[0] * (width - len(table))]]
    lists = [slots, [0, *accumulate(query_lens)], seq_lens, padded]
    slots_there, starts_there, lens_there, flat = int_tensors(lists, device)
    tables_there = flat.view(len(tables), width)
    rows = [row[: len(table)] for row, table in zip(tables_there, tables, strict=True)]
    masks = {i: mask.to(device) for i, mask in (tree_masks or {}).items()}
    tensors = (starts_there, lens_there, tables_there)
    metadata = AttentionMetadata(query_lens, seq_lens, rows, slots_there, masks, tensors)
    return PagedBatch(kv_cache, metadata)


def int_tensors(lists: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, ...]:
    """Each list as an int64 tensor, all in one copy to the device: a card waits for each copy."""
    flat = torch.tensor([number for numbers in lists for number in numbers], dtype=torch.int64)
    if device.type == "cuda":  # from pinned memory the CPU goes on while the copy is on its way
        flat = flat.pin_memory().to(device, non_blocking=True)
    return flat.split([len(numbers) for numbers in lists])
