"""How the engine runs a model: limits, memory, scheduling, guessing ahead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from utils.engine.config.model import DTYPES, ModelConfig
from utils.engine.config.speculative import SpeculativeConfig
from utils.engine.core.kv_cache_utils import get_hash_fn_by_name

# Bytes, or room for one request at its longest. vLLM takes nearly all of a GPU, for it is alone
# there. A notebook has several engines, and beside them models of Hugging Face.
DEFAULT_KV_CACHE_MEMORY = 1 << 30
SCHEDULING_POLICIES = ("fcfs", "priority")


@dataclass(frozen=True)
class EngineConfig:
    """How the engine runs a model.

    Args:
        max_model_len: the most tokens of one request, prompt plus answer.
        max_num_seqs: the most requests that run at a time.
        max_num_batched_tokens: the most tokens of one forward pass. Longer prompts go in chunks.
        seed: of the random numbers for requests that bring no seed of their own.
        num_gpu_blocks: blocks of KV cache, on whatever device the model is.
        block_size: tokens in a block.
        enable_prefix_caching: reuse the blocks of equal prefixes.
        prefix_caching_hash_algo: "sha256", or "xxhash", which is faster.
        num_cpu_blocks: blocks of swap space in host memory, where preempted requests can wait.
        scheduling_policy: "fcfs", first come, first served; or "priority", the lowest number first.
        speculative_config: how to guess tokens ahead; None: not at all.
    """

    max_model_len: int
    dtype: torch.dtype
    device: torch.device
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    seed: int = 0
    num_gpu_blocks: int = 0
    block_size: int = 16
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: str = "sha256"
    num_cpu_blocks: int = 0
    scheduling_policy: str = "fcfs"
    speculative_config: SpeculativeConfig | None = None

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs must be at least 1, got {self.max_num_seqs}.")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} must be at least "
                f"max_num_seqs={self.max_num_seqs}: a decode step takes one token per request."
            )
        if self.scheduling_policy not in SCHEDULING_POLICIES:
            raise ValueError(
                f"Unknown scheduling_policy {self.scheduling_policy!r}. "
                f"Expected {' or '.join(SCHEDULING_POLICIES)}."
            )
        if not -(1 << 63) <= self.seed < 1 << 63:
            raise ValueError(f"seed={self.seed} has more than the 64 bits that a seed may have.")
        get_hash_fn_by_name(self.prefix_caching_hash_algo)
        if self.num_gpu_blocks * self.block_size < self.max_model_len:
            raise ValueError(
                f"The KV cache holds {self.num_gpu_blocks} blocks of {self.block_size} tokens, "
                f"which is too small for one request of max_model_len={self.max_model_len}. "
                f"Pass a smaller max_model_len, or a larger kv_cache_memory_bytes or "
                f"num_gpu_blocks_override."
            )

    @classmethod
    def create(
        cls,
        model: ModelConfig,
        max_model_len: int | None,
        dtype: str,
        device: str,
        block_size: int = 16,
        kv_cache_memory_bytes: int | None = None,
        num_gpu_blocks_override: int | None = None,
        swap_space: float = 0,
        **options: Any,
    ) -> EngineConfig:
        """Check what the user asked for against the model and the machine.

        Raises:
            ValueError: unknown dtype or device, a `max_model_len` beyond what the model allows, or
                a KV cache too small for one request of that length.
        """
        max_model_len = model.max_position_embeddings if max_model_len is None else max_model_len
        if not 2 <= max_model_len <= model.max_position_embeddings:
            raise ValueError(
                f"max_model_len={max_model_len} is out of range: expected 2 to "
                f"{model.max_position_embeddings}, the model's max_position_embeddings."
            )
        if model.sliding_window is not None and model.sliding_window < max_model_len:
            raise ValueError(
                f"Sliding-window attention is not supported, and the model's window of "
                f"{model.sliding_window} tokens is shorter than max_model_len={max_model_len}. "
                f"Pass max_model_len={model.sliding_window} or less."
            )
        resolved, where = _resolve_dtype(dtype, model), _resolve_device(device)
        if not isinstance(block_size, int) or block_size < 1:
            raise ValueError(f"block_size must be a positive integer, got {block_size!r}.")
        if not swap_space >= 0:
            raise ValueError(f"swap_space must be 0 GiB or more, got {swap_space!r}.")
        block_bytes = block_size * model.kv_bytes_per_token(resolved)
        num_gpu_blocks = num_gpu_blocks_override
        if num_gpu_blocks is None:
            one_request = -(-max_model_len // block_size) * block_bytes
            memory = kv_cache_memory_bytes or max(DEFAULT_KV_CACHE_MEMORY, one_request)
            num_gpu_blocks = memory // block_bytes
        config = cls(
            max_model_len, resolved, where, block_size=block_size, num_gpu_blocks=num_gpu_blocks,
            num_cpu_blocks=int(swap_space * (1 << 30)) // block_bytes, **options,
        )  # fmt: skip
        if num_gpu_blocks_override is not None:
            return config
        # More than every request at its longest can never be used.
        most = config.max_num_seqs * -(-max_model_len // block_size)
        return replace(config, num_gpu_blocks=min(config.num_gpu_blocks, most))


def _resolve_dtype(dtype: str, model: ModelConfig) -> torch.dtype:
    if dtype == "auto":
        return model.dtype
    if dtype not in DTYPES:
        raise ValueError(f"Unknown dtype {dtype!r}. Expected auto, {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def _resolve_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"Unknown device {device!r}. Expected auto, cpu or cuda.") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r}, but PyTorch sees no CUDA GPU. Use device='cpu'.")
    return resolved
