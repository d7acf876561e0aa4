"""A store of blocks on a real Valkey server: whatever happens to it, nobody gets wrong bytes."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.serving.waiting import PATIENCE, eventually, hang_limit
from utils.disaggregation import block_store
from utils.disaggregation.block_store import BlockStore
from utils.disaggregation.valkey import ValkeyServer


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer(eviction="noeviction") as server:
        yield server


@pytest.fixture
def store(server: ValkeyServer) -> BlockStore:
    return BlockStore(server.port, timeout=PATIENCE)


def test_what_is_saved_is_found_up_to_the_first_miss(store: BlockStore) -> None:
    assert store.save([(b"a", b"1"), (b"b", b"22"), (b"d", b"")]) == 3
    assert store.count_leading([b"a", b"b", b"c", b"d"]) == 2
    assert store.count_leading([b"c", b"a"]) == 0 and store.count_leading([]) == 0
    assert [store.load(name) for name in (b"a", b"b", b"c", b"d")] == [b"1", b"22", None, b""]


def test_what_is_there_is_not_sent_again(store: BlockStore, server: ValkeyServer) -> None:
    store.save([(b"a", b"first")])
    assert store.save([(b"a", b"first"), (b"b", b"new")]) == 1
    assert store.load(b"a") == b"first"


@pytest.mark.parametrize("place", [0, 3, 4, -1])
def test_every_flipped_bit_is_seen_and_the_block_deleted(
    store: BlockStore, server: ValkeyServer, place: int
) -> None:
    client = server.client(timeout=PATIENCE)
    for bit in range(8):
        store.save([(b"a", b"some payload")])
        value = bytearray(client.get(b"a"))
        value[place] ^= 1 << bit
        client.set(b"a", bytes(value))
        assert store.load(b"a") is None and not client.exists(b"a")


def test_a_value_under_another_name_is_damaged(store: BlockStore, server: ValkeyServer) -> None:
    store.save([(b"a", b"payload")])
    client = server.client(timeout=PATIENCE)
    client.set(b"b", client.get(b"a"))
    assert store.load(b"b") is None and store.load(b"a") == b"payload"


def test_a_stalled_store_costs_one_timeout_and_is_asked_again_later(
    store: BlockStore,
    server: ValkeyServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1000.0
    monkeypatch.setattr(block_store, "time", SimpleNamespace(monotonic=lambda: now))
    store.save([(b"a", b"payload")])
    hurried = BlockStore(server.port, timeout=0.3)
    server.pause()
    with hang_limit(server.resume):
        for _ in range(20):
            assert hurried.count_leading([b"a"]) == 0 and hurried.load(b"a") is None
            assert hurried.save([(b"b", b"x")]) == 0
    assert sum("does not answer" in text for text in caplog.messages) == 1  # one timeout, not sixty
    server.resume()
    assert server.client(timeout=PATIENCE).ping()
    now += block_store.PAUSE - 0.1
    assert hurried.load(b"a") is None  # not yet

    def finds_it() -> bool:
        nonlocal now
        now += block_store.PAUSE  # also after an answer that took longer, on a busy machine
        return hurried.load(b"a") == b"payload"

    eventually(finds_it, "the store is asked again")


def test_a_full_store_refuses_and_nobody_falls(store: BlockStore, server: ValkeyServer) -> None:
    server.client(timeout=PATIENCE).config_set("maxmemory", 1)
    assert store.save([(b"a", b"payload")]) == 0


def test_no_store_at_all(server: ValkeyServer) -> None:
    server.kill()
    store = BlockStore(server.port, timeout=PATIENCE)
    assert store.count_leading([b"a"]) == 0 and store.save([(b"a", b"x")]) == 0
    assert store.load(b"a") is None
