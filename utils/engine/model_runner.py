"""From scheduled requests to tensors, through the model, to sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from utils.engine.batch import Batch, ContiguousBatch, PagedBatch
from utils.engine.llama import LlamaForCausalLM
from utils.engine.outputs import Logprob
from utils.engine.paged_attention import AttentionMetadata
from utils.engine.paged_kv_cache import PagedKVCache, slot_mapping
from utils.engine.request import Request
from utils.engine.sampler import Sampler, top_logprobs
from utils.engine.scheduler import SchedulerOutput


class SampledToken(NamedTuple):
    """One new token of one request."""

    request: Request
    token_id: int
    logprobs: dict[int, Logprob] | None


class ModelRunner:
    """Runs one step: the scheduled tokens of many requests, in a single forward pass.

    Args:
        kv_cache: the memory behind the block tables. None: each request brings its own cache.
    """

    def __init__(
        self, model: LlamaForCausalLM, sampler: Sampler, kv_cache: PagedKVCache | None
    ) -> None:
        self.model = model
        self.sampler = sampler
        self.kv_cache = kv_cache
        self.device = model.lm_head.weight.device

    @torch.inference_mode()
    def execute_model(self, output: SchedulerOutput) -> list[SampledToken]:
        """Compute what was scheduled, and sample a token for each request that is up to date.

        A request of whose tokens only a part is computed gets no new token yet. One with forks
        waiting for its prompt gets a token for each of them, too.
        """
        requests, logits = self.compute_logits(output)
        rows = [row for row, request in enumerate(requests) for _ in (request, *request.forks)]
        every = [fork for request in requests for fork in (request, *request.forks)]
        return self._sample(logits[rows] if len(rows) > len(requests) else logits, every)

    @torch.inference_mode()
    def compute_logits(self, output: SchedulerOutput) -> tuple[list[Request], Tensor]:
        """Run the forward pass, and score the vocabulary for each request that is up to date.

        Returns:
            The requests whose tokens are all computed now, and their logits [B, vocab_size].
        """
        input_ids: list[int] = []
        positions: list[int] = []
        complete: list[tuple[Request, int]] = []  # with its last row in the flat batch
        for request in output.scheduled_requests:
            start = request.num_computed_tokens
            end = start + output.num_scheduled_tokens[request.request_id]
            input_ids += request.all_token_ids[start:end]
            positions += range(start, end)
            # Only a request's last token says what comes next.
            if end == request.num_tokens:
                complete.append((request, len(input_ids) - 1))
        hidden = self.model(
            torch.tensor(input_ids, device=self.device),
            torch.tensor(positions, device=self.device),
            self._batch(output),
        )  # [T, hidden]
        rows = [row for _, row in complete]
        return [request for request, _ in complete], self.model.compute_logits(hidden[rows])

    def _batch(self, output: SchedulerOutput) -> Batch:
        requests = output.scheduled_requests
        query_lens = [output.num_scheduled_tokens[r.request_id] for r in requests]
        if self.kv_cache is None:
            return ContiguousBatch(query_lens, [request.kv_cache for request in requests])
        self.kv_cache.copy_blocks(output.block_copies)
        slots: list[int] = []
        tables: list[Tensor] = []
        seq_lens: list[int] = []
        for request, query_len in zip(requests, query_lens, strict=True):
            start = request.num_computed_tokens
            block_ids = output.block_ids[request.request_id]
            slots += slot_mapping(block_ids, self.kv_cache.block_size, start, start + query_len)
            tables.append(torch.tensor(block_ids, device=self.device))
            seq_lens.append(start + query_len)
        metadata = AttentionMetadata(
            query_lens, seq_lens, tables, torch.tensor(slots, device=self.device)
        )
        return PagedBatch(self.kv_cache, metadata)

    def _sample(self, logits: Tensor, requests: Sequence[Request]) -> list[SampledToken]:
        """Choose the next token of each request from its row of `logits` [B, vocab_size]."""
        if not requests:
            return []
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
