"""The engine's KV events as vLLM's messages: `LLM(..., kv_events=PublishedEvents(publish))`."""

from __future__ import annotations

import time
from collections.abc import Callable

from utils.engine.core.kv_cache_utils import (
    BlockHash,
    HashedRequest,
    generate_block_hash_extra_keys,
)
from utils.engine.core.kv_events import KVEvents
from utils.kv_events.kv_events import (
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

    def blocks_stored(self, request: HashedRequest, begin: int, end: int, block_size: int) -> None:
        parent = external_hash(request.block_hashes[begin - 1]) if begin else None
        self.kv_event_queue.append(
            BlockStored(
                block_hashes=[external_hash(name) for name in request.block_hashes[begin:end]],
                parent_block_hash=parent,
                token_ids=request.all_token_ids[begin * block_size : end * block_size],
                block_size=block_size,
                lora_id=None,
                medium=MEDIUM_GPU,
                lora_name=request.lora_name,
                extra_keys=[_published(request) if i == 0 else None for i in range(begin, end)],
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
    """The name of a block outside the engine: the last 64 bits of its hash, as in vLLM."""
    return int.from_bytes(block_hash[-8:], "big")


def _published(request: HashedRequest) -> tuple[str, ...] | None:
    """What enters a first block's hash beside its tokens: those that there are, in vLLM's order."""
    keys = generate_block_hash_extra_keys(request)
    return keys and tuple(key for key in keys if key is not None)
