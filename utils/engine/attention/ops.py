"""The functions that attention is built from, each of which can be replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from utils.engine.attention.attention import attention
from utils.engine.attention.paged_attention import AttentionMetadata


@dataclass(frozen=True, kw_only=True)
class AttentionOps:
    """What a batch needs in order to attend. `LlamaOps` adds what else the model is built from."""

    attention: Callable[[Tensor, Tensor, Tensor, float], Tensor] = attention
    # None: gather each request's keys and values, and call `attention`.
    paged_attention: Callable[[Tensor, Tensor, Tensor, AttentionMetadata, float], Tensor] | None = (
        None
    )
    # Takes key, value, key_cache, value_cache, slot_mapping. None: `PagedKVCache.write`.
    reshape_and_cache: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None] | None = None
