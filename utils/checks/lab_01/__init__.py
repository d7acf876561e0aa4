"""The checks of lab 01.

Oracles: torch's own functions in float64, complex numbers, and a pretended model. `tests/` holds
them against transformers' Llama, its warpers, torch's FLOP counter and Hugging Face `generate`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_01 import (
    causal_attention,
    costs,
    gate,
    learners_engine,
    loop_mistakes,
    norm,
    probabilities,
    rotary,
)


@exercise("Exercise 1: rms_norm", points=2)
def rms_norm(function: Callable[[Tensor, Tensor, float], Tensor]) -> str | Passed:
    """Check `rms_norm(x [T, hidden], weight [hidden], eps) -> [T, hidden]`."""
    return norm.RMS_NORM.check(function)


@exercise("Exercise 2: apply_rotary", points=2)
def apply_rotary(function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str | Passed:
    """Check `apply_rotary(x [T, heads, head_dim], cos [T, head_dim], sin [T, head_dim])`."""
    return rotary.APPLY_ROTARY.check(function)


@exercise("Exercise 3: attention", points=4)
def attention(function: Callable[[Tensor, Tensor, Tensor, float], Tensor]) -> str | Passed:
    """Check causal GQA of one request; query i stands at position T_k - T_q + i."""
    return causal_attention.ATTENTION.check(function)


@exercise("Exercise 4: silu_and_mul", points=1)
def silu_and_mul(function: Callable[[Tensor], Tensor]) -> str | Passed:
    """Check `silu_and_mul(gate_up [T, 2 * I]) -> [T, I]`."""
    return gate.SILU_AND_MUL.check(function)


@exercise("Exercise 5: token_probabilities", points=3)
def token_probabilities(function: Callable[..., Tensor]) -> str | Passed:
    """Check `token_probabilities(logits [vocab], temperature, top_k, top_p) -> [vocab]`."""
    return probabilities.TOKEN_PROBABILITIES.check(function)


@exercise("Exercise 6: generate", points=3)
def generate(function: Callable[..., list[int]]) -> str | Passed:
    """Check `generate(model, prompt_token_ids, max_tokens, eos_token_ids) -> list[int]`."""
    return loop_mistakes.GENERATE.check(function)


@exercise("Exercise 7: forward_cost", points=2)
def forward_cost(function: Callable[..., tuple[int, int]]) -> str | Passed:
    """Check `forward_cost(config, num_tokens, bytes_per_parameter) -> (flops, bytes)`."""
    return costs.FORWARD_COST.check(function)


@exercise("Exercise 8: your functions run the engine", points=3)
def engine(build_ops: Callable[[], Any]) -> str:
    """Check `build_ops() -> LlamaOps`: with the learner's functions the engine speaks as HF."""
    return learners_engine.run(build_ops)
