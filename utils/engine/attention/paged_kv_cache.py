"""The memory behind the blocks: keys and values of all requests, in one tensor per layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from utils.engine.config.engine import EngineConfig
from utils.engine.config.model import ModelConfig
from utils.engine.core.kv_cache_utils import BlockCopies


class PagedKVCache:
    """Keys and values, in blocks that any request may have.

    Args:
        config: gives the number of layers, of KV heads, and the head dimension.
        num_gpu_blocks: blocks on the device.
        block_size: tokens in a block.
        num_cpu_blocks: blocks of swap space in host memory.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_gpu_blocks: int,
        block_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        num_cpu_blocks: int = 0,
    ) -> None:
        self.num_gpu_blocks, self.block_size = num_gpu_blocks, block_size
        heads = (config.num_key_value_heads, config.head_dim)

        def memory(num_blocks: int, device: torch.device | str) -> Tensor:
            # [K or V, layers, blocks, block_size, H_kv, D]
            shape = (2, config.num_hidden_layers, num_blocks, block_size, *heads)
            if torch.device(device).type != "cpu" or num_blocks == 0:
                return torch.zeros(shape, dtype=dtype, device=device)
            # NumPy's zeros take no memory until they are written to; PyTorch's do.
            zeros = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
            return torch.from_numpy(zeros).view(dtype).view(shape)

        self.device_memory = memory(num_gpu_blocks, device)
        self.host_memory = memory(num_cpu_blocks, "cpu")
        self.keys, self.values = self.device_memory  # [layers, blocks, block_size, H_kv, D] each

    @classmethod
    def for_engine(cls, model: ModelConfig, engine: EngineConfig) -> PagedKVCache:
        """The memory that an engine's settings ask for."""
        return cls(
            model,
            engine.num_gpu_blocks,
            engine.block_size,
            engine.dtype,
            engine.device,
            engine.num_cpu_blocks,
        )

    @property
    def nbytes(self) -> int:
        """Bytes on the device: 2 (K, V) * layers * blocks * block_size * kv_heads * head_dim * 2
        or 4 bytes."""
        return self.device_memory.nbytes

    def write(self, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
        """Put new keys and values into their slots. vLLM calls this `reshape_and_cache`.

        Args:
            layer: index of the layer.
            key: [T, H_kv, D], rotary embedding already applied.
            value: [T, H_kv, D]
            slot_mapping: [T], for each token `block_id * block_size + offset in the block`.
        """
        self.keys[layer].flatten(0, 1).index_copy_(0, slot_mapping, key)
        self.values[layer].flatten(0, 1).index_copy_(0, slot_mapping, value)

    def copy_blocks(self, copies: BlockCopies) -> None:
        """Copy in all layers, in the order that `BlockCopies` states."""
        if copies.move:  # all are read before any is written
            flat = self.device_memory.flatten(2, 3)  # [K or V, layers, slots, H_kv, D]
            from_slots, to_slots = zip(*copies.move, strict=True)
            flat[:, :, list(to_slots)] = flat[:, :, list(from_slots)]
        device, host = self.device_memory, self.host_memory
        for source, target, pairs in (
            (device, host, copies.swap_out),
            (device, device, copies.copy),
            (host, device, copies.swap_in),
        ):
            for from_block, to_block in pairs:
                target[:, :, to_block] = source[:, :, from_block].to(target.device)


def slot_mapping(block_ids: Sequence[int], block_size: int, start: int, end: int) -> list[int]:
    """Where in the flat KV memory the tokens at positions `start` to `end - 1` lie.

    Args:
        block_ids: the request's block table.

    Raises:
        ValueError: the table is too short for `end` tokens.
    """
    if end > len(block_ids) * block_size:
        raise ValueError(
            f"A table of {len(block_ids)} blocks of {block_size} tokens has no slot for token "
            f"{end - 1}. Call allocate_slots first."
        )
    return [
        block_ids[position // block_size] * block_size + position % block_size
        for position in range(start, end)
    ]
