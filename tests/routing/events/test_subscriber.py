"""The subscriber: nothing is lost unseen, neither of our publisher's nor of vLLM's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import zmq
from vllm.distributed.kv_events import BlockRemoved as TheirRemoved
from vllm.distributed.kv_events import KVEventBatch as TheirBatch
from vllm.distributed.kv_events import ZmqEventPublisher as TheirPublisher

from utils.pipeline.vllm.local_server import free_port
from utils.routing.events.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    KVEventBatch,
    KVEventsConfig,
)
from utils.routing.events.publisher import EndpointError, ZmqEventPublisher
from utils.routing.events.subscriber import KVEventSubscriber, Received


def publisher(port: int, replay: int, buffer_steps: int = 100) -> ZmqEventPublisher:
    return ZmqEventPublisher(
        KVEventsConfig(
            True, endpoint=f"tcp://127.0.0.1:{port}", buffer_steps=buffer_steps,
            replay_endpoint=f"tcp://127.0.0.1:{replay}",
        )
    )  # fmt: skip


def collect(subscriber: KVEventSubscriber, count: int) -> list[Received]:
    found: list[Received] = []
    deadline = time.monotonic() + 10
    while len(found) < count and time.monotonic() < deadline:
        found += subscriber.poll(0.1)
    return found


def numbers(received: list[Received]) -> list[int]:
    return [int(one.batch.ts) for one in received]


def a_batch(number: int) -> KVEventBatch:
    return KVEventBatch(float(number), [BlockRemoved([number], "GPU")])


def test_who_comes_late_hears_the_past_and_what_follows() -> None:
    port, replay = free_port(), free_port()
    source = publisher(port, replay)
    for number in range(1, 4):
        source.publish(a_batch(number))
    time.sleep(0.3)
    with KVEventSubscriber(f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{replay}") as subscriber:
        assert numbers(subscriber.poll()) == [1, 2, 3]
        time.sleep(0.2)
        source.publish(a_batch(4))
        assert numbers(collect(subscriber, 1)) == [4]
        assert subscriber.num_lost == 0
    source.shutdown()


def test_a_gap_is_filled_or_everything_is_forgotten() -> None:
    port, replay = free_port(), free_port()
    source = publisher(port, replay, buffer_steps=2)
    where = (f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{replay}")
    with KVEventSubscriber(*where) as subscriber:
        subscriber.poll()
        time.sleep(0.2)
        source.publish(a_batch(1))
        assert numbers(collect(subscriber, 1)) == [1]
        subscriber._sub.disconnect(where[0])  # the network fails for a while
        source.publish(a_batch(2))
        time.sleep(0.3)
        subscriber._sub.connect(where[0])
        time.sleep(0.3)
        source.publish(a_batch(3))
        assert numbers(collect(subscriber, 2)) == [2, 3] and subscriber.num_lost == 0
        subscriber._sub.disconnect(where[0])
        for number in range(4, 9):
            source.publish(a_batch(number))
        time.sleep(0.3)
        subscriber._sub.connect(where[0])
        time.sleep(0.3)
        source.publish(a_batch(9))
        forget, last = collect(subscriber, 2)
        assert forget.batch.events == [AllBlocksCleared()] and last.batch.ts == 9.0
        assert subscriber.num_lost == 5
    source.shutdown()


def again(port: int, replay: int) -> Any:
    """A publisher at ports that another one has just left: the system takes a moment."""
    for _ in range(50):
        try:
            return publisher(port, replay)
        except EndpointError:
            time.sleep(0.1)
    return publisher(port, replay)


def test_an_engine_that_starts_anew_begins_with_nothing() -> None:
    port, replay = free_port(), free_port()
    source = publisher(port, replay)
    with KVEventSubscriber(f"tcp://127.0.0.1:{port}") as subscriber:
        time.sleep(0.2)
        for number in (1, 2):
            source.publish(a_batch(number))
        assert numbers(collect(subscriber, 2)) == [1, 2]
        source.shutdown()
        source = again(port, replay)
        received: list[Received] = []
        number = 3
        while not received and number < 60:  # a connection is restored after some time
            source.publish(a_batch(number))
            received, number = subscriber.poll(0.2), number + 1
        forget, first = received[:2]
        assert forget.batch.events == [AllBlocksCleared()]
        assert first.seq == first.batch.ts - 3
    source.shutdown()


def test_it_listens_to_vllms_publisher(tmp_path: Path) -> None:
    endpoint, replay = f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"
    source = TheirPublisher(0, endpoint, replay_endpoint=replay)
    source.publish(TheirBatch(ts=1.0, events=[TheirRemoved([7], "GPU")]))
    time.sleep(0.3)
    with KVEventSubscriber(endpoint, replay) as subscriber:
        [past] = subscriber.poll()
        assert past.batch == KVEventBatch(1.0, [BlockRemoved([7], "GPU")], 0)
        time.sleep(0.2)
        source.publish(TheirBatch(ts=2.0, events=[TheirRemoved([8], "GPU")]))
        assert numbers(collect(subscriber, 1)) == [2]
    source.shutdown()


def test_bytes_that_are_no_events_are_refused() -> None:
    with zmq.Context.instance().socket(zmq.PUB) as source:
        port = source.bind_to_random_port("tcp://127.0.0.1")
        with KVEventSubscriber(f"tcp://127.0.0.1:{port}") as subscriber:
            time.sleep(0.2)
            source.send_multipart((b"", bytes(8), b"nonsense"))
            with pytest.raises(ValueError, match="not a batch of KV events"):
                subscriber.poll(5)
