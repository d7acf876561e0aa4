"""The scheduler: which requests run in the next step, and how many tokens of each.

Iteration-level scheduling: Yu et al. 2022, "Orca", section 3. Names as in vLLM's `v1/core/sched`.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence

from utils.engine.config.engine import EngineConfig
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import KVCacheBlock
from utils.engine.core.scheduler_output import SchedulerOutput
from utils.engine.draft import NO_DRAFT
from utils.engine.request import Request, RequestStatus


class Scheduler:
    """Iteration-level scheduling: a request joins whenever there is room, and leaves when done.

    There is no prefill phase and no decode phase. A request has tokens, and some of them are
    computed; a step lets `num_computed_tokens` catch up with `num_tokens`, as far as the step's
    token budget goes. Guessed tokens are computed on top, where there is room for them.

    Whoever came first is more important; under the policy "priority", whoever has the lower
    number. When blocks run out, the least important request has to give way.

    Args:
        config: `max_num_seqs` and `max_num_batched_tokens` bound a step.
        kv_cache_manager: gives the blocks.
    """

    def __init__(self, config: EngineConfig, kv_cache_manager: KVCacheManager) -> None:
        self.config = config
        self.kv_cache_manager = kv_cache_manager
        # Both are kept in order of importance.
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_lookahead_tokens = 0  # slots that a draft model needs beyond a request's tokens
        self._num_added = 0

    def add_request(self, request: Request) -> None:
        request.arrival_index, self._num_added = self._num_added, self._num_added + 1
        self._wait(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> SchedulerOutput:
        """Choose the tokens of the next step, and give them their places in the KV cache."""
        scheduled: dict[str, int] = {}
        requests: list[Request] = []
        preempted: list[Request] = []
        resumed: list[str] = []
        budget = self.config.max_num_batched_tokens

        index = 0
        while index < len(self.running):
            request = self.running[index]
            # A token is left for each request after it, so that everybody moves in every step.
            share = budget - (len(self.running) - index - 1)
            num_new_tokens = min(request.num_tokens_with_spec - request.num_computed_tokens, share)
            num_new_tokens = self._fit_draft(request, num_new_tokens)
            if not self._make_room(request, num_new_tokens, preempted):
                break  # it had to give way itself; so have all that are less important
            requests.append(request)
            scheduled[request.request_id] = num_new_tokens
            budget -= num_new_tokens
            index += 1

        # Requests that run, and those that will be forked from them.
        num_seqs = sum(1 + len(request.forks) for request in self.running)
        # Whoever was preempted goes first when there is room again, so nobody new is let in now.
        while self.waiting and budget > 0 and not preempted:
            request = self.waiting[0]
            num_seqs += 1 + len(request.forks)
            if num_seqs > self.config.max_num_seqs:
                break
            num_new_tokens = self._admit(request, budget)
            if num_new_tokens == 0:
                break
            self.running.append(self.waiting.popleft())
            if request.status == RequestStatus.PREEMPTED:
                resumed.append(request.request_id)
            request.status = RequestStatus.RUNNING
            request.metrics.record_scheduled()
            requests.append(request)
            scheduled[request.request_id] = num_new_tokens
            budget -= num_new_tokens
        self.running.sort(key=self._importance)

        return SchedulerOutput(
            requests,
            scheduled,
            {r.request_id: self.kv_cache_manager.get_block_ids(r.request_id) for r in requests},
            self.kv_cache_manager.take_block_copies(),
            [request.request_id for request in preempted],
            resumed,
        )

    def update_from_output(self, output: SchedulerOutput, sampled: Sequence[Request]) -> None:
        """Book what a step computed.

        Args:
            output: what was scheduled, and has been computed now.
            sampled: the requests that got new tokens. Those that are finished are let go.
        """
        for request in output.scheduled_requests:
            end = request.num_computed_tokens + output.num_scheduled_tokens[request.request_id]
            # The newest token is never computed yet. Of a draft, what was rejected is not a token
            # of the request: its keys and values will be written over.
            request.num_computed_tokens = min(end, request.num_tokens - 1)
            request.draft = NO_DRAFT
        for request in sampled:
            self.running += self._fork(request)
        for request in sampled:
            if request.is_finished:
                self.kv_cache_manager.free(request)
        self.running = [request for request in self.running if not request.is_finished]
        self.running.sort(key=self._importance)

    def abort_requests(self, requests: Sequence[Request]) -> None:
        """Drop requests, whatever their state. Those that are finished stay as they are."""
        for request in requests:
            if not request.is_finished:
                request.status = RequestStatus.FINISHED_ABORTED
                self.kv_cache_manager.free(request)
        self.running = [request for request in self.running if not request.is_finished]
        self.waiting = deque(request for request in self.waiting if not request.is_finished)

    def forget_requests(self, requests: Sequence[Request]) -> None:
        """Drop all requests, these and whatever the queues hold, without giving blocks back."""
        for request in requests:
            if not request.is_finished:
                request.status = RequestStatus.FINISHED_ABORTED
        self.waiting, self.running = deque(), []

    def _admit(self, request: Request, budget: int) -> int:
        """Give a waiting request its blocks: how many tokens it may compute, 0 for no room."""
        manager = self.kv_cache_manager
        if request.request_id in manager.swap_space:
            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            if not manager.swap_in(request, num_new_tokens):
                return 0
            manager.allocate_slots(request, num_new_tokens)
            return num_new_tokens
        computed_blocks, num_computed = manager.get_computed_blocks(request)
        num_new_tokens = min(request.num_tokens - num_computed, budget)
        if not self._allocate(request, num_new_tokens, computed_blocks):
            return 0
        request.num_computed_tokens = num_computed
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_computed
        return num_new_tokens

    def _allocate(
        self, request: Request, num_new_tokens: int, blocks: Sequence[KVCacheBlock] = ()
    ) -> bool:
        """Allocate slots, with those that a draft model would like to have, or at least these."""
        allocate, ahead = self.kv_cache_manager.allocate_slots, self.num_lookahead_tokens
        if ahead and allocate(request, num_new_tokens, blocks, ahead) is not None:
            return True
        return allocate(request, num_new_tokens, blocks) is not None

    def _fit_draft(self, request: Request, num_new_tokens: int) -> int:
        """Cut the request's draft to what there is room for: how many tokens it may compute.

        A draft is never worth preempting anybody for.
        """
        if not request.spec_token_ids:
            return num_new_tokens
        num_confirmed = request.num_tokens - request.num_computed_tokens
        num_draft = num_new_tokens - num_confirmed
        if num_draft > 0 and self.kv_cache_manager.allocate_slots(request, num_new_tokens) is None:
            num_draft = 0
        request.draft = request.draft.first(max(0, num_draft))
        return min(num_new_tokens, num_confirmed + num_draft)

    def _make_room(self, request: Request, num_new_tokens: int, preempted: list[Request]) -> bool:
        """Allocate, and preempt the least important until it works. False: it hit the request."""
        while not self._allocate(request, num_new_tokens):
            victim = self.running.pop()
            self._preempt(victim)
            preempted.append(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks. What they hold goes to host memory, if there is room for it;
        otherwise the request computes it again, prompt and answer so far."""
        if not self.kv_cache_manager.swap_out(request):
            self.kv_cache_manager.free(request)
            request.num_computed_tokens = 0
        request.status = RequestStatus.PREEMPTED
        request.metrics.num_preemptions += 1
        request.draft = NO_DRAFT
        self._wait(request)

    def _importance(self, request: Request) -> tuple[int, int]:
        """Sorts the most important request first."""
        by_priority = self.config.scheduling_policy == "priority"
        return (request.priority if by_priority else 0, request.arrival_index)

    def _wait(self, request: Request) -> None:
        """Queue a request where its importance puts it: a new one often last, of all."""
        if not self.waiting or self._importance(self.waiting[-1]) <= self._importance(request):
            self.waiting.append(request)
        else:
            bisect.insort(self.waiting, request, key=self._importance)

    def _fork(self, request: Request) -> list[Request]:
        """The other answers to the request's prompt, once the prompt is computed."""
        forks, request.forks = request.forks, []
        for fork in forks:
            self.kv_cache_manager.fork(request, fork)
            fork.status = RequestStatus.RUNNING if not fork.is_finished else fork.status
            fork.num_cached_tokens = request.num_cached_tokens
            fork.arrival_index = request.arrival_index
            fork.metrics.scheduled_ts = request.metrics.scheduled_ts
        return forks
