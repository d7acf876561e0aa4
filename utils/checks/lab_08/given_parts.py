"""What lab 08 hands to learners: an engine without its loop, and what their functions return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from utils.checks.kit.runner import Mismatch
from utils.engine.core.sched.output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from utils.engine.input_processor import Prompt
from utils.engine.llm import LLM
from utils.engine.llm_engine import LLMEngine
from utils.engine.output_processor import RequestState
from utils.engine.outputs import EngineCoreOutput, RequestOutput
from utils.engine.request import FINISH_REASONS, Request, RequestStatus
from utils.engine.sampling_params import SamplingParams
from utils.engine.worker.model_runner import ModelRunner


class Latencies(NamedTuple):
    """What a user felt of a request, in seconds."""

    queue_time: float
    ttft: float
    tpot: float | None
    itl: list[float]
    e2e_latency: float


@dataclass(frozen=True)
class Difference:
    """Where two answers part, and whether rounding explains it.

    Args:
        index: the first place where they differ.
        gap: by how much engine A's logits prefer its own token to B's. None: one answer ends there.
        explained: whether rounding may have turned the choice around.
    """

    index: int
    gap: float | None
    explained: bool


class Parts(NamedTuple):
    """What the learner wrote in exercises 1 to 5."""

    check_sampling_params: Callable[..., None]
    prepare_inputs: Callable[..., tuple[list[int], list[int], list[int]]]
    update_request: Callable[..., None]
    detokenizer_class: Callable[..., Any]
    text_to_show: Callable[..., tuple[int, str | None]]


class _Runner(ModelRunner):
    """The engine's model runner, with the learner's flat batch."""

    def __init__(self, runner: ModelRunner, prepare_inputs: Callable[..., Any]) -> None:
        super().__init__(runner.model, runner.sampler, runner.kv_cache)
        self.prepare_inputs = prepare_inputs

    def _forward(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> tuple[list[ScheduledRequest], Tensor]:
        self.hidden_states = {}
        requests, scheduled = output.scheduled_requests, output.num_scheduled_tokens
        lists = self.prepare_inputs(requests, scheduled)
        input_ids, positions, logits_indices = ([int(n) for n in numbers] for numbers in lists)
        caught_up = [request for request in requests if request.is_complete]
        counts = (len(input_ids), len(positions), len(logits_indices))
        if counts != (sum(scheduled.values()), sum(scheduled.values()), len(caught_up)):
            raise ValueError("prepare_inputs returned lists of the wrong lengths.")
        hidden = self.model(
            torch.tensor(input_ids, device=self.device),
            torch.tensor(positions, device=self.device),
            self._batch(output),
        )  # [num_tokens, hidden_size]
        return caught_up, hidden[logits_indices]


class EngineBase(LLMEngine):
    """All of an engine except its loop. Extend it with `step` and `abort_requests`.

    Args:
        llm: brings the model and the tokenizer.
        parts: the learner's.
        changes: fields of `EngineConfig` that are to differ from the LLM's.
    """

    def __init__(self, llm: LLM, parts: Parts, **changes: Any) -> None:
        super().__init__(llm.model, llm.tokenizer, replace(llm.config, **changes))
        self.parts = parts
        assert isinstance(self.executor, ModelRunner)
        self.executor = _Runner(self.executor, parts.prepare_inputs)
        self._states: WeakKeyDictionary[Request, RequestState] = WeakKeyDictionary()
        self._num_shown: WeakKeyDictionary[Request, int] = WeakKeyDictionary()

    # --- what the learner writes -----------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        raise Mismatch("Your class must have a method `step` of its own.")

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        raise Mismatch("Your class must have a method `abort_requests` of its own.")

    # --- what the learner uses -------------------------------------------------------------------

    def execute_model(self, scheduler_output: SchedulerOutput) -> dict[str, int]:
        """Compute what was scheduled. Returns the new token of each request that got one."""
        sampled = self.executor.execute_model(scheduler_output).sampled_token_ids
        return {request_id: token_ids[0] for request_id, token_ids in sampled.items()}

    def update(self, request: Request, num_scheduled_tokens: int, token_id: int | None) -> None:
        """Book what a step computed for a request, and let its text grow.

        Args:
            request: one that was scheduled.
            num_scheduled_tokens: how many of its tokens were computed.
            token_id: its new token. None: it got none.
        """
        early = len(request.output_token_ids) < request.sampling_params.min_tokens
        self.parts.update_request(request, num_scheduled_tokens, token_id)
        if token_id is None:
            return
        state = self._states[request]
        state.metrics.scheduled_ts = request.scheduled_ts
        state.metrics.record_token()
        state.output_token_ids = list(request.output_token_ids)
        state.stop_reason = request.stop_reason
        if request.status != RequestStatus.FINISHED_STOPPED:  # EOS and stop tokens are no text
            gained = state.detokenizer.append(token_id)
            state.text += gained
            num_searched = 0 if early else len(gained)
            count, stop = self.parts.text_to_show(state.text, num_searched, state.stop_strings)
            self._num_shown[request] = count
            if stop is not None:  # as in the engine, the core is told to drop the request
                state.text, state.stop_reason = state.text[:count], stop
                request.status = RequestStatus.FINISHED_ABORTED
        if request.is_finished:
            self._num_shown[request] = len(state.text)
            cut = request.status == RequestStatus.FINISHED_ABORTED
            state.finish_reason = "stop" if cut else FINISH_REASONS.get(request.status)

    def output(self, request: Request) -> RequestOutput:
        """The request's answer so far, as the user may see it."""
        state = self._states[request]
        state.num_cached_tokens = request.num_cached_tokens  # known before its first token
        output = state.output()
        output.outputs[0].text = state.text[: self._num_shown.get(request, 0)]
        return output

    def free(self, request: Request) -> None:
        """Take a request out of the scheduler's lists, and give its blocks back."""
        if request in self.scheduler.running:
            self.scheduler.running.remove(request)
        if request in self.scheduler.waiting:
            self.scheduler.waiting.remove(request)
        self.kv_cache_manager.free(request)
        state = self._states[request]
        state.finish_reason = state.finish_reason or FINISH_REASONS.get(request.status)

    def forget_contents(self) -> None:
        """Make nothing findable in the prefix cache any more."""
        self.kv_cache_manager.block_pool.forget_contents()

    # --- how requests come in, and how `LLM.generate` calls the loop -----------------------------

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        priority: int = 0,
    ) -> None:
        """Queue a prompt, after the learner's function has checked the parameters."""
        self.parts.check_sampling_params(params or SamplingParams())
        if request_id in self.requests:
            raise ValueError(f"Request id {request_id!r} is in use. Ids must be unique.")
        super().add_request(request_id, prompt, params, priority)

    def add(self, state: RequestState) -> None:
        if len(state.family) > 1:
            raise ValueError("The engine of this lab gives one answer per prompt: n must be 1.")

        def decode(token_ids: Sequence[int]) -> str:
            return str(
                self.inputs.tokenizer.decode(
                    list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
                )
            )

        prompt = list(state.prompt_token_ids)
        state.detokenizer = self.parts.detokenizer_class(decode, prompt)
        self._states[state.request] = state
        self.requests[state.request_id] = state.request
        self.scheduler.add_request(state.request)

    def advance(self) -> list[RequestState]:
        """One step, for `LLM.generate`, which looks at the answers themselves."""
        before = dict(self.requests)
        names = {output.request_id for output in self.step()}
        return [self._states[request] for name, request in before.items() if name in names]

    def _process(self, *_: Any) -> list[EngineCoreOutput]:
        raise Mismatch("The engine's own loop would do the work. Call `self.update` in yours.")
