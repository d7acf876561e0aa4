"""The checks of lab 05.

Oracles: brute force over tokens, a pool made of plain lists, and the engine without a prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import Mismatch, Passed, exercise
from utils.checks.lab_05 import hashes, learners_engine, lookups
from utils.checks.lab_05.pool_stories import STORIES, engine_methods_refuse
from utils.engine.core.block_pool import BlockPool


@exercise("Exercise 1: hash_block_tokens", points=3)
def hash_block_tokens(function: Callable[..., bytes]) -> str:
    """Check `hash_block_tokens(hash_function, parent_block_hash, token_ids, extra_keys)`."""
    return hashes.judge_hash_block_tokens(function)


@exercise("Exercise 2: request_block_hasher", points=3)
def request_block_hasher(function: Callable[..., list[Any]]) -> str:
    """Check `request_block_hasher(request, block_size, hash_block)`."""
    return hashes.judge_request_block_hasher(function)


@exercise("Exercise 3: get_computed_blocks", points=3)
def get_computed_blocks(function: Callable[..., tuple[list[Any], int]]) -> str:
    """Check `get_computed_blocks(request, block_size, block_pool)`."""
    return lookups.judge_get_computed_blocks(function)


@exercise("Exercise 4: CachingBlockPool", points=5)
def block_pool(pool_class: Callable[..., Any]) -> str:
    """Check the five methods of the pool, one small story after another."""
    if not (isinstance(pool_class, type) and issubclass(pool_class, BlockPool)):
        raise Mismatch("Expected a class that extends `BlockPool`, as the cell above defines it.")
    with engine_methods_refuse():
        for story in STORIES:
            story(pool_class)
    return (
        "Found while in use and after, gone when evicted; a hit is held fast; the least recently "
        "used goes first, and what nobody can find before that. Equal to a pool made of plain "
        "lists over 300 random steps."
    )


@exercise("Exercise 5: free_request", points=1)
def free_request(function: Callable[..., None]) -> str:
    """Check `free_request(block_pool, block_table)`."""
    return lookups.judge_free_request(function)


@exercise("Exercise 6: BlockHash", points=3)
def block_hash(key_class: Callable[..., Any]) -> str:
    """Check `__eq__` and `__hash__` of `BlockHash(digest, parent, token_ids, extra_keys)`."""
    return hashes.judge_block_hash(key_class)


@exercise("Exercise 7: predict_num_cached_tokens", points=3)
def predict_num_cached_tokens(function: Callable[..., list[int]]) -> Passed:
    """Check `predict_num_cached_tokens(prompts, block_size)` by brute force, then by the engine."""
    return lookups.judge_predict_num_cached_tokens(function)


@exercise("Exercise 8: your parts run the engine", points=3)
def engine(make_manager: Callable[..., Any]) -> Passed:
    """Check `make_manager(config, hash_function)`: tokens as without cache, hits as predicted."""
    learners_engine.rehearse(make_manager)  # unwritten parts answer before the model is loaded
    learners_engine.compare_with_the_engines_own(make_manager)
    return learners_engine.run(make_manager, lookups.found_tokens)
