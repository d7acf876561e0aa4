"""The checks of lab 09.

Oracles: plain Python numbers, a search over all levels, elimination with a fresh inverse for each
column, bits set one by one, and layers that were packed for real.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from utils.checks import (
    quant_awq,
    quant_bytes,
    quant_codes,
    quant_engine,
    quant_gptq,
    quant_grid,
    quant_nf4,
    quant_nf4_back,
    quant_nf4_double,
    quant_packing,
)
from utils.checks.quant_engine import QuantizersFactory
from utils.checks.runner import Passed, exercise

Parts = tuple[Tensor, ...]


@exercise("Exercise 1: find_params", points=3)
def find_params(function: Callable[..., Parts]) -> str:
    """Check `find_params(groups, bits, sym)`."""
    return quant_grid.judge_find_params(function)


@exercise("Exercise 2: quantize", points=2)
def quantize(function: Callable[..., Tensor]) -> Passed:
    """Check `quantize(weight, scales, zeros, bits)`."""
    return quant_codes.judge_quantize(function)


@exercise("Exercise 3: dequantize", points=1)
def dequantize(function: Callable[..., Tensor]) -> str:
    """Check `dequantize(q, scales, zeros)`."""
    return quant_codes.judge_dequantize(function)


@exercise("Exercise 4: checkpoint_bytes", points=2)
def checkpoint_bytes(function: Callable[..., float]) -> str:
    """Check `checkpoint_bytes(linear_shapes, num_other_params, bits, group_size)`."""
    return quant_bytes.judge_checkpoint_bytes(function)


@exercise("Exercise 5: quantize_blockwise", points=3)
def quantize_blockwise(function: Callable[..., Parts]) -> Passed:
    """Check `quantize_blockwise(values, levels, blocksize)`."""
    return quant_nf4.judge_quantize_blockwise(function)


@exercise("Exercise 6: double_quantize", points=2)
def double_quantize(function: Callable[..., Parts]) -> str:
    """Check `double_quantize(absmax)`."""
    return quant_nf4_double.judge_double_quantize(function)


@exercise("Exercise 7: dequantize_nf4", points=2)
def dequantize_nf4(function: Callable[..., Tensor]) -> str:
    """Check `dequantize_nf4(codes, absmax_codes, nested_absmax, offset, blocksize)`."""
    return quant_nf4_back.judge_dequantize_nf4(function)


@exercise("Exercise 8: prepare", points=2)
def prepare(function: Callable[..., Parts]) -> str:
    """Check `prepare(weight, inputs, damp_percent)`."""
    return quant_gptq.judge_prepare(function)


@exercise("Exercise 9: gptq", points=5)
def gptq(function: Callable[..., Parts]) -> Passed:
    """Check `gptq(weight, upper, bits, group_size)`."""
    return quant_gptq.judge_gptq(function)


@exercise("Exercise 10: search_scales", points=3)
def search_scales(function: Callable[..., Tensor]) -> Passed:
    """Check `search_scales(weight, inputs, bits, group_size, n_grid)`."""
    return quant_awq.judge_search_scales(function)


@exercise("Exercise 11: pack_layer", points=3)
def pack_layer(function: Callable[..., Parts]) -> str:
    """Check `pack_layer(q, zeros, layout)`."""
    return quant_packing.judge_pack_layer(function)


@exercise("Exercise 12: your quantizers in the engine", points=3)
def engine(make_quantizers: QuantizersFactory) -> Passed:
    """Check `my_quantizers()`, which returns `my_rtn` and `my_gptq`: grid, perplexity, text."""
    quant_engine.rehearse(make_quantizers)  # unwritten parts answer before a model is loaded
    return quant_engine.compare(make_quantizers)
