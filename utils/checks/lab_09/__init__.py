"""The checks of lab 09: what is drawn, and what is right.

Oracles: plain Python numbers, a search over all levels, each column followed in float64, bits set
one by one. A design of one's own is held to what the text promises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import answers, checkpoint, columns, grids, nf4, quantized_model, scales
from utils.checks.lab_09.parts import InTime, InWords, in_parts
from utils.checks.lab_09.quantized_model import ask

__all__ = ["ask"]
LAB = Lab(__file__)

find_params = LAB.check(
    answers.find_params,
    grids.draw_groups,
    InWords(grids.params_by_hand, wrong=in_parts(("scales", "zeros"), zeros=grids.wrong_zeros)),
)

quantize = LAB.check(
    answers.quantize,
    grids.draw_weight,
    InWords(
        grids.nearest_codes, wrong=in_parts(("codes",), grids.draw_errors, codes=grids.not_nearest)
    ),
    passed=grids.praise_codes,
)

dequantize = LAB.check(
    answers.dequantize,
    grids.draw_codes,
    InWords(grids.read_back, wrong=in_parts(("weight",), weight=grids.off_the_grid)),
)

fit_params = LAB.check(
    answers.fit_params,
    grids.draw_own,
    InTime(
        lambda groups, bits: grids.params_by_hand(groups, bits, False),
        wrong=grids.broken_promise_of_grids,
    ),
    passed=grids.praise_grids,
)

checkpoint_bytes = LAB.check(
    answers.checkpoint_bytes,
    checkpoint.draw_model,
    InWords(checkpoint.tensor_bytes, wrong=checkpoint.wrong_bytes),
    passed=checkpoint.praise_bytes,
)

quantize_blockwise = LAB.check(
    answers.quantize_blockwise,
    nf4.draw_values,
    InWords(
        nf4.by_search,
        wrong=in_parts(("codes", "absmax"), first=("absmax",), codes=nf4.no_nearest_level),
    ),
    passed=nf4.praise_blockwise,
)

double_quantize = LAB.check(
    answers.double_quantize,
    nf4.draw_absmax,
    InWords(
        nf4.double_quantized,
        wrong=in_parts(
            ("codes", "nested_absmax", "offset"),
            first=("offset", "nested_absmax", "codes"),
            codes=nf4.wrong_absmax_codes,
            nested_absmax=nf4.wrong_nested,
        ),
    ),
)

dequantize_nf4 = LAB.check(
    answers.dequantize_nf4,
    nf4.draw_nf4,
    InWords(nf4.nf4_read_back, wrong=in_parts(("weight",), weight=nf4.wrong_nf4)),
)

prepare = LAB.check(
    answers.prepare,
    columns.draw_inputs,
    InWords(
        columns.ready_by_hand,
        wrong=in_parts(
            ("weight", "hessian"),
            weight=lambda given, expected, got: got[0] != expected[0],
            hessian=columns.wrong_hessian,
        ),
    ),
)

gptq = LAB.check(
    answers.gptq,
    columns.draw_columns,
    InWords(columns.in_float64, wrong=columns.wrong_column),
    passed=columns.praise_columns,
    examples=70,
)

search_scales = LAB.check(
    answers.search_scales,
    scales.draw_channels,
    InTime(scales.the_lessons, wrong=scales.broken_promise_of_scales),
    passed=scales.praise_scales,
    examples=40,
)

pack_layer = LAB.check(
    answers.pack_layer,
    checkpoint.draw_layer,
    InWords(checkpoint.by_hand, wrong=checkpoint.wrong_words),
)


@LAB.exercise
def engine(make_quantizers: Callable[[], Any]) -> Passed:
    """Check `my_quantizers()`, which returns `my_rtn`, `my_grid` and `my_gptq`."""
    parts = ("find_params", "quantize", "dequantize", "fit_params", "prepare", "gptq")
    return quantized_model.run(make_quantizers, {name: globals()[name] for name in parts})
