"""The publisher against vLLM's: whoever can listen to one can listen to the other."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import zmq
from vllm.distributed.kv_events import ZmqEventPublisher as TheirPublisher

from utils.pipeline.vllm.local_server import free_port
from utils.routing.events.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    KVEventBatch,
    KVEventsConfig,
    decode,
)
from utils.routing.events.publisher import END_SEQ, EndpointError, ZmqEventPublisher

FREE = "tcp://127.0.0.1:*"


@pytest.fixture
def publisher() -> Iterator[ZmqEventPublisher]:
    made = ZmqEventPublisher(
        KVEventsConfig(True, endpoint=FREE, replay_endpoint=FREE, topic="kv", buffer_steps=3)
    )
    yield made
    made.shutdown()


def a_batch(number: int) -> KVEventBatch:
    return KVEventBatch(float(number), [BlockRemoved([number], "GPU")])


def test_frames_are_topic_number_and_batch(publisher: ZmqEventPublisher) -> None:
    with zmq.Context.instance().socket(zmq.SUB) as listener:
        listener.subscribe(b"kv")
        listener.connect(publisher.endpoint)
        time.sleep(0.2)  # a subscription takes a moment
        for number in range(2):
            publisher.publish(a_batch(number))
        for number in range(2):
            assert listener.poll(5000)
            topic, seq, payload = listener.recv_multipart()
            assert (topic, seq) == (b"kv", number.to_bytes(8, "big"))
            batch = decode(payload)
            assert (batch.events, batch.data_parallel_rank) == (a_batch(number).events, 0)


def test_the_past_is_kept_as_far_as_the_buffer_goes(publisher: ZmqEventPublisher) -> None:
    for number in range(5):
        publisher.publish(a_batch(number))
    time.sleep(0.3)
    with zmq.Context.instance().socket(zmq.DEALER) as client:
        client.connect(publisher.replay_endpoint)
        client.send_multipart((b"", (3).to_bytes(8, "big")))
        frames = []
        while not frames or frames[-1][2] != END_SEQ:
            assert client.poll(5000)
            frames.append(client.recv_multipart())
    assert END_SEQ == TheirPublisher.END_SEQ
    assert [int.from_bytes(seq, "big") for _, _, seq, _ in frames[:-1]] == [3, 4]
    assert [decode(payload).ts for *_, payload in frames[:-1]] == [3.0, 4.0]


def test_what_waits_is_sent_before_the_end(publisher: ZmqEventPublisher) -> None:
    with zmq.Context.instance().socket(zmq.SUB) as listener:
        listener.subscribe(b"")
        listener.connect(publisher.endpoint)
        time.sleep(0.2)
        for number in range(20):
            publisher.publish(a_batch(number))
        publisher.shutdown()
        publisher.shutdown()  # the second time: nothing
        assert sum(listener.poll(500) and bool(listener.recv_multipart()) for _ in range(20)) == 20
    with pytest.raises(RuntimeError, match="closed"):
        publisher.publish(KVEventBatch(0.0, [AllBlocksCleared()]))


def test_endpoints_that_cannot_be_used() -> None:
    for endpoint in ("tcp://*:5557", "tcp://0.0.0.0:5557", "nonsense"):
        with pytest.raises(EndpointError, match="not on this machine only"):
            ZmqEventPublisher(KVEventsConfig(True, endpoint=endpoint))
    taken = f"tcp://127.0.0.1:{free_port()}"
    first = ZmqEventPublisher(KVEventsConfig(True, endpoint=taken))
    try:
        with pytest.raises(EndpointError, match="If another program has the port"):
            ZmqEventPublisher(KVEventsConfig(True, endpoint=taken))
        with pytest.raises(EndpointError, match="If another program has the port"):
            ZmqEventPublisher(KVEventsConfig(True, endpoint=FREE, replay_endpoint=taken))
    finally:
        first.shutdown()
