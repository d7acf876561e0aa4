"""What all models have in common that guess one token after the other.

In vLLM: `v1/spec_decode/llm_base_proposer.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from utils.engine.attention.batch import Batch, Span, paged_batch
from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.attention.tree_attention import tree_attention_mask
from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.request import Request
from utils.engine.sample.draw import draw, source_of
from utils.engine.sample.sampler import Sampler
from utils.engine.spec_decode.draft import NO_DRAFT, Draft
from utils.engine.spec_decode.draft_vocabulary import head_of, named
from utils.engine.spec_decode.tree import tree_depths

OTHER_NUMBERS = 0x5DEECE66D  # turns a seed into another one


class Part(NamedTuple):
    """Tokens of one request that are read together: those from position `start` on.

    With `parents` they are a tree: its root, and then its nodes (see `Draft`).
    """

    block_ids: list[int]
    token_ids: list[int]
    start: int
    parents: list[int] | None = None

    def positions(self) -> list[int]:
        """Of each token, in its request. Siblings share one."""
        if self.parents is None:
            return list(range(self.start, self.start + len(self.token_ids)))
        return [self.start + depth for depth in (0, *tree_depths(self.parents))]


class SpecDecodeBaseProposer:
    """Reads what the target has read, and then its own guesses, one after the other.

    It has keys and values of its own, in memory of its own, but at the same slots: a block table
    leads to a request's tokens in both. So whatever happens to the target's blocks (a hit, a fork,
    a copy, a swap) needs no second bookkeeping. What keeps this true is that it reads in each step
    what the target has read in it; also for requests that are finished, since others may find
    their blocks.

    Args:
        kv_cache: as many blocks, of the same size, as the target's.
        lm_head: the proposer's own, or the target's.
        token_ids: [n], what it may guess; no other rows of the head are computed. None: all tokens.
        seed: of the random numbers for requests without a seed of their own.
    """

    uses_slots = True

    def __init__(
        self, kv_cache: PagedKVCache, lm_head: nn.Module, token_ids: Tensor | None, seed: int
    ) -> None:
        assert isinstance(lm_head.weight, Tensor)
        self.kv_cache, self.device = kv_cache, lm_head.weight.device
        self.vocab_size = len(lm_head.weight)
        self.head, self.token_ids = head_of(lm_head, token_ids)
        self._sampler = Sampler()
        # Not the numbers that guesses are verified with: those must not depend on the guesses.
        self._generator = torch.Generator(self.device).manual_seed(seed ^ OTHER_NUMBERS)

    def run(self, ids: Tensor, positions: Tensor, batch: Batch, before: Tensor | None) -> Tensor:
        """Run a flat batch through the model: [T, hidden], ready for the head.

        Args:
            ids: [T]
            positions: [T]
            before: [T, hidden], see `states_before`.
        """
        raise NotImplementedError

    def keep(self, output: SchedulerOutput, hidden_states: dict[str, Tensor]) -> None:
        """Follow what became of the target's slots in a step. See `Proposer.draft`."""
        self.kv_cache.copy_blocks(output.block_copies)

    def states_before(self, parts: Sequence[Part]) -> Tensor | None:
        """[T, hidden]: for each token, the target's hidden state of the token before it. None: the
        model doesn't ask for that."""
        return None

    def read(self, parts: Sequence[Part], before: Tensor | None) -> Tensor:
        """Run tokens of several requests through the model, and keep their keys and values.

        Args:
            before: [T, hidden]. A guess is no token of the target's: it follows a hidden state that
                the model itself has computed.

        Returns:
            [T, hidden], ready for the head.
        """
        ids = torch.tensor([token for part in parts for token in part.token_ids])
        positions = torch.tensor([position for part in parts for position in part.positions()])
        spans = [Span(part.block_ids, part.start, len(part.token_ids)) for part in parts]
        masks = {
            i: tree_attention_mask(part.parents)
            for i, part in enumerate(parts)
            if part.parents is not None
        }
        batch = paged_batch(self.kv_cache, spans, masks)
        return self.run(ids.to(self.device), positions.to(self.device), batch, before)

    @torch.inference_mode()
    def draft(
        self,
        wanted: Sequence[tuple[Request, int]],
        output: SchedulerOutput,
        hidden_states: dict[str, Tensor],
    ) -> list[Draft]:
        """See `Proposer`. The step's new tokens are read first, then one token follows another."""
        self.keep(output, hidden_states)
        parts, room = self._of_step(wanted, output)
        ends = list(accumulate(len(part.token_ids) for part in parts))
        if not ends or not ends[-1]:
            return [NO_DRAFT] * len(wanted)
        read = [part for part in parts if part.token_ids]
        hidden = self.read(read, self.states_before(read))
        active = [i for i, (_, num_tokens) in enumerate(wanted) if num_tokens and room[i] >= 0]
        return self.guess(wanted, parts, room, active, hidden[[ends[i] - 1 for i in active]])

    def _of_step(
        self, wanted: Sequence[tuple[Request, int]], output: SchedulerOutput
    ) -> tuple[list[Part], list[int]]:
        """What each request's part is, and how many slots are left after it.

        The newest token is read as well if it has a slot and a guess is to follow it. Else there
        are "-1 slots" left.
        """
        scheduled = {request.request_id: request for request in output.scheduled_requests}
        parts: list[Part] = []
        room: list[int] = []
        for request, num_tokens in wanted:
            step = scheduled[request.request_id]
            num_slots = len(step.block_ids) * self.kv_cache.block_size
            reads_last = num_tokens > 0 and request.num_tokens <= num_slots
            end = request.num_tokens if reads_last else request.num_computed_tokens
            start = step.num_computed_tokens
            parts.append(Part(step.block_ids, request.all_token_ids[start:end], start))
            room.append(num_slots - request.num_tokens if reads_last else -1)
        return parts, room

    def guess(
        self,
        wanted: Sequence[tuple[Request, int]],
        parts: Sequence[Part],
        room: Sequence[int],
        active: list[int],
        hidden: Tensor,
    ) -> list[Draft]:
        """Guess a chain for each request.

        Args:
            active: which of the requests get guesses.
            hidden: [len(active), hidden], of their newest tokens.
        """
        token_ids: list[list[int]] = [[] for _ in wanted]
        probs: list[list[Tensor]] = [[] for _ in wanted]

        def newest(i: int) -> Part:
            position = wanted[i][0].num_tokens + len(token_ids[i]) - 1
            return Part(parts[i].block_ids, token_ids[i][-1:], position)

        while active:
            tokens, distributions = self._choose(
                self.head(hidden),
                [wanted[i][0] for i in active],
                [len(token_ids[i]) for i in active],
            )
            for i, token, distribution in zip(active, tokens, distributions, strict=True):
                token_ids[i].append(token)
                if distribution is not None:
                    probs[i].append(distribution)
            most = [min(wanted[i][1], 1 + room[i]) for i in active]
            go_on = [row for row, i in enumerate(active) if len(token_ids[i]) < most[row]]
            active = [active[row] for row in go_on]
            if active:
                hidden = self.read([newest(i) for i in active], hidden[go_on])
        return [
            Draft(ids, probs=torch.stack(ps) if ps else None)
            for ids, ps in zip(token_ids, probs, strict=True)
        ]

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
        token_ids = named(best, self.token_ids).tolist()
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
        every = probs.new_zeros(len(probs), self.vocab_size)
        return every.index_copy_(1, self.token_ids, probs)
