"""Lines of JSON to another process: what was asked is answered, or it is said why not."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.processes.json_lines import Ended, LineProcess, as_exception
from utils.processes.supervised import WorkerError, program_pid

ROOT = Path(__file__).resolve().parents[2]
WORKER = """
import os, sys, time
from utils.processes.json_lines import serve
class Odd(Exception):
    def __init__(self, a, b): super().__init__(f"{a} {b}")
class Worker:
    def echo(self, value): print("printed"); return value
    def fail(self, what):
        if what == "odd": raise Odd("one", "two")
        if what == "disk": raise OSError(28, "No space left on device", "/full")
        raise ValueError(what)
    def sleep(self): time.sleep(600)
    def die(self): print("last words", file=sys.stderr, flush=True); os._exit(3)
worker = Worker()
serve(lambda do, arguments: getattr(worker, do)(**arguments))
"""
LATER = """
import random
from utils.processes.json_lines import Answers, questions
answers, waiting = Answers(), []
for number, do, arguments in questions():
    if do == "later":
        waiting.append((number, arguments["value"]))
    else:
        random.Random(arguments["seed"]).shuffle(waiting)
        for other, value in waiting:
            answers.result(other, value)
        waiting.clear()
        answers.result(number, None)
"""


def start(program: str, **options: float | None) -> LineProcess:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return LineProcess([sys.executable, "-c", program], environment, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def worker() -> Iterator[LineProcess]:
    with start(WORKER) as process:
        yield process


@pytest.fixture(scope="module")
def later() -> Iterator[LineProcess]:
    with start(LATER) as process:
        yield process


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=JSON)
@settings(max_examples=60)
def test_whatever_json_holds_comes_back(worker: LineProcess, value: object) -> None:
    assert worker.ask("echo", value=value) == value


@given(values=st.lists(st.text(), max_size=8), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_answers_may_come_in_another_order(
    later: LineProcess, values: list[str], seed: int
) -> None:
    numbers = [later.tell("later", value=value) for value in values]
    later.ask("answer", seed=seed)
    order = random.Random(seed + 1).sample(range(len(values)), len(values))
    assert {i: later.answer(numbers[i]) for i in order} == dict(enumerate(values))


def test_errors_are_those_of_the_other_side(worker: LineProcess) -> None:
    with pytest.raises(ValueError, match="on purpose") as caught:
        worker.ask("fail", what="on purpose")
    assert "in fail" in str(caught.value.__cause__)
    with pytest.raises(OSError, match="No space left on device: /full") as full:
        worker.ask("fail", what="disk")
    assert full.value.errno == 28
    with pytest.raises(WorkerError, match="Odd: one two"):
        worker.ask("fail", what="odd")
    with pytest.raises(AttributeError):
        worker.ask("nothing")
    assert worker.ask("echo", value=1) == 1  # it goes on


def test_an_error_of_an_unknown_class_keeps_its_text() -> None:
    error = {"module": "no_such_package", "name": "Error", "text": "out of luck", "errno": None}
    found = as_exception(error)
    assert isinstance(found, WorkerError) and str(found) == "Error: out of luck"


def test_who_ends_without_an_answer_is_quoted() -> None:
    with start(WORKER) as process:
        with pytest.raises(Ended, match="last words"):
            process.ask("die")
        with pytest.raises(Ended):
            process.ask("echo", value=1)


def test_who_is_killed_while_asked_has_ended() -> None:
    with start(WORKER) as process:
        process.ask("echo", value=1)  # it is there
        number = process.tell("sleep")
        os.kill(program_pid(process.process), signal.SIGKILL)
        with pytest.raises(Ended):
            process.answer(number)


def test_silence_has_an_end_and_a_late_answer_is_not_taken_for_another() -> None:
    with start(LATER, patience=0.2) as process:
        number = process.tell("later", value="late")
        with pytest.raises(TimeoutError, match="silent"):
            process.answer(number)
        process.patience = 60.0
        assert process.ask("answer", seed=0) is None
        assert process.answer(number) == "late"


def test_it_ends_when_nobody_refers_to_it() -> None:
    process = start(WORKER)
    assert process.ask("echo", value=1) == 1
    both = [psutil.Process(process.process.pid), psutil.Process(program_pid(process.process))]
    del process
    gc.collect()
    _, left = psutil.wait_procs(both, timeout=30)
    assert left == []


def test_after_stop_nobody_is_there() -> None:
    process = start(WORKER)
    process.stop()
    process.stop()
    assert not process.alive
    deadline = time.monotonic() + 30
    with pytest.raises(Ended):
        while time.monotonic() < deadline:  # the pipe may still take a line
            process.ask("echo", value=1)
