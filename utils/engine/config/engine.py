"""How the engine runs a model: limits, memory, scheduling, guessing ahead."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from utils.engine.config.model import DTYPES, ModelConfig
from utils.engine.config.speculative import SpeculativeConfig
from utils.engine.core.kv_cache_utils import get_hash_fn_by_name
from utils.engine.core.sched.request_queue import SchedulingPolicy, get_policy


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
        scheduling_policy: "fcfs", first come, first served; "priority", the lowest number first; or
            a function of your own (see `core/sched/request_queue.py`).
        speculative_config: how to guess tokens ahead; None: not at all.
        async_scheduling: schedule the next step while one runs (see `AsyncScheduler`).
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
    scheduling_policy: str | SchedulingPolicy = "fcfs"
    speculative_config: SpeculativeConfig | None = None
    async_scheduling: bool = False

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs must be at least 1, got {self.max_num_seqs}.")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} must be at least "
                f"max_num_seqs={self.max_num_seqs}: a decode step takes one token per request."
            )
        get_policy(self.scheduling_policy)
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


def resolve_dtype(dtype: str, model: ModelConfig) -> torch.dtype:
    """A type by its name. Raises a ValueError for an unknown one."""
    if dtype == "auto":
        return model.dtype
    if dtype not in DTYPES:
        raise ValueError(f"Unknown dtype {dtype!r}. Expected auto, {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def resolve_device(device: str) -> torch.device:
    """A device by its name. Raises a ValueError for one that is unknown or not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"Unknown device {device!r}. Expected auto, cpu or cuda.") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r}, but PyTorch sees no CUDA GPU. Use device='cpu'.")
    return resolved
