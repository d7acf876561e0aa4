"""The engine's KV events as vLLM's messages: `LLM(..., kv_events=PublishedEvents(publish))`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from utils.engine.core.kv_cache_utils import BlockHash
from utils.engine.core.kv_events import KVEvents
from utils.routing.events.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    KVEventBatch,
)

GROUP = 0  # all layers of a Llama share one block table
KIND = "full_attention"


class PublishedEvents(KVEvents):
    """Makes a message of each event, and hands those of a step out together.

    Args:
        publish: takes a batch, for example `ZmqEventPublisher.publish`.
    """

    def __init__(self, publish: Callable[[KVEventBatch], None]) -> None:
        self.publish = publish
        self.kv_event_queue: list[Event] = []

    def blocks_stored(self, block_hashes: Sequence[BlockHash], begin: int, end: int) -> None:
        new = block_hashes[begin:end]
        if not new:
            return
        # The adapter's name and the salt stand in the first block's keys, which its parents share.
        lora_name, _ = block_hashes[0].extra_keys or (None, None)
        self.kv_event_queue.append(
            BlockStored(
                block_hashes=[external_hash(block_hash) for block_hash in new],
                parent_block_hash=external_hash(new[0].parent) if new[0].parent else None,
                token_ids=[token for block_hash in new for token in block_hash.token_ids],
                block_size=len(new[0].token_ids),
                lora_id=None,
                medium=MEDIUM_GPU,
                lora_name=lora_name,
                extra_keys=[_published(block_hash) for block_hash in new],
                group_idx=GROUP,
                kv_cache_spec_kind=KIND,
            )
        )

    def block_removed(self, block_hash: BlockHash) -> None:
        self.kv_event_queue.append(
            BlockRemoved([external_hash(block_hash)], MEDIUM_GPU, group_idx=GROUP)
        )

    def all_blocks_cleared(self) -> None:
        self.kv_event_queue.append(AllBlocksCleared())

    def step_ended(self) -> None:
        if events := self.take_events():
            self.publish(KVEventBatch(time.time(), events))

    def take_events(self) -> list[Event]:
        """The events since the last call, each handed out once."""
        events, self.kv_event_queue = self.kv_event_queue, []
        return events


def external_hash(block_hash: BlockHash) -> int:
    """The name of a block outside the engine: the last 64 bits of its digest, as in vLLM."""
    return int.from_bytes(block_hash.digest[-8:], "big")


def _published(block_hash: BlockHash) -> tuple[str, ...] | None:
    """Adapter and salt of a block's hash, those that there are, in vLLM's order."""
    if block_hash.extra_keys is None:
        return None
    return tuple(key for key in block_hash.extra_keys if key is not None)
