"""What prefix caching does to keys and values, to the time to the first token, and to secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.viz.style import BLUE, GREY, INK, ORANGE, RED


def plot_same_tokens_other_prefix(
    other_prefix: Sequence[float], same_prefix: Sequence[float]
) -> Figure:
    """How far the keys of two equal blocks are apart, layer by layer.

    Args:
        other_prefix, same_prefix: per layer, `|a - b| / |a|` of the two blocks' keys.
    """
    figure, axes = plt.subplots(figsize=(8, 3.6))
    layers = range(len(other_prefix))
    axes.bar(layers, other_prefix, color=ORANGE, label="another prefix")
    axes.plot(layers, same_prefix, color=BLUE, marker="o", markersize=4, label="the same prefix")
    axes.set_xlabel("layer")
    axes.set_ylabel("relative difference of the keys")
    axes.set_title(
        "Equal tokens after another prefix have other keys, in every layer but the first"
    )
    axes.legend(loc="upper left", ncols=2)
    axes.set_ylim(0, 1.25 * max(other_prefix))
    return figure


def plot_ttft(
    shared: Sequence[int],
    miss: Sequence[float],
    hit: Sequence[float],
    predicted: Mapping[str, Sequence[float]],
) -> Figure:
    """Time to first token against the length of the shared prefix.

    Args:
        shared: tokens of the prefix.
        miss, hit: measured seconds, without and with the prefix in the cache.
        predicted: what the prediction rests on -> seconds for a hit. One or two of them.
    """
    figure, axes = plt.subplots(figsize=(8, 4))
    axes.plot(shared, [1e3 * s for s in miss], color=ORANGE, marker="o", label="miss, measured")
    axes.plot(shared, [1e3 * s for s in hit], color=BLUE, marker="s", label="hit, measured")
    for (basis, seconds), style in zip(predicted.items(), (":", "--"), strict=False):
        axes.plot(
            shared,
            [1e3 * s for s in seconds],
            color=INK,
            linestyle=style,
            linewidth=1.8,
            label=f"hit, predicted from {basis}",
        )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens of the shared prefix")
    axes.set_ylabel("time to first token (ms)")
    axes.set_title("A miss pays for the whole prompt, a hit for what is left of it")
    axes.legend(loc="upper left")
    return figure


def plot_probes(
    shared_cache: Mapping[str, float], salted_cache: Mapping[str, float], secret: str
) -> Figure:
    """What an attacker measures: the time to first token of each guess, in two caches.

    Args:
        shared_cache, salted_cache: guess -> seconds, without and with salts.
        secret: the right guess. Its bars are dark.
    """
    panels = {"one cache for all": shared_cache, "a salt for each tenant": salted_cache}
    figure, both = plt.subplots(1, 2, figsize=(8.5, 3.2), sharex=True, sharey=True)
    for axes, (name, seconds) in zip(both, panels.items(), strict=True):
        colors = [RED if guess == secret else GREY for guess in seconds]
        axes.barh(list(seconds), [1e3 * s for s in seconds.values()], color=colors)
        axes.set_title(name, fontsize=11, weight="normal")
        axes.set_xlabel("time to first token (ms)")
        axes.grid(axis="y", visible=False)
    both[0].invert_yaxis()
    figure.suptitle(
        "The right guess answers first, unless tenants are kept apart",
        x=0.01,
        ha="left",
        weight="bold",
        fontsize=12,
    )
    return figure
