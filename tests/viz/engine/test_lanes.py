"""The lanes show when Python and the model worked, and what scheduling ahead would gain."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import matplotlib.pyplot as plt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.viz.test_widgets import move_everything
from utils.engine.core.step_record import StepRecord
from utils.viz.engine.lanes import (
    MODEL,
    PYTHON,
    SHOWN,
    Piece,
    lanes_explorer,
    model_share,
    pieces_of,
    plot_lanes,
    plot_plan,
    simulate,
)

MS = st.integers(1, 50).map(lambda n: n / 1000)


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def record(*times: float) -> StepRecord:
    return StepRecord(*times, times[-1], {}, [], [], [], 0, 0.5)


WAITING = [record(0, 1, 1, 5, 5, 7), record(8, 9, 9, 13, 13, 15)]
AHEAD = [record(0, 1, 1, 5, 6, 8), record(2, 6, 6, 10, 10, 12)]  # the second: scheduled until 6


def test_pieces_of_steps_one_at_a_time() -> None:
    assert pieces_of(WAITING)[:3] == [
        Piece(0, "schedule", 0, 1),
        Piece(0, "model", 1, 5),
        Piece(0, "book", 5, 7),
    ]
    assert model_share(WAITING) == 4 / 8


def test_python_does_one_thing_at_a_time() -> None:
    assert pieces_of(AHEAD)[2] == Piece(0, "book", 6, 8)
    assert model_share(AHEAD) == 4 / 5


@given(schedule=MS, model=MS, book=MS, ahead=st.booleans())
def test_a_simulated_step_takes_the_sum_or_the_larger_part(
    schedule: float, model: float, book: float, ahead: bool
) -> None:
    pieces = simulate(schedule, model, book, ahead, count=30)
    python = schedule + book
    expected = max(python, model) if ahead else python + model
    begins = [piece.begin for piece in pieces if piece.kind == "model"]
    assert (begins[-1] - begins[9]) / 20 == pytest.approx(expected, rel=0.06)
    for lane in (PYTHON, MODEL):  # nobody does two things at once
        mine = sorted((p.begin, p.end) for p in pieces if p.lane == lane)
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(mine))
    by_step = {(piece.step, piece.kind): piece for piece in pieces}
    for (number, kind), piece in by_step.items():
        if kind == "book":
            assert piece.begin >= by_step[number, "model"].end
        if kind == "model":
            assert piece.begin >= by_step[number, "schedule"].end
    if ahead and model > python:
        assert by_step[2, "schedule"].begin < by_step[1, "model"].end


def test_a_picture_shows_some_steps_of_each_run() -> None:
    runs = {name: simulate(0.001, 0.004, 0.001, name == "b") for name in ("a", "b")}
    figure = plot_lanes(runs, "title", first=1)
    assert [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes] == ["a", "b"]
    for axes in figure.axes:
        assert [text.get_text() for text in axes.texts] == [str(n) for n in range(2, SHOWN + 2)]
        assert min(bar.get_x() for bar in axes.patches) == 0  # the first one begins at 0 ms
        assert max(bar.get_width() for bar in axes.patches) == pytest.approx(4)


def test_the_plan_says_what_is_gained() -> None:
    assert plot_plan(4, 4).get_suptitle().endswith("2.00 times as fast")
    assert plot_plan(1, 4).get_suptitle().endswith("1.25 times as fast")


def test_the_widget_draws_everything() -> None:
    move_everything(lanes_explorer())
