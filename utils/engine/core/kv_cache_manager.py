"""The KV cache manager: which blocks each request has.

Names as in vLLM's `v1/core/kv_cache_manager.py`. It knows block numbers only; the keys and values
themselves are in `PagedKVCache`.
"""

from __future__ import annotations

from collections.abc import Sequence

from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_utils import BlockCopies, BlockHasher, KVCacheBlock
from utils.engine.core.swap_space import SwapSpace
from utils.engine.metrics import PrefixCacheStats
from utils.engine.request import Request


class KVCacheManager:
    """Gives blocks to requests, finds those that are computed already, and takes them back.

    Args:
        num_gpu_blocks: blocks in the pool.
        block_size: tokens in a block.
        enable_caching: look for computed blocks, and keep them findable after use. Needs a hasher.
        block_hasher: hashes a request's full blocks (see `get_request_block_hasher`).
        num_cpu_blocks: blocks of swap space in host memory.
        block_pool: a pool to use in place of `BlockPool(num_gpu_blocks)`.

    Raises:
        ValueError: a number is out of range, or there is no hasher to look blocks up with.
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        block_size: int,
        enable_caching: bool = True,
        block_hasher: BlockHasher | None = None,
        num_cpu_blocks: int = 0,
        block_pool: BlockPool | None = None,
    ) -> None:
        if not isinstance(block_size, int) or block_size < 1:
            raise ValueError(f"block_size must be a positive integer, got {block_size!r}.")
        if enable_caching and block_hasher is None:
            raise ValueError("Prefix caching needs a block_hasher: see get_request_block_hasher.")
        self.block_size, self.block_hasher = block_size, block_hasher
        self.enable_caching = enable_caching
        self.block_pool = block_pool or BlockPool(num_gpu_blocks)
        self.swap_space = SwapSpace(num_cpu_blocks)
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}  # the block tables
        self.num_cached_block: dict[str, int] = {}  # how many of each table's blocks are findable
        self.prefix_cache_stats = PrefixCacheStats()
        self._pending = BlockCopies()

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        """Find the longest prefix of the request whose keys and values are in the pool.

        Returns:
            The blocks, and how many tokens they hold, at least one less than the request has:
            without computing one, there would be no logits. Nothing is reserved yet.
        """
        if not self.enable_caching:
            return [], 0
        self._update_block_hashes(request)
        readable = 0 if request.skip_reading_prefix_cache else request.num_tokens - 1
        blocks: list[KVCacheBlock] = []
        for block_hash in request.block_hashes[: readable // self.block_size]:
            block = self.block_pool.get_cached_block(block_hash)
            if block is None:  # then no longer prefix can be there either
                break
            blocks.append(block)
        return blocks, len(blocks) * self.block_size

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock] = (),
        num_lookahead_tokens: int = 0,
    ) -> list[KVCacheBlock] | None:
        """Make room for the next tokens of a request, those after `num_computed_tokens`.

        Args:
            num_new_tokens: that the next forward pass computes.
            new_computed_blocks: from `get_computed_blocks`, for a request that has no blocks yet.
            num_lookahead_tokens: slots beyond, for what a draft model computes ahead.

        Returns: the newly allocated blocks, or None if too few are free. Then nothing has changed.

        Raises:
            ValueError: `num_new_tokens` is below 1.
        """
        if num_new_tokens < 1:
            raise ValueError(f"num_new_tokens must be at least 1, got {num_new_tokens}.")
        table = self.get_blocks(request.request_id)
        num_computed = request.num_computed_tokens + len(new_computed_blocks) * self.block_size
        num_tokens = num_computed + num_new_tokens
        num_blocks = -(-(num_tokens + num_lookahead_tokens) // self.block_size)
        # Copy-on-write: a block that will be written to must not be seen by anybody else.
        written = range(num_computed // self.block_size, min(len(table), num_blocks))
        shared = [i for i in written if table[i].ref_cnt > 1]
        num_new_blocks = max(0, num_blocks - len(table) - len(new_computed_blocks)) + len(shared)
        # A hit that is free now will leave the free queue as well.
        num_evictable = sum(block.ref_cnt == 0 for block in new_computed_blocks)
        if num_new_blocks + num_evictable > self.block_pool.get_num_free_blocks():
            return None

        if request.request_id not in self.req_to_blocks:
            if self.enable_caching and request.num_preemptions == 0:
                self.prefix_cache_stats.record(request.num_tokens, num_computed)
            self.req_to_blocks[request.request_id] = table
            self.num_cached_block[request.request_id] = len(new_computed_blocks)
        self.block_pool.touch(new_computed_blocks)  # first of all, so that they are not evicted
        table.extend(new_computed_blocks)
        new_blocks = self.block_pool.get_new_blocks(num_new_blocks)
        for i, copy in zip(shared, new_blocks, strict=False):
            self._pending.copy.append((table[i].block_id, copy.block_id))
            self.block_pool.free_blocks([table[i]])
            table[i] = copy
        table.extend(new_blocks[len(shared) :])
        while len(table) > num_blocks and table[-1].ref_cnt > 1:
            self.block_pool.free_blocks([table.pop()])  # a fork's lookahead is not its parent's
        self.cache_blocks(request, min(num_tokens, request.num_tokens))
        return new_blocks

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks among a request's first `num_tokens` tokens findable."""
        if not self.enable_caching:
            return
        self._update_block_hashes(request)
        old, full = self.num_cached_block[request.request_id], num_tokens // self.block_size
        if full > old:
            table = self.req_to_blocks[request.request_id]
            self.block_pool.cache_full_blocks(table, request.block_hashes, old, full)
            self.block_pool.events.blocks_stored(request, old, full, self.block_size)
            self.num_cached_block[request.request_id] = full

    def free(self, request: Request) -> None:
        """Take back all blocks of a request. Does nothing if it has none."""
        table = self.req_to_blocks.pop(request.request_id, [])
        self.num_cached_block.pop(request.request_id, None)
        self._pending.drop_moves({block.block_id for block in table}, self.block_size)
        self.block_pool.free_blocks(reversed(table))  # the tail is the first to be reused
        self.swap_space.free(request.request_id)

    def get_blocks(self, request_id: str) -> list[KVCacheBlock]:
        """The block table of a request; empty if it has no blocks."""
        return self.req_to_blocks.get(request_id, [])

    def get_block_ids(self, request_id: str) -> list[int]:
        """The numbers in a request's block table. Raises a ValueError if it has no blocks."""
        return [block.block_id for block in self._table(request_id)]

    def evict_blocks(self, request_id: str, block_ids: set[int]) -> int | None:
        """Make a request's blocks unfindable, from the first on that is one of `block_ids`.

        Returns: how many tokens lie before that one. None: the request has none of these blocks.
        """
        table = self.get_blocks(request_id)
        first = next((i for i, block in enumerate(table) if block.block_id in block_ids), None)
        if first is None:
            return None
        self.block_pool.evict_blocks(table[first:])
        self.num_cached_block[request_id] = min(first, self.num_cached_block[request_id])
        return first * self.block_size

    def fork(self, parent: Request, child: Request) -> None:
        """Let `child` share all blocks of `parent`. Not a single key or value is copied.

        Whichever of the two first writes into a shared block gets a copy of it (copy-on-write).
        """
        table = self._table(parent.request_id)
        if child.request_id in self.req_to_blocks:
            raise ValueError(f"Request {child.request_id} has blocks already. Fork a new request.")
        self.block_pool.touch(table)
        self.req_to_blocks[child.request_id] = list(table)
        self.num_cached_block[child.request_id] = self.num_cached_block[parent.request_id]
        child.num_computed_tokens = parent.num_computed_tokens
        child.block_hashes = parent.block_hashes[: self.num_cached_block[parent.request_id]]

    def is_swapped_out(self, request: Request) -> bool:
        """Whether a request's keys and values wait in host memory."""
        return request.request_id in self.swap_space

    def swap_out(self, request: Request) -> bool:
        """Move a request's keys and values to host memory, and free its blocks.

        Returns: False if the swap space has too little room. Then nothing has changed.
        """
        table = self._table(request.request_id)
        num_blocks = -(-request.num_computed_tokens // self.block_size)
        host_ids = self.swap_space.allocate(request.request_id, num_blocks)
        if host_ids is None:
            return False
        ids = [block.block_id for block in table[:num_blocks]]
        self._pending.swap_out += zip(ids, host_ids, strict=True)
        del self.req_to_blocks[request.request_id], self.num_cached_block[request.request_id]
        self.block_pool.free_blocks(reversed(table))
        return True

    def swap_in(self, request: Request, num_new_tokens: int = 0) -> bool:
        """Bring a request's keys and values back from host memory, into other blocks.

        Returns:
            False if the pool lacks room for them and `num_new_tokens` more. Then nothing changed.
        """
        host_ids = self.swap_space.block_ids(request.request_id)
        num_tokens = request.num_computed_tokens + num_new_tokens
        if -(-num_tokens // self.block_size) > self.block_pool.get_num_free_blocks():
            return False
        table = self.block_pool.get_new_blocks(len(host_ids))
        self._pending.swap_in += zip(host_ids, (b.block_id for b in table), strict=True)
        self.swap_space.free(request.request_id)
        self.req_to_blocks[request.request_id], self.num_cached_block[request.request_id] = table, 0
        self.cache_blocks(request, request.num_computed_tokens)  # a fork may share them soon
        return True

    def move_slots(self, moves: Sequence[tuple[int, int]]) -> None:
        """Let single tokens' keys and values move from slot to slot (see `BlockCopies`)."""
        self._pending.move += moves

    def take_block_copies(self) -> BlockCopies:
        """The copies to be made before the next forward pass. Each is handed out once."""
        pending, self._pending = self._pending, BlockCopies()
        return pending

    @property
    def usage(self) -> float:
        """The part of the pool's blocks that is in use, from 0 to 1."""
        return self.block_pool.get_usage()

    def reset_prefix_cache(self) -> bool:
        """Forget the contents of all blocks. False if a block is in use; then nothing changes."""
        return self.block_pool.reset_prefix_cache()

    def forget_everything(self) -> None:
        """Begin anew: no request has blocks, and nothing is findable or waits to be copied."""
        self.block_pool.reset()
        self.swap_space = SwapSpace(self.swap_space.num_cpu_blocks)
        self.req_to_blocks, self.num_cached_block, self._pending = {}, {}, BlockCopies()

    def _table(self, request_id: str) -> list[KVCacheBlock]:
        if request_id not in self.req_to_blocks:
            raise ValueError(f"Request {request_id} has no blocks: finished, swapped out, or new.")
        return self.req_to_blocks[request_id]

    def _update_block_hashes(self, request: Request) -> None:
        assert self.block_hasher is not None
        request.block_hashes += self.block_hasher(request)
