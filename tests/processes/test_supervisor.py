"""No process outlives the one that wanted it, whenever and however that one ends."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.scale import only_full
from utils.processes.supervised import WorkerError, program_pid, run_to_end, stop, supervised

ROOT = Path(__file__).parents[2]
# A program that starts another one, in a session of its own, as vLLM's server does its engine.
# The argument makes both findable. They last far longer than anybody waits for their end.
FAMILY = """
import subprocess, sys, time
print("ready", flush=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]],
                 start_new_session=True)
time.sleep(600)
"""
STARTER = """
import subprocess, sys, time
from utils.processes.supervised import supervised
subprocess.Popen(supervised([sys.executable, "-c", sys.argv[1], sys.argv[2]]))
time.sleep(600)
"""


def family(name: str) -> list[psutil.Process]:
    """All processes with this argument. One that ends while we look is none."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if name in (process.info["cmdline"] or ()) and process.info["status"] != "zombie":
            found.append(process)
    return found


def eventually(condition: object, seconds: float = 60.0) -> bool:
    """Does it become true? The seconds are for what hangs, and enough for the busiest machine."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


MORE = only_full("either signal at each stage of the start, at more moments")


@pytest.mark.parametrize(
    ("how", "trial"),
    [
        pytest.param(how, trial, marks=() if trial < 4 and trial % 2 == number else MORE)
        for trial in range(6)
        for number, how in enumerate([signal.SIGKILL, signal.SIGTERM])
    ],
)
def test_nothing_is_left_when_the_starter_is_killed_at_any_moment(how: int, trial: int) -> None:
    name = f"family-{os.getpid()}-{how}-{trial}"
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, FAMILY, name], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    # From before the supervisor is there, to after the program has started the other one.
    assert eventually(lambda: len(family(name)) >= trial % 4), family(name)
    time.sleep(random.Random(trial).random() * 0.1)
    os.kill(starter.pid, how)
    starter.wait()
    assert eventually(lambda: not family(name)), family(name)


def test_a_starter_that_is_gone_already_is_noticed() -> None:
    """The parent that one sees after the start may be another one than who wanted the program."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    command = supervised(["touch", "never"])
    command[2] = str(gone.pid)
    assert subprocess.run(command, cwd=ROOT).returncode == 1
    assert not (ROOT / "never").exists()


def test_what_a_killed_program_leaves_behind_is_ended() -> None:
    name = f"family-{os.getpid()}-crash"
    process = subprocess.Popen(
        supervised([sys.executable, "-c", FAMILY, name]), stdout=subprocess.DEVNULL, text=True
    )
    assert eventually(lambda: len(family(name)) == 3)
    os.kill(program_pid(process), signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not family(name)


def test_stop_ends_what_a_killed_supervisor_leaves_behind() -> None:
    name = f"family-{os.getpid()}-supervisor"
    process = subprocess.Popen(
        supervised([sys.executable, "-c", FAMILY, name]), stdout=subprocess.DEVNULL, text=True
    )
    assert eventually(lambda: len(family(name)) == 3)
    process.kill()
    process.wait()
    stop(process)
    assert not family(name)


def test_a_worker_whose_supervisor_is_killed_is_not_waited_for() -> None:
    name = f"family-{os.getpid()}-worker"

    def kill() -> None:
        if eventually(lambda: len(family(name)) == 3):
            next(p for p in family(name) if "supervisor.py" in str(p.cmdline())).kill()
        if not returned.wait(60):
            waited_for.extend(family(name))
            for process in waited_for:
                process.kill()

    returned = threading.Event()
    waited_for: list[psutil.Process] = []
    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(WorkerError, match="was killed, perhaps for memory"):
        run_to_end([sys.executable, "-c", FAMILY, name], dict(os.environ), "It")
    returned.set()
    killer.join()
    assert waited_for == []
    assert not family(name)


def test_stop_ends_the_whole_family() -> None:
    name = f"family-{os.getpid()}-stop"
    process = subprocess.Popen(
        supervised([sys.executable, "-c", FAMILY, name]), stdout=subprocess.DEVNULL, text=True
    )
    assert eventually(lambda: len(family(name)) == 3)
    stop(process)
    stop(process)  # the second time it does nothing
    assert not family(name)


def test_stop_is_polite_once() -> None:
    """The program gets one SIGTERM, and time to end: a second one means "at once" to many."""
    code = (
        "import signal, sys, time\n"
        "asked = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: asked.append(1))\n"
        "print('ready', flush=True)\n"
        "while not asked: time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "print(len(asked), flush=True)\n"
    )
    process = subprocess.Popen(
        supervised([sys.executable, "-c", code]), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    stop(process)
    assert process.stdout.read() == "1\n"


def test_a_program_that_does_not_listen_is_killed() -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('ready', flush=True); time.sleep(60)"
    )
    supervisor = "import sys; from utils.processes import supervisor as s; s.PATIENCE = 0.3; "
    supervisor += "sys.exit(s.supervise(int(sys.argv[1]), sys.argv[2:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", supervisor, str(os.getpid()), sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    pid = program_pid(process)
    stop(process)
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.kill(os.getpid(), 15)", -15),
    ],
)
def test_the_status_is_the_programs(code: str, status: int) -> None:
    assert subprocess.run(supervised([sys.executable, "-c", code])).returncode == status


def test_a_program_that_is_not_there_is_named() -> None:
    done = subprocess.run(supervised(["/no/such/program"]), capture_output=True, text=True)
    assert done.returncode == 127
    assert done.stderr == "/no/such/program: No such file or directory\n"
