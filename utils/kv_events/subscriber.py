"""Listen to the KV events of an engine, ours or vLLM's, without losing any unseen."""

from __future__ import annotations

import time
from dataclasses import dataclass

import zmq

from utils.kv_events.kv_events import AllBlocksCleared, KVEventBatch, decode
from utils.kv_events.publisher import END_SEQ

REPLAY_PATIENCE = 2.0  # seconds that an engine has to answer for the past


@dataclass(frozen=True)
class Received:
    """A batch and its number; the first batch of an engine has number 0."""

    seq: int
    batch: KVEventBatch


class KVEventSubscriber:
    """Receives batches in order. Use it in a `with` block, or `close` it; in one thread only.

    A subscription takes a moment, and nobody resends what was published before. So with a replay
    endpoint the subscriber asks for all that is kept, at first and whenever a number is missing.
    Where a gap cannot be filled, or the engine was started anew, it hands out an
    `AllBlocksCleared` of its own first: to know too little costs a hit, to believe in a block
    that is gone costs a request that waits in the wrong queue.

    Args:
        endpoint: where the engine publishes.
        replay_endpoint: where it answers for the past. None: gaps cannot be filled, and the first
            number that comes counts as the beginning.
        topic: only batches whose topic begins so.
    """

    def __init__(self, endpoint: str, replay_endpoint: str | None = None, topic: str = "") -> None:
        self.num_lost = 0  # batches that nobody has any more
        self._replay_endpoint = replay_endpoint
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self._sub.connect(endpoint)
        self._next: int | None = None  # the number that must come next
        self._newest = 0.0  # when the last batch was made
        self._past_is_due = replay_endpoint is not None

    def poll(self, timeout: float = 0.0) -> list[Received]:
        """What has come by now; waits up to `timeout` seconds for the first batch.

        Raises:
            ValueError: a message is no batch of KV events.
        """
        news: list[Received] = []
        if self._past_is_due:
            self._past_is_due = False
            news += self._replay(0)
        while self._sub.poll(0 if news else int(1000 * timeout)):
            _, number, payload = self._sub.recv_multipart()
            seq, batch = int.from_bytes(number, "big"), decode(payload)
            if self._next is not None and seq > self._next:
                news += self._fill(seq, batch.ts)
            elif self._next is not None and seq < self._next and batch.ts > self._newest:
                news.append(_forget(seq, batch.ts))  # it counts from 0 again: a new engine
                self._next = seq
            if self._next is None or seq == self._next:
                news.append(self._accept(seq, batch))
            # Any other lower number was replayed before it came.
        return news

    def close(self) -> None:
        self._sub.close(linger=0)

    def __enter__(self) -> KVEventSubscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self, seq: int, batch: KVEventBatch) -> Received:
        self._next, self._newest = seq + 1, batch.ts
        return Received(seq, batch)

    def _fill(self, seq: int, ts: float) -> list[Received]:
        """The batches between the last one and number `seq`."""
        assert self._next is not None
        found = self._replay(self._next)
        if self._next >= seq:
            return found
        self.num_lost += seq - self._next
        self._next = seq
        return [_forget(seq, ts)]

    def _replay(self, start: int) -> list[Received]:
        """What the engine still has, from number `start` on. Nothing, if a part is missing."""
        found: list[Received] = []
        if self._replay_endpoint is None:
            return found
        # Not REQ, which would take only one answer to a request.
        with self._context.socket(zmq.DEALER) as request:
            request.setsockopt(zmq.LINGER, 0)
            request.connect(self._replay_endpoint)
            request.send_multipart((b"", start.to_bytes(8, "big")))
            deadline = time.monotonic() + REPLAY_PATIENCE
            while request.poll(int(1000 * max(0.0, deadline - time.monotonic()))):
                _, _, number, payload = request.recv_multipart()
                if number == END_SEQ:
                    break
                seq = int.from_bytes(number, "big")
                if self._next is None or seq == self._next:
                    found.append(self._accept(seq, decode(payload)))
        return found


def _forget(seq: int, ts: float) -> Received:
    return Received(seq, KVEventBatch(ts, [AllBlocksCleared()]))
