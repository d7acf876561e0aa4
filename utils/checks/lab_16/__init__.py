"""The checks of lab 16.

Oracles: SHA-256 over bytes put together in another way, brute force, the engine's own store, exact
fractions, and the engine without a connector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_16.block_bytes import EXTRACT_BLOCK, INJECT_BLOCK
from utils.checks.lab_16.chains import CHUNK_KEYS
from utils.checks.lab_16.costs import FETCH_OR_COMPUTE
from utils.checks.lab_16.learners_engine import judge
from utils.checks.lab_16.learners_parts import Parts
from utils.checks.lab_16.matches import MATCHED_TOKENS
from utils.checks.lab_16.step_stories import SCHEDULER_SIDE
from utils.checks.lab_16.store_stories import LRU_STORE


@exercise("Exercise 1: chunk_keys", points=3)
def chunk_keys(function: Callable[..., list[bytes]]) -> str | Passed:
    """Check `chunk_keys(namespace, token_ids, block_size)`."""
    return CHUNK_KEYS.check(function)


@exercise("Exercise 2: matched_tokens", points=3)
def matched_tokens(function: Callable[..., int]) -> str | Passed:
    """Check `matched_tokens(keys, stored, num_tokens, block_size, num_computed_tokens)`."""
    return MATCHED_TOKENS.check(function)


@exercise("Exercise 3: LRUStore", points=4)
def lru_store(store_class: type[Any]) -> str | Passed:
    """Check `LRUStore(max_bytes)`: `store`, `retrieve`, `contains` and `num_bytes`."""
    return LRU_STORE.check(store_class)


@exercise("Exercise 4: SchedulerSide", points=5)
def scheduler_side(side_class: type[Any]) -> str | Passed:
    """Check `SchedulerSide(block_size, keys_of, matched_tokens)`, step by step."""
    return SCHEDULER_SIDE.check(side_class)


@exercise("Exercise 5a: extract_block", points=2)
def extract_block(function: Callable[..., bytes]) -> str | Passed:
    """Check `extract_block(kv_caches, block_id)`."""
    return EXTRACT_BLOCK.check(function)


@exercise("Exercise 5b: inject_block", points=3)
def inject_block(function: Callable[..., bool]) -> str | Passed:
    """Check `inject_block(kv_caches, block_id, payload)`."""
    return INJECT_BLOCK.check(function)


@exercise("Exercise 6: fetch_or_compute", points=2)
def fetch_or_compute(function: Callable[..., tuple[float, float]]) -> str | Passed:
    """Check `fetch_or_compute(num_tokens, shape, machine)`."""
    return FETCH_OR_COMPUTE.check(function)


@exercise("Exercise 7: your connector in the engine", points=4)
def engine(make_parts: Callable[[], Parts]) -> Passed:
    """Check `make_parts()`: engines that share what they compute through the learner's parts."""
    return judge(make_parts)
