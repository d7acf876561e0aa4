"""The contiguous KV cache: one block of memory per request, reserved to its largest size."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from utils.engine.config.model import ModelConfig


class KVCache(Protocol):
    """What the model asks of a request's cache. A learner's class needs no more than this."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]: ...


class ContiguousKVCache:
    """The keys and values of one request, for every layer.

    Only K and V are kept: a later token needs them of every earlier token, but never an earlier
    token's query. The memory is reserved at once for the longest the request may become. That is
    simple, and wasteful: notebook 03 measures the waste, notebook 04 removes it.

    Args:
        config: gives the number of layers, of KV heads, and the head dimension.
        max_num_tokens: the most tokens (prompt plus answer) the cache can hold.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_num_tokens: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if max_num_tokens < 1:
            raise ValueError(f"max_num_tokens must be at least 1, got {max_num_tokens}.")
        layers = config.num_hidden_layers
        shape = (layers, max_num_tokens, config.num_key_value_heads, config.head_dim)
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.max_num_tokens = max_num_tokens
        # One count per layer: within a step, layer 0 has the new tokens before layer 1 does.
        self._lengths = [0] * layers

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of T new tokens, and return those of all L tokens so far.

        Args:
            layer: index of the layer.
            key: [T, H_kv, D], rotary embedding already applied.
            value: [T, H_kv, D]

        Returns:
            Keys and values, each [L, H_kv, D]: views into the cache, nothing is copied.

        Raises:
            ValueError: the cache has no room for T more tokens.
        """
        start = self._lengths[layer]
        end = start + key.shape[0]
        if end > self.max_num_tokens:
            raise ValueError(
                f"KV cache overflow in layer {layer}: {start} tokens are stored and "
                f"{key.shape[0]} more do not fit into max_num_tokens={self.max_num_tokens}."
            )
        self.keys[layer, start:end] = key
        self.values[layer, start:end] = value
        self._lengths[layer] = end
        return self.keys[layer, :end], self.values[layer, :end]

    @property
    def num_tokens(self) -> int:
        """Tokens stored in every layer."""
        return min(self._lengths)

    @property
    def nbytes(self) -> int:
        """Bytes reserved: 2 (K, V) * layers * max_num_tokens * kv_heads * head_dim * itemsize."""
        return self.keys.nbytes + self.values.nbytes

    def truncate(self, num_tokens: int) -> None:
        """Forget all tokens but the first `num_tokens`. The memory stays reserved.

        Raises:
            ValueError: `num_tokens` is negative, or more than is stored.
        """
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(
                f"Cannot truncate to {num_tokens} tokens: expected 0 to {self.num_tokens}, "
                "the number of tokens stored."
            )
        self._lengths = [num_tokens] * len(self._lengths)
