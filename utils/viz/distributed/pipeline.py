"""A pipeline's stages at work, and their bubble."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.engine.distributed.worker import StageRun
from utils.viz.style import BLUE, COLORS, GREEN, GREY, ORANGE


def idle_share(runs: Sequence[StageRun]) -> float:
    """The share of all stages' time, from the first begin to the last end, in which none works."""
    stages = {run.stage for run in runs}
    begin, end = min(run.begin for run in runs), max(run.end for run in runs)
    return 1 - sum(run.end - run.begin for run in runs) / ((end - begin) * len(stages))


def plot_pipeline(runs: Sequence[StageRun], unit: str = "ms", scale: float = 1e3) -> Figure:
    """A Gantt chart: a row for each stage, a bar for each micro-batch it works on.

    Args:
        runs: from `pipeline_schedule`, or measured: `Worker.take_timeline()` of all ranks.
        unit: of the axis.
        scale: units in a second (of the runs' times).
    """
    if not runs:
        raise ValueError("No stage has worked yet: there is nothing to draw.")
    num_stages = 1 + max(run.stage for run in runs)
    start = min(run.begin for run in runs)
    figure, axes = plt.subplots(figsize=(9, 1.3 + 0.55 * num_stages))
    end = scale * (max(run.end for run in runs) - start)
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
    dark = {BLUE, COLORS[3]}
    for run in runs:
        color = (BLUE, ORANGE, GREEN)[run.micro_batch % 3]
        left, width = scale * (run.begin - start), scale * (run.end - run.begin)
        axes.barh(run.stage, width, left=left, height=0.72, color=color, edgecolor="white")
        if width > 0.03 * end:
            axes.text(
                left + width / 2,
                run.stage,
                str(run.micro_batch),
                ha="center",
                va="center",
                color="white" if color in dark else "black",
                fontsize=9.5,
            )
    axes.set_yticks(range(num_stages), [f"stage {i}" for i in range(num_stages)])
    axes.invert_yaxis()
    axes.set_xlim(0, end)
    axes.grid(visible=False)
    micro_batches = len({run.micro_batch for run in runs})
    axes.set_xlabel(f"time ({unit}); the number is the micro-batch")
    axes.set_title(
        f"{num_stages} stages, {micro_batches} micro-batch{'es' if micro_batches > 1 else ''}: "
        f"{idle_share(runs):.0%} of the stages' time is bubble (hatched)"
    )
    return figure
