"""What lab 09 says of the weight and the Hessian that GPTQ begins with: exercise 8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out, tensor
from utils.checks.lab_09.parts import Parts, far, in_parts


def draw_layer(c: Choices) -> Given:
    """Few tokens and many; channels that are dead, weak, strong, or cancel to 0."""
    tokens, width = c.size(1, 70), c.size(1, 40)
    inputs = tensor(c, (tokens, width), layouts=("contiguous",))
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    if c.rarely(2):
        kinds = torch.randint(0, 6, (width,), generator=generator)
        inputs *= torch.tensor([1.0, 1.0, 0.0, 0.0, 1e-5, 1e3])[kinds]
    if c.rarely(5):
        inputs[:, 0] = (-1.0) ** torch.arange(tokens)  # its sum is 0, if tokens are even
    if c.rarely(5):
        inputs[0] = 0.0  # a token of zeros kills no channel
    weight = tensor(c, (c.size(1, 6), width))
    damp_percent = c.pick((0.0, 0.05, 0.01, 0.1, 1.0))
    return Given(weight, laid_out(inputs, c.pick(LAYOUTS)), damp_percent)


def ready_by_hand(weight: Tensor, inputs: Tensor, damp_percent: float) -> Parts:
    """Token by token, in float64."""
    n, width = inputs.shape
    hessian = torch.zeros(width, width, dtype=torch.float64)
    for token in inputs.double():
        hessian += 2 * torch.outer(token, token) / n
    ready = weight.clone()
    for channel in range(width):
        if not inputs[:, channel].any():
            ready[:, channel] = 0
            hessian[channel, channel] = 1
    damping = damp_percent * sum(float(hessian[i, i]) for i in range(width)) / width
    for channel in range(width):
        hessian[channel, channel] += damping
    return ready, hessian.float()


def _weight(given: Given, expected: Parts, got: Parts) -> Tensor:
    return got[0] != expected[0]


def _hessian(given: Given, expected: Parts, got: Parts) -> Tensor:
    """Sums of products can cancel: what float32 knows of them depends on the two channels."""
    size = given.args[1].double().square().mean(0).sqrt()
    return far(got[1], expected[1], 1e-5 * size[:, None] * size)


def _ready(
    weight: Tensor,
    inputs: Tensor,
    damp: float,
    *,
    factor: float = 2,
    share: bool = True,
    centre: bool = False,
    damping: str = "mean",
    clear: bool = True,
    lift: str = "before",
    by: str = "diagonal",
) -> Parts:
    """`prepare` with one switch per known mistake. It is never the oracle."""
    x = inputs - inputs.mean(0) if centre else inputs
    hessian = factor * x.T @ x / (len(x) if share else 1)
    dead = (x.sum(0) if by == "sum" else hessian.diagonal()) == 0
    unlifted = hessian.diagonal().clone()
    if lift in ("before", "unseen"):
        hessian.diagonal()[dead] = 1
    diagonal = unlifted if lift == "unseen" else hessian.diagonal().clone()
    amount = (
        damp
        * {
            "mean": diagonal.mean(),
            "one": torch.tensor(1.0),
            "all": diagonal.mean(),
            "none": torch.tensor(0.0),
            "whole": hessian.mean(),
        }[damping]
    )
    if damping == "all":
        hessian += amount
    else:
        hessian.diagonal().add_(amount)
    if lift == "after":
        hessian.diagonal()[dead] = 1
    return weight.masked_fill(dead, 0) if clear else weight, hessian


def _but(**switches: Any) -> Callable[..., Parts]:
    return lambda *args: _ready(*args, **switches)


_MEAN = "H is a mean over tokens of 2 x xᵀ."
_DAMP = "A share of the mean of the diagonal, added to the diagonal."
PREPARE = Contract(
    inputs=draw_layer,
    judge=Returns(
        ready_by_hand, wrong=in_parts(("weight", "hessian"), weight=_weight, hessian=_hessian)
    ),
    passed="2 XᵀX / n, dead channels cleared, and enough added to the diagonal for an inverse, "
    "even with fewer tokens than channels.",
    clauses={
        "form": Clause(
            "{says}",
            "The weight as it was [out, in], and one row and column of H per input channel.",
        ),
        "weight": Clause(
            "{says} The columns of dead channels are 0; all others are as they were. "
            "A channel is dead if its input is 0 in *every* token.",
            "Is a channel taken for dead because its inputs are small, or cancel?",
        ),
        "hessian": Clause(
            "{says} It is 2 XᵀX / n, with a 1 for each dead channel, and then the "
            "damping, on the diagonal.",
            _DAMP,
        ),
    },
    mistakes=(
        mistake("The factor 2 is missing: the derivative of a square.", _MEAN, _but(factor=1)),
        mistake("The sum over tokens is not divided by their number.", _MEAN, _but(share=False)),
        mistake(
            "The mean of the inputs is subtracted. That is a covariance; the output error "
            "is about the inputs as they are.",
            _MEAN,
            _but(centre=True),
        ),
        mistake(
            "The Hessian is not damped. With fewer tokens than channels it has no inverse.",
            _DAMP,
            _but(damping="none"),
        ),
        mistake(
            "The damping is added to every entry. Only the diagonal makes an inverse possible.",
            _DAMP,
            _but(damping="all"),
        ),
        mistake(
            "The damping does not depend on how large the Hessian is. It is a share of "
            "the mean of the diagonal.",
            _DAMP,
            _but(damping="one"),
        ),
        mistake(
            "The damping is a share of the mean of the whole matrix. It is one of the mean of "
            "the diagonal.",
            _DAMP,
            _but(damping="whole"),
        ),
        mistake(
            "The weights of a dead channel are kept. They meet no input, but a large one "
            "stretches the scale of its whole group.",
            "Set that column to 0.",
            _but(clear=False),
        ),
        mistake(
            "The diagonal of a dead channel was set to 1 after the damping. Before: its 1 "
            "counts in the mean, and it is damped as well.",
            "First dead channels, then the damping.",
            _but(lift="after"),
        ),
        mistake(
            "The mean of the diagonal is taken before the dead channels are set to 1. "
            "Their 1 counts in it.",
            "First dead channels, then the mean.",
            _but(lift="unseen"),
        ),
        mistake(
            "A channel whose inputs cancel is taken for dead. A dead one is 0 in every token.",
            "Its entry of the diagonal is 0.",
            _but(by="sum"),
        ),
        mistake(
            "Dead channels are not treated at all.",
            "Column of the weight 0, diagonal 1.",
            _but(clear=False, lift="never"),
        ),
    ),
)
