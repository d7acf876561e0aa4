"""Formats of today: small floats with scales, for weights and for activations.

| file             | holds                                                                     |
|------------------|---------------------------------------------------------------------------|
| `floats.py`      | `FloatFormat`: E4M3, E5M2 and E2M1, decoded and encoded bit by bit         |
| `blocks.py`      | `fp8`, `mxfp4`, `nvfp4`: a weight as codes with scales                     |
| `activations.py` | what a W8A8 or W4A4 layer does to its inputs; SmoothQuant's shift          |
| `checkpoint.py`  | `save_int8_w8a8`: a checkpoint in the layout of compressed-tensors         |
"""

from utils.quant.formats.activations import (
    fp8_tokens,
    int8_channels,
    int8_tensor,
    int8_tokens,
    nvfp4_tokens,
    rounded_inputs,
    smooth_model,
    smoothing,
)
from utils.quant.formats.blocks import BlockWeight, fp8, mxfp4, nvfp4
from utils.quant.formats.floats import E2M1, E4M3, E5M2, FloatFormat

__all__ = [
    "E2M1",
    "E4M3",
    "E5M2",
    "BlockWeight",
    "FloatFormat",
    "fp8",
    "fp8_tokens",
    "int8_channels",
    "int8_tensor",
    "int8_tokens",
    "mxfp4",
    "nvfp4",
    "nvfp4_tokens",
    "rounded_inputs",
    "smooth_model",
    "smoothing",
]
