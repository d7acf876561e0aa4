"""Weights from safetensors files into the model, with Q, K, V and gate, up laid side by side."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from utils.engine.config.model import ModelConfig
from utils.engine.models.llama import DEFAULT_OPS, LlamaForCausalLM, LlamaOps
from utils.engine.models.registry import MODELS

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def load_model(
    path: str | Path,
    config: ModelConfig,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    ops: LlamaOps = DEFAULT_OPS,
) -> LlamaForCausalLM:
    """Build the model and fill it from the safetensors files in the folder `path`.

    Raises:
        ValueError: weights are missing, left over, of the wrong shape or type, or unreadable.
    """
    with torch.device("meta"):  # no memory yet, and no random initialisation
        model = MODELS[config.architecture](config, ops)
    model = model.to(dtype).to_empty(device=device)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight  # to_empty() untied them

    ignored = {"lm_head.weight"} if config.tie_word_embeddings else set()
    fill_from_safetensors(model, Path(path), ignored)
    return model


def fill_from_safetensors(model: nn.Module, path: Path, ignored: Collection[str] = ()) -> None:
    """Fill a model from the safetensors files in a folder.

    Args:
        model: with a `config`.
        ignored: names of weights that the folder may hold and the model doesn't.

    Raises:
        ValueError: see `load_model`.
    """
    targets = checkpoint_views(model)
    for name, tensor in read_safetensors(path):
        if name in ignored or name.endswith("rotary_emb.inv_freq"):
            continue
        if (target := targets.pop(name, None)) is None:
            raise ValueError(
                f"Unexpected weight {name!r} in {path}: this model has no place for it."
            )
        if target.shape != tensor.shape:
            raise ValueError(
                f"Weight {name!r} has shape {list(tensor.shape)}, but config.json implies "
                f"{list(target.shape)}."
            )
        if tensor.dtype not in FLOATS:
            raise ValueError(
                f"Weight {name!r} in {path} holds {tensor.dtype}. Expected one of "
                f"{', '.join(map(str, FLOATS))}: what quantized numbers stand for is not said here."
            )
        target.copy_(tensor)
    if targets:
        raise ValueError(f"{len(targets)} weights are missing in {path}: {sorted(targets)[:3]} ...")


def checkpoint_views(model: nn.Module) -> dict[str, Tensor]:
    """Map each weight's name in a Hugging Face checkpoint to its place in our fused weights."""
    config = model.config
    assert isinstance(config, ModelConfig)
    kv_size = config.num_key_value_heads * config.head_dim
    q_size = config.num_attention_heads * config.head_dim
    views: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():  # yields tied weights once
        if "qkv_proj" in name:
            parts = parameter.split([q_size, kv_size, kv_size])
            names = [name.replace("qkv_proj", part) for part in ("q_proj", "k_proj", "v_proj")]
        elif "gate_up_proj" in name:
            parts = parameter.chunk(2)
            names = [name.replace("gate_up_proj", part) for part in ("gate_proj", "up_proj")]
        else:
            parts, names = (parameter,), [name]
        views.update(zip(names, parts, strict=True))
    return views


def read_safetensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and tensor of each weight: from `model.safetensors`, or from its shards.

    Raises:
        ValueError: there are no such files, one is missing, or one is damaged.
    """
    index = path / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    for name in names:
        file = path / name
        if not file.is_file():
            raise ValueError(f"{file} does not exist. Fetch the model again.")
        try:
            with safe_open(file, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118 (not a dict)
                    yield key, tensors.get_tensor(key)
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged ({error}). Fetch the model again.") from error
