"""The checks of lab 09.

Oracles: plain Python numbers, a search over all levels, elimination with a fresh inverse for each
column, bits set one by one. A design of one's own is held to what the text promises.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_09 import (
    awq,
    checkpoint,
    codes,
    gptq_columns,
    gptq_ready,
    grid,
    learners_engine,
    nf4_codes,
    nf4_double,
)
from utils.checks.lab_09.learners_engine import QuantizersFactory

Parts = tuple[Tensor, ...]


@exercise("Exercise 1: find_params", points=3)
def find_params(function: Callable[..., Parts]) -> str | Passed:
    """Check `find_params(groups, bits, sym)`."""
    return grid.FIND_PARAMS.check(function)


@exercise("Exercise 2: quantize", points=2)
def quantize(function: Callable[..., Tensor]) -> str | Passed:
    """Check `quantize(weight, scales, zeros, bits)`."""
    return codes.QUANTIZE.check(function)


@exercise("Exercise 3: dequantize", points=1)
def dequantize(function: Callable[..., Tensor]) -> str | Passed:
    """Check `dequantize(q, scales, zeros)`."""
    return codes.DEQUANTIZE.check(function)


@exercise("Exercise 4: checkpoint_bytes", points=2)
def checkpoint_bytes(function: Callable[..., float]) -> str | Passed:
    """Check `checkpoint_bytes(linear_shapes, num_other_params, bits, group_size)`."""
    return checkpoint.CHECKPOINT_BYTES.check(function)


@exercise("Exercise 5: quantize_blockwise", points=3)
def quantize_blockwise(function: Callable[..., Parts]) -> str | Passed:
    """Check `quantize_blockwise(values, levels, blocksize)`."""
    return nf4_codes.QUANTIZE_BLOCKWISE.check(function)


@exercise("Exercise 6: double_quantize", points=2)
def double_quantize(function: Callable[..., Parts]) -> str | Passed:
    """Check `double_quantize(absmax)`."""
    return nf4_double.DOUBLE_QUANTIZE.check(function)


@exercise("Exercise 7: dequantize_nf4", points=2)
def dequantize_nf4(function: Callable[..., Tensor]) -> str | Passed:
    """Check `dequantize_nf4(codes, absmax_codes, nested_absmax, offset, blocksize)`."""
    return nf4_double.DEQUANTIZE_NF4.check(function)


@exercise("Exercise 8: prepare", points=2)
def prepare(function: Callable[..., Parts]) -> str | Passed:
    """Check `prepare(weight, inputs, damp_percent)`."""
    return gptq_ready.PREPARE.check(function)


@exercise("Exercise 9: gptq", points=5)
def gptq(function: Callable[..., Parts]) -> str | Passed:
    """Check `gptq(weight, upper, bits, group_size)`."""
    return gptq_columns.GPTQ.check(function)


@exercise("Exercise 10: search_scales", points=3)
def search_scales(function: Callable[..., Tensor]) -> str | Passed:
    """Check `search_scales(weight, inputs, bits, group_size)`."""
    return awq.SEARCH_SCALES.check(function)


@exercise("Exercise 11: pack_layer", points=3)
def pack_layer(function: Callable[..., Parts]) -> str | Passed:
    """Check `pack_layer(q, zeros, layout)`."""
    return checkpoint.PACK_LAYER.check(function)


@exercise("Exercise 12: fit_params", points=4)
def fit_params(function: Callable[..., Parts]) -> str | Passed:
    """Check `fit_params(groups, bits)`, a design of one's own, by what it promises."""
    return grid.FIT_PARAMS.check(function)


@exercise("Exercise 13: your quantizers in the engine", points=3)
def engine(make_quantizers: QuantizersFactory) -> str | Passed:
    """Check `my_quantizers()`, which returns `my_rtn` and `my_gptq`: grid, perplexity, text."""
    return learners_engine.run(make_quantizers)
