"""Two real vLLM servers that share a store, started once: equal tokens, counted hits, a proxy."""

from __future__ import annotations

import random
from collections.abc import Iterator

import psutil
import pytest

from utils.disaggregation.interference import measure_interference
from utils.disaggregation.proxy import start_proxy
from utils.disaggregation.valkey import ValkeyServer
from utils.disaggregation.vllm_servers import (
    CacheCounts,
    cache_counts,
    complete,
    connected_servers,
)
from utils.pipeline.process import WorkerError
from utils.pipeline.vllm.local_server import LocalServer

pytestmark = pytest.mark.slow  # one minute or two: both servers start
Pair = tuple[ValkeyServer, LocalServer, LocalServer]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with ValkeyServer() as store:
        first, second = connected_servers(store.port, timeout=10.0, verbose=False)
        with first, second:
            yield store, first, second


def tokens(count: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(1000, 30000) for _ in range(count)]


def test_the_second_server_finds_what_the_first_one_computed(pair: Pair) -> None:
    store, first, second = pair
    for seed, length in enumerate((31, 32, 33, 334, 654)):
        prompt = tokens(length, seed)
        one, before = complete(first, prompt, 8), cache_counts(second)
        other = complete(second, prompt, 8)
        found = (length - 1) // 32 * 32
        assert cache_counts(second) - before == CacheCounts(length, 0, length, found)
        assert other.num_cached_tokens == found and one.num_cached_tokens == 0
        assert other.token_ids == one.token_ids and len(one.token_ids) == 8
    assert store.stats().keys == sum(n // 32 for n in (31, 32, 33, 334, 654))


def test_salts_keep_tenants_apart(pair: Pair) -> None:
    _, first, second = pair
    prompt = tokens(100, seed=10)
    answers = [complete(first, prompt, 4, cache_salt="a").token_ids]
    before = cache_counts(second)
    answers.append(complete(second, prompt, 4, cache_salt="b").token_ids)
    assert (cache_counts(second) - before).external_hits == 0
    answers.append(complete(second, prompt, 4, cache_salt="a").token_ids)
    assert (cache_counts(second) - before).external_hits == 96
    assert answers[0] == answers[1] == answers[2]


def test_damage_and_a_stall_cost_time_and_no_token(pair: Pair) -> None:
    store, first, second = pair
    prompt, client = tokens(200, seed=20), store.client()
    known = set(client.scan_iter())
    want = complete(first, prompt, 8).token_ids
    for key in set(client.scan_iter()) - known:
        client.set(key, client.get(key)[:-1])
    got = complete(second, prompt, 8)
    assert got.token_ids == want and got.num_cached_tokens == 0

    prompt = tokens(200, seed=21)
    want = complete(first, prompt, 8).token_ids
    store.pause()
    try:
        assert complete(second, prompt, 8).token_ids == want
    finally:
        store.resume()


def test_prefill_and_decode_apart(pair: Pair) -> None:
    _, first, second = pair
    with start_proxy([first.url], [second.url], first.model) as proxy:
        prompt, before = tokens(300, seed=30), cache_counts(second)
        through = complete(proxy, prompt, 8)
        assert cache_counts(second) - before == CacheCounts(300, 0, 300, 288)
        assert complete(first, prompt, 8).token_ids == through.token_ids

        alone = measure_interference(second, tokens(20, 52), [], None, quiet_seconds=1.0)
        for attempt in range(3):  # on a busy machine, whatever else runs may make the longest gap
            seeds = range(100 * attempt, 100 * attempt + 100)
            long = [tokens(600, seed) for seed in seeds[40:42]]
            apart = measure_interference(second, tokens(20, seeds[50]), long, proxy)
            long = [tokens(600, seed) for seed in seeds[43:45]]
            together = measure_interference(second, tokens(20, seeds[51]), long, second)
            assert len(apart.long_ttfts) == len(together.long_ttfts) == 2
            assert alone.median_gap < together.longest_gap
            if apart.longest_gap < together.longest_gap:
                return
        raise AssertionError(f"the longest gap: {apart.longest_gap} s, {together.longest_gap} s")


def test_a_stream_that_is_too_short_is_an_error(pair: Pair) -> None:
    _, _, second = pair
    with pytest.raises(RuntimeError, match="before all long prompts were answered"):
        measure_interference(second, tokens(20, 60), [tokens(600, 61)], second, max_tokens=12)


def test_if_one_server_cannot_start_none_is_left() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(WorkerError, match="no_such_module"):
        connected_servers(1, module="no_such_module", verbose=False)
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after <= before
