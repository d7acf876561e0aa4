"""A learner's parts as they are plugged together, each tried by its own exercise's check."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_05.block_digests import HASH_BLOCK_TOKENS
from utils.checks.lab_05.endings import FREE_REQUEST
from utils.checks.lab_05.growing_requests import REQUEST_BLOCK_HASHER
from utils.checks.lab_05.lookups import GET_COMPUTED_BLOCKS
from utils.checks.lab_05.manager_stories import config
from utils.checks.lab_05.pool_mistakes import CACHING_BLOCK_POOL
from utils.checks.lab_05.right_pool import engine_methods_refuse
from utils.engine.config.engine import EngineConfig
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import HashFunction, KVCacheBlock, get_hash_fn_by_name
from utils.engine.request import Request

ManagerFactory = Callable[[EngineConfig, HashFunction], KVCacheManager]


class PluggedKVCacheManager(KVCacheManager):
    """The engine's manager, with a learner's parts in it.

    Args:
        config: the engine's.
        hash_function: of bytes, such as SHA-256.
        block_pool: keeps the blocks.
        hash_block_tokens: `(hash_function, parent, token_ids, extra_keys)` -> hash of a block.
        request_block_hasher: `(request, block_size, hash_block)` -> hashes of new full blocks.
        get_computed_blocks: `(request, block_size, block_pool)` -> blocks, number of tokens.
        free_request: `(block_pool, block_table)`, gives all blocks of a request back.
    """

    def __init__(
        self,
        config: EngineConfig,
        hash_function: HashFunction,
        block_pool: BlockPool,
        hash_block_tokens: Callable[..., bytes],
        request_block_hasher: Callable[..., list[Any]],
        get_computed_blocks: Callable[..., tuple[list[KVCacheBlock], int]],
        free_request: Callable[..., None],
    ) -> None:
        super().__init__(
            config.num_gpu_blocks, config.block_size, True, self._hash, block_pool=block_pool
        )
        self.hash_function = hash_function
        self.part_hash_block_tokens = hash_block_tokens
        self.part_request_block_hasher = request_block_hasher
        self.part_get_computed_blocks, self.part_free_request = get_computed_blocks, free_request

    def _hash(self, request: Any) -> list[Any]:
        hash_block = partial(self.part_hash_block_tokens, self.hash_function)
        return self.part_request_block_hasher(request, self.block_size, hash_block)

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        self._update_block_hashes(request)
        return self.part_get_computed_blocks(request, self.block_size, self.block_pool)

    def free(self, request: Request) -> None:
        if table := self.req_to_blocks.pop(request.request_id, []):
            self.part_free_request(self.block_pool, table)
        super().free(request)  # and all that is not blocks


def check_parts(make_manager: ManagerFactory) -> None:
    """Run the check of each earlier exercise on its part; say which one is wrong."""
    manager = call(make_manager, config(4, 4), get_hash_fn_by_name("sha256"))
    if not isinstance(manager, KVCacheManager):
        raise Mismatch("`my_manager` must return a KVCacheManager, as the cell above does.")
    if type(manager.block_pool) is BlockPool or not isinstance(manager, PluggedKVCacheManager):
        raise Mismatch(
            "The engine's own parts would do the work.",
            look="Let `my_manager` return a PluggedKVCacheManager with your parts in it.",
        )
    for number, check in _checks(manager):
        try:
            with engine_methods_refuse() if number == 4 else contextlib.nullcontext():
                check()
        except Mismatch as wrong:
            wrong.headline = f"Exercise {number} is not right yet. {wrong.headline}"
            raise


def _checks(manager: PluggedKVCacheManager) -> Iterator[tuple[int, Callable[[], Any]]]:
    yield 1, lambda: HASH_BLOCK_TOKENS.check(manager.part_hash_block_tokens)
    yield 2, lambda: REQUEST_BLOCK_HASHER.check(manager.part_request_block_hasher)
    yield 3, lambda: GET_COMPUTED_BLOCKS.check(manager.part_get_computed_blocks)
    yield 4, lambda: CACHING_BLOCK_POOL.check(type(manager.block_pool))
    yield 5, lambda: FREE_REQUEST.check(manager.part_free_request)
