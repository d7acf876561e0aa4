"""A pipeline's stages at work, and their bubble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from utils.engine.distributed.worker import StageRun
from utils.viz.style import BLUE, GREEN, GREY, ORANGE, RED


def idle_share(runs: Sequence[StageRun]) -> float:
    """The share of all stages' time, from the first begin to the last end, in which none works."""
    stages = {run.stage for run in runs}
    begin, end = min(run.begin for run in runs), max(run.end for run in runs)
    return 1 - sum(run.end - run.begin for run in runs) / ((end - begin) * len(stages))


def pass_time(runs: Sequence[StageRun]) -> float:
    """From the first begin to the last end, in the runs' own unit of time."""
    return max(run.end for run in runs) - min(run.begin for run in runs)


def plot_pipelines(
    timelines: Mapping[str, Sequence[StageRun]], unit: str = "ms", scale: float = 1e3
) -> Figure:
    """Gantt charts, one below another, on one time axis: a row for each stage, a bar for each
    micro-batch it works on. The title compares the last chart with the first.

    Args:
        timelines: by label, two or more: runs from `pipeline_schedule`, or measured:
            `Worker.take_timeline()` of all ranks.
        unit: of the axis.
        scale: units in a second (of the runs' times).

    Raises:
        ValueError: a timeline is empty.
    """
    stages = [_num_stages(runs) for runs in timelines.values()]
    times = [scale * pass_time(runs) for runs in timelines.values()]
    figure, grid = plt.subplots(
        len(stages), 1, sharex=True, squeeze=False, figsize=(9, 1.2 + sum(stages) * 0.7)
    )
    for axes, (label, runs), time in zip(grid[:, 0], timelines.items(), times, strict=True):
        _draw(axes, runs, scale)
        axes.set_title(
            f"{label}: {time:,.0f} {unit}, {idle_share(runs):.0%} of it bubble (hatched)",
            fontsize=11,
        )
    grid[0, 0].set_xlim(0, 1.01 * max(times))
    grid[-1, 0].set_xlabel(f"time ({unit})")
    first, *_, last = timelines.values()
    less = idle_share(last) < idle_share(first)
    change = times[-1] / times[0] - 1
    told = "about the same time" if abs(change) < 0.03 else f"{abs(change):.0%} "
    if abs(change) >= 0.03:
        told += "less time" if change < 0 else "more time"
    link = "and" if less == (change <= -0.03) else "but"
    bubble = "Less bubble" if less else "No less bubble"
    where = "below than above" if len(times) == 2 else "in the last chart than in the first"
    figure.suptitle(f"{bubble} {where}, {link} {told}", x=0.02, ha="left")
    return figure


def _num_stages(runs: Sequence[StageRun]) -> int:
    if not runs:
        raise ValueError("No stage has worked yet: there is nothing to draw.")
    return 1 + max(run.stage for run in runs)


def _draw(axes: Axes, runs: Sequence[StageRun], scale: float) -> None:
    """The bars of one chart, from time 0, above a hatched ground."""
    num_stages = _num_stages(runs)
    start = min(run.begin for run in runs)
    end = scale * pass_time(runs)
    axes.barh(
        range(num_stages),
        [end] * num_stages,
        height=0.72,
        color="none",
        edgecolor=GREY,
        hatch="////",
        linewidth=0,
        alpha=0.35,
    )
    palette = (BLUE, ORANGE, GREEN, RED)
    for run in runs:
        color = palette[run.micro_batch % len(palette)]
        left, width = scale * (run.begin - start), scale * (run.end - run.begin)
        axes.barh(run.stage, width, left=left, height=0.72, color=color, edgecolor="white")
        if width > 0.03 * end:
            axes.text(
                left + width / 2,
                run.stage,
                str(run.micro_batch),
                ha="center",
                va="center",
                color="white" if color in (BLUE, RED) else "black",
                fontsize=9.5,
            )
    axes.set_yticks(range(num_stages), [f"stage {i}" for i in range(num_stages)])
    axes.invert_yaxis()
    axes.grid(visible=False)
