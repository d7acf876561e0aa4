"""The widget of notebook 15: model, GPUs, links, layout; memory, bytes, time, and what breaks."""

from __future__ import annotations

import textwrap

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from utils.distributed.hardware import GIB, GPUS, LINKS, Cluster, cluster
from utils.distributed.layouts import Layout, Rank, fullest
from utils.distributed.problems import Problem, find_problems
from utils.distributed.shapes import SHAPES, Shape
from utils.distributed.step_time import StepTime, decode_step, prefill
from utils.distributed.traffic import step_traffic
from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE, RED

_GROUPS = {
    "tp": ("TP: adding up", ORANGE),
    "pp": ("PP: passing on", GREEN),
    "ep": ("EP: experts", GREY),
}
_WIDTH = 104  # characters of a line under the figure


def plot_layout(
    model: str,
    gpu: str,
    inside: str,
    between: str,
    tp: int,
    pp: int,
    dp: int,
    ep: bool,
    requests: int,
    context: int,
    gpus_per_server: int = 8,
) -> Figure:
    """What a layout costs: memory of the fullest card, a decode step's time, and what breaks.

    Args:
        model: a name in `SHAPES`.
        gpu: a name in `GPUS`.
        inside, between: names in `LINKS`, inside a server and between servers.
        tp, pp, dp: sizes of the layout.
        ep: whole experts on ranks, instead of slices of every expert.
        requests: of one replica, at the same time.
        context: tokens of each request.
        gpus_per_server: how many.
    """
    shape, layout = SHAPES[model], Layout(tp, pp, dp, ep)
    where = cluster(gpu, inside, between, gpus_per_server)
    problems = find_problems(shape, layout, where, requests, context)
    refused = any(problem.kind == "refused" for problem in problems)
    lines = _lines(problems)
    if not refused:
        facts = _facts(shape, layout, where, requests, context)
        lines = [(fact, INK) for fact in facts] + lines
    height = 0.21 * len(lines) + 0.3
    if refused:  # nothing to draw but the words
        figure, words = plt.subplots(figsize=(9.2, 0.5 + height))
    else:
        figure, (memory, time, words) = plt.subplots(
            3, 1, figsize=(9.2, 3.9 + height), height_ratios=(1, 1, height)
        )
        _draw_memory(memory, shape, layout, where, requests * context)
        _draw_time(time, decode_step(shape, layout, where, requests, context))
    words.set_axis_off()
    for row, (text, color) in enumerate(lines):
        words.text(
            0,
            1 - (row + 0.9) / (len(lines) + 0.5),
            text,
            color=color,
            fontsize=10,
            transform=words.transAxes,
        )
    name = f"{model} on {layout.world_size} {gpu}{'s' if layout.world_size > 1 else ''}, {layout}"
    figure.suptitle(f"{name}: {_verdict(problems)}", x=0.01, ha="left", weight="bold", fontsize=12)
    return figure


def _verdict(problems: list[Problem]) -> str:
    kinds = [problem.kind for problem in problems]
    if "refused" in kinds:
        return "refused"
    for kind, words in (
        ("does not fit", "does not fit"),
        ("slow", "the link is too slow"),
        ("waste", "runs, with waste"),
    ):
        if kind in kinds:
            return words
    return "runs"


def _lines(problems: list[Problem]) -> list[tuple[str, str]]:
    """Each problem's sentence, wrapped, with its colour."""
    colors = {"refused": RED, "does not fit": RED, "slow": RED, "waste": INK}
    lines = []
    for problem in problems:
        text = textwrap.wrap(f"{problem.kind}: {problem.sentence}", _WIDTH)
        lines += [(line, colors[problem.kind]) for line in text]
    return lines or [("Nothing breaks.", INK)]


def _facts(
    shape: Shape, layout: Layout, where: Cluster, requests: int, context: int
) -> tuple[str, str]:
    """What no bar shows, in two lines."""
    room = fullest(shape, layout, where.gpu).tokens
    step = decode_step(shape, layout, where, requests, context)
    sender = Rank(shape, layout, layout.tensor_parallel_size - 1, 0, 0)
    sent = sum(part.sent_bytes for part in step_traffic(sender, 1, 1))
    first = prefill(shape, layout, where, context, layout.pipeline_parallel_size)
    what = f"{requests} request{'s' if requests > 1 else ''} of {context:,} tokens"
    return (
        f"Each replica: {what}; its KV cache has room for {room:,} tokens.",
        f"In all: {step.tokens_per_second:,.0f} tokens/s. A rank sends {sent / 1e3:,.1f} kB for "
        f"a token. A prefill of {context:,} tokens takes {1e3 * first.seconds:,.0f} ms.",
    )


def _draw_memory(axes: Axes, shape: Shape, layout: Layout, where: Cluster, tokens: int) -> None:
    memory = fullest(shape, layout, where.gpu)
    kv = tokens * memory.kv_per_token / GIB
    weights, usable = memory.weights / GIB, memory.usable / GIB
    axes.barh([0], [weights], color=BLUE, label=f"weights {weights:,.1f} GiB")
    axes.barh([0], [kv], left=[weights], color=ORANGE, label=f"KV cache {kv:,.1f} GiB")
    axes.axvline(usable, color=RED if weights + kv > usable else INK, linewidth=3)
    axes.set_xlim(0, 1.05 * max(usable, weights + kv))
    axes.set_ylim(-0.6, 1.15)
    axes.set_yticks([])
    axes.grid(axis="y", visible=False)
    axes.legend(ncols=2, loc="upper left", fontsize=9.5)
    axes.set_xlabel("GiB on the fullest card (line: what may be used)")


def _draw_time(axes: Axes, step: StepTime) -> None:
    left = 1e3 * step.work
    axes.barh([0], [left], color=BLUE, label=f"the GPUs' work {left:,.2f} ms")
    for group, seconds in step.communication.items():
        words, color = _GROUPS[group]
        axes.barh(
            [0], [1e3 * seconds], left=[left], color=color, label=f"{words} {1e3 * seconds:,.2f} ms"
        )
        left += 1e3 * seconds
    axes.set_xlim(0, 1.05 * left)
    axes.set_ylim(-0.6, 1.15)
    axes.set_yticks([])
    axes.grid(axis="y", visible=False)
    axes.legend(ncols=4, loc="upper left", fontsize=9, columnspacing=1.2)
    axes.set_xlabel("ms of a decode step, at best")


def layout_explorer() -> Explorer:
    """`plot_layout` with a control for each of its choices."""
    inside = [name for name, link in LINKS.items() if not link.between_servers]
    between = [name for name, link in LINKS.items() if link.between_servers]

    def sizes(name: str, value: int) -> ipywidgets.SelectionSlider:
        options = [1, 2, 3, 4, 8, 16, 32]
        return ipywidgets.SelectionSlider(options=options, value=value, description=name)

    def names(options: list[str], value: str, description: str) -> ipywidgets.Dropdown:
        return ipywidgets.Dropdown(options=options, value=value, description=description)

    return Explorer(
        plot_layout,
        model=names(list(SHAPES), "Llama-3-70B", "model"),
        gpu=names(list(GPUS), "H100", "GPU"),
        inside=names(inside, "NVLink 4", "in a server"),
        between=names(between, "InfiniBand NDR", "between"),
        tp=sizes("TP", 4),
        pp=sizes("PP", 1),
        dp=sizes("DP", 1),
        ep=ipywidgets.Checkbox(value=False, description="EP"),
        requests=ipywidgets.SelectionSlider(
            options=[2**i for i in range(11)], value=32, description="requests"
        ),
        context=ipywidgets.SelectionSlider(
            options=[2**i for i in range(9, 18)], value=2048, description="tokens"
        ),
    )
