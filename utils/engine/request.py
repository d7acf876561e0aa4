"""The state of a request in the engine's core: its tokens, and how many of them are computed.

What its user sees of it (text, log probabilities, times) is in `output_processor.py`.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from utils.engine.core.kv_cache_utils import BlockHash
from utils.engine.outputs import EngineCoreOutput, Logprob, PromptLogprobs
from utils.engine.sampling_params import SamplingParams
from utils.engine.spec_decode.draft import NO_DRAFT, Draft
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
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    max_num_tokens: int  # prompt plus answer, at most
    eos_token_ids: tuple[int, ...]
    seed: int | None = None  # of its random numbers; None: those of the engine
    grammar: StructuredOutputGrammar | None = None  # the form that the answer must have
    cache_salt: str | None = None  # requests with different salts share no blocks
    lora_name: str | None = None  # neither do those with different adapters
    priority: int = 0  # lower is more important, where the scheduler's policy asks for it
    arrival_time: float = field(default_factory=time.perf_counter)
    arrival_index: int = 0  # set by the scheduler: 0 for the first prompt it got, and so on
    scheduled_ts: float | None = None  # when it was first let run
    status: RequestStatus = RequestStatus.WAITING
    stop_reason: int | None = None  # the stop token that ended it
    # The single notion of progress: how many tokens have their keys and values in the cache.
    # Prefill and decode differ only in how far this is behind `num_tokens`.
    num_computed_tokens: int = 0
    # Tokens that a running step samples for it: they're counted, and nobody knows them yet.
    num_output_placeholders: int = 0
    num_cached_tokens: int | None = None  # of its prompt, found computed; None: not looked up yet
    num_preemptions: int = 0
    block_hashes: list[BlockHash] = field(default_factory=list)  # of its full blocks
    draft: Draft = NO_DRAFT  # tokens guessed to come next, to be verified in the next step
    output_token_ids: list[int] = field(default_factory=list)
    # The requests for a prompt's other answers: forked from this one when the prompt is computed.
    forks: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.all_token_ids = list(self.prompt_token_ids)
        self.stop_token_ids = cast(list[int], self.sampling_params.stop_token_ids)
        # Of the prompt's tokens so far, where asked for. Nothing says how probable the first is.
        wanted = self.sampling_params.prompt_logprobs is not None
        self.prompt_logprobs: PromptLogprobs | None = [None] if wanted else None

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
    def is_finished(self) -> bool:
        return self.status > RequestStatus.PREEMPTED

    @property
    def stopping_token_ids(self) -> list[int]:
        return [*self.eos_token_ids, *self.stop_token_ids]

    def append_token(self, token_id: int) -> None:
        """Add a new token to the answer, and decide whether the answer ends with it."""
        self.output_token_ids.append(token_id)
        self.all_token_ids.append(token_id)
        if token_id in self.eos_token_ids and not self.sampling_params.ignore_eos:
            whole = self.grammar is None or self.grammar.accepts(self.output_token_ids[:-1])
            self.status = RequestStatus.FINISHED_STOPPED if whole else RequestStatus.FINISHED_ERROR
        elif token_id in self.stop_token_ids:
            self.status, self.stop_reason = RequestStatus.FINISHED_STOPPED, token_id
        elif self.num_tokens >= self.max_num_tokens:
            self.status = RequestStatus.FINISHED_LENGTH_CAPPED

    def core_output(
        self, new_token_ids: list[int], new_logprobs: Sequence[dict[int, Logprob]] = ()
    ) -> EngineCoreOutput:
        """What its user's side is told after a step that gave it these tokens."""
        return EngineCoreOutput(
            self.request_id,
            new_token_ids,
            FINISH_REASONS.get(self.status),
            self.stop_reason,
            list(new_logprobs),
            self.prompt_logprobs,
            self.num_cached_tokens,
            self.num_preemptions,
            self.scheduled_ts,
        )
