"""One right answer for each exercise, as in the solution; known mistakes are edits of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_utils import KVCacheBlock
from utils.engine.request import Request

NONE_HASH = bytes(32)


def predict_num_cached_tokens(prompts: list[list[int]], block_size: int) -> list[int]:
    seen: set[tuple[int, ...]] = set()  # every prefix that ends with a full block
    predicted = []
    for prompt in prompts:
        ends = range(block_size, len(prompt) + 1, block_size)
        found = [end for end in ends if end < len(prompt) and tuple(prompt[:end]) in seen]
        predicted.append(max(found, default=0))
        seen.update(tuple(prompt[:end]) for end in ends)
    return predicted


def hash_block_tokens(
    hash_function: Callable[[bytes], bytes],
    parent_block_hash: bytes | None,
    curr_block_token_ids: Sequence[int],
    extra_keys: tuple[str, ...] | None = None,
) -> bytes:
    data = NONE_HASH if parent_block_hash is None else parent_block_hash
    for token_id in curr_block_token_ids:
        data += token_id.to_bytes(4, "little")
    data += repr(extra_keys).encode()
    return hash_function(data)


def request_block_hasher(request: Request, block_size: int, hash_block: Callable) -> list:
    new_hashes = []
    parent = request.block_hashes[-1] if request.block_hashes else None
    for i in range(len(request.block_hashes), request.num_tokens // block_size):
        token_ids = request.all_token_ids[i * block_size : (i + 1) * block_size]
        extra_keys = (request.cache_salt,) if i == 0 and request.cache_salt else None
        parent = hash_block(parent, token_ids, extra_keys)
        new_hashes.append(parent)
    return new_hashes


def get_computed_blocks(
    request: Request, block_size: int, block_pool: BlockPool
) -> tuple[list[KVCacheBlock], int]:
    blocks: list[KVCacheBlock] = []
    for block_hash in request.block_hashes[: (request.num_tokens - 1) // block_size]:
        block = block_pool.get_cached_block(block_hash)
        if block is None:
            break
        blocks.append(block)
    return blocks, len(blocks) * block_size


class CachingBlockPool(BlockPool):
    def get_cached_block(self, block_hash: Any) -> KVCacheBlock | None:
        same = self.cached_block_hash_to_block.get(block_hash)
        return next(iter(same.values())) if same else None

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        if num_blocks > self.get_num_free_blocks():
            raise ValueError(f"{num_blocks} blocks wanted, {self.get_num_free_blocks()} are free")
        blocks = self.free_block_queue.popleft_n(num_blocks)
        for block in blocks:
            if block.block_hash is not None:
                del self.cached_block_hash_to_block[block.block_hash][block.block_id]
                block.block_hash = None
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        unfindable, findable = [], []  # type: ignore[var-annotated]
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                (unfindable if block.block_hash is None else findable).append(block)
        self.free_block_queue.prepend_n(unfindable)
        self.free_block_queue.append_n(findable)

    def cache_full_blocks(
        self,
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence,
        num_cached_blocks: int,
        num_full_blocks: int,
    ) -> None:
        for i in range(num_cached_blocks, num_full_blocks):
            blocks[i].block_hash = block_hashes[i]
            same = self.cached_block_hash_to_block.setdefault(block_hashes[i], {})
            same[blocks[i].block_id] = blocks[i]


def free_request(block_pool: BlockPool, block_table: list[KVCacheBlock]) -> None:
    block_pool.free_blocks(reversed(block_table))


def steal_blocks(
    hash_block: Callable, wanted: Sequence[bytes], block_size: int, vocab_size: int
) -> list[int]:
    prompt: list[int] = []
    parent = None
    for block_hash in wanted:
        for token_ids in product(range(vocab_size), repeat=block_size):
            if hash_block(parent, token_ids) == block_hash:
                break
        prompt += token_ids
        parent = block_hash
    return [*prompt, 0]
