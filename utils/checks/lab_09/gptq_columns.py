"""What lab 09 says of GPTQ's columns: exercise 9.

An answer is followed column by column, in float64, with the codes that it chose: so two right
answers may round 2.5 steps to 2 or to 3. tests/checks/lab_09 holds this against elimination,
which needs no Cholesky factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out, tensor
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import pictures
from utils.checks.lab_09.codes import read
from utils.checks.lab_09.grid import BITS, params
from utils.checks.lab_09.parts import Parts, form
from utils.quant import InputStats, inverse_cholesky, relative_error, rtn

NAMES = ("codes", "scales", "zeros")
HALF = 0.5 + 0.01  # steps; float32 adds up errors over the columns


def correlated(tokens: int, width: int, generator: torch.Generator) -> Tensor:
    """Inputs that vary together, as those of a real layer do, and not all equally strongly."""
    mixing = torch.randn(width, width, generator=generator) + 0.8
    strength = torch.linspace(0.3, 2.0, width)[torch.randperm(width, generator=generator)]
    return torch.randn(tokens, width, generator=generator) @ mixing * strength / width**0.5


def draw_columns(c: Choices) -> Given:
    """Groups of one column and of many, one group and several; Hessians of any size."""
    group_size, groups = c.size(1, 10), c.size(1, 4)
    width = group_size * groups
    weight = tensor(c, (c.size(1, 6), width))
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    if c.rarely(4):  # columns of 0, and a whole group of them
        weight[:, c.integer(0, width - 1)] = 0
        weight[:, : group_size * c.integer(0, 1)] = 0
    hessian = InputStats.of(correlated(4 * width, width, generator)).hessian
    hessian.diagonal().add_(0.05 * hessian.diagonal().mean())
    upper = inverse_cholesky(hessian * c.pick((1.0, 1.0, 1e-4, 1e4)), 0.0)
    return Given(weight, laid_out(upper, c.pick(LAYOUTS)), c.pick(BITS), group_size)


def in_float64(weight: Tensor, upper: Tensor, bits: int, group_size: int) -> Parts:
    """For the form of an answer, and for the picture; `_wrong` follows the learner's own codes."""
    codes, scales, zeros = _columns(weight.double(), upper.double(), bits, group_size)
    return codes, scales.float(), zeros.float()


def _wrong(expected: Parts, got: Any, given: Given) -> Fault | None:
    fault = form(NAMES, expected, got)
    if fault is not None:
        return fault
    weight, upper, bits, group_size = given.args
    codes, scales, zeros = (part.double() for part in got)
    w, u, top, middle = weight.double().clone(), upper.double(), 2**bits - 1, 2 ** (bits - 1)
    for i in range(w.shape[1]):
        group, start = i // group_size, i % group_size == 0
        if start:
            scale = 2 * w[:, i : i + group_size].abs().amax(1) / top
            scale[scale == 0] = 1.0
            allowed = 1e-3 * scale + 1e-6 * weight.abs().amax(1)
            off = ~((scales[:, group] - scale).abs() <= allowed)
            if off.any():
                return _at("scales", off, group, scale, scales[:, group], expected, got, given)
        if not (zeros[:, group] == middle).all():
            right = torch.full_like(scale, middle)
            return _at(
                "zeros",
                zeros[:, group] != middle,
                group,
                right,
                zeros[:, group],
                expected,
                got,
                given,
            )
        place = (w[:, i] / scale + middle).clamp(0, top)
        off = (codes[:, i] - place).abs() > HALF
        if off.any():
            return _at("codes", off, i, place.round(), codes[:, i], expected, got, given)
        error = (w[:, i] - (codes[:, i] - middle) * scale) / u[i, i]
        w[:, i + 1 :] -= error[:, None] * u[i, i + 1 :]
    return None


def _at(
    name: str,
    off: Tensor,
    place: int,
    right: Tensor,
    mine: Tensor,
    expected: Parts,
    got: Parts,
    given: Given,
) -> Fault:
    """The fault in one row of one column, or group; the columns before it are right."""
    row = int(off.nonzero()[0])
    kind = "column" if name == "codes" else "group"
    words = tuple(f"`{float(t[row]):.5g}`" for t in (right, mine))
    return Fault(
        name,
        f"output {row}, {kind} {place}",
        float(right[row]),
        float(mine[row]),
        words=(words[0], words[1]),
        picture=lambda: _draw(given, expected, got),
    )


def _draw(given: Given, expected: Parts, got: Parts) -> tuple[Figure, str]:
    title = "What is read back from the codes: error of each group"
    right, yours = (read(*parts) for parts in (expected, got))
    figure = pictures.group_errors(given.args[0], right, yours, given.args[3], title)
    return figure, "The error of each group: expected beside yours."


def _columns(
    weight: Tensor,
    upper: Tensor,
    bits: int,
    group_size: int,
    *,
    grids: str = "fresh",
    divide: int = 1,
    sign: int = 1,
    factor: str = "row",
    reach: str = "all",
    read_back: bool = True,
    loss: str = "now",
    round_first: bool = False,
) -> Parts:
    """`gptq` with one switch per known mistake. It is never the oracle."""
    w, top = weight.clone(), 2**bits - 1
    q = torch.zeros_like(w)
    scales = torch.ones(len(w), w.shape[1] // group_size).to(w)
    zeros = torch.zeros_like(scales)
    spread = {"row": upper, "column": upper.T, "inverse": upper.T @ upper}[factor]
    for i in range(w.shape[1]):
        group = i // group_size
        start, end = group * group_size, (group + 1) * group_size
        if i == start or grids == "every column":
            source = weight if grids == "early" else w
            begin = i if grids == "every column" else start
            scale, zero = params(source[:, begin:end], bits, grids != "asymmetric")
            if grids == "one" and i:
                scale = scales[:, 0]
            scales[:, group], zeros[:, group] = scale, zero
        column = (weight if round_first else w)[:, i]
        q[:, i] = (column / scale).round().add(zero).clamp(0, top)
        back = (q[:, i] - zero) * scale if read_back else q[:, i]
        meant = weight if round_first or loss == "first" else w
        error = (meant[:, i] - back) / spread[i, i] ** divide
        later = slice(i + 1, end if reach == "group" else None)
        w[:, later] -= sign * error[:, None] * spread[i, later]
    return q.to(torch.uint8), scales, zeros


def _but(**switches: Any) -> Callable[..., Parts]:
    return lambda *args: _columns(*args, **switches)


def _passed(function: Callable[..., Parts]) -> Passed:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(8, 64, generator=generator)
    stats = InputStats.of(correlated(256, 64, generator))
    nearest = rtn(weight, bits=3, group_size=16).dequantize()
    yours = read(*function(weight.clone(), inverse_cholesky(stats.hessian, 0.05), 3, 16))
    before, after = (relative_error(weight, back.float(), stats) for back in (nearest, yours))
    moved = (yours - weight).square().mean() / (nearest - weight).square().mean()
    figure = pictures.group_errors(
        weight,
        nearest,
        yours,
        16,
        "With GPTQ, the weights of most groups are further off",
        names=("round to nearest", "your GPTQ"),
    )
    return Passed(
        "Right column by column, on weights of any size. "
        f"On a layer of 8 x 64 with 3 bits, the error of the weights is {moved:.1f} times that of "
        f"rounding, and the error of the *outputs* {after / before:.2f} times.",
        figure,
        "The error of each group: rounding on the left, your GPTQ on the right.",
    )


_ERROR = "Steps 2 and 3 of the text: which row, which divisor, which columns, which sign?"
GPTQ = Contract(
    inputs=draw_columns,
    judge=Returns(in_float64, wrong=_wrong),
    passed=_passed,
    examples=80,
    clauses={
        "form": Clause("{says}", "A code per weight; a scale and a zero per output and group."),
        "scales": Clause(
            "A group's scale is wrong; all columns before it are right. It is the "
            "symmetric one of the group's weights as they are when its first column "
            "is reached.",
            "Print the group's weights at that moment.",
        ),
        "zeros": Clause(
            "A group's zero is wrong. The grids are symmetric.",
            "The middle code, as in exercise 1.",
        ),
        "codes": Clause(
            "A code is wrong; all columns before it are right. It is the nearest on "
            "its group's grid, to the column as it is by then.",
            _ERROR,
        ),
    },
    mistakes=(
        mistake(
            "These are the codes of plain rounding: no error reaches the later columns. "
            "Row i of `upper` says how much each gets; below its diagonal are zeros.",
            _ERROR,
            _but(factor="column"),
        ),
        mistake(
            "The scales come from the weights as they were at first. A group's scale is "
            "taken when its first column is reached, from the weights as they are by then.",
            "Inside the loop, from the weights that have moved.",
            _but(grids="early"),
        ),
        mistake(
            "The scale is taken anew at each column. It belongs to a group: the codes "
            "before would change their meaning.",
            "Only at a group's first column.",
            _but(grids="every column"),
        ),
        mistake(
            "All groups have the scale of the first. Each has one of its own, taken when "
            "its first column is reached.",
            "At each group's first column.",
            _but(grids="one"),
        ),
        mistake(
            "The grids are asymmetric. Here they are symmetric, with the zero in the middle.",
            "`sym=True`.",
            _but(grids="asymmetric"),
        ),
        mistake("The error is not divided by `upper[i, i]`.", _ERROR, _but(divide=0)),
        mistake(
            "The sign is wrong: the later columns move the wrong way, and double the error.",
            _ERROR,
            _but(sign=-1),
        ),
        mistake(
            "You use the inverse of the whole Hessian. After each column, the inverse of "
            "what is left is another; `upper` holds these rows.",
            _ERROR,
            _but(factor="inverse"),
        ),
        mistake(
            "The error stays within its group. All later columns make up for it.",
            "To the last column.",
            _but(reach="group"),
        ),
        mistake(
            "The error is the distance to the *code*. It is the distance to the weight "
            "that is read back.",
            "Exercise 3.",
            _but(read_back=False),
        ),
        mistake(
            "The error is measured from the first weights. It is measured from the weights "
            "as they are by now: what came from the columns before must be made good, too.",
            "Which tensor has moved?",
            _but(loss="first"),
        ),
        mistake(
            "You round the weights as they were at first, so what the columns before have "
            "moved is lost.",
            "Which tensor has moved?",
            _but(round_first=True),
        ),
    ),
)
