"""Server processes: ports, errors that are shown, and nothing left behind, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.serving.waiting import PATIENCE, eventually
from utils.kv_events.kv_events import BlockStored
from utils.kv_events.subscriber import KVEventSubscriber
from utils.processes.server import HOST, LocalServer, PortInUse, as_options, free_port, listener
from utils.processes.supervised import WorkerError
from utils.serving.__main__ import parser
from utils.serving.launch import course_server

STARTER = """
import sys, time
from utils.serving.launch import course_server
server = course_server(sys.argv[1], verbose=False)
print(server.pid, server.url, flush=True)
time.sleep(1000)
"""


# A server whose engine waits before its fourth step until somebody writes to it.
HELD = """
import sys
from utils.engine import LLMEngine
advance, steps = LLMEngine.advance, iter(range(10**9))
def held(engine):
    if next(steps) == 3:
        sys.stdin.readline()
    return advance(engine)
LLMEngine.advance = held
from utils.serving.__main__ import main
main()
"""


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:  # nobody there, or about to go
        return False


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_server_starts_answers_and_stops(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with course_server(tiny_folder, max_num_seqs=2, enable_prefix_caching=False) as server:
        assert server.url.startswith("http://127.0.0.1:") and server.model == "model"
        [card] = httpx.get(f"{server.url}/v1/models", timeout=PATIENCE).json()["data"]
        assert card["id"] == "model" and card["max_model_len"] == 128
        body = {"prompt": [3, 4], "temperature": 0, "max_tokens": 3}
        assert (
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE).status_code
            == 200
        )
        # It listens on the loopback interface only.
        listening = psutil.Process(server.pid).net_connections("tcp")
        assert {c.laddr.ip for c in listening if c.status == "LISTEN"} == {"127.0.0.1"}
        with pytest.raises(PortInUse, match=rf"Port {server.port} of 127.0.0.1 cannot be used"):
            course_server(tiny_folder, port=server.port)
    assert gone(server.pid)
    said = capsys.readouterr().out
    assert said.startswith(f"Starting our server on port {server.port} ") and "ready after" in said
    server.stop()  # a second time: nothing happens


def test_a_server_publishes_its_kv_events(tiny_folder: Path) -> None:
    def start() -> LocalServer:
        endpoints = [f"tcp://{HOST}:{free_port()}" for _ in "ab"]
        config.update(zip(("endpoint", "replay_endpoint"), endpoints, strict=True))
        return course_server(
            tiny_folder,
            block_size=4,
            kv_events_config=json.dumps(config),
            enable_scale_out=True,
            verbose=False,
        )

    config: dict[str, Any] = {"enable_kv_cache_events": True}
    try:
        server = start()
    except WorkerError as error:  # a port was free, and till the server came another program had it
        assert "If another program has the port" in str(error)
        server = start()
    with server:
        body = {"prompt": [3, 4, 5, 6, 7], "temperature": 0, "max_tokens": 1}
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE).raise_for_status()
        rendered = httpx.post(
            f"{server.url}/v1/completions/render", json=body, timeout=PATIENCE
        ).json()
        assert rendered[0]["token_ids"] == body["prompt"]
        with KVEventSubscriber(config["endpoint"], config["replay_endpoint"]) as subscriber:
            [received] = subscriber.poll(PATIENCE)
        [event] = received.batch.events
        assert isinstance(event, BlockStored) and event.token_ids == [3, 4, 5, 6]
        with pytest.raises(WorkerError, match="If another program has the port"):
            course_server(tiny_folder, kv_events_config=json.dumps(config), verbose=False)


def test_an_interrupt_of_the_user_ends_the_server(tiny_folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), course_server(tiny_folder, verbose=False) as server:
        raise KeyboardInterrupt
    assert gone(server.pid)


def test_a_server_ends_with_its_last_reference(tiny_folder: Path) -> None:
    server = course_server(tiny_folder, verbose=False)
    pid = server.pid
    server = None  # as when a notebook's cell runs again, and the name gets a new server
    assert server is None and gone(pid)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_orphan_is_left_when_the_starter_is_killed(tiny_folder: Path, how: int) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tiny_folder)], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    pid, url = starter.stdout.readline().split()
    assert httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200
    os.kill(starter.pid, how)
    starter.wait()
    eventually(lambda: gone(int(pid)), "the server ends after the one who started it")


def test_the_interrupt_of_a_group_does_not_reach_the_server(tiny_folder: Path) -> None:
    """Jupyter interrupts a cell by a signal to the kernel's group of processes."""
    with course_server(tiny_folder, verbose=False) as server:
        assert os.getpgid(server.pid) != os.getpgid(0)


def test_a_port_in_use_is_named_before_the_model_is_loaded(tiny_folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "utils.serving", "--port", str(port)]
        done = subprocess.run(
            [*command, "--model", str(tiny_folder)], capture_output=True, text=True
        )
    assert done.returncode == 1
    assert f"Port {port} of 127.0.0.1 cannot be used" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(model="/nowhere"), "Cannot serve /nowhere: No model at '/nowhere'"),
        (dict(max_model_len=9999), "max_model_len=9999 is out of range"),
        (dict(block_sise=1), "unrecognized arguments: --block-sise 1"),
    ],
)
def test_a_server_that_cannot_start_says_why(
    tiny_folder: Path, options: dict, message: str
) -> None:
    with pytest.raises(WorkerError) as failed:
        course_server(**{"model": tiny_folder} | options, verbose=False)
    assert "our server ended" in str(failed.value) and message in str(failed.value)
    assert "Traceback" not in str(failed.value)


def test_a_number_that_cannot_be_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="port=65536 is out of range"):
        listener(65536)
    with pytest.raises(SystemExit):
        parser().parse_args(["--shutdown-timeout", "-1"])
    assert "argument --shutdown-timeout: -1 is negative" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("how", "code", "grace"), [(signal.SIGINT, 130, 0), (signal.SIGTERM, -signal.SIGTERM, 60)]
)
def test_a_signal_ends_it_in_words(tiny_folder: Path, how: int, code: int, grace: int) -> None:
    """Whoever reads a stream gets all of it, or hears why not; the log shows no traceback."""
    server = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HELD,
            "--model",
            str(tiny_folder),
            "--port",
            "0",
            "--shutdown-timeout",
            str(grace),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None and server.stdin is not None
    try:
        url = server.stdout.readline().split()[-1]
        eventually(lambda: is_up(url), "it listens")
        body = {"prompt": "w3 w4", "max_tokens": 40, "ignore_eos": True, "stream": True}
        with httpx.stream(
            "POST", f"{url}/v1/completions", json=body, timeout=2 * PATIENCE
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.send_signal(how)
            eventually(lambda: not is_up(url), "it listens to nobody new")
            server.stdin.write("go on\n")
            server.stdin.flush()
            events = [line for line in lines if line]
        log = server.communicate(timeout=2 * PATIENCE)[1]
    finally:
        server.kill()
    assert server.returncode == code and log == ""
    assert events[-1] == "data: [DONE]"
    if grace:
        assert '"finish_reason": "length"' in events[-2]
    else:
        assert "The server is shutting down." in events[-2]


def test_addresses_that_others_reach_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    every_address = "0.0.0." + "0"  # in two parts: no code of the course may hold it
    for host in (every_address, "192.168.1.2"):
        with pytest.raises(SystemExit):
            parser().parse_args(["--host", host])
        assert f"{host} can be reached from other machines" in capsys.readouterr().err
    assert parser().parse_args(["--host", "localhost"]).host == "localhost"


def test_options_of_the_command_line() -> None:
    options = as_options({"max_num_seqs": 2, "enable_scale_out": True, "enable_x": False})
    assert options == ["--max-num-seqs", "2", "--enable-scale-out", "--no-enable-x"]


def test_a_program_that_is_no_server_is_not_waited_for() -> None:
    with pytest.raises(WorkerError, match="The server ended"):
        LocalServer([sys.executable, "-c", "pass"], dict(os.environ), "m")
