"""The checks of lab 12b: what is drawn, and what is right.

Oracles: the tables of `ml_dtypes`, a search over all values, whole numbers in float64.
"""

from __future__ import annotations

from collections.abc import Callable

from utils.checks.kit.contracts import Returns
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_12b import answers, blocks, eight_bits, floats

LAB = Lab(__file__)
RIGHT, LETTERS = "c", "abcd"

decode = LAB.check(
    answers.decode, floats.draw_codes, Returns(floats.looked_up, wrong=floats.wrong_values)
)

encode = LAB.check(
    answers.encode, floats.draw_values, Returns(floats.searched, wrong=floats.wrong_codes)
)

mxfp4 = LAB.check(
    answers.mxfp4, blocks.draw_mx, Returns(blocks.mx_by_trying, wrong=blocks.wrong_mx)
)

nvfp4 = LAB.check(
    answers.nvfp4, blocks.draw_nv, Returns(blocks.nv_by_trying, wrong=blocks.wrong_nv)
)

w8a8_linear = LAB.check(
    answers.w8a8_linear,
    eight_bits.draw_layer,
    Returns(eight_bits.product_by_columns, wrong=eight_bits.wrong_product),
)

smooth = LAB.check(
    answers.smooth,
    eight_bits.draw_channels,
    Returns(eight_bits.channel_by_channel, wrong=eight_bits.wrong_shift),
)


@LAB.exercise
def why_not_one(answer: Callable[[], str]) -> str:
    """Check the letter that `why_not_one()` returns."""
    words = LAB.words["why_not_one"]
    came = call(answer)
    letter = came.strip().lower() if isinstance(came, str) else ""
    if letter == RIGHT:
        return str(words["passed"])
    says, look = words["clauses"][letter if letter and letter in LETTERS else "letter"]
    raise Mismatch(says, got=repr(came), look=look)
