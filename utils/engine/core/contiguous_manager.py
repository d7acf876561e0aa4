"""For comparison: an engine without paging, in which each request has a cache of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from utils.engine.attention.kv_cache import KVCache
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import KVCacheBlock
from utils.engine.request import Request


class ContiguousKVCacheManager(KVCacheManager):
    """Gives each request a cache of its own, as large as the request may grow.

    Args:
        kv_cache_class: called with the most tokens that the request may have.
    """

    def __init__(self, kv_cache_class: Callable[[int], KVCache]) -> None:
        super().__init__(num_gpu_blocks=1, block_size=1, enable_caching=False)
        self.kv_cache_class = kv_cache_class

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock] = (),
        num_lookahead_tokens: int = 0,
    ) -> list[KVCacheBlock]:
        if request.kv_cache is None:
            request.kv_cache = self.kv_cache_class(request.max_num_tokens)
            self.req_to_blocks[request.request_id] = []
        return []

    def free(self, request: Request) -> None:
        request.kv_cache = None
        super().free(request)

    def fork(self, parent: Request, child: Request) -> None:
        raise ValueError("Without paging, requests cannot share memory: n must be 1.")
