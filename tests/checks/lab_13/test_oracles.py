"""What lab 13 calls right is what the engine and Prometheus' own parser say; inputs reach far."""

from __future__ import annotations

import itertools

import pytest
from prometheus_client.parser import text_string_to_metric_families

from utils.checks import lab_13
from utils.checks.kit.contracts import Given
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.lab_13 import answers, scrapes
from utils.checks.lab_13.prompts import SHOWN, told
from utils.checks.lab_13.real_counters import Parts
from utils.sim.prompt_cache import find_cached_tokens


def test_brute_force_finds_what_the_engines_manager_finds():
    drawn = [given.args for given in sample(lab_13.draw_requests, 150)]
    found = [lab_13.found_tokens(*args) for args in drawn]
    assert found == [
        find_cached_tokens([p for _, p in requests], size, salts=[salt for salt, _ in requests])
        for requests, size in drawn
    ]
    assert sum(map(any, found)) > 60


def test_requests_reach_the_corners():
    drawn = [given.args for given in sample(lab_13.draw_requests, 300)]
    prompts = [prompt for requests, _ in drawn for _, prompt in requests]
    assert {salt for requests, _ in drawn for salt, _ in requests} >= {None, "None", "x", "X", "x "}
    assert any(not requests for requests, _ in drawn)
    assert max(len(requests) for requests, _ in drawn) > 30
    assert max(map(len, prompts)) > 1000
    assert {0, 70_000} <= set(itertools.chain(*prompts))
    whole = [  # found but for the last block
        found == len(prompt) - size > 0
        for requests, size in drawn
        for (_, prompt), found in zip(requests, lab_13.found_tokens(requests, size), strict=True)
    ]
    assert sum(whole) > 10


def test_small_caches_evict_and_all_prompts_fit():
    drawn = [given.args for given in sample(lab_13.draw_bounded, 200)]
    evicted = 0
    for prompts, size, num_blocks in drawn:
        assert all(len(prompt) % size for prompt in prompts)
        bounded = lab_13.found_by_manager(prompts, size, num_blocks)
        evicted += sum(bounded) < sum(find_cached_tokens(prompts, size))
    assert evicted > 45
    assert max(num_blocks for *_, num_blocks in drawn) > 1024


def test_long_prompts_are_told_by_their_lengths():
    assert told([[1, 2], [3]]) == "[[1, 2], [3]]"
    assert told([[1] * SHOWN, [3]]) == f"2, of [{SHOWN}, 1] tokens"


def test_different_texts_are_those_of_a_set():
    for given in sample(lab_13.draw_parts, 200):
        (parts,) = given.args
        assert lab_13.distinct_texts(parts) == {n: len(set(texts)) for n, texts in parts.items()}


def test_the_rule_of_fewest_values_is_the_best_for_parts_of_one_length():
    parts = {"a": ["aaaa", "bbbb"] * 3, "b": ["cccc"] * 6, "c": [f"{n:4}" for n in range(6)]}

    def found(names):
        rows = [[ord(c) for n in names for c in parts[n][i]] for i in range(6)]
        return sum(find_cached_tokens(rows, 4))

    assert max(map(found, itertools.permutations(parts))) == found(["b", "a", "c"])


def test_an_order_that_passes_finds_all_that_any_order_finds():
    """Compared by brute force with all orders, in a cache with room for the longest prompt."""
    few = [given for given in sample(lab_13.draw_batch, 90) if len(given.args[0]) <= 5]
    assert len(few) > 20
    for given in few:
        prompts = [[*prompt, 9_000_000 + i] for i, prompt in enumerate(given.args[0])]
        if max(map(len, prompts)) > 100:
            continue

        def found(order, prompts=prompts):
            longest = max(map(len, prompts))
            return sum(find_cached_tokens([prompts[i] for i in order], 1, longest))

        every = [list(order) for order in itertools.permutations(range(len(prompts)))]
        case = Given(prompts)
        passing = [o for o in every if lab_13.wrong_places(len(prompts), o, case) is None]
        assert passing
        assert {found(order) for order in passing} == {max(map(found, every))}


def test_days_have_all_kinds_of_answers():
    days = [day for days in sample(lab_13.draw_days, 300) for day in days]
    for day in days:
        every = (n for n in range(1, day.most + 1) if day.hits_with(n) >= day.target)
        if day.most < 1000:
            assert day.answer == next(every, None)
    assert sum(day.answer is None for day in days) > 30
    assert sum(day.answer == 1 for day in days) > 30
    assert sum(day.answer == day.most > 1 for day in days) > 5
    assert max(day.most for day in days) > 10_000


def test_what_is_left_lies_below_between_and_above_the_measurements():
    places = set()
    for given in sample(lab_13.draw_times, 200):
        (one, other), num_tokens, cached = given.args
        left = num_tokens - cached
        places.add((left < min(one[0], other[0])) - (left > max(one[0], other[0])))
        assert left > 0
    assert places == {-1, 0, 1}


def test_the_rate_is_what_prometheus_own_parser_reads():
    def samples(text):
        families = text_string_to_metric_families(text if text.endswith("\n") else text + "\n")
        return {(s.name, *sorted(s.labels.items())): s.value for f in families for s in f.samples}

    rates = []
    for given in sample(scrapes.draw_scrapes, 200):
        before, after = map(samples, given.args)
        grown = {name: 0.0 for name in scrapes.NAMES.values()}
        for series, value in after.items():
            if series[0] in grown:
                old = before.get(series, 0.0)
                grown[series[0]] += value - old if value >= old else value
        queries, found = grown.values()
        rates.append(scrapes.increase_ratio(*given.args))
        assert rates[-1] == pytest.approx(found / queries if queries else None)
    assert 10 < rates.count(None) < 100


def stub(*_):
    raise NotImplementedError


@pytest.mark.parametrize("name", Parts.__dataclass_fields__)
def test_the_last_exercise_names_a_part_that_is_not_written(name):
    right = {part: getattr(answers, part) for part in Parts.__dataclass_fields__}
    feedback = lab_13.engine(lambda: Parts(**(right | {name: stub})))
    assert feedback.status == "not written yet"
    assert "`stub`" in feedback.headline


def test_none_is_never_called_a_missing_return_where_it_may_be_right():
    feedback = lab_13.hit_rate(lambda before, after: None)
    assert feedback.status == "failed"
    assert "return` missing" not in feedback.message
    assert "although prompts were looked up" in feedback.headline
