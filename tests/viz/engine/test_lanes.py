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
    unnoticed_seconds,
)

MS = st.integers(1, 50).map(lambda n: n / 1000)


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def step(*times: float) -> StepRecord:
    return StepRecord(*times, times[-1], {}, [], [], [], 0, 0.5)


WAITING = [step(0, 1, 1, 5, 5, 7), step(8, 9, 9, 13, 13, 15)]
AHEAD = [step(0, 1, 1, 5, 6, 8), step(2, 6, 6, 10, 10, 12)]  # the second: scheduled until 6


def test_pieces_of_steps_one_at_a_time() -> None:
    assert pieces_of(WAITING)[:3] == [
        Piece(0, "schedule", 0, 1),
        Piece(0, "model", 1, 5),
        Piece(0, "record", 5, 7),
    ]
    assert model_share(WAITING) == 4 / 8


def test_python_does_one_thing_at_a_time() -> None:
    assert pieces_of(AHEAD)[2] == Piece(0, "record", 6, 8)
    assert model_share(AHEAD) == 4 / 5


@given(schedule=MS, model=MS, record=MS, ahead=st.booleans())
def test_a_simulated_step_takes_the_sum_or_the_larger_part(
    schedule: float, model: float, record: float, ahead: bool
) -> None:
    pieces = simulate(schedule, model, record, ahead, count=30)
    python = schedule + record
    expected = max(python, model) if ahead else python + model
    begins = [piece.begin for piece in pieces if piece.kind == "model"]
    assert (begins[-1] - begins[9]) / 20 == pytest.approx(expected, rel=0.06)
    for lane in (PYTHON, MODEL):  # nobody does two things at once
        mine = sorted((p.begin, p.end) for p in pieces if p.lane == lane)
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(mine))
    by_step = {(piece.step, piece.kind): piece for piece in pieces}
    for (number, kind), piece in by_step.items():
        if kind == "record":
            assert piece.begin >= by_step[number, "model"].end
        if kind == "model":
            assert piece.begin >= by_step[number, "schedule"].end
    if ahead and model > python:
        assert by_step[2, "schedule"].begin < by_step[1, "model"].end


def test_a_device_is_done_before_python_notices() -> None:
    """By its own clock it takes 3 of the 4 seconds; then its thread waits to be let run."""
    assert pieces_of(WAITING, device_seconds=3)[1:4] == [
        Piece(0, "model", 1, 4),
        Piece(0, "unnoticed", 4, 5),
        Piece(0, "record", 5, 7),
    ]
    assert model_share(WAITING, device_seconds=3) == 3 / 8
    assert unnoticed_seconds(WAITING, device_seconds=3) == 1
    assert pieces_of(WAITING, device_seconds=9) == pieces_of(WAITING)  # never beyond its end


def test_the_answers_are_handed_out_until_the_next_step_begins() -> None:
    assert pieces_of(WAITING)[3] == Piece(0, "answer", 7, 8)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_picture_shows_all_that_happens_in_its_time(ahead: bool) -> None:
    pieces = simulate(0.001, 0.004, 0.001, ahead)
    figure = plot_lanes({"slow": simulate(0.001, 0.004, 0.001, False), "run": pieces}, "title", 2)
    assert [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes] == [
        "slow",
        "run",
    ]
    begin = next(p.begin for p in pieces if (p.step, p.kind) == (2, "schedule"))
    axes = figure.axes[1]
    until = axes.get_xlim()[1] / 1000
    assert until == pytest.approx(0.006 * SHOWN)
    inside = [min(p.end - begin, until) - max(p.begin - begin, 0) for p in pieces]
    widths = sorted(1000 * width for width in inside if width > 1e-9)
    assert sorted(bar.get_width() for bar in axes.patches) == pytest.approx(widths)
    numbers = {int(text.get_text()) for text in axes.texts}
    assert (2 in numbers) == ahead  # the step that runs while step 3 is scheduled


def test_the_plan_says_what_is_gained() -> None:
    assert plot_plan(4, 4).get_suptitle().endswith("2.00 times as fast")
    assert plot_plan(1, 4).get_suptitle().endswith("1.25 times as fast")


def test_the_widget_draws_everything() -> None:
    move_everything(lanes_explorer())
