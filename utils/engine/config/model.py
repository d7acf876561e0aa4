"""What the model looks like. In vLLM: `vllm/config/model.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from utils.engine.config.hf_config import (
    eos_token_ids,
    read_json,
    refuse_unsupported,
    rope_parameters,
    sliding_window,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Llama-like model. Fields bear the names of Hugging Face's `config.json`.

    `architecture` says which class runs it: see `models/registry.py`.
    """

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
    architecture: str = "LlamaForCausalLM"

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
        required = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
        )
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
            tie_word_embeddings=raw.get("tie_word_embeddings", False)
            and not has_own_head(Path(path)),
            sliding_window=sliding_window(raw),
            eos_token_ids=eos_token_ids(Path(path), raw),
            dtype=_torch_dtype(dtype),
            architecture=raw["architectures"][0],
        )


def _torch_dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ValueError(f"config.json has dtype={name!r}. Expected one of {', '.join(DTYPES)}.")
    return DTYPES[name]


def has_own_head(path: Path) -> bool:
    """Whether a model folder holds an output head that is not the embedding.

    `config.json` may call the two tied all the same: who trains the head of such a model and saves
    it leaves both. Hugging Face and vLLM use that head, then. False too for weights that are
    missing or damaged: to load them says what is wrong.
    """
    head, embedding = (
        _weight(path, name) for name in ("lm_head.weight", "model.embed_tokens.weight")
    )
    return head is not None and embedding is not None and not torch.equal(head, embedding)


def _weight(path: Path, name: str) -> torch.Tensor | None:
    try:
        index = path / "model.safetensors.index.json"
        shards = read_json(index)["weight_map"] if index.is_file() else {}
        with safe_open(path / shards.get(name, "model.safetensors"), framework="pt") as tensors:
            return tensors.get_tensor(name) if name in tensors.keys() else None  # noqa: SIM118
    except (OSError, ValueError, KeyError, SafetensorError):
        return None
