"""KV events: an engine says which blocks its prefix cache has gained and lost.

Names, fields and bytes are those of vLLM's `distributed/kv_events.py`: what vLLM's decoder reads,
and what a router that listens to vLLM understands. The bytes are msgpack: a batch is an array, an
event a map without the fields that have their default, with its name under "type".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

ExternalBlockHash = int | bytes  # vLLM sends the last 64 bits as an integer, or the whole digest
MEDIUM_GPU = "GPU"  # vLLM's word for the engine's own KV memory, also on a CPU


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """What all events share: the name of the class goes over the wire."""


class BlockStored(KVCacheEvent):
    """Blocks can be found from now on.

    Args:
        block_hashes: one for each block, in the order of the tokens.
        parent_block_hash: of the block before the first one; None where a prompt begins.
        token_ids: `len(block_hashes) * block_size` of them.
        block_size: tokens in a block.
        lora_id: vLLM has deprecated it.
        medium: where they are: "GPU", "CPU", "STORAGE".
        lora_name: the adapter they were computed with.
        extra_keys: one for each block: what else its hash depends on, such as a tenant's salt.
        group_idx: which group of layers; here always 0.
        kv_cache_spec_kind: the kind of attention of that group.
    """

    block_hashes: list[ExternalBlockHash]
    parent_block_hash: ExternalBlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(KVCacheEvent):
    """Blocks are overwritten, and can no longer be found."""

    block_hashes: list[ExternalBlockHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    """Nothing can be found any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """What happened in one step of an engine, in this order. `ts`: seconds since 1970."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


def encode(batch: KVEventBatch) -> bytes:
    """A batch as it goes over the wire."""
    return msgspec.msgpack.encode(batch)


def decode(payload: bytes) -> KVEventBatch:
    """A batch from the wire, of our engine or of vLLM.

    Raises:
        ValueError: these bytes are no batch of KV events.
    """
    try:
        return _DECODER.decode(payload)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{len(payload)} bytes are not a batch of KV events: {error}") from error


_DECODER = msgspec.msgpack.Decoder(KVEventBatch)


@dataclass(frozen=True)
class KVEventsConfig:
    """What `--kv-events-config` says, as JSON. Names and defaults are vLLM's, but for `endpoint`.

    Args:
        enable_kv_cache_events: publish at all.
        publisher: "zmq", or "null" for nobody. None: "zmq" if events are enabled.
        endpoint: where to publish. vLLM's default, `tcp://*:5557`, is open to other machines.
        replay_endpoint: where whoever has missed a batch can ask for it. None: nowhere.
        buffer_steps: how many batches are kept for replay.
        hwm: batches that may wait for one slow listener. Further ones are dropped.
        max_queue_size: batches that may wait to be sent. Then the engine waits.
        topic: subscribers can choose by it.

    Raises:
        ValueError: an unknown publisher, or a number that is not positive.
    """

    enable_kv_cache_events: bool = False
    publisher: str | None = None
    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    def __post_init__(self) -> None:
        if self.publisher not in (None, "zmq", "null"):
            raise ValueError(f"Unknown publisher {self.publisher!r}. Expected 'zmq' or 'null'.")
        for name in ("buffer_steps", "hwm", "max_queue_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}.")

    @property
    def is_on(self) -> bool:
        """Is there anything to publish, and somebody who does?"""
        return self.enable_kv_cache_events and self.publisher != "null"
