"""The subscriber: nothing is lost unseen, neither of our publisher's nor of vLLM's."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq
from vllm.distributed.kv_events import BlockRemoved as TheirRemoved
from vllm.distributed.kv_events import KVEventBatch as TheirBatch
from vllm.distributed.kv_events import ZmqEventPublisher as TheirPublisher

from tests.kv_events.on_the_wire import (
    Relay,
    a_batch,
    collect,
    has_published,
    heard,
    publish_until_heard,
)
from tests.serving.waiting import PATIENCE
from utils.kv_events import subscriber as module
from utils.kv_events.kv_events import AllBlocksCleared, BlockRemoved, KVEventBatch, KVEventsConfig
from utils.kv_events.publisher import ZmqEventPublisher
from utils.kv_events.subscriber import KVEventSubscriber, Received

FREE = "tcp://127.0.0.1:*"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher on a busy machine has time to answer for the past."""
    monkeypatch.setattr(module, "REPLAY_PATIENCE", PATIENCE)


def publisher(
    endpoint: str = FREE, replay: str = FREE, buffer_steps: int = 100
) -> ZmqEventPublisher:
    return ZmqEventPublisher(
        KVEventsConfig(True, endpoint=endpoint, replay_endpoint=replay, buffer_steps=buffer_steps)
    )


def numbers(received: list[Received]) -> list[int]:
    return [int(one.batch.ts) for one in received]


def test_who_comes_late_hears_the_past_and_what_follows() -> None:
    source = publisher()
    for number in range(1, 4):
        source.publish(a_batch(number))
    has_published(source.replay_endpoint, 3)
    with KVEventSubscriber(source.endpoint, source.replay_endpoint) as subscriber:
        assert numbers(subscriber.poll()) == [1, 2, 3]
        news = numbers(publish_until_heard(source, subscriber, lambda i: a_batch(4 + i)))
        assert news == list(range(4, 4 + len(news)))
        assert subscriber.num_lost == 0
    source.shutdown()


def test_a_gap_is_filled_or_everything_is_forgotten() -> None:
    source = publisher(buffer_steps=2)
    with (
        Relay(source) as relay,
        KVEventSubscriber(relay.endpoint, source.replay_endpoint) as subscriber,
    ):
        subscriber.poll()
        relay.wait_for_listener()
        source.publish(a_batch(1))
        relay.carry(1)
        assert numbers(collect(subscriber, 1)) == [1]
        source.publish(a_batch(2))
        relay.lose(1)
        source.publish(a_batch(3))
        relay.carry(1)
        assert numbers(collect(subscriber, 2)) == [2, 3] and subscriber.num_lost == 0
        for number in range(4, 9):
            source.publish(a_batch(number))
        relay.lose(5)
        source.publish(a_batch(9))
        relay.carry(1)
        forget, last = collect(subscriber, 2)
        assert forget.batch.events == [AllBlocksCleared()] and last.batch.ts == 9.0
        assert subscriber.num_lost == 5
    source.shutdown()


def test_an_engine_that_starts_anew_begins_with_nothing(tmp_path: Path) -> None:
    endpoint, replay = f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"
    source = publisher(endpoint, replay)
    with KVEventSubscriber(endpoint) as subscriber:
        found = numbers(publish_until_heard(source, subscriber, lambda i: a_batch(1 + i)))
        assert found == list(range(found[0], found[0] + len(found)))
        # So many that the new engine's numbers are lower, however long it takes to connect again.
        for number in range(1, 1001):
            source.publish(a_batch(found[-1] + number))
        assert numbers(collect(subscriber, 1000))[-1] == found[-1] + 1000
        source.shutdown()
        source = publisher(endpoint, replay)
        begin = found[-1] + 1001
        forget, first = publish_until_heard(source, subscriber, lambda i: a_batch(begin + i))[:2]
        assert forget.batch.events == [AllBlocksCleared()]
        assert first.seq == first.batch.ts - begin
    source.shutdown()


def test_it_listens_to_vllms_publisher(tmp_path: Path) -> None:
    endpoint, replay = f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"
    source = TheirPublisher(0, endpoint, replay_endpoint=replay)

    def theirs(number: int) -> TheirBatch:
        return TheirBatch(ts=1.0 + number, events=[TheirRemoved([7 + number], "GPU")])

    source.publish(theirs(0))
    has_published(replay, 1)
    with KVEventSubscriber(endpoint, replay) as subscriber:
        [past] = subscriber.poll()
        assert past.batch == KVEventBatch(1.0, [BlockRemoved([7], "GPU")], 0)
        news = numbers(publish_until_heard(source, subscriber, lambda i: theirs(1 + i)))
        assert news == list(range(2, 2 + len(news)))
    source.shutdown()


def test_bytes_that_are_no_events_are_refused() -> None:
    with zmq.Context.instance().socket(zmq.XPUB) as source:
        port = source.bind_to_random_port("tcp://127.0.0.1")
        with KVEventSubscriber(f"tcp://127.0.0.1:{port}") as subscriber:
            heard(source)
            source.send_multipart((b"", bytes(8), b"nonsense"))
            with pytest.raises(ValueError, match="not a batch of KV events"):
                subscriber.poll(PATIENCE)
