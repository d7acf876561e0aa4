"""For comparison: an engine without paging, in which each request has a cache of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from utils.engine.attention.kv_cache import KVCache
from utils.engine.core.kv_cache_utils import BlockCopies, KVCacheBlock
from utils.engine.metrics import PrefixCacheStats
from utils.engine.request import Request


class ContiguousKVCacheManager:
    """Gives each request a cache of its own, as large as the request may grow.

    A `KVCacheManagerInterface` without blocks: nothing is shared, found again, or swapped.

    Args:
        kv_cache_class: called with the most tokens that the request may have.
    """

    usage = 0.0

    def __init__(self, kv_cache_class: Callable[[int], KVCache]) -> None:
        self.kv_cache_class = kv_cache_class
        self.kv_caches: dict[str, KVCache] = {}  # by request id
        self.prefix_cache_stats = PrefixCacheStats()

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        return [], 0

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock] = (),
        num_lookahead_tokens: int = 0,
    ) -> list[KVCacheBlock]:
        if request.request_id not in self.kv_caches:
            self.kv_caches[request.request_id] = self.kv_cache_class(request.max_num_tokens)
        return []

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """There are no blocks."""

    def free(self, request: Request) -> None:
        self.kv_caches.pop(request.request_id, None)

    def get_blocks(self, request_id: str) -> list[KVCacheBlock]:
        return []

    def get_block_ids(self, request_id: str) -> list[int]:
        return []

    def evict_blocks(self, request_id: str, block_ids: set[int]) -> None:
        """There are no blocks."""

    def fork(self, parent: Request, child: Request) -> None:
        raise ValueError("Without paging, requests cannot share memory: n must be 1.")

    def is_swapped_out(self, request: Request) -> bool:
        return False

    def swap_out(self, request: Request) -> bool:
        return False

    def swap_in(self, request: Request, num_new_tokens: int = 0) -> bool:
        return False

    def move_slots(self, moves: Sequence[tuple[int, int]]) -> None:
        raise ValueError("Without paging there are no slots.")

    def take_block_copies(self) -> BlockCopies:
        return BlockCopies()

    def reset_prefix_cache(self) -> bool:
        return True

    def forget_everything(self) -> None:
        self.kv_caches.clear()
