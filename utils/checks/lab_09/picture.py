"""The pictures of lab 09: the error of each group, and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.lab_09.parts import Parts, spread

INK = "#1b1b1b"
STYLES = (("#f2a65a", "//"), ("#1f5fa8", ""), ("#8fc1a9", "xx"))  # the learner's is the second


def read(codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """What codes stand for, in float64."""
    width = codes.shape[1]
    return (codes.double() - spread(zeros, width)) * spread(scales, width)


def group_errors(
    weight: Tensor, backs: Sequence[Tensor], group_size: int, title: str, names: Sequence[str]
) -> Figure:
    """Heat maps of the root mean square error of each group; all weights are [out, in]."""
    maps = [
        (back.double() - weight.double()).unflatten(1, (-1, group_size)).square().mean(-1).sqrt()
        for back in backs
    ]
    finite = [float(m[m.isfinite()].max()) if m.isfinite().any() else 0.0 for m in maps]
    # A broken answer can be off by thousands: the scale ends where the right one can still be seen.
    top = min(max(finite), 8 * finite[0] or max(finite)) or 1.0
    figure = Figure(figsize=(6.6, 0.34 * len(weight) + 1.7), layout="constrained")
    axes = figure.subplots(1, 2)
    for ax, name, errors in zip(axes, names, maps, strict=True):
        ax.grid(False)  # the style of the notebooks would draw it across the numbers
        image = ax.imshow(errors.numpy(), cmap="Blues", vmin=0, vmax=top, aspect="auto")
        for (row, column), value in np.ndenumerate(errors.numpy()):
            color = "white" if value > 0.6 * top else INK
            ax.text(column, row, f"{value:.2g}", ha="center", va="center", size=8, color=color)
        ax.set_title(name, size=10)
        ax.set_xlabel("group of input channels", size=9)
        ax.set_ylabel("output channel", size=9)
        ax.set_xticks(range(errors.shape[1]))
        ax.set_yticks(range(errors.shape[0]))
        ax.tick_params(labelsize=8)
    figure.colorbar(image, ax=axes, label="error (root mean square)", extend="max")
    figure.suptitle(title, size=11)
    return figure


def both_errors(weight: Tensor, expected: Parts, got: Parts) -> tuple[Figure | None, str]:
    """Codes, scales and zeros that were expected, and those that came, read back; if few enough."""
    out, groups = expected[1].shape
    if out > 16 or groups > 12:
        return None, ""
    backs, size = [read(*parts) for parts in (expected, got)], weight.shape[1] // groups
    title = "What is read back from the codes: the error of each group"
    figure = group_errors(weight, backs, size, title, ("expected", "yours"))
    return figure, "The error of each group: expected beside yours."


def bars(
    ax: Axes,
    places: Sequence[str],
    rows: Mapping[str, Sequence[float]],
    title: str,
    label: str,
    *,
    digits: str = "",
    whole: str = "",
) -> None:
    """Bars side by side, one row for each label.

    Args:
        digits: how their numbers are written above them; without it they aren't
        whole: what 1 is; a dotted line is drawn there
    """
    width = 0.8 / len(rows)
    styles = STYLES if len(rows) > 1 else STYLES[1:]
    for number, ((name, heights), (color, hatch)) in enumerate(
        zip(rows.items(), styles, strict=False)
    ):
        at = np.arange(len(places)) + (number - (len(rows) - 1) / 2) * width
        drawn = ax.bar(at, heights, width, label=name, color=color, hatch=hatch, edgecolor=INK)
        if digits:
            ax.bar_label(drawn, fmt=digits, fontsize=9)
    if whole:
        ax.axhline(1, color=INK, linestyle=":", linewidth=1)
        ax.set_ylim(0, 1.15 if len(rows) == 1 else 1.4)  # room for the legend
        label = f"{label}\n(1 = {whole})"
    ax.set_xticks(range(len(places)), places)
    ax.set_ylabel(label)
    ax.set_axisbelow(True)
    ax.set_title(title, size=11)
    if len(rows) > 1:
        ax.legend(fontsize=8, frameon=False)
    ax.spines[["top", "right"]].set_visible(False)


def one_chart(width: float, *args: object, **more: object) -> Figure:
    """A figure that is one chart of `bars`."""
    figure = Figure(figsize=(width, 2.9), layout="constrained")
    bars(figure.subplots(), *args, **more)  # type: ignore[arg-type]
    return figure
