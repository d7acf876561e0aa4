"""Right answers to exercises 2 to 5, written plainly: learners' answers are compared with them."""

from __future__ import annotations

from utils.engine.core.kv_cache_utils import KVCacheBlock


class Pool:
    """The pool of exercise 2. `first` is the number of its first block, if others have those
    before."""

    def __init__(self, num_gpu_blocks: int, first: int = 0) -> None:
        self.blocks = [KVCacheBlock(first + i) for i in range(num_gpu_blocks)]
        self.queue = list(self.blocks)

    def get_num_free_blocks(self) -> int:
        return len(self.queue)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        if not 0 <= num_blocks <= len(self.queue):
            raise ValueError(f"{num_blocks} blocks are wanted, {len(self.queue)} are free")
        taken, self.queue = self.queue[:num_blocks], self.queue[num_blocks:]
        for block in taken:
            block.ref_cnt = 1
        return taken

    def touch(self, blocks: list[KVCacheBlock]) -> None:
        for block in blocks:
            if block.ref_cnt < 1:
                raise ValueError(f"block {block.block_id} is free")
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: list[KVCacheBlock]) -> None:
        for block in ordered_blocks:
            if block.ref_cnt < 1:
                raise ValueError(f"block {block.block_id} is free already")
            self.drop(block)

    def drop(self, block: KVCacheBlock) -> None:
        block.ref_cnt -= 1
        if block.ref_cnt == 0:
            self.queue.append(block)


def allocate_slots(
    block_pool: Pool, block_table: list[KVCacheBlock], num_tokens: int, block_size: int
) -> list[KVCacheBlock] | None:
    missing = max(0, -(-num_tokens // block_size) - len(block_table))
    if missing > block_pool.get_num_free_blocks():
        return None
    new_blocks = block_pool.get_new_blocks(missing)
    block_table.extend(new_blocks)
    return new_blocks


def fork(block_pool: Pool, block_table: list[KVCacheBlock]) -> list[KVCacheBlock]:
    block_pool.touch(block_table)
    return list(block_table)


def copy_places(
    block_pool: Pool, block_table: list[KVCacheBlock], places: list[int]
) -> list[tuple[int, int]] | None:
    """Replace the blocks at these places by copies, all or none."""
    if len(places) > block_pool.get_num_free_blocks():
        return None
    copies = []
    for place, new in zip(places, block_pool.get_new_blocks(len(places)), strict=True):
        old, block_table[place] = block_table[place], new
        block_pool.free_blocks([old])
        copies.append((old.block_id, new.block_id))
    return copies


def copy_on_write(
    block_pool: Pool, block_table: list[KVCacheBlock], start: int, end: int, block_size: int
) -> list[tuple[int, int]] | None:
    written = {position // block_size for position in range(start, end)}
    shared = [i for i, b in enumerate(block_table) if i in written and b.ref_cnt > 1]
    return copy_places(block_pool, block_table, shared)
