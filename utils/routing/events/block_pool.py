"""`EventfulBlockPool`: the engine's block pool, which says what it has gained and lost.

In vLLM the pool itself does that, with `enable_kv_cache_events`; the scheduler publishes after each
step. Here both are subclasses: the engine stays as it was, and can be read without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from utils.engine.config.engine import EngineConfig
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import (
    BlockHash,
    KVCacheBlock,
    get_hash_fn_by_name,
    get_request_block_hasher,
)
from utils.engine.core.scheduler import Scheduler
from utils.engine.core.scheduler_output import SchedulerOutput
from utils.engine.request import Request
from utils.routing.events.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    KVEventBatch,
)

Publish = Callable[[KVEventBatch], None]
GROUP = 0  # all layers of a Llama share one block table
KIND = "full_attention"


class EventfulBlockPool(BlockPool):
    """A block pool that keeps a list of its events until they are taken.

    Args:
        num_gpu_blocks: how many blocks there are.
        block_size: tokens in a block.
    """

    def __init__(self, num_gpu_blocks: int, block_size: int) -> None:
        super().__init__(num_gpu_blocks)
        self.block_size = block_size
        self.kv_event_queue: list[Event] = []

    def cache_full_blocks(
        self,
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence[BlockHash],
        num_cached_blocks: int,
        num_full_blocks: int,
    ) -> None:
        super().cache_full_blocks(blocks, block_hashes, num_cached_blocks, num_full_blocks)
        new = block_hashes[num_cached_blocks:num_full_blocks]
        if not new:
            return
        # The adapter's name and the salt stand in the first block's keys, which its parents share.
        first = block_hashes[0].extra_keys or (None, None)
        self.kv_event_queue.append(
            BlockStored(
                block_hashes=[external_hash(block_hash) for block_hash in new],
                parent_block_hash=external_hash(new[0].parent) if new[0].parent else None,
                token_ids=[token for block_hash in new for token in block_hash.token_ids],
                block_size=self.block_size,
                lora_id=None,
                medium=MEDIUM_GPU,
                lora_name=first[0],
                extra_keys=[_published(block_hash) for block_hash in new],
                group_idx=GROUP,
                kv_cache_spec_kind=KIND,
            )
        )

    def forget_contents(self) -> None:
        super().forget_contents()
        self.kv_event_queue.append(AllBlocksCleared())

    def take_events(self) -> list[Event]:
        """The events since the last call, each handed out once."""
        events, self.kv_event_queue = self.kv_event_queue, []
        return events

    def _evict(self, block: KVCacheBlock) -> None:
        block_hash = block.block_hash
        super()._evict(block)
        assert block_hash is not None
        self.kv_event_queue.append(
            BlockRemoved([external_hash(block_hash)], MEDIUM_GPU, group_idx=GROUP)
        )


def external_hash(block_hash: BlockHash) -> int:
    """The name of a block outside the engine: the last 64 bits of its digest, as in vLLM."""
    return int.from_bytes(block_hash.digest[-8:], "big")


def _published(block_hash: BlockHash) -> tuple[str, ...] | None:
    """Adapter and salt of a block's hash, those that there are, in vLLM's order."""
    if block_hash.extra_keys is None:
        return None
    return tuple(key for key in block_hash.extra_keys if key is not None)


def make_eventful_manager(config: EngineConfig) -> KVCacheManager:
    """A KV cache manager whose pool has events: `LLM(..., kv_cache_manager=make_eventful_manager)`.

    Raises:
        ValueError: prefix caching is off, so there is nothing to tell.
    """
    if not config.enable_prefix_caching:
        raise ValueError("KV events tell what the prefix cache holds: enable prefix caching.")
    hasher = get_request_block_hasher(
        config.block_size, get_hash_fn_by_name(config.prefix_caching_hash_algo)
    )
    return KVCacheManager(
        config.num_gpu_blocks, config.block_size, True, hasher, config.num_cpu_blocks,
        block_pool=EventfulBlockPool(config.num_gpu_blocks, config.block_size),
    )  # fmt: skip


def publishing_scheduler(publish: Publish) -> Callable[[EngineConfig, KVCacheManager], Scheduler]:
    """A scheduler that publishes the pool's events after each step: `LLM(..., scheduler_cls=...)`.

    Args:
        publish: takes a batch, for example `ZmqEventPublisher.publish`.
    """

    class PublishingScheduler(Scheduler):
        def update_from_output(self, output: SchedulerOutput, sampled: Sequence[Request]) -> None:
            super().update_from_output(output, sampled)
            pool = self.kv_cache_manager.block_pool
            assert isinstance(pool, EventfulBlockPool)
            if events := pool.take_events():
                publish(KVEventBatch(time.time(), events))

    return PublishingScheduler
