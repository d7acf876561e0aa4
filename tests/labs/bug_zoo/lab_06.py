"""Wrong and right answers to lab 06, each as a learner might write it."""

from __future__ import annotations

import bisect
import heapq
from collections import deque
from itertools import count

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_06.scheduler_stories import scheduler_output
from utils.engine.core.scheduler import Scheduler
from utils.engine.request import RequestStatus

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right

# 1 batch_waste


def batches(values, size):
    return [values[i : i + size] for i in range(0, len(values), size)]


def spare(values):
    return len(values) * max(values) - sum(values)


@right("batch_waste")
def place_by_place(prompt_lens, output_lens, batch_size):
    waste = [0, 0]
    for which, lens in enumerate((prompt_lens, output_lens)):
        for number, length in enumerate(lens):
            begin = number // batch_size * batch_size
            waste[which] += max(lens[begin : begin + batch_size]) - length
    return waste


@right("batch_waste")
def with_sums(prompt_lens, output_lens, batch_size):
    return tuple(sum(map(spare, batches(x, batch_size))) for x in (prompt_lens, output_lens))


@wrong("batch_waste", "longest of *all*")
def one_maximum(prompt_lens, output_lens, batch_size):
    return spare(prompt_lens), spare(output_lens)


@wrong("batch_waste", "swapped")
def idle_first(prompt_lens, output_lens, batch_size):
    return with_sums(output_lens, prompt_lens, batch_size)


@wrong("batch_waste", "last batch is forgotten")
def whole_batches_only(prompt_lens, output_lens, batch_size):
    end = len(prompt_lens) // batch_size * batch_size
    return with_sums(prompt_lens[:end], output_lens[:end], batch_size)


@wrong("batch_waste", "has fewer requests")
def full_last_batch(prompt_lens, output_lens, batch_size):
    def waste(lens):
        return sum(batch_size * max(b) - sum(b) for b in batches(lens, batch_size))

    return waste(prompt_lens), waste(output_lens)


@wrong("batch_waste", "longest prompt plus answer")
def ends_together(prompt_lens, output_lens, batch_size):
    both = [p + o for p, o in zip(prompt_lens, output_lens, strict=True)]
    return with_sums(prompt_lens, both, batch_size)


@wrong("batch_waste", "useful ones included")
def all_places(prompt_lens, output_lens, batch_size):
    def places(lens):
        return sum(len(b) * max(b) for b in batches(lens, batch_size))

    return places(prompt_lens), places(output_lens)


@wrong("batch_waste", "shortest")
def minimum(prompt_lens, output_lens, batch_size):
    def waste(lens):
        return sum(sum(b) - len(b) * min(b) for b in batches(lens, batch_size))

    return waste(prompt_lens), waste(output_lens)


@wrong("batch_waste", "padding is right")
def idle_of_the_first_batch(prompt_lens, output_lens, batch_size):
    padding, _ = with_sums(prompt_lens, output_lens, batch_size)
    return padding, spare(output_lens[:batch_size])


@wrong("batch_waste", "expected a pair")
def one_number(prompt_lens, output_lens, batch_size):
    return sum(with_sums(prompt_lens, output_lens, batch_size))


# 2 choose_tokens


def lacking(request):
    return request.num_tokens - request.num_computed_tokens


@right("choose_tokens")
def one_queue(running, waiting, max_num_seqs, max_num_batched_tokens):
    chosen = {}
    for place, request in enumerate([*running, *waiting][:max_num_seqs]):
        after = {**chosen, request.request_id: lacking(request)}
        if place >= len(running) and sum(after.values()) > max_num_batched_tokens:
            return chosen
        chosen = after
    return chosen


@right("choose_tokens")
def with_a_flag(running, waiting, max_num_seqs, max_num_batched_tokens):
    chosen = {r.request_id: lacking(r) for r in running}
    left = max_num_batched_tokens - sum(chosen.values())
    full = False
    for r in waiting:
        full = full or len(chosen) >= max_num_seqs or lacking(r) > left
        if not full:
            chosen[r.request_id] = lacking(r)
            left -= lacking(r)
    return chosen


def choose(running, waiting, max_num_seqs, budget, *, spend=1, counted=0, skip=False,
           amount=lacking, first="running", order=lambda line: line,
           fits=lambda n, budget: n <= budget):  # fmt: skip
    """The engine of the wrong answers below: each changes one thing."""
    chosen = {}

    def serve_running():
        nonlocal budget
        for request in running:
            if first == "waiting" and lacking(request) > budget:
                return
            chosen[request.request_id] = amount(request)
            budget -= spend * amount(request)

    if first == "running":
        serve_running()
    num_seqs = len(running) - counted
    for request in order(waiting):
        if num_seqs >= max_num_seqs or not fits(lacking(request), budget):
            if skip:
                continue
            break
        chosen[request.request_id] = amount(request)
        budget -= amount(request)
        num_seqs += 1
    if first == "waiting":
        serve_running()
    return chosen


@wrong("choose_tokens", "the budget is 8")
def running_ones_are_free(*state):
    return choose(*state, spend=0)


@wrong("choose_tokens", "the budget is")
def budget_ignored(running, waiting, max_num_seqs, max_num_batched_tokens):
    return choose(running, waiting, max_num_seqs, 10**6)


@wrong("choose_tokens", "max_num_seqs is")
def max_num_seqs_ignored(running, waiting, max_num_seqs, max_num_batched_tokens):
    return choose(running, waiting, 10**6, max_num_batched_tokens)


@wrong("choose_tokens", "max_num_seqs is")
def only_newcomers_are_counted(running, *rest):
    return choose(running, *rest, counted=len(running))


@wrong("choose_tokens", "is served before")
def newcomers_first(running, waiting, max_num_seqs, budget):
    return choose(running, waiting, max_num_seqs, budget, first="waiting")


@wrong("choose_tokens", "overtakes")
def skips_ahead(*state):
    return choose(*state, skip=True)


@wrong("choose_tokens", "overtakes")
def shortest_first(*state):
    return choose(*state, order=lambda line: sorted(line, key=lacking))


@wrong("choose_tokens", "overtakes")
def last_come_first_served(*state):
    return choose(*state, order=lambda line: line[::-1])


@wrong("choose_tokens", "counted with its whole prompt")
def decode_as_whole_prompt(*state):
    return choose(*state, amount=lambda request: request.num_tokens)


@wrong("choose_tokens", "is running, but gets no token")
def prompts_only(running, waiting, max_num_seqs, max_num_batched_tokens):
    rest = max_num_seqs - len(running), max_num_batched_tokens - len(running)
    return choose([], waiting, *rest)


@wrong("choose_tokens", "is left out")
def decodes_only(running, waiting, max_num_seqs, max_num_batched_tokens):
    return choose(running, [], max_num_seqs, max_num_batched_tokens)


@wrong("choose_tokens", "is left out")
def exactly_full_is_too_full(*state):
    return choose(*state, fits=lambda n, budget: n < budget)


@wrong("choose_tokens", "is left out")
def one_at_a_time(running, waiting, *limits):
    return choose(running, waiting[:1], *limits)


@wrong("choose_tokens", "parts come in exercise 3")
def cuts_prompts_already(running, waiting, max_num_seqs, budget):
    chosen = choose(running, waiting, max_num_seqs, budget)
    left = budget - sum(chosen.values())
    for request in waiting:
        if left > 0 and request.request_id not in chosen and len(chosen) < max_num_seqs:
            chosen[request.request_id] = min(left, lacking(request))
            left -= chosen[request.request_id]
    return chosen


@wrong("choose_tokens", "changes the lists")
def pops_from_the_line(running, waiting, max_num_seqs, budget):
    chosen = {request.request_id: lacking(request) for request in running}
    budget -= sum(chosen.values())
    while waiting and len(chosen) < max_num_seqs and lacking(waiting[0]) <= budget:
        request = waiting.pop(0)
        chosen[request.request_id] = lacking(request)
        budget -= lacking(request)
    return chosen


@wrong("choose_tokens", "expected a dict")
def a_list_of_names(*state):
    return list(choose(*state))


@wrong("choose_tokens", "with 0 tokens")
def zeros_for_the_others(running, waiting, *limits):
    chosen = choose(running, waiting, *limits)
    return {r.request_id: chosen.get(r.request_id, 0) for r in (*running, *waiting)}


# 3 next_chunk


@right("next_chunk")
def by_cases(request, budget, num_running_after):
    room = budget - num_running_after
    if lacking(request) <= room:
        return lacking(request), True
    return room, False


@right("next_chunk")
def as_a_list(request, budget, num_running_after):
    end = min(request.num_tokens, request.num_computed_tokens + budget - num_running_after)
    return [end - request.num_computed_tokens, end >= request.num_tokens]


@wrong("next_chunk", "sampled after every chunk")
def samples_always(request, budget, num_running_after):
    return as_a_list(request, budget, num_running_after)[0], True


@wrong("next_chunk", "as soon as the *prompt* is computed")
def samples_after_the_prompt(request, budget, num_running_after):
    n, _ = as_a_list(request, budget, num_running_after)
    return n, request.num_computed_tokens + n >= request.num_prompt_tokens


@wrong("next_chunk", "a step too late")
def samples_a_step_late(request, budget, num_running_after):
    n, _ = as_a_list(request, budget, num_running_after)
    return n, request.num_computed_tokens >= request.num_prompt_tokens


@wrong("next_chunk", "no new one is sampled")
def never_samples(request, budget, num_running_after):
    return as_a_list(request, budget, num_running_after)[0], False


@wrong("next_chunk", "leaves nothing for the running requests that come after")
def takes_all(request, budget, num_running_after):
    return as_a_list(request, budget, 0)


@wrong("next_chunk", "prompt is not cut")
def whole_prompt(request, budget, num_running_after):
    return lacking(request), True


@wrong("next_chunk", "counted again")
def whole_text(request, budget, num_running_after):
    n = min(request.num_tokens, budget - num_running_after)
    return n, n == lacking(request)


@wrong("next_chunk", "Only the prompt is looked at")
def forgets_the_answer(request, budget, num_running_after):
    room = budget - num_running_after
    n = request.num_prompt_tokens - request.num_computed_tokens
    n = min(n if n > 0 else 1, room)
    return n, n == lacking(request)


@wrong("next_chunk", "belongs to the budget")
def others_taken_from_the_request(request, budget, num_running_after):
    n = min(lacking(request) - num_running_after, budget)
    return n, n == lacking(request)


@wrong("next_chunk", "stays unused")
def one_too_few(request, budget, num_running_after):
    n = min(lacking(request), budget - num_running_after - 1)
    return n, n == lacking(request)


@wrong("next_chunk", "expected a pair")
def no_flag(request, budget, num_running_after):
    return as_a_list(request, budget, num_running_after)[0]


# 4 make_room


def preempt(victim, waiting, manager):
    manager.free(victim)
    victim.num_computed_tokens = 0
    victim.status = RequestStatus.PREEMPTED
    waiting.insert(0, victim)


@right("make_room")
def with_a_return_in_the_loop(request, num_new_tokens, running, waiting, kv_cache_manager):
    victims = []
    while True:
        if kv_cache_manager.allocate_slots(request, num_new_tokens) is not None:
            return victims
        victims.append(running.pop(-1))
        preempt(victims[-1], waiting, kv_cache_manager)
        if victims[-1] is request:
            return victims


@right("make_room")
def from_the_end(request, num_new_tokens, running, waiting, kv_cache_manager):
    victims = []
    for victim in list(reversed(running)):
        if kv_cache_manager.allocate_slots(request, num_new_tokens) is not None:
            break
        running.remove(victim)
        preempt(victim, waiting, kv_cache_manager)
        victims.append(victim)
        if victim is request:
            break
    return victims


@right("make_room")
def queue_filled_at_the_end(request, num_new_tokens, running, waiting, kv_cache_manager):
    victims = []
    while request not in victims:
        if kv_cache_manager.allocate_slots(request, num_new_tokens) is not None:
            break
        victims.append(running.pop())
        kv_cache_manager.free(victims[-1])
        victims[-1].num_computed_tokens = 0
        victims[-1].status = RequestStatus.PREEMPTED
    waiting[:0] = victims[::-1]
    return victims


def room(request, n, running, waiting, manager, *, choose=lambda running, request: running[-1],
         change=preempt, stop=True):  # fmt: skip
    """The engine of the wrong answers below: each changes one thing."""
    victims = []
    while manager.allocate_slots(request, n) is None:
        victim = choose(running, request)
        running.remove(victim)
        change(victim, waiting, manager)
        victims.append(victim)
        if stop and victim is request:
            break
    return victims


@wrong("make_room", "keeps num_computed_tokens")
def keeps_the_count(*state):
    def change(victim, waiting, manager):
        computed = victim.num_computed_tokens
        preempt(victim, waiting, manager)
        victim.num_computed_tokens = computed

    return room(*state, change=change)


@wrong("make_room", "keeps num_computed_tokens = ")
def keeps_the_prompt(*state):
    """As if the prompt were still cached."""

    def change(victim, waiting, manager):
        computed = min(victim.num_computed_tokens, len(victim.prompt_token_ids))
        preempt(victim, waiting, manager)
        victim.num_computed_tokens = computed

    return room(*state, change=change)


@wrong("make_room", "is no longer in `running`, but keeps its blocks")
def keeps_the_blocks(*state):
    def change(victim, waiting, manager):
        victim.num_computed_tokens = 0
        victim.status = RequestStatus.PREEMPTED
        waiting.insert(0, victim)

    return room(*state, change=change)


@wrong("make_room", "keeps its blocks")
def frees_all_but_itself(request, *rest):
    def change(victim, waiting, manager):
        if victim is not request:
            preempt(victim, waiting, manager)
        else:
            victim.num_computed_tokens, victim.status = 0, RequestStatus.PREEMPTED
            waiting.insert(0, victim)

    return room(request, *rest, change=change)


@wrong("make_room", "most important one")
def the_oldest(*state):
    return room(*state, choose=lambda running, request: running[0])


@wrong("make_room", "gives way itself, though")
def always_itself(*state):
    return room(*state, choose=lambda running, request: request)


@wrong("make_room", "has to give way itself")
def never_itself(request, n, running, waiting, manager):
    victims = []
    while manager.allocate_slots(request, n) is None:
        others = [other for other in running if other is not request]
        if not others:
            break
        running.remove(others[-1])
        preempt(others[-1], waiting, manager)
        victims.append(others[-1])
    return victims


@wrong("make_room", "back of the line")
def to_the_back(*state):
    def change(victim, waiting, manager):
        preempt(victim, waiting, manager)
        waiting.append(waiting.pop(0))

    return room(*state, change=change)


@wrong("make_room", "wrong order in `waiting`")
def victims_reversed(request, n, running, waiting, manager):
    line = list(waiting)
    victims = room(request, n, running, waiting, manager)
    waiting[:] = victims + line
    return victims


@wrong("make_room", "neither runs nor waits")
def lost(*state):
    def change(victim, waiting, manager):
        preempt(victim, waiting, manager)
        waiting.remove(victim)

    return room(*state, change=change)


@wrong("make_room", "expected PREEMPTED")
def status_stays(*state):
    def change(victim, waiting, manager):
        preempt(victim, waiting, manager)
        victim.status = RequestStatus.RUNNING

    return room(*state, change=change)


@wrong("make_room", "lost tokens of its text")
def starts_over(*state):
    def change(victim, waiting, manager):
        preempt(victim, waiting, manager)
        victim.output_token_ids.clear()
        victim.all_token_ids = list(victim.prompt_token_ids)

    return room(*state, change=change)


@wrong("make_room", "nobody gives way")
def shrugs(request, n, running, waiting, manager):
    manager.allocate_slots(request, n)
    return []


@wrong("make_room", "block; expected 2")
def one_victim_only(request, n, running, waiting, manager):
    if manager.allocate_slots(request, n) is not None:
        return []
    victim = running.pop()
    preempt(victim, waiting, manager)
    return [victim]


@wrong("make_room", "though there is room")
def preempts_without_asking(request, n, running, waiting, manager):
    victim = running.pop()
    preempt(victim, waiting, manager)
    return [victim, *room(request, n, running, waiting, manager)]


@wrong("make_room", "got blocks all the same")
def allocates_after_giving_way(request, n, running, waiting, manager):
    victims = room(request, n, running, waiting, manager)
    if request in victims:
        manager.allocate_slots(request, 1)
    return victims


@wrong("make_room", "again and again")
def nobody_leaves(request, n, running, waiting, manager):
    victims = []
    while manager.allocate_slots(request, n) is None:
        victims.append(running[-1])
    return victims


@wrong("make_room", "still in `running`")
def stays_in_running(request, n, running, waiting, manager):
    victims = []
    for victim in reversed(running):
        if manager.allocate_slots(request, n) is not None:
            break
        preempt(victim, waiting, manager)
        victims.append(victim)
        if victim is request:
            break
    return victims


@wrong("make_room", "returned in the wrong order")
def last_victim_first(*state):
    return room(*state)[::-1]


@wrong("make_room", "twice")
def queued_twice(*state):
    def change(victim, waiting, manager):
        preempt(victim, waiting, manager)
        waiting.append(victim)

    return room(*state, change=change)


@wrong("make_room", "expected a list")
def true_or_false(request, *rest):
    return request not in room(request, *rest)


# 5 by_importance


def arrival(request):
    return request.metrics.arrival_time


@right("by_importance")
def two_sorts(requests):
    return sorted(sorted(requests, key=arrival), key=lambda r: r.priority)


@right("by_importance")
def heap(requests):
    tie = count()
    line = [(r.priority, arrival(r), next(tie), r) for r in requests]
    heapq.heapify(line)
    return [heapq.heappop(line)[-1] for _ in range(len(line))]


@right("by_importance")
def insertion(requests):
    line = []
    for request in requests:
        bisect.insort(line, request, key=lambda r: (r.priority, arrival(r)))
    return line


@wrong("by_importance", "Upside down: the *lower*")
def higher_first(requests):
    return sorted(requests, key=lambda r: (-r.priority, arrival(r)))


@wrong("by_importance", "Ties are broken wrongly")
def newest_first(requests):
    return sorted(requests, key=lambda r: (r.priority, -arrival(r)))


@wrong("by_importance", "Ties are broken wrongly")
def whatever_order_they_come_in(requests):
    return sorted(requests, key=lambda r: r.priority)


@wrong("by_importance", "Ties are broken wrongly")
def ties_by_name(requests):
    return sorted(requests, key=lambda r: (r.priority, r.request_id))


@wrong("by_importance", "Upside down: you begin with the least important")
def all_reversed(requests):
    return sorted(requests, key=lambda r: (r.priority, arrival(r)), reverse=True)


@wrong("by_importance", "priority is not what counts first")
def arrival_only(requests):
    return sorted(requests, key=arrival)


@wrong("by_importance", "priority is not what counts first")
def arrival_first(requests):
    return sorted(requests, key=lambda r: (arrival(r), r.priority))


@wrong("by_importance", "sorts the list that it is given")
def in_place(requests):
    requests.sort(key=lambda r: (r.priority, arrival(r)))
    return requests


@wrong("by_importance", "expected a list")
def sort_returns_none(requests):
    return list(requests).sort(key=lambda r: (r.priority, arrival(r)))


@wrong("by_importance", "missing, or come twice")
def one_per_rank(requests):
    return [r for _, r in sorted({r.priority: r for r in requests}.items())]


# 6 recovery_seconds


def triangle(n):
    return n * (n + 1) // 2


def blocks(n, costs):
    return -(-n // costs.block_size)


def again(n, costs):
    return (2 * n * costs.num_weights + triangle(n) * costs.flops_per_pair) / costs.flops


def copies(n, costs):
    return 2 * blocks(n, costs) * (costs.seconds_per_copy + costs.block_bytes / costs.bandwidth)


@right("recovery_seconds")
def with_a_sum(num_tokens, costs):
    flops = sum(2 * costs.num_weights + n * costs.flops_per_pair for n in range(1, num_tokens + 1))
    return [flops / costs.flops, copies(num_tokens, costs)]


@right("recovery_seconds")
def half_the_square(num_tokens, costs):
    """Right up to the diagonal, which does not count for long texts."""
    flops = 2 * costs.num_weights * num_tokens + num_tokens**2 / 2 * costs.flops_per_pair
    moved = 2 * blocks(num_tokens, costs) * costs.block_bytes
    started = 2 * blocks(num_tokens, costs) * costs.seconds_per_copy
    return flops / costs.flops, moved / costs.bandwidth + started


@wrong("recovery_seconds", "*two* FLOPs")
def one_flop_per_weight(n, costs):
    flops = n * costs.num_weights + triangle(n) * costs.flops_per_pair
    return flops / costs.flops, copies(n, costs)


@wrong("recovery_seconds", "Attention is missing")
def no_attention(n, costs):
    return 2 * n * costs.num_weights / costs.flops, copies(n, costs)


@wrong("recovery_seconds", "Attention is causal")
def full_square(n, costs):
    flops = 2 * n * costs.num_weights + n * n * costs.flops_per_pair
    return flops / costs.flops, copies(n, costs)


@wrong("recovery_seconds", "one pair per token")
def linear_attention(n, costs):
    flops = 2 * n * costs.num_weights + n * costs.flops_per_pair
    return flops / costs.flops, copies(n, costs)


@wrong("recovery_seconds", "Only the last token is computed")
def one_decode_step(n, costs):
    flops = 2 * costs.num_weights + n * costs.flops_per_pair
    return flops / costs.flops, copies(n, costs)


@wrong("recovery_seconds", "travels twice")
def one_way(n, costs):
    return again(n, costs), copies(n, costs) / 2


@wrong("recovery_seconds", "has to be started")
def bandwidth_only(n, costs):
    return again(n, costs), 2 * blocks(n, costs) * costs.block_bytes / costs.bandwidth


@wrong("recovery_seconds", "not once")
def started_once(n, costs):
    moved = blocks(n, costs) * costs.block_bytes / costs.bandwidth
    return again(n, costs), 2 * (costs.seconds_per_copy + moved)


@wrong("recovery_seconds", "moved as a whole")
def part_of_a_block(n, costs):
    per_copy = costs.seconds_per_copy + costs.block_bytes / costs.bandwidth
    return again(n, costs), 2 * n / costs.block_size * per_copy


@wrong("recovery_seconds", "last block is forgotten")
def rounded_down(n, costs):
    per_copy = costs.seconds_per_copy + costs.block_bytes / costs.bandwidth
    return again(n, costs), 2 * (n // costs.block_size) * per_copy


@wrong("recovery_seconds", "as if it were a whole block")
def tokens_as_blocks(n, costs):
    per_copy = costs.seconds_per_copy + costs.block_bytes / costs.bandwidth
    return again(n, costs), 2 * n * per_copy


@wrong("recovery_seconds", "two numbers are swapped")
def other_way_round(n, costs):
    return copies(n, costs), again(n, costs)


@wrong("recovery_seconds", "seconds to recompute are wrong")
def flops_times_time(n, costs):
    return 2 * n * costs.num_weights * costs.flops, copies(n, costs)


@wrong("recovery_seconds", "expected two numbers")
def only_the_winner(n, costs):
    return "swap" if again(n, costs) > copies(n, costs) else "recompute"


# 7 MyScheduler


class Base:
    """A right answer in small parts. Each wrong one changes one of them."""

    def __init__(self, config, kv_cache_manager):
        self.config, self.kv_cache_manager = config, kv_cache_manager
        self.waiting, self.running = [], []

    def add_request(self, request):
        self.waiting.append(request)

    def has_unfinished_requests(self):
        return bool(self.waiting or self.running)

    def order(self, requests):
        return sorted(requests, key=lambda r: (r.priority, arrival(r)))

    def chunk(self, request, budget, after):
        return min(lacking(request), budget - after)

    def make_room(self, request, n):
        return room(request, n, self.running, self.waiting, self.kv_cache_manager)

    def may_join(self, preempted):
        return not preempted

    def is_full(self):
        return len(self.running) == self.config.max_num_seqs

    def schedule(self):
        self.running, self.waiting = self.order(self.running), self.order(self.waiting)
        self.budget = self.config.max_num_batched_tokens
        self.scheduled, self.preempted = {}, []
        self.serve_running()
        self.serve_waiting()
        return self.output()

    def output(self):
        return scheduler_output(self.scheduled, self.running, self.preempted, self.kv_cache_manager)

    def take(self, request, n):
        self.scheduled[request.request_id] = n
        self.budget -= n

    def serve_running(self):
        index = 0
        while index < len(self.running):
            request = self.running[index]
            n = self.chunk(request, self.budget, len(self.running) - index - 1)
            self.preempted += self.make_room(request, n)
            if request in self.preempted:
                break
            self.take(request, n)
            index += 1

    def serve_waiting(self):
        while self.waiting and self.budget > 0 and self.may_join(self.preempted):
            request = self.waiting[0]
            n = self.chunk(request, self.budget, 0)
            if self.is_full() or self.kv_cache_manager.allocate_slots(request, n) is None:
                break
            self.join(self.waiting.pop(0))
            self.take(request, n)

    def join(self, request):
        self.running.append(request)
        request.status = RequestStatus.RUNNING

    def update_from_output(self, output, sampled):
        for request in output.scheduled_requests:
            request.num_computed_tokens += output.num_scheduled_tokens[request.request_id]
        for request in sampled:
            if request.is_finished:
                self.kv_cache_manager.free(request)
        self.running = [request for request in self.running if not request.is_finished]

    def abort_requests(self, requests):
        for request in requests:
            if not request.is_finished:
                request.status = RequestStatus.FINISHED_ABORTED
                self.kv_cache_manager.free(request)
        self.running = [request for request in self.running if not request.is_finished]
        self.waiting = [request for request in self.waiting if not request.is_finished]


@right("scheduler")
class InSmallParts(Base):
    pass


@right("scheduler")
@right("engine")
class WithDeques:
    """Kept in order on arrival; whoever waits is taken from the left."""

    def __init__(self, config, kv_cache_manager):
        self.limits = config.max_num_seqs, config.max_num_batched_tokens
        self.manager = kv_cache_manager
        self.waiting, self.running = deque(), deque()

    def add_request(self, request):
        line = sorted([*self.waiting, request], key=lambda r: (r.priority, arrival(r)))
        self.waiting = deque(line)

    def has_unfinished_requests(self):
        return len(self.waiting) + len(self.running) > 0

    def schedule(self):
        max_num_seqs, budget = self.limits
        served, victims = {}, []
        line = deque(sorted(self.running, key=lambda r: (r.priority, arrival(r))))
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
        for request in output.scheduled_requests:
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


@right("scheduler")
class SubclassOfTheEngines(Scheduler):
    """It inherits from the engine's, and writes all three methods itself."""

    add_request = Base.add_request
    order, chunk, make_room, may_join = Base.order, Base.chunk, Base.make_room, Base.may_join
    is_full, output, take, join = Base.is_full, Base.output, Base.take, Base.join
    serve_running, serve_waiting = Base.serve_running, Base.serve_waiting
    schedule, update_from_output = Base.schedule, Base.update_from_output
    abort_requests = Base.abort_requests


@wrong("scheduler", "engine's own scheduler does the work")
class LetsTheEngineDoIt(Scheduler):
    pass


@wrong("scheduler", "the budget is 8")
class BudgetNeverLowered(Base):
    def take(self, request, n):
        self.scheduled[request.request_id] = n


@wrong("scheduler", "the budget is")
class WholePrompts(Base):
    def chunk(self, request, budget, after):
        return lacking(request)


@wrong("scheduler", "max_num_seqs is 2")
class MaxNumSeqsIgnored(Base):
    def is_full(self):
        return False


@wrong("scheduler", "max_num_seqs is 2")
class OneTooMany(Base):
    def is_full(self):
        return len(self.running) > self.config.max_num_seqs


@wrong("scheduler", "is served before")
class NewcomersFirst(Base):
    def serve_running(self):
        pass

    def serve_waiting(self):
        old = list(self.running)
        super().serve_waiting()
        for request in old:
            if n := min(lacking(request), self.budget):
                self.preempted += self.make_room(request, n)
                self.take(request, n)


@wrong("scheduler", "would stand still")
class NothingLeftForOthers(Base):
    def chunk(self, request, budget, after):
        return min(lacking(request), budget)

    def serve_running(self):
        for request in list(self.running):
            n = min(lacking(request), self.budget)
            if n and request in self.running:
                self.preempted += self.make_room(request, n)
                if request in self.running:
                    self.take(request, n)


@wrong("scheduler", "lacks 1 of its 4 tokens")
class DecodeAsWholePrompt(Base):
    def chunk(self, request, budget, after):
        return min(request.num_tokens, budget - after)


@wrong("scheduler", "is let in, in a step in which B lost its blocks")
class AdmitsDuringPreemption(Base):
    def may_join(self, preempted):
        return True

    def serve_waiting(self):
        self.waiting.sort(key=lambda r: r in self.preempted)  # not the victim itself, at least
        super().serve_waiting()


@wrong("scheduler", "in the same step")
class VictimComesBackAtOnce(Base):
    def may_join(self, preempted):
        return True


@wrong("scheduler", "but B is less important")
class VictimIsTheOldest(Base):
    def make_room(self, request, n):
        return the_oldest(request, n, self.running, self.waiting, self.kv_cache_manager)


@wrong("scheduler", "so that B can join")
class WaitingOnesPreempt(Base):
    """Whoever waits drives out who runs, until it has room."""

    def serve_waiting(self):
        while self.waiting and self.budget > 0 and not self.preempted and not self.is_full():
            request = self.waiting.pop(0)
            n = self.chunk(request, self.budget, 0)
            while self.kv_cache_manager.allocate_slots(request, n) is None:
                victim = self.running.pop()
                preempt(victim, self.waiting, self.kv_cache_manager)
                self.preempted.append(victim)
                self.scheduled.pop(victim.request_id, None)
            self.join(request)
            self.take(request, n)


@wrong("scheduler", "has to give way as well")
class OneVictimIsEnough(Base):
    """And the request goes without, if it is not."""

    def make_room(self, request, n):
        if self.kv_cache_manager.allocate_slots(request, n) is not None:
            return []
        victim = self.running.pop()
        preempt(victim, self.waiting, self.kv_cache_manager)
        if victim is not request:
            self.kv_cache_manager.allocate_slots(request, n)
        return [victim]


@wrong("scheduler", "keeps num_computed_tokens = 4")
class PreemptedKeepsItsCount(Base):
    def make_room(self, request, n):
        return keeps_the_count(request, n, self.running, self.waiting, self.kv_cache_manager)


@wrong("scheduler", "B is preempted, but keeps its blocks")
class VictimKeepsItsBlocks(Base):
    def make_room(self, request, n):
        return keeps_the_blocks(request, n, self.running, self.waiting, self.kv_cache_manager)


@wrong("scheduler", "it is not in `waiting`")
class VictimIsLost(Base):
    def make_room(self, request, n):
        return lost(request, n, self.running, self.waiting, self.kv_cache_manager)


@wrong("scheduler", "overtakes B")
class ToTheBackAndUnsorted(Base):
    """The victim goes to the back of the line."""

    def order(self, requests):
        return list(requests)

    def make_room(self, request, n):
        return to_the_back(request, n, self.running, self.waiting, self.kv_cache_manager)


@wrong("scheduler", "overtakes")
class LastComeFirstServed(Base):
    def order(self, requests):
        return sorted(requests, key=arrival, reverse=True)


@wrong("scheduler", "overtakes")
class PriorityIgnored(Base):
    def order(self, requests):
        return sorted(requests, key=arrival)


@wrong("scheduler", "overtakes")
class PriorityUpsideDown(Base):
    def order(self, requests):
        return sorted(requests, key=lambda r: (-r.priority, arrival(r)))


@wrong("scheduler", "is less important")
class OnlyTheWaitingAreSorted(Base):
    """A newcomer is appended to `running`, whatever its priority."""

    def schedule(self):
        before = list(self.running)
        self.order, order = (
            lambda requests: requests if requests and requests[0] in before else order(requests),
            self.order,
        )
        try:
            return super().schedule()
        finally:
            self.order = order


@wrong("scheduler", "could be let in, and is not")
class OneNewcomerPerStep(Base):
    def is_full(self):
        return len(self.running) == self.config.max_num_seqs or bool(
            self.scheduled and self.running[-1].num_computed_tokens == 0
        )


@wrong("scheduler", "could be let in, and is not")
class StaticBatching(Base):
    """The next batch starts when the last one has ended."""

    def serve_waiting(self):
        if not self.scheduled:
            super().serve_waiting()


@wrong("scheduler", "could be let in, and is not")
class OnlyWholePromptsJoin(Base):
    def serve_waiting(self):
        if self.waiting and (lacking(self.waiting[0]) <= self.budget or not self.running):
            super().serve_waiting()


@wrong("scheduler", "gets 7 tokens; expected 8")
class NewcomerLeavesATokenForNobody(Base):
    def chunk(self, request, budget, after):
        return super().chunk(request, budget, after if request in self.running else min(1, budget))


@wrong("scheduler", "gets 6 tokens; expected 7")
class NewcomerLeavesATokenForEachRunningOne(Base):
    """These have had theirs already."""

    def serve_waiting(self):
        self.budget -= len(self.running)
        super().serve_waiting()


@wrong("scheduler", "has no blocks")
class ForgetsToAllocate(Base):
    def serve_waiting(self):
        while self.waiting and self.budget > 0 and not self.preempted and not self.is_full():
            request = self.waiting.pop(0)
            self.join(request)
            self.take(request, self.chunk(request, self.budget, 0))


@wrong("scheduler", "but has no room for it")
class AllocatesOnlyOnce(Base):
    """Only when a request joins, and not when it grows."""

    def make_room(self, request, n):
        return []


@wrong("scheduler", "holds 5 blocks, and needs 2 so far")
class BlocksForTheWholePrompt(Base):
    def serve_waiting(self):
        for request in self.waiting[:1]:
            self.kv_cache_manager.allocate_slots(request, lacking(request))
        super().serve_waiting()


@wrong("scheduler", "gets tokens, but is not in `running`")
class NeverMovedToRunning(Base):
    def join(self, request):
        request.status = RequestStatus.RUNNING


@wrong("scheduler", "must be in `running` only")
class StaysInWaitingToo(Base):
    def join(self, request):
        super().join(request)
        self.joined = request

    def output(self):
        if getattr(self, "joined", None):
            self.waiting.append(self.joined)
        return super().output()


@wrong("scheduler", "status of A is WAITING")
class StatusForgotten(Base):
    def join(self, request):
        self.running.append(request)


@wrong("scheduler", "Nothing is computed yet")
class CountsInSchedule(Base):
    def output(self):
        output = super().output()
        for request in output.scheduled_requests:
            request.num_computed_tokens += self.scheduled[request.request_id]
        return output

    def update_from_output(self, output, sampled):
        super().update_from_output(scheduler_output({}, [], [], self.kv_cache_manager), sampled)


@wrong("scheduler", "stays the same")
class NeverMovesOn(Base):
    def update_from_output(self, output, sampled):
        super().update_from_output(scheduler_output({}, [], [], self.kv_cache_manager), sampled)


@wrong("scheduler", "is counted as computed")
class CountsTheNewToken(Base):
    def update_from_output(self, output, sampled):
        super().update_from_output(output, sampled)
        for request in sampled:
            request.num_computed_tokens += 1


@wrong("scheduler", "is set to this step's tokens")
class SetsTheCount(Base):
    def update_from_output(self, output, sampled):
        super().update_from_output(output, sampled)
        for request in output.scheduled_requests:
            request.num_computed_tokens = output.num_scheduled_tokens[request.request_id]


@wrong("scheduler", "num_computed_tokens of A is wrong")
class JumpsToTheEnd(Base):
    """As if every chunk were the whole prompt."""

    def update_from_output(self, output, sampled):
        super().update_from_output(output, sampled)
        for request in output.scheduled_requests:
            request.num_computed_tokens = max(
                request.num_computed_tokens, len(request.prompt_token_ids)
            )


@wrong("scheduler", "is finished, but stays in `running`")
class FinishedStays(Base):
    def update_from_output(self, output, sampled):
        running = list(self.running)
        super().update_from_output(output, sampled)
        self.running = running


@wrong("scheduler", "is finished, but keeps its blocks")
class FinishedKeepsItsBlocks(Base):
    def update_from_output(self, output, sampled):
        super().update_from_output(output, [])


@wrong("scheduler", "is finished, but stays in `running`")
class RemovesWhileLooping(Base):
    """The loop jumps over the one behind each request that it removes."""

    def update_from_output(self, output, sampled):
        running = self.running
        super().update_from_output(output, sampled)
        self.running = running
        for request in self.running:
            if request.is_finished:
                self.running.remove(request)


@wrong("scheduler", "must stay in `running`")
class AllSampledLeave(Base):
    def update_from_output(self, output, sampled):
        super().update_from_output(output, sampled)
        self.running = [request for request in self.running if request not in sampled]


@wrong("scheduler", "must keep 1 block")
class AllSampledAreFreed(Base):
    def update_from_output(self, output, sampled):
        super().update_from_output(output, sampled)
        for request in sampled:
            self.kv_cache_manager.free(request)


@wrong("scheduler", "is aborted, but keeps its blocks")
class AbortForgetsBlocks(Base):
    def abort_requests(self, requests):
        for request in requests:
            if not request.is_finished:
                request.status = RequestStatus.FINISHED_ABORTED
        super().abort_requests([])


@wrong("scheduler", "is aborted, but stays in `running`")
class AbortOnlyMarks(Base):
    def abort_requests(self, requests):
        for request in requests:
            if not request.is_finished:
                request.status = RequestStatus.FINISHED_ABORTED
                self.kv_cache_manager.free(request)


@wrong("scheduler", "is aborted, but stays in `waiting`")
class AbortForgetsTheLine(Base):
    def abort_requests(self, requests):
        waiting = list(self.waiting)
        super().abort_requests(requests)
        self.waiting = waiting


@wrong("scheduler", "is aborted, but its status is RUNNING")
class AbortWithoutStatus(Base):
    def abort_requests(self, requests):
        for request in requests:
            self.kv_cache_manager.free(request)
        self.running = [request for request in self.running if request not in requests]
        self.waiting = [request for request in self.waiting if request not in requests]


@wrong("scheduler", "is now marked as aborted")
class AbortsTheFinished(Base):
    def abort_requests(self, requests):
        for request in requests:
            request.status = RequestStatus.FINISHED_ABORTED
            self.kv_cache_manager.free(request)
        super().abort_requests([])


@wrong("scheduler", "ValueError")
class AbortLooksInRunningOnly(Base):
    def abort_requests(self, requests):
        for request in requests:
            self.running.remove(request)
            request.status = RequestStatus.FINISHED_ABORTED
            self.kv_cache_manager.free(request)


@wrong("scheduler", "has_unfinished_requests()` is True")
class NeverDone(Base):
    def has_unfinished_requests(self):
        return True


@wrong("scheduler", "has_unfinished_requests()` is False")
class OnlyLooksAtRunning(Base):
    def has_unfinished_requests(self):
        return bool(self.running)


@wrong("scheduler", "expected a SchedulerOutput")
class ReturnsTheDict(Base):
    def output(self):
        return self.scheduled


@wrong("scheduler", "with 0 tokens")
class ZeroTokens(Base):
    def serve_waiting(self):
        super().serve_waiting()
        while self.waiting and not self.is_full() and not self.preempted:
            request = self.waiting.pop(0)
            if self.kv_cache_manager.allocate_slots(request, 1) is None:
                break
            self.join(request)
            self.take(request, 0)


@wrong("scheduler", "again and again")
class AsksForEver(Base):
    def serve_waiting(self):
        while self.waiting and self.budget > 0 and not self.preempted and not self.is_full():
            request = self.waiting[0]
            n = self.chunk(request, self.budget, 0)
            if self.kv_cache_manager.allocate_slots(request, n) is not None:
                self.join(self.waiting.pop(0))
                self.take(request, n)


@wrong("scheduler", "does not come to an end")
class LoopsWhenFull(Base):
    def serve_waiting(self):
        while self.waiting and self.budget > 0 and not self.preempted:
            if self.is_full():
                continue
            request = self.waiting[0]
            n = self.chunk(request, self.budget, 0)
            if self.kv_cache_manager.allocate_slots(request, n) is None:
                break
            self.join(self.waiting.pop(0))
            self.take(request, n)


@wrong("scheduler", "IndexError")
class LoopsBeyondTheEnd(Base):
    """It does not notice that the list became shorter."""

    def serve_running(self):
        for index in range(len(self.running)):
            request = self.running[index]
            n = self.chunk(request, self.budget, len(self.running) - index - 1)
            self.preempted += self.make_room(request, n)
            if request not in self.preempted:
                self.take(request, n)


@wrong("scheduler", "too few blocks for all, and nobody gives way")
class SkipsWhomThereIsNoRoomFor(Base):
    def make_room(self, request, n):
        return []

    def serve_running(self):
        for index, request in enumerate(self.running):
            n = self.chunk(request, self.budget, len(self.running) - index - 1)
            if self.kv_cache_manager.allocate_slots(request, n) is not None:
                self.take(request, n)


# 8 engine


@right("engine")
class Sorted(Base):
    pass


@wrong("engine", "steps are not those of exercise 7")
class ShyScheduler(Base):
    """The answers are right, but it leaves room unused."""

    def is_full(self):
        return len(self.running) >= 2 and self.config.max_num_seqs > 2


@wrong("engine", "priorities are not kept")
class FirstComeFirstServed(Base):
    def order(self, requests):
        return sorted(requests, key=arrival)


@wrong("engine", "still held")
class AbortLeaks(Base):
    def abort_requests(self, requests):
        for request in requests:
            request.status = RequestStatus.FINISHED_ABORTED
        self.running = [request for request in self.running if not request.is_finished]
        self.waiting = [request for request in self.waiting if not request.is_finished]


@wrong("engine", "says something else")
class ReadsStaleBlocks(Base):
    """Preempted requests keep their count of computed tokens: no block holds these any more."""

    def make_room(self, request, n):
        return keeps_the_count(request, n, self.running, self.waiting, self.kv_cache_manager)
