"""The Valkey server of a notebook: it answers, evicts, stalls, dies, and outlives nobody."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from redis import ConnectionError, RedisError, TimeoutError

from tests.serving.waiting import PATIENCE, eventually, hang_limit
from utils.disaggregation import valkey
from utils.disaggregation.valkey import ValkeyError, ValkeyNotInstalled, ValkeyServer
from utils.environments.pipeline import ROOT
from utils.processes.server import PortInUse


@pytest.fixture(scope="module")
def store() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


def gone(pid: int) -> bool:
    """Has a process ended? (Nobody may have asked yet how.)"""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_values_come_back_and_are_counted(store: ValkeyServer) -> None:
    client = store.client(timeout=PATIENCE)
    value = bytes(range(256)) * 100
    client.set(b"\x00key", value)
    assert client.get(b"\x00key") == value and client.get(b"other") is None
    stats = store.stats()
    assert stats.keys == 1 and stats.hits == 1 and stats.misses == 1
    assert stats.used_memory > len(value) and stats.max_memory == 0
    client.flushall()


def test_it_listens_on_the_loopback_interface_only(store: ValkeyServer) -> None:
    ours = [c.laddr for c in psutil.Process(store.pid).net_connections() if c.status == "LISTEN"]
    assert [(address.ip, address.port) for address in ours] == [("127.0.0.1", store.port)]


def test_the_least_recently_used_value_is_evicted() -> None:
    with ValkeyServer(max_memory=8 << 20, eviction="allkeys-lru") as store:
        client = store.client(timeout=PATIENCE)
        client.set("model", b"x" * 100_000)
        value = client.dump("model")
        assert isinstance(value, bytes)
        client.delete("model")
        # The server's clock ticks once a second, so these are put in with an age, in seconds.
        client.restore("kept", 0, value, idletime=20_000)
        for number in range(40):
            client.restore(f"old {number}", 0, value, idletime=10_000)
        assert client.object("idletime", "kept") >= 20_000
        assert client.get("kept"), "from now on it is the youngest but one"
        for number in range(40):
            client.set(f"new {number}", b"x" * 100_000)
        stats = store.stats()
        assert stats.evicted_keys >= 5 and stats.used_memory <= stats.max_memory + 200_000
        assert client.exists("kept", *(f"new {number}" for number in range(40))) == 41
        assert client.exists(*(f"old {number}" for number in range(40))) == stats.keys - 41


def test_a_full_store_without_eviction_refuses() -> None:
    with ValkeyServer(max_memory=4 << 20, eviction="noeviction") as store:
        client = store.client(timeout=PATIENCE)
        with pytest.raises(RedisError, match="maxmemory"):
            for number in range(100):
                client.set(f"block {number}", b"x" * 100_000)


def test_a_stalled_store_costs_the_timeout() -> None:
    with ValkeyServer() as store:
        store.pause()
        with hang_limit(store.resume), pytest.raises(TimeoutError):
            store.client(timeout=0.3).ping()
        store.resume()
        assert store.client(timeout=PATIENCE).ping()
        store.pause()  # a paused server can be stopped, too
    eventually(lambda: gone(store.pid), "it ends")


def test_a_dead_store_says_so() -> None:
    store = ValkeyServer()
    store.kill()
    assert not store.alive
    eventually(lambda: gone(store.pid), "it ends")
    with pytest.raises(ConnectionError):
        store.client().ping()
    with pytest.raises(ValkeyError, match="has ended; start another"):
        store.stats()
    store.stop()  # twice is no harm


def test_bad_settings_start_nothing() -> None:
    with pytest.raises(ValueError, match="eviction='lru'; expected one of allkeys-lru"):
        ValkeyServer(eviction="lru")
    with pytest.raises(ValueError, match="max_memory=0"):
        ValkeyServer(max_memory=0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(PortInUse, match="another program has it"):
            ValkeyServer(port=other.getsockname()[1])


def test_a_missing_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(valkey.shutil, "which", lambda _: None)
    with pytest.raises(ValkeyNotInstalled, match="make setup"):
        ValkeyServer()


def test_a_program_that_ends_at_once_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey, "find_program", lambda: "/bin/false")
    with pytest.raises(ValkeyError, match="ended at once"):
        ValkeyServer()


@pytest.mark.parametrize("who", ["the notebook", "the watcher"])
def test_it_ends_with_whoever_started_it_also_when_killed(who: str) -> None:
    code = (
        "import time; from utils.disaggregation.valkey import ValkeyServer; "
        "s = ValkeyServer(); print(s.pid, s.process.pid, flush=True); time.sleep(600)"
    )
    notebook = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert notebook.stdout is not None
    server, watcher = map(int, notebook.stdout.readline().split())
    assert psutil.pid_exists(server)
    if who == "the watcher" and sys.platform != "linux":
        pytest.fail("only Linux tells a child that its parent is gone")
    os.kill(notebook.pid if who == "the notebook" else watcher, signal.SIGKILL)
    try:
        eventually(lambda: gone(server), "it ends, too")
    finally:
        notebook.kill()
        notebook.wait()
