"""Two lanes: what Python does in each step of an engine, and what the model does meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from utils.engine.core.step_record import StepRecord
from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREEN, INK, ORANGE

PYTHON, MODEL = 1, 0  # the lanes, from below
COLORS = {"schedule": ORANGE, "model": BLUE, "book": GREEN}
PATCHES = [
    Patch(color=ORANGE, label="Python schedules a step"),
    Patch(color=BLUE, label="the model computes it"),
    Patch(color=GREEN, label="Python books its tokens"),
]
SHOWN = 6  # steps


class Piece(NamedTuple):
    """A piece of a step: "schedule", "model" or "book". Times in seconds."""

    step: int
    kind: str
    begin: float
    end: float

    @property
    def lane(self) -> int:
        return MODEL if self.kind == "model" else PYTHON


def pieces_of(steps: Sequence[StepRecord]) -> list[Piece]:
    """The pieces of consecutive steps."""
    pieces = []
    for i, step in enumerate(steps):
        pieces += [
            Piece(i, "schedule", step.start, step.scheduled),
            Piece(i, "model", step.started, step.executed),
            Piece(i, "book", step.collected, step.end),
        ]
    return pieces


def model_share(steps: Sequence[StepRecord]) -> float:
    """The part of the time in which the model computes, from one step's start to the last's."""
    busy = sum(step.executed - step.started for step in steps[:-1])
    return busy / (steps[-1].started - steps[0].started)


def simulate(
    schedule: float, model: float, book: float, ahead: bool, count: int = SHOWN + 2
) -> list[Piece]:
    """The pieces of an engine's steps, if each piece always takes equally long.

    Args:
        ahead: whether a step is scheduled while the one before it runs.
    """
    pieces: list[Piece] = []
    python, ends = 0.0, [0.0]  # when Python is free; when each step of the model ends
    for i in range(count):
        pieces.append(Piece(i, "schedule", python, python + schedule))
        begin = max(python + schedule, ends[-1])
        pieces.append(Piece(i, "model", begin, begin + model))
        python += schedule
        ends.append(begin + model)
        booked = i - 1 if ahead else i
        if booked >= 0:
            begin = max(python, ends[booked + 1])
            python = begin + book
            pieces.append(Piece(booked, "book", begin, python))
    return pieces


def plot_lanes(runs: Mapping[str, Sequence[Piece]], title: str, first: int = 0) -> Figure:
    """Two lanes for each run, all on one axis of time.

    Args:
        runs: name -> pieces.
        title: the finding.
        first: step that the picture begins with; it shows `SHOWN` of them.
    """
    figure, panels = plt.subplots(
        len(runs), 1, figsize=(9.5, 1.45 * len(runs) + 1.1), sharex=True, squeeze=False
    )
    longest = 0.0
    for axes, (name, pieces) in zip(panels[:, 0], runs.items(), strict=True):
        shown = [piece for piece in pieces if first <= piece.step < first + SHOWN]
        origin = min(piece.begin for piece in shown)
        longest = max(longest, max(piece.end for piece in shown) - origin)
        _draw(axes, shown, origin)
        axes.set_title(name, fontsize=11, weight="normal")
    panels[-1, 0].set_xlim(0, 1000 * longest)
    panels[-1, 0].set_xlabel("time (ms)")
    figure.suptitle(title, fontsize=12, weight="bold", x=0.01, ha="left")
    figure.legend(handles=PATCHES, loc="outside lower center", ncols=3)
    return figure


def _draw(axes: Axes, pieces: Sequence[Piece], origin: float) -> None:
    for piece in pieces:
        begin, width = 1000 * (piece.begin - origin), 1000 * (piece.end - piece.begin)
        color = COLORS[piece.kind]
        axes.barh(
            piece.lane, width, left=begin, height=0.8, color=color, edgecolor="white", linewidth=0.5
        )
        if piece.kind == "model":
            axes.text(
                begin + width / 2,
                piece.lane,
                str(piece.step + 1),
                color="white",
                weight="bold",
                ha="center",
                va="center",
            )
    axes.set_yticks([PYTHON, MODEL], ["Python", "model"])
    axes.tick_params(axis="y", labelcolor=INK, length=0)
    axes.grid(axis="y", visible=False)


def plot_plan(python_ms: float, model_ms: float) -> Figure:
    """The lanes of an engine that waits, and of one that doesn't.

    Args:
        python_ms: for a step: two fifths of it to schedule, three fifths to book its tokens.
        model_ms: for a step.
    """
    s, f = python_ms / 1000, model_ms / 1000
    runs = {
        f"one step at a time: {python_ms + model_ms:g} ms a step": simulate(
            0.4 * s, f, 0.6 * s, ahead=False
        ),
        f"scheduled ahead: {max(python_ms, model_ms):g} ms a step": simulate(
            0.4 * s, f, 0.6 * s, ahead=True
        ),
    }
    gain = (python_ms + model_ms) / max(python_ms, model_ms)
    return plot_lanes(runs, f"Scheduled ahead, a step is {gain:.2f} times as fast", first=1)


def lanes_explorer() -> Explorer:
    """`plot_plan` with a control for each of its arguments."""
    return Explorer(
        plot_plan,
        python_ms=ipywidgets.SelectionSlider(
            options=[0.5, 1, 2, 4, 8], value=2, description="Python (ms)"
        ),
        model_ms=ipywidgets.SelectionSlider(
            options=[0.5, 1, 2, 4, 8, 16], value=4, description="model (ms)"
        ),
    )
