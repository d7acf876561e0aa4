"""From engine to engine: who computes a prompt sends its keys and values to who will decode it.

A pool keeps blocks for whoever may want them. Here, one side knows that the other one wants them,
and sends each block as soon as it is computed. The bytes travel over a TCP connection; each value
brings its length, and (see `wire`) its checksum.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Mapping

from utils.engine.kv_transfer.pool_connector import PoolConnector
from utils.engine.kv_transfer.store import KVCacheStore, MemoryStore, StoreError
from utils.engine.request import Request

FRAME = struct.Struct("<4sHQ")  # mark, length of the key, length of the value
MARK = b"KVF1"
MAX_VALUE_BYTES = 1 << 30  # whoever announces more does not speak this language


class Outbox(KVCacheStore):
    """Sends what it is given to an `Inbox`, and has nothing itself.

    Args:
        port: of the inbox.
        host: of the inbox. The bytes are not encrypted: keep the network private.
        timeout: seconds without progress after which the other side is given up.
    """

    def __init__(self, port: int, host: str = "127.0.0.1", timeout: float = 1.0) -> None:
        self.address, self.timeout = (host, port), timeout
        self._socket: socket.socket | None = None

    def store(self, key: bytes, value: bytes) -> None:
        self.store_many({key: value})

    def store_many(self, items: Mapping[bytes, bytes]) -> None:
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self.address, self.timeout)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for key, value in items.items():
                self._socket.sendall(FRAME.pack(MARK, len(key), len(value)) + key)
                self._socket.sendall(value)
        except OSError as error:
            self.close()  # half a frame may be out: only a new connection begins with a whole one
            host, port = self.address
            raise StoreError(f"Cannot send to {host}:{port}: {error}") from error

    def retrieve(self, key: bytes) -> bytes | None:
        return None

    def close(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()


class Inbox(MemoryStore):
    """Listens for what outboxes send, and keeps it until it is retrieved, once.

    Args:
        port: 0 for any that is free; see `port` then.
        max_bytes: the oldest goes when there is more.

    Raises:
        OSError: the port is in use.
    """

    def __init__(self, port: int = 0, host: str = "127.0.0.1", max_bytes: int = 1 << 30) -> None:
        super().__init__(max_bytes)
        self._listener = socket.create_server((host, port))
        self.port = self._listener.getsockname()[1]
        self.num_broken = 0  # connections that have ended
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._listen, name="kv-inbox", daemon=True).start()

    def retrieve(self, key: bytes) -> bytes | None:
        value = super().retrieve(key)
        self.discard(key)
        return value

    def close(self) -> None:
        for connection in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._receive, args=[connection], daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), connection:
            while True:
                mark, key_length, length = FRAME.unpack(_read(connection, FRAME.size))
                if mark != MARK or length > MAX_VALUE_BYTES:
                    break  # not one of us, or out of step
                key = bytes(_read(connection, key_length))
                # The checksum is looked at when the value is used.
                self.store(key, bytes(_read(connection, length)))
        self.num_broken += 1


class P2pProducer(PoolConnector):
    """Sends the blocks that its engine computes to the engine with a `P2pConsumer` at `port`.

    Args: see `PoolConnector`. With few `layers_per_value`, the first layers' keys and values are on
    their way while the next layers are being computed.
    """

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        layers_per_value: int | None = None,
        timeout: float = 1.0,
        retry_after: float = 5.0,
    ) -> None:
        super().__init__(Outbox(port, host, timeout), layers_per_value, timeout, retry_after)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Nothing comes back this way."""
        self._chain(request).of(request)
        return 0, False


class P2pConsumer(PoolConnector):
    """Takes what a `P2pProducer` sends. It does not matter who gets a request first.

    A request waits until all blocks of its prompt are there; or nothing has come for it during
    `patience` seconds; or a producer is gone. Then what has come is used, and the rest computed.

    Args:
        port: to listen at; 0 for any that is free, see `inbox.port`.
        min_tokens: shorter prompts do not wait: nobody will send them.
        patience: seconds.
    """

    def __init__(
        self,
        port: int = 0,
        min_tokens: int = 0,
        patience: float = 10.0,
        layers_per_value: int | None = None,
        max_bytes: int = 1 << 30,
    ) -> None:
        self.inbox = Inbox(port, max_bytes=max_bytes)
        super().__init__(self.inbox, layers_per_value)
        self.min_tokens, self.patience = min_tokens, patience
        # By request id: blocks that were there at the last look, when that changed, and how many
        # connections had ended when the request came.
        self._waiting: dict[str, tuple[int, float, int]] = {}

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """See `KVConnectorBase`. None while more is expected."""
        found, _ = super().get_num_new_matched_tokens(request, num_computed_tokens)
        wanted = (request.num_tokens - 1 - num_computed_tokens) // self.block_size * self.block_size
        found = found or 0
        if found >= wanted or request.num_tokens < self.min_tokens or request.num_preemptions:
            return found, False
        now = time.monotonic()
        before, since, broken = self._waiting.get(
            request.request_id, (-1, now, self.inbox.num_broken)
        )
        since = now if found > before else since
        self._waiting[request.request_id] = (found, since, broken)
        over = now - since > self.patience or self.inbox.num_broken > broken
        return (found if over else None), False

    def save_kv_layer(self, layer_name: str, kv_layer: object) -> None:
        """Nothing is sent from here."""

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, None]:
        """See `KVConnectorBase`."""
        self._waiting.pop(request.request_id, None)
        return super().request_finished(request, block_ids)

    def forget_requests(self) -> None:
        """See `KVConnectorBase`."""
        self._waiting = {}
        super().forget_requests()


def _read(connection: socket.socket, num_bytes: int) -> bytearray:
    """So many bytes. Raises an EOFError if the connection ends before."""
    data = bytearray(num_bytes)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return data
