"""What the model looks like, and how the engine runs it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from utils.engine.hf_config import eos_token_ids, read_json, refuse_unsupported, rope_parameters
from utils.engine.kv_cache_utils import get_hash_fn_by_name
from utils.engine.speculative_config import SpeculativeConfig

SCHEDULING_POLICIES = ("fcfs", "priority")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Llama-like model. Fields bear the names of Hugging Face's `config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32  # that of the weights on disk

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}."
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd; rotary embedding needs pairs.")

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of a token's KV cache: 2 (K, V) * layers * kv_heads * head_dim * itemsize."""
        width = self.num_key_value_heads * self.head_dim
        return 2 * self.num_hidden_layers * width * dtype.itemsize

    @classmethod
    def from_pretrained(cls, path: str | Path) -> ModelConfig:
        """Read `config.json` (and `generation_config.json`) from a Hugging Face model folder.

        Raises:
            ValueError: a file is missing or incomplete, or the model needs what this engine lacks.
        """
        raw = read_json(Path(path) / "config.json")
        refuse_unsupported(raw)
        required = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                    "num_attention_heads")  # fmt: skip
        if missing := [name for name in required if raw.get(name) is None]:
            raise ValueError(f"{path}/config.json lacks {', '.join(missing)}.")
        heads = raw["num_attention_heads"]
        dtype = raw.get("dtype") or raw.get("torch_dtype") or "float32"
        return cls(
            **{name: raw[name] for name in required},
            num_key_value_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
            rope_theta=rope_parameters(raw).get("rope_theta") or raw.get("rope_theta") or 10000.0,
            max_position_embeddings=raw.get("max_position_embeddings", 2048),
            tie_word_embeddings=raw.get("tie_word_embeddings", False),
            sliding_window=raw.get("sliding_window"),
            eos_token_ids=eos_token_ids(Path(path), raw),
            dtype=DTYPES.get(dtype, torch.float32),
        )


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
            memory = kv_cache_memory_bytes or _default_kv_cache_memory(where)
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


def _default_kv_cache_memory(device: torch.device) -> int:
    """Bytes. On a GPU most of what is free; on a CPU 1 GiB, of which only what is used is taken."""
    if device.type == "cuda":
        return int(0.8 * torch.cuda.mem_get_info(device)[0])
    return 1 << 30


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
