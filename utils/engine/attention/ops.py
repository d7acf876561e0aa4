"""The functions that attention is built from, each of which can be replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from utils.engine.attention.paged_attention import AttentionMetadata

Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]  # query, key, value, scale
# Takes query, key_cache, value_cache, metadata, scale.
PagedAttention = Callable[[Tensor, Tensor, Tensor, AttentionMetadata, float], Tensor]
# Takes key, value, key_cache, value_cache, slot_mapping.
ReshapeAndCache = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]


class AttentionOps(Protocol):
    """What a batch asks for in order to attend. `LlamaOps` has it all."""

    @property
    def attention(self) -> Attention: ...

    @property
    def paged_attention(self) -> PagedAttention | None:
        """None: gather each request's keys and values, and call `attention`."""

    @property
    def reshape_and_cache(self) -> ReshapeAndCache | None:
        """None: `PagedKVCache.write`."""
