"""What lab 01 says of RMSNorm: exercise 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from utils.checks.kit.runner import Bug, Case, compare


def judge_rms_norm(function: Callable[[Tensor, Tensor, float], Tensor]) -> str:
    """Check `rms_norm(x [T, hidden], weight [hidden], eps) -> [T, hidden]`."""

    def case(given: str, x: Tensor, weight: Tensor, eps: float, **tolerance: float) -> Case:
        oracle = LlamaRMSNorm(weight.numel(), eps)
        oracle.weight.data = weight
        with torch.no_grad():
            return Case(given, (x, weight, eps), oracle(x), **tolerance)

    half = {"rtol": 2e-2, "atol": 2e-2}
    large = torch.tensor([[300.0, -200.0, 100.0, 50.0]])
    cases = [
        case("one token `x = [[3, 4]]`, weight [1, 1], eps 0",
             torch.tensor([[3.0, 4.0]]), torch.ones(2), 0.0),
        case("one token `x = [[3, 4]]`, weight [1, 10], eps 0",
             torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 10.0]), 0.0),
        case("a tiny vector `x = [[0.003, -0.004]]`, weight [1, 1], eps 1e-5",
             torch.tensor([[3e-3, -4e-3]]), torch.ones(2), 1e-5),
        case("2 tokens, hidden 2, `x = [[1, 2], [30, 40]]`, weight [1, 2], eps 1e-5",
             torch.tensor([[1.0, 2.0], [30.0, 40.0]]), torch.tensor([1.0, 2.0]), 1e-5),
        case("3 tokens, hidden 8, random, mean not zero",
             torch.randn(3, 8) + 2, torch.randn(8), 1e-5),
        case("1 token, hidden 4, bfloat16",
             torch.randn(1, 4).bfloat16(), torch.randn(4).bfloat16(), 1e-5, **half),
        case("one large token in float16, `x = [[300, -200, 100, 50]]`",
             large.half(), torch.ones(4).half(), 1e-5, **half),
    ]  # fmt: skip

    def rms(x: Tensor, eps: float, dim: Any = -1) -> Tensor:
        return (x.float().pow(2).mean(dim, keepdim=True) + eps).sqrt()

    bugs = [
        Bug("The epsilon stands outside of the square root: it belongs inside, "
            "next to the mean of squares.",
            "`rsqrt(mean(x**2) + eps)`, not `1 / (sqrt(mean(x**2)) + eps)`. With tiny inputs the "
            "two differ a lot.",
            lambda x, w, e: (x.float() / (rms(x, 0.0) + e)).to(x.dtype) * w),
        Bug("The epsilon is missing: a vector of almost zero is blown up.",
            "Add `eps` to the mean of squares before the square root.",
            lambda x, w, e: (x.float() / rms(x, 0.0)).to(x.dtype) * w),
        Bug("The mean runs over the wrong dimension: over the tokens, not over the hidden "
            "dimension.",
            "Each token is normalised on its own: `mean(dim=-1, keepdim=True)`.",
            lambda x, w, e: (x.float() / rms(x, e, 0)).to(x.dtype) * w),
        Bug("The mean runs over all numbers at once. One token's size must not change another's.",
            "Each token is normalised on its own: `mean(dim=-1, keepdim=True)`.",
            lambda x, w, e: (x.float() / (x.float().pow(2).mean() + e).sqrt()).to(x.dtype) * w),
        Bug("The weight is added. It must be multiplied.",
            "The last step is `weight * normalised`.",
            lambda x, w, e: (x.float() / rms(x, e)).to(x.dtype) + w),
        Bug("The weight is multiplied as `1 + weight`. That is Gemma's RMSNorm; Llama's multiplies "
            "with the weight itself.",
            "The last step is `weight * normalised`.",
            lambda x, w, e: (x.float() / rms(x, e)).to(x.dtype) * (1 + w)),
        Bug("The weight is missing.",
            "The last step is `weight * normalised`.",
            lambda x, w, e: (x.float() / rms(x, e)).to(x.dtype)),
        Bug("You divide by the mean of squares, without its square root.",
            "RMS is the *root* of the mean of squares: `rsqrt` does root and division in one.",
            lambda x, w, e: (x.float() / rms(x, e).pow(2)).to(x.dtype) * w),
        Bug("You divide by the norm, the root of the *sum* of squares. RMS takes their mean.",
            "`x.pow(2).mean(...)`, not `.sum(...)` and not `x.norm(...)`.",
            lambda x, w, e: (x.float() / (x.float().pow(2).sum(-1, keepdim=True) + e).sqrt())
            .to(x.dtype) * w),
        Bug("You subtract the mean first. That is LayerNorm; RMSNorm does not centre.",
            "Use the mean of `x**2`, and leave `x` itself where it is.",
            lambda x, w, e: F.layer_norm(x.float(), x.shape[-1:], None, None, e).to(x.dtype) * w),
        Bug("The square of a large number overflows: 300 squared does not fit into float16.",
            "Convert with `x.float()` before you square, and back with `.to(x.dtype)`.",
            lambda x, w, e: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + e) * w),
    ]  # fmt: skip
    compare(function, cases, bugs)
    return "Equal to transformers' LlamaRMSNorm on 7 inputs, float16 and bfloat16 included."
