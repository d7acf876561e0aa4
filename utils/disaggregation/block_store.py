"""Blocks in a Valkey server that may be full, slow, dead, or wrong: then a block is not found."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Iterable, Sequence

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

PAUSE = 2.0  # seconds in which nobody asks a store that did not answer
CHECKSUM_BYTES = 4
logger = logging.getLogger(__name__)


class BlockStore:
    """Values by key, each with a checksum. No method raises for what the store does.

    A store that does not answer in time costs `timeout` seconds, and then nothing for a while: it
    is asked again after a pause.

    Args:
        port: of a Valkey server on this machine.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, port: int, timeout: float, host: str = "127.0.0.1") -> None:
        self._redis = Redis(
            host=host, port=port, socket_timeout=timeout, socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
        )  # fmt: skip
        self._asleep_until = 0.0

    def count_leading(self, names: Sequence[bytes]) -> int:
        """How many of the names are there, up to the first that is not. One round trip."""
        if not names or self._asleep():
            return 0
        pipeline = self._redis.pipeline(transaction=False)
        for name in names:
            pipeline.exists(name)
        try:
            found = pipeline.execute()
        except RedisError as error:
            self._failed(error)
            return 0
        return found.index(0) if 0 in found else len(found)

    def load(self, name: bytes) -> bytes | None:
        """A value; None if it is not there, or damaged, or the store does not answer.

        A damaged value is deleted, so that the next one who computes it can save it.
        """
        if self._asleep():
            return None
        try:
            value = self._redis.get(name)
            if value is None:
                return None
            assert isinstance(value, bytes)
            payload = value[CHECKSUM_BYTES:]
            if value[:CHECKSUM_BYTES] == _checksum(name, payload):
                return payload
            logger.warning("A damaged block was found in the store, and is deleted.")
            self._redis.delete(name)
        except RedisError as error:
            self._failed(error)
        return None

    def save(self, values: Iterable[tuple[bytes, bytes]]) -> int:
        """Save what is not there yet; how many that were. Stops when the store refuses."""
        saved = 0
        try:
            for name, payload in values:
                if self._asleep():
                    break
                if not self._redis.exists(name):
                    self._redis.set(name, _checksum(name, payload) + payload)
                    saved += 1
        except RedisError as error:
            self._failed(error)
        return saved

    def _asleep(self) -> bool:
        return time.monotonic() < self._asleep_until

    def _failed(self, error: RedisError) -> None:
        self._asleep_until = time.monotonic() + PAUSE
        logger.warning("The store does not answer (%s). Blocks are computed instead.", error)


def _checksum(name: bytes, payload: bytes) -> bytes:
    """Of the value and of its name, so that a value under another's name is no match."""
    return zlib.crc32(payload, zlib.crc32(name)).to_bytes(CHECKSUM_BYTES, "big")
