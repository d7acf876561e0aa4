"""What happened in a step of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.output_processor import RequestState


@dataclass(frozen=True)
class ScheduledTokens:
    """What a step did for one request."""

    start: int  # tokens it had computed before
    num_new: int  # tokens computed in this step, guessed ones among them
    num_draft: int  # of these, guessed
    num_sampled: int  # tokens that its answer grew by


@dataclass(frozen=True)
class StepRecord:
    """One step of the engine. Times in seconds of `time.perf_counter`.

    Args:
        start: the step begins.
        scheduled: after `Scheduler.schedule`.
        started: the forward pass begins. With async scheduling, after that of the step before.
        executed: after forward pass and sampling.
        collected: Python has the new tokens, and begins to book them.
        processed: after the new tokens were booked.
        end: after the next guesses were drafted.
        tokens: by request id, in the order of the flat batch.
        num_waiting: requests that wait after the step.
        kv_cache_usage: part of the blocks in use during the forward pass, 0 to 1.
    """

    start: float
    scheduled: float
    started: float
    executed: float
    collected: float
    processed: float
    end: float
    tokens: dict[str, ScheduledTokens]
    preempted_req_ids: list[str]
    resumed_req_ids: list[str]
    finished_req_ids: list[str]
    num_waiting: int
    kv_cache_usage: float


def record_step(
    times: tuple[float, float, float, float, float, float, float],
    output: SchedulerOutput,
    updated: Sequence[RequestState],
    num_waiting: int,
    kv_cache_usage: float,
) -> StepRecord:
    """The record of a step.

    Args:
        times: `start` to `end`.
        output: what was scheduled.
        updated: the answers that got new tokens.
        num_waiting, kv_cache_usage: see `StepRecord`.
    """
    gained = {state.request_id: state.num_new_tokens for state in updated}
    tokens = {
        request.request_id: ScheduledTokens(
            request.num_computed_tokens,
            request.num_scheduled_tokens,
            len(request.spec_token_ids),
            gained.get(request.request_id, 0),
        )
        for request in output.scheduled_requests
    }
    finished = [state.request_id for state in updated if state.is_finished]
    return StepRecord(
        *times,
        tokens,
        output.preempted_req_ids,
        output.resumed_req_ids,
        finished,
        num_waiting,
        kv_cache_usage,
    )
