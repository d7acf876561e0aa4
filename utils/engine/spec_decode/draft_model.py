"""A smaller model that guesses what the large one will say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from utils.engine.attention.batch import Span, paged_batch
from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.models.llama import LlamaForCausalLM
from utils.engine.request import Request
from utils.engine.sample.draw import draw, source_of
from utils.engine.sample.sampler import Sampler
from utils.engine.spec_decode.draft import Draft
from utils.engine.spec_decode.draft_vocabulary import rows_of
from utils.engine.worker.forward_pass import forward_pass

OTHER_NUMBERS = 0x5DEECE66D  # turns a seed into another one


class DraftModelProposer:
    """Guesses by running a draft model, one token after the other.

    The draft has keys and values of its own, in memory of its own, but at the same slots: a block
    table leads to a request's tokens in both. So whatever happens to the target's blocks (a hit, a
    fork, a copy, a swap) needs no second bookkeeping. What keeps this true is that the draft reads
    in each step what the target has read in it.

    Args:
        model: with the vocabulary of the target.
        kv_cache: as many blocks, of the same size, as the target's.
        token_ids: [n], what it may guess; its head computes no other rows. None: all tokens.
        seed: of the random numbers for requests without a seed of their own.
    """

    uses_slots = True

    def __init__(
        self,
        model: LlamaForCausalLM,
        kv_cache: PagedKVCache,
        token_ids: Tensor | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.kv_cache = model, kv_cache
        self.device = model.lm_head.weight.device
        self.token_ids: Tensor | None = None
        self.head: Callable[[Tensor], Tensor] = model.lm_head
        if token_ids is not None:
            self.token_ids = token_ids.to(self.device)
            self.head = rows_of(model.lm_head, self.token_ids)
        self._sampler = Sampler()
        # Not the numbers that guesses are verified with: those must not depend on the guesses.
        self._generator = torch.Generator(self.device).manual_seed(seed ^ OTHER_NUMBERS)

    @torch.inference_mode()
    def draft(
        self,
        wanted: Sequence[tuple[Request, int]],
        output: SchedulerOutput,
        last_hidden: dict[str, Tensor],
    ) -> list[Draft]:
        """See `Proposer`. The step's new tokens are read first, then one token follows another."""
        self.kv_cache.copy_blocks(output.block_copies)
        if not wanted:  # all are finished
            return []
        token_ids: list[list[int]] = [[] for _ in wanted]
        probs: list[list[Tensor]] = [[] for _ in wanted]
        ends: list[int] = []  # how many of each request's tokens, guesses too, the draft has read
        spans: list[tuple[int, int]] = []
        rooms: list[int] = []
        scheduled = {request.request_id: request for request in output.scheduled_requests}
        tables = {name: request.block_ids for name, request in scheduled.items()}
        for request, num_tokens in wanted:
            room = len(tables[request.request_id]) * self.kv_cache.block_size
            start = scheduled[request.request_id].num_computed_tokens
            # The newest token is read as well if it has a slot and a guess is to follow it.
            last = request.num_tokens if num_tokens and request.num_tokens <= room else None
            ends.append(last or request.num_computed_tokens)
            rooms.append(room if last else 0)
            spans.append((start, ends[-1]))
        logits = self._forward(
            [(r, r.all_token_ids[a:b], a) for (r, _), (a, b) in zip(wanted, spans, strict=True)],
            tables,
        )  # [requests, n]
        active = [i for i, (_, n) in enumerate(wanted) if n and rooms[i]]
        logits = logits[active]
        while active:
            tokens, distributions = self._choose(
                logits, [wanted[i][0] for i in active], [len(token_ids[i]) for i in active]
            )
            for i, token, distribution in zip(active, tokens, distributions, strict=True):
                token_ids[i].append(token)
                if distribution is not None:
                    probs[i].append(distribution)
            active = [i for i in active if len(token_ids[i]) < wanted[i][1] and ends[i] < rooms[i]]
            if active:
                logits = self._forward(
                    [(wanted[i][0], token_ids[i][-1:], ends[i]) for i in active], tables
                )
                for i in active:
                    ends[i] += 1
        return [
            Draft(ids, probs=torch.stack(ps) if ps else None)
            for ids, ps in zip(token_ids, probs, strict=True)
        ]

    def _forward(
        self, parts: Sequence[tuple[Request, list[int], int]], tables: dict[str, list[int]]
    ) -> Tensor:
        """Read tokens from a position on: logits [B, n] after each request's last."""
        ids = [token for _, tokens, _ in parts for token in tokens]
        positions = [start + i for _, tokens, start in parts for i in range(len(tokens))]
        spans = [
            Span(tables[request.request_id], start, len(tokens)) for request, tokens, start in parts
        ]
        hidden = forward_pass(
            self.model,
            torch.tensor(ids, device=self.device),
            torch.tensor(positions, device=self.device),
            paged_batch(self.kv_cache, spans),
        )
        assert hidden is not None
        last_rows = torch.tensor([len(tokens) for _, tokens, _ in parts]).cumsum(0) - 1
        return self.head(hidden[last_rows.to(self.device)])

    def _choose(
        self, logits: Tensor, requests: Sequence[Request], num_ahead: Sequence[int]
    ) -> tuple[list[int], list[Tensor | None]]:
        """The next guess of each request, and what it was drawn from.

        None for the best token, and for what a seed's noise chose: verification draws with the
        same noise, and compares.

        Args:
            num_ahead: how many tokens are guessed already, of each request.
        """
        best = logits.max(dim=-1).indices  # argmax is slow on a CPU
        token_ids = (best if self.token_ids is None else self.token_ids[best]).tolist()
        distributions: list[Tensor | None] = [None] * len(requests)
        rows = [i for i, r in enumerate(requests) if r.sampling_params.temperature > 0]
        if rows:
            params = [requests[i].sampling_params for i in rows]
            probs = self._of_all_tokens(self._sampler.probabilities(logits[rows], params))
            sources = [
                source_of(requests[i].seed, requests[i].num_tokens + num_ahead[i], self._generator)
                for i in rows
            ]
            drawn = draw(probs, sources).tolist()
            for i, token, distribution in zip(rows, drawn, probs, strict=True):
                token_ids[i] = token
                if requests[i].sampling_params.seed is None:
                    distributions[i] = distribution
        return token_ids, distributions

    def _of_all_tokens(self, probs: Tensor) -> Tensor:
        """[B, n] -> [B, vocab_size]: what it may not guess has probability 0."""
        if self.token_ids is None:
            return probs
        every = probs.new_zeros(len(probs), self.model.config.vocab_size)
        return every.index_copy_(1, self.token_ids, probs)
