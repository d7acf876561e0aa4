"""The state of a request while the engine works on it."""

from __future__ import annotations

import enum
from copy import copy
from dataclasses import dataclass, field
from typing import cast

import torch

from utils.engine.attention.kv_cache import KVCache
from utils.engine.core.kv_cache_utils import BlockHash
from utils.engine.detokenizer import IncrementalDetokenizer
from utils.engine.draft import NO_DRAFT, Draft
from utils.engine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from utils.engine.sample.draw import Noise
from utils.engine.sampling_params import SamplingParams
from utils.engine.structured_output.grammar import StructuredOutputGrammar


class RequestStatus(enum.IntEnum):
    """Where a request is in its life."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()  # had to give its blocks to others, and waits to go on
    FINISHED_STOPPED = enum.auto()
    FINISHED_LENGTH_CAPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()
    FINISHED_ERROR = enum.auto()  # its grammar could not be followed any further


FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
    RequestStatus.FINISHED_ERROR: "error",
}


@dataclass(eq=False)  # two requests with the same contents are still two
class Request:
    """One prompt on its way to an answer. The tokens are the prompt's, then the answer's."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    max_num_tokens: int  # prompt plus answer, at most
    eos_token_ids: tuple[int, ...]
    generator: torch.Generator  # shared by all requests without a seed
    detokenizer: IncrementalDetokenizer
    grammar: StructuredOutputGrammar | None = None  # the form that the answer must have
    index: int = 0  # which of the prompt's `n` answers this is
    cache_salt: str | None = None  # requests with different salts share no blocks
    lora_name: str | None = None  # neither do those with different adapters
    priority: int = 0  # lower is more important, where the scheduler's policy asks for it
    arrival_index: int = 0  # set by the scheduler: the how-manieth prompt it got
    kv_cache: KVCache | None = None  # only in an engine without paging
    status: RequestStatus = RequestStatus.WAITING
    stop_reason: int | str | None = None
    # The single notion of progress: how many tokens have their keys and values in the cache.
    # Prefill and decode differ only in how far this is behind `num_tokens`.
    num_computed_tokens: int = 0
    num_cached_tokens: int | None = None  # of its prompt, found computed; None: not looked up yet
    block_hashes: list[BlockHash] = field(default_factory=list)  # of its full blocks
    draft: Draft = NO_DRAFT  # tokens guessed to come next, to be verified in the next step
    # Of late, see `Drafter.observe`. Who has not guessed yet is thought to be good at it.
    num_tested_guesses: float = 2.0
    num_accepted_guesses: float = 1.4
    output_token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    metrics: RequestMetrics = field(default_factory=RequestMetrics)

    def __post_init__(self) -> None:
        self.all_token_ids = list(self.prompt_token_ids)
        self.stop_token_ids = cast(list[int], self.sampling_params.stop_token_ids)
        self.stop_strings = cast(list[str], self.sampling_params.stop)
        self.text = ""
        # Of the prompt's tokens so far, where asked for. Nothing says how probable the first is.
        wanted = self.sampling_params.prompt_logprobs is not None
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = [None] if wanted else None
        # The requests of the prompt's n answers, this one among them. The first computes the
        # prompt; the others are forked from it then.
        self.family = [self]
        self.forks: list[Request] = []

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def spec_token_ids(self) -> list[int]:
        return self.draft.token_ids

    @property
    def num_tokens_with_spec(self) -> int:
        return self.num_tokens + len(self.draft.token_ids)

    @property
    def skip_reading_prefix_cache(self) -> bool:
        """Whether it has to compute what it could find: its prompt is to be scored."""
        return 0 < len(self.prompt_logprobs or ()) < len(self.prompt_token_ids)

    @property
    def num_preemptions(self) -> int:
        return self.metrics.num_preemptions

    @property
    def is_finished(self) -> bool:
        return self.status > RequestStatus.PREEMPTED

    @property
    def is_answered(self) -> bool:
        """Whether all the prompt's answers are finished, not only this one."""
        return all(member.is_finished for member in self.family)

    def name_family(self, request_id: str) -> None:
        """Name this prompt's requests: the first as given, its forks with their index before it."""
        for i, member in enumerate(self.family):
            member.request_id = request_id if i == 0 else f"{i}_{request_id}"

    def set_priority(self, priority: int) -> None:
        """Set it for all the prompt's answers."""
        for member in self.family:
            member.priority = priority

    @property
    def stopping_token_ids(self) -> list[int]:
        return [*self.eos_token_ids, *self.stop_token_ids]

    def too_early_to_stop(self, num_ahead: int = 0) -> bool:
        """Whether the next token, or that `num_ahead` later, is one of the first `min_tokens`."""
        return len(self.output_token_ids) + num_ahead < self.sampling_params.min_tokens

    def randomness(self, num_ahead: int = 0) -> torch.Generator | Noise:
        """What the next token is drawn with, or that `num_ahead` later. Each of n answers has a
        seed of its own."""
        seed, position = self.sampling_params.seed, self.num_tokens + num_ahead
        return self.generator if seed is None else Noise(seed + self.index, position)

    def append_token(self, token_id: int, logprobs: dict[int, Logprob] | None = None) -> None:
        """Add a new token to the answer, and decide whether the answer ends with it."""
        early = self.too_early_to_stop()
        self.output_token_ids.append(token_id)
        self.all_token_ids.append(token_id)
        self.metrics.record_token()
        if logprobs is not None:
            self.logprobs.append(logprobs)

        if token_id in self.eos_token_ids and not self.sampling_params.ignore_eos:
            whole = self.grammar is None or self.grammar.accepts(self.output_token_ids[:-1])
            self.status = RequestStatus.FINISHED_STOPPED if whole else RequestStatus.FINISHED_ERROR
        elif token_id in self.stop_token_ids:
            self.status, self.stop_reason = RequestStatus.FINISHED_STOPPED, token_id
        else:
            if self.num_tokens >= self.max_num_tokens:
                self.status = RequestStatus.FINISHED_LENGTH_CAPPED
            self._append_text(self.detokenizer.append(token_id), early)

    def _append_text(self, gained: str, early: bool) -> None:
        self.text += gained
        if early or not gained:
            return
        # A stop string may have begun in earlier text, but it ends in what was gained.
        searched = len(self.text) - len(gained)
        found = {
            stop: begin
            for stop in self.stop_strings
            if (begin := self.text.find(stop, max(0, searched - len(stop) + 1))) >= 0
        }
        if found:
            first = min(found, key=lambda stop: found[stop] + len(stop))  # the first to end
            self.text = self.text[: found[first]]
            self.status, self.stop_reason = RequestStatus.FINISHED_STOPPED, first

    def output(self) -> RequestOutput:
        """The prompt's answers so far, all `n` of them."""
        return RequestOutput(
            request_id=self.family[0].request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[request._completion() for request in self.family],
            finished=self.is_answered,
            metrics=self.family[0].metrics,
            num_cached_tokens=self.family[0].num_cached_tokens,
            prompt_logprobs=copy(self.family[0].prompt_logprobs),
        )

    def _completion(self) -> CompletionOutput:
        text = self.text
        if self.stop_strings and not self.is_finished:
            # Keep back what may begin a stop string.
            text = text[: max(0, len(text) - max(map(len, self.stop_strings)) + 1)]
        wanted = self.sampling_params.logprobs is not None
        chosen = zip(self.logprobs, self.output_token_ids, strict=wanted)
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=list(self.output_token_ids),
            cumulative_logprob=sum(at[t].logprob for at, t in chosen) if wanted else None,
            logprobs=list(self.logprobs) if wanted else None,
            finish_reason=FINISH_REASONS.get(self.status),
            stop_reason=self.stop_reason,
        )
