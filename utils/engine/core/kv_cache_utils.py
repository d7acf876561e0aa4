"""What the block pool is made of: blocks, the queue of free blocks, and block hashes.

Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with
PagedAttention", section 4. Names as in vLLM's `v1/core/kv_cache_utils.py`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NewType, Protocol

import xxhash

ExtraKeys = tuple[Any, ...] | None
HashFunction = Callable[[bytes], bytes]

NONE_HASH = bytes(32)  # stands where a first block has no parent
HASH_FUNCTIONS: dict[str, HashFunction] = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    # Faster, but anybody can construct two prompts with the same hash: for tenants who trust each
    # other.
    "xxhash": xxhash.xxh3_128_digest,
}


def get_hash_fn_by_name(name: str) -> HashFunction:
    """The hash function for `prefix_caching_hash_algo`. Raises a ValueError for unknown names."""
    if name not in HASH_FUNCTIONS:
        raise ValueError(f"Unknown hash {name!r}. Expected one of {', '.join(HASH_FUNCTIONS)}.")
    return HASH_FUNCTIONS[name]


class _ToBytes(dict[int, Callable[..., bytes]]):
    """For each number of tokens, a function that writes them as 32-bit integers.

    Made once each: every token of every prompt passes through here.
    """

    def __missing__(self, num_tokens: int) -> Callable[..., bytes]:
        self[num_tokens] = struct.Struct(f"{num_tokens}I").pack
        return self[num_tokens]


_TO_BYTES = _ToBytes()


# Stands for the contents of a full block and of all blocks before it.
BlockHash = NewType("BlockHash", bytes)


def hash_block_tokens(
    hash_function: HashFunction,
    parent_block_hash: bytes | None,
    curr_block_token_ids: Sequence[int],
    extra_keys: ExtraKeys = None,
) -> BlockHash:
    """Hash a full block together with everything before it.

    The keys and values of a token depend on all tokens before it. So must the hash: it takes in
    the parent's, which took in its own parent's, and so on to the first token. Nobody compares the
    tokens themselves: two prompts are the same if their hashes are.
    """
    # The first two parts have a fixed length, so where the third begins is never in doubt.
    tokens = _TO_BYTES[len(curr_block_token_ids)](*curr_block_token_ids)
    data = (parent_block_hash or NONE_HASH) + tokens
    if extra_keys is not None:
        data += repr(extra_keys).encode()
    return BlockHash(hash_function(data))


class HasExtraKeys(Protocol):
    """What block hashes depend on besides tokens."""

    lora_name: str | None
    cache_salt: str | None


def generate_block_hash_extra_keys(request: HasExtraKeys) -> ExtraKeys:
    """What must agree besides the tokens: adapter and tenant's salt. None when there is neither.

    It enters the first block's hash, and through the chain all others.
    """
    if request.lora_name is None and request.cache_salt is None:
        return None
    return (request.lora_name, request.cache_salt)


class HashedRequest(HasExtraKeys, Protocol):
    """What of a request its block hashes depend on. `Request` has it all."""

    all_token_ids: list[int]
    block_hashes: list[BlockHash]


BlockHasher = Callable[[HashedRequest], list[BlockHash]]


def get_request_block_hasher(block_size: int, caching_hash_fn: HashFunction) -> BlockHasher:
    """Make a function that hashes those full blocks of a request that have no hash yet."""

    def request_block_hasher(request: HashedRequest) -> list[BlockHash]:
        new: list[BlockHash] = []
        start = len(request.block_hashes) * block_size
        parent = request.block_hashes[-1] if request.block_hashes else None
        for begin in range(start, len(request.all_token_ids) - block_size + 1, block_size):
            tokens = request.all_token_ids[begin : begin + block_size]
            extra_keys = generate_block_hash_extra_keys(request) if begin == 0 else None
            parent = hash_block_tokens(caching_hash_fn, parent, tokens, extra_keys)
            new.append(parent)
        return new

    return request_block_hasher


@dataclass(slots=True, eq=False)
class KVCacheBlock:
    """What is known about one block of KV memory. The memory itself is in `PagedKVCache`."""

    block_id: int
    ref_cnt: int = 0  # how many requests' tables hold the block
    block_hash: BlockHash | None = None  # set while the block can be found by its contents
    # Neighbours in the free queue. Only the queue changes them.
    prev_free_block: KVCacheBlock | None = None
    next_free_block: KVCacheBlock | None = None

    def __repr__(self) -> str:
        shown = None if self.block_hash is None else self.block_hash.hex()[:8]
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, hash={shown})"


@dataclass
class BlockCopies:
    """What must be copied before the next forward pass, in this order: tokens, then whole blocks.

    A slot is the place of one token: `block_id * block_size + offset in the block`.
    """

    move: list[tuple[int, int]] = field(default_factory=list)  # (slot, slot)
    swap_out: list[tuple[int, int]] = field(default_factory=list)  # (device block, host block)
    copy: list[tuple[int, int]] = field(default_factory=list)  # (device block, device block)
    swap_in: list[tuple[int, int]] = field(default_factory=list)  # (host block, device block)

    def drop_moves(self, block_ids: set[int], block_size: int) -> None:
        """What lies in these blocks need not move any more."""
        self.move = [pair for pair in self.move if pair[0] // block_size not in block_ids]


class FreeKVCacheBlockQueue:
    """The free blocks, the first to be reused in front: a doubly linked list.

    A hit takes a block out of the middle, which a list or a deque does in O(n), and this in O(1).
    The links lie in the blocks themselves, so no object is made when the queue changes.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.num_free_blocks = 0
        # With an end that is never removed, every block has two neighbours, and no case is special.
        self._end = KVCacheBlock(block_id=-1)
        self._end.prev_free_block = self._end.next_free_block = self._end
        self.append_n(blocks)

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the first `n` blocks out. The caller has checked that there are as many."""
        taken = []
        block = self._end.next_free_block
        for _ in range(n):
            taken.append(block)
            following = block.next_free_block  # type: ignore[union-attr]
            block.prev_free_block = block.next_free_block = None  # type: ignore[union-attr]
            block = following
        self._link(self._end, block)
        self.num_free_blocks -= n
        return taken  # type: ignore[return-value]

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out, wherever it is. Raises a ValueError if it is not in the queue."""
        if block.prev_free_block is None:
            raise ValueError(f"{block} is not in the free queue.")
        self._link(block.prev_free_block, block.next_free_block)
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks at the back: the last to be reused."""
        self._insert_after(self._end.prev_free_block, blocks)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks at the front, in this order: the first to be reused."""
        self._insert_after(self._end, blocks)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._end.next_free_block
        while block is not self._end:
            yield block  # type: ignore[misc]
            block = block.next_free_block  # type: ignore[union-attr]

    def _insert_after(self, left: KVCacheBlock | None, blocks: Sequence[KVCacheBlock]) -> None:
        right = left.next_free_block  # type: ignore[union-attr]
        for block in blocks:
            left.next_free_block = block  # type: ignore[union-attr]
            block.prev_free_block = left
            left = block
        self._link(left, right)
        self.num_free_blocks += len(blocks)

    @staticmethod
    def _link(left: KVCacheBlock | None, right: KVCacheBlock | None) -> None:
        left.next_free_block, right.prev_free_block = right, left  # type: ignore[union-attr]
