"""The checks of lab 05.

Oracles: brute force over tokens and prefixes, the engine's own pool, hashes and manager, and the
engine without a prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import Mismatch, Passed, exercise
from utils.checks.lab_05.block_digests import HASH_BLOCK_TOKENS
from utils.checks.lab_05.endings import FREE_REQUEST
from utils.checks.lab_05.growing_requests import REQUEST_BLOCK_HASHER
from utils.checks.lab_05.learners_engine import judge_engine, judge_prediction
from utils.checks.lab_05.lookups import GET_COMPUTED_BLOCKS
from utils.checks.lab_05.pool_mistakes import CACHING_BLOCK_POOL
from utils.checks.lab_05.right_pool import engine_methods_refuse
from utils.checks.lab_05.stolen_blocks import STEAL_BLOCKS
from utils.engine.core.block_pool import BlockPool


@exercise("Exercise 1: hash_block_tokens", points=3)
def hash_block_tokens(function: Callable[..., bytes]) -> str | Passed:
    """Check `hash_block_tokens(hash_function, parent_block_hash, token_ids, extra_keys)`."""
    return HASH_BLOCK_TOKENS.check(function)


@exercise("Exercise 2: request_block_hasher", points=3)
def request_block_hasher(function: Callable[..., list[Any]]) -> str | Passed:
    """Check `request_block_hasher(request, block_size, hash_block)`."""
    return REQUEST_BLOCK_HASHER.check(function)


@exercise("Exercise 3: get_computed_blocks", points=3)
def get_computed_blocks(function: Callable[..., tuple[list[Any], int]]) -> str | Passed:
    """Check `get_computed_blocks(request, block_size, block_pool)`."""
    return GET_COMPUTED_BLOCKS.check(function)


@exercise("Exercise 4: CachingBlockPool", points=5)
def block_pool(pool_class: Callable[..., Any]) -> str | Passed:
    """Check the five methods of the pool, in stories of requests that share blocks."""
    if not (isinstance(pool_class, type) and issubclass(pool_class, BlockPool)):
        raise Mismatch("Expected a class that extends `BlockPool`, as the cell above defines it.")
    with engine_methods_refuse():
        return CACHING_BLOCK_POOL.check(pool_class)


@exercise("Exercise 5: free_request", points=1)
def free_request(function: Callable[..., None]) -> str | Passed:
    """Check `free_request(block_pool, block_table)`."""
    return FREE_REQUEST.check(function)


@exercise("Exercise 6: steal_blocks", points=3)
def steal_blocks(function: Callable[..., list[int]]) -> str | Passed:
    """Check `steal_blocks(hash_block, wanted, block_size, vocab_size)` on the engine's own pool."""
    return STEAL_BLOCKS.check(function)


@exercise("Exercise 7: predict_num_cached_tokens", points=3)
def predict_num_cached_tokens(function: Callable[..., list[int]]) -> Passed:
    """Check `predict_num_cached_tokens(prompts, block_size)` by brute force, then by the engine."""
    return judge_prediction(function)


@exercise("Exercise 8: your parts run the engine", points=3)
def engine(make_manager: Callable[..., Any]) -> Passed:
    """Check `make_manager(config, hash_function)`: each part, then tokens as without cache."""
    return judge_engine(make_manager)
