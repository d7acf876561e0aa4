"""Quantization from scratch: RTN, NF4, GPTQ and AWQ, and the checkpoint layouts that vLLM loads.

| file           | holds                                                                 |
|----------------|-----------------------------------------------------------------------|
| `rtn.py`       | `QuantizedWeight`, `rtn`: round to nearest; `search_range`             |
| `nf4.py`       | `NF4Weight`, `quantize_nf4`: normal quantiles, double quantization     |
| `stats.py`     | `InputStats`: what GPTQ and AWQ know about a layer's inputs            |
| `gptq.py`      | `gptq`: error compensation, act-order, lazy blocks                     |
| `awq.py`       | `awq`, `search_scales`, `search_clip`                                  |
| `packing.py`   | `pack_gptq`, `pack_awq` and their inverses                             |
| `calibrate.py` | `calibrate`: walks through a model layer by layer                      |
| `model.py`     | `quantize_model`, `checkpoint_tensors`: a whole model                  |
| `formats/`     | FP8, MXFP4 and NVFP4; W8A8 and SmoothQuant                             |
"""

from utils.quant.awq import ScaleSearch, apply_clip, awq, search_clip, search_scales
from utils.quant.calibrate import SAME_INPUT, calibrate, decoder_layers
from utils.quant.gptq import column_order, gptq, inverse_cholesky
from utils.quant.model import checkpoint_tensors, quantize_model
from utils.quant.nf4 import NF4Weight, create_dynamic_map, create_normal_map, quantize_nf4
from utils.quant.packing import (
    pack_awq,
    pack_gptq,
    pack_int4,
    pack_int4_awq,
    unpack_awq,
    unpack_gptq,
    unpack_int4,
    unpack_int4_awq,
)
from utils.quant.rtn import QuantizedWeight, find_params, rtn, search_range
from utils.quant.stats import InputStats, output_error, relative_error

__all__ = [
    "SAME_INPUT",
    "InputStats",
    "NF4Weight",
    "QuantizedWeight",
    "ScaleSearch",
    "apply_clip",
    "awq",
    "calibrate",
    "checkpoint_tensors",
    "column_order",
    "create_dynamic_map",
    "create_normal_map",
    "decoder_layers",
    "find_params",
    "gptq",
    "inverse_cholesky",
    "output_error",
    "pack_awq",
    "pack_gptq",
    "pack_int4",
    "pack_int4_awq",
    "quantize_model",
    "quantize_nf4",
    "relative_error",
    "rtn",
    "search_clip",
    "search_range",
    "search_scales",
    "unpack_awq",
    "unpack_gptq",
    "unpack_int4",
    "unpack_int4_awq",
]
