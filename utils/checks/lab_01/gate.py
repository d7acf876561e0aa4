"""What lab 01 says of the MLP's gate: exercise 4."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.checks.kit.runner import Bug, Case, compare


def judge_silu_and_mul(function: Callable[[Tensor], Tensor]) -> str:
    """Check `silu_and_mul(gate_up [T, 2 * I]) -> [T, I]`."""

    def case(given: str, x: Tensor, **tolerance: float) -> Case:
        size = x.shape[-1] // 2
        # Written with exp, so that the oracle shares no kernel with the usual answer.
        gate, up = x[:, :size].double(), x[:, size:].double()
        return Case(given, (x,), (gate / (1 + (-gate).exp()) * up).to(x.dtype), **tolerance)

    cases = [
        case("`gate_up = [[1, 3]]` (gate 1, up 3)", torch.tensor([[1.0, 3.0]])),
        case("`gate_up = [[1, -2, 3, 4]]` (gate 1, -2, up 3, 4)",
             torch.tensor([[1.0, -2.0, 3.0, 4.0]])),
        case("2 tokens, I = 2", torch.randn(2, 4) * 2),
        case("5 tokens, I = 8", torch.randn(5, 16) * 2),
        case("2 tokens, I = 4, bfloat16", torch.randn(2, 8).bfloat16(), rtol=3e-2, atol=3e-2),
    ]  # fmt: skip

    def halves(f: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: f(*x.chunk(2, dim=-1))

    bugs = [
        Bug("SiLU is on the wrong half: the first half is the gate, and it is the gate that goes "
            "through SiLU.",
            "`gate, up = gate_up.chunk(2, dim=-1)`, then `silu(gate) * up`.",
            halves(lambda g, u: g * F.silu(u))),
        Bug("That is GELU. Llama's gate uses SiLU: x * sigmoid(x).",
            "`torch.nn.functional.silu`.",
            halves(lambda g, u: F.gelu(g) * u)),
        Bug("That is GELU (its tanh form). Llama's gate uses SiLU: x * sigmoid(x).",
            "`torch.nn.functional.silu`.",
            halves(lambda g, u: F.gelu(g, approximate="tanh") * u)),
        Bug("You use the sigmoid alone (GLU). SiLU is x * sigmoid(x).",
            "`torch.nn.functional.silu`.",
            halves(lambda g, u: g.sigmoid() * u)),
        Bug("That is ReLU. Llama's gate uses SiLU: x * sigmoid(x).",
            "`torch.nn.functional.silu`.",
            halves(lambda g, u: g.relu() * u)),
        Bug("Both halves go through SiLU. Only the gate does.",
            "`silu(gate) * up`.",
            halves(lambda g, u: F.silu(g) * F.silu(u))),
        Bug("The halves are added. They must be multiplied.",
            "`silu(gate) * up`.",
            halves(lambda g, u: F.silu(g) + u)),
        Bug("You take every second number as the gate. The gate is the first half, the up "
            "projection the second.",
            "`gate_up.chunk(2, dim=-1)`.",
            lambda x: F.silu(x[..., 0::2]) * x[..., 1::2]),
    ]  # fmt: skip
    compare(function, cases, bugs)
    return "Equal to gate / (1 + exp(-gate)) * up, computed in float64."
