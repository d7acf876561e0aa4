"""Where vLLM's parts run: the processes of a server, drawn for three ways to start it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE

# The parts of the chain, from a client to the model, and what each one does.
PARTS = (
    ("front", "requests, answers,\ntext and tokens", BLUE),
    ("engine core", "scheduler,\nKV cache manager", ORANGE),
    ("worker", "model runner,\nmodel, sampler", GREEN),
)
WIDTH, GAP = 1.0, 0.36  # of a part's box, and between two of them


@dataclass(frozen=True)
class Shape:
    """A way to run vLLM.

    Attributes:
        name: how it is started.
        processes: for each process its name, and how many of `PARTS` it holds, in their order.
        step: vLLM's function for one step of the engine core, and its model runner.
        here: whether this machine runs it so.
    """

    name: str
    processes: Sequence[tuple[str, int]]
    step: str
    here: bool = False


def shapes(on_gpu: bool) -> list[Shape]:
    """vLLM 0.32's defaults for one device, and what the debugger of notebook 18 runs.

    On a CPU `platforms/cpu.py` switches async scheduling off and gives the worker a process. Model
    runner V2 needs Triton.
    """
    front = ("APIServer", 1)
    gpu = [front, ("EngineCore", 2)]
    cpu = [front, ("EngineCore", 1), ("Worker", 1)]
    return [
        Shape("vllm serve\non a GPU", gpu, "step_with_batch_queue\nmodel runner V2", on_gpu),
        Shape("vllm serve\non a CPU", cpu, "step\nmodel runner V1", not on_gpu),
        Shape("our script\nunder pdb", [("python", 3)], "step\nmodel runner V1", True),
    ]


def plot_processes(rows: Sequence[Shape]) -> Figure:
    """One row for each way: a box for each part, and a frame around those that share a process."""
    figure, axes = plt.subplots(figsize=(9.5, 1.35 * len(rows) + 0.5))
    axes.set_axis_off()
    axes.set_xlim(-0.95, len(PARTS) * (WIDTH + GAP) + 0.9)
    axes.set_ylim(-0.2, len(rows))
    *most, last = (str(len(row.processes)) for row in rows)
    counts = f"{', '.join(most)} or {last}" if most else last
    axes.set_title(f"The same three parts run in {counts} processes")
    for number, row in enumerate(rows):
        _plot_row(axes, len(rows) - 1 - number, row)
    return figure


def _plot_row(axes: Axes, bottom: float, row: Shape) -> None:
    name = f"{row.name}\n(runs here)" if row.here else row.name
    axes.text(-0.9, bottom + 0.36, name, va="center", weight="bold" if row.here else "normal")
    first = 0
    for process, count in row.processes:
        left = first * (WIDTH + GAP)
        width = count * WIDTH + (count - 1) * GAP
        _box(axes, left - 0.1, bottom - 0.08, width + 0.2, 0.86, "none", GREY, "--")
        axes.text(left - 0.06, bottom + 0.66, f"process {process}", fontsize=8, color=INK)
        for i in range(first, first + count):
            _plot_part(axes, bottom, i)
        first += count
    end = len(PARTS) * (WIDTH + GAP) - GAP
    axes.text(end + 0.2, bottom + 0.36, f"each step:\n{row.step}", va="center", fontsize=8.5)


def _plot_part(axes: Axes, bottom: float, i: int) -> None:
    name, does, color = PARTS[i]
    left = i * (WIDTH + GAP)
    _box(axes, left, bottom, WIDTH, 0.6, color + "30", color, "-")
    middle = left + WIDTH / 2
    axes.text(middle, bottom + 0.47, name, ha="center", va="center", fontsize=9, weight="bold")
    axes.text(middle, bottom + 0.2, does, ha="center", va="center", fontsize=8)
    if i:
        axes.annotate(
            "",
            (left, bottom + 0.3),
            (left - GAP, bottom + 0.3),
            arrowprops={"arrowstyle": "<->", "color": INK},
        )


def _box(
    axes: Axes, x: float, y: float, width: float, height: float, fill: str, edge: str, style: str
) -> None:
    shape = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.05",
        facecolor=fill,
        edgecolor=edge,
        linestyle=style,
    )
    axes.add_patch(shape)
