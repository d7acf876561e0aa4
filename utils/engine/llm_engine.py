"""`LLMEngine`: requests come and go, and each step moves all of them forward."""

from __future__ import annotations

import time
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.config.engine import EngineConfig
from utils.engine.config.parts import EngineParts
from utils.engine.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from utils.engine.core.step_record import StepRecord, record_step
from utils.engine.core.whole_steps import WholeSteps
from utils.engine.distributed.executor import ModelWorkers
from utils.engine.input_processor import InputProcessor, Prompt
from utils.engine.metrics import SpecDecodingStats
from utils.engine.models.llama import LlamaForCausalLM
from utils.engine.output_processor import OutputProcessor, RequestState
from utils.engine.outputs import EngineCoreOutput, RequestOutput
from utils.engine.request import Request
from utils.engine.sampling_params import SamplingParams
from utils.engine.spec_decode.drafter import Drafter
from utils.engine.worker.executor import Executor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# How often to look whether keys and values have come that are on their way. vLLM's `EngineCoreProc`
# sleeps as long where nobody can run.
POLL_SECONDS = 0.001


class LLMEngine:
    """Runs requests step by step: schedule, execute, process, draft.

    Args:
        model: with its weights; or its workers on several ranks.
        tokenizer: the model's.
        config: how to run it.
        parts: of what it is made. None: of the course's own.

    Raises:
        ValueError: the parts don't go together, or not with the config: guesses and connectors need
            a paged KV cache, for instance.
    """

    def __init__(
        self,
        model: LlamaForCausalLM | ModelWorkers,
        tokenizer: PreTrainedTokenizerBase,
        config: EngineConfig,
        parts: EngineParts | None = None,
    ) -> None:
        parts = parts or EngineParts()
        self.config, self.kv_events = config, parts.kv_events
        self.inputs = InputProcessor(model.config, config, tokenizer)
        self.kv_cache_manager: Any  # a `KVCacheManagerInterface`; most have a `block_pool` as well
        self.kv_cache_manager = parts.make_kv_cache_manager(model.config, config)
        self.scheduler = parts.scheduler_cls(config, self.kv_cache_manager)
        self.executor: Executor = parts.make_executor(
            model, config, self.kv_cache_manager, self.scheduler
        )
        memory = self.executor.kv_cache
        self.kv_cache = memory if isinstance(memory, PagedKVCache) else None  # in this process
        self.drafter: Drafter | None = None
        if config.speculative_config is not None:
            if parts.kv_cache_class is not None:
                raise ValueError("Speculative decoding needs a paged KV cache.")
            proposer = parts.proposer(config, model)
            self.drafter = Drafter(config.speculative_config, proposer)
            self.scheduler.num_lookahead_tokens = self.drafter.num_lookahead_tokens
        self.step_trace: list[StepRecord] | None = None  # set it to [] to record each step
        self.output_processor = OutputProcessor()
        self.requests: dict[str, Request] = {}  # by id: what is not finished, as the core knows it
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
        if request_id in self.output_processor.parent_requests:
            raise ValueError(f"Request id {request_id!r} is in use. Ids must be unique.")
        [state] = self.inputs.from_prompts([prompt], params)
        state.name_family(request_id)
        state.set_priority(priority)
        self.add(state)

    def add(self, state: RequestState) -> None:
        """Queue a request that `inputs` made."""
        with self.whole_steps:
            self.output_processor.add_request(state)
            self.requests |= {member.request_id: member.request for member in state.family}
            self.scheduler.add_request(state.request)

    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished_requests()

    def step(self) -> list[RequestOutput]:
        """Run one step. Returns the answers so far of all requests that got a new token."""
        first = {state.family[0].request_id: state for state in self.advance()}
        return [state.output() for state in first.values()]

    def advance(self) -> list[RequestState]:
        """Run one step, and return the answers that got a new token.

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
            result = self.executor.execute_model(output)
            executed = perf_counter()
            core_outputs = self._process(output, result)
            updated, to_abort = self.output_processor.process_outputs(core_outputs)
            self.abort_in_core(to_abort)
            processed = perf_counter()
            if self.drafter:
                names = [name for name in output.num_scheduled_tokens if name in self.requests]
                going_on = [self.requests[name] for name in names]
                self.drafter.propose(going_on, output, self.executor.last_hidden)
        if self.step_trace is not None:
            times = (begin, scheduled, executed, processed, perf_counter())
            self.step_trace.append(
                record_step(times, output, updated, len(self.scheduler.waiting), usage)
            )
        return updated

    def _process(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """Book a step's new tokens: what it gave each request that got some."""
        for request_id, scores in result.prompt_logprobs.items():
            if (known := self.requests[request_id].prompt_logprobs) is not None:
                known += scores
        gained: dict[Request, int] = {}
        for request_id, token_ids in result.sampled_token_ids.items():
            request = self.requests[request_id]
            gained[request] = 0
            for token_id in token_ids:
                if not request.is_finished:  # else an accepted guess beyond the answer's end
                    request.append_token(token_id)
                    gained[request] += 1
        if self.drafter:
            self.drafter.observe(self.requests, output, result)
        if result.moves:
            self.kv_cache_manager.move_slots(result.moves)
        self.scheduler.update_from_output(output, list(gained))
        if result.invalid_block_ids:
            self.scheduler.handle_invalid_blocks(output, result.invalid_block_ids)
        self.kv_events.step_ended()
        core_outputs = []
        for request, count in gained.items():
            logprobs = result.logprobs.get(request.request_id, [])
            new_token_ids = request.output_token_ids[len(request.output_token_ids) - count :]
            core_outputs.append(request.core_output(new_token_ids, logprobs[:count]))
            if request.is_finished:
                del self.requests[request.request_id]
        return core_outputs

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
        self.whole_steps.soon(
            lambda: self.abort_in_core(self.output_processor.abort_requests(request_ids))
        )

    def abort_in_core(self, request_ids: Sequence[str]) -> None:
        """Stop computing these answers. Unknown and finished ones are ignored."""
        requests = [self.requests.pop(i) for i in request_ids if i in self.requests]
        self.scheduler.abort_requests(requests)

    def forget_everything(self) -> None:
        """Drop all requests and all cached contents, whatever state an interrupt left them in."""
        self.output_processor.forget_everything()
        self.scheduler.forget_requests(list(self.requests.values()))
        self.requests.clear()
        self.kv_cache_manager.forget_everything()
