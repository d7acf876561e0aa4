"""Batching without a model: policies on a clock of our own, and an engine on a pretend device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from utils.engine import LLM
from utils.engine.core.sched.output import ModelRunnerOutput, SchedulerOutput
from utils.engine.core.step_record import ScheduledTokens, StepRecord
from utils.engine.llm_engine import LLMEngine
from utils.engine.outputs import RequestMetrics
from utils.engine.sampling_params import SamplingParams
from utils.sim.traces import sharegpt_like


@dataclass
class SimRequest:
    """A request as a scheduler sees it. Fields as in `utils.engine.Request`.

    Attributes:
        request_id: its name.
        arrival_time: seconds since the trace began.
        num_prompt_tokens: length of the prompt.
        max_tokens: length of the answer; nothing ends it earlier.
        priority: lower is more important, for a scheduler that looks at it.
        num_computed_tokens: how many of its tokens have their keys and values in the cache.
        num_output_tokens: tokens of the answer so far.
    """

    request_id: str
    arrival_time: float
    num_prompt_tokens: int
    max_tokens: int
    priority: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def is_finished(self) -> bool:
        return self.num_output_tokens == self.max_tokens


class SimScheduler(Protocol):
    """What `replay` needs."""

    waiting: deque[SimRequest]
    running: list[SimRequest]

    def schedule(self) -> list[tuple[SimRequest, int]]:
        """The requests of the next step, and how many tokens of each to compute."""

    def update_from_output(self) -> None:
        """Called when the step is computed: let finished requests go."""


def scaled_trace(num_requests: int, rate: float, seed: int, scale: float) -> list[SimRequest]:
    """ShareGPT-like requests with all lengths multiplied by `scale`, named "A", "B", ...

    Args:
        num_requests: how many; at most 26.
        rate: mean arrivals per second, a Poisson process. The first arrives at 0.
        seed: equal seeds, equal traces.
        scale: below 1 for a small machine. No length becomes less than 2 tokens.

    Raises:
        ValueError: more than 26 requests, or an argument is not positive.
    """
    if not 1 <= num_requests <= 26:
        raise ValueError(f"num_requests must be 1 to 26, one per letter, got {num_requests}.")
    if not scale > 0:
        raise ValueError(f"scale must be positive, got {scale}.")
    trace = sharegpt_like(num_requests, rate, seed)
    return [
        SimRequest(
            chr(ord("A") + r.request_id),
            r.arrival_time - trace[0].arrival_time,
            max(2, round(scale * r.prompt_len)),
            max(2, round(scale * r.output_len)),
        )
        for r in trace
    ]


def replay(
    scheduler: SimScheduler, requests: Sequence[SimRequest], step_seconds: Callable[[int], float]
) -> list[StepRecord]:
    """Run a trace through a scheduler, on a clock that starts at 0.

    Args:
        scheduler: with nothing waiting or running.
        requests: in order of arrival. They are copied, not changed.
        step_seconds: how long a step with so many tokens takes.

    Returns:
        One record per step, as `LLMEngine.step_trace` would hold them. `kv_cache_usage` is 0:
        nothing is stored.

    Raises:
        ValueError: the scheduler lets nobody run though somebody waits, or schedules tokens that a
            request does not have.
    """
    arriving = deque(replace(r) for r in sorted(requests, key=lambda r: r.arrival_time))
    clock = 0.0
    steps = []
    while arriving or scheduler.waiting or scheduler.running:
        if not (scheduler.waiting or scheduler.running):
            clock = max(clock, arriving[0].arrival_time)  # nothing to do until then
        while arriving and arriving[0].arrival_time <= clock:
            scheduler.waiting.append(arriving.popleft())
        batch = scheduler.schedule()
        if not batch:
            raise ValueError(
                f"At {clock:.3f} s nobody was scheduled, though {len(scheduler.waiting)} wait and "
                f"{len(scheduler.running)} run. A step must move somebody."
            )
        start, clock = clock, clock + step_seconds(sum(n for _, n in batch))
        tokens = {request.request_id: _compute(request, n) for request, n in batch}
        scheduler.update_from_output()
        finished = [request.request_id for request, _ in batch if request.is_finished]
        times = (start, start, start, clock, clock, clock, clock)
        steps.append(StepRecord(*times, tokens, [], [], finished, len(scheduler.waiting), 0.0))
    return steps


def engine_schedule(
    engine: LLMEngine, steps: Sequence[StepRecord], requests: Sequence[SimRequest]
) -> list[dict[str, int]]:
    """What the engine's scheduler would compute in each step of a replay. No model runs.

    The requests are real ones, with made-up tokens: whoever is up to date gets one more.

    Args:
        engine: with an empty cache, and without prefix caching.
        steps: of `replay`. They say when somebody came.
        requests: the trace, in order of arrival.

    Returns:
        For each step, the number of tokens by request id.

    Raises:
        ValueError: somebody is not finished after the last step.
    """
    arriving, schedule = deque(requests), []
    for step in steps:
        while arriving and arriving[0].arrival_time <= step.start:
            new = arriving.popleft()
            params = SamplingParams(temperature=0, max_tokens=new.max_tokens, ignore_eos=True)
            prompt = [1] * new.num_prompt_tokens
            engine.add_request(new.request_id, prompt, params, new.priority)
        output = engine.scheduler.schedule()
        schedule.append(output.num_scheduled_tokens)
        sampled = []
        for scheduled in output.scheduled_requests:
            if scheduled.is_complete:
                sampled.append(engine.requests[scheduled.request_id])
        for request in sampled:
            request.append_token(0)
        engine.scheduler.update_from_output(output, sampled)
    if arriving or engine.scheduler.has_unfinished_requests():
        raise ValueError(f"after all {len(steps)} steps, the engine is not finished with everybody")
    return schedule


def request_metrics(
    steps: Sequence[StepRecord], requests: Sequence[SimRequest], start: float = 0.0
) -> dict[str, RequestMetrics]:
    """When each request of a trace was first let run and got its tokens, from the steps' records.

    Args:
        steps: of `replay`, or of an engine that was sent the same requests.
        requests: the trace.
        start: the trace's time 0 on the clock of `steps`.

    Returns:
        By request id. The arrival is the trace's, also for a request that the engine only noticed
        after the step that ran when it came.
    """
    metrics = {r.request_id: RequestMetrics(start + r.arrival_time) for r in requests}
    for step in steps:
        for request_id, tokens in step.tokens.items():
            request = metrics[request_id]
            if request.scheduled_ts is None:
                request.scheduled_ts = step.start
            request.token_ts += [step.executed] * tokens.num_sampled
    return metrics


def throughput(steps: Sequence[StepRecord]) -> float:
    """New tokens per second, from the first step's start to the last one's end."""
    num_tokens = sum(tokens.num_sampled for step in steps for tokens in step.tokens.values())
    return num_tokens / (steps[-1].end - steps[0].start)


def _compute(request: SimRequest, num_new: int) -> ScheduledTokens:
    """Compute the next tokens of a request; one that is up to date then gets a new token."""
    start, left = request.num_computed_tokens, request.num_tokens - request.num_computed_tokens
    if not 1 <= num_new <= left:
        raise ValueError(
            f"{num_new} tokens were scheduled for request {request.request_id}, which has {left} "
            f"left to compute."
        )
    request.num_computed_tokens += num_new
    num_sampled = int(num_new == left)
    request.num_output_tokens += num_sampled
    return ScheduledTokens(start, num_new, 0, num_sampled)


class PretendDevice:
    """An executor in place of the model. Like a GPU, it needs none of this processor.

    Args:
        seconds: that a step takes by the device's own clock; its thread wakes up a little later.
        token_id: that all requests get, in every step.
    """

    kv_cache = None

    def __init__(self, seconds: float, token_id: int) -> None:
        self.seconds, self.token_id = seconds, token_id
        self.hidden_states: dict[str, Tensor] = {}

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """See `Executor`."""
        time.sleep(self.seconds)
        tokens = {r.request_id: [self.token_id] for r in output.scheduled_requests if r.is_complete}
        return ModelRunnerOutput(tokens)


def engine_on_device(llm: LLM, seconds: float, parts: Any = None, **changes: Any) -> LLMEngine:
    """An engine whose steps take so many seconds on a pretend device. It records its steps.

    Args:
        llm: brings tokenizer and settings. Its model is not run.
        parts, changes: see `LLM.new_engine`.
    """
    engine = llm.new_engine({"enable_prefix_caching": False, **changes}, **(parts or {}))
    (word,) = llm.get_tokenizer().encode(" the", add_special_tokens=False)
    engine.executor = engine.step_runner.executor = PretendDevice(seconds, word)
    engine.step_trace = []
    return engine
