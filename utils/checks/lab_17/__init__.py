"""The checks of lab 17.

Oracles: plain and slow counterparts; at last, two real servers and their own counters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_17 import histories, matches, real_servers, rehearsal, ring, truths


@exercise("Exercise 1: find_matches", points=2)
def find_matches(function: Callable[..., list[int]]) -> str | Passed:
    """Check `find_matches(holders, block_names, num_replicas)`."""
    return matches.FIND_MATCHES.check(function)


@exercise("Exercise 2: ring_owner", points=4)
def ring_owner(function: Callable[..., int]) -> str | Passed:
    """Check `ring_owner(key, loads, place_of, num_points, bound)`."""
    return ring.RING_OWNER.check(function)


@exercise("Exercise 3: RoutingHistory", points=4)
def routing_history(history_class: Callable[..., Any]) -> str | Passed:
    """Check `sent`, `matches` and `lost` in random stories of two histories."""
    return histories.ROUTING_HISTORY.check(history_class)


@exercise("Exercise 4: choose_replica", points=3)
def choose_replica(function: Callable[..., int]) -> str | Passed:
    """Check `choose_replica(num_tokens, block_size, matches, waiting_tokens)`."""
    return matches.CHOOSE_REPLICA.check(function)


@exercise("Exercise 5: seconds_until_room", points=2)
def seconds_until_room(function: Callable[..., float]) -> str | Passed:
    """Check `seconds_until_room(tokens_ahead, tokens_per_second, ttft_limit)`."""
    return matches.SECONDS_UNTIL_ROOM.check(function)


@exercise("Exercise 6: KVIndex", points=5)
def kv_index(index_class: Callable[..., Any]) -> str | Passed:
    """Check `apply` and `matches` in random stories of what engines say."""
    return truths.KV_INDEX.check(index_class)


@exercise("Exercise 7: your router in front of two servers", points=5)
def engine(make_router: Callable[..., Any]) -> str:
    """Check `make_router(num_replicas, block_size)`: rehearsed, then with real servers."""
    rehearsal.REHEARSAL.check(make_router)  # before anything is started
    return real_servers.against_round_robin(make_router)
