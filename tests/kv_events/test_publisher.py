"""The publisher against vLLM's: whoever can listen to one can listen to the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq
from vllm.distributed.kv_events import ZmqEventPublisher as TheirPublisher

from tests.kv_events.on_the_wire import a_batch, ask_for_the_past, listen, receive
from tests.serving.waiting import PATIENCE, eventually
from utils.kv_events import publisher as module
from utils.kv_events.kv_events import AllBlocksCleared, KVEventBatch, KVEventsConfig, decode
from utils.kv_events.publisher import END_SEQ, EndpointError, ZmqEventPublisher

FREE = "tcp://127.0.0.1:*"


@pytest.fixture
def publisher() -> Iterator[ZmqEventPublisher]:
    made = ZmqEventPublisher(
        KVEventsConfig(True, endpoint=FREE, replay_endpoint=FREE, topic="kv", buffer_steps=3)
    )
    yield made
    made.shutdown()


def test_frames_are_topic_number_and_batch(publisher: ZmqEventPublisher) -> None:
    with zmq.Context.instance().socket(zmq.SUB) as listener:
        listener.subscribe(b"kv")
        begin = listen(publisher, listener)
        for number in range(2):
            publisher.publish(a_batch(number))
        for number in range(2):
            topic, seq, payload = receive(listener)
            assert (topic, seq) == (b"kv", (begin + number).to_bytes(8, "big"))
            batch = decode(payload)
            assert (batch.events, batch.data_parallel_rank) == (a_batch(number).events, 0)


def test_the_past_is_kept_as_far_as_the_buffer_goes(publisher: ZmqEventPublisher) -> None:
    for number in range(5):
        publisher.publish(a_batch(number))
    numbers: list[int] = []

    def the_last_is_there() -> bool:
        past = ask_for_the_past(publisher.replay_endpoint)
        numbers[:] = [int.from_bytes(seq, "big") for _, seq, _ in past]
        return numbers[-1:] == [4]

    eventually(the_last_is_there, "all are published")
    assert numbers == [2, 3, 4]  # the buffer holds three
    frames = ask_for_the_past(publisher.replay_endpoint, start=3)
    assert END_SEQ == TheirPublisher.END_SEQ
    assert [int.from_bytes(seq, "big") for _, seq, _ in frames] == [3, 4]
    assert [decode(payload).ts for *_, payload in frames] == [3.0, 4.0]


def test_what_waits_is_sent_before_the_end(
    publisher: ZmqEventPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", PATIENCE)
    with zmq.Context.instance().socket(zmq.SUB) as listener:
        listener.subscribe(b"")
        begin = listen(publisher, listener)
        for number in range(20):
            publisher.publish(a_batch(number))
        publisher.shutdown()
        publisher.shutdown()  # the second time: nothing
        for number in range(20):
            assert receive(listener)[1] == (begin + number).to_bytes(8, "big")
    with pytest.raises(RuntimeError, match="closed"):
        publisher.publish(KVEventBatch(0.0, [AllBlocksCleared()]))


def test_endpoints_that_cannot_be_used() -> None:
    for endpoint in ("tcp://*:5557", "tcp://0.0.0.0:5557", "nonsense"):
        with pytest.raises(EndpointError, match="not on this machine only"):
            ZmqEventPublisher(KVEventsConfig(True, endpoint=endpoint))
    first = ZmqEventPublisher(KVEventsConfig(True, endpoint=FREE))
    taken = first.endpoint
    try:
        with pytest.raises(EndpointError, match="If another program has the port"):
            ZmqEventPublisher(KVEventsConfig(True, endpoint=taken))
        with pytest.raises(EndpointError, match="If another program has the port"):
            ZmqEventPublisher(KVEventsConfig(True, endpoint=FREE, replay_endpoint=taken))
    finally:
        first.shutdown()
