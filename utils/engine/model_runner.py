"""From scheduled requests to tensors, through the model, to sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from utils.engine.llama import LlamaForCausalLM
from utils.engine.outputs import Logprob
from utils.engine.request import Request
from utils.engine.sampler import Sampler, top_logprobs


class SampledToken(NamedTuple):
    """One new token of one request."""

    request: Request
    token_id: int
    logprobs: dict[int, Logprob] | None


class ModelRunner:
    """Runs one step: the scheduled tokens of many requests, in a single forward pass."""

    def __init__(self, model: LlamaForCausalLM, sampler: Sampler) -> None:
        self.model = model
        self.sampler = sampler
        self.device = model.lm_head.weight.device

    @torch.inference_mode()
    def execute(self, scheduled: Sequence[tuple[Request, int]]) -> list[SampledToken]:
        """Compute the next `n` tokens of each request, for each `(request, n)`.

        A request that has all its tokens computed gets a new one. A request of whose prompt only
        a part is computed gets none yet.
        """
        input_ids: list[int] = []
        positions: list[int] = []
        ends: list[int] = []  # where in the flat batch each request's tokens end
        for request, num_new_tokens in scheduled:
            start, end = request.num_computed_tokens, request.num_computed_tokens + num_new_tokens
            request.num_computed_tokens = end
            input_ids += request.all_token_ids[start:end]
            positions += range(start, end)
            ends.append(len(input_ids))

        hidden = self.model(
            torch.tensor(input_ids, device=self.device),
            torch.tensor(positions, device=self.device),
            [request.kv_cache for request, _ in scheduled],
            [num_new_tokens for _, num_new_tokens in scheduled],
        )  # [T, hidden]

        # Only a request's last token says what comes next.
        complete = [
            (request, end - 1)
            for (request, _), end in zip(scheduled, ends, strict=True)
            if request.num_computed_tokens == request.num_tokens
        ]
        if not complete:
            return []
        requests, rows = zip(*complete, strict=True)
        return self._sample(self.model.compute_logits(hidden[list(rows)]), requests)

    def _sample(self, logits: Tensor, requests: Sequence[Request]) -> list[SampledToken]:
        """Choose the next token of each request from its row of `logits` [B, vocab_size]."""
        allowed = logits
        for row, request in enumerate(requests):
            if request.too_early_to_stop:
                allowed = logits.clone() if allowed is logits else allowed
                allowed[row, request.stopping_token_ids] = -torch.inf
        params = [request.sampling_params for request in requests]
        generators = [request.generator for request in requests]
        token_ids = self.sampler(allowed, params, generators).tolist()

        sampled = []
        for request, row, token_id in zip(requests, logits, token_ids, strict=True):
            count = request.sampling_params.logprobs
            logprobs = None if count is None else top_logprobs(row, token_id, count)
            sampled.append(SampledToken(request, token_id, logprobs))
        return sampled
