"""Events of several engines reach who listens to each, and a dead engine is forgotten."""

from __future__ import annotations

import time

import pytest

from tests.kv_events.on_the_wire import has_published
from tests.serving.waiting import PATIENCE
from utils.kv_events import subscriber
from utils.kv_events.kv_events import BlockStored, KVEventBatch, KVEventsConfig
from utils.kv_events.publisher import ZmqEventPublisher
from utils.routing.prefix_index import KVIndex
from utils.routing.router.block_names import EventNames, block_names
from utils.routing.router.event_feed import EventFeed

FREE = "tcp://127.0.0.1:*"
URLS = ["http://one", "http://two"]


def stored(tokens: list[int]) -> KVEventBatch:
    return KVEventBatch(time.time(), [BlockStored([7], None, tokens, 2, None, "GPU", None)])


def test_each_engine_has_its_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber, "REPLAY_PATIENCE", PATIENCE)  # on a busy machine
    config = KVEventsConfig(True, endpoint=FREE, replay_endpoint=FREE)
    publishers = [ZmqEventPublisher(config) for _ in URLS]
    index = KVIndex(2)
    feed = EventFeed(
        [EventNames(index, i) for i in range(2)],
        URLS,
        {url: one.endpoint for url, one in zip(URLS, publishers, strict=True)},
        {url: str(one.replay_endpoint) for url, one in zip(URLS, publishers, strict=True)},
    )
    try:
        # The same hash, and other tokens: engines do not agree on hashes.
        publishers[0].publish(stored([1, 2]))
        publishers[1].publish(stored([3, 4]))
        for publisher in publishers:
            has_published(publisher.replay_endpoint, 1)
        feed.drain()
        assert feed.num_batches == 2
        assert index.matches(block_names([1, 2], 2)) == [1, 0]
        assert index.matches(block_names([3, 4], 2)) == [0, 1]
        feed.forget(1)
        assert index.matches(block_names([3, 4], 2)) == [0, 0]
        feed.drain()  # it lives still, and tells its past again
        assert index.matches(block_names([3, 4], 2)) == [0, 1]
    finally:
        feed.close()
        for publisher in publishers:
            publisher.shutdown()


def test_a_replica_without_events_is_named() -> None:
    with pytest.raises(ValueError, match="No KV events come from http://two"):
        EventFeed([], URLS, {"http://one": FREE})
