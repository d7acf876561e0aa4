"""Two lanes: what Python does in each step of an engine, and what the model does meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from utils.engine.core.step_record import StepRecord
from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREEN, INK, ORANGE

PYTHON, MODEL = 1, 0  # the lanes, from below
LIGHT = "#d5d5d5"  # between the white of the page and the green
# Of each kind of piece: how it is drawn, and what it is.
LOOKS: dict[str, tuple[dict[str, Any], str]] = {
    "schedule": ({"facecolor": ORANGE}, "Python schedules"),
    "model": ({"facecolor": BLUE}, "the model computes"),
    "unnoticed": ({"facecolor": "white", "edgecolor": BLUE, "hatch": "////"}, "done, unnoticed"),
    "record": ({"facecolor": GREEN}, "Python records"),
    "answer": ({"facecolor": LIGHT}, "hands out answers"),
}
SHOWN = 6  # steps
LEGIBLE = 0.011  # a piece has its number if it is at least such a part of the picture


class Piece(NamedTuple):
    """A piece of a step. Times in seconds.

    Kinds: "schedule", "model", "unnoticed" (the device is done, and Python hasn't seen it),
    "record", "answer".
    """

    step: int
    kind: str
    begin: float
    end: float

    @property
    def lane(self) -> int:
        return MODEL if self.kind in ("model", "unnoticed") else PYTHON


def pieces_of(steps: Sequence[StepRecord], device_seconds: float | None = None) -> list[Piece]:
    """The pieces of consecutive steps.

    Args:
        device_seconds: what a `PretendDevice` takes for a step, by its own clock. None: the model
            is taken to compute until its thread says that it is done.
    """
    pieces = []
    for i, step in enumerate(steps):
        done = _done(step, device_seconds)
        later = [other.start for other in steps[i + 1 : i + 3] if other.start >= step.end]
        pieces += [
            Piece(i, "schedule", step.start, step.scheduled),
            Piece(i, "model", step.started, done),
            Piece(i, "unnoticed", done, step.executed),
            Piece(i, "record", step.collected, step.end),
            Piece(i, "answer", step.end, min(later, default=step.end)),
        ]
    return [piece for piece in pieces if piece.end > piece.begin]


def model_share(steps: Sequence[StepRecord], device_seconds: float | None = None) -> float:
    """The part of the time in which the model computes, from one step's start to the last's.

    Args:
        device_seconds: see `pieces_of`.
    """
    busy = sum(_done(step, device_seconds) - step.started for step in steps[:-1])
    return busy / (steps[-1].started - steps[0].started)


def unnoticed_seconds(steps: Sequence[StepRecord], device_seconds: float) -> float:
    """Of a step, on average: the time from the device's end until its thread has noticed."""
    return sum(step.executed - _done(step, device_seconds) for step in steps) / len(steps)


def _done(step: StepRecord, device_seconds: float | None) -> float:
    """When the model was done. Its thread notices later: it waits until Python lets it run."""
    if device_seconds is None:
        return step.executed
    return min(step.executed, step.started + device_seconds)


def simulate(
    schedule: float, model: float, record: float, ahead: bool, count: int = 3 * SHOWN
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
        recorded = i - 1 if ahead else i
        if recorded >= 0:
            begin = max(python, ends[recorded + 1])
            python = begin + record
            pieces.append(Piece(recorded, "record", begin, python))
    return pieces


def plot_lanes(runs: Mapping[str, Sequence[Piece]], title: str, first: int = 1) -> Figure:
    """Two lanes for each run, all on one axis of time, with all that happens in that time.

    Args:
        runs: name -> pieces.
        title: the finding.
        first: step with whose scheduling the picture begins. It ends when the slowest of the runs
            has recorded `SHOWN` steps. With 1, it also shows what is left of step 0.
    """
    figure, panels = plt.subplots(
        len(runs), 1, figsize=(9.5, 1.45 * len(runs) + 1.1), sharex=True, squeeze=False
    )
    origins, length = {}, 0.0
    for name, pieces in runs.items():
        whole = [piece for piece in pieces if first <= piece.step < first + SHOWN]
        origins[name] = min(piece.begin for piece in whole)
        ends = [piece.end for piece in whole if piece.kind != "answer"]
        length = max(length, max(ends) - origins[name])
    kinds = set()
    for axes, (name, pieces) in zip(panels[:, 0], runs.items(), strict=True):
        moved = [
            p._replace(begin=p.begin - origins[name], end=p.end - origins[name]) for p in pieces
        ]
        shown = [piece for piece in moved if piece.end > 1e-9 and piece.begin < length - 1e-9]
        kinds |= {piece.kind for piece in shown}
        _draw(axes, shown, length)
        axes.set_title(name, fontsize=11, weight="normal")
    panels[-1, 0].set_xlim(0, 1000 * length)
    panels[-1, 0].set_xlabel("time (ms)")
    figure.suptitle(title, fontsize=12, weight="bold", x=0.01, ha="left")
    patches = [Patch(**look, label=text) for kind, (look, text) in LOOKS.items() if kind in kinds]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches))
    return figure


def _draw(axes: Axes, pieces: Sequence[Piece], length: float) -> None:
    for piece in pieces:
        begin, end = max(piece.begin, 0.0), min(piece.end, length)  # what is in the picture
        look = {"edgecolor": "white", "linewidth": 0.5, **LOOKS[piece.kind][0]}
        axes.barh(piece.lane, 1000 * (end - begin), left=1000 * begin, height=0.8, **look)
        if piece.kind in ("schedule", "model", "record") and end - begin > LEGIBLE * length:
            axes.text(
                500 * (begin + end),
                piece.lane,
                str(piece.step + 1),
                color="white" if piece.kind == "model" else INK,
                weight="bold",
                fontsize=9,
                ha="center",
                va="center",
            )
    axes.set_yticks([PYTHON, MODEL], ["Python", "model"])
    axes.tick_params(axis="y", labelcolor=INK, length=0)
    axes.grid(axis="y", visible=False)


def plot_plan(python_ms: float, model_ms: float) -> Figure:
    """The lanes of an engine that waits, and of one that doesn't.

    Args:
        python_ms: for a step: two fifths of it to schedule, three fifths to record its tokens.
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
    return plot_lanes(runs, f"Scheduled ahead, a step is {gain:.2f} times as fast", first=2)


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
