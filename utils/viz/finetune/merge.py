"""Pictures of notebook 11: updates against the steps of a grid, and the merged models compared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.pipeline.studies.merge_bases import (
    nf4_read_back,
    room_in_bfloat16,
    room_in_nf4,
    surviving_share,
)
from utils.quant import quantize_nf4
from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREY, INK, ORANGE

SIZES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # times the real update
BASES = ("W", "Q(W)")
GRIDS = ("NF4", "bfloat16")
_SHOWN_ROWS = 192  # of a layer, in the widget: enough weights, and quick
_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
_LOOKS = ((BLUE, "-", "o"), (ORANGE, "--", "s"))


def plot_update_sizes(ratios: Mapping[str, Tensor], title: str) -> Figure:
    """How large updates are against the way to the next rounding, as histograms.

    Args:
        ratios: grid -> |update| / room, any shape; inf and 0 are left out.
    """
    figure, axes = plt.subplots(figsize=(8, 4))
    _draw_ratios(axes, ratios)
    axes.set_title(title)
    return figure


def plot_candidates(
    rows: Sequence[str],
    panels: Mapping[str, Sequence[float]],
    title: str,
    lines: Mapping[str, float] | None = None,
    logarithmic: Sequence[str] = (),
) -> Figure:
    """One row per model, one panel per measure: a dot where the model lies, and its value.

    Args:
        rows: names of the models, from the top.
        panels: what is measured -> one value per row.
        lines: panel -> value of a dashed line, the model that the others are compared with.
        logarithmic: panels with a logarithmic axis.
    """
    height = 1.6 + 0.42 * len(rows)
    figure, axes = plt.subplots(1, len(panels), figsize=(9.5, height), sharey=True, squeeze=False)
    places = np.arange(len(rows))
    for ax, (label, values) in zip(axes[0], panels.items(), strict=True):
        ax.plot(values, places, "o", color=BLUE, markersize=8)
        if line := (lines or {}).get(label):
            ax.axvline(line, color=GREY, linestyle="--", linewidth=1.4, zorder=1)
            ax.annotate(
                "as trained",
                (line, len(rows) - 0.55),
                xytext=(4, 0),
                color=INK,
                textcoords="offset points",
                fontsize=9,
            )
        for place, value in zip(places, values, strict=True):
            ax.annotate(
                f"{value:.3g}",
                (value, place),
                xytext=(0, 8),
                textcoords="offset points",
                ha="center",
                fontsize=9,
                bbox=_PAPER,
            )
        if label in logarithmic:
            ax.set_xscale("log")
        ax.margins(x=0.25)
        ax.set_xlabel(label)
    axes[0][0].set_yticks(places, rows)
    axes[0][0].set_ylim(len(rows) - 0.45, -0.7)
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    return figure


def round_to(grid: str, weight: Tensor) -> Tensor:
    """What a weight is read back as from "NF4" (no double quantization) or "bfloat16"; float32.

    Raises:
        ValueError: another grid.
    """
    if grid == "NF4":
        return nf4_read_back(weight.float(), compress_statistics=False)
    if grid == "bfloat16":
        return weight.bfloat16().float()
    raise ValueError(f"Unknown grid {grid!r}. Expected one of {', '.join(GRIDS)}.")


def survival(weight: Tensor, update: Tensor, grid: str) -> float:
    """The share of an update that the rounding of weight + update keeps; see `surviving_share`."""
    before = round_to(grid, weight)
    return surviving_share(before, round_to(grid, weight + update), update)


def changed_share(weight: Tensor, update: Tensor, grid: str) -> float:
    """The share of weights that an update rounds to another code of "NF4", or bfloat16 number.

    NF4's codes count, not its values: when the largest weight of a block moves, all values of the
    block are scaled by a little.
    """
    if grid == "NF4":
        before, after = (quantize_nf4(w).codes for w in (weight, weight + update))
    else:
        before, after = (round_to(grid, w) for w in (weight, weight + update))
    return float((before != after).float().mean())


def plot_survival(
    weights: Mapping[str, Tensor],
    update: Tensor,
    base: str,
    grid: str,
    size: float,
    curves: Mapping[str, Sequence[float]],
) -> Figure:
    """Left: updates against the room that they have. Right: what survives, over their size.

    Args:
        weights: base -> weight [out, in], float32.
        update: the real update of this layer, [out, in].
        base, grid: the one that is added to, and what the sum is rounded to.
        size: the update is multiplied by it.
        curves: base -> surviving share for each of `SIZES`.
    """
    weight, scaled = weights[base], size * update
    room = room_in_nf4(weight, scaled) if grid == "NF4" else room_in_bfloat16(weight)
    changed = changed_share(weight, scaled, grid)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2))
    _draw_ratios(left, {f"{base} to {grid}": scaled.abs() / room})
    share = survival(weight, scaled, grid)
    for (name, values), (color, line, marker) in zip(curves.items(), _LOOKS, strict=True):
        right.plot(
            SIZES,
            values,
            color=color,
            linestyle=line,
            marker=marker,
            markersize=4,
            linewidth=1.8,
            label=f"added to {name}",
        )
    right.plot(size, share, "o", color=INK, markersize=11, fillstyle="none", markeredgewidth=2)
    right.axhline(1, color=GREY, linestyle=":", linewidth=1.4)
    right.set_xscale("log", base=2)
    right.set_xticks(SIZES, [f"{value:g}" for value in SIZES])
    right.set_ylim(-0.1, 1.35)
    right.set_xlabel("size of the update (1 = the real one)")
    right.set_ylabel("share of the update that survives")
    right.legend(fontsize=9, loc="lower right")
    figure.suptitle(
        f"Added to {base} and rounded to {grid}: {changed:.1%} of the weights change, "
        f"{share:.0%} of the update survives",
        x=0.01,
        ha="left",
        weight="bold",
        size=12,
    )
    return figure


def merge_explorer(layers: Mapping[str, tuple[Tensor, Tensor]]) -> Explorer:
    """Controls for `plot_survival`.

    Args:
        layers: name -> weight and update of a layer, both [out, in].

    Raises:
        ValueError: no layers.
    """
    if not layers:
        raise ValueError("Nothing to explore: pass at least one layer as (weight, update).")
    look = _cached(layers)

    def draw(layer: str, base: str, grid: str, size: float) -> Figure:
        weights, update, curves = look(layer, grid)
        return plot_survival(weights, update, base, grid, size, curves)

    names = list(layers)
    return Explorer(
        draw,
        layer=ipywidgets.Dropdown(options=names, value=names[0], description="layer"),
        base=ipywidgets.ToggleButtons(options=BASES, value="W", description="add to"),
        grid=ipywidgets.ToggleButtons(options=GRIDS, value="bfloat16", description="round to"),
        size=ipywidgets.SelectionSlider(options=SIZES, value=1.0, description="size"),
    )


Look = tuple[dict[str, Tensor], Tensor, dict[str, list[float]]]


def _cached(layers: Mapping[str, tuple[Tensor, Tensor]]) -> Callable[[str, str], Look]:
    """A function that prepares a layer for a grid once, and remembers it."""

    @functools.cache
    def look(layer: str, grid: str) -> Look:
        weight, update = (t[:_SHOWN_ROWS].detach().float().cpu() for t in layers[layer])
        weights = {"W": weight, "Q(W)": round_to("NF4", weight)}
        curves = {
            base: [survival(w, size * update, grid) for size in SIZES]
            for base, w in weights.items()
        }
        return weights, update, curves

    return look


def _draw_ratios(axes: plt.Axes, ratios: Mapping[str, Tensor]) -> None:
    bins = np.logspace(-4, 4, 161)
    for (name, ratio), (color, line, _) in zip(ratios.items(), _LOOKS, strict=False):
        flat = ratio.detach().float().flatten()
        values = flat[torch.isfinite(flat) & (flat > 0)].cpu().numpy()
        percent = np.full(len(values), 100 / max(1, len(values)))
        axes.hist(
            np.clip(values, bins[0], bins[-1]),
            bins=bins,
            weights=percent,
            histtype="step",
            color=color,
            linestyle=line,
            linewidth=1.8,
            label=name,
        )
    axes.axvline(1, color=INK, linewidth=1.4)
    top = axes.get_ylim()[1]
    axes.text(0.8, 1.16 * top, "rounded away", ha="right", va="top", fontsize=9)
    axes.text(1.25, 1.16 * top, "kept", ha="left", va="top", fontsize=9)
    axes.set_ylim(0, 1.18 * top)
    axes.set_xscale("log")
    axes.set_xlabel("size of an update, in half steps of the grid")
    axes.set_ylabel("weights (%)")
    axes.legend(fontsize=9, loc="upper left", bbox_to_anchor=(0, 0.93))
