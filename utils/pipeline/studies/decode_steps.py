"""What a decode step costs with keys and values in blocks, and with them in a row."""

from __future__ import annotations

import torch

from utils.engine import (
    LLM,
    AttentionMetadata,
    ContiguousBatch,
    ContiguousKVCache,
    PagedBatch,
    PagedKVCache,
    slot_mapping,
)
from utils.timing import median_seconds


@torch.inference_mode()
def paged_and_contiguous_seconds(
    llm: LLM, num_tokens: int, rounds: int = 15
) -> tuple[float, float]:
    """Seconds of one decode step after `num_tokens` tokens: from scattered blocks, from one piece.

    What the caches hold does not matter for the time, so they are left as they are. The two take
    turns, and of each the fastest counts: what other programs did is in the slower ones.

    Args:
        llm: its model runs, on caches of this function's own.
        num_tokens: keys and values that the step reads, beside its own.
        rounds: how often each is timed.
    """
    config, size, device = llm.model_config, llm.config.block_size, llm.config.device
    num_blocks = num_tokens // size + 1
    memory = PagedKVCache(config, num_blocks, size, llm.config.dtype, device)
    table = torch.randperm(num_blocks)
    slot = torch.tensor(slot_mapping(table.tolist(), size, num_tokens, num_tokens + 1))
    metadata = AttentionMetadata([1], [num_tokens + 1], [table.to(device)], slot.to(device))
    cache = ContiguousKVCache(config, num_tokens + 1, llm.config.dtype, device)
    shape = (num_tokens, config.num_key_value_heads, config.head_dim)
    old = torch.zeros(shape, dtype=llm.config.dtype, device=device)
    for layer in range(config.num_hidden_layers):
        cache.append(layer, old, old)
    token = torch.zeros(1, dtype=torch.long, device=device)
    position = torch.full((1,), num_tokens, device=device)

    def seconds(batch: ContiguousBatch | PagedBatch) -> float:
        cache.truncate(num_tokens)
        return median_seconds(lambda: llm.model(token, position, batch), repeats=1, warmup=0)

    paged, contiguous = PagedBatch(memory, metadata), ContiguousBatch([1], [cache])
    pairs = [(seconds(paged), seconds(contiguous)) for _ in range(rounds)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
