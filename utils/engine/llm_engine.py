"""`LLMEngine`: requests come and go, and each step moves all of them forward."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.config.engine import EngineConfig
from utils.engine.config.parts import EngineParts
from utils.engine.core.sched.output import ModelRunnerOutput
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
from utils.engine.worker.executor import Executor
from utils.engine.worker.step_runner import StepByStep, StepInFlight, StepThread

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
        is_async = parts.is_async(model, config)
        self.scheduler = parts.make_scheduler(config, self.kv_cache_manager, is_async)
        self.executor: Executor = parts.make_executor(
            model, config, self.kv_cache_manager, self.scheduler
        )
        self.step_runner = StepThread(self.executor) if is_async else StepByStep(self.executor)
        self.steps: deque[StepInFlight] = deque()  # scheduled, and not booked yet
        memory = self.executor.kv_cache
        self.kv_cache = memory if isinstance(memory, PagedKVCache) else None  # in this process
        self.drafter = parts.make_drafter(model, config)
        if self.drafter is not None:
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

        With async scheduling: start one step, and return what came of the step before it.

        Raises:
            RuntimeError: no request can run, because something else holds the blocks.
        """
        with self.whole_steps:  # also when a cell is interrupted
            self._settle()
            if self._start_step() and len(self.steps) < self.step_runner.most_in_flight:
                return []  # while this step runs, the next one is scheduled
            updated = self._end_step() if self.steps else []
            self._settle()
        return updated

    def _settle(self) -> None:
        """Book the steps whose requests are all gone, before others build on them."""
        while self.steps and all(r.is_finished for r in self.steps[0].requests.values()):
            if self.steps[0].executed.exception() is None:
                self._end_step()
            else:  # what it was to compute must not be found
                self.scheduler.update_from_output(self.steps.popleft().output, [])
                self.kv_cache_manager.block_pool.forget_contents()

    def _start_step(self) -> bool:
        """Schedule a step, and have it computed. False: nothing can be scheduled now."""
        start = perf_counter()
        output = self.scheduler.schedule()
        if not output.scheduled_requests:
            if output.deferred_req_ids:
                time.sleep(POLL_SECONDS)
            elif self.has_unfinished_requests() and not self.steps:
                raise RuntimeError(
                    "No request can run: the blocks of the KV cache are held outside the scheduler."
                )
            return False
        members = [member for request in output.scheduled_requests for member in request.members()]
        requests = {member.request_id: self.requests[member.request_id] for member in members}
        usage, scheduled = self.kv_cache_manager.usage, perf_counter()
        before = self.steps[-1].executed if self.steps else None
        executed = self.step_runner.submit(output, before)
        self.steps.append(StepInFlight(output, requests, executed, start, scheduled, usage))
        return True

    def _end_step(self) -> list[RequestState]:
        """Process the oldest step in flight: the answers that got a new token."""
        # If it has failed: the error holds this frame, so nothing here may hold the error.
        result, started, executed = self.steps[0].executed.result()
        step, collected = self.steps.popleft(), perf_counter()
        core_outputs = self._process(step, result)
        updated, to_abort = self.output_processor.process_outputs(core_outputs)
        self.abort_in_core(to_abort)
        processed = perf_counter()
        if self.drafter:
            requests = [step.requests[name] for name in step.output.num_scheduled_tokens]
            self.drafter.propose(requests, step.output, self.executor.hidden_states)
        if self.step_trace is not None:
            begins = (step.start, step.scheduled, started, executed, collected)
            times = (*begins, processed, perf_counter())
            num_waiting, usage = len(self.scheduler.waiting), step.kv_cache_usage
            record = record_step(times, step.output, updated, num_waiting, usage)
            self.step_trace.append(record)
        return updated

    def _process(self, step: StepInFlight, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Book a step's new tokens: what it gave each request that got some."""
        for request_id, scores in result.prompt_logprobs.items():
            if (known := step.requests[request_id].prompt_logprobs) is not None:
                known += scores
        gained: dict[Request, int] = {}
        for request_id, token_ids in result.sampled_token_ids.items():
            request = step.requests[request_id]
            if request.is_finished:  # aborted, or ended by the step before: a token too many
                continue
            gained[request] = 0
            for token_id in token_ids:
                if not request.is_finished:  # else an accepted guess beyond the answer's end
                    request.append_token(token_id)
                    gained[request] += 1
        if self.drafter:
            self.drafter.observe(self.requests, step.output, result)
        if result.moves:
            self.kv_cache_manager.move_slots(result.moves)
        self.scheduler.update_from_output(step.output, list(gained))
        if result.invalid_block_ids:
            self.scheduler.handle_invalid_blocks(step.output, result.invalid_block_ids)
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
        self.steps.clear()
        self.output_processor.forget_everything()
        self.scheduler.forget_requests(list(self.requests.values()))
        self.requests.clear()
        self.kv_cache_manager.forget_everything()
