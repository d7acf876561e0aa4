"""A store on which little can be relied."""

from __future__ import annotations

import random
import time
from collections import Counter

from utils.engine.kv_transfer.store import MemoryStore, StoreError


class UnreliableStore(MemoryStore):
    """Fails, stalls, forgets, and returns bytes that are damaged, cut off or another key's."""

    def __init__(self, seed: int, how_often: float = 0.3, stall: float = 0.0) -> None:
        super().__init__()
        self.rng, self.how_often, self.stall = random.Random(seed), how_often, stall
        self.done: Counter[str] = Counter()

    def _trouble(self, *kinds: str) -> str | None:
        if self.rng.random() > self.how_often:
            return None
        kind = self.rng.choice(kinds)
        self.done[kind] += 1
        return kind

    def store(self, key: bytes, value: bytes) -> None:
        kind = self._trouble("refuses", "loses")
        if kind == "refuses":
            raise StoreError("full")
        if kind is None:
            super().store(key, value)

    def contains(self, key: bytes) -> bool:
        kind = self._trouble("dead", "lies")
        if kind == "dead":
            raise ConnectionRefusedError("nobody listens")
        return kind == "lies" or super().contains(key)

    def retrieve(self, key: bytes) -> bytes | None:
        value = super().retrieve(key)
        kind = self._trouble("dead", "stalls", "forgets", "flips a bit", "cuts", "mixes up")
        if kind == "dead":
            raise StoreError("gone")
        if kind == "stalls":
            time.sleep(self.stall)
        if kind == "forgets" or value is None:
            return None
        if kind == "flips a bit":
            where = self.rng.randrange(len(value))
            return value[:where] + bytes([value[where] ^ 1]) + value[where + 1 :]
        if kind == "cuts":
            return value[: self.rng.randrange(len(value))]
        if kind == "mixes up":
            return super().retrieve(self.rng.choice(self.keys()))
        return value
