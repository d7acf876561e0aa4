"""A model's first layers as a model of their own: real weights, and a tool is done in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.hub import load_hf_model
from utils.pipeline.quantizers.checkpoint import copy_tokenizer


def save_first_layers(model_dir: Path, out_dir: Path, num_layers: int) -> Path:
    """Save the first decoder layers of a model, with its embedding, last norm and tokenizer.

    It writes no sense: what follows these layers in the model is missing.

    Args:
        model_dir: a 16-bit model in Hugging Face format.
        out_dir: where to save it.
        num_layers: how many layers to keep.

    Returns:
        `out_dir`, a folder as `model_dir` is one.

    Raises:
        ValueError: the model has fewer layers, or none are asked for.
    """
    model: Any = load_hf_model(model_dir, dtype=torch.bfloat16)
    if not 1 <= num_layers <= len(model.model.layers):
        raise ValueError(f"{num_layers=}: expected 1 to {len(model.model.layers)}.")
    model.model.layers = model.model.layers[:num_layers]
    model.config.num_hidden_layers = num_layers
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[:num_layers]
    model.save_pretrained(out_dir)
    copy_tokenizer(model_dir, out_dir)
    return out_dir


@torch.inference_mode()
def layers_output(model: Any, token_ids: list[int]) -> Tensor:
    """What a model's layers give for a text, before the last norm: [tokens, hidden_size]."""
    caught: list[Tensor] = []
    last = model.model.layers[-1]
    hook = last.register_forward_hook(lambda _module, _args, output: caught.append(output))
    try:
        model.model(torch.tensor([token_ids], device=model.device))
    finally:
        hook.remove()
    return caught[0].flatten(0, 1).float().cpu()
