"""From the KV events of several engines to whoever keeps book of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from utils.kv_events.kv_events import KVEventBatch
from utils.kv_events.subscriber import KVEventSubscriber


class Listener(Protocol):
    """Keeps book of one engine, as `EventNames` does."""

    def apply(self, batch: KVEventBatch) -> None: ...

    def clear(self) -> None: ...


class EventFeed:
    """Tells what the engines' caches hold. All methods are for one thread: ZeroMQ's sockets are.

    Args:
        listeners: one for each replica.
        urls: of the replicas.
        events: by URL, where a replica publishes its KV events.
        replays: by URL, where it can be asked for the past.

    Raises:
        ValueError: a replica has no endpoint.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        urls: Sequence[str],
        events: Mapping[str, str],
        replays: Mapping[str, str] | None = None,
    ) -> None:
        if missing := [url for url in urls if url not in events]:
            raise ValueError(
                f"No KV events come from {', '.join(missing)}. Start the replicas with KV events."
            )
        self.listeners = listeners
        self._endpoints = [(events[url], (replays or {}).get(url)) for url in urls]
        self._subscribers: list[KVEventSubscriber] = []
        self.num_batches = 0

    def drain(self, timeout: float = 0.0) -> None:
        """Book all events that have come; wait for the first one up to `timeout` seconds each."""
        if not self._subscribers:
            self._subscribers = [KVEventSubscriber(*endpoints) for endpoints in self._endpoints]
        for subscriber, listener in zip(self._subscribers, self.listeners, strict=True):
            for received in subscriber.poll(timeout):
                listener.apply(received.batch)
                self.num_batches += 1

    def forget(self, replica: int) -> None:
        """A replica has died. Should it come back, it begins with an empty cache."""
        self.listeners[replica].clear()
        if self._subscribers:
            self._subscribers[replica].close()
            self._subscribers[replica] = KVEventSubscriber(*self._endpoints[replica])

    def close(self) -> None:
        for subscriber in self._subscribers:
            subscriber.close()
        self._subscribers = []
