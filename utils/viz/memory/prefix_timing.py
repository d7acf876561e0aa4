"""What prefix caching does to keys and values, to the time to the first token, and to secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.viz.style import BLUE, GREY, INK, ORANGE, RED


def plot_same_tokens_other_prefix(
    other_prefix: Sequence[float], same_prefix: Sequence[float]
) -> Figure:
    """How far the keys and values of two equal blocks are apart, layer by layer.

    Args:
        other_prefix, same_prefix: per layer, `|a - b| / |a|` of the two blocks' keys and values.
    """
    figure, axes = plt.subplots(figsize=(8, 3.6))
    layers = range(len(other_prefix))
    axes.bar(layers, other_prefix, color=ORANGE, label="after a different beginning")
    axes.plot(
        layers, same_prefix, color=BLUE, marker="o", markersize=4, label="after the same beginning"
    )
    axes.set_xlabel("layer (0 is the first)")
    axes.set_ylabel("relative difference")
    axes.set_title("The same four tokens after a different beginning: only the first layer agrees")
    axes.legend(loc="upper left", ncols=2)
    top = 1.25 * max(other_prefix)
    axes.set_ylim(-top / 20, top)  # the line at 0 must not hide in the axis
    return figure


def plot_ttft(
    shared: Sequence[int],
    miss: Sequence[float],
    hit: Sequence[float],
    predicted: Mapping[str, Sequence[float]],
) -> Figure:
    """Time to first token against the length of the shared prefix; the hits once more, enlarged.

    Args:
        shared: tokens of the prefix.
        miss, hit: measured seconds, without and with the prefix in the cache.
        predicted: what the prediction rests on -> seconds for a hit. One or two of them.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8))
    left.plot(shared, [1e3 * s for s in miss], color=ORANGE, marker="o", label="miss, measured")
    for axes in (left, right):
        measured = [1e3 * s for s in hit]
        axes.plot(shared, measured, color=BLUE, marker="s", label="hit, measured")
        axes.set_xlabel("tokens of the shared prefix")
        axes.set_xticks(shared)
    for (basis, seconds), style in zip(predicted.items(), (":", "--"), strict=False):
        milliseconds = [1e3 * s for s in seconds]
        right.plot(shared, milliseconds, color=INK, linestyle=style, linewidth=1.8, label=basis)
    left.set_ylim(bottom=0)
    right.set_ylim(0, 1.7e3 * max([*hit, *(s for values in predicted.values() for s in values)]))
    left.set_ylabel("time to first token (ms)")
    left.set_title("misses and hits", fontsize=11, weight="normal")
    right.set_title("the hits, enlarged", fontsize=11, weight="normal")
    for axes in (left, right):
        axes.legend(loc="upper left")
    figure.suptitle(
        f"With {shared[-1]:,} tokens cached, the first token comes "
        f"{miss[-1] / hit[-1]:.0f} times sooner",
        x=0.01,
        ha="left",
        weight="bold",
        fontsize=12,
    )
    return figure


def plot_probes(panels: Mapping[str, Mapping[str, Sequence[float]]], secret: str) -> Figure:
    """What an attacker measures: the time to first token of each guess, in several caches.

    Args:
        panels: name of a cache -> guess -> seconds, one for each round.
        secret: the right guess. Its bars are red.
    """
    figure, row = plt.subplots(1, len(panels), figsize=(9.5, 3.2), sharex=True, sharey=True)
    for axes, (name, guesses) in zip(row, panels.items(), strict=True):
        colors = [RED if guess == secret else GREY for guess in guesses]
        axes.barh(list(guesses), [1e3 * median(s) for s in guesses.values()], color=colors)
        for y, seconds in enumerate(guesses.values()):
            axes.plot([1e3 * s for s in seconds], [y] * len(seconds), "o", color=INK, markersize=3)
        axes.set_title(name, fontsize=11, weight="normal")
        axes.set_xlabel("time to first token (ms)")
        axes.grid(axis="y", visible=False)
    row[0].invert_yaxis()
    figure.suptitle(
        "The right guess stands out, unless the letter has a salt that the attacker doesn't know",
        x=0.01,
        ha="left",
        weight="bold",
        fontsize=12,
    )
    return figure
