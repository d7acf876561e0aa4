"""Names of a prompt's blocks, which a router computes itself, and engines' events under them.

An engine's own hashes depend on its hash function and its version, so a router does not try to
compute them. It gives each block a name of its own, from the tokens; and where an engine tells that
it has stored a block, the tokens stand in the event.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from utils.kv_events.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockStored,
    ExternalBlockHash,
    KVEventBatch,
)
from utils.routing.prefix_index import KVIndex


def block_names(token_ids: Sequence[int], block_size: int, salt: str | None = None) -> list[int]:
    """Names of the full blocks of a prompt, each for all tokens up to the block's end.

    Args:
        token_ids: of the whole prompt.
        block_size: tokens in a block.
        salt: of the request's tenant; no other one's blocks can be reused.

    Returns:
        64-bit numbers, the same in every process.
    """
    names: list[int] = []
    parent = first_parent(salt)
    for begin in range(0, len(token_ids) - block_size + 1, block_size):
        parent = block_name(parent, token_ids[begin : begin + block_size])
        names.append(parent)
    return names


def block_name(parent: int, token_ids: Sequence[int]) -> int:
    """The name of a block that follows the block `parent`."""
    data = struct.pack(f"<Q{len(token_ids)}I", parent, *token_ids)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def first_parent(salt: str | None) -> int:
    """What stands before a prompt's first block."""
    if salt is None:
        return 0
    return int.from_bytes(hashlib.blake2b(salt.encode(), digest_size=8).digest(), "big")


class EventNames:
    """Brings the KV events of one engine into an index, under a router's names.

    Args:
        index: told what the engine has stored and removed.
        replica: the engine's number there.
    """

    def __init__(self, index: KVIndex, replica: int) -> None:
        self.index, self.replica = index, replica
        self.num_unknown = 0  # blocks whose parents were never told: whoever listens late
        self._names: dict[ExternalBlockHash, int] = {}
        self._copies: dict[ExternalBlockHash, int] = {}

    def apply(self, batch: KVEventBatch) -> None:
        """Book what happened in one step of the engine."""
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.clear()
            elif event.medium not in (None, MEDIUM_GPU):
                continue  # a slower tier has it: not what this index is about
            elif isinstance(event, BlockStored):
                self._store(event)
            else:
                self._remove(event.block_hashes)

    def clear(self) -> None:
        """The engine has nothing any more, or nobody knows what."""
        self._names.clear()
        self._copies.clear()
        self.index.cleared(self.replica)

    def _store(self, event: BlockStored) -> None:
        if event.parent_block_hash is None:
            parent: int | None = first_parent(_salt(event))
        else:
            parent = self._names.get(event.parent_block_hash)
        for i, block_hash in enumerate(event.block_hashes):
            if parent is None:
                self.num_unknown += 1
                continue
            begin = i * event.block_size
            parent = block_name(parent, event.token_ids[begin : begin + event.block_size])
            self._names[block_hash] = parent
            self._copies[block_hash] = self._copies.get(block_hash, 0) + 1
            self.index.stored(self.replica, [parent])

    def _remove(self, block_hashes: Sequence[ExternalBlockHash]) -> None:
        for block_hash in block_hashes:
            # Two requests may have computed the same block at the same time.
            left = self._copies.get(block_hash, 0) - 1
            if left > 0:
                self._copies[block_hash] = left
            elif block_hash in self._names:
                del self._copies[block_hash]
                self.index.removed(self.replica, [self._names.pop(block_hash)])


def _salt(event: BlockStored) -> str | None:
    """What a chain's first block depends on besides its tokens, as one text."""
    keys = event.extra_keys[0] if event.extra_keys else None
    return "\0".join(map(str, keys)) if keys else None
