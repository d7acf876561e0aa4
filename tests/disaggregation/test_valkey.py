"""The Valkey server of a notebook: it answers, evicts, stalls, dies, and outlives nobody."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from redis import ConnectionError, RedisError, TimeoutError

from utils.disaggregation import valkey
from utils.disaggregation.valkey import ValkeyError, ValkeyNotInstalled, ValkeyServer
from utils.pipeline.environment import ROOT
from utils.pipeline.vllm.local_server import PortInUse


@pytest.fixture(scope="module")
def store() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


def gone(pid: int, patience: float = 10.0) -> bool:
    """Has a process ended, or does it end soon?"""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie":
            return True
        time.sleep(0.05)
    return False


def test_values_come_back_and_are_counted(store: ValkeyServer) -> None:
    client = store.client()
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
        client = store.client()
        for name in ["kept", *(f"old {number}" for number in range(40))]:
            client.set(name, b"x" * 100_000)
        time.sleep(2.1)  # its clock ticks once a second
        assert client.get("kept"), "from now on it is the youngest but one"
        for number in range(40):
            client.set(f"new {number}", b"x" * 100_000)
        stats = store.stats()
        assert stats.evicted_keys >= 5 and stats.used_memory <= stats.max_memory + 200_000
        assert client.exists("kept", *(f"new {number}" for number in range(40))) == 41
        assert client.exists(*(f"old {number}" for number in range(40))) == stats.keys - 41


def test_a_full_store_without_eviction_refuses() -> None:
    with ValkeyServer(max_memory=4 << 20, eviction="noeviction") as store:
        client = store.client()
        with pytest.raises(RedisError, match="maxmemory"):
            for number in range(100):
                client.set(f"block {number}", b"x" * 100_000)


def test_a_stalled_store_costs_the_timeout() -> None:
    with ValkeyServer() as store:
        store.pause()
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            store.client(timeout=0.3).ping()
        assert 0.2 < time.monotonic() - begin < 5
        store.resume()
        assert store.client(timeout=5).ping()
        store.pause()  # a paused server can be stopped, too
    assert gone(store.pid)


def test_a_dead_store_says_so() -> None:
    store = ValkeyServer()
    store.kill()
    assert not store.alive and gone(store.pid)
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
        "s = ValkeyServer(); print(s.pid, s._watcher.pid, flush=True); time.sleep(60)"
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
    assert gone(server)
    notebook.kill()
    notebook.wait()
