"""From logits to the next token of each request.

The order of the steps is vLLM's: temperature, min-p, top-k, top-p, then one draw.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from utils.engine.outputs import Logprob
from utils.engine.sample.draw import Noise, draw
from utils.engine.sampling_params import SamplingParams


def apply_temperature(logits: Tensor, temperature: Tensor) -> Tensor:
    """Divide the logits [B, vocab] by the temperature [B]: below 1 sharper, above 1 flatter."""
    return logits / temperature.to(logits.device)[:, None]


def apply_min_p(logits: Tensor, min_p: Tensor) -> Tensor:
    """Drop tokens less probable than `min_p` [B] times the most probable one.

    Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling".
    """
    probs = logits.softmax(dim=-1)
    threshold = min_p.to(logits.device)[:, None] * probs.amax(dim=-1, keepdim=True)
    return logits.masked_fill(probs < threshold, -torch.inf)


def apply_top_k(logits: Tensor, top_k: Tensor) -> Tensor:
    """Keep the `top_k` [B] largest logits of each row [B, vocab], and what ties with the last.

    Values below 1 keep all.
    """
    vocab_size = logits.shape[-1]
    top_k = torch.where(top_k < 1, vocab_size, top_k).clamp(max=vocab_size)
    largest = logits.topk(int(top_k.max()), dim=-1).values  # descending
    threshold = largest.gather(-1, top_k.to(logits.device)[:, None] - 1)  # [B, 1]
    return logits.masked_fill(logits < threshold, -torch.inf)


def apply_top_p(logits: Tensor, top_p: Tensor) -> Tensor:
    """Keep the smallest set of tokens whose probabilities sum to at least `top_p` [B].

    At least one token stays. Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration".
    """
    ascending, order = logits.sort(dim=-1)
    mass = ascending.softmax(dim=-1).cumsum(dim=-1)  # of this token and all less probable ones
    drop = mass <= 1 - top_p.to(logits.device)[:, None]
    drop[:, -1] = False
    return logits.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), -torch.inf)


# In vLLM's order: the parameter, the value at which it does nothing, and what it does.
STEPS = (
    ("temperature", 1.0, apply_temperature),
    ("min_p", 0.0, apply_min_p),
    ("top_k", 0, apply_top_k),
    ("top_p", 1.0, apply_top_p),
)


class Sampler:
    """Chooses the next token of each request, by its own `SamplingParams`."""

    def __call__(
        self,
        logits: Tensor,
        sampling_params: Sequence[SamplingParams],
        sources: Sequence[torch.Generator | Noise],
    ) -> Tensor:
        """Choose one token per row.

        Args:
            logits: [B, vocab_size]
            sampling_params: B of them; temperature 0 means greedy.
            sources: of random numbers, B of them; requests without a seed share a generator.

        Returns:
            Token ids, int64 [B]; -1 where a row holds NaN, so that nothing can be chosen.
        """
        best = logits.max(dim=-1)  # much faster than argmax on a CPU, and it finds NaN as well
        tokens = best.indices.masked_fill(best.values.isnan(), -1)
        rows = [i for i, params in enumerate(sampling_params) if params.temperature > 0]
        if rows:
            chosen = [sampling_params[i] for i in rows]
            probs = self.probabilities(logits[rows], chosen)
            drawn = draw(probs, [sources[i] for i in rows])
            tokens[rows] = drawn.masked_fill(tokens[rows] < 0, -1)
        return tokens

    def probabilities(self, logits: Tensor, sampling_params: Sequence[SamplingParams]) -> Tensor:
        """The distribution [B, vocab_size] that tokens are drawn from. Temperatures must be > 0."""
        logits = logits.float()  # for bfloat16; float32 stays as it is, so no in-place changes here
        for parameter, neutral, apply in STEPS:
            values = torch.tensor([getattr(params, parameter) for params in sampling_params])
            # Sorting a vocabulary is slow: touch only the rows that ask for it.
            rows = (values != neutral).nonzero()[:, 0]
            if len(rows):
                # The values stay on the CPU, which must know the largest k and would wait for it.
                there = rows.to(logits.device)
                changed = apply(logits[there], values[rows])
                logits = logits.index_copy(0, there, changed)
        return logits.softmax(dim=-1)


def top_logprobs(logits: Tensor, token_id: int, num_logprobs: int) -> dict[int, Logprob]:
    """Log probabilities of the most likely tokens, and of the one that was chosen.

    As in vLLM, they are the model's own, before temperature and filters.

    Args:
        logits: [vocab_size]
        token_id: the chosen token.
        num_logprobs: how many of the most likely tokens to report; -1 for all.
    """
    logprobs = logits.float().log_softmax(dim=-1)
    count = len(logprobs) if num_logprobs == -1 else min(num_logprobs, len(logprobs))
    rank = int((logprobs > logprobs[token_id]).sum()) + 1
    result = {token_id: Logprob(float(logprobs[token_id]), rank)}
    values, ids = logprobs.topk(count)
    for i, (value, index) in enumerate(zip(values.tolist(), ids.tolist(), strict=True), start=1):
        result.setdefault(index, Logprob(value, i))
    return result
