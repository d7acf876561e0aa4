"""A scheduler that doesn't wait: it schedules the next step while one still runs.

In vLLM: `v1/core/sched/async_scheduler.py`, on by default there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from utils.engine.config.engine import EngineConfig
from utils.engine.core.interfaces import KVCacheManagerInterface
from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.core.sched.scheduler import Scheduler
from utils.engine.request import Request, RequestStatus


class AsyncScheduler(Scheduler):
    """Schedules step n + 1 while step n runs, so nobody knows step n's tokens yet.

    How many tokens come is known: one for each request that is up to date. So each of them is
    counted as a placeholder, and its slot in the KV cache is allocated. Only the model needs the
    token itself, and by then step n is over.

    Whether a token ends its answer isn't known either. Then step n + 1 computes a token too many
    for that request, and the engine throws it away. Answers that end because of their length are
    foreseen.

    A request waits for its tokens, and sits out a step, while what comes next depends on them: with
    a grammar, with prompt tokens still to be scored, and before its forks are made.
    """

    def __init__(self, config: EngineConfig, kv_cache_manager: KVCacheManagerInterface) -> None:
        super().__init__(config, kv_cache_manager)
        # The requests of each step that is scheduled and not booked yet, the oldest step first.
        self._steps: deque[set[Request]] = deque()

    def schedule(self) -> SchedulerOutput:
        """See `Scheduler`. Unless the step is empty, it counts as computed from now on."""
        output = super().schedule()
        step = {r for r in self.running if r.request_id in output.num_scheduled_tokens}
        for request in step:
            scheduled = output.num_scheduled_tokens[request.request_id]
            self._update_after_schedule(request, scheduled)
        if step:
            self._steps.append(step)
        return output

    def _update_after_schedule(self, request: Request, num_scheduled_tokens: int) -> None:
        """Count as computed what a step will compute, and the token that comes of it."""
        request.num_computed_tokens += num_scheduled_tokens
        if request.num_computed_tokens == request.num_tokens + request.num_output_placeholders:
            request.num_output_placeholders += 1

    def _update_request_with_output(self, request: Request) -> None:
        """Its token has come, and is among its tokens."""
        request.num_output_placeholders -= 1

    def update_from_output(self, output: SchedulerOutput, sampled: Sequence[Request]) -> None:
        """Book the oldest step. See `Scheduler`."""
        for request in self._steps.popleft().intersection(sampled):
            self._update_request_with_output(request)
        for request in sampled:  # that lost its blocks while this step computed its token
            if not self.kv_cache_manager.get_blocks(request.request_id):
                self._let_forks_wait(request)
                if request.is_finished and request in self.waiting:
                    self.waiting.remove(request)
        super().update_from_output(SchedulerOutput([]), sampled)  # the rest is booked already
        for request in [r for r in sampled if r.status == RequestStatus.RUNNING]:
            # More tokens are known now, and with them perhaps the contents of a block.
            num_known = min(request.num_computed_tokens, request.num_tokens)
            self.kv_cache_manager.cache_blocks(request, num_known)

    def _let_forks_wait(self, request: Request) -> None:
        """Forks of a request without blocks compute its prompt themselves, when there is room."""
        for fork in [fork for fork in request.forks if not fork.is_finished]:
            fork.status = RequestStatus.PREEMPTED
            fork.num_preemptions = request.num_preemptions
            fork.num_cached_tokens = request.num_cached_tokens
            fork.arrival_index = request.arrival_index
            fork.scheduled_ts = request.scheduled_ts
            self.waiting.add_request(fork)
        request.forks = []

    def forget_requests(self, requests: Sequence[Request]) -> None:
        """See `Scheduler`."""
        super().forget_requests(requests)
        self._steps.clear()

    def _num_uncomputed(self, request: Request) -> int:
        """See `Scheduler`. None while it waits for its token."""
        needs_its_tokens = request.grammar or request.forks or request.skip_reading_prefix_cache
        if needs_its_tokens and any(request in step for step in self._steps):
            return 0
        return self._num_uncomputed_ahead(request)

    def _num_uncomputed_ahead(self, request: Request) -> int:
        """Tokens left to compute, placeholders too. None if those on their way are its last."""
        num_tokens = request.num_tokens + request.num_output_placeholders
        if num_tokens == request.max_num_tokens:
            return 0
        return num_tokens - request.num_computed_tokens
