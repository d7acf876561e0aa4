"""Right answers to lab 06, written differently, and wrong ones that are no edits of the right."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import ClassVar

import numpy as np

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.kit.lab.edits import edited
from utils.checks.lab_06 import answers
from utils.checks.lab_06.given import scheduler_output
from utils.engine.core.sched.scheduler import Scheduler
from utils.engine.request import RequestStatus

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right


@right("batch_waste")
def with_arrays(prompt_lens, output_lens, batch_size):
    def spare(lens):
        batches = [np.array(lens[i : i + batch_size]) for i in range(0, len(lens), batch_size)]
        return sum(int((batch.max() - batch).sum()) for batch in batches)

    return np.array([spare(prompt_lens), spare(output_lens)])


def lacking(request):
    return request.num_tokens - request.num_computed_tokens


@right("choose_tokens")
def one_queue(running, waiting, max_num_seqs, max_num_batched_tokens):
    line = [*running, *waiting][:max_num_seqs]
    sums = itertools.accumulate(map(lacking, line))
    fitting = itertools.takewhile(
        lambda both: both[1] <= max_num_batched_tokens, zip(line, sums, strict=True)
    )
    return {request.request_id: lacking(request) for request, _ in fitting}


@right("next_chunk")
def by_cases(request, budget, num_running_after):
    if num_running_after:
        return by_cases(request, budget - num_running_after, 0)
    return [lacking(request), True] if lacking(request) <= budget else [budget, False]


@right("make_room")
def queue_filled_at_the_end(request, num_new_tokens, running, waiting, kv_cache_manager):
    victims = []
    while request not in victims:
        if kv_cache_manager.allocate_slots(request, num_new_tokens) is not None:
            break
        victims.append(running[-1])
        del running[-1]
        kv_cache_manager.free(victims[-1])
        victims[-1].num_computed_tokens = 0
        victims[-1].status = RequestStatus.PREEMPTED
    waiting[:0] = victims[::-1]
    return victims


@right("by_importance")
def heap(requests):
    tie = itertools.count()
    line = [(r.priority, r.arrival_time, next(tie), r) for r in requests]
    heapq.heapify(line)
    return [heapq.heappop(line)[-1] for _ in range(len(line))]


@right("recovery_seconds")
def in_float32(num_tokens, costs):
    one = np.float32
    pairs = one(num_tokens) * one(num_tokens + 1) / one(2)
    flops = one(2) * one(costs.num_weights) * one(num_tokens) + one(costs.flops_per_pair) * pairs
    copy = one(costs.seconds_per_copy) + one(costs.block_bytes) / one(costs.bandwidth)
    copies = one(2 * -(-num_tokens // costs.block_size))
    return np.array([flops / one(costs.flops), copies * copy])


@right("swap_or_recompute")
class AsksForgiveness:
    """Keeps a list of its own of what is out, and catches the error of `swap_in`."""

    def __init__(self, manager, recovery):
        self.manager, self.recovery, self.out = manager, recovery, []

    def give_way(self, victim):
        seconds = self.recovery(victim.num_computed_tokens)
        if min(seconds) != seconds[0] and self.manager.swap_out(victim):
            self.out.append(victim)
        else:
            victim.num_computed_tokens = 0
            self.manager.free(victim)
        victim.status = RequestStatus.PREEMPTED

    def come_back(self, request, num_new_tokens):
        try:
            fits = self.manager.swap_in(request, num_new_tokens)
        except ValueError:  # it is not in host memory
            fits = True
        return fits and self.manager.allocate_slots(request, num_new_tokens) is not None


@right("scheduler")
@right("engine")
class WithDeques:
    """Kept in order on arrival; the waiting ones are taken from the left."""

    def __init__(self, config, kv_cache_manager):
        self.limits = config.max_num_seqs, config.max_num_batched_tokens
        self.manager = kv_cache_manager
        self.waiting, self.running = deque(), deque()

    def add_request(self, request):
        line = sorted([*self.waiting, request], key=lambda r: (r.priority, r.arrival_time))
        self.waiting = deque(line)

    def has_unfinished_requests(self):
        return len(self.waiting) + len(self.running) > 0

    def schedule(self):
        max_num_seqs, budget = self.limits
        served, victims = {}, []
        line = deque(sorted(self.running, key=lambda r: (r.priority, r.arrival_time)))
        self.running = deque()
        while line:
            request = line.popleft()
            n = min(lacking(request), budget - len(line))
            while self.manager.allocate_slots(request, n) is None:
                victim = line.pop() if line else request
                self.manager.free(victim)
                victim.num_computed_tokens, victim.status = 0, RequestStatus.PREEMPTED
                victims.append(victim)
                if victim is request:
                    break
            else:
                served[request.request_id] = n
                self.running.append(request)
                budget -= n
        while not victims and self.waiting and budget and len(self.running) < max_num_seqs:
            request = self.waiting[0]
            n = min(lacking(request), budget)
            if self.manager.allocate_slots(request, n) is None:
                break
            request.status = RequestStatus.RUNNING
            self.running.append(self.waiting.popleft())
            served[request.request_id] = n
            budget -= n
        for victim in victims:
            self.add_request(victim)
        return scheduler_output(served, self.running, victims, self.manager)

    def update_from_output(self, output, sampled):
        for request in [r for r in self.running if r.request_id in output.num_scheduled_tokens]:
            request.num_computed_tokens += output.num_scheduled_tokens[request.request_id]
            if request.is_finished:
                self.running.remove(request)
                self.manager.free(request)

    def abort_requests(self, requests):
        for request in requests:
            for line in (self.running, self.waiting):
                if request in line:
                    line.remove(request)
                    request.status = RequestStatus.FINISHED_ABORTED
                    self.manager.free(request)


# It inherits from the engine's, and writes all three methods itself.
right("scheduler")(type("SubclassOfTheEngines", (Scheduler,), dict(vars(WithDeques))))


@wrong("scheduler", "engine's own scheduler does the work")
class LetsTheEngineDoIt(Scheduler):
    pass


@wrong("scheduler", "Two schedulers share something")
class OneLineForAll(answers.MyScheduler):
    waiting: ClassVar[list] = []
    running: ClassVar[list] = []

    def __init__(self, config, kv_cache_manager):
        self.config, self.kv_cache_manager = config, kv_cache_manager


@wrong("scheduler", "gets tokens in the same step")
class AdmitsItsVictims(WithDeques):
    def schedule(self):
        output = super().schedule()
        served = output.num_scheduled_tokens | dict.fromkeys(output.preempted_req_ids, 1)
        output.num_scheduled_tokens = served
        return output


def next_chunk(request, budget, num_running_after):  # a learner's, found by the class below
    count = min(request.num_tokens, budget - num_running_after)
    return count, count == lacking(request)


@wrong("scheduler", "Your scheduler calls `next_chunk`, which is not right yet (Exercise 3)")
class UsesAWrongPart(WithDeques):
    def schedule(self):
        for request in self.waiting:
            next_chunk(request, 10, 0)
        self.running.clear()
        return super().schedule()


for edit in (
    "== self.config.max_num_seqs => >= min(2, self.config.max_num_seqs)",
    "self.waiting = by_importance(self.waiting) => pass",
):
    wrong("engine", "Exercise 6 is not right yet")(edited(answers.MyScheduler, [edit]))


# Its check takes two arguments.


def with_scheduler(function, scheduler=answers.MyScheduler):
    function.arguments = function, scheduler
    return function


@right("my_priority")
@with_scheduler
def classes(num_prompt_tokens, arrival_time):
    return num_prompt_tokens > 500 and 1.5


@wrong("my_priority", "First come, first served takes 4.0 s")
@with_scheduler
def first_come_first_served(num_prompt_tokens, arrival_time):
    return arrival_time


@wrong("my_priority", "others overtake it again and again")
@with_scheduler
def shortest_first(num_prompt_tokens, arrival_time):
    return num_prompt_tokens


@wrong("my_priority", "Expected a number")
@with_scheduler
def no_return(num_prompt_tokens, arrival_time):
    pass


@wrong("my_priority", "does not come to an end")
@with_scheduler
def endless(num_prompt_tokens, arrival_time):
    while True:
        pass
