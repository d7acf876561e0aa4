"""Two real vLLM servers that share a store, started once: equal tokens, counted hits, a proxy."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import count

import psutil
import pytest

from tests.serving.waiting import PATIENCE, eventually
from utils.disaggregation.proxy import start_proxy
from utils.disaggregation.valkey import ValkeyServer
from utils.disaggregation.vllm_servers import (
    CacheCounts,
    RequestRefused,
    cache_counts,
    complete,
    connected_servers,
)
from utils.processes.server import LocalServer
from utils.processes.supervised import WorkerError
from utils.serving.scrape import Reading, scrape

pytestmark = pytest.mark.slow  # one minute or two: both servers start
Pair = tuple[ValkeyServer, LocalServer, LocalServer]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with ValkeyServer() as store:
        policies = ["fail", "recompute"]
        first, second = connected_servers(
            store.port, timeout=5.0, failure_policies=policies, verbose=False
        )
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
    prompt, client = tokens(200, seed=20), store.client(timeout=PATIENCE)
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
    assert client.ping()
    seeds = count(22)

    def found_again() -> bool:
        prompt = tokens(64, next(seeds))
        complete(first, prompt, 1)
        return complete(second, prompt, 1).num_cached_tokens == 32

    eventually(found_again, "the store is asked again")


def test_damage_costs_the_request_where_the_policy_is_fail(pair: Pair) -> None:
    store, first, second = pair
    prompt, client = tokens(200, seed=25), store.client(timeout=PATIENCE)
    known = set(client.scan_iter())
    want = complete(second, prompt, 8).token_ids
    for key in set(client.scan_iter()) - known:
        client.set(key, client.get(key)[:-1])
    with pytest.raises(RequestRefused):
        complete(first, prompt, 8)
    assert complete(first, prompt, 8).token_ids == want  # the damaged block is gone: it computes


def test_an_unknown_failure_policy_is_refused() -> None:
    for policies in ([], ["retry"]):
        with pytest.raises(ValueError, match="expected 'recompute' or 'fail'"):
            connected_servers(1, failure_policies=policies, verbose=False)


def test_prefill_and_decode_apart(pair: Pair) -> None:
    _, first, second = pair
    with start_proxy([first.url], [second.url], first.model) as proxy:
        prompt, before = tokens(300, seed=30), cache_counts(second)
        through = complete(proxy, prompt, 8)
        assert cache_counts(second) - before == CacheCounts(300, 0, 300, 288)
        assert complete(first, prompt, 8).token_ids == through.token_ids


def largest_step(before: Reading, after: Reading) -> float:
    """At most so many tokens were in any of a server's steps: a bound of vLLM's histogram."""
    name, gained = "vllm:iteration_tokens_total_bucket", after.since(before)
    bounds = {float(dict(labels)["le"]) for metric, labels in gained.samples if metric == name}
    of_bound = {
        bound: sum(
            value
            for (metric, labels), value in gained.samples.items()
            if metric == name and float(dict(labels)["le"]) == bound
        )
        for bound in bounds
    }
    return min(bound for bound in bounds if of_bound[bound] == max(of_bound.values()))


def test_long_prompts_are_large_steps_for_d_only_without_p(pair: Pair) -> None:
    """What a stream on D would wait for is D's largest step."""
    _, first, second = pair
    with start_proxy([first.url], [second.url], first.model) as proxy:
        for who, seed in ((proxy, 40), (second, 43)):
            before, counts = scrape(second.url, timeout=PATIENCE), cache_counts(second)
            for number in (seed, seed + 1):
                complete(who, tokens(600, number), 2)
            step = largest_step(before, scrape(second.url, timeout=PATIENCE))
            hits = (cache_counts(second) - counts).external_hits
            if who is proxy:  # of each long prompt, the last 24 tokens are left to compute
                assert hits == 2 * 576 and step <= 64
            else:
                assert hits == 0 and step >= 256


def test_if_one_server_cannot_start_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    watchers: list[int] = []
    wait = LocalServer._wait_until_ready

    def noting(server: LocalServer) -> None:
        watchers.append(server.process.pid)
        wait(server)

    def session(process: psutil.Process) -> int | None:
        try:
            return None if process.status() == psutil.STATUS_ZOMBIE else os.getsid(process.pid)
        except (psutil.NoSuchProcess, ProcessLookupError):
            return None

    monkeypatch.setattr(LocalServer, "_wait_until_ready", noting)
    with pytest.raises(WorkerError, match="no_such_module"):
        connected_servers(1, module="no_such_module", verbose=False)
    assert len(watchers) == 2
    # Each server has a session of its own, with all that it starts.
    left = [process for process in psutil.process_iter() if session(process) in watchers]
    assert not left
