"""Steps are computed at once, or in a thread: then the next one can be scheduled meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import torch

from utils.engine.core.sched.output import PLACEHOLDER, ModelRunnerOutput, SchedulerOutput
from utils.engine.request import Request
from utils.engine.worker.executor import Executor


class Executed(NamedTuple):
    """What came of a step, and when the model computed it (`time.perf_counter`)."""

    result: ModelRunnerOutput
    started: float
    ended: float


@dataclass(frozen=True)
class StepInFlight:
    """A step that is scheduled, and not booked yet.

    Args:
        requests: that may get tokens, by id. (An id may be in use again when the step is booked.)
        executed: what comes of it.
        start, scheduled, kv_cache_usage: see `StepRecord`.
    """

    output: SchedulerOutput
    requests: dict[str, Request]
    executed: Future[Executed]
    start: float
    scheduled: float
    kv_cache_usage: float


class StepByStep:
    """Computes a step as soon as it is submitted, in this thread.

    Args:
        executor: that computes it.
    """

    most_in_flight = 1  # steps that are submitted, and not booked yet

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def submit(self, output: SchedulerOutput, before: Future[Executed] | None) -> Future[Executed]:
        """Have a step computed.

        Args:
            output: its own. The placeholders in it are filled in.
            before: the step that samples the tokens for its placeholders.
        """
        executed: Future[Executed] = Future()
        executed.set_result(self._run(output, before))
        return executed

    def _run(self, output: SchedulerOutput, before: Future[Executed] | None) -> Executed:
        if before is not None:
            if before.exception() is not None:
                raise RuntimeError("The step before this one has failed.")  # its error is known
            _fill_in(output, before.result().result.sampled_token_ids)
        started = perf_counter()
        result = self.executor.execute_model(output)
        return Executed(result, started, perf_counter())


class StepThread(StepByStep):
    """Computes steps one after another, in the order in which they come, in a thread of its own.

    So a step may be submitted while another one runs: whatever it overwrites, such as the blocks of
    a request that has just ended, the step before it has read.

    A step cannot be cut through here: a part that never returns keeps the process from ending.
    """

    most_in_flight = 2

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="steps")
        self._num_threads = 0  # of PyTorch's; not set yet

    def submit(self, output: SchedulerOutput, before: Future[Executed] | None) -> Future[Executed]:
        """See `StepByStep`."""
        return self._thread.submit(self._run_with, torch.get_num_threads(), output, before)

    def _run_with(
        self, num_threads: int, output: SchedulerOutput, before: Future[Executed] | None
    ) -> Executed:
        if num_threads != self._num_threads:  # each thread of Python has its own
            torch.set_num_threads(num_threads)
            self._num_threads = num_threads
        return self._run(output, before)


def _fill_in(output: SchedulerOutput, sampled_token_ids: Mapping[str, list[int]]) -> None:
    """Put a step's tokens where the next one has placeholders for them."""
    for request in output.scheduled_requests:
        if request.all_token_ids[-1] == PLACEHOLDER:
            [request.all_token_ids[-1]] = sampled_token_ids[request.request_id]
