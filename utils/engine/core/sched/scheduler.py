"""The scheduler: which requests run in the next step, and how many tokens of each.

Iteration-level scheduling: Yu et al. 2022, "Orca", section 3. Names as in vLLM's `v1/core/sched`.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from utils.engine.config.engine import EngineConfig
from utils.engine.core.interfaces import KVCacheManagerInterface
from utils.engine.core.kv_cache_utils import KVCacheBlock
from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.core.sched.request_queue import RequestQueue, get_policy
from utils.engine.kv_transfer.base import NO_CONNECTOR, KVConnectorBase
from utils.engine.request import Request, RequestStatus
from utils.engine.spec_decode.draft import NO_DRAFT


class Scheduler:
    """Iteration-level scheduling: a request joins whenever there is room, and leaves when done.

    There is no prefill phase and no decode phase. A step lets a request's `num_computed_tokens`
    catch up with its `num_tokens`, as far as the step's token budget goes. Guessed tokens are
    computed on top, where there is room for them.

    The policy says who is more important (see `core/sched/request_queue.py`). When blocks run out,
    the least important request has to give way.

    Args:
        config: `max_num_seqs` and `max_num_batched_tokens` bound a step.
        kv_cache_manager: gives the blocks.
    """

    # The engine sets these, where there is a connector, or a draft model.
    connector: KVConnectorBase = NO_CONNECTOR
    num_lookahead_tokens = 0  # slots that a draft model needs beyond a request's tokens

    def __init__(self, config: EngineConfig, kv_cache_manager: KVCacheManagerInterface) -> None:
        self.config = config
        self.kv_cache_manager = kv_cache_manager
        self.policy = get_policy(config.scheduling_policy)
        # Both are kept in order of importance.
        self.waiting = RequestQueue(self.policy)
        self.running: list[Request] = []
        self._num_added = 0

    def add_request(self, request: Request) -> None:
        request.arrival_index, self._num_added = self._num_added, self._num_added + 1
        self.waiting.add_request(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> SchedulerOutput:
        """Choose the tokens of the next step, and give them their places in the KV cache."""
        scheduled: dict[str, int] = {}
        requests: list[Request] = []
        preempted: list[Request] = []
        resumed: list[str] = []
        deferred: list[Request] = []  # whose keys and values are on their way to the connector
        index, budget = 0, self.config.max_num_batched_tokens

        while index < len(self.running):
            request = self.running[index]
            # A token is left for each request after it, so that all move in every step.
            share = budget - (len(self.running) - index - 1)
            num_new_tokens = min(self._num_uncomputed(request), share)
            if num_new_tokens:  # else it waits for a step that still runs (`AsyncScheduler`)
                num_new_tokens = self._fit_draft(request, num_new_tokens)
                if not self._make_room(request, num_new_tokens, preempted):
                    break  # it had to give way itself; so have all that are less important
                requests.append(request)
                scheduled[request.request_id] = num_new_tokens
                budget -= num_new_tokens
            index += 1

        # Requests that run, and those that will be forked from them.
        num_seqs = sum(1 + len(request.forks) for request in self.running)
        # Whoever was preempted goes first when there is room again: nobody new is let in now.
        while self.waiting and budget > 0 and not preempted:
            request = self.waiting[0]
            if num_seqs + 1 + len(request.forks) > self.config.max_num_seqs:
                break
            num_admitted = self._admit(request, budget)
            if num_admitted is None:
                deferred.append(self.waiting.popleft())  # it does not hold up those behind
                continue
            if num_admitted == 0:
                break
            self.running.append(self.waiting.popleft())
            num_seqs += 1 + len(request.forks)
            if request.status == RequestStatus.PREEMPTED:
                resumed.append(request.request_id)
            request.status = RequestStatus.RUNNING
            request.scheduled_ts = request.scheduled_ts or perf_counter()
            requests.append(request)
            scheduled[request.request_id] = num_admitted
            budget -= num_admitted
        self.waiting.extendleft(reversed(deferred))
        self.running.sort(key=self.policy)
        output = SchedulerOutput.of(
            requests,
            scheduled,
            self.kv_cache_manager,
            preempted_req_ids=[request.request_id for request in preempted],
            resumed_req_ids=resumed,
            deferred_req_ids=[request.request_id for request in deferred],
        )
        output.kv_connector_metadata = self.connector.build_connector_meta(output)
        return output

    def update_from_output(self, output: SchedulerOutput, sampled: Sequence[Request]) -> None:
        """Book what a step computed.

        Args:
            output: what was scheduled, and is computed now.
            sampled: who got new tokens. Those that are finished are let go.
        """
        scheduled = output.num_scheduled_tokens
        for request in [r for r in self.running if r.request_id in scheduled]:
            end = request.num_computed_tokens + scheduled[request.request_id]
            # The newest token is never computed yet. Of a draft, what was rejected is not a token
            # of the request: its keys and values will be written over.
            request.num_computed_tokens = min(end, request.num_tokens - 1)
            request.draft = NO_DRAFT
        for request in sampled:
            self.running += self._fork(request)
        for request in [request for request in sampled if request.is_finished]:
            self._free(request)
        self.running = [request for request in self.running if not request.is_finished]
        self.running.sort(key=self.policy)

    def handle_invalid_blocks(self, output: SchedulerOutput, invalid_block_ids: set[int]) -> None:
        """In the step just booked, blocks did not get their contents: compute them, and all that
        was built on them. In vLLM: `_handle_invalid_blocks`, with the policy "recompute"."""
        promised = {r.request_id: r.num_computed_tokens for r in output.scheduled_requests}
        for request in [request for request in self.running if request.request_id in promised]:
            num_valid = self.kv_cache_manager.evict_blocks(request.request_id, invalid_block_ids)
            if num_valid is not None:
                lost = promised[request.request_id] - num_valid
                self.connector.stats.recomputed_tokens += lost
                request.num_computed_tokens = num_valid
                request.num_cached_tokens = min(request.num_cached_tokens or 0, num_valid)

    def abort_requests(self, requests: Sequence[Request]) -> None:
        """Drop requests, whatever their state. Those that are finished stay as they are."""
        for request in [request for request in requests if not request.is_finished]:
            request.status = RequestStatus.FINISHED_ABORTED
            self._free(request)
        self.running = [request for request in self.running if not request.is_finished]
        for request in [request for request in self.waiting if request.is_finished]:
            self.waiting.remove(request)

    def forget_requests(self, requests: Sequence[Request]) -> None:
        """Drop all requests, these and whatever the queues hold, without giving blocks back."""
        for request in [request for request in requests if not request.is_finished]:
            request.status = RequestStatus.FINISHED_ABORTED
        self.waiting, self.running = RequestQueue(self.policy), []
        self.connector.forget_requests()

    def _num_uncomputed(self, request: Request) -> int:
        """How many tokens of a running request wait to be computed, its guesses among them."""
        return request.num_tokens_with_spec - request.num_computed_tokens

    def _admit(self, request: Request, budget: int) -> int | None:
        """How many tokens a waiting request may compute, which has its blocks then; 0: there is no
        room; None: the connector does not know yet what it will have."""
        manager = self.kv_cache_manager
        if manager.is_swapped_out(request):
            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            if not manager.swap_in(request, num_new_tokens):
                return 0
            manager.allocate_slots(request, num_new_tokens)
            return num_new_tokens
        computed_blocks, num_local = manager.get_computed_blocks(request)
        num_external = self.connector.num_external_tokens(request, num_local)
        if num_external is None:
            return None
        num_computed = num_local + num_external
        num_new_tokens = min(request.num_tokens - num_computed, budget)
        # To the manager, loaded tokens are new ones: both get fresh slots, filled in this step.
        if not self._allocate(request, num_external + num_new_tokens, computed_blocks):
            return 0
        request.num_computed_tokens = num_computed
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_computed
            self.connector.stats.record(request.num_tokens - num_local, num_external)
        table = manager.get_blocks(request.request_id)
        self.connector.update_state_after_alloc(request, table, num_external)
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
        """Cut the request's draft to what there is room for: how many tokens it may compute. A
        draft is never worth preempting anybody for."""
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
            preempted.append(self.running.pop())
            self._preempt(preempted[-1])
            if preempted[-1] is request:
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
        request.draft = NO_DRAFT
        self.waiting.add_request(request)

    def _free(self, request: Request) -> None:
        """Take back a finished request's blocks."""
        table = self.kv_cache_manager.get_blocks(request.request_id)
        self.connector.say_goodbye(request, [block.block_id for block in table])
        self.kv_cache_manager.free(request)

    def _fork(self, request: Request) -> list[Request]:
        """The other answers to the request's prompt, once the prompt is computed."""
        forks, request.forks = request.forks, []
        for fork in forks:
            self.kv_cache_manager.fork(request, fork)
            fork.status = RequestStatus.RUNNING if not fork.is_finished else fork.status
            fork.num_cached_tokens = request.num_cached_tokens
            fork.arrival_index = request.arrival_index
            fork.scheduled_ts = request.scheduled_ts
        return forks
