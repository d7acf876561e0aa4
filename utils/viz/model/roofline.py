"""The roofline: what a machine can do at best, and where measured runs lie under it.

Williams, Waterman, Patterson: "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from utils.viz.style import BLUE, GREY, INK, ORANGE


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
    machine: Machine, intensity: Sequence[float], achieved: Sequence[float], labels: Sequence[str]
) -> Figure:
    """Measured points (FLOPs per byte, FLOP/s) under the machine's roof, both axes logarithmic."""
    figure, axes = plt.subplots(figsize=(7.5, 4.6))
    low, high = min([*intensity, machine.ridge]) / 2, max([*intensity, machine.ridge]) * 2
    x = np.geomspace(low, high, 200)
    axes.loglog(x, [machine.attainable(v) / 1e9 for v in x], color=INK, label="the machine's roof")
    axes.axvline(machine.ridge, color=GREY, linestyle=":", linewidth=1.5)
    colors = [ORANGE if value < machine.ridge else BLUE for value in intensity]
    axes.scatter(intensity, [v / 1e9 for v in achieved], c=colors, s=55, zorder=3)
    for x_value, y_value, label in zip(intensity, achieved, labels, strict=True):
        axes.annotate(
            label,
            (x_value, y_value / 1e9),
            textcoords="offset points",
            xytext=(0, -15),
            ha="center",
        )
    bottom = min(achieved) / 1e9 / 3
    axes.set_ylim(bottom=bottom)
    axes.text(machine.ridge * 0.92, bottom * 1.15, "memory-bound  ", ha="right", color=ORANGE)
    axes.text(machine.ridge * 1.08, bottom * 1.15, "  compute-bound", ha="left", color=BLUE)
    axes.set_title("Left of the ridge memory decides, right of it arithmetic")
    axes.set_xlabel("arithmetic intensity (FLOPs per byte of weights and KV read)")
    axes.set_ylabel("GFLOP/s")
    axes.legend(loc="upper left")
    _plain_ticks(axes)
    return figure


def plot_predicted_measured(
    num_tokens: Sequence[int], predicted: Sequence[float], measured: Sequence[float]
) -> Figure:
    """Seconds of one forward pass against the tokens in it: the bound, and the clock."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4))
    left.loglog(num_tokens, [1e3 * v for v in measured], "o-", color=BLUE, label="measured")
    left.loglog(num_tokens, [1e3 * v for v in predicted], "--", color=INK, label="predicted bound")
    left.set_title("The pass: how far above its bound?")
    left.set_ylabel("milliseconds for the pass")
    per_token = [1e3 * seconds / n for seconds, n in zip(measured, num_tokens, strict=True)]
    bound = [1e3 * seconds / n for seconds, n in zip(predicted, num_tokens, strict=True)]
    right.loglog(num_tokens, per_token, "o-", color=BLUE, label="measured")
    right.loglog(num_tokens, bound, "--", color=INK, label="predicted bound")
    right.set_title("The same, for each token in it")
    right.set_ylabel("milliseconds per token")
    for axes in (left, right):
        axes.set_xlabel("tokens in the pass")
        axes.legend()
        _plain_ticks(axes)
        axes.set_xticks(num_tokens, [str(n) for n in num_tokens], rotation=45)
    return figure


def _plain_ticks(axes: Axes) -> None:
    """Write 1, 2, 5, 10 on logarithmic axes, where matplotlib would write powers of ten."""
    axis: Axis
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
