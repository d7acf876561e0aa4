"""A small cluster, request by request: what each replica holds, who gets the request, and why."""

from __future__ import annotations

from collections.abc import Mapping

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from utils.viz.explore import Explorer
from utils.viz.routing.replay_runs import (
    CACHES,
    COLUMNS,
    LOADS,
    NUM_REPLICAS,
    SYSTEM_BLOCKS,
    TENANTS,
    Replay,
    replays,
)
from utils.viz.style import BLUE, GREEN, GREY, INK, MAX_HEIGHT, ORANGE

TENANT_COLORS = (BLUE, ORANGE, GREEN, "#d9d9d9")  # dark to light


def plot_step(runs: Mapping[str, Replay], policy: str, step: int) -> Figure:
    """Request number `step`, from 1: its blocks, the replicas, and all policies' figures.

    Args:
        runs: from `replays`.
        policy: which of them to show.
        step: how many requests have arrived.
    """
    run = runs[policy]
    snapshot = run.snapshots[min(step, len(run.snapshots)) - 1]
    height = -(-run.num_blocks // COLUMNS)
    tall = min(2.4 + NUM_REPLICAS * (0.5 + 0.3 * height), MAX_HEIGHT)
    figure = plt.figure(figsize=(11, tall))
    grid = figure.add_gridspec(1, 2, width_ratios=(2.7, 1))
    axes = figure.add_subplot(grid[0])
    names, tenant = run.names[snapshot.number], int(run.trace.tenants[snapshot.number])
    session = int(run.trace.sessions[snapshot.number])
    of_block = {name: int(t) for name, t in _tenants(run).items()}
    _label(axes, 0, f"request {snapshot.number + 1}")
    for place, name in enumerate(names[:COLUMNS]):
        _cell(axes, place, 0, of_block[name], _is_first(name))
    y = 1.6
    for index, held in enumerate(snapshot.held):
        chosen = index == snapshot.chosen
        text = f"replica {index}\n{snapshot.unfinished[index]} requests,\n"
        _label(axes, y + 0.45, text + f"{snapshot.waiting_tokens[index]:,} tokens", bold=chosen)
        slots = [_slot(place % COLUMNS, y + place // COLUMNS) for place in range(run.num_blocks)]
        axes.add_collection(PatchCollection(slots, facecolor="white", edgecolor="#dddddd"))
        mine = set(names)
        for place, block in enumerate(held):
            row, column = divmod(place, COLUMNS)
            edge = None
            if chosen and block in mine:
                edge = "found" if names.index(block) < snapshot.num_found else "new"
            _cell(axes, column, y + row, of_block[block], _is_first(block), edge)
        if chosen:
            axes.add_patch(
                Rectangle(
                    (-0.25, y - 0.2),
                    COLUMNS + 0.4,
                    height + 0.25,
                    fill=False,
                    edgecolor=INK,
                    linewidth=1.6,
                )
            )
        y += max(height, 1.6) + 0.6
    axes.set_xlim(-5.2, COLUMNS + 0.4)
    axes.set_ylim(y, -0.4)
    axes.axis("off")
    title = f"{policy}: tenant {TENANTS[tenant]}, conversation {session} goes to replica "
    title += f"{snapshot.chosen}, {snapshot.num_found} of {len(names)} blocks found"
    axes.set_title(title, x=0.0)
    _draw_figures(figure.add_subplot(grid[1]), runs, policy)
    patches = [
        Patch(facecolor=color, edgecolor=GREY, label=f"tenant {name}")
        for name, color in zip(TENANTS, TENANT_COLORS, strict=True)
    ]
    patches.append(Patch(facecolor="white", edgecolor=INK, linewidth=2.2, label="found"))
    patches.append(Patch(facecolor="white", edgecolor=INK, hatch="////", label="computed"))
    figure.legend(handles=patches, loc="outside lower left", ncols=6, fontsize=9)
    return figure


def routing_explorer() -> Explorer:
    """Choose a policy, a load and a size of the caches; a slider walks through the requests."""
    first = replays(LOADS["fair load"], CACHES["48 blocks"])
    slider = ipywidgets.IntSlider(
        40,
        min=1,
        max=len(next(iter(first.values())).snapshots),
        description="request",
        continuous_update=False,
    )
    slider.layout.width = "420px"
    policies = ipywidgets.Dropdown(options=list(first), description="policy")
    loads = ipywidgets.Dropdown(options=list(LOADS), value="fair load", description="load")
    caches = ipywidgets.Dropdown(options=list(CACHES), description="caches")

    def draw(policy: str, load: str, size: str, step: int) -> Figure:
        return plot_step(replays(LOADS[load], CACHES[size]), policy, step)

    return Explorer(draw, policy=policies, load=loads, size=caches, step=slider)


def _tenants(run: Replay) -> dict[int, int]:
    pairs = zip(run.names, run.trace.tenants.tolist(), strict=True)
    return {name: tenant for names, tenant in pairs for name in names}


def _label(axes: Axes, y: float, text: str, bold: bool = False) -> None:
    axes.text(-5.1, y + 0.4, text, va="center", fontsize=9.5, weight="bold" if bold else "normal")


def _is_first(name: int) -> bool:
    """Whether a block is the first of a system prompt."""
    return name < 0 and name % SYSTEM_BLOCKS == 0


def _slot(x: float, y: float) -> Rectangle:
    return Rectangle((x + 0.06, y + 0.06), 0.84, 0.78)


def _cell(
    axes: Axes, x: float, y: float, tenant: int, lettered: bool, edge: str | None = None
) -> None:
    """One block; the first one of a system prompt has its tenant's letter."""
    cell = _slot(x, y)
    cell.set(facecolor=TENANT_COLORS[tenant], edgecolor=INK if edge else "white")
    cell.set(linewidth=2.2 if edge == "found" else 0.8, hatch="////" if edge == "new" else None)
    axes.add_patch(cell)
    if lettered:
        ink = "white" if tenant == 0 else INK
        axes.text(
            x + 0.48,
            y + 0.46,
            TENANTS[tenant],
            ha="center",
            va="center",
            fontsize=9,
            color=ink,
            weight="bold",
        )


def _draw_figures(axes: Axes, runs: Mapping[str, Replay], policy: str) -> None:
    """The whole trace's figures, a row per policy."""
    axes.axis("off")
    axes.set_xlim(0, 1)
    axes.set_ylim(len(runs) + 1.2, -0.8)
    columns = (("", 0.0), ("hits", 0.72), ("p50 s", 0.86), ("p99 s", 1.0))
    for text, x in columns:
        axes.text(x, -0.1, text, fontsize=9, color=GREY, ha="left" if x == 0 else "right")
    for row, (name, run) in enumerate(runs.items(), 1):
        values = run.figures
        texts = (
            name,
            f"{values['hit_rate']:.0%}",
            f"{values['ttft_p50']:.2f}",
            f"{values['ttft_p99']:.2f}",
        )
        for text, (_, x) in zip(texts, columns, strict=True):
            axes.text(
                x,
                row,
                text,
                fontsize=9,
                ha="left" if x == 0 else "right",
                weight="bold" if name == policy else "normal",
            )
    axes.set_title("the whole trace", fontsize=10)
