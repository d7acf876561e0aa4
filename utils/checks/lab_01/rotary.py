"""Pairs of numbers, turned by their token's angles: exercise 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit import pictures
from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.inputs import LAYOUTS, VALUES, laid_out, tensor

DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)
THETA = 10000.0


def draw(c: Choices) -> Given:
    """Positions in any order, far away too; as many heads as tokens, or not."""
    positions = [c.pick((1, 0, 2, 3, 100, 2000)) for _ in range(c.size(1, 40))]
    heads = c.size(1, 9) if c.rarely(2) else len(positions)
    dim, dtype = 2 * c.size(1, 70, small=3), c.pick(DTYPES)
    values = tuple(k for k in VALUES if not (k == "tiny" and dtype == torch.float16))
    x = tensor(c, (len(positions), heads, dim), (dtype,), values)
    frequency = THETA ** (-torch.arange(0, dim, 2) / dim)
    angles = (torch.tensor(positions)[:, None] * frequency).repeat(1, 2)  # [T, D]
    layout = c.pick(LAYOUTS)
    return Given(x, *(laid_out(f(angles).to(dtype), layout) for f in (torch.cos, torch.sin)))


def oracle(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Arrows in the plane are complex numbers; to turn one is to multiply it."""
    half = x.shape[-1] // 2
    arrows = torch.complex(x[..., :half].double(), x[..., half:].double())
    turns = torch.complex(cos[:, None, :half].double(), sin[:, None, :half].double())
    turned = arrows * turns
    return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)


def wrong(expected: Tensor, got: Any, given: Given) -> Fault | None:
    if not (says := difference(expected, got)):
        return None

    def picture() -> tuple[Figure, str]:
        x, half = given.args[0].float(), expected.shape[-1] // 2

        def as_pairs(t: Tensor) -> Tensor:
            one = t[:3, 0].float()
            return torch.stack((one[:, :half], one[:, half:]), dim=-1)[:, :2]

        figure = pictures.rotation(as_pairs(x), as_pairs(expected), as_pairs(got))
        return figure, "Arrows of the pairs before, expected and yours."

    return Fault("returns", "", expected, got, says, picture=picture)


def _swapped(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def _neighbours(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)


def _turn(turned: Callable[[Tensor], Tensor], angles: Any = lambda a: a) -> Callable[..., Any]:
    """`x * cos + turned * sin`, with another `turned`, or other angles."""
    return lambda x, cos, sin: x * angles(cos[:, None]) + turned(x) * angles(sin[:, None])


def _restarted(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Angles counted from the first row: cos(a - a0), sin(a - a0)."""
    return _turn(_swapped)(x, cos * cos[:1] + sin * sin[:1], sin * cos[:1] - cos * sin[:1])


APPLY_ROTARY = Contract(
    inputs=draw,
    judge=Returns(oracle, own=True, wrong=wrong),
    passed="Equal to a product of complex numbers, on 150 random inputs, at positions up to 2000.",
    tell=lambda given: (
        f"x has shape {tuple(given.args[0].shape)}, {given.args[0].dtype}; the "
        f"first angles are {[round(float(a), 2) for a in torch.atan2(*given.args[:0:-1])[:4, 0]]}"
    ),
    clauses={
        "returns": Clause(
            "These are not the pairs (i, i + D/2), each turned by its token's "
            "angle, in the dtype of x. {says}",
            "`x * cos + turned * sin`, with the same angles for all heads of a token.",
        )
    },
    mistakes=(
        mistake(
            "You rotate neighbouring numbers (0 with 1, 2 with 3). Llama's checkpoints pair "
            "number i with number i + head_dim / 2.",
            "Split the last dimension into two "
            "halves with `chunk(2, dim=-1)`; do not take every second number.",
            _turn(_neighbours),
            _turn(_neighbours, lambda a: a[..., : a.shape[-1] // 2].repeat_interleave(2, dim=-1)),
        ),
        mistake(
            "The sign is wrong: you turn by minus the angle.",
            "The minus stands before the "
            "*second* half, which moves to the front: `cat((-second, first))`.",
            _turn(lambda x: -_swapped(x)),
        ),
        mistake(
            "The minus sign is missing: without it this is no rotation, and lengths change.",
            "`cat((-second, first))`: one half changes its sign, the other does not.",
            _turn(lambda x: x.roll(x.shape[-1] // 2, -1)),
        ),
        mistake(
            "The halves are not swapped before they are multiplied with the sine.",
            "The sine multiplies `cat((-second, first))`.",
            _turn(lambda x: -_swapped(x).roll(x.shape[-1] // 2, -1)),
            _turn(lambda x: _swapped(x).roll(x.shape[-1] // 2, -1)),
            _turn(lambda x: x),
        ),
        mistake(
            "Cosine and sine are exchanged.",
            "`x * cos + rotated * sin`.",
            lambda x, cos, sin: _turn(_swapped)(x, sin, cos),
        ),
        mistake(
            "The angles run along the heads, not along the tokens: head h got the angle of "
            "token h.",
            "`x` is [T, heads, D] and `cos` is [T, D]. Make it [T, 1, D] with "
            "`cos.unsqueeze(1)`, or torch lines up T with the heads.",
            lambda x, cos, sin: x * cos + _swapped(x) * sin,
        ),
        mistake(
            "Every token is rotated by the angle of the first one: positions are lost.",
            "Row t of `cos` and `sin` belongs to token t.",
            lambda x, cos, sin: _turn(_swapped)(x, cos[:1], sin[:1]),
        ),
        mistake(
            "You rotate as if the first token stood at position 0. Its position is already in "
            "`cos` and `sin`.",
            "Use the rows of `cos` and `sin` as they come; compute no angles of your own.",
            _restarted,
        ),
    ),
)
