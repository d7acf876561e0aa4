"""`EngineArgs`: all that an LLM, a server and each replica are made from. vLLM's name."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utils.engine.config.engine import EngineConfig, resolve_device, resolve_dtype
from utils.engine.config.model import ModelConfig
from utils.engine.config.parallel import MoEConfig, ParallelConfig
from utils.engine.config.parts import EngineParts
from utils.engine.config.speculative import SpeculativeConfig
from utils.engine.core.sched.request_queue import SchedulingPolicy
from utils.engine.models.llama import DEFAULT_OPS, LlamaOps

if TYPE_CHECKING:
    from utils.engine.distributed.layers import ParallelOps

# Bytes, or room for one request at its longest. vLLM takes nearly all of a GPU, for it is alone
# there. A notebook has several engines, and beside them models of Hugging Face.
DEFAULT_KV_CACHE_MEMORY = 1 << 30
# How a field of this type is read from a command line. Fields of other types cannot be given there.
FROM_TEXT = {
    "str": str,
    "str | Path": str,
    "str | SchedulingPolicy": str,
    "int": int,
    "int | None": int,
    "float": float,
    "SpeculativeConfig | dict[str, Any] | None": json.loads,
}


@dataclass(frozen=True)
class EngineArgs(EngineParts):
    """What `LLM` takes: how to run a model, and (see `EngineParts`) with what parts.

    Args:
        model: "bundled", a folder in Hugging Face format, or a hub id.
        dtype: "float32", "bfloat16", "float16", or "auto" for that of the weights on disk.
        max_model_len: the most tokens of one request, prompt plus answer. None: what the model
            was made for.
        ops: functions to build the model from, in place of ours: `LlamaOps(rms_norm=mine)`. Its
            attention is one of them: `LlamaOps(paged_attention=mine, reshape_and_cache=mine)`.
        kernels: "torch", or faster and the same: "cpp", our C++ kernels, on a CPU (see `kernels`);
            on a card, "triton", our kernels in Triton (see `kernels/triton/layers.py`), or
            "cuda_graph", decode steps as recordings of PyTorch's (see `worker/cuda_graph.py`).
        seed: of the random numbers for requests that bring no seed of their own.
        device: "cpu", "cuda", or "auto": CUDA where there is a GPU.
        max_num_seqs: the most requests that run at a time.
        max_num_batched_tokens: the most tokens in one forward pass. Longer prompts go in chunks.
        block_size: tokens in a block of KV cache.
        enable_prefix_caching: compute the keys and values of equal prefixes once only.
        prefix_caching_hash_algo: "sha256", or "xxhash", which is faster.
        kv_cache_memory_bytes: memory for the KV cache. None: 1 GiB, or more where one request may
            need more. A GPU takes it at once, a CPU only what is used of it.
        num_gpu_blocks_override: blocks of KV cache, in place of what fits into the memory.
        swap_space: GiB of host memory for blocks that were given up, else they are recomputed.
        scheduling_policy: "fcfs", first come, first served; or "priority", the lowest number first;
            or a function of your own (see `core/sched/request_queue.py`).
        async_scheduling: schedule the next step while one runs (see `AsyncScheduler`).
        speculative_config: guess tokens ahead: a `SpeculativeConfig`, or its arguments as JSON,
            such as {"method": "ngram"}.
        tensor_parallel_size: ranks that share each layer's heads, columns and rows.
        pipeline_parallel_size: ranks that have one stretch of layers each.
        data_parallel_size: engines, each with its own requests.
        enable_expert_parallel: the engines share the experts between them.
        upcycle: make a mixture of experts of the model. None: it stays as it is.
        parallel_ops: what distributed layers are made of, in place of ours.
        rank_timeout: seconds after which a rank that does not answer is given up.

    Raises:
        ValueError: `speculative_config` is wrong, or engines that share experts are not to wait
            for each other. The other arguments are checked where they are used: by
            `create_engine_config` and `create_parallel_config`.
    """

    model: str | Path = "bundled"
    dtype: str = "float32"
    max_model_len: int | None = None
    ops: LlamaOps = DEFAULT_OPS
    kernels: str = "torch"
    seed: int = EngineConfig.seed
    device: str = "auto"
    max_num_seqs: int = EngineConfig.max_num_seqs
    max_num_batched_tokens: int = EngineConfig.max_num_batched_tokens
    block_size: int = EngineConfig.block_size
    enable_prefix_caching: bool = EngineConfig.enable_prefix_caching
    prefix_caching_hash_algo: str = EngineConfig.prefix_caching_hash_algo
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    swap_space: float = 0
    scheduling_policy: str | SchedulingPolicy = EngineConfig.scheduling_policy
    async_scheduling: bool = EngineConfig.async_scheduling
    speculative_config: SpeculativeConfig | dict[str, Any] | None = None
    tensor_parallel_size: int = ParallelConfig.tensor_parallel_size
    pipeline_parallel_size: int = ParallelConfig.pipeline_parallel_size
    data_parallel_size: int = ParallelConfig.data_parallel_size
    enable_expert_parallel: bool = ParallelConfig.enable_expert_parallel
    upcycle: MoEConfig | None = None
    parallel_ops: ParallelOps | None = None
    rank_timeout: float = ParallelConfig.rank_timeout

    def __post_init__(self) -> None:
        if isinstance(self.speculative_config, dict):
            spec = SpeculativeConfig(**self.speculative_config)
            object.__setattr__(self, "speculative_config", spec)
        if self.async_scheduling and self.enable_expert_parallel:
            raise ValueError(
                "async_scheduling does not go with enable_expert_parallel: engines that share "
                "experts take every step together. Leave one of them out."
            )

    def of(self, kind: type) -> dict[str, Any]:
        """Those of these arguments that a dataclass has as well."""
        return {f.name: getattr(self, f.name) for f in fields(kind) if hasattr(self, f.name)}

    def create_parallel_config(self) -> ParallelConfig:
        """How many processes run the model. Raises a ValueError: see `ParallelConfig`."""
        return ParallelConfig(**self.of(ParallelConfig))

    def create_engine_config(self, model: ModelConfig) -> EngineConfig:
        """Check what was asked for against the model and the machine.

        Raises:
            ValueError: unknown dtype or device, a `max_model_len` beyond what the model allows, or
                a KV cache too small for one request of that length.
        """
        max_model_len = self.max_model_len
        if max_model_len is None:
            max_model_len = model.max_position_embeddings
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
        dtype, device = resolve_dtype(self.dtype, model), resolve_device(self.device)
        if not isinstance(self.block_size, int) or self.block_size < 1:
            raise ValueError(f"block_size must be a positive integer, got {self.block_size!r}.")
        if not self.swap_space >= 0:
            raise ValueError(f"swap_space must be 0 GiB or more, got {self.swap_space!r}.")
        block_bytes = self.block_size * model.kv_bytes_per_token(dtype)
        blocks_per_request = -(-max_model_len // self.block_size)
        num_gpu_blocks = self.num_gpu_blocks_override
        if num_gpu_blocks is None:
            least = max(DEFAULT_KV_CACHE_MEMORY, blocks_per_request * block_bytes)
            num_gpu_blocks = (self.kv_cache_memory_bytes or least) // block_bytes
            # More than every request at its longest can never be used.
            most = max(self.max_num_seqs, 1) * blocks_per_request
            num_gpu_blocks = min(num_gpu_blocks, most)
        resolved = {
            "max_model_len": max_model_len,
            "dtype": dtype,
            "device": device,
            "num_gpu_blocks": num_gpu_blocks,
            "num_cpu_blocks": int(self.swap_space * (1 << 30)) // block_bytes,
        }
        return EngineConfig(**(self.of(EngineConfig) | resolved))

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
        """Give a command line the options that set these arguments, as `vllm serve` calls them."""
        described = re.split(r"^    (\w+): ", inspect.getdoc(cls) or "", flags=re.M)[1:]
        helps = dict(zip(described[::2], described[1::2], strict=True))
        for field in fields(cls):
            kind: dict[str, Any] = {"type": FROM_TEXT.get(str(field.type))}
            if field.type == "bool":
                kind = {"action": argparse.BooleanOptionalAction}
            if kind.get("type", True) and field.name not in without:
                text = " ".join(helps[field.name].split("\n\n")[0].split()).replace("%", "%%")
                name = "--" + field.name.replace("_", "-")
                parser.add_argument(name, default=field.default, help=text, **kind)

    @classmethod
    def from_cli_args(cls, options: argparse.Namespace) -> EngineArgs:
        """The arguments that a command line has set. Other options of the program are left out."""
        names = {field.name for field in fields(cls)} & vars(options).keys()
        return cls(**{name: getattr(options, name) for name in names})
