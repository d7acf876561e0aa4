"""What the scheduler asks of whoever manages the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from utils.engine.core.kv_cache_utils import BlockCopies, KVCacheBlock
from utils.engine.metrics import PrefixCacheStats
from utils.engine.request import Request


class KVCacheManagerInterface(Protocol):
    """Gives requests their places in the KV cache. `KVCacheManager` says what each method does."""

    prefix_cache_stats: PrefixCacheStats

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]: ...

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock] = (),
        num_lookahead_tokens: int = 0,
    ) -> list[KVCacheBlock] | None: ...

    def cache_blocks(self, request: Request, num_tokens: int) -> None: ...

    def free(self, request: Request) -> None: ...

    def get_blocks(self, request_id: str) -> list[KVCacheBlock]: ...

    def get_block_ids(self, request_id: str) -> list[int]: ...

    def evict_blocks(self, request_id: str, block_ids: set[int]) -> int | None: ...

    def fork(self, parent: Request, child: Request) -> None: ...

    def is_swapped_out(self, request: Request) -> bool: ...

    def swap_out(self, request: Request) -> bool: ...

    def swap_in(self, request: Request, num_new_tokens: int = 0) -> bool: ...

    def move_slots(self, moves: Sequence[tuple[int, int]]) -> None: ...

    def take_block_copies(self) -> BlockCopies: ...

    @property
    def usage(self) -> float: ...

    def reset_prefix_cache(self) -> bool: ...

    def forget_everything(self) -> None: ...
