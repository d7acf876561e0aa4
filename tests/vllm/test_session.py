"""A vLLM process that answers many questions: its protocol and its end, with a stand-in for vLLM.

The real one is run by notebook 13 and its lab.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import psutil
import pytest

from utils.pipeline.task.answer_schema import CURRENCIES, answer_schema
from utils.pipeline.task.messages import generate
from utils.processes.supervised import WorkerError
from utils.vllm import session as vllm_session
from utils.vllm.session import VllmRefused, VllmSession

WORKER = """
import sys, time
from utils.vllm import session_worker as real

class Worker(real.Worker):
    def start(self, engine):
        print("what vLLM prints must not come between the answers")
        if engine.get("block_size") == 16:
            raise ValueError("block_size must be a multiple of 32")
        if engine["model"] == "missing":
            raise OSError("no such folder")
        self.llm = engine

    def generate(self, prompts, sampling, one_by_one):
        if sampling.get("max_tokens") == 99:
            open("BEGUN", "w").close()
            time.sleep(600)
        answer = {"text": "x", "token_ids": [1, 2], "num_cached_tokens": 32,
                  "finish_reason": "stop", "ttft": 0.5}
        return {"answers": [answer for _ in prompts], "seconds": 2.0}

    def counters(self):
        return {"vllm:prefix_cache_hits": 32.0}

real.Worker = Worker
real.main()
"""


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VllmSession]:
    worker = WORKER.replace("BEGUN", str(tmp_path / "begun"))
    (tmp_path / "stand_in_worker.py").write_text(worker)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(vllm_session, "WORKER_MODULE", "stand_in_worker")
    with VllmSession() as session:
        yield session


def test_one_process_answers_many_questions(session: VllmSession) -> None:
    session.start("model", block_size=32)
    assert session.process is not None
    process = session.process.process
    answers = session.generate([[1, 2, 3], {"prompt_token_ids": [4], "cache_salt": "a"}])
    assert answers.num_cached_tokens == [32, 32] and answers.texts == ["x", "x"]
    assert answers.tokens_per_second == 2.0  # 2 x 2 tokens in 2 seconds
    assert session.counters() == {"vllm:prefix_cache_hits": 32.0}
    session.start("model", block_size=64)
    assert session.process.process is process
    session.stop()
    assert process.poll() is not None and session.process is None
    session.stop()  # does nothing


def test_what_vllm_refuses_is_said_and_the_session_goes_on(session: VllmSession) -> None:
    with pytest.raises(VllmRefused, match="multiple of 32"):
        session.start("model", block_size=16)
    session.start("model", block_size=32)
    assert session.generate([[1]]).texts == ["x"]


def test_a_process_that_ends_shows_its_last_lines(session: VllmSession) -> None:
    with pytest.raises(WorkerError, match=r"(?s)vLLM's process ended.*no such folder"):
        session.start("missing")
    assert session.process is None
    session.start("model")  # begins anew


def test_questions_before_the_start(session: VllmSession) -> None:
    with pytest.raises(WorkerError, match="Call `start` first"):
        session.generate([[1]])
    assert session.process is None


def test_an_engine_after_speculation_gets_a_new_process(session: VllmSession) -> None:
    session.start("model", speculative_config={"method": "ngram"})
    assert session.process is not None
    first = session.process.process
    session.start("model")
    assert first is not None and first.poll() is not None
    assert session.process is not None and session.process.process.pid != first.pid


def test_on_a_gpu_each_engine_gets_a_process(
    session: VllmSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    session.start("model")
    assert session.process is not None
    first = session.process.process
    session.start("model")
    assert first is not None and first.poll() is not None


def test_an_interrupt_ends_the_process(session: VllmSession, tmp_path: Path) -> None:
    session.start("model")
    assert session.process is not None
    process = session.process.process
    main = threading.main_thread().ident
    assert main is not None

    def interrupt_generate() -> None:
        deadline = time.monotonic() + 60
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        signal.pthread_kill(main, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt_generate)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        session.generate([[1]], max_tokens=99)
    interrupter.join()
    assert (tmp_path / "begun").exists()
    assert session.process is None and process.poll() is not None
    assert not psutil.pid_exists(process.pid)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_every_right_answer_fits_the_schema(split: str) -> None:
    validator = jsonschema.Draft202012Validator(answer_schema())
    for example in generate(split, 150):
        validator.validate(example.answer)
        assert example.answer["currency"] in (*CURRENCIES, None)


@pytest.mark.parametrize(
    "change",
    [{"issue": "angry"}, {"date": "30 July"}, {"quantity": 1.5}, {"customer": 3}, {"extra": 1}],
)
def test_wrong_answers_do_not_fit_the_schema(change: dict[str, object]) -> None:
    answer = generate("train", 1)[0].answer | change
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(answer, answer_schema())
