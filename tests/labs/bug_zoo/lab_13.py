"""Right answers to lab 13, written differently, and wrong ones that are no edits of the right."""

from __future__ import annotations

import bisect
from collections import OrderedDict, defaultdict

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.kit.lab.edits import edited
from utils.checks.lab_13 import answers
from utils.checks.lab_13.real_counters import Parts
from utils.sim.prompt_cache import find_cached_tokens

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right


def common(a, b):
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return same


# 1 predict_cached_tokens


@right("predict_cached_tokens")
def pairwise(requests, block_size):
    predicted = []
    for i, (salt, prompt) in enumerate(requests):
        shared = max((common(prompt, p) for s, p in requests[:i] if s == salt), default=0)
        predicted.append(min(shared, len(prompt) - 1) // block_size * block_size)
    return predicted


@right("predict_cached_tokens")
def in_numpys_numbers(requests, block_size):
    import numpy as np

    return list(np.array(pairwise(requests, block_size), dtype=np.int64))


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


# 2 order_parts


@right("order_parts")
def constants_then_the_rest(parts):
    names = list(parts)
    return sorted(names, key=lambda name: (len(set(parts[name])), -names.index(name)))


# 3 predict_with_eviction


@right("predict_with_eviction")
def an_lru_without_one_block(prompts, block_size, num_blocks):
    """The block that isn't full is always in front, so the rest is an LRU of num_blocks - 1."""
    cache, found = OrderedDict(), []  # prefix -> None, the first to go in front
    for prompt in prompts:
        full = [tuple(prompt[:e]) for e in range(block_size, len(prompt) + 1, block_size)]
        found.append(sum(prefix in cache for prefix in full) * block_size)
        for prefix in reversed(full):
            cache[prefix] = None
            cache.move_to_end(prefix)
        while len(cache) > num_blocks - 1:
            cache.popitem(last=False)
    return found


@wrong("predict_with_eviction", "you miss hits")
def whole_prompts_are_evicted(prompts, block_size, num_blocks):
    kept, found = [], []
    for prompt in prompts:
        needed = -(-len(prompt) // block_size)
        found.append(pairwise([(None, p) for p in (*kept, prompt)], block_size)[-1])
        while kept and needed + sum(-(-len(p) // block_size) for p in kept) > num_blocks:
            kept.pop(0)
        kept.append(prompt)
    return found


# 4 order_requests


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


# 5 smallest_cache


@right("smallest_cache")
def with_bisect(hits_with, target, most):
    place = bisect.bisect_left(range(1, most + 1), True, key=lambda n: hits_with(n) >= target)
    return place + 1 if place < most else None


@right("smallest_cache")
def bit_by_bit(hits_with, target, most):
    small = 0  # the largest size known to be too small
    for bit in reversed(range(most.bit_length())):
        size = small + 2**bit
        if size <= most and hits_with(size) < target:
            small = size
    return small + 1 if small < most else None


# 6 predict_ttft


@right("predict_ttft")
def step_and_further_tokens(measurements, num_tokens, num_cached_tokens):
    (short, at_short), (long, at_long) = sorted(measurements)
    per_token = (at_long - at_short) / (long - short)
    per_step = at_short - (short - 1) * per_token
    return per_step + (num_tokens - num_cached_tokens - 1) * per_token


@right("predict_ttft")
def solved(measurements, num_tokens, num_cached_tokens):
    import numpy as np

    (n, at_n), (m, at_m) = measurements
    fixed, per_token = np.linalg.solve([[1, n], [1, m]], [at_n, at_m])
    return fixed + per_token * (num_tokens - num_cached_tokens)


# 7 hit_rate


def read(text, name):
    """The counter `name`: labels -> value."""
    rows = [row.rsplit(" ", 1) for row in text.splitlines() if row.startswith(name + "{")]
    return {series[len(name) :]: float(value) for series, value in rows}


def grown(before, after, name):
    old = read(before, name)
    pairs = [(old.get(labels, 0.0), new) for labels, new in read(after, name).items()]
    return sum(new if new < then else new - then for then, new in pairs)


@right("hit_rate")
def counter_by_counter(before, after):
    hits, queries = (
        grown(before, after, f"vllm:prefix_cache_{what}_total") for what in ("hits", "queries")
    )
    return hits / queries if queries else None


@right("hit_rate")
def with_prometheus_own_parser(before, after):
    from prometheus_client.parser import text_string_to_metric_families

    def samples(text):
        families = text_string_to_metric_families(text)
        return {
            (s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples
        }

    old, sums = samples(before), defaultdict(float)
    for (name, labels), value in samples(after).items():
        then = old.get((name, labels), 0.0)
        sums[name] += value if value < then else value - then
    queries = sums["vllm:prefix_cache_queries_total"]
    return sums["vllm:prefix_cache_hits_total"] / queries if queries else None


@wrong("hit_rate", "raised ValueError")
def splits_labels_at_commas(before, after):
    for row in (*before.splitlines(), *after.splitlines()):
        if row.startswith("vllm:prefix_cache_") and "_total{" in row:
            labels = row.partition("{")[2].rpartition("}")[0]
            dict(label.split("=") for label in labels.split(","))
    return counter_by_counter(before, after)


@wrong("hit_rate", "One of these counters was restarted")
def sums_the_engines_first(before, after):
    def total(text, what):
        return sum(read(text, f"vllm:prefix_cache_{what}_total").values())

    increase = {}
    for what in ("hits", "queries"):
        old, new = total(before, what), total(after, what)
        increase[what] = new if new < old else new - old
    return increase["hits"] / increase["queries"] if increase["queries"] else None


@wrong("hit_rate", "A line of the first scrape is gone")
def subtracts_what_is_gone(before, after):
    def total(what):
        name = f"vllm:prefix_cache_{what}_total"
        lost = read(before, name).keys() - read(after, name).keys()
        return grown(before, after, name) - sum(read(before, name)[labels] for labels in lost)

    return total("hits") / total("queries") if total("queries") else None


# 8 engine


def parts(**other):
    return lambda: Parts(
        **{
            "predict_cached_tokens": pairwise,
            "predict_with_eviction": an_lru_without_one_block,
            "order_requests": sorted_backwards,
            "hit_rate": counter_by_counter,
            **other,
        }
    )


@right("engine")
def other_right_parts():
    return parts()()


@wrong("engine", "must return `Parts`")
def a_dictionary():
    return vars(parts()())


@wrong("engine", "passes its own check, but is wrong on this exercise's prompts")
def wrong_on_real_prompts_alone():
    def none_for_some_ids(prompts, size, room):
        found = find_cached_tokens(prompts, size, room)
        return (
            found if all(max(p) not in range(20_000, 30_000) for p in prompts) else [0] * len(found)
        )

    return parts(predict_with_eviction=none_for_some_ids)()


@wrong("engine", "Exercise 3 is not right yet")
def one_block_less():
    return parts(
        predict_with_eviction=lambda prompts, size, n: find_cached_tokens(prompts, size, n - 1)
    )()


@wrong("engine", "Exercise 7 is not right yet", "since the server was started")
def a_rate_since_the_start():
    edit = "+= new - old if new >= old else new => += new"
    return parts(hit_rate=edited(answers.hit_rate, [edit]))()
