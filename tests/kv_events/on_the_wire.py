"""What tests need to know of ZeroMQ: who listens by now, and what a publisher still has."""

from __future__ import annotations

from typing import Any

import zmq

from tests.serving.waiting import PATIENCE, eventually
from utils.kv_events.kv_events import BlockRemoved, KVEventBatch
from utils.kv_events.publisher import END_SEQ, ZmqEventPublisher
from utils.kv_events.subscriber import KVEventSubscriber, Received

PATIENCE_MS = int(1000 * PATIENCE)


def a_batch(number: int) -> KVEventBatch:
    return KVEventBatch(float(number), [BlockRemoved([number], "GPU")])


def ask_for_the_past(replay_endpoint: str | None, start: int = 0) -> list[list[bytes]]:
    """What a publisher still has from a number on: topic, number and batch of each."""
    assert replay_endpoint is not None
    found: list[list[bytes]] = []
    with zmq.Context.instance().socket(zmq.DEALER) as client:
        client.setsockopt(zmq.LINGER, 0)
        client.connect(replay_endpoint)
        client.send_multipart((b"", start.to_bytes(8, "big")))
        while not found or found[-1][1] != END_SEQ:
            assert client.poll(PATIENCE_MS)
            found.append(client.recv_multipart()[1:])
    return found[:-1]


def has_published(replay_endpoint: str | None, count: int) -> None:
    """Wait until a publisher, which works in a thread of its own, has sent so many batches."""
    eventually(lambda: len(ask_for_the_past(replay_endpoint)) == count, "all are published")


def listen(publisher: ZmqEventPublisher, listener: zmq.Socket[bytes]) -> int:
    """Connect a listener. A subscription takes a moment, and nobody tells when it is there: so
    batches are published until one comes. Returns the number of the next batch."""
    listener.connect(publisher.endpoint)
    sent = 0

    def one_comes() -> bool:
        nonlocal sent
        publisher.publish(a_batch(0))
        sent += 1
        return bool(listener.poll(20))

    eventually(one_comes, "a batch is heard")
    while int.from_bytes(receive(listener)[1], "big") < sent - 1:
        pass
    return sent


def receive(listener: zmq.Socket[bytes]) -> list[bytes]:
    assert listener.poll(PATIENCE_MS), "a batch is missing"
    return listener.recv_multipart()


class Relay:
    """Stands between a publisher and a subscriber, as a network that fails when a test wants it.

    It knows when the subscriber listens, because its own socket tells.
    """

    def __init__(self, publisher: ZmqEventPublisher) -> None:
        context = zmq.Context.instance()
        self._from, self._to = context.socket(zmq.SUB), context.socket(zmq.XPUB)
        self._from.subscribe(b"")
        port = self._to.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self.first = listen(publisher, self._from)  # the number of the first batch that it sees

    def wait_for_listener(self) -> None:
        heard(self._to)

    def carry(self, count: int) -> None:
        for _ in range(count):
            self._to.send_multipart(receive(self._from))

    def lose(self, count: int) -> None:
        for _ in range(count):
            receive(self._from)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._from.close(linger=0)
        self._to.close(linger=0)


def heard(source: zmq.Socket[bytes]) -> None:
    """Wait until somebody has subscribed to all that an XPUB socket sends."""
    assert source.poll(PATIENCE_MS), "nobody listens"
    assert source.recv() == b"\x01"


def collect(subscriber: KVEventSubscriber, count: int) -> list[Received]:
    found: list[Received] = []

    def all_are_there() -> bool:
        found.extend(subscriber.poll(0.1))
        return len(found) >= count

    eventually(all_are_there, f"{count} batches come")
    return found


def publish_until_heard(publisher: Any, subscriber: KVEventSubscriber, make: Any) -> list[Received]:
    """Publish `make(0)`, `make(1)`, ... until one is heard, and return what came by then: all of
    them, where what was said before somebody listened can be asked for."""
    found: list[Received] = []
    sent = 0

    def one_comes() -> bool:
        nonlocal sent
        publisher.publish(make(sent))
        sent += 1
        found.extend(subscriber.poll(0.1))
        return bool(found)

    eventually(one_comes, "a batch is heard")
    last = make(sent - 1).ts
    while found[-1].batch.ts < last:
        found += collect(subscriber, 1)
    return found
