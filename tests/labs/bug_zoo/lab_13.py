"""Wrong and right answers to lab 13, each as a learner might write it."""

from __future__ import annotations

import bisect
import itertools
import re
from collections import OrderedDict, defaultdict, deque

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_13.real_counters import Parts
from utils.sim.prompt_cache import find_cached_tokens

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right


def table(exercise, **answers):
    """Wrong answers: a name, words that the feedback must contain, the answer."""
    for name, (says, answer) in answers.items():
        answer.__name__ = name
        wrong(exercise, says)(answer)


def common(a, b):
    pairs = zip(a, b, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def longest(requests, i, shares=lambda own, earlier: own == earlier):
    """The longest beginning that request i shares with an earlier one."""
    salt, prompt = requests[i]
    return max((common(prompt, p) for s, p in requests[:i] if shares(salt, s)), default=0)


def each(count, **how):
    """An answer to exercise 1, from (tokens shared, length of the prompt, block size)."""
    return lambda requests, size: [
        count(longest(requests, i, **how), len(p), size) for i, (_, p) in enumerate(requests)
    ]


def rounded(shared, length, size):
    return min(shared, length - 1) // size * size


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
    return each(rounded)(requests, block_size)


@right("predict_cached_tokens")
def in_numpys_numbers(requests, block_size):
    import numpy as np

    return list(np.array(pairwise(requests, block_size), dtype=np.int64))


@wrong("predict_cached_tokens", "prediction is wrong")
def only_the_last_request(requests, block_size):
    pairs = itertools.pairwise(requests)
    return [0, *(pairwise([before, this], block_size)[1] for before, this in pairs)]


@wrong("predict_cached_tokens", "changes the requests")
def empties_the_list(requests, block_size):
    found = pairwise(requests, block_size)
    requests.clear()
    return found


table(
    "predict_cached_tokens",
    no_salt=("salt is ignored", each(rounded, shares=lambda own, earlier: True)),
    rounds_up=(
        "of its tokens, not",
        each(lambda n, length, size: min(-(-n // size), (length - 1) // size) * size),
    ),
    only_the_first_request=(
        "prediction is wrong",
        lambda requests, size: [0, *(pairwise([requests[0], r], size)[1] for r in requests[1:])],
    ),
    always_one_block_less=(
        "finds 1 of its tokens, not 0",
        each(lambda n, length, size: max(0, n // size * size - size)),
    ),
    forgot_to_return=("returned None", lambda requests, size: None),
    only_the_sum=("Expected a list", lambda requests, size: sum(pairwise(requests, size))),
    as_floats=(
        "Expected whole numbers",
        lambda requests, size: [float(n) for n in pairwise(requests, size)],
    ),
)

# 2 order_parts


@right("order_parts")
def fewest_values_first(parts):
    return sorted(parts, key=lambda name: len(set(parts[name])))


@right("order_parts")
def constants_then_the_rest(parts):
    names = list(parts)
    return sorted(names, key=lambda name: (len(set(parts[name])), -names.index(name)))


@wrong("order_parts", "changes the dictionary")
def pops_while_sorting(parts):
    names = []
    while parts:
        name = min(parts, key=lambda n: len(set(parts[n])))
        names.append(name)
        parts.pop(name)
    return names


def by(key):
    return lambda parts: sorted(parts, key=lambda name: key(parts[name]))


table(
    "order_parts",
    drops_what_changes=(
        "each name once",
        lambda parts: [name for name in parts if len(set(parts[name])) == 1],
    ),
    pairs_instead_of_names=(
        "expected a list of names",
        lambda parts: sorted(parts.items(), key=lambda item: len(set(item[1]))),
    ),
    by_first_and_last=("more different values", by(lambda texts: texts[0] != texts[-1])),
    by_their_lengths=("more different values", by(lambda texts: len(set(map(len, texts))))),
)

# 3 predict_with_eviction


def queue_with(prompts, block_size, num_blocks, **changed):
    """The solution, with one change at a time."""
    free, found = deque([None] * num_blocks), []
    for prompt in prompts:
        ends = range(block_size, len(prompt) + 1, block_size)
        full = [tuple(prompt[e - block_size if "single" in changed else 0 : e]) for e in ends]
        hits = list(itertools.takewhile(free.__contains__, full))
        for prefix in hits if "hits_stay" not in changed else ():
            free.remove(prefix)
        for _ in range(len(full) + changed.get("taken", 1) - len(hits)):
            free.pop() if "newest" in changed else free.popleft()
        if "partial_at_the_back" in changed:
            free.append(None)
        else:
            free.extendleft([None] * changed.get("given_back", 1))
        if "hits_stay" in changed:
            full = full[len(hits) :]
        free.extend(full if "head_first" in changed else reversed(full))
        found.append(len(hits) * block_size)
    return found


def changed(**how):
    return lambda prompts, block_size, num_blocks: queue_with(
        prompts, block_size, num_blocks, **how
    )


@right("predict_with_eviction")
def with_a_queue(prompts, block_size, num_blocks):
    return queue_with(prompts, block_size, num_blocks)


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


@wrong("predict_with_eviction", "Other blocks are evicted")
def whole_prompts_are_evicted(prompts, block_size, num_blocks):
    kept, found = [], []
    for prompt in prompts:
        needed = -(-len(prompt) // block_size)
        found.append(room_for_all([*kept, prompt], block_size, num_blocks)[-1])
        while kept and needed + sum(-(-len(p) // block_size) for p in kept) > num_blocks:
            kept.pop(0)
        kept.append(prompt)
    return found


def room_for_all(prompts, block_size, num_blocks):
    return pairwise([(None, prompt) for prompt in prompts], block_size)


table(
    "predict_with_eviction",
    head_first=("head of a prompt is evicted before its tail", changed(head_first=True)),
    never_looks=("finds 2 of its tokens, not 0", lambda prompts, size, n: [0] * len(prompts)),
    forgets_to_give_back=("raised IndexError: pop from an empty deque", changed(given_back=0)),
)

# 4 order_requests


@right("order_requests")
def sorted_places(prompts):
    return sorted(range(len(prompts)), key=lambda i: prompts[i])


@right("order_requests")
def sorted_backwards(prompts):
    return sorted(range(len(prompts)), key=prompts.__getitem__, reverse=True)


@right("order_requests")
def sorted_as_text(prompts):
    return sorted(range(len(prompts)), key=lambda i: str(prompts[i]))


@right("order_requests")
def nearest_neighbour(prompts):
    left, order = list(range(1, len(prompts))), [0]
    while left:
        best = max(left, key=lambda i: common(prompts[i], prompts[order[-1]]))
        left.remove(best)
        order.append(best)
    return order


@wrong("order_requests", "changes the list")
def sorts_in_place(prompts):
    order = sorted_places(prompts)
    prompts.sort()
    return order


@wrong("order_requests", "Each place must occur once")
def one_per_tenant(prompts):
    return list({prompt[0]: i for i, prompt in enumerate(prompts)}.values())


def places_by(key):
    return lambda prompts: sorted(range(len(prompts)), key=lambda i: key(prompts[i]))


table(
    "order_requests",
    first_come=("left as it was", lambda prompts: list(range(len(prompts)))),
    by_length=("not next to each other", places_by(lambda prompt: (len(prompt), prompt[-1]))),
    by_sixteen_tokens=("not next to each other", places_by(lambda prompt: prompt[:16])),
    the_prompts_themselves=("You return the prompts", lambda prompts: sorted(prompts)),
)

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


@wrong("smallest_cache", "kept from call to call")
def remembers_other_days(hits_with, target, most, known={}):  # noqa: B006
    def ask(n):
        return known.setdefault(n, hits_with(n))

    return halving(ask, target, most)


table(
    "smallest_cache",
    one_after_another=(
        "allowed",
        lambda hits_with, target, most: next(
            (n for n in range(1, most + 1) if hits_with(n) >= target), None
        ),
    ),
    more_than_the_target=(
        "a smaller one is, too",
        lambda hits_with, target, most: halving(lambda n: hits_with(n) - (n < most), target, most),
    ),
    one_too_few=(
        "too small",
        lambda *given: answer if (answer := halving(*given)) in (None, 1) else answer - 1,
    ),
    halves_of_blocks=(
        "`hits_with(1.5)` was called",
        lambda hits_with, target, most: halving(lambda n: hits_with(n / 2 + 1), target, most),
    ),
)

# 6 predict_ttft


def line(measurements):
    (n, at_n), (m, at_m) = measurements
    per_token = (at_m - at_n) / (m - n)
    return at_n - n * per_token, per_token


def seconds(m, left):
    return line(m)[0] + left * line(m)[1]


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


table(
    "predict_ttft",
    one_token_less=("time is wrong", lambda m, n, c: seconds(m, n - c - 1)),
    returns_the_line=("Expected a number", lambda m, n, c: line(m)),
    to_the_millisecond=("time is wrong", lambda m, n, c: round(seconds(m, n - c), 3)),
)

# 7 hit_rate


def read(text, name):
    """The counter `name`: labels -> value."""
    rows = [row.rsplit(" ", 1) for row in text.splitlines() if row.startswith(name + "{")]
    return {series[len(name) :]: float(value) for series, value in rows}


def since(old, new):
    return new if new < old else new - old


def by_counter(grown, idle=None):
    """An answer that divides `grown(before, after)` of the hits by that of the queries."""

    def rate(before, after):
        names = (f"vllm:prefix_cache_{what}_total" for what in ("hits", "queries"))
        hits, queries = (grown(*(read(text, name) for text in (before, after))) for name in names)
        return hits / queries if queries or idle == "never" else idle

    return rate


def sums(change):
    return lambda old, new: sum(change(old.get(s, 0.0), value) for s, value in new.items())


@right("hit_rate")
def by_labels(before, after):
    return by_counter(sums(since))(before, after)


@right("hit_rate")
def with_a_pattern(before, after):
    pattern = re.compile(r"^vllm:prefix_cache_(queries|hits)_total(\{.*\}) (\S+)$", re.MULTILINE)
    old = {(m[1], m[2]): float(m[3]) for m in pattern.finditer(before)}
    grown = {"queries": 0.0, "hits": 0.0}
    for match in pattern.finditer(after):
        value, earlier = float(match[3]), old.get((match[1], match[2]), 0.0)
        grown[match[1]] += value - earlier if value >= earlier else value
    return None if grown["queries"] == 0 else grown["hits"] / grown["queries"]


@right("hit_rate")
def with_prometheus_own_parser(before, after):
    from prometheus_client.parser import text_string_to_metric_families

    def samples(text):
        families = text_string_to_metric_families(text)
        return {
            (s.name, tuple(sorted(s.labels.items()))): s.value
            for family in families
            for s in family.samples
        }

    old, grown = samples(before), defaultdict(float)
    for (name, labels), value in samples(after).items():
        grown[name] += since(old.get((name, labels), 0.0), value)
    queries = grown["vllm:prefix_cache_queries_total"]
    return grown["vllm:prefix_cache_hits_total"] / queries if queries else None


def wider(fits, rename=lambda text: text):
    """Every line that fits is read; lines that then have the same name are added."""

    def rate(before, after):
        pages = []
        for text in (before, after):
            pages.append(defaultdict(float))
            for row in rename(text).splitlines():
                series, value = row.rsplit(" ", 1)
                if row[0] != "#" and fits(series):
                    pages[-1][series] += float(value)
        grown = [0.0, 0.0]
        for series, value in pages[1].items():
            grown["cache_hits" in series] += since(pages[0].get(series, 0.0), value)
        return grown[1] / grown[0] if grown[0] else None

    return rate


@wrong("hit_rate", "could not convert string to float")
def reads_comments(before, after):
    for row in after.splitlines():
        if "prefix_cache_hits" in row:
            float(row.split()[-1])
    return by_labels(before, after)


table(
    "hit_rate",
    since_the_start=(
        "since the server was started",
        by_counter(lambda old, new: sum(new.values()), idle="never"),
    ),
    divides_by_zero=("raised ZeroDivisionError", by_counter(sums(since), idle="never")),
    one_number_per_name=(
        "rate is wrong",
        by_counter(lambda old, new: since(list(old.values())[-1], list(new.values())[-1])),
    ),
    the_first_match=(
        "rate is wrong",
        by_counter(lambda *pages: since(*(list(page.values())[:1][0] for page in pages))),
    ),
    contains_the_words=(
        "rate is wrong",
        wider(
            lambda series: re.match("vllm:prefix_cache_(queries|hits)_total{", series),
            lambda text: text.replace("vllm:external_prefix", "vllm:prefix"),
        ),
    ),
    as_text=("rate is wrong", lambda before, after: f"{by_labels(before, after) or 0:.0%}"),
    by_engine_alone=(
        "rate is wrong",
        lambda before, after: by_labels(
            *(re.sub(',model_name="[^"]*"', "", text) for text in (before, after))
        ),
    ),
)

# 8 engine


def parts(**other):
    return lambda: Parts(
        **{
            "predict_cached_tokens": sets_of_prefixes,
            "predict_with_eviction": with_an_ordered_dict,
            "order_requests": sorted_places,
            "hit_rate": by_labels,
            **other,
        }
    )


@right("engine")
def other_right_parts():
    return parts(predict_cached_tokens=pairwise, hit_rate=with_a_pattern)()


def answers(exercise):
    return {s.answer.__name__: s.answer for s in zoo.wrong_answers if s.exercise == exercise}


table(
    "engine",
    a_dictionary=("must return `Parts`", lambda: vars(parts()())),
    a_block_size_of_its_own=(
        "Exercise 1, `predict_cached_tokens`, is not right",
        parts(predict_cached_tokens=lambda requests, size: pairwise(requests, 16)),
    ),
    a_predictor_without_salts=(
        "Exercise 1, `predict_cached_tokens`, is not right",
        parts(predict_cached_tokens=answers("predict_cached_tokens")["no_salt"]),
    ),
    a_predictor_without_eviction=(
        "Exercise 3, `predict_with_eviction`, is not right",
        parts(predict_with_eviction=room_for_all),
    ),
    one_block_less=(
        "Exercise 3, `predict_with_eviction`, is not right",
        parts(
            predict_with_eviction=lambda prompts, size, n: find_cached_tokens(prompts, size, n - 1)
        ),
    ),
    an_order_that_changes_nothing=(
        "Exercise 4, `order_requests`, is not right",
        parts(order_requests=answers("order_requests")["first_come"]),
    ),
    an_order_that_loses_customers=(
        "Each place must occur once",
        parts(order_requests=one_per_tenant),
    ),
    a_rate_since_the_start=(
        "Exercise 7, `hit_rate`, is not right",
        parts(hit_rate=answers("hit_rate")["since_the_start"]),
    ),
    wrong_on_large_ids_alone=(
        "passes exercise 1, but on real prompts it is wrong",
        parts(
            predict_cached_tokens=lambda requests, size: [
                n + (size == 32) for n in pairwise(requests, size)
            ]
        ),
    ),
)
