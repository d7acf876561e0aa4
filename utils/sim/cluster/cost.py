"""How long one step of a replica takes: the few constants that the simulator needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CostModel:
    """Seconds of one step of continuous batching: a sum of four costs.

    Attributes:
        per_step: whatever is computed; on a GPU mostly reading the weights.
        per_token: each token that goes through the linear layers, of prompts and of answers.
        per_pair: each pair of a prompt token and a token before it, in attention.
        per_context_token: each token of K and V that a decoding request reads in a step.
    """

    per_step: float
    per_token: float
    per_pair: float = 0.0
    per_context_token: float = 0.0

    def __post_init__(self) -> None:
        costs = (self.per_step, self.per_token, self.per_pair, self.per_context_token)
        if min(costs) < 0 or self.per_step + self.per_token <= 0:
            raise ValueError(
                f"costs are seconds, 0 or more, and a step must cost something; got {costs}"
            )

    def prefill_seconds(self, num_tokens: int, num_cached_tokens: int = 0) -> float:
        """One prompt computed in one step, of which the cache holds the beginning."""
        new = num_tokens - num_cached_tokens
        return self.per_step + new * self.per_token + self.pairs(num_cached_tokens, new)

    def pairs(self, start: int, new: int) -> float:
        """Seconds of attention of `new` prompt tokens behind `start` others."""
        return self.per_pair * new * (start + new / 2)

    def decode_seconds(self, num_requests: int, context_tokens: int) -> float:
        """One step in which each of some requests writes a token; their contexts in sum."""
        return (
            self.per_step + num_requests * self.per_token + context_tokens * self.per_context_token
        )


def llama3_70b_on_a800(efficiency: float = 1.0) -> CostModel:
    """LLaMA-3 70B in 16 bits on a machine of eight A800, as Mooncake's table 1 has it.

    Computing: n prompt tokens take l (a n² d + b n d²) operations, with l = 80 layers, d = 8,192,
    a = 4, b = 22, on 2,496 TFLOP/s (Mooncake, FAST'25, equation 1 and table 1). Memory: 141 GB of
    weights in each step, and 320 KB of K and V per token of context (section 5.3.1), at eight times
    2.039 TB/s (NVIDIA's data sheet of the A800 80GB SXM).

    Args:
        efficiency: share of these peaks that is reached. At 1 no real machine is as fast.

    Raises:
        ValueError: `efficiency` is not above 0 and at most 1.
    """
    if not 0 < efficiency <= 1:
        raise ValueError(f"efficiency must be above 0 and at most 1, not {efficiency}")
    layers, width, a, b = 80, 8192, 4, 22
    flops, bandwidth = efficiency * 2496e12, efficiency * 8 * 2.039e12
    return CostModel(
        per_step=141e9 / bandwidth,
        per_token=layers * b * width**2 / flops,
        per_pair=2 * layers * a * width / flops,  # n² is twice the number of pairs
        per_context_token=320 * 1024 / bandwidth,
    )
