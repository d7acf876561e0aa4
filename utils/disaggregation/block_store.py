"""Blocks in a Valkey server that may be full, slow, dead, or wrong: then a block is not found."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from utils.engine.kv_transfer.store import StoreError
from utils.engine.kv_transfer.valkey_store import ValkeyStore
from utils.engine.kv_transfer.wire import HEADER, DamagedError, pack, unpack

PAUSE = 2.0  # seconds in which nobody asks a store that did not answer
logger = logging.getLogger(__name__)


class BlockStore:
    """The engine's own store, for vLLM: no method raises for what the store does.

    A store that does not answer in time costs `timeout` seconds, and then nothing for a while: it
    is asked again after a pause.

    Args:
        port: of a Valkey server on this machine.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, port: int, timeout: float, host: str = "127.0.0.1") -> None:
        self._store = ValkeyStore(port, host, timeout, prefix=b"")
        self._asleep_until = 0.0

    def count_leading(self, names: Sequence[bytes]) -> int:
        """How many of the names are there, up to the first that is not. One round trip."""
        if not names or self._asleep():
            return 0
        try:
            return self._store.count_first(names)
        except StoreError as error:
            self._failed(error)
            return 0

    def load(self, name: bytes) -> bytes | None:
        """A value; None if it is not there, or damaged, or the store does not answer.

        A damaged value is deleted, so that the next one who computes it can save it.
        """
        if self._asleep():
            return None
        try:
            value = self._store.retrieve(name)
            if value is None:
                return None
            try:
                return bytes(unpack(name, value, max(0, len(value) - HEADER.size)))
            except DamagedError:
                logger.warning("A damaged block was found in the store, and is deleted.")
                self._store.discard(name)
        except StoreError as error:
            self._failed(error)
        return None

    def save(self, values: Iterable[tuple[bytes, bytes]]) -> int:
        """Save what is not there yet; how many that were. Stops when the store refuses."""
        saved = 0
        try:
            for name, payload in values:
                if self._asleep():
                    break
                if not self._store.contains(name):
                    self._store.store(name, pack(name, payload))
                    saved += 1
        except StoreError as error:
            self._failed(error)
        return saved

    def _asleep(self) -> bool:
        return time.monotonic() < self._asleep_until

    def _failed(self, error: StoreError) -> None:
        self._asleep_until = time.monotonic() + PAUSE
        logger.warning("The store does not answer (%s). Blocks are computed instead.", error)
