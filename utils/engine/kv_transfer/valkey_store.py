"""A store in a Valkey or Redis server, which any number of engines can share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from utils.engine.kv_transfer.store import KVCacheStore, StoreError, StoreTimeout

if TYPE_CHECKING:
    from redis import Redis


class ValkeyStore(KVCacheStore):
    """Values in a Valkey server. How much it keeps, and what it evicts, is the server's affair.

    Args:
        port: of the server.
        host: of the server. Whoever can reach it can read and write the values: keep it private.
        timeout: seconds without any answer after which the server is given up.
        prefix: what the names begin with, in a server that keeps other things, too.
    """

    def __init__(
        self, port: int, host: str = "127.0.0.1", timeout: float = 1.0, prefix: bytes = b"kv:"
    ) -> None:
        self.address, self.timeout, self.prefix = (host, port), timeout, prefix
        self._client: Redis | None = None

    def store(self, key: bytes, value: bytes) -> None:
        self.store_many({key: value})

    def retrieve(self, key: bytes) -> bytes | None:
        return self.retrieve_many([key])[0]

    def contains(self, key: bytes) -> bool:
        return self.contains_many([key])[0]

    def store_many(self, items: Mapping[bytes, bytes]) -> None:
        with self._asking() as client:
            client.mset({self.prefix + key: value for key, value in items.items()})

    def retrieve_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        with self._asking() as client:
            return client.mget([self.prefix + key for key in keys])

    def contains_many(self, keys: Sequence[bytes]) -> list[bool]:
        with self._asking() as client:
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.exists(self.prefix + key)
            return list(map(bool, pipe.execute()))

    def discard(self, key: bytes) -> None:
        """Forget a value, if it is there."""
        with self._asking() as client:
            client.delete(self.prefix + key)

    def count_first(self, keys: Sequence[bytes]) -> int:
        return [*self.contains_many(keys), False].index(False)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        from redis import Redis, RedisError
        from redis.backoff import NoBackoff
        from redis.exceptions import TimeoutError as RedisTimeout
        from redis.retry import Retry

        host, port = self.address
        if self._client is None:
            self._client = Redis(
                host,
                port,
                socket_timeout=self.timeout,
                socket_connect_timeout=self.timeout,
                socket_read_size=1 << 20,
                retry=Retry(NoBackoff(), 0),
            )
        try:
            yield self._client
        except RedisTimeout as error:
            self.close()  # a late answer must not be taken for that to the next question
            raise StoreTimeout(f"Valkey at {host}:{port} is silent: {error}") from error
        except RedisError as error:
            self.close()
            raise StoreError(f"Valkey at {host}:{port}: {error}") from error
