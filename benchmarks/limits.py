"""The least time that a workload can take on a machine, from its arithmetic and its bytes."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.card import copy_bandwidth, matmul_flops  # noqa: E402
from utils.engine import ModelConfig  # noqa: E402
from utils.engine.kernels.packed_linear import PackedLinear  # noqa: E402
from utils.timing import median_seconds  # noqa: E402
from utils.viz.model.roofline import Machine  # noqa: E402


def measure_machine(dtype: torch.dtype) -> Machine:
    """FLOP/s of a large product as the engine makes it, and bytes/s read from memory."""
    x, weight = torch.randn(1024, 2048, dtype=dtype), torch.randn(2048, 2048, dtype=dtype)
    packed = PackedLinear(weight)
    tall, vector = torch.randn(1 << 20, 256), torch.randn(256)  # 1 GiB, more than any cache
    with torch.inference_mode():
        flops = 2 * 1024 * 2048 * 2048 / median_seconds(lambda: packed(x), 9)
        # The faster of two: on some processors the product does not come near memory's speed.
        reading = min(median_seconds(read, 9) for read in (lambda: tall @ vector, tall.sum))
        bandwidth = tall.nbytes / reading
    return Machine(flops, bandwidth)


def measure_card(dtype: torch.dtype, device: str) -> Machine:
    """The same of a card: a product of two large matrices, and a copy (bytes read and written)."""
    n, size = (8192, 1 << 32) if device == "cuda" else (512, 1 << 26)
    return Machine(matmul_flops(device, dtype, n), copy_bandwidth(device, size))


def least_seconds(
    prompts: list[list[int]],
    max_tokens: list[int],
    config: ModelConfig,
    machine: Machine,
    itemsize: int,
    shared: int,
) -> float:
    """A bound on the time of a workload: one prefill, then steps with a token per request.

    Every step reads all weights and each request's own keys and values, and a shared prefix once.

    Args:
        shared: how many tokens all prompts begin with.
    """
    hidden, width = config.hidden_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    layer = hidden * width * 2 * (heads + kv_heads) + 3 * hidden * config.intermediate_size
    head = config.vocab_size * hidden
    kv_bytes = 2 * config.num_hidden_layers * kv_heads * width * itemsize
    attention = 4 * config.num_hidden_layers * heads * width  # FLOPs per query and key

    def seconds(contexts: list[int], new_tokens: int, cached: int) -> float:
        flops = 2 * config.num_hidden_layers * layer * new_tokens + 2 * head * len(contexts)
        flops += attention * sum(contexts) * new_tokens // len(contexts)
        weights = (config.num_hidden_layers * layer + head) * itemsize
        return machine.seconds(flops, weights + kv_bytes * cached)

    lengths = [len(prompt) for prompt in prompts]
    computed = sum(lengths) - shared * (len(lengths) - 1)
    total = seconds([length // 2 for length in lengths], computed, 0)
    for step in range(1, max(max_tokens)):
        contexts = [n + step for n, m in zip(lengths, max_tokens, strict=True) if step < m]
        cached = sum(contexts) - shared * (len(contexts) - 1)
        total += seconds(contexts, len(contexts), cached)
    return total
