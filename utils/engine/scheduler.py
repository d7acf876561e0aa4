"""The scheduler: which requests run in the next step, and how many tokens of each.

Iteration-level scheduling: Yu et al. 2022, "Orca", section 3. Names as in vLLM's `v1/core/sched`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from utils.engine.config import EngineConfig
from utils.engine.kv_cache_manager import KVCacheManager
from utils.engine.kv_cache_utils import BlockCopies
from utils.engine.request import Request, RequestStatus


@dataclass(frozen=True)
class SchedulerOutput:
    """What the next step computes.

    Args:
        scheduled_requests: in the order of the flat batch.
        num_scheduled_tokens: by request id.
        block_ids: the block tables, by request id.
        block_copies: to be made before the forward pass.
        preempted_req_ids: requests that lost their blocks in this step.
    """

    scheduled_requests: list[Request]
    num_scheduled_tokens: dict[str, int]
    block_ids: dict[str, list[int]] = field(default_factory=dict)
    block_copies: BlockCopies = field(default_factory=BlockCopies)
    preempted_req_ids: list[str] = field(default_factory=list)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


class Scheduler:
    """First come, first served. A request joins whenever there is room, and leaves when done.

    There is no prefill phase and no decode phase. A request has tokens, and some of them are
    computed; a step lets `num_computed_tokens` catch up with `num_tokens`, as far as the step's
    token budget goes.

    Args:
        config: `max_num_seqs` and `max_num_batched_tokens` bound a step.
        kv_cache_manager: gives the blocks.
    """

    def __init__(self, config: EngineConfig, kv_cache_manager: KVCacheManager) -> None:
        self.config = config
        self.kv_cache_manager = kv_cache_manager
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add_request(self, request: Request) -> None:
        self.waiting.append(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> SchedulerOutput:
        """Choose the tokens of the next step, and give them their places in the KV cache."""
        scheduled: dict[str, int] = {}
        requests: list[Request] = []
        preempted: list[Request] = []
        budget = self.config.max_num_batched_tokens

        def take(request: Request, num_new_tokens: int) -> None:
            nonlocal budget
            scheduled[request.request_id] = num_new_tokens
            requests.append(request)
            budget -= num_new_tokens

        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            if not self._make_room(request, num_new_tokens, preempted):
                break  # it had to give way itself; so have all that came after it
            take(request, num_new_tokens)
            index += 1

        # Whoever was preempted goes first when there is room again, so nobody new is let in now.
        while self.waiting and budget > 0 and not preempted:
            request = self.waiting[0]
            if self._num_seqs() + 1 + len(request.forks) > self.config.max_num_seqs:
                break
            num_new_tokens = self._admit(request, budget)
            if num_new_tokens == 0:
                break
            self.running.append(self.waiting.popleft())
            request.status = RequestStatus.RUNNING
            take(request, num_new_tokens)

        return SchedulerOutput(
            requests,
            scheduled,
            {r.request_id: self.kv_cache_manager.get_block_ids(r.request_id) for r in requests},
            self.kv_cache_manager.take_block_copies(),
            [request.request_id for request in preempted],
        )

    def update_from_output(self, output: SchedulerOutput, sampled: Sequence[Request]) -> None:
        """Book what a step computed.

        Args:
            output: what was scheduled, and has been computed now.
            sampled: the requests that got a new token. Those that it finished are let go.
        """
        for request in output.scheduled_requests:
            request.num_computed_tokens += output.num_scheduled_tokens[request.request_id]
        for request in sampled:
            self.running += self._fork(request)
        for request in sampled:
            if request.is_finished:
                self.kv_cache_manager.free(request)
        self.running = [request for request in self.running if not request.is_finished]

    def abort_requests(self, requests: Sequence[Request]) -> None:
        """Drop requests, whatever their state. Those that are finished stay as they are."""
        for request in requests:
            if not request.is_finished:
                request.status = RequestStatus.FINISHED_ABORTED
                self.kv_cache_manager.free(request)
        self.running = [request for request in self.running if not request.is_finished]
        self.waiting = deque(request for request in self.waiting if not request.is_finished)

    def _num_seqs(self) -> int:
        """Requests that run, and those that will be forked from them."""
        return sum(1 + len(request.forks) for request in self.running)

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
        if manager.allocate_slots(request, num_new_tokens, computed_blocks) is None:
            return 0
        request.num_computed_tokens = num_computed
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_computed
        return num_new_tokens

    def _make_room(self, request: Request, num_new_tokens: int, preempted: list[Request]) -> bool:
        """Allocate, and preempt the latest arrivals until it works. False: it hit the request."""
        while self.kv_cache_manager.allocate_slots(request, num_new_tokens) is None:
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
        request.num_preemptions += 1
        self.waiting.appendleft(request)

    def _fork(self, request: Request) -> list[Request]:
        """The other answers to the request's prompt, once the prompt is computed."""
        forks, request.forks = request.forks, []
        for fork in forks:
            self.kv_cache_manager.fork(request, fork)
            fork.status = RequestStatus.RUNNING if not fork.is_finished else fork.status
            fork.num_cached_tokens = request.num_cached_tokens
        return forks
