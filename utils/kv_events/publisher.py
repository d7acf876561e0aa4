"""Publish KV events over ZeroMQ, as vLLM's `ZmqEventPublisher` does.

A message has three frames: topic, sequence number (8 bytes, big-endian), batch. Publishing never
waits for a listener, and who listens late, or too slowly, misses batches. The gap shows in the
numbers, and the replay socket gives back what is still in the buffer: the request is the first
number that is wanted, the answers are those three frames for each batch, and an end marker.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from itertools import count
from queue import Empty, Queue

import zmq

from utils.kv_events.kv_events import KVEventBatch, KVEventsConfig, encode

END_SEQ = (-1).to_bytes(8, "big", signed=True)
PATIENCE = 1.0  # seconds that a publisher has to send what waits when it is shut down


class EndpointError(ValueError):
    """An endpoint cannot be used."""


class ZmqEventPublisher:
    """Sends batches from a thread of its own, so that an engine's step does not wait.

    It listens on its endpoint, so that any number of routers can connect to it. (vLLM's does so
    only where the endpoint has a `*` or is an `ipc://`; else it connects, and someone else must
    listen: see `fleet.replicas.EventProxy`.)

    Args:
        config: where, and how much is kept.
        data_parallel_rank: of this engine, written into each batch.

    Raises:
        EndpointError: an endpoint is taken, malformed, or open to other machines.
    """

    def __init__(self, config: KVEventsConfig, data_parallel_rank: int = 0) -> None:
        self.config, self._rank = config, data_parallel_rank
        self._queue: Queue[KVEventBatch | None] = Queue(config.max_queue_size)
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._topic = config.topic.encode()
        self._numbers = count()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._pub = self._open(zmq.PUB, config.endpoint)
        self._replay: zmq.Socket[bytes] | None = None
        try:
            if config.replay_endpoint is not None:
                self._replay = self._open(zmq.ROUTER, config.replay_endpoint)
        except EndpointError:
            self._pub.close(linger=0)
            raise
        # As bound, where the system chose the port of "tcp://127.0.0.1:*".
        self.endpoint = _bound(self._pub)
        self.replay_endpoint = None if self._replay is None else _bound(self._replay)
        self._running = True
        self._thread = threading.Thread(target=self._run, name="zmq-publisher", daemon=True)
        self._thread.start()

    def publish(self, batch: KVEventBatch) -> None:
        """Send a batch, soon. Raises a RuntimeError after `shutdown`."""
        if not self._running:
            raise RuntimeError("The publisher of KV events is closed.")
        if batch.data_parallel_rank is None:
            batch.data_parallel_rank = self._rank
        self._queue.put(batch)

    def shutdown(self) -> None:
        """Send what waits, and close the endpoints. Does nothing the second time."""
        if self._running:
            self._running = False
            self._queue.put(None)
            self._thread.join(PATIENCE)

    def _open(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        _require_local(endpoint)
        socket = self._context.socket(kind)
        socket.set_hwm(self.config.hwm)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise EndpointError(
                f"KV events cannot be published at {endpoint} ({error}). If another program has "
                "the port, stop it or choose another one."
            ) from error
        return socket

    def _run(self) -> None:
        """Only this thread uses the sockets: ZeroMQ's are not made for several."""
        try:
            while True:
                while self._replay is not None and self._replay.poll(0):
                    self._answer_replay(self._replay)
                with contextlib.suppress(Empty):
                    batch = self._queue.get(timeout=0.1)
                    if batch is None:
                        return
                    number, payload = next(self._numbers).to_bytes(8, "big"), encode(batch)
                    self._pub.send_multipart((self._topic, number, payload))
                    self._buffer.append((number, payload))
        finally:
            self._pub.close(linger=int(1000 * PATIENCE))
            if self._replay is not None:
                self._replay.close(linger=0)

    def _answer_replay(self, replay: zmq.Socket[bytes]) -> None:
        frames = replay.recv_multipart()
        if len(frames) != 3:
            return  # not a request of ours, and there is nobody to complain to
        client, _, start = frames
        for number, payload in self._buffer:
            if number >= start:  # 8 bytes, big-endian: they sort as the numbers do
                replay.send_multipart((client, b"", self._topic, number, payload))
        replay.send_multipart((client, b"", b"", END_SEQ, b""))


def _bound(socket: zmq.Socket[bytes]) -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _require_local(endpoint: str) -> None:
    """Refuse endpoints that other machines can reach: events tell what users wrote."""
    local = ("tcp://127.0.0.1:", "tcp://localhost:", "ipc://", "inproc://")
    if not endpoint.startswith(local):
        raise EndpointError(
            f"The endpoint {endpoint!r} is not on this machine only, and KV events hold the tokens "
            "of prompts. Expected one that begins with " + ", ".join(local) + "."
        )
