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


def wrong_ones(exercise, *rows):
    """Each a name, words that the feedback must contain, and the answer."""
    for name, says, answer in rows:
        answer.__name__ = name
        wrong(exercise, says)(answer)


# 1 batch_waste


def spare(values):
    return len(values) * max(values) - sum(values)


def per_batch(rule, lens, size):
    return sum(rule(lens[i : i + size]) for i in range(0, len(lens), size))


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
    return tuple(per_batch(spare, lens, batch_size) for lens in (prompt_lens, output_lens))


@wrong("batch_waste", "changes in place what it was given")
def empties_its_lists(prompt_lens, output_lens, batch_size):
    padding = idle = 0
    while prompt_lens:
        padding += spare(prompt_lens[:batch_size])
        idle += spare(output_lens[:batch_size])
        del prompt_lens[:batch_size], output_lens[:batch_size]
    return padding, idle


wrong_ones(
    "batch_waste",
    (
        "idle_of_the_first_batch",
        "padding is right",
        lambda p, o, b: (with_sums(p, o, b)[0], spare(o[:b]) if o else 0),
    ),
    ("one_number", "expected a pair", lambda p, o, b: sum(with_sums(p, o, b))),
)


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


def choose(
    running,
    waiting,
    max_num_seqs,
    budget,
    *,
    spend=1,
    counted=0,
    skip=False,
    amount=lacking,
    order=list,
    fits=lambda n, budget: n <= budget,
):
    """The engine of the wrong answers below: each changes one thing."""
    chosen = {request.request_id: amount(request) for request in running}
    budget -= spend * sum(chosen.values())
    num_seqs = len(running) - counted
    for request in order(waiting):
        if num_seqs >= max_num_seqs or not fits(lacking(request), budget):
            if skip:
                continue
            break
        chosen[request.request_id] = amount(request)
        budget -= amount(request)
        num_seqs += 1
    return chosen


@wrong("choose_tokens", "is served before")
def newcomers_first(running, waiting, max_num_seqs, budget):
    chosen = choose([], waiting, max_num_seqs - len(running), budget)
    for request in running:
        if sum(chosen.values()) + lacking(request) > budget:
            break
        chosen[request.request_id] = lacking(request)
    return chosen


@wrong("choose_tokens", "Parts come in exercise 3")
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


@wrong("choose_tokens", "with 0 tokens")
def zeros_for_the_others(running, waiting, *limits):
    chosen = choose(running, waiting, *limits)
    return {r.request_id: chosen.get(r.request_id, 0) for r in (*running, *waiting)}


wrong_ones(
    "choose_tokens",
    ("last_come_first_served", "overtakes", lambda *s: choose(*s, order=lambda line: line[::-1])),
    (
        "prompts_only",
        "running gets no token",
        lambda r, w, n, b: choose([], w, n - len(r), b - len(r)),
    ),
    ("decodes_only", "is left out", lambda r, w, n, b: choose(r, [], n, b)),
    ("one_at_a_time", "is left out", lambda r, w, *limits: choose(r, w[:1], *limits)),
    ("a_list_of_names", "expected a dict", lambda *s: list(choose(*s))),
)


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


def chunk(request, budget, after):
    return as_a_list(request, budget, after)[0]


wrong_ones(
    "next_chunk",
    ("never_samples", "no new one is sampled", lambda r, b, a: (chunk(r, b, a), False)),
    ("no_flag", "expected a pair", chunk),
)


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


def room(
    request,
    n,
    running,
    waiting,
    manager,
    *,
    choose=lambda running, request: running[-1],
    change=preempt,
    undo=lambda victim, waiting, request: None,
):
    """The engine of the wrong answers below: each changes one thing, or undoes it."""
    victims = []
    while manager.allocate_slots(request, n) is None:
        victim = choose(running, request)
        if victim is None:
            break
        running.remove(victim)
        change(victim, waiting, manager)
        undo(victim, waiting, request)
        victims.append(victim)
        if victim is request:
            break
    return victims


def keeps_the_prompt(request, n, running, waiting, manager):
    """As if the prompt were still cached."""
    computed = {r: min(r.num_computed_tokens, len(r.prompt_token_ids)) for r in running}
    victims = room(request, n, running, waiting, manager)
    for victim in victims:
        victim.num_computed_tokens = computed[victim]
    return victims


def without_free(victim, waiting, manager):
    victim.num_computed_tokens, victim.status = 0, RequestStatus.PREEMPTED
    waiting.insert(0, victim)


def without_count(victim, waiting, manager):
    manager.free(victim)
    victim.status = RequestStatus.PREEMPTED
    waiting.insert(0, victim)


def keeps_the_count(*state):
    return room(*state, change=without_count)


def keeps_the_blocks(*state):
    return room(*state, change=without_free)


def the_oldest(*state):
    return room(*state, choose=lambda running, request: running[0])


def to_the_back(*state):
    return room(*state, undo=lambda victim, waiting, _: waiting.append(waiting.pop(0)))


def lost(*state):
    return room(*state, undo=lambda victim, waiting, _: waiting.remove(victim))


@wrong("make_room", "wrong numbers of blocks")
def frees_all_but_itself(request, *rest):
    def change(victim, waiting, manager):
        (without_free if victim is request else preempt)(victim, waiting, manager)

    return room(request, *rest, change=change)


@wrong("make_room", "lost or gained tokens of its text")
def starts_over(*state):
    def forget(victim, waiting, request):
        victim.output_token_ids.clear()
        victim.all_token_ids = list(victim.prompt_token_ids)

    return room(*state, undo=forget)


@wrong("make_room", "wrong requests are left in `running`")
def shrugs(request, n, running, waiting, manager):
    manager.allocate_slots(request, n)
    return []


@wrong("make_room", "wrong numbers of blocks")
def one_victim_only(request, n, running, waiting, manager):
    if manager.allocate_slots(request, n) is not None:
        return []
    victim = running.pop()
    preempt(victim, waiting, manager)
    return [victim]


@wrong("make_room", "wrong numbers of blocks")
def allocates_after_giving_way(request, n, running, waiting, manager):
    victims = room(request, n, running, waiting, manager)
    if request in victims:
        manager.allocate_slots(request, 1)
    return victims


@wrong("make_room", "does not come to an end")
def nobody_leaves(request, n, running, waiting, manager):
    victims = []
    while manager.allocate_slots(request, n) is None:
        victims.append(running[-1])
    return victims


@wrong("make_room", "wrong requests are left in `running`")
def stays_in_running(request, n, running, waiting, manager):
    return room(request, n, list(running), waiting, manager)


wrong_ones(
    "make_room",
    ("keeps_the_count", "keeps `num_computed_tokens`", keeps_the_count),
    ("keeps_the_prompt", "`num_computed_tokens` is wrong", keeps_the_prompt),
    ("keeps_the_blocks", "keeps its blocks", keeps_the_blocks),
    ("the_oldest", "most important one", the_oldest),
    ("to_the_back", "back of the line", to_the_back),
    ("lost", "neither runs nor waits", lost),
    (
        "status_stays",
        "status is wrong",
        lambda *s: room(
            *s, undo=lambda victim, *_: setattr(victim, "status", RequestStatus.RUNNING)
        ),
    ),
    ("last_victim_first", "in the order in which they were preempted", lambda *s: room(*s)[::-1]),
    (
        "queued_twice",
        "line of those who wait is wrong",
        lambda *s: room(*s, undo=lambda victim, waiting, _: waiting.append(victim)),
    ),
    ("true_or_false", "expected a list", lambda r, *rest: r not in room(r, *rest)),
)


# 5 by_importance


def arrival(request):
    return request.arrival_time


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


@wrong("by_importance", "returns the list that it is given")
def in_place(requests):
    requests.sort(key=lambda r: (r.priority, arrival(r)))
    return requests


def sorts(key, **options):
    return lambda requests: sorted(requests, key=key, **options)


wrong_ones(
    "by_importance",
    ("ties_by_name", "Ties are broken wrongly", sorts(lambda r: (r.priority, r.request_id))),
    ("sort_returns_none", "expected a list", lambda requests: list(requests).sort(key=arrival)),
    (
        "one_per_rank",
        "missing, come twice",
        lambda requests: [r for _, r in sorted({r.priority: r for r in requests}.items())],
    ),
)


# 6 recovery_seconds


def triangle(n):
    return n * (n + 1) // 2


def blocks(n, costs):
    return -(-n // costs.block_size)


def again(n, costs, flops=None):
    flops = flops or 2 * n * costs.num_weights + triangle(n) * costs.flops_per_pair
    return flops / costs.flops


def per_copy(costs):
    return costs.seconds_per_copy + costs.block_bytes / costs.bandwidth


def copies(n, costs):
    return 2 * blocks(n, costs) * per_copy(costs)


@right("recovery_seconds")
def with_a_sum(num_tokens, costs):
    flops = sum(2 * costs.num_weights + n * costs.flops_per_pair for n in range(1, num_tokens + 1))
    return [flops / costs.flops, copies(num_tokens, costs)]


wrong_ones(
    "recovery_seconds",
    ("other_way_round", "two numbers are swapped", lambda n, c: (copies(n, c), again(n, c))),
    (
        "flops_times_time",
        "seconds to recompute are wrong",
        lambda n, c: (2 * n * c.num_weights * c.flops, copies(n, c)),
    ),
    (
        "only_the_winner",
        "expected two numbers",
        lambda n, c: "swap" if again(n, c) > copies(n, c) else "recompute",
    ),
)


# 7 SwapOrRecompute


class Swaps:
    """A right answer written otherwise, and the base of the wrong ones."""

    def __init__(self, manager, recovery):
        self.manager, self.recovery = manager, recovery

    def wants_to_swap(self, victim):
        seconds = self.recovery(victim.num_computed_tokens)
        return min(seconds) != seconds[0]

    def give_way(self, victim):
        swapped = self.wants_to_swap(victim) and self.manager.swap_out(victim)
        if not swapped:
            self.recompute(victim)
        victim.status = RequestStatus.PREEMPTED

    def recompute(self, victim):
        victim.num_computed_tokens = 0
        self.manager.free(victim)

    def come_back(self, request, num_new_tokens):
        if request.request_id not in self.manager.swap_space:
            return self.new_blocks(request, num_new_tokens)
        if self.manager.swap_in(request, num_new_tokens):
            return self.new_blocks(request, num_new_tokens)
        return False

    def new_blocks(self, request, num_new_tokens):
        return self.manager.allocate_slots(request, num_new_tokens) is not None


right("swap_or_recompute")(Swaps)


@right("swap_or_recompute")
class TriesIt(Swaps):
    """Asks for forgiveness, not for permission."""

    def come_back(self, request, num_new_tokens):
        try:
            fits = self.manager.swap_in(request, num_new_tokens)
        except ValueError:  # it is not in host memory
            fits = True
        return fits and self.new_blocks(request, num_new_tokens)


@right("swap_or_recompute")
class Remembers(Swaps):
    """Keeps a list of its own of who is out."""

    def give_way(self, victim):
        self.out = [*getattr(self, "out", []), victim] if self.wants_to_swap(victim) else []
        super().give_way(victim)


def swaps(**methods):
    return type("Wrong", (Swaps,), methods)


def status_of_the_recomputed(self, victim):
    if not (self.wants_to_swap(victim) and self.manager.swap_out(victim)):
        self.recompute(victim)
        victim.status = RequestStatus.PREEMPTED


def waits_for_host_memory(self, victim):
    while self.wants_to_swap(victim) and not self.manager.swap_out(victim):
        pass
    if victim.request_id not in self.manager.swap_space:
        self.recompute(victim)
    victim.status = RequestStatus.PREEMPTED


def runs_again(self, request, num_new_tokens):
    has_blocks = Swaps.come_back(self, request, num_new_tokens)
    request.status = RequestStatus.RUNNING if has_blocks else request.status
    return has_blocks


def counts_the_new(self, request, num_new_tokens):
    has_blocks = Swaps.come_back(self, request, num_new_tokens)
    request.num_computed_tokens += num_new_tokens * has_blocks
    return has_blocks


def halfway(self, request, num_new_tokens):
    if request.request_id in self.manager.swap_space and not self.manager.swap_in(request):
        return False
    return self.new_blocks(request, num_new_tokens)


def recomputes_if_full(self, request, num_new_tokens):
    if not Swaps.come_back(self, request, num_new_tokens):
        self.manager.free(request)
        request.num_computed_tokens = 0
        return False
    return True


class Shared(Swaps):
    """One recovery for all objects: the last one's."""

    def __init__(self, manager, recovery):
        self.manager = manager
        Shared.recovery = staticmethod(recovery)


wrong_ones(
    "swap_or_recompute",
    (
        "only_the_recomputed_are_preempted",
        "status is wrong",
        swaps(give_way=status_of_the_recomputed),
    ),
    ("waits", "does not come to an end", swaps(give_way=waits_for_host_memory)),
    ("sets_running", "status is wrong", swaps(come_back=runs_again)),
    ("computes_itself", "`num_computed_tokens` is wrong", swaps(come_back=counts_the_new)),
    ("swaps_in_without_the_new", "wrong number of blocks is copied", swaps(come_back=halfway)),
    (
        "gives_up_what_is_out",
        "wrong requests are in host memory",
        swaps(come_back=recomputes_if_full),
    ),
    ("one_for_all", "wrong number of blocks is copied", Shared),
    (
        "prompt_only",
        "",
        swaps(
            wants_to_swap=lambda self, victim: (
                self.recovery(len(victim.prompt_token_ids))[1]
                < self.recovery(len(victim.prompt_token_ids))[0]
            )
        ),
    ),
    (
        "blocks_as_answer",
        "come_back` returned",
        swaps(new_blocks=lambda self, request, n: self.manager.allocate_slots(request, n)),
    ),
    (
        "returns_nothing",
        "come_back` returned",
        swaps(new_blocks=lambda self, request, n: self.manager.allocate_slots(request, n) and None),
    ),
    (
        "keeps_the_prompts_keys",
        "",
        swaps(
            recompute=lambda self, victim: (
                self.manager.free(victim),
                setattr(victim, "num_computed_tokens", len(victim.prompt_token_ids)),
            )
        ),
    ),
)


# 8 MyScheduler


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
        return self.room(room, request, n)

    def room(self, function, request, n):
        return function(request, n, self.running, self.waiting, self.kv_cache_manager)

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
        for request in [r for r in self.running if r.request_id in output.num_scheduled_tokens]:
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
own = {name: value for name, value in vars(Base).items() if name not in ("__init__", "__dict__")}
right("scheduler")(type("SubclassOfTheEngines", (Scheduler,), own))


@wrong("scheduler", "engine's own scheduler does the work")
class LetsTheEngineDoIt(Scheduler):
    pass


@wrong("scheduler", "running, but without a token")
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


@wrong("scheduler", "get tokens in the same step")
class AdmitsDuringPreemption(Base):
    def may_join(self, preempted):
        return True

    def serve_waiting(self):
        self.waiting.sort(key=lambda r: r in self.preempted)  # not the victim itself, at least
        super().serve_waiting()


@wrong("scheduler", "wrong requests are preempted")
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


@wrong("scheduler", "wrong requests are preempted")
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


@wrong("scheduler", "wrong requests are preempted")
class OnlyTheWaitingAreSorted(Base):
    """A newcomer is appended to `running`, whatever its priority."""

    def order(self, requests):
        return requests if requests is self.running else super().order(requests)


@wrong("scheduler", "wrong requests are let in")
class OneNewcomerPerStep(Base):
    def is_full(self):
        return super().is_full() or bool(
            self.scheduled and self.running[-1].num_computed_tokens == 0
        )


@wrong("scheduler", "wrong requests are let in")
class OnlyWholePromptsJoin(Base):
    def serve_waiting(self):
        if self.waiting and (lacking(self.waiting[0]) <= self.budget or not self.running):
            super().serve_waiting()


@wrong("scheduler", "must be at least 1, got 0")
class NewcomerLeavesATokenForNobody(Base):
    def chunk(self, request, budget, after):
        return super().chunk(request, budget, after if request in self.running else min(1, budget))


@wrong("scheduler", "wrong requests are let in")
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


@wrong("scheduler", "wrong numbers of blocks")
class BlocksForTheWholePrompt(Base):
    def serve_waiting(self):
        for request in self.waiting[:1]:
            self.kv_cache_manager.allocate_slots(request, lacking(request))
        super().serve_waiting()


@wrong("scheduler", "in the wrong list, or in both")
class StaysInWaitingToo(Base):
    def join(self, request):
        super().join(request)
        self.joined = request

    def output(self):
        if getattr(self, "joined", None):
            self.waiting.append(self.joined)
        return super().output()


@wrong("scheduler", "Nothing is computed yet")
class CountsInSchedule(Base):
    def output(self):
        output = super().output()
        for request in [r for r in self.running if r.request_id in output.num_scheduled_tokens]:
            request.num_computed_tokens += self.scheduled[request.request_id]
        return output

    def update_from_output(self, output, sampled):
        super().update_from_output(scheduler_output({}, [], [], self.kv_cache_manager), sampled)


def afterwards(change):
    """A right update, and then something more."""

    def update_from_output(self, output, sampled):
        running = self.running
        Base.update_from_output(self, output, sampled)
        change(self, output, sampled, running)

    return update_from_output


def set_the_count(self, output, sampled, _):
    for request in [r for r in self.running if r.request_id in output.num_scheduled_tokens]:
        request.num_computed_tokens = output.num_scheduled_tokens[request.request_id]


def jump_to_the_end(self, output, sampled, _):
    for request in [r for r in self.running if r.request_id in output.num_scheduled_tokens]:
        request.num_computed_tokens = max(
            request.num_computed_tokens, len(request.prompt_token_ids)
        )


def remove_while_looping(self, output, sampled, running):
    self.running = running
    for request in self.running:  # jumps over the one behind each that it removes
        if request.is_finished:
            self.running.remove(request)


def abort(free=True, mark=True, sift=("running", "waiting"), finished=False):
    def abort_requests(self, requests):
        for request in requests:
            if finished or not request.is_finished:
                if free:
                    self.kv_cache_manager.free(request)
                if mark:
                    request.status = RequestStatus.FINISHED_ABORTED
        for name in sift:
            line = [r for r in getattr(self, name) if not (r.is_finished or r in requests)]
            setattr(self, name, line)

    return abort_requests


@wrong("scheduler", "ValueError")
class AbortLooksInRunningOnly(Base):
    def abort_requests(self, requests):
        for request in requests:
            self.running.remove(request)
            request.status = RequestStatus.FINISHED_ABORTED
            self.kv_cache_manager.free(request)


@wrong("scheduler", "number of tokens that is none: B: 0")
class ZeroTokens(Base):
    def serve_waiting(self):
        super().serve_waiting()
        while self.waiting and not self.is_full() and not self.preempted:
            request = self.waiting.pop(0)
            if self.kv_cache_manager.allocate_slots(request, 1) is None:
                break
            self.join(request)
            self.take(request, 0)


@wrong("scheduler", "does not come to an end")
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
            if not self.is_full():
                super().serve_waiting()
                if not self.is_full():
                    break


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


@wrong("scheduler", "wrong requests are preempted")
class SkipsWhomThereIsNoRoomFor(Base):
    def make_room(self, request, n):
        return []

    def serve_running(self):
        for index, request in enumerate(self.running):
            n = self.chunk(request, self.budget, len(self.running) - index - 1)
            if self.kv_cache_manager.allocate_slots(request, n) is not None:
                self.take(request, n)


def but(exercise, *rows):
    """Each a name, words, and the methods that are not as in `Base`."""
    classes = ((name, says, type(name, (Base,), methods)) for name, says, methods in rows)
    wrong_ones(exercise, *classes)


def in_order_of(key):
    return {"order": lambda self, requests: sorted(requests, key=key)}


def makes_room_as(function):
    return {"make_room": lambda self, request, n: self.room(function, request, n)}


but(
    "scheduler",
    ("WholePrompts", "the budget is 1", {"chunk": lambda self, request, *_: lacking(request)}),
    (
        "DecodeAsWholePrompt",
        "computed already would be computed again",
        {"chunk": lambda self, request, budget, after: min(request.num_tokens, budget - after)},
    ),
    ("VictimIsTheOldest", "wrong requests are preempted", makes_room_as(the_oldest)),
    ("PreemptedKeepsItsCount", "keeps `num_computed_tokens`", makes_room_as(keeps_the_count)),
    ("VictimKeepsItsBlocks", "wrong requests are", makes_room_as(keeps_the_blocks)),
    ("VictimIsLost", "must be in `waiting`", makes_room_as(lost)),
    (
        "ToTheBackAndUnsorted",
        "wrong requests are",
        makes_room_as(to_the_back) | {"order": lambda self, requests: list(requests)},
    ),
    ("LastComeFirstServed", "wrong requests are", in_order_of(lambda r: -arrival(r))),
    ("PriorityIgnored", "wrong requests are", in_order_of(arrival)),
    ("PriorityUpsideDown", "wrong requests are", in_order_of(lambda r: (-r.priority, arrival(r)))),
    (
        "StaticBatching",
        "wrong requests are let in",
        {"serve_waiting": lambda self: None if self.scheduled else Base.serve_waiting(self)},
    ),
    ("AllocatesOnlyOnce", "wrong", {"make_room": lambda self, request, n: []}),
    (
        "NeverMovedToRunning",
        "in the wrong list",
        {"join": lambda self, request: setattr(request, "status", RequestStatus.RUNNING)},
    ),
    (
        "StatusForgotten",
        "A: WAITING, expected A: RUNNING",
        {"join": lambda self, request: self.running.append(request)},
    ),
    (
        "NeverMovesOn",
        "`num_computed_tokens` is wrong",
        {
            "update_from_output": lambda self, o, s: Base.update_from_output(
                self, scheduler_output({}, [], [], self.kv_cache_manager), s
            )
        },
    ),
    (
        "SetsTheCount",
        "`num_computed_tokens` is wrong",
        {"update_from_output": afterwards(set_the_count)},
    ),
    (
        "JumpsToTheEnd",
        "`num_computed_tokens` is wrong",
        {"update_from_output": afterwards(jump_to_the_end)},
    ),
    (
        "FinishedStays",
        "Who is finished leaves `running`",
        {
            "update_from_output": afterwards(
                lambda self, output, sampled, running: setattr(self, "running", running)
            )
        },
    ),
    (
        "RemovesWhileLooping",
        "Who is finished leaves `running`",
        {"update_from_output": afterwards(remove_while_looping)},
    ),
    (
        "AllSampledLeave",
        "all others stay",
        {
            "update_from_output": afterwards(
                lambda self, output, sampled, running: setattr(
                    self, "running", [r for r in self.running if r not in sampled]
                )
            )
        },
    ),
    (
        "AllSampledAreFreed",
        "others keep theirs",
        {
            "update_from_output": afterwards(
                lambda self, output, sampled, running: list(
                    map(self.kv_cache_manager.free, sampled)
                )
            )
        },
    ),
    ("AbortOnlyMarks", "in the wrong list", {"abort_requests": abort(sift=())}),
    ("AbortWithoutStatus", "status is wrong after `abort", {"abort_requests": abort(mark=False)}),
    (
        "NeverDone",
        "has_unfinished_requests()` is True",
        {"has_unfinished_requests": lambda self: True},
    ),
    (
        "OnlyLooksAtRunning",
        "has_unfinished_requests()` is False",
        {"has_unfinished_requests": lambda self: bool(self.running)},
    ),
    ("ReturnsTheDict", "expected a SchedulerOutput", {"output": lambda self: self.scheduled}),
)


# 9 engine

right("engine")(InSmallParts)

but(
    "engine",
    (
        "ShyScheduler",
        "Exercise 8 is not right yet",
        {"is_full": lambda self: len(self.running) >= min(2, self.config.max_num_seqs)},
    ),
    ("FirstComeFirstServed", "Exercise 8 is not right yet", in_order_of(arrival)),
    ("AbortLeaks", "Exercise 8 is not right yet", {"abort_requests": abort(free=False)}),
    ("ReadsStaleBlocks", "keeps `num_computed_tokens`", makes_room_as(keeps_the_count)),
)
