"""The checks of lab 13.

Oracles: the engine's own block manager, brute force over all orders, and vLLM's counters.
"""

from __future__ import annotations

from collections.abc import Callable

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_13 import evictions, hits, orders, real_counters, scrapes, sizes, times


@exercise("Exercise 1: predict_cached_tokens", points=3)
def predict_cached_tokens(function: Callable[..., list[int]]) -> str | Passed:
    """Check `predict_cached_tokens(requests, block_size)`, requests as (salt, token ids)."""
    return hits.PREDICT_CACHED_TOKENS.check(function)


@exercise("Exercise 2: order_parts", points=2)
def order_parts(function: Callable[..., list[str]]) -> str | Passed:
    """Check `order_parts(parts)`: the names, what seldom changes first."""
    return orders.ORDER_PARTS.check(function)


@exercise("Exercise 3: predict_with_eviction", points=5)
def predict_with_eviction(function: Callable[..., list[int]]) -> str | Passed:
    """Check `predict_with_eviction(prompts, block_size, num_blocks)`."""
    return evictions.PREDICT_WITH_EVICTION.check(function)


@exercise("Exercise 4: order_requests", points=2)
def order_requests(function: Callable[..., list[int]]) -> str | Passed:
    """Check `order_requests(prompts)`: places in the list, in the order to send them."""
    return orders.ORDER_REQUESTS.check(function)


@exercise("Exercise 5: smallest_cache", points=3)
def smallest_cache(function: Callable[..., int | None]) -> str | Passed:
    """Check `smallest_cache(hits_with, target, most)`."""
    return sizes.SMALLEST_CACHE.check(function)


@exercise("Exercise 6: predict_ttft", points=2)
def predict_ttft(function: Callable[..., float]) -> str | Passed:
    """Check `predict_ttft(measurements, num_tokens, num_cached_tokens)`."""
    return times.PREDICT_TTFT.check(function)


@exercise("Exercise 7: hit_rate", points=3)
def hit_rate(function: Callable[..., float | None]) -> str | Passed:
    """Check `hit_rate(before, after)` on two scrapes in Prometheus' text format."""
    return scrapes.HIT_RATE.check(function)


@exercise("Exercise 8: your predictors against vLLM", points=4)
def engine(make_parts: Callable[[], real_counters.Parts]) -> Passed:
    """Check `make_parts()` against our engine's counters, then against vLLM's."""
    parts = real_counters.rehearse(make_parts)  # before anything is started
    real_counters.against_our_engine(parts)
    return real_counters.against_vllm(parts)
