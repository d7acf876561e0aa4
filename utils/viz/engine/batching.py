"""What batching costs and gains: idle places, batch sizes, waiting times, stalls, lost memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from utils.engine.outputs import RequestMetrics
from utils.viz.style import BLUE, COLORS, GREY, INK, ORANGE, RED

PROMPT, ANSWER, WASTE = BLUE, "#a9c6ea", "#ececec"


def plot_padded_batch(prompt_lens: Sequence[int], output_lens: Sequence[int]) -> Figure:
    """A static batch as the rectangle that it is: prompts padded on the left, answers on the right.

    Args:
        prompt_lens: tokens of each prompt.
        output_lens: tokens of each answer. The batch runs until the longest is finished.
    """
    longest, steps = max(prompt_lens), max(output_lens)
    figure, axes = plt.subplots(figsize=(9.5, 0.33 * len(prompt_lens) + 1.3))
    for row, (prompt, output) in enumerate(zip(prompt_lens, output_lens, strict=True)):
        for left, width, color, hatch in (
            (0, longest - prompt, WASTE, "////"),
            (longest - prompt, prompt, PROMPT, ""),
            (longest, output, ANSWER, ""),
            (longest + output, steps - output, WASTE, "////"),
        ):
            box = Rectangle(
                (left, row - 0.42),
                width,
                0.84,
                facecolor=color,
                hatch=hatch,
                edgecolor="#c8c8c8" if hatch else color,
                linewidth=0,
            )
            axes.add_patch(box)
    useful = sum(prompt_lens) + sum(output_lens)
    waste = 1 - useful / (len(prompt_lens) * (longest + steps))
    axes.axvline(longest, color=INK, linewidth=1.2)
    axes.set_xlim(0, longest + steps)
    axes.set_ylim(len(prompt_lens) - 0.4, -0.6)
    axes.set_yticks(range(len(prompt_lens)))
    axes.set_ylabel("row of the batch")
    axes.set_xlabel("tokens (the black line: prompts end, decode begins)")
    axes.grid(visible=False)
    axes.set_title(f"{waste:.0%} of the rectangle is not anybody's token")
    labels = (
        (PROMPT, "", "prompt"),
        (ANSWER, "", "answer"),
        (WASTE, "////", "computed for nobody"),
    )
    patches = [Patch(facecolor=c, hatch=h, edgecolor="#b8b8b8", label=t) for c, h, t in labels]
    figure.legend(handles=patches, loc="outside lower center", ncols=3, fontsize=9.5)
    return figure


def plot_batch_sweep(
    batch_sizes: Sequence[int],
    predicted: Sequence[float],
    measured: Sequence[float],
    knees: Mapping[str, float],
) -> Figure:
    """Throughput and time per output token against the number of requests in a decode step.

    Args:
        batch_sizes: requests, one token each.
        predicted, measured: seconds of a step.
        knees: name -> batch size from which a request costs more than its share of what all share.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4))
    for axes, scale in ((left, lambda b, s: b / s), (right, lambda b, s: 1e3 * s)):
        for seconds, style, color, label in (
            (predicted, "--", INK, "predicted bound"),
            (measured, "o-", BLUE, "measured"),
        ):
            values = [scale(b, s) for b, s in zip(batch_sizes, seconds, strict=True)]
            axes.plot(batch_sizes, values, style, color=color, label=label)
        for knee, style in zip(knees.values(), (":", "-"), strict=False):
            axes.axvline(knee, color=GREY, linestyle=style, linewidth=1.5)
        axes.set_xscale("log", base=2)
        axes.set_xticks(batch_sizes, [str(b) for b in batch_sizes])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("requests in the batch")
        axes.legend(loc="upper left")
    for row, (name, knee) in enumerate(knees.items()):
        left.text(
            knee,
            0.06 * row,
            f" {name}",
            color=INK,
            va="bottom",
            transform=left.get_xaxis_transform(),
        )
    left.set_title("More requests, more tokens ...")
    left.set_ylabel("new tokens per second")
    right.set_title("... but each waits longer for its next")
    right.set_ylabel("time per output token (ms)")
    return figure


def plot_waits(runs: Mapping[str, Mapping[str, RequestMetrics]], title: str) -> Figure:
    """Time to first token and time per output token of every request, under several policies.

    Args:
        runs: name of the policy -> metrics by request id.
        title: the finding.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8))
    markers = ("s", "o", "^")
    for (name, metrics), color, marker in zip(
        runs.items(), (ORANGE, BLUE, GREY), markers, strict=False
    ):
        ids = list(metrics)
        look: dict[str, Any] = dict(marker=marker, linestyle="", color=color, label=name, zorder=3)
        left.plot(ids, [m.ttft for m in metrics.values()], **look)
        tpots = [1e3 * m.tpot if m.tpot is not None else None for m in metrics.values()]
        right.plot(ids, tpots, **look)
    for axes in (left, right):  # join what belongs together: one request, under each policy
        columns = zip(*(line.get_ydata() for line in axes.lines), strict=True)
        for column, values in enumerate(columns):
            if all(value is not None for value in values):
                axes.vlines(column, min(values), max(values), color=GREY, linewidth=1.2)
    left.set_ylabel("time to first token (s)")
    right.set_ylabel("time per output token (ms)")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.set_xlabel("request, in order of arrival")
    left.legend(loc="upper left")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold")
    return figure


def plot_stalls(
    gaps: Mapping[str, tuple[Sequence[float], Sequence[float]]], ttft: Mapping[str, float]
) -> Figure:
    """What a long prompt does to somebody who is in the middle of an answer.

    Args:
        gaps: name of the run -> (when each token came, seconds since the token before it).
        ttft: name of the run -> time to first token of the newcomer with the long prompt.
    """
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.5, 4), gridspec_kw={"width_ratios": (2.4, 1)}
    )
    markers = ("s", "o", "^", "D")
    for (name, (times, seconds)), color, marker in zip(
        gaps.items(), (RED, *COLORS), markers, strict=False
    ):
        milliseconds = [1e3 * s for s in seconds]
        left.plot(
            times, milliseconds, marker=marker, markersize=4, linewidth=1.4, color=color, label=name
        )
    left.set_ylim(bottom=0)
    left.set_xlabel("time since the long prompt came (s)")
    left.set_ylabel("time since the last token (ms)")
    left.set_title("A smaller budget makes the stall shorter ...")
    left.legend(loc="upper right", title="budget (tokens per step)")
    right.bar(list(ttft), list(ttft.values()), color=[RED, *COLORS][: len(ttft)], width=0.6)
    right.set_title("... and the newcomer wait")
    right.set_xlabel("budget (tokens per step)")
    right.set_ylabel("its time to first token (s)")
    right.grid(axis="x", visible=False)
    return figure


def plot_recovery(
    num_tokens: Sequence[int],
    recompute: tuple[Sequence[float], Sequence[float]],
    swap: tuple[Sequence[float], Sequence[float]],
    bytes_moved: Sequence[float],
    links: Mapping[str, float],
) -> Figure:
    """What a preempted request costs when it comes back, and which link makes swapping pay.

    Args:
        num_tokens: tokens whose keys and values were lost or moved.
        recompute, swap: (predicted, measured) seconds.
        bytes_moved: by swapping, out and in together.
        links: name -> bytes/s, drawn for comparison.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4))
    for (predicted, measured), color, marker, name in (
        (recompute, ORANGE, "s", "recompute"),
        (swap, BLUE, "o", "swap"),
    ):
        for seconds, style, label in (
            (measured, marker + "-", f"{name}, measured"),
            (predicted, "--", f"{name}, predicted"),
        ):
            values = [1e3 * s for s in seconds]
            left.plot(num_tokens, values, style, color=color, linewidth=1.8, label=label)
    left.set_ylabel("cost of coming back (ms)")
    wins = sum(s < r for r, s in zip(recompute[1], swap[1], strict=True))
    left.set_title(f"Swapping is cheaper at {wins} of {len(num_tokens)} lengths")

    # Both cost the same over a link that moves the bytes in the time that computing takes.
    for seconds, style, label in (
        (recompute[1], "s-", "both cost the same, measured"),
        (recompute[0], "--", "both cost the same, predicted"),
    ):
        even = [b / s / 1e6 for b, s in zip(bytes_moved, seconds, strict=True)]
        right.plot(num_tokens, even, style, color=INK, linewidth=1.8, label=label)
    reached = [b / s / 1e6 for b, s in zip(bytes_moved, swap[1], strict=True)]
    right.plot(num_tokens, reached, "o-", color=BLUE, linewidth=1.8, label="our memory, measured")
    for name, bandwidth in links.items():
        right.axhline(bandwidth / 1e6, color=GREY, linestyle=":", linewidth=1.5)
        right.text(num_tokens[-1], bandwidth / 1e6 * 1.08, name, ha="right", fontsize=9)
    right.set_ylabel("bandwidth of the link (MB/s)")
    right.set_title("Above the black lines swap, below recompute")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(num_tokens, [str(n) for n in num_tokens])
        axes.set_xlabel("tokens of the preempted request")
    figure.legend(loc="outside lower center", ncols=4, fontsize=9)
    return figure
