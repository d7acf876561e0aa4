"""A checkpoint whose weights and activations are 8-bit integers (W8A8), as vLLM loads it.

The layout is compressed-tensors' "int-quantized": `weight` int8 [out, in] and `weight_scale`
float32 [out, 1] for each linear layer, and a `quantization_config` in `config.json` that says how
inputs are to be quantized: by a scale per token, computed in each step ("dynamic").
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import nn

from utils.quant.calibrate import decoder_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
QUANTIZATION_CONFIG: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": _INT8 | {"strategy": "channel", "dynamic": False},
            "input_activations": _INT8 | {"strategy": "token", "dynamic": True},
        }
    },
}


@torch.no_grad()
def save_int8_w8a8(model: PreTrainedModel, model_dir: Path, folder: Path) -> None:
    """Write a model as a W8A8 checkpoint.

    Args:
        model: Llama-like; smoothed or not.
        model_dir: where it came from; configuration and tokenizer are copied from there.
        folder: where to write; made if it isn't there, and it must be empty.

    Raises:
        ValueError: the folder has files in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ValueError(f"{folder} isn't empty. Name a new folder, or empty this one.")
    names = [
        f"model.layers.{number}.{name}.weight"
        for number, layer in enumerate(decoder_layers(model))
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear)
    ]
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name in names:
            scales = tensor.float().abs().amax(1, keepdim=True) / 127
            scales = scales.clamp(min=torch.finfo(torch.float32).tiny)
            tensors[name] = (tensor.float() / scales).round().clamp(-127, 127).to(torch.int8)
            tensors[f"{name}_scale"] = scales
        elif name != "lm_head.weight" or not model.config.tie_word_embeddings:
            tensors[name] = tensor.to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model_dir / "config.json").read_text())
    config["quantization_config"] = QUANTIZATION_CONFIG
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    for file in model_dir.iterdir():
        text = file.suffix in (".json", ".jinja", ".txt", ".model")
        if text and file.name != "config.json" and "safetensors" not in file.name:
            shutil.copy(file, folder / file.name)
