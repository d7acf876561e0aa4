"""The block pool: which blocks of KV memory are free, in use, or findable by their contents.

Kwon et al. 2023, PagedAttention, section 4. Names as in vLLM's `v1/core/block_pool.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from utils.engine.core.kv_cache_utils import BlockHash, FreeKVCacheBlockQueue, KVCacheBlock
from utils.engine.core.kv_events import NO_EVENTS, KVEvents


class BlockPool:
    """All blocks of the KV cache.

    A block is in use while its `ref_cnt` is above zero; otherwise it waits in the free queue. A
    free block keeps its contents, and its hash, until it is handed out again. Until then a prompt
    with the same prefix can have it back. So the free queue is also the eviction order.

    Args:
        num_gpu_blocks: how many blocks there are.

    Raises:
        ValueError: `num_gpu_blocks` is not a positive integer.
    """

    events: KVEvents = NO_EVENTS  # who is told what can be found; the engine sets it

    def __init__(self, num_gpu_blocks: int) -> None:
        if not isinstance(num_gpu_blocks, int) or num_gpu_blocks < 1:
            raise ValueError(f"num_gpu_blocks must be a positive integer, got {num_gpu_blocks!r}.")
        self.num_gpu_blocks = num_gpu_blocks
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_gpu_blocks)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks)
        # Two requests may compute the same prefix at the same time. Both blocks then have the same
        # hash, and stay: block tables only grow, they never change.
        self.cached_block_hash_to_block: dict[BlockHash, dict[int, KVCacheBlock]] = {}

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks out of the free queue, each with a reference count of 1.

        Their old contents can no longer be found: they are about to be overwritten.

        Raises:
            ValueError: fewer blocks are free.
        """
        if num_blocks > self.get_num_free_blocks():
            raise ValueError(
                f"Cannot get {num_blocks} blocks: {self.get_num_free_blocks()} of "
                f"{self.num_gpu_blocks} are free. Check get_num_free_blocks() first."
            )
        blocks = self.free_block_queue.popleft_n(num_blocks)
        self.evict_blocks(blocks)
        for block in blocks:
            block.ref_cnt = 1
        return blocks

    def get_cached_block(self, block_hash: BlockHash) -> KVCacheBlock | None:
        """A block with these contents, in use or free; None if there is none.

        Its memory may be taken by the next `get_new_blocks`, unless it is touched first.
        """
        found = self.cached_block_hash_to_block.get(block_hash)
        return None if found is None else next(iter(found.values()))

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add a reference to each block, and take those that were free out of the queue."""
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Drop a reference to each block, and queue those that nobody holds any more.

        Args:
            ordered_blocks: the first is the first to be reused. For a request, this is its *last*
                block: the longer a prefix, the fewer prompts share it.

        Raises:
            ValueError: a block is free already. The blocks before it have been freed.
        """
        useless: list[KVCacheBlock] = []
        useful: list[KVCacheBlock] = []
        try:
            for block in ordered_blocks:
                if block.ref_cnt < 1:
                    raise ValueError(f"Block {block.block_id} is freed twice.")
                block.ref_cnt -= 1
                if block.ref_cnt == 0:
                    (useless if block.block_hash is None else useful).append(block)
        finally:
            # What nobody can find is reused first; what can be found, as late as possible.
            self.free_block_queue.prepend_n(useless)
            self.free_block_queue.append_n(useful)

    def cache_full_blocks(
        self,
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence[BlockHash],
        num_cached_blocks: int,
        num_full_blocks: int,
    ) -> None:
        """Make a request's newly filled blocks findable by their contents.

        Args:
            blocks: the request's block table.
            block_hashes: of its full blocks, in the same order.
            num_cached_blocks: how many of its blocks are findable already.
            num_full_blocks: how many are full, and shall be findable afterwards.

        Raises:
            ValueError: a block is not full, that is, it has no hash to be found by.
        """
        if num_full_blocks > len(block_hashes):
            raise ValueError(
                f"Cannot cache {num_full_blocks} blocks: only {len(block_hashes)} are full."
            )
        for i in range(num_cached_blocks, num_full_blocks):
            block, block_hash = blocks[i], block_hashes[i]
            if block.block_hash is not None:
                raise ValueError(f"{block} is cached already.")
            block.block_hash = block_hash
            self.cached_block_hash_to_block.setdefault(block_hash, {})[block.block_id] = block

    def evict_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Make these blocks unfindable. Whoever has them keeps them."""
        for block in blocks:
            if block.block_hash is not None:
                self._evict(block)

    def reset_prefix_cache(self) -> bool:
        """Forget all contents, for example after new weights. False if a block is still in use."""
        if self.get_num_free_blocks() < self.num_gpu_blocks:
            return False
        self.forget_contents()
        return True

    def forget_contents(self) -> None:
        """Make no block findable any more, those in use included."""
        self.cached_block_hash_to_block.clear()
        for block in self.blocks:
            block.block_hash = None
        self.events.all_blocks_cleared()

    def reset(self) -> None:
        """Begin anew: no block is in use, none is findable. Nobody may hold a block any more."""
        self.forget_contents()
        for block in self.blocks:
            block.ref_cnt = 0
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks)

    def get_num_free_blocks(self) -> int:
        return self.free_block_queue.num_free_blocks

    def get_usage(self) -> float:
        """The part of the blocks that is in use, from 0 to 1."""
        return 1.0 - self.get_num_free_blocks() / self.num_gpu_blocks

    def _evict(self, block: KVCacheBlock) -> None:
        """Make a block's contents unfindable."""
        block_hash = block.block_hash
        assert block_hash is not None
        same = self.cached_block_hash_to_block[block_hash]
        del same[block.block_id]
        if not same:
            del self.cached_block_hash_to_block[block_hash]
        block.block_hash = None
        self.events.block_removed(block_hash)
