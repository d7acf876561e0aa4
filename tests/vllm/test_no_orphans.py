"""Real servers, sessions and stages leave nothing behind, whenever whoever started them is killed.

`test_supervisor.py` has the same of small programs, many times. Each trial here starts vLLM or a
training: `python -m tests.vllm.test_no_orphans 100` runs as many as one likes.
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

from tests.scale import only_full
from utils.pipeline.output_folder import WORK_PREFIX

ROOT = Path(__file__).parents[3]
MARK = "COURSE_TRIAL"
PROGRAMS = {
    "server": """
        from utils.vllm.serve import vllm_server
        with vllm_server(resolve_model()) as server:
            while True:
                at_work.touch()
                server.chat([{"role": "user", "content": "Count."}], 200)
    """,
    "session": """
        from utils.vllm.session import VllmSession
        with VllmSession() as session:
            session.start(resolve_model(), max_model_len=512, enforce_eager=True)
            while True:
                at_work.touch()
                session.generate([[1, 2, 3]] * 8, max_tokens=200)
    """,
    "stage": """
        from utils.pipeline.artifacts import need_stages
        need_stages("finetune")
    """,
}
# Only what hangs takes so long, on any machine: seconds.
START, END = 600.0, 60.0


def trial(kind: str, how: int, seed: int, starting: bool = False) -> list[str]:
    """Start a program, kill it at a random moment, and say which processes are left.

    Args:
        starting: before it is at work, which it may not reach; else soon after.
    """
    name = f"{kind}-{how}-{seed}-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        artifacts, sign, log = (Path(folder) / part for part in ("artifacts", "at_work", "log"))
        code = "from pathlib import Path\nfrom utils.hub import resolve_model\n"
        code += f"at_work = Path({str(sign)!r})\n"
        code += "\n".join(line[8:] for line in PROGRAMS[kind].splitlines())
        with log.open("w") as output:
            program = subprocess.Popen(
                [sys.executable, "-c", code],
                cwd=ROOT,
                stdout=output,
                stderr=output,
                env=os.environ | {MARK: name, "COURSE_ARTIFACTS": str(artifacts)},
            )
        deadline = time.monotonic() + START
        # Of the stage, its folder is the sign: the stage itself is not ours to change.
        while not (starting or sign.exists() or [*artifacts.rglob(f"{WORK_PREFIX}finetune-*")]):
            assert program.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
        time.sleep(random.Random(seed).random() * 3)
        assert program.poll() is None, log.read_text()[-3000:]
        # vLLM's processes write their titles over the place of the variables: known as children.
        family = psutil.Process(program.pid).children(recursive=True)
        os.kill(program.pid, how)
        program.wait(END)
        deadline = time.monotonic() + END
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
    [
        ("server", signal.SIGKILL, 1),
        ("session", signal.SIGTERM, 2),
        pytest.param("server", signal.SIGTERM, 3, marks=only_full("the server by SIGTERM")),
        # What a stage leaves is also tested without vLLM, by test_runner.py.
        pytest.param("stage", signal.SIGKILL, 4, marks=only_full("a real stage of the pipeline")),
    ],
)
def test_nothing_is_left(kind: str, how: int, seed: int) -> None:
    assert trial(kind, how, seed) == []


@pytest.mark.slow
@only_full("programs that are killed before they are at work")
@pytest.mark.parametrize("kind", PROGRAMS)
def test_nothing_is_left_of_a_start(kind: str) -> None:
    assert trial(kind, signal.SIGKILL, seed=5, starting=True) == []


if __name__ == "__main__":
    kinds, ways = list(PROGRAMS), [signal.SIGKILL, signal.SIGTERM]
    for number in range(int(sys.argv[1])):
        found = trial(kinds[number % 3], ways[number // 3 % 2], 1000 + number, number % 4 == 3)
        print(number, kinds[number % 3], found or "nothing left", flush=True)
