"""Right answers to lab 06, as in its solution. Known mistakes are edits of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from utils.checks.lab_06.given import Costs, scheduler_output
from utils.engine.config.engine import EngineConfig
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.request import Request, RequestStatus


def batch_waste(prompt_lens: list[int], output_lens: list[int], batch_size: int) -> tuple[int, int]:
    padding = idle = 0
    for begin in range(0, len(prompt_lens), batch_size):
        prompts = prompt_lens[begin : begin + batch_size]
        outputs = output_lens[begin : begin + batch_size]
        padding += len(prompts) * max(prompts) - sum(prompts)
        idle += len(outputs) * max(outputs) - sum(outputs)
    return padding, idle


def choose_tokens(
    running: Sequence[Request],
    waiting: Sequence[Request],
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> dict[str, int]:
    num_scheduled_tokens = {}
    budget = max_num_batched_tokens
    for request in running:
        num_new_tokens = request.num_tokens - request.num_computed_tokens
        num_scheduled_tokens[request.request_id] = num_new_tokens
        budget -= num_new_tokens
    for request in waiting:
        num_new_tokens = request.num_tokens - request.num_computed_tokens
        if num_new_tokens > budget or len(num_scheduled_tokens) == max_num_seqs:
            break
        num_scheduled_tokens[request.request_id] = num_new_tokens
        budget -= num_new_tokens
    return num_scheduled_tokens


def next_chunk(request: Request, budget: int, num_running_after: int) -> tuple[int, bool]:
    num_lacking = request.num_tokens - request.num_computed_tokens
    num_new_tokens = min(num_lacking, budget - num_running_after)
    return num_new_tokens, num_new_tokens == num_lacking


def make_room(
    request: Request,
    num_new_tokens: int,
    running: list[Request],
    waiting: list[Request],
    kv_cache_manager: KVCacheManager,
) -> list[Request]:
    preempted: list[Request] = []
    while kv_cache_manager.allocate_slots(request, num_new_tokens) is None:
        victim = running.pop()
        kv_cache_manager.free(victim)
        victim.num_computed_tokens = 0
        victim.status = RequestStatus.PREEMPTED
        waiting.insert(0, victim)
        preempted.append(victim)
        if victim is request:
            break
    return preempted


def by_importance(requests: list[Request]) -> list[Request]:
    return sorted(requests, key=lambda request: (request.priority, request.arrival_time))


def recovery_seconds(num_tokens: int, costs: Costs) -> tuple[float, float]:
    num_pairs = num_tokens * (num_tokens + 1) / 2
    num_flops = 2 * costs.num_weights * num_tokens + costs.flops_per_pair * num_pairs
    num_blocks = -(-num_tokens // costs.block_size)
    seconds_per_block = costs.seconds_per_copy + costs.block_bytes / costs.bandwidth
    return num_flops / costs.flops, 2 * num_blocks * seconds_per_block


class SwapOrRecompute:
    def __init__(
        self, kv_cache_manager: KVCacheManager, recovery: Callable[[int], tuple[float, float]]
    ) -> None:
        self.kv_cache_manager = kv_cache_manager
        self.recovery = recovery

    def give_way(self, victim: Request) -> None:
        recompute, swap = self.recovery(victim.num_computed_tokens)
        if swap >= recompute or not self.kv_cache_manager.swap_out(victim):
            self.kv_cache_manager.free(victim)
            victim.num_computed_tokens = 0
        victim.status = RequestStatus.PREEMPTED

    def come_back(self, request: Request, num_new_tokens: int) -> bool:
        manager = self.kv_cache_manager
        if request.request_id in manager.swap_space and not manager.swap_in(
            request, num_new_tokens
        ):
            return False
        return manager.allocate_slots(request, num_new_tokens) is not None


class MyScheduler:
    def __init__(self, config: EngineConfig, kv_cache_manager: KVCacheManager) -> None:
        self.config = config
        self.kv_cache_manager = kv_cache_manager
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def add_request(self, request: Request) -> None:
        self.waiting.append(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> SchedulerOutput:
        self.running = by_importance(self.running)
        self.waiting = by_importance(self.waiting)
        num_scheduled_tokens: dict[str, int] = {}
        preempted: list[Request] = []
        budget = self.config.max_num_batched_tokens
        index = 0
        while index < len(self.running):  # it gets shorter when somebody is preempted
            request = self.running[index]
            num_running_after = len(self.running) - index - 1
            num_new_tokens, _ = next_chunk(request, budget, num_running_after)
            preempted += make_room(
                request, num_new_tokens, self.running, self.waiting, self.kv_cache_manager
            )
            if request in preempted:
                break
            num_scheduled_tokens[request.request_id] = num_new_tokens
            budget -= num_new_tokens
            index += 1
        while self.waiting and budget > 0 and not preempted:
            request = self.waiting[0]
            num_new_tokens, _ = next_chunk(request, budget, 0)
            if len(self.running) == self.config.max_num_seqs:
                break
            if self.kv_cache_manager.allocate_slots(request, num_new_tokens) is None:
                break
            self.running.append(self.waiting.pop(0))
            request.status = RequestStatus.RUNNING
            num_scheduled_tokens[request.request_id] = num_new_tokens
            budget -= num_new_tokens
        # Given: it adds the block tables, and brings everything into the engine's form.
        return scheduler_output(
            num_scheduled_tokens, self.running, preempted, self.kv_cache_manager
        )

    def update_from_output(self, output: SchedulerOutput, sampled: Sequence[Request]) -> None:
        for request in self.running:
            num_scheduled = output.num_scheduled_tokens.get(request.request_id, 0)
            request.num_computed_tokens += num_scheduled
        for request in sampled:
            if request.is_finished:
                self.running.remove(request)
                self.kv_cache_manager.free(request)

    def abort_requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if not request.is_finished:
                request.status = RequestStatus.FINISHED_ABORTED
                self.kv_cache_manager.free(request)
        self.running = [request for request in self.running if not request.is_finished]
        self.waiting = [request for request in self.waiting if not request.is_finished]
