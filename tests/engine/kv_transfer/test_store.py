"""Stores, their eviction, what their values are wrapped in, and who is sent to ask them."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.waiting import PATIENCE, eventually, hang_limit
from utils.engine.kv_transfer import courier as courier_module
from utils.engine.kv_transfer.courier import Courier
from utils.engine.kv_transfer.store import KVCacheStore, MemoryStore, StoreError
from utils.engine.kv_transfer.valkey_store import ValkeyStore
from utils.engine.kv_transfer.wire import HEADER, DamagedError, pack, unpack


class TwoMethods(KVCacheStore):
    """The least that a store must be."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.asked: list[bytes] = []

    def store(self, key: bytes, value: bytes) -> None:
        self.values[key] = value

    def retrieve(self, key: bytes) -> bytes | None:
        self.asked.append(key)
        return self.values.get(key)


def test_two_methods_are_enough_and_the_first_miss_ends_the_search() -> None:
    store = TwoMethods()
    store.store_many({b"a": b"1", b"b": b"2", b"d": b"4"})
    assert store.retrieve_many([b"a", b"c"]) == [b"1", None]
    assert store.contains_many([b"a", b"c", b"d"]) == [True, False, True]
    store.asked.clear()
    assert store.count_first([b"a", b"b", b"c", b"d"]) == 2
    assert store.asked == [b"a", b"b", b"c"]


class Naive:
    """LRU and LFU by their definitions, looking at everything each time."""

    def __init__(self, room: int, eviction: str) -> None:
        self.room, self.eviction = room, eviction
        self.values: OrderedDict[bytes, bytes] = OrderedDict()
        self.uses: Counter[bytes] = Counter()

    def store(self, key: bytes, value: bytes) -> None:
        self.values.pop(key, None)
        self.uses.pop(key, None)
        if len(value) > self.room:
            return
        while sum(map(len, self.values.values())) + len(value) > self.room:
            victim = min(self.values, key=lambda k: self.uses[k] if self.eviction == "lfu" else 0)
            del self.values[victim]
            self.uses.pop(victim, None)
        self.values[key] = value

    def retrieve(self, key: bytes) -> bytes | None:
        if key in self.values:
            self.uses[key] += 1
            self.values.move_to_end(key)
        return self.values.get(key)


@given(
    room=st.integers(1, 12),
    eviction=st.sampled_from(["lru", "lfu"]),
    story=st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(0, 5)), max_size=60),
)
def test_eviction_follows_its_definition(room: int, eviction: str, story: list) -> None:
    store, naive = MemoryStore(room, eviction), Naive(room, eviction)
    for writes, name, size in story:
        key = b"%d" % name
        if writes:
            store.store(key, b"x" * size)
            naive.store(key, b"x" * size)
        else:
            assert store.retrieve(key) == naive.retrieve(key)
        assert set(store.keys()) == set(naive.values)
        assert store.num_bytes == sum(map(len, naive.values.values())) <= room


def test_bad_stores_are_refused() -> None:
    with pytest.raises(ValueError, match="lru or lfu"):
        MemoryStore(eviction="random")
    with pytest.raises(ValueError, match="max_bytes must be at least 1"):
        MemoryStore(0)


@given(contents=st.binary(max_size=60), where=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_every_flipped_bit_is_noticed(contents: bytes, where: int, bit: int) -> None:
    value = pack(b"key", contents)
    assert unpack(b"key", value, len(contents)) == contents
    where %= len(value)
    damaged = value[:where] + bytes([value[where] ^ 1 << bit]) + value[where + 1 :]
    for key, bad in ((b"key", damaged), (b"other", value), (b"key", value[:-1]), (b"key", b"")):
        with pytest.raises(DamagedError):
            unpack(key, bad, len(contents))
    with pytest.raises(DamagedError):
        unpack(b"key", pack(b"key", contents + b"x"), len(contents))
    assert len(value) == HEADER.size + len(contents)


def test_nobody_waits_for_a_store_longer_than_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(courier_module, "time", SimpleNamespace(monotonic=lambda: now))
    failures: Counter[str] = Counter()
    courier = Courier(timeout=PATIENCE, retry_after=0.2, failures=failures)
    assert courier.ask(lambda: 7) == 7
    wake = threading.Event()
    courier.timeout = 0.1
    with hang_limit(wake.set):
        stuck, behind = courier.send(wake.wait), courier.send(lambda: 8)
        assert courier.result(stuck) is None and courier.result(behind) is None
        assert failures == {"timeout": 1} and courier.is_down
        now += 1000.0
        assert courier.is_down  # it is still busy with the old errand
        assert courier.ask(lambda: 9) is None
    wake.set()
    courier.timeout = PATIENCE
    eventually(lambda: not courier.is_down, "the old errand is done")
    assert courier.ask(lambda: 9) == 9
    courier.stop()


def test_troubles_of_a_store_are_counted_and_bugs_are_raised() -> None:
    failures: Counter[str] = Counter()
    courier = Courier(timeout=PATIENCE, retry_after=0.0, failures=failures)

    def fail(error: Exception) -> None:
        raise error

    assert courier.ask(lambda: fail(StoreError("full"))) is None
    assert courier.ask(lambda: fail(ConnectionResetError())) is None
    assert failures == {"error": 2}
    with pytest.raises(KeyError):
        courier.ask(lambda: fail(KeyError("a bug")))
    with pytest.raises(ValueError, match="timeout must be above 0"):
        Courier(0.0, 1.0, failures)


def test_a_real_valkey_server() -> None:
    from utils.disaggregation.valkey import ValkeyServer

    with ValkeyServer() as server:
        store = ValkeyStore(server.port, timeout=PATIENCE)
        store.store_many({b"a": b"1" * 10**6, b"b": b"\x00\xff"})
        assert store.retrieve_many([b"a", b"x", b"b"]) == [b"1" * 10**6, None, b"\x00\xff"]
        assert store.count_first([b"a", b"b", b"x", b"a"]) == 2
        assert store.contains(b"b") and not store.contains(b"x") and not store.retrieve_many([])
        store.close()
        store.timeout = 0.3  # of the next connection
        server.pause()
        with pytest.raises(StoreError, match="silent"):
            store.retrieve(b"a")
        store.timeout = PATIENCE
        server.resume()
        assert store.retrieve(b"b") == b"\x00\xff"  # not the answer to the question before
        server.kill()
        with pytest.raises(StoreError):
            store.retrieve(b"a")
        store.close()
