"""From scheduled requests to tensors, through the model, to sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from utils.engine.attention.batch import Batch, ContiguousBatch, Span, int_tensors, paged_batch
from utils.engine.attention.kv_cache import KVCache
from utils.engine.attention.paged_kv_cache import PagedKVCache, slot_mapping
from utils.engine.attention.tree_attention import tree_attention_mask
from utils.engine.core.sched.output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from utils.engine.kv_transfer.base import NO_CONNECTOR
from utils.engine.models.llama import LlamaForCausalLM
from utils.engine.sample.draw import source_of
from utils.engine.sample.prompt_logprobs import score_prompts
from utils.engine.sample.rejection_sampler import RejectionSampler, is_for_rejection_sampling
from utils.engine.sample.sampler import Sampler, top_logprobs
from utils.engine.sampling_params import SamplingParams
from utils.engine.spec_decode.tree import follow_tree
from utils.engine.structured_output.utils import apply_grammar_bitmask
from utils.engine.worker.forward_pass import forward_pass
from utils.engine.worker.kv_transfers import KVTransfers

GREEDY = SamplingParams(temperature=0)


class ModelRunner:
    """Runs one step: the scheduled tokens of many requests, in a single forward pass.

    Args:
        kv_cache: the memory behind the block tables; or, in an engine without paging, a cache for
            each request, by its id.
        rejection_sampler: decides which guessed tokens stay.
        transfers: of a connector, around the forward pass.
        seed: of the random numbers for requests without a seed of their own.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        sampler: Sampler,
        kv_cache: PagedKVCache | Mapping[str, KVCache],
        rejection_sampler: RejectionSampler | None = None,
        transfers: KVTransfers | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.sampler, self.kv_cache = model, sampler, kv_cache
        self.rejection_sampler = rejection_sampler or RejectionSampler()
        self.transfers = transfers or KVTransfers(NO_CONNECTOR, {})
        self.device = next(model.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        # [n, hidden], of each request of the last step: of its tokens that were computed and stay.
        # The last row is what its newest token was sampled from. Medusa and EAGLE guess from them.
        self.hidden_states: dict[str, Tensor] = {}

    @torch.inference_mode()
    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute what was scheduled, and sample for each request that is up to date.

        A request of whose tokens only a part is computed gets no new token yet. One with forks
        waiting for its prompt gets a token for each of them, too. One with guesses gets those that
        are accepted, and one more.
        """
        result = ModelRunnerOutput()
        requests, hidden = self._forward(output, result)
        members: list[ScheduledRequest] = []
        first_rows: list[int] = []
        row = 0
        for request in requests:
            for member in request.members():  # forks are sampled from the same row
                members.append(member)
                first_rows.append(row)
            row += 1 + len(request.spec_token_ids)
        self._sample(members, first_rows, hidden, result)
        return result

    @torch.inference_mode()
    def compute_logits(self, output: SchedulerOutput) -> tuple[list[ScheduledRequest], Tensor]:
        """Run the forward pass, and score the vocabulary for each request that is up to date.

        Returns:
            The requests whose tokens are all computed now, and their logits: a row [vocab_size]
            for each one's last token, and after it one for each of its guesses.
        """
        requests, hidden = self._forward(output, ModelRunnerOutput())
        return requests, self.model.compute_logits(hidden)

    def _forward(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> tuple[list[ScheduledRequest], Tensor]:
        """As `compute_logits`, with the hidden states [rows, hidden] in place of logits."""
        input_ids: list[int] = []
        positions: list[int] = []
        complete: list[ScheduledRequest] = []
        rows: list[int] = []  # of the flat batch, that say what comes next
        for request in output.scheduled_requests:
            start, draft = request.num_computed_tokens, request.draft
            if not request.is_complete:
                end = start + request.num_scheduled_tokens
                input_ids += request.all_token_ids[start:end]
                positions += range(start, end)
                continue
            input_ids += request.all_token_ids[start:]
            input_ids += draft.token_ids
            complete.append(request)
            rows += range(len(input_ids) - len(draft.token_ids) - 1, len(input_ids))
            last = request.num_tokens - 1
            positions += range(start, last)
            positions += [last + depth for depth in draft.depths()]  # siblings share a position
        ids, places, wanted = int_tensors([input_ids, positions, rows], self.device)
        metadata = output.kv_connector_metadata
        batch = self._batch(output)
        with self.transfers.of_step(metadata):
            batch = self.transfers.load(batch, metadata)
            hidden = forward_pass(self.model, ids, places, batch)  # [T, hidden]
        if hidden is None:  # an earlier stage of a pipeline: the last one goes on
            return [], ids
        counts = output.num_scheduled_tokens
        self.hidden_states = dict(zip(counts, hidden.split([*counts.values()]), strict=True))
        result.prompt_logprobs = score_prompts(output, hidden, self.model.compute_logits)
        result.invalid_block_ids = self.transfers.invalid_block_ids
        return self.transfers.valid_rows(complete, hidden[wanted])

    def _batch(self, output: SchedulerOutput) -> Batch:
        requests = output.scheduled_requests
        if isinstance(self.kv_cache, Mapping):
            caches = [self.kv_cache[request.request_id] for request in requests]
            return ContiguousBatch([request.num_scheduled_tokens for request in requests], caches)
        self.kv_cache.copy_blocks(output.block_copies)
        spans = [Span(r.block_ids, r.num_computed_tokens, r.num_scheduled_tokens) for r in requests]
        tree_masks = {
            i: tree_attention_mask(request.draft.parents)
            for i, request in enumerate(requests)
            if request.draft.parents is not None and request.draft.token_ids
        }
        return paged_batch(self.kv_cache, spans, tree_masks)

    def _sample(
        self,
        requests: Sequence[ScheduledRequest],
        first_rows: Sequence[int],
        hidden: Tensor,
        result: ModelRunnerOutput,
    ) -> None:
        """Choose the next tokens of each request. Its rows of `hidden` begin at `first_rows[i]`."""
        if not requests:
            return
        logits = self.model.compute_logits(hidden)
        if not logits.numel():  # they are on another rank
            return
        sizes = [1 + len(request.spec_token_ids) for request in requests]
        rows = [b + i for b, size in zip(first_rows, sizes, strict=True) for i in range(size)]
        if len(rows) > len(logits):  # forks
            logits = logits[rows]
        # Of each row: whose it is, and how many guesses lie between its last token and the row.
        owners = [(request, ahead) for request in requests for ahead in request.draft.depths()]
        apply_grammar_bitmask(logits, requests)  # of min_tokens, what their grammars leave
        allowed = logits
        for row, (request, ahead) in enumerate(owners):
            has_grammar = request.grammar_bitmasks is not None
            if not has_grammar and request.too_early_to_stop(ahead):
                allowed = logits.clone() if allowed is logits else allowed
                allowed[row, request.stopping_token_ids] = -torch.inf
        # The rejection sampler draws for chains itself.
        params = [GREEDY if is_for_rejection_sampling(r) else r.sampling_params for r, _ in owners]
        sources = [source_of(r.seed, r.num_tokens + ahead, self.generator) for r, ahead in owners]
        token_ids = self.sampler(allowed, params, sources).tolist()
        if min(token_ids) < 0:
            raise ValueError("The logits hold NaN: the forward pass went wrong before sampling.")

        begin = 0
        for request, first_row, size in zip(requests, first_rows, sizes, strict=True):
            end, name = begin + size, request.request_id
            accepted, kept = self._verify(
                request, allowed[begin:end] if size > 1 else allowed, token_ids[begin:end]
            )
            if request.draft.parents is not None:
                result.moves += self._straighten(request, kept)
            states = self.hidden_states.setdefault(name, hidden[first_row : first_row + 1])  # forks
            if size > 1:  # without what was rejected
                last = len(states) - size
                self.hidden_states[name] = states[[*range(last), *(last + row for row in kept)]]
            result.sampled_token_ids[name] = accepted
            if (count := request.sampling_params.logprobs) is not None:
                result.logprobs[name] = [
                    top_logprobs(logits[begin + i], token_id, count)
                    for token_id, i in zip(accepted, kept, strict=True)
                ]
            begin = end

    def _verify(
        self, request: ScheduledRequest, logits: Tensor, token_ids: list[int]
    ) -> tuple[list[int], Sequence[int]]:
        """Decide which guesses of a request stay.

        Args:
            logits: [1 + k, vocab_size], after its last token and after each of k guesses.
            token_ids: what the model would choose from each row.

        Returns:
            The accepted guesses and the token after them, and the rows they were sampled from.
        """
        draft, params = request.draft, request.sampling_params
        if not draft.token_ids:
            return token_ids, [0]
        if draft.parents is not None:
            path = follow_tree(draft.token_ids, draft.parents, token_ids)
            kept = [0, *(node + 1 for node in path)]
            return [*(draft.token_ids[node] for node in path), token_ids[kept[-1]]], kept
        if not is_for_rejection_sampling(request):  # the model's choice is known, and compared
            accepted = self.rejection_sampler.greedy(draft.token_ids, token_ids)
        else:
            probs = Sampler().probabilities(logits, [params] * len(logits))
            accepted = self.rejection_sampler.sample(
                draft.token_ids, draft.probs, probs, self.generator
            )
        count = len(accepted) - 1
        if not 0 <= count <= len(draft.token_ids) or accepted[:-1] != draft.token_ids[:count]:
            raise ValueError(
                f"The rejection sampler returned {accepted} for the draft {draft.token_ids}. "
                f"Expected the accepted part of the draft, from its beginning, and one more token."
            )
        return accepted, range(len(accepted))

    def _straighten(self, request: ScheduledRequest, kept: Sequence[int]) -> list[tuple[int, int]]:
        """The moves of a tree's accepted guesses to where a chain would have them (see
        `BlockCopies`). `kept` are their rows, after that of the request's last token."""
        assert not isinstance(self.kv_cache, Mapping)
        size, last = self.kv_cache.block_size, request.num_tokens - 1
        slots = slot_mapping(request.block_ids, size, last, last + 1 + len(request.spec_token_ids))
        return [(slots[row], slots[i]) for i, row in enumerate(kept) if row != i]
