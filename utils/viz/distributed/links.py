"""Which parallelism each link permits."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.distributed.hardware import GPUS, LINKS, Cluster, Link
from utils.distributed.layouts import Layout
from utils.distributed.shapes import SHAPES, Shape
from utils.distributed.step_time import StepTime, decode_step
from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE, RED

_MARKERS = ("o", "s", "D", "^", "v")
_COLORS = (BLUE, ORANGE, GREEN, RED, GREY)


def step_over(
    shape: Shape, layout: Layout, gpu: str, link: Link, requests: int, context: int
) -> StepTime:
    """A decode step where all ranks are joined by one and the same link."""
    return decode_step(shape, layout, Cluster(GPUS[gpu], link, link), requests, context)


def permitted(steps: Mapping[str, StepTime]) -> list[str]:
    """The links, by name, on which a step's communication takes no longer than its work."""
    return [name for name, step in steps.items() if sum(step.communication.values()) <= step.work]


def plot_links(
    layouts: Mapping[str, tuple[str, Layout]],
    gpu: str = "H100",
    requests: int = 32,
    context: int = 2048,
    links: Mapping[str, Link] | None = None,
) -> Figure:
    """Communication of a decode step over each link, beside the work of the GPUs.

    The links are sorted by how long the first layout waits for them.

    Args:
        layouts: by label: a model's name in `SHAPES`, and how it is laid out.
        gpu: a name in `GPUS`.
        requests: of one replica, at the same time.
        context: tokens of each request.
        links: by name; `LINKS` if not given.
    """
    first_model, first_layout = next(iter(layouts.values()))

    def wait(link: Link) -> float:
        step = step_over(SHAPES[first_model], first_layout, gpu, link, requests, context)
        return sum(step.communication.values())

    rows = sorted((links or LINKS).values(), key=wait, reverse=True)
    figure, axes = plt.subplots(figsize=(9, 5.2))
    verdicts = []
    works = [
        step_over(SHAPES[model], layout, gpu, rows[0], requests, context).work
        for model, layout in layouts.values()
    ]
    for i, ((label, (model, layout)), marker, color) in enumerate(
        zip(layouts.items(), _MARKERS, _COLORS, strict=False)
    ):
        steps = {
            link.name: step_over(SHAPES[model], layout, gpu, link, requests, context)
            for link in rows
        }
        sent = [1e3 * sum(step.communication.values()) for step in steps.values()]
        axes.plot(sent, range(len(rows)), marker, color=color, label=label, markersize=8)
        work = 1e3 * works[i]
        crowded = any(works[i] < other < 2 * works[i] for other in works)  # a line to the right
        axes.axvline(work, color=color, linestyle="--", linewidth=1.3)
        axes.text(
            work * (0.92 if crowded else 1.08),
            len(rows) - 0.4 + 0.75 * i,
            f"{label.split(' (')[0]}: {work:.0f} ms",
            ha="right" if crowded else "left",
            color=color if color != GREEN else INK,
            fontsize=9.5,
            bbox={"facecolor": "white", "edgecolor": color, "boxstyle": "round,pad=0.2"},
        )
        verdicts.append(f"{label}: {len(permitted(steps))} of {len(rows)}")
    axes.set_xscale("log")
    axes.set_ylim(-0.6, len(rows) - 0.4 + 0.75 * len(layouts))
    axes.set_yticks(range(len(rows)))
    axes.set_yticklabels([f"{link.name}  {link.bandwidth / 1e9:,.1f} GB/s" for link in rows])
    axes.set_xlabel(
        f"ms of communication in a decode step (dashed: the {gpu}'s own work);\n"
        f"each replica has {requests} requests of {context:,} tokens"
    )
    axes.set_title(
        "Links on which the GPUs work longer than they wait:\n" + ", ".join(verdicts), fontsize=11
    )
    axes.legend(loc="lower left", bbox_to_anchor=(0, -0.28), ncols=len(layouts))
    return figure
