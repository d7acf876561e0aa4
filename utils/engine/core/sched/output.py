"""What the scheduler tells the model runner, and what it hears back: plain data.

Nothing here refers to the scheduler's own requests, so both can leave the process. vLLM sends what
a worker has to know of a request once, and then what has changed (`NewRequestData`,
`CachedRequestData`). Here each step says it all: a worker needs no memory of requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from utils.engine.core.kv_cache_utils import BlockCopies
from utils.engine.outputs import Logprob
from utils.engine.request import Request
from utils.engine.sampling_params import SamplingParams
from utils.engine.spec_decode.draft import Draft

if TYPE_CHECKING:
    from utils.engine.core.interfaces import KVCacheManagerInterface


# A token that isn't known yet, because the step that samples it still runs. In vLLM: -1, too.
PLACEHOLDER = -1


@dataclass(slots=True)
class ScheduledRequest:
    """What a step does for one request, and all that has to be known for it.

    Args:
        all_token_ids: the prompt's and the answer's so far. In one process this is the request's
            own list, which grows when the step is booked. Where the step before this one still
            runs, the list is a copy, and a `PLACEHOLDER` at its end stands for that step's token.
        num_prompt_tokens: of these, the prompt's.
        num_computed_tokens: how many of them were computed before this step.
        num_scheduled_tokens: how many this step computes; guessed ones among them.
        block_ids: its block table.
        draft: guesses to be verified in this step.
        seed: of its random numbers; None: those of the engine.
        stopping_token_ids: that may end the answer.
        num_prompt_logprobs: tokens of the prompt that are scored already.
        grammar_bitmasks: after its last token, and after each guess: which tokens its grammar
            allows (see `StructuredOutputGrammar.bitmask`). None: it has no grammar, or gets no
            token in this step.
        forks: requests for the prompt's other answers, that are sampled from the same scores when
            the prompt is computed: their ids and seeds.
        cache_salt: see `Request`.
        lora_name: see `Request`.
    """

    request_id: str
    all_token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    num_scheduled_tokens: int
    block_ids: list[int]
    draft: Draft
    sampling_params: SamplingParams
    seed: int | None
    stopping_token_ids: list[int]
    num_prompt_logprobs: int | None
    grammar_bitmasks: list[Tensor | None] | None
    forks: list[tuple[str, int | None]]
    cache_salt: str | None
    lora_name: str | None

    @classmethod
    def of(cls, request: Request, num_new_tokens: int, block_ids: list[int]) -> ScheduledRequest:
        """What the next step is to do for a request."""
        known, grammar, draft = request.prompt_logprobs, request.grammar, request.draft
        all_token_ids = request.all_token_ids
        if request.num_output_placeholders:
            all_token_ids = [*all_token_ids, *[PLACEHOLDER] * request.num_output_placeholders]
        gets_a_token = request.num_computed_tokens + num_new_tokens >= request.num_tokens
        bitmasks: list[Tensor | None] | None = None
        if grammar is not None and gets_a_token:  # in the middle of a prompt nobody asks it
            paths = draft.paths()
            bitmasks = [grammar.bitmask(request.output_token_ids, path) for path in paths]
        return cls(
            request.request_id,
            all_token_ids,
            len(request.prompt_token_ids),
            request.num_computed_tokens,
            num_new_tokens,
            block_ids,
            draft,
            request.sampling_params,
            request.seed,
            request.stopping_token_ids,
            None if known is None else len(known),
            bitmasks,
            [(fork.request_id, fork.seed) for fork in request.forks],
            request.cache_salt,
            request.lora_name,
        )

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def spec_token_ids(self) -> list[int]:
        return self.draft.token_ids

    @property
    def is_complete(self) -> bool:
        """Whether all its tokens are computed after this step, so that it gets a new one."""
        return self.num_computed_tokens + self.num_scheduled_tokens >= self.num_tokens

    def too_early_to_stop(self, num_ahead: int = 0) -> bool:
        """Whether the next token, or that `num_ahead` later, is one of the first `min_tokens`."""
        num_output = self.num_tokens - self.num_prompt_tokens
        return num_output + num_ahead < self.sampling_params.min_tokens

    def members(self) -> Iterator[ScheduledRequest]:
        """Itself, and its forks."""
        yield self
        for request_id, seed in self.forks:
            yield replace(self, request_id=request_id, seed=seed, forks=[])


@dataclass
class SchedulerOutput:
    """What the next step computes.

    Args:
        scheduled_requests: in the order of the flat batch.
        block_copies: to be made first of all.
        preempted_req_ids: requests that lost their blocks in this step.
        resumed_req_ids: requests that had lost them earlier, and are back.
        deferred_req_ids: requests that wait for keys and values on their way to the connector.
        kv_connector_metadata: what a connector is to load and save (see `kv_transfer`).
        num_scheduled_tokens: by request id.
    """

    scheduled_requests: list[ScheduledRequest]
    block_copies: BlockCopies = field(default_factory=BlockCopies)
    preempted_req_ids: list[str] = field(default_factory=list)
    resumed_req_ids: list[str] = field(default_factory=list)
    deferred_req_ids: list[str] = field(default_factory=list)
    kv_connector_metadata: Any = None
    num_scheduled_tokens: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        requests = self.scheduled_requests
        self.num_scheduled_tokens = {r.request_id: r.num_scheduled_tokens for r in requests}

    @classmethod
    def of(
        cls,
        requests: Sequence[Request],
        num_scheduled_tokens: dict[str, int],
        kv_cache_manager: KVCacheManagerInterface,
        **events: list[str],
    ) -> SchedulerOutput:
        """The next step of these requests, which have their blocks.

        Args:
            events: the lists of request ids that `SchedulerOutput` has.
        """
        get_block_ids = kv_cache_manager.get_block_ids
        scheduled = [
            ScheduledRequest.of(r, num_scheduled_tokens[r.request_id], get_block_ids(r.request_id))
            for r in requests
        ]
        copies = kv_cache_manager.take_block_copies() if scheduled else BlockCopies()
        return cls(scheduled, copies, **events)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass
class ModelRunnerOutput:
    """What came of a step, by request id.

    Args:
        sampled_token_ids: the new tokens. Of a request with guesses: those accepted, and one more.
        logprobs: of each new token, where asked for.
        prompt_logprobs: of further tokens of the prompt, where asked for.
        invalid_block_ids: blocks that a connector was to fill, and could not.
        moves: of accepted guesses, keys and values that must lie elsewhere before the next step:
            slots, from where to where.
    """

    sampled_token_ids: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[dict[int, Logprob]]] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[dict[int, Logprob]]] = field(default_factory=dict)
    invalid_block_ids: set[int] = field(default_factory=set)
    moves: list[tuple[int, int]] = field(default_factory=list)
