"""How cost grows with contexts and requests: `benchmarks/results/growth*.json`, as a picture."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from utils.viz.style import BLUE, GREY, ORANGE
from utils.vllm.recipe import in_words

GROWTH = "growth_avx512.json"  # the committed report: of a processor with AVX-512 and no AMX
# size -> engine -> seconds of each round
Curve = Mapping[str, Mapping[str, Sequence[float]]]
LOOKS = {"ours": (BLUE, "o"), "vLLM": (ORANGE, "s")}
PANELS = {
    "requests": ("requests that decode", "ms per step"),
    "context": ("tokens of context, of each of 4 requests", "ms per step"),
    "prompt": ("tokens of one prompt", "ms to its first token"),
}


def plot_growth(report: Mapping[str, Any]) -> Figure:
    """A row per number format, a panel per curve; both axes are logarithmic.

    A point is the median of the rounds, its line goes from the fastest to the slowest.

    Args:
        report: of `benchmarks/growth.py`. Its results are dtype -> "requests", "context" or
            "prompt" -> `Curve`.
    """
    results: Mapping[str, Mapping[str, Curve]] = report["results"]
    size = (11.5, 0.6 + 3.4 * len(results))
    figure, rows = plt.subplots(len(results), len(PANELS), figsize=size, squeeze=False)
    for row, (dtype, curves) in zip(rows, results.items(), strict=True):
        for axes, (name, (across, up)) in zip(row, PANELS.items(), strict=True):
            axes.set_title(f"{dtype}: {_finding(curves.get(name))}", loc="left", fontsize=9.5)
            if not (curve := curves.get(name)):
                axes.set_axis_off()  # an axis without data cannot be logarithmic
                continue
            sizes = [int(size) for size in curve]
            for engine, (color, marker) in LOOKS.items():
                rounds = [[1e3 * s for s in place[engine]] for place in curve.values()]
                axes.vlines(sizes, [*map(min, rounds)], [*map(max, rounds)], color=color)
                axes.plot(
                    sizes,
                    [*map(statistics.median, rounds)],
                    color=color,
                    marker=marker,
                    label=engine,
                )
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_xlabel(across)
            axes.set_ylabel(up)
        row[0].legend()
    figure.supxlabel(in_words(report), x=0.01, ha="left", fontsize=8, color=GREY)
    return figure


def _finding(curve: Curve | None) -> str:
    """How many times as fast ours is, at the size where it is least and where it is most."""
    if not curve:
        return "not measured"
    times = [times_as_fast(place) for place in curve.values()]
    return f"{min(times):.2f} to {max(times):.2f} times as fast as vLLM"


def times_as_fast(place: Mapping[str, Sequence[float]]) -> float:
    """How many times as fast ours is as vLLM: the median of the rounds' ratios."""
    return statistics.median(t / o for o, t in zip(place["ours"], place["vLLM"], strict=True))


def steepest(curve: Curve, engine: str) -> float:
    """The most that cost grows from a size to the next, as a multiple of the growth in size.

    1: where it is steepest, twice the size costs twice as much. A cliff is far above 1; a prompt's
    attention makes it 2 at last, since each token looks at all before it.
    """
    found = sorted((int(size), statistics.median(place[engine])) for size, place in curve.items())
    return max(
        (after / before) / (large / small)
        for (small, before), (large, after) in itertools.pairwise(found)
    )
