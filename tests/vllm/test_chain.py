"""The chain is read from the installed source, and the spy sees what really runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from utils.engine import LLM, SamplingParams
from utils.vllm.chain import (
    REACHED,
    STATIONS,
    LostStation,
    Place,
    Station,
    call_lines,
    find_function,
    our_folder,
    vllm_folder,
)
from utils.vllm.spy import record_visits, visits_in_ours

SOURCE = '''\
class Engine:
    def step(self):
        """Not this: self.core.work()"""
        with self.timer():
            news = self.core.work(
                "first",
                second=2,
                third=3,
                fourth=4,
            )
        while self.core.busy():
            pass
        return news
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "engine.py").write_text(SOURCE)
    return tmp_path


def test_the_lines_of_a_call_are_cut_to_size(folder: Path) -> None:
    number, lines = call_lines(folder, Place("engine.py", "Engine.step", "self.core.work"))
    assert SOURCE.splitlines()[number - 1].strip() == "news = self.core.work("
    assert lines == 'news = self.core.work(\n    "first",\n    ...\n)'


@pytest.mark.parametrize(
    ("call", "line"),
    [("self.timer", "with self.timer():"), ("self.core.busy", "while self.core.busy():")],
)
def test_calls_in_the_head_of_a_block_are_found(folder: Path, call: str, line: str) -> None:
    assert call_lines(folder, Place("engine.py", "Engine.step", call))[1] == line


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (Place("engine.py", "Engine.step", "self.core.play"), "does not call self.core.play"),
        (Place("engine.py", "Engine.walk", "x"), "no walk in it"),
        (Place("engine.py", "Engine", "x"), "is no function"),
        (Place("motor.py", "Engine.step", "x"), "no Engine in it"),
    ],
)
def test_a_lost_station_is_named(folder: Path, place: Place, message: str) -> None:
    with pytest.raises(LostStation, match=message):
        call_lines(folder, place)


@pytest.mark.parametrize("station", STATIONS, ids=lambda station: station.what)
def test_every_station_is_there(station: Station) -> None:
    """The lines that the widget shows hold the call."""
    assert station.ours or station.why
    for root, place in ((vllm_folder(), station.theirs), (our_folder(), station.ours)):
        if place is not None:
            number, lines = call_lines(root, place)
            source = (root / place.file).read_text().splitlines()[number - 1 : number + 12]
            assert f"{place.call}(" in "\n".join(source) and lines


@pytest.mark.parametrize("place", REACHED, ids=lambda place: place.function)
def test_what_stations_call_is_there(place: Place) -> None:
    assert find_function(vllm_folder(), place)


def test_the_spy_sees_calls_in_order_and_generators_once(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(
        "def inner(): return 1\n"
        "def outer():\n    yield inner()\n    yield inner()\n"
        "def unasked(): return list(outer())\n"
    )
    code: dict = {}
    exec(compile((tmp_path / "steps.py").read_text(), str(tmp_path / "steps.py"), "exec"), code)
    places = [Place("steps.py", name, "") for name in ("inner", "outer")]
    visits = record_visits(tmp_path, places, code["unasked"])
    assert visits == [(0, "outer"), (1, "inner"), (1, "inner")]


def test_our_engine_visits_its_stations(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=2)
    prompt = "The capital of France is"
    visits = visits_in_ours(lambda: llm.generate(prompt, params, use_tqdm=False))
    names = [name for _, name in visits]
    assert names[:2] == ["LLM.generate", "run_to_end"]
    step = [
        "LLMEngine._start_step",
        "StepByStep._run",
        "ModelRunner._forward",
        "ModelRunner._sample",
        "LLMEngine._end_step",
        "LLMEngine._process",
    ]
    assert names[2:] == 2 * step
    # What one process runs has neither executor nor worker; everything else is visited.
    ours = {station.ours.function for station in STATIONS if station.ours}
    assert ours - set(names) == {"MultiprocExecutor.execute_model", "Worker.execute_model"}
