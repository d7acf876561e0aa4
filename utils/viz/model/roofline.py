"""The roofline: what a machine can do at best, and where measured runs lie under it.

Williams, Waterman, Patterson: "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE


@dataclass(frozen=True)
class Machine:
    """Measured limits: `flops` in FLOP/s of a large matrix product, `bandwidth` in bytes/s read
    from memory."""

    flops: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which the two limits meet: below it, memory decides the speed."""
        return self.flops / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """FLOP/s that this machine can reach at `intensity` FLOPs per byte."""
        return min(self.flops, self.bandwidth * intensity)

    def seconds(self, flops: float, num_bytes: float) -> float:
        """Lower bound on the time of work with so many FLOPs and so many bytes."""
        return max(flops / self.flops, num_bytes / self.bandwidth)


def plot_roofline(
    machines: Mapping[str, Machine],
    intensity: Sequence[float],
    achieved: Mapping[str, Sequence[float]],
    labels: Sequence[str],
) -> Figure:
    """Measured points under the roof of their machine, and other machines' roofs above them.

    Args:
        machines: by name. The first one is the machine that the points were measured on.
        intensity: FLOPs per byte of each pass.
        achieved: FLOP/s of each pass, for each way to compute it. The title speaks of the first.
        labels: a word for each pass; an empty one leaves its points without a label.
    """
    figure, axes = plt.subplots(figsize=(8, 4.8))
    ridges = [machine.ridge for machine in machines.values()]
    x = np.geomspace(min(intensity) / 2, max([*intensity, *ridges]) * 3, 200)
    for (name, machine), color in zip(machines.items(), (INK, GREY, GREEN), strict=False):
        roof = [machine.attainable(v) / 1e9 for v in x]
        axes.loglog(x, roof, color=color, linewidth=2)
        axes.text(x[-1], roof[-1] * 1.15, name, ha="right", va="bottom")
        axes.plot(machine.ridge, machine.flops / 1e9, "D", color=color, markersize=6)
    for (name, speeds), color, marker in zip(achieved.items(), (ORANGE, BLUE), "so", strict=False):
        points = [v / 1e9 for v in speeds]
        # Hollow circles: where both ways are equally fast, the square behind one is still seen.
        face = color if marker == "s" else "none"
        axes.scatter(
            intensity,
            points,
            s=40,
            marker=marker,
            facecolors=face,
            edgecolors=color,
            linewidths=1.8,
            zorder=3,
            label=name,
        )
    lowest = [min(speeds) / 1e9 for speeds in zip(*achieved.values(), strict=True)]
    for x_value, y_value, label in zip(intensity, lowest, labels, strict=True):
        axes.annotate(
            label, (x_value, y_value), textcoords="offset points", xytext=(7, -11), fontsize=9
        )
    here, (best, speeds) = next(iter(machines.values())), next(iter(achieved.items()))
    shares = [y / here.attainable(v) for v, y in zip(intensity, speeds, strict=True)]
    axes.set_title(
        f"Our passes reach {min(shares):.0%} to {max(shares):.0%} of the roof with {best}.\n"
        f"The ridge is at {here.ridge:.0f} FLOPs per byte here, and at up to "
        f"{max(ridges):.0f} on a GPU"
    )
    axes.set_xlabel("arithmetic intensity (FLOPs per byte that must travel), logarithmic")
    axes.set_ylabel("GFLOP/s, logarithmic")
    axes.set_ylim(bottom=min(lowest) / 3, top=max(m.flops for m in machines.values()) / 2e8)
    axes.legend(loc="upper left")
    _plain_ticks(axes)
    return figure


def plot_predicted_measured(
    num_tokens: Sequence[int],
    predicted: Sequence[float],
    measured: Sequence[float],
    packed: Sequence[float],
) -> Figure:
    """Seconds of one forward pass against the tokens in it: the bound, and the clock.

    Args:
        num_tokens: in each pass, ascending.
        predicted: the bound of each pass, in seconds.
        measured: seconds with PyTorch's kernels.
        packed: seconds with the engine's own kernels, and the weights in their order.
    """
    figure, axes = plt.subplots(figsize=(7.5, 4.4))
    for name, seconds, style, color in (
        ("PyTorch's kernels", measured, "o-", BLUE),
        ("our kernels", packed, "s-", ORANGE),
        ("predicted bound", predicted, "--", INK),
    ):
        axes.loglog(num_tokens, [1e3 * v for v in seconds], style, color=color, label=name)
    few = max(n for n in num_tokens if n <= 8)
    growth = [packed[num_tokens.index(n)] / packed[0] for n in (few, num_tokens[-1])]
    axes.set_title(
        f"With our kernels, {few} tokens take {growth[0]:.1f} times as long as one,\n"
        f"and {num_tokens[-1]} take {growth[1]:.0f} times"
    )
    axes.set_xlabel("tokens in the pass, logarithmic")
    axes.set_ylabel("milliseconds for the pass, logarithmic")
    axes.legend()
    _plain_ticks(axes)
    axes.set_xticks(num_tokens, [str(n) for n in num_tokens])
    return figure


def _plain_ticks(axes: Axes) -> None:
    """Write 1, 2, 5, 10 on logarithmic axes, where matplotlib would write powers of ten."""
    axis: Axis
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1e5 else (1,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())
