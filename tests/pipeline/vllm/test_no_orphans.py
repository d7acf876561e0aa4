"""Real servers, sessions and stages leave nothing behind, whenever whoever started them is killed.

`test_supervisor.py` has the same of small programs, many times. Each trial here starts vLLM or a
training: `python -m tests.pipeline.vllm.test_no_orphans 100` runs as many as one likes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]
MARK = "COURSE_TRIAL"
PROGRAMS = {
    "server": """
        from utils.pipeline.vllm.serve import vllm_server
        with vllm_server(resolve_model()) as server:
            while True:
                server.chat([{"role": "user", "content": "Count."}], 200)
    """,
    "session": """
        from utils.pipeline.vllm.session import VllmSession
        with VllmSession() as session:
            session.start(resolve_model(), max_model_len=512, enforce_eager=True)
            while True:
                session.generate([[1, 2, 3]] * 8, max_tokens=200)
    """,
    "stage": """
        from utils.pipeline.artifacts import need_stages
        need_stages("finetune")
    """,
}
READY = 25.0  # seconds: on two cores all of them have started by then, and are at work
PATIENCE = 5.0  # seconds for everything to end


def trial(kind: str, how: int, seed: int) -> list[str]:
    """Start a program, kill it at a random moment, and say which processes are left."""
    name = f"{kind}-{how}-{seed}-{os.getpid()}"
    code = "from utils.hub import resolve_model\n" + "\n".join(
        line[8:] for line in PROGRAMS[kind].splitlines()
    )
    with tempfile.TemporaryDirectory() as artifacts:
        program = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT,
            env=os.environ | {MARK: name, "COURSE_ARTIFACTS": artifacts},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(random.Random(seed).random() * READY)
        assert program.poll() is None, "it ended by itself"
        # vLLM's processes write their titles over the place of the variables: known as children.
        family = psutil.Process(program.pid).children(recursive=True)
        os.kill(program.pid, how)
        program.wait(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while (left := _alive(family, name)) and time.monotonic() < deadline:
            time.sleep(0.05)
    return left


def _alive(family: list[psutil.Process], name: str) -> list[str]:
    left = [process for process in family if process.is_running()]
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == name:
                left.append(process)
        except psutil.Error:
            continue
    return [str(p) for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "how", "seed"),
    [("server", signal.SIGKILL, 1), ("server", signal.SIGTERM, 2), ("session", signal.SIGKILL, 3),
     ("stage", signal.SIGTERM, 4)],
)  # fmt: skip
def test_nothing_is_left(kind: str, how: int, seed: int) -> None:
    assert trial(kind, how, seed) == []


if __name__ == "__main__":
    kinds, ways = list(PROGRAMS), [signal.SIGKILL, signal.SIGTERM]
    for number in range(int(sys.argv[1])):
        found = trial(kinds[number % 3], ways[number // 3 % 2], seed=1000 + number)
        print(number, kinds[number % 3], found or "nothing left", flush=True)
