"""Stores: where blocks of keys and values are kept outside the engine, as bytes under a key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

EVICTION = ("lru", "lfu")


class StoreError(Exception):
    """The store cannot be asked, or refuses. Whoever asked computes instead."""


class StoreTimeout(StoreError):
    """The store did not answer in time."""


class KVCacheStore(ABC):
    """Keeps values by key. Two methods are enough; the others are for those who can do better.

    All of them may raise `StoreError` or `OSError`. A store may forget what it was given, at any
    time.
    """

    @abstractmethod
    def store(self, key: bytes, value: bytes) -> None:
        """Keep a value, in place of what was kept under that key."""

    @abstractmethod
    def retrieve(self, key: bytes) -> bytes | None:
        """What was kept under that key; None if there is nothing."""

    def contains(self, key: bytes) -> bool:
        """Whether there is something under that key."""
        return self.retrieve(key) is not None

    # A store behind a network answers many questions in one round trip.

    def store_many(self, items: Mapping[bytes, bytes]) -> None:
        for key, value in items.items():
            self.store(key, value)

    def retrieve_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.retrieve(key) for key in keys]

    def contains_many(self, keys: Sequence[bytes]) -> list[bool]:
        return [self.contains(key) for key in keys]

    def count_first(self, keys: Sequence[bytes]) -> int:
        """How many of the keys are there, up to the first that is not: what comes after a hole is
        of no use."""
        for i, key in enumerate(keys):
            if not self.contains(key):
                return i
        return len(keys)

    def close(self) -> None:  # noqa: B027, most have nothing to close
        """Close what is open."""


@dataclass
class MemoryStoreStats:
    """Counts since the store was made. `lookups` are those of `retrieve`."""

    lookups: int = 0
    hits: int = 0
    evictions: int = 0


class MemoryStore(KVCacheStore):
    """Values in this process's memory, up to so many bytes. Threads may share it.

    Args:
        max_bytes: room for values. None: no limit.
        eviction: who goes when there is no room: "lru", what was not used for longest; "lfu", what
            was used least often, and of these what was not used for longest.

    Raises:
        ValueError: an unknown eviction, or no room at all.
    """

    def __init__(self, max_bytes: int | None = None, eviction: str = "lru") -> None:
        if eviction not in EVICTION:
            raise ValueError(f"Unknown eviction {eviction!r}. Expected {' or '.join(EVICTION)}.")
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, or None for no limit; got {max_bytes}")
        self.max_bytes, self.eviction = max_bytes, eviction
        self.num_bytes = 0
        self.stats = MemoryStoreStats()
        self._values: dict[bytes, bytes] = {}
        self._uses: dict[bytes, int] = {}
        # Those used equally often, the one that was not used for longest in front. Under "lru"
        # nobody counts, and all are in one queue.
        self._queues: dict[int, OrderedDict[bytes, None]] = {}
        self._lock = Lock()

    def store(self, key: bytes, value: bytes) -> None:
        """See `KVCacheStore`. A value larger than the whole store is not kept."""
        with self._lock:
            if key in self._values:
                self._remove(key)
            if self.max_bytes is not None and len(value) > self.max_bytes:
                return
            while self.max_bytes is not None and self.num_bytes + len(value) > self.max_bytes:
                self._remove(next(iter(self._queues[min(self._queues)])))
                self.stats.evictions += 1
            self._values[key], self._uses[key] = value, 0
            self.num_bytes += len(value)
            self._enqueue(key)

    def retrieve(self, key: bytes) -> bytes | None:
        with self._lock:
            self.stats.lookups += 1
            value = self._values.get(key)
            if value is None:
                return None
            self.stats.hits += 1
            self._dequeue(key)
            self._uses[key] += self.eviction == "lfu"
            self._enqueue(key)
            return value

    def contains(self, key: bytes) -> bool:
        return key in self._values

    def discard(self, key: bytes) -> None:
        """Forget a value, if it is there."""
        with self._lock:
            if key in self._values:
                self._remove(key)

    def keys(self) -> list[bytes]:
        """All keys, the next to go first."""
        with self._lock:
            return [key for uses in sorted(self._queues) for key in self._queues[uses]]

    def __len__(self) -> int:
        return len(self._values)

    def _enqueue(self, key: bytes) -> None:
        self._queues.setdefault(self._uses[key], OrderedDict())[key] = None

    def _dequeue(self, key: bytes) -> None:
        queue = self._queues[self._uses[key]]
        del queue[key]
        if not queue:
            del self._queues[self._uses[key]]

    def _remove(self, key: bytes) -> None:
        self._dequeue(key)
        del self._uses[key]
        self.num_bytes -= len(self._values.pop(key))
