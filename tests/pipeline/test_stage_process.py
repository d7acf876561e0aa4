"""A stage in Part II's environment: the same call, result and errors, through files."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.pipeline import fake_stages
from utils.environments import pipeline as environment
from utils.pipeline import stage_process
from utils.pipeline.runner import Runner, Stage, StageError
from utils.pipeline.stages.functions import run_data


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Colab: Part II has another Python. Here it is the same one under another name."""
    other = Path(sys.executable).with_name("python3")
    assert other != Path(sys.executable) and other.exists()
    monkeypatch.setenv(environment.OVERRIDE, str(other))
    path = {"PYTHONPATH": str(environment.ROOT)}
    monkeypatch.setattr(stage_process, "worker_environment", lambda: path)


@pytest.mark.usefixtures("isolated")
def test_a_chain_gives_the_same_in_another_environment(tmp_path: Path) -> None:
    assert environment.is_isolated()
    Runner(tmp_path / "a", fake_stages.chain(), {}).run()
    assert (tmp_path / "a" / "two" / "text").read_text() == "ab"
    assert int((tmp_path / "a" / "two" / "pid").read_text()) != os.getpid()
    settings = {"train": 5, "held_out": 3, "seed": 0}
    Runner(tmp_path / "b", [Stage("data", run_data, settings=settings)], {}).run()
    (tmp_path / "c").mkdir()
    run_data(settings, {}, tmp_path / "c")
    for name in ("train.jsonl", "held_out.jsonl"):
        there, here = (tmp_path / folder / name for folder in ("b/data", "c"))
        assert there.read_text() == here.read_text()


@pytest.mark.usefixtures("isolated")
def test_errors_are_passed_on_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="on purpose"):
        Runner(tmp_path, [Stage("one", fake_stages.fail)], {}).run()
    with pytest.raises(StageError, match="Not enough disk space for the stage 'one'"):
        Runner(tmp_path, [Stage("one", fake_stages.full)], {}).run()
    with pytest.raises(StageError, match=r"'one' was killed.*memory"):
        Runner(tmp_path, [Stage("one", fake_stages.die)], {}).run()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.usefixtures("isolated")
def test_an_interrupted_call_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[psutil.Process] = []
    pid = tmp_path / "out" / "pid"

    def interrupted(process: stage_process.LineProcess, number: int) -> None:
        deadline = time.monotonic() + 60
        while not (pid.exists() and pid.read_text()):
            assert time.monotonic() < deadline, "the stage has not begun"
            time.sleep(0.05)
        pids = (process.process.pid, int(pid.read_text()))
        started.extend(psutil.Process(number) for number in pids)
        raise KeyboardInterrupt

    monkeypatch.setattr(stage_process.LineProcess, "answer", interrupted)
    (tmp_path / "out").mkdir()
    with pytest.raises(KeyboardInterrupt):
        stage_process.call_stage(fake_stages.linger, {}, {}, tmp_path / "out")
    assert len(started) == 2
    _, left = psutil.wait_procs(started, timeout=60)
    assert left == []
