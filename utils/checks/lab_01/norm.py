"""Vectors scaled to a root mean square of 1: exercise 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake
from utils.checks.kit.contracts.inputs import VALUES, tensor

DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Results around 1e-6 have no digits in float16.
NOT_TINY = tuple(kind for kind in VALUES if kind != "tiny")


def draw(c: Choices) -> Given:
    """Each token by itself; `weight` of another dtype than `x`, now and then."""
    hidden, dtype = c.size(1, 1100), c.pick(DTYPES)
    values = NOT_TINY if dtype == torch.float16 else VALUES
    x = tensor(c, (c.size(1, 40), hidden), (dtype,), values)
    weights = [kind for kind in values if kind not in ("large", "zero")]
    weight = tensor(c, (hidden,), (dtype, dtype, *DTYPES), weights)
    return Given(x, weight, c.pick((1e-5, 1e-6, 1e-3, 0.1, 1e-12)))


def oracle(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """torch's own, in float64."""
    return F.rms_norm(x.double(), x.shape[-1:], weight.double(), eps).to(x.dtype)


def _norm(
    size: Callable[[Tensor, float], Tensor],
    end: Callable[[Tensor, Tensor], Tensor] = torch.mul,
    begin: Callable[[Tensor], Tensor] = torch.Tensor.float,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A norm that divides by another size, or ends in another way; with the dtype of x, or not."""

    def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return end(begin(x) / size(begin(x), eps), weight).to(x.dtype)

    def promoted(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return end((begin(x) / size(begin(x), eps)).to(x.dtype), weight)

    return norm, promoted


def _rms(x: Tensor, eps: float) -> Tensor:
    return (x.square().mean(-1, keepdim=True) + eps).sqrt()


RMS_NORM = Contract(
    inputs=draw,
    judge=Returns(oracle, own=True),
    passed="Equal to torch's `rms_norm` in float64, on 150 random inputs: tiny, large and half-"
    "precision vectors, weights of another dtype than x.",
    clauses={
        "returns": Clause(
            "This is not `x / sqrt(mean(x * x) + eps) * weight`, in the dtype of x. {says}",
            "`x.float()` at first, `.to(x.dtype)` as the last step; the "
            "mean is `mean(dim=-1, keepdim=True)`, one number per token.",
        )
    },
    mistakes=(
        mistake(
            "The result has the dtype of the product, not that of x: `weight` may be float32 "
            "beside a half-precision x.",
            "`.to(x.dtype)` as the last step.",
            _norm(_rms)[1],
        ),
        mistake(
            "The epsilon stands outside of the square root: it belongs inside, next to the "
            "mean of squares.",
            "`rsqrt(mean(x**2) + eps)`, not `1 / (sqrt(mean(x**2)) + "
            "eps)`. With tiny inputs the two differ a lot.",
            *_norm(lambda x, e: _rms(x, 0.0) + e),
        ),
        mistake(
            "The epsilon is missing: a vector of almost zero is blown up.",
            "Add `eps` to the mean of squares before the square root.",
            *_norm(lambda x, e: _rms(x, 0.0)),
        ),
        mistake(
            "The mean runs over the wrong dimension: over the tokens, not over the hidden "
            "dimension.",
            "Each token is normalised on its own: `mean(dim=-1, keepdim=True)`.",
            *_norm(lambda x, e: (x.square().mean(0, keepdim=True) + e).sqrt()),
        ),
        mistake(
            "The mean runs over all numbers at once. One token's size must not change another's.",
            "`mean(dim=-1, keepdim=True)`, not `mean()`.",
            *_norm(lambda x, e: (x.square().mean() + e).sqrt()),
        ),
        mistake(
            "The weight is multiplied as `1 + weight`. That is Gemma's RMSNorm; Llama's "
            "multiplies with the weight itself.",
            "The last step is `weight * normalised`.",
            *_norm(_rms, lambda y, w: y * (1 + w)),
        ),
        mistake(
            "The weight is missing.",
            "The last step is `weight * normalised`.",
            *_norm(_rms, lambda y, w: y),
        ),
        mistake(
            "You divide by the mean of squares, without its square root.",
            "RMS is the *root* of the mean of squares: `rsqrt` does root and division in one.",
            *_norm(lambda x, e: _rms(x, e).square()),
        ),
        mistake(
            "You divide by the norm, the root of the *sum* of squares. RMS takes their mean.",
            "`x.pow(2).mean(...)`, not `.sum(...)` and not `x.norm(...)`.",
            *_norm(lambda x, e: (x.square().sum(-1, keepdim=True) + e).sqrt()),
        ),
        mistake(
            "You subtract the mean first. That is LayerNorm; RMSNorm does not centre.",
            "Use the mean of `x**2`, and leave `x` itself where it is.",
            *_norm(_rms, begin=lambda x: x.float() - x.float().mean(-1, keepdim=True)),
        ),
        mistake(
            "The square of a large number overflows: 300 squared does not fit into float16.",
            "Convert with `x.float()` before you square, and back with `.to(x.dtype)`.",
            *_norm(_rms, begin=lambda x: x),
        ),
    ),
)
