"""What a step takes when each of its operations has a fixed cost: move the sliders."""

from __future__ import annotations

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.viz.explore import Explorer
from utils.viz.style import BLUE, INK, ORANGE


def plot_fixed_costs(megabytes: int, bandwidth: int, operations: int, each_us: int) -> Figure:
    """A bar of two parts: reading the weights, and the fixed costs of all operations.

    Args:
        megabytes: of weights that a step reads.
        bandwidth: of memory, in GB/s.
        operations: in a step.
        each_us: microseconds that each costs, whatever it does.
    """
    reading, fixed = megabytes / bandwidth, operations * each_us / 1e3  # milliseconds
    total = reading + fixed
    figure, axes = plt.subplots(figsize=(8.5, 1.9))
    axes.barh(0, reading, color=BLUE, label=f"reading the weights: {reading:.1f} ms")
    axes.barh(0, fixed, left=reading, color=ORANGE, label=f"fixed costs: {fixed:.1f} ms")
    axes.set_yticks([])
    axes.set_xlim(0, 1.02 * total)
    axes.set_xlabel("milliseconds in a step")
    axes.set_title(f"Fixed costs take {fixed / total:.0%} of this step", color=INK)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9.5)
    return figure


def fixed_costs_explorer() -> Explorer:
    """It begins with this course's model on a processor; a GPU is a slider away."""

    def choose(description: str, options: list[int], value: int) -> ipywidgets.SelectionSlider:
        return ipywidgets.SelectionSlider(options=options, value=value, description=description)

    return Explorer(
        plot_fixed_costs,
        megabytes=choose("MB", [270, 540, 3400, 16000], 540),
        bandwidth=choose("GB/s", [10, 20, 50, 1000, 4000], 20),
        operations=choose("operations", [1, 10, 30, 300, 1000, 6000], 6000),
        each_us=choose("µs each", [1, 2, 5, 10], 1),
    )
