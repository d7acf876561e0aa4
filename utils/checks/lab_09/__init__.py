"""The checks of lab 09.

Oracles: plain Python numbers, a search over all levels, elimination with a fresh inverse for each
column, bits set one by one, and layers that were packed for real.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_09 import (
    awq,
    checkpoint_size,
    codes,
    gptq_columns,
    grid,
    learners_engine,
    nf4_back,
    nf4_codes,
    nf4_double,
    packing,
)
from utils.checks.lab_09.learners_engine import QuantizersFactory

Parts = tuple[Tensor, ...]


@exercise("Exercise 1: find_params", points=3)
def find_params(function: Callable[..., Parts]) -> str:
    """Check `find_params(groups, bits, sym)`."""
    return grid.judge_find_params(function)


@exercise("Exercise 2: quantize", points=2)
def quantize(function: Callable[..., Tensor]) -> Passed:
    """Check `quantize(weight, scales, zeros, bits)`."""
    return codes.judge_quantize(function)


@exercise("Exercise 3: dequantize", points=1)
def dequantize(function: Callable[..., Tensor]) -> str:
    """Check `dequantize(q, scales, zeros)`."""
    return codes.judge_dequantize(function)


@exercise("Exercise 4: checkpoint_bytes", points=2)
def checkpoint_bytes(function: Callable[..., float]) -> str:
    """Check `checkpoint_bytes(linear_shapes, num_other_params, bits, group_size)`."""
    return checkpoint_size.judge_checkpoint_bytes(function)


@exercise("Exercise 5: quantize_blockwise", points=3)
def quantize_blockwise(function: Callable[..., Parts]) -> Passed:
    """Check `quantize_blockwise(values, levels, blocksize)`."""
    return nf4_codes.judge_quantize_blockwise(function)


@exercise("Exercise 6: double_quantize", points=2)
def double_quantize(function: Callable[..., Parts]) -> str:
    """Check `double_quantize(absmax)`."""
    return nf4_double.judge_double_quantize(function)


@exercise("Exercise 7: dequantize_nf4", points=2)
def dequantize_nf4(function: Callable[..., Tensor]) -> str:
    """Check `dequantize_nf4(codes, absmax_codes, nested_absmax, offset, blocksize)`."""
    return nf4_back.judge_dequantize_nf4(function)


@exercise("Exercise 8: prepare", points=2)
def prepare(function: Callable[..., Parts]) -> str:
    """Check `prepare(weight, inputs, damp_percent)`."""
    return gptq_columns.judge_prepare(function)


@exercise("Exercise 9: gptq", points=5)
def gptq(function: Callable[..., Parts]) -> Passed:
    """Check `gptq(weight, upper, bits, group_size)`."""
    return gptq_columns.judge_gptq(function)


@exercise("Exercise 10: search_scales", points=3)
def search_scales(function: Callable[..., Tensor]) -> Passed:
    """Check `search_scales(weight, inputs, bits, group_size, n_grid)`."""
    return awq.judge_search_scales(function)


@exercise("Exercise 11: pack_layer", points=3)
def pack_layer(function: Callable[..., Parts]) -> str:
    """Check `pack_layer(q, zeros, layout)`."""
    return packing.judge_pack_layer(function)


@exercise("Exercise 12: your quantizers in the engine", points=3)
def engine(make_quantizers: QuantizersFactory) -> Passed:
    """Check `my_quantizers()`, which returns `my_rtn` and `my_gptq`: grid, perplexity, text."""
    learners_engine.rehearse(make_quantizers)  # unwritten parts answer before a model is loaded
    return learners_engine.compare(make_quantizers)
