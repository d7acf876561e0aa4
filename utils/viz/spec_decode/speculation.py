"""What guessing ahead costs and brings: verification, acceptance, tokens per pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.engine.spec_decode.drafter import expected_tokens
from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE


def plot_verify_cost(
    num_tokens: Sequence[int], seconds: Sequence[float], bound: Sequence[float], knee: float
) -> Figure:
    """Time of one pass over the tokens in it: measured, and the roofline's bound.

    Args:
        num_tokens: tokens in the pass, the first of them 1.
        seconds: measured time of each pass.
        bound: the roofline's lower bound on it, in seconds.
        knee: tokens from which the bound rises.
    """
    figure, axes = plt.subplots(figsize=(8, 4.2))
    ms = [1e3 * value for value in seconds]
    apart = [ms[0] * n for n in num_tokens]
    axes.plot(num_tokens, apart, color=GREY, linestyle="--", label="one pass for each token")
    axes.plot(num_tokens, ms, color=BLUE, marker="o", label="one pass for all tokens, measured")
    axes.plot(
        num_tokens,
        [1e3 * value for value in bound],
        color=INK,
        linestyle=":",
        label="its bound by the roofline",
    )
    highest = max(ms)
    if knee < num_tokens[-1]:
        axes.axvline(knee, color=ORANGE, linewidth=1.4)
        axes.text(knee, 1.24 * highest, f" knee: {knee:.0f} tokens", color=INK, fontsize=9.5)
    axes.set_ylim(0, 1.35 * highest)
    axes.set_xlabel("tokens in the pass")
    axes.set_ylabel("time (ms)")
    middle = next((i for i, n in enumerate(num_tokens) if n >= 5), len(num_tokens) - 1)
    axes.set_title(
        f"A pass over {num_tokens[middle]} tokens takes {ms[middle] / ms[0]:.2f} times as long as "
        f"a pass over one,\nand a pass over {num_tokens[-1]} tokens {ms[-1] / ms[0]:.1f} times"
    )
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
    acceptance_rate: float,
    counted: Mapping[int, float],
    shuffled: Mapping[int, Sequence[float]],
    most: int,
) -> Figure:
    """Tokens per pass over the number of guesses: formula, engine, and hits in random order.

    Args:
        acceptance_rate: that the formula's line is drawn for.
        counted: number of guesses -> tokens per pass that the engine counted.
        shuffled: number of guesses -> tokens per pass, of each random order.
        most: guesses at the right end.
    """
    figure, axes = plt.subplots(figsize=(8, 4.2))
    numbers = range(1, most + 1)
    line = [expected_tokens(acceptance_rate, k) for k in numbers]
    axes.plot(numbers, line, color=INK, linestyle=":", label=f"formula, a = {acceptance_rate:.2f}")
    middles = [float(np.mean(tries)) for tries in shuffled.values()]
    ends = np.array([np.percentile(tries, [2.5, 97.5]) for tries in shuffled.values()]).T
    axes.errorbar(
        list(shuffled),
        middles,
        yerr=np.abs(ends - middles),
        color=GREEN,
        ecolor=INK,
        marker="s",
        capsize=5,
        linestyle="none",
        label="hits shuffled (bars: 95 of 100 tries)",
    )
    axes.plot(
        list(counted),
        list(counted.values()),
        color=BLUE,
        marker="o",
        markersize=9,
        linestyle="none",
        label="hits as they come, counted by the engine",
    )
    axes.set_xticks(list(numbers))
    axes.set_xlabel("guesses per pass, k")
    axes.set_ylabel("tokens per pass")
    largest = max(counted)
    real, mixed = counted[largest], middles[list(shuffled).index(largest)]
    axes.set_title(
        f"With {largest} guesses, hits as they come give {real:.3f} tokens per pass,\n"
        f"and shuffled hits {mixed:.3f}"
    )
    axes.legend(loc="lower right")
    return figure
