"""SwiGLU's gate: exercise 4."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake
from utils.checks.kit.contracts.inputs import LAYOUTS, VALUES, laid_out, tensor

DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)
# Squares of 300 do not fit into float16, products around 1e-12 neither.
IN_HALF = ("plain", "negative", "ties", "zero")


def draw(c: Choices) -> Given:
    """Gates near zero, and such that `exp` of them overflows."""
    dtype = c.pick(DTYPES)
    values = IN_HALF if dtype == torch.float16 else VALUES
    x = tensor(c, (c.size(1, 70), 2 * c.size(1, 400)), (dtype,), values, ("contiguous",))
    return Given(laid_out(x * c.pick((1, 8)), c.pick(LAYOUTS)))


def oracle(gate_up: Tensor) -> Tensor:
    """With `exp` in float64, so that it shares no kernel with the usual answer."""
    size = gate_up.shape[-1] // 2
    gate, up = gate_up[:, :size].double(), gate_up[:, size:].double()
    return (gate / (1 + (-gate).exp()) * up).to(gate_up.dtype)


def _halves(act: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: act(*x.chunk(2, dim=-1))


SILU = "`torch.nn.functional.silu`."

SILU_AND_MUL = Contract(
    inputs=draw,
    judge=Returns(oracle, own=True),
    passed="Equal to gate / (1 + exp(-gate)) * up in float64, on 150 random inputs.",
    clauses={
        "returns": Clause(
            "This is not `silu(gate) * up`, in the dtype of `gate_up`. {says}",
            "`gate, up = gate_up.chunk(2, dim=-1)`; SiLU is `x * sigmoid(x)`.",
        )
    },
    mistakes=(
        mistake(
            "SiLU is on the wrong half: the first half is the gate, and it is the gate that "
            "goes through SiLU.",
            "`gate, up = gate_up.chunk(2, dim=-1)`, then `silu(gate) * up`.",
            _halves(lambda g, u: g * F.silu(u)),
        ),
        mistake(
            "That is GELU. Llama's gate uses SiLU: x * sigmoid(x).",
            SILU,
            _halves(lambda g, u: F.gelu(g) * u),
            _halves(lambda g, u: F.gelu(g, approximate="tanh") * u),
        ),
        mistake(
            "You use the sigmoid alone (GLU). SiLU is x * sigmoid(x).",
            SILU,
            _halves(lambda g, u: g.sigmoid() * u),
        ),
        mistake(
            "That is ReLU. Llama's gate uses SiLU: x * sigmoid(x).",
            SILU,
            _halves(lambda g, u: g.relu() * u),
        ),
        mistake(
            "Both halves go through SiLU. Only the gate does.",
            "`silu(gate) * up`.",
            _halves(lambda g, u: F.silu(g) * F.silu(u)),
        ),
        mistake(
            "The halves are added. They must be multiplied.",
            "`silu(gate) * up`.",
            _halves(lambda g, u: F.silu(g) + u),
        ),
        mistake(
            "You take every second number as the gate. The gate is the first half, the up "
            "projection the second.",
            "`gate_up.chunk(2, dim=-1)`.",
            lambda x: F.silu(x[..., 0::2]) * x[..., 1::2],
        ),
    ),
)
