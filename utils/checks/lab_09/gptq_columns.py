"""What lab 09 says of GPTQ: exercises 8 (weight and Hessian, made ready) and 9 (the columns)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.compare_tensors import Parts, PartsCase, compare_parts
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import pictures
from utils.checks.lab_09.gptq_mistakes import COLUMN_MISTAKES, PREPARE_MISTAKES
from utils.quant import InputStats, inverse_cholesky, relative_error, rtn

# Exercise 8


def _ready_by_hand(weight: Tensor, inputs: Tensor, damp_percent: float) -> Parts:
    """Token by token, in float64."""
    n, width = inputs.shape
    hessian = torch.zeros(width, width, dtype=torch.float64)
    for token in inputs.double():
        hessian += 2 * torch.outer(token, token) / n
    ready = weight.clone()
    for channel in range(width):
        if hessian[channel, channel] == 0:
            ready[:, channel] = 0
            hessian[channel, channel] = 1
    damping = damp_percent * sum(float(hessian[i, i]) for i in range(width)) / width
    for channel in range(width):
        hessian[channel, channel] += damping
    return ready, hessian.float()


def _prepare_case(
    tokens: int, width: int, damp_percent: float, dead: tuple[int, ...] = (), cancels: bool = False
) -> PartsCase:
    generator = torch.Generator().manual_seed(width)
    weight = torch.randn(3, width, generator=generator)
    inputs = torch.randn(tokens, width, generator=generator) + 0.5
    inputs[:, list(dead)] = 0
    if cancels:
        inputs[:, 0] = torch.tensor([1.0, -1.0]).repeat(tokens // 2)
    given = f"weight [3, {width}], inputs [{tokens}, {width}], damp_percent={damp_percent}"
    given += f"; channel {dead[0]} is dead" if dead else ""
    given += "; channel 0 is 1 and -1 by turns" if cancels else ""
    args = (weight, inputs, damp_percent)
    return PartsCase(given, args, _ready_by_hand(*args), 1e-4, 1e-5)


_PREPARE_CASES = (
    _prepare_case(1, 2, 0.0), _prepare_case(5, 3, 0.0), _prepare_case(3, 3, 0.1),
    _prepare_case(4, 6, 0.05), _prepare_case(9, 4, 0.05, (2,)), _prepare_case(30, 8, 0.01, (0, 5)),
    _prepare_case(4, 2, 0.05, cancels=True),
)  # fmt: skip


def judge_prepare(function: Callable[..., Parts]) -> str:
    """Check `prepare(weight, inputs, damp_percent)`."""
    compare_parts(function, ("weight", "hessian"), _PREPARE_CASES, PREPARE_MISTAKES)
    return (
        "2 XᵀX / n, dead channels cleared, and enough added to the diagonal for an inverse, even "
        "with fewer tokens than channels."
    )


# Exercise 9


def by_elimination(weight: Tensor, hessian: Tensor, bits: int, group_size: int) -> Parts:
    """GPTQ without a Cholesky factor: a fresh inverse for what is left, column by column; float64.

    Section 2 of the paper (Optimal Brain Quantization). The smallest distance from a rounding
    edge is the last part.
    """
    w, top = weight.double().clone(), 2**bits - 1
    q, scales, edge = torch.zeros_like(w), [], 1.0
    for i in range(w.shape[1]):
        if i % group_size == 0:
            scale = 2 * w[:, i : i + group_size].abs().amax(1) / top
            scale[scale == 0] = 1.0
            scales.append(scale)
        place = w[:, i] / scale + 2 ** (bits - 1)
        q[:, i] = place.round().clamp(0, top)
        inside = (place > 0) & (place < top)
        edge = min([edge, *((place - place.floor() - 0.5).abs()[inside]).tolist()])
        error = w[:, i] - (q[:, i] - 2 ** (bits - 1)) * scale
        rest = torch.linalg.inv(hessian.double()[i:, i:])  # of the columns from i on
        w[:, i:] -= error[:, None] * rest[0] / rest[0, 0]
    found = torch.stack(scales, 1).float()
    zeros = torch.full_like(found, 2 ** (bits - 1))
    return q.to(torch.uint8), found, zeros, torch.tensor(edge)


def _inputs(tokens: int, width: int, generator: torch.Generator) -> Tensor:
    """Inputs that vary together, as those of a real layer do, and not all equally strongly."""
    mixing = torch.randn(width, width, generator=generator) + 0.8
    strength = torch.linspace(0.3, 2.0, width)[torch.randperm(width, generator=generator)]
    return torch.randn(tokens, width, generator=generator) @ mixing * strength / width**0.5


def _columns_case(out: int, width: int, bits: int, group_size: int, seed: int = 0) -> PartsCase:
    """The seeds are such that no weight comes near the edge between two codes."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out, width, generator=generator)
    hessian = InputStats.of(_inputs(4 * width, width, generator)).hessian
    hessian.diagonal().add_(0.05 * hessian.diagonal().mean())
    *expected, edge = by_elimination(weight, hessian, bits, group_size)
    assert edge > 2e-3
    upper = inverse_cholesky(hessian, 0.0)
    given = f"weight [{out}, {width}], bits={bits}, group_size={group_size}"
    return PartsCase(given, (weight, upper, bits, group_size), tuple(expected), 1e-3, 1e-4)


_COLUMN_CASES = (
    _columns_case(1, 2, 4, 2), _columns_case(2, 4, 4, 4, seed=1), _columns_case(2, 8, 4, 4),
    _columns_case(3, 8, 3, 4), _columns_case(3, 12, 4, 4),
)  # fmt: skip


def _read(q: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    times = q.shape[1] // scales.shape[1]
    return (q.float() - zeros.repeat_interleave(times, 1)) * scales.repeat_interleave(times, 1)


def _draw(case: PartsCase, got: Parts) -> tuple[Figure, str]:
    title = "What is read back from the codes: error of each group"
    expected, yours = (_read(*parts) for parts in (case.expected, got))
    figure = pictures.group_errors(case.args[0], expected, yours, case.args[3], title)
    return figure, "The error of each group: expected beside yours."


def judge_gptq(function: Callable[..., Parts]) -> Passed:
    """Check `gptq(weight, upper, bits, group_size)`."""
    compare_parts(function, ("codes", "scales", "zeros"), _COLUMN_CASES, COLUMN_MISTAKES, _draw)
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(8, 64, generator=generator)
    stats = InputStats.of(_inputs(256, 64, generator))
    nearest = rtn(weight, bits=3, group_size=16).dequantize()
    yours = _read(*function(weight, inverse_cholesky(stats.hessian, 0.05), 3, 16))
    before, after = (relative_error(weight, back, stats) for back in (nearest, yours))
    moved = (yours - weight).square().mean() / (nearest - weight).square().mean()
    figure = pictures.group_errors(
        weight, nearest, yours, 16,
        "With GPTQ, the weights of most groups are further off",
        names=("round to nearest", "your GPTQ"),
    )  # fmt: skip
    return Passed(
        "Code for code what elimination gives, which inverts a smaller Hessian for each column. "
        f"On a layer of 8 x 64 with 3 bits, the error of the weights is {moved:.1f} times that of "
        f"rounding, and the error of the *outputs* {after / before:.2f} times.",
        figure, "The error of each group: rounding on the left, your GPTQ on the right.",
    )  # fmt: skip
