"""4-bit checkpoints as plain weights. `utils/quant/packing.py` describes both layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.quant.packing import dequantize_awq, dequantize_gptq


def dequantized_state_dict(
    model_dir: Path, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Read a 4-bit checkpoint and return plain weights.

    Args:
        model_dir: folder with config.json (with `quantization_config`) and safetensors.
        dtype: of the unpacked layers. float32 is exact.

    Raises:
        ValueError: the folder is not a 4-bit GPTQ or AWQ gemm checkpoint.
    """
    quantization = _supported_quantization(model_dir)
    tensors = load_tensors(model_dir)
    plain = {name: tensor for name, tensor in tensors.items() if not _is_packed_part(name, tensors)}
    for name in [name for name in tensors if name.endswith(".qweight")]:
        layer = name.removesuffix(".qweight")
        qweight, qzeros, scales = (tensors[f"{layer}.{p}"] for p in ("qweight", "qzeros", "scales"))
        if quantization["quant_method"] == "awq":
            weight = dequantize_awq(qweight, qzeros, scales, quantization["group_size"])
        else:
            offset = 0 if quantization.get("checkpoint_format") == "gptq_v2" else 1
            g_idx = tensors[f"{layer}.g_idx"]
            weight = dequantize_gptq(qweight, qzeros, scales, g_idx, zero_offset=offset)
        plain[f"{layer}.weight"] = weight.to(dtype)
    return plain


def load_tensors(model_dir: Path) -> dict[str, Tensor]:
    """Read all safetensors files of a folder into one dictionary."""
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for file in sorted(model_dir.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def _supported_quantization(model_dir: Path) -> dict[str, Any]:
    config = json.loads((model_dir / "config.json").read_text())
    quantization: dict[str, Any] = config.get("quantization_config") or {}
    method, bits = quantization.get("quant_method"), quantization.get("bits")
    layout = quantization.get("version" if method == "awq" else "checkpoint_format", "gptq")
    if (method, layout) not in {
        ("gptq", "gptq"),
        ("gptq", "gptq_v2"),
        ("awq", "gemm"),
    } or bits != 4:
        raise ValueError(
            f"{model_dir.name} is no 4-bit GPTQ or AWQ gemm checkpoint: its config.json says "
            f"quant_method={method!r}, format {layout!r}, bits={bits!r}."
        )
    return quantization


def _is_packed_part(name: str, tensors: dict[str, Tensor]) -> bool:
    layer, _, part = name.rpartition(".")
    return part in {"qweight", "qzeros", "scales", "g_idx"} and f"{layer}.qweight" in tensors
