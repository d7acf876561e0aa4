"""Which weights there are, and which levels serve them: the pictures of notebook 09."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import Tensor

from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE

_PALE = "#a9c6ea"


def plot_weight_tails(weight: Tensor, normal: Tensor, group_size: int, name: str) -> Figure:
    """The weights beside a normal distribution: of the whole matrix, and within their groups.

    Both axes count in standard deviations; of a group, around 0. The density is logarithmic, so
    that the tails can be seen. Each title counts what is beyond three standard deviations, among
    the weights and among normal numbers treated alike.

    Args:
        weight: of a linear layer, [out, in].
        normal: numbers of a normal distribution, in the same shape.
        group_size: neighbouring weights of an output; it divides `in`.
        name: of the layer.
    """
    w = weight.detach().float().cpu().numpy()
    compared = normal.detach().float().cpu().numpy()
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), sharey=True)
    for ax, size, where in zip(
        axes, (w.size, group_size), ("Matrix", f"Groups of {group_size}"), strict=True
    ):
        far = _draw_tails(ax, _scaled(w, size))
        usual = float(np.mean(np.abs(_scaled(compared, size)) > 3))
        ax.set_title(f"{where}: {far:.2%} beyond 3 σ (normal {usual:.2%})", fontsize=10)
        ax.set_xlabel("weight (standard deviations; beyond ±6 not shown)")
    axes[0].set_ylabel(f"density, {name}\n(logarithmic)")
    axes[0].set_yscale("log")  # shared
    axes[0].set_ylim(1e-5, 1)
    axes[0].legend(fontsize=9, loc="upper left")
    return figure


def _scaled(w: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """All numbers, divided by the standard deviation (around 0) of their `size` neighbours."""
    groups = w.reshape(-1, size)
    scaled: NDArray[np.float32] = groups / np.sqrt(np.mean(groups**2, axis=1, keepdims=True))
    return scaled.ravel()


def _draw_tails(ax: Axes, scaled: NDArray[np.float32]) -> float:
    """Histogram and normal curve up to 6; returns the share of the numbers beyond 3."""
    ax.hist(
        scaled, bins=np.linspace(-6, 6, 61).tolist(), density=True, color=_PALE, label="weights"
    )
    x = np.linspace(-6, 6, 300)
    curve = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    ax.plot(x, curve, color=INK, linestyle="--", linewidth=1.6, label="normal")
    for edge in (-3, 3):
        ax.axvline(edge, color=GREY, linestyle=":", linewidth=1.4)
    return float(np.mean(np.abs(scaled) > 3))


def plot_code_use(uses: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """How often each of 16 levels is used, and where the levels are.

    Args:
        uses: name of the grid -> (its levels, the share of weights that each one gets).
    """
    figure, axes = plt.subplots(1, len(uses), figsize=(9.5, 3.6), sharey=True)
    for ax, (name, (levels, shares)), color in zip(axes, uses.items(), (GREY, GREEN), strict=True):
        ax.vlines(levels, 0, [100 * s for s in shares], color=color, linewidth=7)
        ax.axhline(100 / 16, color=INK, linestyle="--", linewidth=1.4, label="1/16 each")
        ax.set_xlabel("level (1 = largest magnitude of the group)")
        ax.set_title(f"{name}: the busiest code gets {max(shares):.0%}", fontsize=11)
        ax.legend(loc="upper right", fontsize=9)
    axes[0].set_ylabel("weights with this code (%)")
    return figure


def plot_equal_bits(
    errors: Mapping[str, tuple[float, float, float]], equal_groups: Mapping[int, tuple[str, str]]
) -> Figure:
    """Bars: the error of formats of nearly the same size, without and with range search.

    The title says by how much another grid lowers the error where the groups are equal.

    Args:
        errors: format -> (bits per weight, relative squared error with the whole range, and with
            a searched one).
        equal_groups: group size -> two of the formats: RTN, and NF4 with the same groups.
    """
    figure, axes = plt.subplots(figsize=(8.6, 4.9))
    colors = [GREEN if "NF4" in name else GREY for name in errors]
    for which, (offset, hatch) in enumerate(((-0.2, ""), (0.2, "////")), start=1):
        heights = [100 * numbers[which] for numbers in errors.values()]
        places = [place + offset for place in range(len(errors))]
        bars = axes.barh(
            places, heights, 0.36, color=colors, edgecolor=INK, linewidth=0.6, hatch=hatch
        )
        axes.bar_label(bars, [f"{height:.2f}" for height in heights], padding=4, fontsize=10)
    labels = [f"{name}\n{bits:.2f} bits" for name, (bits, *_) in errors.items()]
    axes.set_yticks(range(len(errors)), labels, fontsize=9.5)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1.12 * max(100 * max(numbers[1:]) for numbers in errors.values()))
    axes.set_xlabel("relative squared error of the weights (%)")
    axes.legend(
        handles=[
            Patch(facecolor="white", edgecolor=INK, label="whole range"),
            Patch(facecolor="white", edgecolor=INK, hatch="////", label="range searched"),
        ],
        loc="lower right",
        fontsize=9,
    )
    gains = [
        f"{1 - errors[nf4][1] / errors[rtn][1]:.0%} in groups of {size}"
        for size, (rtn, nf4) in equal_groups.items()
    ]
    title = f"NF4 lowers RTN's error by {' and by '.join(gains)}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold")
    return figure


def plot_loud_channels(mean_abs: Tensor, name: str, num_shown: int = 12) -> Figure:
    """The mean magnitudes of the loudest input channels, as multiples of the median channel's.

    Args:
        mean_abs: of each input channel, [in].
        name: of the layer.
        num_shown: channels drawn, the loudest first.
    """
    order = mean_abs.argsort(descending=True)[:num_shown].tolist()
    loud = [float(mean_abs[channel] / mean_abs.median()) for channel in order]
    figure, axes = plt.subplots(figsize=(8, 3.4))
    bars = axes.bar(range(len(order)), loud, color=BLUE, width=0.7)
    axes.bar_label(bars, [f"{x:.0f}" if x >= 10 else f"{x:.1f}" for x in loud], fontsize=9)
    axes.axhline(1, color=ORANGE, linestyle="--", linewidth=1.6, label="the median channel")
    axes.set_xticks(range(len(order)), [str(channel) for channel in order])
    axes.set_xlabel(f"input channel of {name}, the {num_shown} loudest of {len(mean_abs)}")
    axes.set_ylabel("mean magnitude\n(median = 1)")
    axes.grid(axis="x", visible=False)
    axes.set_title(f"The loudest input channel is {loud[0]:.0f} times as loud as the median")
    axes.legend(fontsize=9.5)
    return figure
