"""One right answer for each exercise of lab 02, as in the solution. Mistakes are edits of these."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from utils.engine import ModelConfig


def kv_cache_bytes(
    config: ModelConfig,
    num_tokens: int,
    batch_size: int = 1,
    bytes_per_value: int = 2,
    layers_per_cache: int = 1,
) -> int:
    num_caches = math.ceil(config.num_hidden_layers / layers_per_cache)
    values_per_token = 2 * num_caches * config.num_key_value_heads * config.head_dim
    return values_per_token * num_tokens * batch_size * bytes_per_value


def latent_cache_bytes(
    num_layers: int, kv_lora_rank: int, qk_rope_head_dim: int, num_tokens: int, bytes_per_value: int
) -> int:
    values_per_token = num_layers * (kv_lora_rank + qk_rope_head_dim)
    return values_per_token * num_tokens * bytes_per_value


class KVCache:
    def __init__(
        self,
        config: ModelConfig,
        max_num_tokens: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        layers, heads = config.num_hidden_layers, config.num_key_value_heads
        shape = (layers, max_num_tokens, heads, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.max_num_tokens = max_num_tokens
        self.lengths = [0] * layers

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        start = self.lengths[layer]
        end = start + key.shape[0]
        if end > self.max_num_tokens:
            raise ValueError(f"{end} tokens do not fit into max_num_tokens={self.max_num_tokens}")
        self.keys[layer, start:end] = key
        self.values[layer, start:end] = value
        self.lengths[layer] = end
        return self.keys[layer, :end], self.values[layer, :end]

    @property
    def num_tokens(self) -> int:
        return min(self.lengths)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def truncate(self, num_tokens: int) -> None:
        if num_tokens > self.num_tokens:
            raise ValueError(f"{self.num_tokens} tokens are held, {num_tokens} cannot be kept")
        self.lengths = [num_tokens] * len(self.lengths)


def generate_with_cache(
    model: Any,
    kv_cache: KVCache,
    prompt_token_ids: list[int],
    max_tokens: int,
    eos_token_ids: set[int],
) -> list[int]:
    kv_cache.truncate(0)
    to_compute = list(prompt_token_ids)
    new_token_ids: list[int] = []
    while True:
        start = kv_cache.num_tokens
        positions = torch.arange(start, start + len(to_compute))
        logits = model(torch.tensor(to_compute), positions, kv_cache)  # [T, vocab]
        token_id = int(logits[-1].argmax())
        new_token_ids.append(token_id)
        if len(new_token_ids) == max_tokens or token_id in eos_token_ids:
            return new_token_ids
        to_compute = [token_id]


def max_num_requests(
    memory_bytes: int,
    gpu_memory_utilization: float,
    weight_bytes: int,
    kv_bytes_per_token: int,
    tokens_per_request: int,
) -> int:
    room = memory_bytes * gpu_memory_utilization - weight_bytes
    return max(0, int(room // (kv_bytes_per_token * tokens_per_request)))
