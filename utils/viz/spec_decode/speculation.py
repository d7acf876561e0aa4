"""What guessing ahead costs and brings: verification, acceptance, speed-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from utils.engine.spec_decode.drafter import expected_tokens
from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE

_MARKERS = "osD^v"


def plot_verify_cost(
    num_tokens: Sequence[int], seconds: Mapping[str, Sequence[float]], predicted: Sequence[float]
) -> Figure:
    """Time of one pass over the tokens in it, each line relative to its own pass of one token.

    Args:
        num_tokens: tokens in the pass, the first of them 1.
        seconds: name of the line -> seconds of the pass.
        predicted: what the roofline says of float32, in units of the pass of one token.
    """
    figure, axes = plt.subplots(figsize=(8, 4.2))
    axes.plot(
        num_tokens,
        num_tokens,
        color=GREY,
        linestyle="--",
        linewidth=1.6,
        label="a pass for each token",
    )
    axes.plot(
        num_tokens, predicted, color=INK, linestyle=":", label="predicted by the roofline, float32"
    )
    for (name, values), color, marker in zip(
        seconds.items(), (ORANGE, BLUE, GREEN), _MARKERS, strict=False
    ):
        relative = [value / values[0] for value in values]
        axes.plot(num_tokens, relative, color=color, marker=marker, label=f"measured, {name}")
    ends = [values[-1] / values[0] for values in seconds.values()]
    highest = max(max(values) / values[0] for values in seconds.values())
    axes.set_ylim(0, max(2.5, 1.1 * highest))
    axes.set_xlabel("tokens in the pass")
    axes.set_ylabel("time (passes of one token)")
    price = " to ".join(dict.fromkeys(f"{end:.1f}" for end in (min(ends), max(ends))))
    axes.set_title(f"A pass of {num_tokens[-1]} tokens costs {price} passes of one")
    figure.legend(loc="outside lower center", ncols=3, fontsize=9.5)
    return figure


def plot_residual(tokens: Sequence[str], target: Sequence[float], draft: Sequence[float]) -> Figure:
    """The two ways in which a token can come out of the rejection sampler, and their sum.

    Args:
        tokens: their texts.
        target, draft: p and q, the probabilities of these tokens.
    """
    p, q = np.asarray(target), np.asarray(draft)
    covered = np.minimum(p, q)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), sharey=True)
    places = np.arange(len(tokens))
    left.bar(places - 0.2, q, width=0.4, color=ORANGE, edgecolor=INK, label="draft, q")
    left.bar(places + 0.2, p, width=0.4, color=BLUE, edgecolor=INK, label="model, p")
    left.set_title("What is proposed, and what is wanted", fontsize=11, weight="normal")
    right.bar(
        places, covered, width=0.6, color="#a9c6ea", edgecolor=INK, label="accepted: min(p, q)"
    )
    right.bar(
        places,
        p - covered,
        width=0.6,
        bottom=covered,
        color="white",
        edgecolor=INK,
        hatch="////",
        label="recovered: max(p - q, 0)",
    )
    right.plot(
        places,
        p,
        color=BLUE,
        linestyle="none",
        marker="_",
        markersize=26,
        markeredgewidth=3,
        label="p",
    )
    right.set_title("What comes out", fontsize=11, weight="normal")
    for axes in (left, right):
        axes.set_xticks(places, tokens)
        axes.set_xlabel("token")
        axes.grid(axis="x", visible=False)
        axes.legend()
    left.set_ylabel("probability")
    figure.suptitle(
        "Acceptance gives what both have in common, recovery the rest of p",
        x=0.01,
        ha="left",
        weight="bold",
        fontsize=12,
    )
    return figure


def plot_expected_tokens(
    rates: Mapping[str, float], measured: Mapping[str, Mapping[int, float]], most: int
) -> Figure:
    """Tokens per verification over the number of guesses: the formula's lines, counted points.

    Args:
        rates: name -> acceptance rate that the line is drawn for.
        measured: name -> number of guesses -> tokens per verification.
        most: guesses at the right end.
    """
    figure, axes = plt.subplots(figsize=(8, 4.2))
    numbers = range(most + 1)
    axes.plot(
        numbers,
        [k + 1 for k in numbers],
        color=GREY,
        linestyle="--",
        linewidth=1.4,
        label="every guess is right",
    )
    for (name, rate), color, marker in zip(
        rates.items(), (BLUE, ORANGE, GREEN, INK), _MARKERS, strict=False
    ):
        line = [expected_tokens(rate, k) for k in numbers]
        axes.plot(numbers, line, color=color, linewidth=1.6, label=f"{name}: a = {rate:.2f}")
        points = measured.get(name, {})
        axes.plot(
            list(points),
            list(points.values()),
            color=color,
            marker=marker,
            markersize=9,
            markeredgecolor=INK,
            linestyle="none",
        )
    axes.set_ylim(0.8, None)
    axes.set_xlabel("guesses per verification, k")
    axes.set_ylabel("tokens per verification")
    axes.set_title("More guesses bring less and less (lines: formula, points: counted)")
    axes.legend(loc="upper left")
    return figure


def plot_speedups(
    predicted: Mapping[str, Mapping[str, float]],
    measured: Mapping[str, Mapping[str, float]],
    noise: float,
) -> Figure:
    """Speed against the engine without guesses: a bar for the clock, a mark for the prediction.

    Args:
        predicted, measured: name of the panel -> name of the row -> how many times as fast. All
            have the same names.
        noise: what differs from 1 by no more is neither a gain nor a loss.
    """
    rows = list(next(iter(measured.values())))
    figure, panels = plt.subplots(
        1,
        len(measured),
        figsize=(9.5, 0.38 * len(rows) + 2.2),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    places = np.arange(len(rows))
    for axes, (panel, speeds) in zip(panels[0], measured.items(), strict=True):
        values = [speeds[row] for row in rows]
        colors = [
            BLUE if value > 1 + noise else ORANGE if value < 1 - noise else GREY for value in values
        ]
        axes.barh(places, values, height=0.55, color=colors)
        marks = axes.scatter(
            [predicted[panel][row] for row in rows],
            places,
            color="white",
            edgecolor=INK,
            marker="D",
            zorder=3,
        )
        axes.axvline(1, color=INK, linewidth=1.2, linestyle="--")
        axes.set_yticks(places, rows)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("times as fast as without guesses")
        axes.set_title(panel, fontsize=11, weight="normal")
    panels[0][0].invert_yaxis()
    panel, best = max(
        ((panel, row) for panel in measured for row in rows), key=lambda at: measured[at[0]][at[1]]
    )
    figure.suptitle(
        f"The largest gain: {best}, in {panel}", x=0.01, ha="left", weight="bold", fontsize=12
    )
    kinds = {"measured, a gain": BLUE, "neither": GREY, "a loss": ORANGE}
    bars = [Patch(color=color) for color in kinds.values()]
    figure.legend([*bars, marks], [*kinds, "predicted"], loc="outside lower center", ncols=4)
    return figure


def plot_batches(
    batch_sizes: Sequence[int], predicted: Sequence[float], measured: Sequence[float]
) -> Figure:
    """Speed-up over the number of requests that run at a time.

    Args:
        batch_sizes: requests in a step.
        predicted, measured: times as fast as without guesses.
    """
    figure, axes = plt.subplots(figsize=(8, 3.8))
    axes.axhline(1, color=GREY, linewidth=1.4, linestyle="--")
    axes.plot(
        batch_sizes,
        predicted,
        color=INK,
        linestyle=":",
        marker="D",
        markerfacecolor="white",
        label="predicted",
    )
    axes.plot(batch_sizes, measured, color=BLUE, marker="o", label="measured")
    axes.set_xscale("log", base=2)
    axes.set_xticks(batch_sizes, [str(size) for size in batch_sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("requests that run at a time")
    axes.set_ylabel("times as fast as without guesses")
    falls = measured[-1] < measured[0]
    axes.set_title("Company eats the gain" if falls else "The gain does not fall on this machine")
    axes.legend()
    return figure
