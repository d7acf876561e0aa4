"""`LLMEngine`: requests come and go, and each step moves all of them forward."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from utils.engine.config.engine import EngineConfig
from utils.engine.config.parts import EngineParts
from utils.engine.core.scheduler_output import SchedulerOutput
from utils.engine.core.step_record import StepRecord, record_step
from utils.engine.core.whole_steps import WholeSteps
from utils.engine.input_processor import InputProcessor, Prompt
from utils.engine.metrics import SpecDecodingStats
from utils.engine.models.llama import LlamaForCausalLM
from utils.engine.outputs import RequestOutput
from utils.engine.request import Request
from utils.engine.sampling_params import SamplingParams
from utils.engine.spec_decode.drafter import Drafter
from utils.engine.worker.kv_transfers import KVTransfers
from utils.engine.worker.model_runner import ModelRunner, SampledToken

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# How often to look whether keys and values have come that are on their way. vLLM's `EngineCoreProc`
# sleeps as long where nobody can run.
POLL_SECONDS = 0.001


class LLMEngine:
    """Runs requests step by step: schedule, execute, process, draft.

    Args:
        model: with its weights.
        tokenizer: the model's.
        config: how to run it.
        parts: of what it is made. None: of the course's own.

    Raises:
        ValueError: the parts don't go together, or not with the config: guesses and connectors need
            a paged KV cache, for instance.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        tokenizer: PreTrainedTokenizerBase,
        config: EngineConfig,
        parts: EngineParts | None = None,
    ) -> None:
        parts = parts or EngineParts()
        self.config, self.kv_events = config, parts.kv_events
        self.inputs = InputProcessor(model.config, config, tokenizer)
        self.kv_cache_manager: Any  # a `KVCacheManagerInterface`; most have a `block_pool` as well
        self.kv_cache_manager, self.kv_cache = parts.make_kv_cache(model, config)
        self.scheduler = parts.scheduler_cls(config, self.kv_cache_manager)
        transfers = KVTransfers.between(
            parts.kv_connector, self.scheduler, model, config, self.kv_cache
        )
        self.runner = ModelRunner(
            model, parts.sampler, self.kv_cache, parts.rejection_sampler, transfers
        )
        self.drafter: Drafter | None = None
        if config.speculative_config is not None:
            if self.kv_cache is None:
                raise ValueError("Speculative decoding needs a paged KV cache.")
            proposer = parts.proposer(config, model)
            self.drafter = Drafter(config.speculative_config, proposer)
            self.scheduler.num_lookahead_tokens = self.drafter.num_lookahead_tokens
        self.step_trace: list[StepRecord] | None = None  # set it to [] to record each step
        self._requests: dict[str, Request] = {}
        self.whole_steps = WholeSteps(self.forget_everything)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        priority: int = 0,
    ) -> None:
        """Queue a prompt. Under the policy "priority", lower numbers go first.

        Raises:
            ValueError: the id is in use, or the prompt or its parameters are bad (see
                `LLM.generate`). Nothing has been queued then.
        """
        if request_id in self._requests:
            raise ValueError(f"Request id {request_id!r} is in use. Ids must be unique.")
        [request] = self.inputs.from_prompts([prompt], params)
        request.name_family(request_id)
        request.set_priority(priority)
        self.add(request)

    def add(self, request: Request) -> None:
        """Queue a request that `inputs` made."""
        with self.whole_steps:
            self._requests[request.request_id] = request
            self.scheduler.add_request(request)

    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished_requests()

    def step(self) -> list[RequestOutput]:
        """Run one step. Returns the answers so far of all requests that got a new token."""
        first = {request.family[0].request_id: request for request in self.advance()}
        return [request.output() for request in first.values()]

    def advance(self) -> list[Request]:
        """Run one step, and return the requests that got a new token.

        Raises:
            RuntimeError: no request can run, because something else holds the blocks.
        """
        begin = perf_counter()
        with self.whole_steps:  # also when a cell is interrupted
            output = self.scheduler.schedule()
            if not output.scheduled_requests:
                if not self.has_unfinished_requests():
                    return []
                if output.deferred_req_ids:
                    time.sleep(POLL_SECONDS)
                    return []
                raise RuntimeError(
                    "No request can run: the blocks of the KV cache are held outside the scheduler."
                )
            usage = self.kv_cache_manager.usage
            scheduled = perf_counter()
            sampled = self.runner.execute_model(output)
            executed = perf_counter()
            gained = self._process(output, sampled)
            processed = perf_counter()
            if self.drafter:
                self.drafter.propose(output, self.runner.last_hidden)
        if self.step_trace is not None:
            times = (begin, scheduled, executed, processed, perf_counter())
            self.step_trace.append(
                record_step(times, output, gained, len(self.scheduler.waiting), usage)
            )
        return list(gained)

    def _process(
        self, output: SchedulerOutput, sampled: Sequence[SampledToken]
    ) -> dict[Request, int]:
        """Book a step's new tokens: which requests got how many."""
        gained: dict[Request, int] = {}
        for request, token_id, logprobs in sampled:
            gained.setdefault(request, 0)
            if not request.is_finished:  # else an accepted guess beyond the answer's end
                request.append_token(token_id, logprobs)
                gained[request] += 1
        if self.drafter:
            num_sampled = Counter(token.request.request_id for token in sampled)
            for request in output.scheduled_requests:
                if draft := output.scheduled_spec_decode_tokens.get(request.request_id):
                    self.drafter.observe(request, len(draft), num_sampled[request.request_id] - 1)
        self.scheduler.update_from_output(output, list(gained))
        if invalid := self.runner.transfers.invalid_block_ids:
            self.scheduler.handle_invalid_blocks(output, invalid)
        self.kv_events.step_ended()
        for request in gained:
            if request.is_answered:
                self._requests.pop(request.family[0].request_id, None)
        return gained

    @property
    def spec_decoding_stats(self) -> SpecDecodingStats | None:
        """Counts of guessed tokens since the engine was made. None: it does not guess."""
        return None if self.drafter is None else self.drafter.stats

    def abort_request(self, request_id: str) -> None:
        """Drop a request with all its answers. Unknown and finished ones are ignored."""
        self.abort_requests([request_id])

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Drop requests with all their answers. Unknown and finished ones are ignored.

        In the midst of a step (see `WholeSteps.soon`), they are dropped at its end.
        """
        self.whole_steps.soon(lambda: self._drop(request_ids))

    def _drop(self, request_ids: Sequence[str]) -> None:
        dropped = [self._requests.pop(i) for i in request_ids if i in self._requests]
        self.scheduler.abort_requests([member for r in dropped for member in r.family])

    def forget_everything(self) -> None:
        """Drop all requests and all cached contents, whatever state an interrupt left them in."""
        self.scheduler.forget_requests([m for r in self._requests.values() for m in r.family])
        self._requests.clear()
        self.kv_cache_manager.forget_everything()
