"""Wrong and right answers to lab 13, each as a learner might write it."""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections import OrderedDict, defaultdict, deque

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_13.real_counters import Parts
from utils.sim.prompt_cache import find_cached_tokens

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right


def common(a, b):
    pairs = zip(a, b, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def longest(requests, i, same_salt=True):
    """The longest beginning that request i shares with an earlier one."""
    salt, prompt = requests[i]
    earlier = [p for s, p in requests[:i] if s == salt or not same_salt]
    return max((common(prompt, p) for p in earlier), default=0)


# 1 predict_cached_tokens


@right("predict_cached_tokens")
def sets_of_prefixes(requests, block_size):
    seen, predicted = set(), []
    for salt, prompt in requests:
        ends = range(block_size, len(prompt) + 1, block_size)
        usable = [e for e in ends if e < len(prompt) and (salt, tuple(prompt[:e])) in seen]
        predicted.append(max(usable, default=0))
        seen.update((salt, tuple(prompt[:e])) for e in ends)
    return predicted


@right("predict_cached_tokens")
def a_tree_of_blocks(requests, block_size):
    roots, predicted = {}, []
    for salt, prompt in requests:
        node, hit, known = roots.setdefault(salt, {}), 0, True
        for start in range(0, len(prompt) - block_size + 1, block_size):
            block = tuple(prompt[start : start + block_size])
            known = known and block in node
            if known and start + block_size < len(prompt):
                hit += block_size
            node = node.setdefault(block, {})
        predicted.append(hit)
    return predicted


@right("predict_cached_tokens")
def pairwise(requests, block_size):
    found = []
    for i, (_, prompt) in enumerate(requests):
        found.append(min(longest(requests, i), len(prompt) - 1) // block_size * block_size)
    return found


@wrong("predict_cached_tokens", "salt is ignored")
def no_salt(requests, block_size):
    return pairwise([(None, prompt) for _, prompt in requests], block_size)


@wrong("predict_cached_tokens", "Requests without a salt find nothing")
def falsy_salt(requests, block_size):
    found = pairwise(requests, block_size)
    return [n if salt else 0 for (salt, _), n in zip(requests, found, strict=True)]


@wrong("predict_cached_tokens", "finds blocks of requests without one")
def public_blocks_for_all(requests, block_size):
    found = []
    for i, (salt, prompt) in enumerate(requests):
        earlier = [p for s, p in requests[:i] if s is None or s == salt]
        shared = max((common(prompt, p) for p in earlier), default=0)
        found.append(min(shared, len(prompt) - 1) // block_size * block_size)
    return found


@wrong("predict_cached_tokens", "leaves no token to compute")
def the_whole_prompt(requests, block_size):
    return [longest(requests, i) // block_size * block_size for i in range(len(requests))]


@wrong("predict_cached_tokens", "rounding comes too early")
def rounds_first(requests, block_size):
    return [
        min(longest(requests, i) // block_size * block_size, len(requests[i][1]) - 1)
        for i in range(len(requests))
    ]


@wrong("predict_cached_tokens", "single tokens")
def by_token(requests, block_size):
    return [min(longest(requests, i), len(requests[i][1]) - 1) for i in range(len(requests))]


@wrong("predict_cached_tokens", "round up")
def rounds_up(requests, block_size):
    return [
        min(-(-longest(requests, i) // block_size), (len(p) - 1) // block_size) * block_size
        for i, (_, p) in enumerate(requests)
    ]


@wrong("predict_cached_tokens", "count blocks")
def blocks_not_tokens(requests, block_size):
    return [n // block_size for n in pairwise(requests, block_size)]


@wrong("predict_cached_tokens", "just before")
def only_the_last_request(requests, block_size):
    found = [0]
    for before, this in itertools.pairwise(requests):
        found.append(pairwise([before, this], block_size)[1])
    return found


@wrong("predict_cached_tokens", "very first request")
def only_the_first_request(requests, block_size):
    return [0, *(pairwise([requests[0], r], block_size)[1] for r in requests[1:])]


@wrong("predict_cached_tokens", "without what comes before them")
def no_chain(requests, block_size):
    seen, found = set(), []
    for salt, prompt in requests:
        starts = range(0, len(prompt) - block_size + 1, block_size)
        blocks = [(salt, tuple(prompt[s : s + block_size])) for s in starts]
        hit = 0
        while hit < min(len(blocks), (len(prompt) - 1) // block_size) and blocks[hit] in seen:
            hit += 1
        found.append(hit * block_size)
        seen.update(blocks)
    return found


@wrong("predict_cached_tokens", "One block too few")
def always_one_block_less(requests, block_size):
    return [
        max(0, longest(requests, i) // block_size * block_size - block_size)
        for i in range(len(requests))
    ]


@wrong("predict_cached_tokens", "finds itself")
def remembers_first(requests, block_size):
    return [(len(p) - 1) // block_size * block_size for _, p in requests]


@wrong("predict_cached_tokens", "returned None")
def forgot_to_return(requests, block_size):
    pairwise(requests, block_size)


@wrong("predict_cached_tokens", "one per prompt")
def only_the_sum(requests, block_size):
    return sum(pairwise(requests, block_size))


@wrong("predict_cached_tokens", "changes the requests")
def empties_the_list(requests, block_size):
    found = pairwise(requests, block_size)
    requests.clear()
    return found


@wrong("predict_cached_tokens", "taken for the word")
def salts_as_text(requests, block_size):
    return sets_of_prefixes([(f"{salt}", prompt) for salt, prompt in requests], block_size)


# 2 order_parts


@right("order_parts")
def fewest_values_first(parts):
    return sorted(parts, key=lambda name: len(set(parts[name])))


@right("order_parts")
def constants_then_the_rest(parts):
    names = list(parts)
    return sorted(names, key=lambda name: (len(set(parts[name])), -names.index(name)))


@wrong("order_parts", "left as it was")
def as_it_is(parts):
    return list(parts)


@wrong("order_parts", "changes most comes first")
def most_values_first(parts):
    return sorted(parts, key=lambda name: -len(set(parts[name])))


@wrong("order_parts", "shortest part")
def shortest_first(parts):
    return sorted(parts, key=lambda name: max(map(len, parts[name])))


@wrong("order_parts", "longest part")
def longest_first(parts):
    return sorted(parts, key=lambda name: -max(map(len, parts[name])))


@wrong("order_parts", "by their names")
def alphabetical(parts):
    return sorted(parts)


@wrong("order_parts", "change a little")
def constant_or_not(parts):
    return sorted(parts, key=lambda name: len(set(parts[name])) > 1)


@wrong("order_parts", "each name once")
def drops_what_changes(parts):
    return [name for name in parts if len(set(parts[name])) == 1]


@wrong("order_parts", "expected a list of names")
def pairs_instead_of_names(parts):
    return sorted(parts.items(), key=lambda item: len(set(item[1])))


@wrong("order_parts", "changes the dictionary")
def pops_while_sorting(parts):
    names = []
    while parts:
        name = min(parts, key=lambda n: len(set(parts[n])))
        names.append(name)
        parts.pop(name)
    return names


@wrong("order_parts", "from one request to the next")
def by_changes(parts):
    return sorted(parts, key=lambda n: sum(a != b for a, b in itertools.pairwise(parts[n])))


@wrong("order_parts", "most frequent text only")
def by_the_most_frequent_text(parts):
    return sorted(parts, key=lambda name: -max(map(parts[name].count, parts[name])))


# 3 predict_with_eviction


@right("predict_with_eviction")
def with_a_queue(prompts, block_size, num_blocks):
    free, found = deque([None] * num_blocks), []
    for prompt in prompts:
        full = [tuple(prompt[:e]) for e in range(block_size, len(prompt) + 1, block_size)]
        hits = []
        for prefix in full:
            if prefix not in free:
                break
            hits.append(prefix)
        for prefix in hits:
            free.remove(prefix)
        for _ in range(-(-len(prompt) // block_size) - len(hits)):
            free.popleft()
        free.appendleft(None)
        free.extend(reversed(full))
        found.append(len(hits) * block_size)
    return found


@right("predict_with_eviction")
def with_an_ordered_dict(prompts, block_size, num_blocks):
    cache, found = OrderedDict(), []  # prefix -> None, the first to go in front
    for prompt in prompts:
        full = [tuple(prompt[:e]) for e in range(block_size, len(prompt) + 1, block_size)]
        hits = 0
        while hits < len(full) and full[hits] in cache:
            cache.pop(full[hits])
            hits += 1
        while len(cache) > num_blocks - len(full) - 1:
            cache.popitem(last=False)
        for prefix in reversed(full):
            cache[prefix] = None
        found.append(hits * block_size)
    return found


@right("predict_with_eviction")
def with_clocks(prompts, block_size, num_blocks):
    when, clock, found = {}, 0, []  # prefix -> when it was given back
    for prompt in prompts:
        full = [tuple(prompt[:e]) for e in range(block_size, len(prompt) + 1, block_size)]
        hits = 0
        while hits < len(full) and full[hits] in when:
            del when[full[hits]]
            hits += 1
        while len(when) + len(full) + 1 > num_blocks:
            del when[min(when, key=when.get)]
        for prefix in full[::-1]:
            clock += 1
            when[prefix] = clock
        found.append(hits * block_size)
    return found


def queue_with(prompts, block_size, num_blocks, **changed):
    """`with_a_queue`, written with one change at a time."""
    free, found = deque([None] * num_blocks), []
    for prompt in prompts:
        full = [tuple(prompt[:e]) for e in range(block_size, len(prompt) + 1, block_size)]
        hits = []
        for prefix in full:
            if prefix not in free:
                break
            hits.append(prefix)
        if not changed.get("hits_stay"):
            for prefix in hits:
                free.remove(prefix)
        for _ in range(-(-len(prompt) // block_size) - len(hits)):
            free.pop() if changed.get("newest") else free.popleft()
        if changed.get("partial_at_the_back"):
            free.append(None)
        else:
            free.appendleft(None)
        if changed.get("hits_to_the_front"):
            front = free.popleft()
            free.extendleft(reversed(hits))
            free.appendleft(front)
            full = full[len(hits) :]
        if changed.get("hits_stay"):
            full = full[len(hits) :]
        free.extend(full if changed.get("head_first") else reversed(full))
        found.append(len(hits) * block_size)
    return found


@wrong("predict_with_eviction", "Nothing is ever evicted")
def room_for_all(prompts, block_size, num_blocks):
    return pairwise([(None, prompt) for prompt in prompts], block_size)


@wrong("predict_with_eviction", "head of a prompt is evicted before its tail")
def head_first(prompts, block_size, num_blocks):
    return queue_with(prompts, block_size, num_blocks, head_first=True)


@wrong("predict_with_eviction", "goes to the back")
def the_partial_block_is_kept(prompts, block_size, num_blocks):
    return queue_with(prompts, block_size, num_blocks, partial_at_the_back=True)


@wrong("predict_with_eviction", "Hits stay in the queue")
def hits_are_not_held(prompts, block_size, num_blocks):
    return queue_with(prompts, block_size, num_blocks, hits_stay=True)


@wrong("predict_with_eviction", "used last is evicted first")
def most_recently_used(prompts, block_size, num_blocks):
    return queue_with(prompts, block_size, num_blocks, newest=True)


@wrong("predict_with_eviction", "Nothing is ever found")
def never_looks(prompts, block_size, num_blocks):
    return [0] * len(prompts)


@wrong("predict_with_eviction", "one too many in the cache")
def one_block_too_many(prompts, block_size, num_blocks):
    return with_an_ordered_dict(prompts, block_size, num_blocks + 1)


@wrong("predict_with_eviction", "Other blocks are evicted")
def whole_prompts_are_evicted(prompts, block_size, num_blocks):
    kept, found = [], []
    for prompt in prompts:
        needed = -(-len(prompt) // block_size)
        found.append(pairwise([(None, p) for p in [*kept, prompt]], block_size)[-1])
        while kept and needed + sum(-(-len(p) // block_size) for p in kept) > num_blocks:
            kept.pop(0)
        kept.append(prompt)
    return found


def short_queue(prompts, block_size, num_blocks, *, taken=1, given_back=1, chained=True):
    """`with_a_queue`, shorter: blocks taken and given back for what fills no block."""
    free, found = deque([None] * num_blocks), []
    for prompt in prompts:
        ends = range(block_size, len(prompt) + 1, block_size)
        full = [tuple(prompt[0 if chained else e - block_size : e]) for e in ends]
        hits = list(itertools.takewhile(free.__contains__, full))
        for block in hits:
            free.remove(block)
        for _ in range(len(full) + taken - len(hits)):
            free.popleft()
        free.extendleft([None] * given_back)
        free.extend(reversed(full))
        found.append(len(hits) * block_size)
    return found


@wrong("predict_with_eviction", "raised IndexError: pop from an empty deque")
def forgets_to_give_back(prompts, block_size, num_blocks):
    """The block that is not full never returns to the queue."""
    return short_queue(prompts, block_size, num_blocks, given_back=0)


@wrong("predict_with_eviction", "You count blocks")
def blocks_in_a_small_cache(prompts, block_size, num_blocks):
    return [n // block_size for n in find_cached_tokens(prompts, block_size, num_blocks)]


@wrong("predict_with_eviction", "needs a block, too")
def no_block_for_the_rest(prompts, block_size, num_blocks):
    return short_queue(prompts, block_size, num_blocks, taken=0, given_back=0)


@wrong("predict_with_eviction", "without what comes before")
def single_blocks_in_a_queue(prompts, block_size, num_blocks):
    return short_queue(prompts, block_size, num_blocks, chained=False)


# 4 order_requests


@right("order_requests")
def sorted_places(prompts):
    return sorted(range(len(prompts)), key=lambda i: prompts[i])


@right("order_requests")
def sorted_backwards(prompts):
    return sorted(range(len(prompts)), key=prompts.__getitem__, reverse=True)


@right("order_requests")
def nearest_neighbour(prompts):
    left, order = list(range(1, len(prompts))), [0]
    while left:
        best = max(left, key=lambda i: common(prompts[i], prompts[order[-1]]))
        left.remove(best)
        order.append(best)
    return order


@wrong("order_requests", "left as it was")
def first_come(prompts):
    return list(range(len(prompts)))


@wrong("order_requests", "not next to each other")
def by_length(prompts):
    return sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), prompts[i][-1]))


@wrong("order_requests", "not next to each other")
def by_the_first_token(prompts):
    return sorted(range(len(prompts)), key=lambda i: prompts[i][0])


@wrong("order_requests", "not next to each other")
def by_the_last_token(prompts):
    return sorted(range(len(prompts)), key=lambda i: prompts[i][-1])


@wrong("order_requests", "You return the prompts")
def the_prompts_themselves(prompts):
    return sorted(prompts)


@wrong("order_requests", "changes the list")
def sorts_in_place(prompts):
    before = list(prompts)
    prompts.sort()
    return [before.index(prompt) for prompt in prompts]


@wrong("order_requests", "Each place must occur once")
def one_per_tenant(prompts):
    groups = defaultdict(list)
    for i, prompt in enumerate(prompts):
        groups[prompt[0]].append(i)
    return [places[0] for places in groups.values()]


@wrong("order_requests", "not next to each other")
def by_sixteen_tokens(prompts):
    return sorted(range(len(prompts)), key=lambda i: prompts[i][:16])


@wrong("order_requests", "Each place must occur once")
def places_of_the_sorted_prompts(prompts):
    return [prompts.index(prompt) for prompt in sorted(prompts)]


@right("order_requests")
def sorted_as_text(prompts):
    return sorted(range(len(prompts)), key=lambda i: str(prompts[i]))


# 5 smallest_cache


@right("smallest_cache")
def halving(hits_with, target, most):
    low, high = 1, most + 1
    while low < high:
        middle = (low + high) // 2
        if hits_with(middle) >= target:
            high = middle
        else:
            low = middle + 1
    return low if low <= most else None


@right("smallest_cache")
def with_bisect(hits_with, target, most):
    place = bisect.bisect_left(range(1, most + 1), True, key=lambda n: hits_with(n) >= target)
    return place + 1 if place < most else None


@right("smallest_cache")
def recursive(hits_with, target, most):
    def search(low, high):  # high is enough
        if low == high:
            return low
        middle = (low + high) // 2
        return search(low, middle) if hits_with(middle) >= target else search(middle + 1, high)

    return search(1, most) if hits_with(most) >= target else None


@wrong("smallest_cache", "allowed")
def one_after_another(hits_with, target, most):
    return next((n for n in range(1, most + 1) if hits_with(n) >= target), None)


@wrong("smallest_cache", "a smaller one is, too")
def doubling_only(hits_with, target, most):
    n = 1
    while hits_with(n) < target:
        if n == most:
            return None
        n = min(2 * n, most)
    return n


@wrong("smallest_cache", "answer is None")
def never_none(hits_with, target, most):
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if hits_with(middle) >= target else (middle + 1, high)
    return low


@wrong("smallest_cache", "a smaller one is, too")
def more_than_the_target(hits_with, target, most):
    low, high = 1, most + 1
    while low < high:
        middle = (low + high) // 2
        if hits_with(middle) >= target or middle == most:
            high = middle
        else:
            low = middle + 1
    enough = hits_with(min(low, most)) >= target
    return min(low + 1, most) if enough else None


@wrong("smallest_cache", "too small")
def one_too_few(hits_with, target, most):
    answer = halving(hits_with, target, most)
    return answer if answer in (None, 1) else answer - 1


@wrong("smallest_cache", "`hits_with(0)` was called")
def asks_zero(hits_with, target, most):
    low, high = 0, most
    if hits_with(low) >= target:
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if hits_with(middle) >= target else (middle, high)
    return high


@wrong("smallest_cache", "does not end")
def endless(hits_with, target, most):
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if hits_with(middle) >= target else (middle, high)
    return low if hits_with(low) >= target else None


# 6 predict_ttft


def line(measurements):
    (n, at_n), (m, at_m) = measurements
    per_token = (at_m - at_n) / (m - n)
    return at_n - n * per_token, per_token


@right("predict_ttft")
def step_and_further_tokens(measurements, num_tokens, num_cached_tokens):
    (short, at_short), (long, at_long) = sorted(measurements)
    per_token = (at_long - at_short) / (long - short)
    per_step = at_short - (short - 1) * per_token
    return per_step + (num_tokens - num_cached_tokens - 1) * per_token


@right("predict_ttft")
def interpolated(measurements, num_tokens, num_cached_tokens):
    (n, at_n), (m, at_m) = measurements
    share = (num_tokens - num_cached_tokens - n) / (m - n)
    return (1 - share) * at_n + share * at_m


@wrong("predict_ttft", "paid for again")
def ignores_the_cache(measurements, num_tokens, num_cached_tokens):
    return interpolated(measurements, num_tokens, 0)


@wrong("predict_ttft", "tokens that were found")
def pays_for_the_hits(measurements, num_tokens, num_cached_tokens):
    return interpolated(measurements, num_cached_tokens, 0)


@wrong("predict_ttft", "fixed cost of a step is missing")
def no_fixed_cost(measurements, num_tokens, num_cached_tokens):
    return line(measurements)[1] * (num_tokens - num_cached_tokens)


@wrong("predict_ttft", "short prompt looks far too fast")
def tokens_per_second_of_the_second(measurements, num_tokens, num_cached_tokens):
    tokens, seconds = measurements[1]
    return seconds / tokens * (num_tokens - num_cached_tokens)


@wrong("predict_ttft", "long prompt looks far too slow")
def tokens_per_second_of_the_first(measurements, num_tokens, num_cached_tokens):
    tokens, seconds = measurements[0]
    return seconds / tokens * (num_tokens - num_cached_tokens)


@wrong("predict_ttft", "taken for the fixed cost")
def first_as_fixed_cost(measurements, num_tokens, num_cached_tokens):
    return measurements[0][1] + line(measurements)[1] * (num_tokens - num_cached_tokens)


@wrong("predict_ttft", "a step with one token")
def first_as_one_token(measurements, num_tokens, num_cached_tokens):
    return measurements[0][1] + line(measurements)[1] * (num_tokens - num_cached_tokens - 1)


@wrong("predict_ttft", "share of the hits")
def share_of_the_whole(measurements, num_tokens, num_cached_tokens):
    whole = interpolated(measurements, num_tokens, 0)
    return whole * (1 - num_cached_tokens / num_tokens)


@wrong("predict_ttft", "One token is missing")
def one_token_less(measurements, num_tokens, num_cached_tokens):
    start, per_token = line(measurements)
    return start + (num_tokens - num_cached_tokens - 1) * per_token


@wrong("predict_ttft", "milliseconds")
def in_milliseconds(measurements, num_tokens, num_cached_tokens):
    return 1e3 * interpolated(measurements, num_tokens, num_cached_tokens)


@wrong("predict_ttft", "tokens per second")
def upside_down(measurements, num_tokens, num_cached_tokens):
    (n, at_n), (m, at_m) = measurements
    return line(measurements)[0] + (m - n) / (at_m - at_n) * (num_tokens - num_cached_tokens)


@wrong("predict_ttft", "expected seconds, a number")
def returns_the_line(measurements, num_tokens, num_cached_tokens):
    return line(measurements)


@wrong("predict_ttft", "tokens per second")
def slope_upside_down(measurements, num_tokens, num_cached_tokens):
    (n1, t1), (n2, t2) = measurements
    return t1 + (num_tokens - num_cached_tokens - n1) * (n2 - n1) / (t2 - t1)


@wrong("predict_ttft", "count the tokens from the other one")
def two_starting_points(measurements, num_tokens, num_cached_tokens):
    (n1, t1), (n2, t2) = measurements
    return t2 + (num_tokens - num_cached_tokens - n1) * (t2 - t1) / (n2 - n1)


@wrong("predict_ttft", "never predict less than the faster measurement")
def no_faster_than_measured(measurements, num_tokens, num_cached_tokens):
    (n1, t1), (n2, t2) = measurements
    seconds = t1 + (num_tokens - num_cached_tokens - n1) * (t2 - t1) / (n2 - n1)
    return max(seconds, min(t1, t2))


# 7 hit_rate


def read(text, name):
    """The counter `name`: labels -> value."""
    found = {}
    for row in text.splitlines():
        if row.startswith(name + "{"):
            labels, value = row[len(name) :].rsplit(" ", 1)
            found[labels] = float(value)
    return found


def grown(before, after, what, restart=lambda old, new: new if new < old else new - old):
    name = f"vllm:prefix_cache_{what}_total"
    old, new = read(before, name), read(after, name)
    return sum(restart(old.get(labels, 0.0), value) for labels, value in new.items())


@right("hit_rate")
def by_labels(before, after):
    queries = grown(before, after, "queries")
    return grown(before, after, "hits") / queries if queries else None


@right("hit_rate")
def with_a_pattern(before, after):
    pattern = re.compile(r"^vllm:prefix_cache_(queries|hits)_total(\{.*\}) (\S+)$", re.MULTILINE)
    old = {(m[1], m[2]): float(m[3]) for m in pattern.finditer(before)}
    sums = {"queries": 0.0, "hits": 0.0}
    for match in pattern.finditer(after):
        value, earlier = float(match[3]), old.get((match[1], match[2]), 0.0)
        sums[match[1]] += value - earlier if value >= earlier else value
    return None if sums["queries"] == 0 else sums["hits"] / sums["queries"]


@right("hit_rate")
def with_prometheus_own_parser(before, after):
    from prometheus_client.parser import text_string_to_metric_families

    def samples(text):
        families = text_string_to_metric_families(text)
        return {(s.name, tuple(sorted(s.labels.items()))): s.value
                for family in families for s in family.samples}  # fmt: skip

    old, sums = samples(before), defaultdict(float)
    for (name, labels), value in samples(after).items():
        earlier = old.get((name, labels), 0.0)
        sums[name] += value if value < earlier else value - earlier
    queries = sums["vllm:prefix_cache_queries_total"]
    return sums["vllm:prefix_cache_hits_total"] / queries if queries else None


@wrong("hit_rate", "since the server was started")
def since_the_start(before, after):
    hits, queries = (
        sum(read(after, f"vllm:prefix_cache_{what}_total").values()) for what in ("hits", "queries")
    )
    return hits / queries


@wrong("hit_rate", "you return 0")
def zero_when_idle(before, after):
    return by_labels(before, after) or 0.0


@wrong("hit_rate", "raised ZeroDivisionError")
def divides_by_zero(before, after):
    return grown(before, after, "hits") / grown(before, after, "queries")


@wrong("hit_rate", "Your increase is negative")
def no_restart(before, after):
    minus = functools.partial(grown, before, after, restart=lambda old, new: new - old)
    return minus("hits") / minus("queries") if minus("queries") else None


@wrong("hit_rate", "thrown away")
def restart_counts_nothing(before, after):
    grow = functools.partial(grown, before, after, restart=lambda old, new: max(0.0, new - old))
    return grow("hits") / grow("queries") if grow("queries") else None


@wrong("hit_rate", "without its sign")
def absolute_difference(before, after):
    grow = functools.partial(grown, before, after, restart=lambda old, new: abs(new - old))
    return grow("hits") / grow("queries") if grow("queries") else None


@wrong("hit_rate", "summed before the restart")
def sums_first(before, after):
    changes = {}
    for what in ("hits", "queries"):
        name = f"vllm:prefix_cache_{what}_total"
        old, new = sum(read(before, name).values()), sum(read(after, name).values())
        changes[what] = new if new < old else new - old
    return changes["hits"] / changes["queries"] if changes["queries"] else None


@wrong("hit_rate", "last engine's line")
def one_number_per_name(before, after):
    changes = {}
    for what in ("hits", "queries"):
        name = f"vllm:prefix_cache_{what}_total"
        old, new = (list(read(text, name).values())[-1] for text in (before, after))
        changes[what] = new if new < old else new - old
    return changes["hits"] / changes["queries"] if changes["queries"] else None


@wrong("hit_rate", "first engine's line")
def the_first_match(before, after):
    def value(text, what):
        return float(re.search(rf"^vllm:prefix_cache_{what}_total\S* (\S+)", text, re.M)[1])

    changes = {}
    for what in ("hits", "queries"):
        old, new = value(before, what), value(after, what)
        changes[what] = new if new < old else new - old
    return changes["hits"] / changes["queries"] if changes["queries"] else None


@wrong("hit_rate", "not there before is left out")
def only_known_engines(before, after):
    known = read(before, "vllm:prefix_cache_hits_total")
    rows = [row for row in after.splitlines() if any(labels in row for labels in known)]
    return by_labels(before, "\n".join(rows))


@wrong("hit_rate", "external")
def name_anywhere_in_the_line(before, after):
    return between(before, after, lambda line: "prefix_cache_" in line and "_total{" in line)


@wrong("hit_rate", "`_created`")
def beginning_without_the_brace(before, after):
    names = "vllm:prefix_cache_queries", "vllm:prefix_cache_hits"
    return between(before, after, lambda line: line.startswith(names))


def between(before, after, fits):
    """Read the lines that fit, as the solution does."""

    def read(text):
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if fits(line))
        return {series: float(value) for series, value in lines if series[0] != "#"}

    old, sums = read(before), [0.0, 0.0]
    for series, value in read(after).items():
        was = old.get(series, 0.0)
        sums["cache_hits" in series] += value - was if value >= was else value
    return sums[1] / sums[0] if sums[0] else None


@wrong("hit_rate", "external")
def contains_the_words(before, after):
    rows = [text.replace("vllm:external_prefix", "vllm:prefix") for text in (before, after)]

    def total(text, what):
        found = defaultdict(float)
        for row in text.splitlines():
            if row.startswith(f"vllm:prefix_cache_{what}_total"):
                labels, value = row.rsplit(" ", 1)
                found[labels] += float(value)
        return found

    changes = {}
    for what in ("hits", "queries"):
        old, new = total(rows[0], what), total(rows[1], what)
        changes[what] = sum(
            v if v < old.get(labels, 0.0) else v - old.get(labels, 0.0) for labels, v in new.items()
        )
    return changes["hits"] / changes["queries"] if changes["queries"] else None


@wrong("hit_rate", "could not convert string to float")
def reads_comments(before, after):
    for row in after.splitlines():
        if "prefix_cache_hits" in row:
            float(row.split()[-1])
    return by_labels(before, after)


@wrong("hit_rate", "percent")
def in_percent(before, after):
    rate = by_labels(before, after)
    return None if rate is None else 100 * rate


@wrong("hit_rate", "a number or None")
def as_text(before, after):
    return f"{by_labels(before, after) or 0:.0%}"


# 8 engine


def parts(**changed):
    return Parts(
        **{
            "predict_cached_tokens": sets_of_prefixes,
            "predict_with_eviction": with_an_ordered_dict,
            "order_requests": sorted_places,
            "hit_rate": by_labels,
            **changed,
        }
    )


@right("engine")
def other_right_parts():
    return parts(predict_cached_tokens=pairwise, hit_rate=with_a_pattern)


@wrong("engine", "must return `Parts`")
def a_dictionary():
    return vars(parts())


@wrong("engine", "`predict_cached_tokens` is wrong here")
def a_block_size_of_its_own():
    return parts(predict_cached_tokens=lambda requests, size: pairwise(requests, 16))


@wrong("engine", "`predict_cached_tokens` is wrong here")
def a_predictor_without_salts():
    return parts(predict_cached_tokens=no_salt)


@wrong("engine", "`predict_with_eviction` is wrong here")
def a_predictor_without_eviction():
    return parts(predict_with_eviction=room_for_all)


@wrong("engine", "`predict_with_eviction` is wrong here")
def one_block_less():
    return parts(
        predict_with_eviction=lambda prompts, size, n: find_cached_tokens(prompts, size, n - 1)
    )


@wrong("engine", "no more tokens would be found")
def an_order_that_changes_nothing():
    return parts(order_requests=first_come)


@wrong("engine", "each place once")
def an_order_that_loses_customers():
    return parts(order_requests=one_per_tenant)


@wrong("engine", "simplest pair of scrapes")
def a_rate_since_the_start():
    return parts(hit_rate=since_the_start)
