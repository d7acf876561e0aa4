"""A learner's parts as they are plugged together, each tried by its own exercise's check."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_05.block_digests import HASH_BLOCK_TOKENS, Extra, right_hash
from utils.checks.lab_05.chains import BLOCK_HASH, PARTS
from utils.checks.lab_05.endings import FREE_REQUEST
from utils.checks.lab_05.growing_requests import REQUEST_BLOCK_HASHER
from utils.checks.lab_05.lookups import GET_COMPUTED_BLOCKS
from utils.checks.lab_05.manager_stories import config
from utils.checks.lab_05.pool_mistakes import CACHING_BLOCK_POOL
from utils.checks.lab_05.right_pool import engine_methods_refuse
from utils.engine.config.engine import EngineConfig
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import (
    BlockHash,
    BlockHasher,
    HashFunction,
    KVCacheBlock,
    get_hash_fn_by_name,
)
from utils.engine.request import Request
from utils.sim.prompt_cache import bare_request

ManagerFactory = Callable[[EngineConfig, HashFunction], KVCacheManager]


class PluggedKVCacheManager(KVCacheManager):
    """The engine's manager, with a learner's parts in it.

    Args:
        config: the engine's.
        block_pool: keeps the blocks.
        block_hasher: hashes the new full blocks of a request.
        get_computed_blocks: `(request, block_size, block_pool)` -> blocks, number of tokens.
        free_request: `(block_pool, block_table)`, gives all blocks of a request back.
    """

    def __init__(
        self,
        config: EngineConfig,
        block_pool: BlockPool,
        block_hasher: BlockHasher,
        get_computed_blocks: Callable[..., tuple[list[KVCacheBlock], int]],
        free_request: Callable[..., None],
    ) -> None:
        super().__init__(
            config.num_gpu_blocks, config.block_size, True, block_hasher, block_pool=block_pool
        )
        self.part_get_computed_blocks, self.part_free_request = get_computed_blocks, free_request

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
            look="Let `my_manager` return a PluggedKVCacheManager with your five parts in it.",
        )
    for number, check in _checks(make_manager, manager):
        try:
            with engine_methods_refuse() if number == 4 else contextlib.nullcontext():
                check()
        except Mismatch as wrong:
            wrong.headline = f"Exercise {number} is not right yet. {wrong.headline}"
            raise


def _checks(
    make_manager: ManagerFactory, manager: PluggedKVCacheManager
) -> Iterator[tuple[int, Callable[[], Any]]]:
    """Exercises 1, 2 and 6 are seen through the keys that `block_hasher` makes."""
    keys = call(manager.block_hasher, bare_request(0, list(range(9))))  # type: ignore[arg-type]
    a_list = isinstance(keys, list) and len(keys) > 0
    readable = not a_list or all(hasattr(keys[0], name) for name in PARTS)
    if readable:
        key_class = type(keys[0]) if a_list else BlockHash
        yield 1, lambda: HASH_BLOCK_TOKENS.check(_hash_through(make_manager, key_class))
        yield 2, lambda: REQUEST_BLOCK_HASHER.check(_hasher_through(make_manager, key_class))
    yield 3, lambda: GET_COMPUTED_BLOCKS.check(manager.part_get_computed_blocks)
    yield 4, lambda: CACHING_BLOCK_POOL.check(type(manager.block_pool))
    yield 5, lambda: FREE_REQUEST.check(manager.part_free_request)
    if readable:
        yield 6, lambda: BLOCK_HASH.check(type(keys[0]))


def _hash_through(make_manager: ManagerFactory, key_class: Any) -> Callable[..., bytes]:
    """Exercise 1: the digest of a block behind a parent, or of a first block with a salt."""

    def hash_block_tokens(
        hash_function: HashFunction, parent: bytes | None, tokens: Any, extra: Extra = None
    ) -> bytes:
        size = len(tokens)
        before = [] if parent is None else [key_class(parent, None, (0,) * size, None)]
        salt = extra[0] if extra else None
        request = bare_request(0, [0] * size * len(before) + list(tokens), salt)
        request.block_hashes = list(before)
        manager: Any = make_manager(config(size, 4), hash_function)
        keys = manager.block_hasher(request)
        above = before[0] if before else None
        # Keys that no request has, and those that exercise 2 makes wrong, are not judged here.
        if not keys or keys[0].extra_keys != extra or keys[0].parent is not above:
            return right_hash(hash_function, parent, tokens, extra)
        return keys[0].digest

    return hash_block_tokens


def _hasher_through(make_manager: ManagerFactory, key_class: Any) -> Callable[..., list[Any]]:
    """Exercise 2: the keys that come back say what each was made of."""

    def request_block_hasher(request: Any, block_size: int, hash_block: Any) -> Any:
        manager: Any = make_manager(config(block_size, 4), get_hash_fn_by_name("sha256"))
        links, known = request.block_hashes, list[Any]()
        for link in links:
            known.append(key_class(link.digest, known[-1] if known else None, (), None))
        ours = {id(key): link for key, link in zip(known, links, strict=True)} | {id(None): None}
        request.block_hashes = list(known)
        keys = manager.block_hasher(request)
        if len(request.block_hashes) != len(known):
            return keys  # the check will say that the request has changed
        request.block_hashes = links
        if not isinstance(keys, list):
            return keys
        for key in keys:
            parent = ours.get(id(key.parent), key.parent)
            ours[id(key)] = hash_block(parent, key.token_ids, key.extra_keys)
        return [ours[id(key)] for key in keys]

    return request_block_hasher
