"""Pictures of notebook 10: the memory of training, what the loss sees, what r and alpha do."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from utils.pipeline.estimates.train_shapes import ALL_LINEAR, ATTENTION, MLP, TRAIN_SHAPES
from utils.pipeline.estimates.training_memory import Method, TrainingMemory, training_memory
from utils.viz.explore import Explorer
from utils.viz.memory.kv_memory import CARDS
from utils.viz.style import BLUE, COLORS, GREEN, GREY, INK, ORANGE, RED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GB = 1e9
# Of a card, what the driver's context, error correction and gaps between tensors take: a rule of
# thumb.
NOT_OURS_GB = 1.5
# What is drawn together: what never changes, what training adds, what grows with the text.
PARTS = (
    ("weights", ("weights",), BLUE, ""),
    ("gradients", ("gradients",), ORANGE, "//"),
    ("optimizer", ("optimizer",), GREEN, ""),
    ("activations and logits", ("activations", "recomputed", "logits", "workspace"), GREY, ".."),
)
METHOD_NAMES: dict[Method, str] = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}
TARGETS = {
    "query and value": ("q_proj", "v_proj"),
    "attention": ATTENTION,
    "MLP": MLP,
    "all linear": ALL_LINEAR,
}


def plot_training_memory(rows: Mapping[str, TrainingMemory], title: str) -> Figure:
    """One stacked bar of gigabytes per row."""
    figure, axes = plt.subplots(figsize=(8.4, 1.3 + 0.55 * len(rows)))
    names = list(rows)
    left = np.zeros(len(names))
    for label, fields, color, hatch in PARTS:
        values = [sum(getattr(rows[name], field) for field in fields) / GB for name in names]
        axes.barh(
            names,
            values,
            left=left,
            color=color,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.5,
            label=label,
        )
        left += values
    for row, total in enumerate(left):
        axes.text(total, row, f" {total:,.1f}", va="center", fontsize=10)
    axes.set_xlim(0, left.max() * 1.12)
    axes.invert_yaxis()
    axes.set_xlabel("GB during the backward pass")
    axes.set_title(title)
    axes.grid(axis="y", visible=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.25), ncols=4, fontsize=9.5)
    return figure


def plot_rank(
    ranks: Sequence[int], best: Mapping[str, Sequence[float]], fitted: Mapping[str, Sequence[float]]
) -> Figure:
    """How much of an update is missing at each rank: the optimum as lines, LoRA's fit as dots."""
    figure, axes = plt.subplots(figsize=(7.8, 4.2))
    styles = zip(best, COLORS, ("-", "--"), ("o", "s"), strict=False)
    for name, color, line, marker in styles:
        axes.plot(ranks, best[name], line, color=color, label=f"{name}: best possible")
        axes.plot(
            ranks,
            fitted[name],
            marker,
            color=color,
            mfc="none",
            mew=2,
            ms=9,
            label=f"{name}: fitted by LoRA",
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(r) for r in ranks])
    axes.set_ylim(-0.03, 1.05)
    axes.set_xlabel("rank r")
    axes.set_ylabel("length of what is missing (update = 1)")
    axes.set_title("An update is learned whole once r reaches its rank")
    axes.legend(fontsize=9.5)
    return figure


def plot_losses(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    title: str,
    first_step: int = 1,
    every: int = 1,
) -> Figure:
    """Loss curves in panels side by side, with shared axes.

    Args:
        panels: name of a panel -> label of a curve -> its losses, in nats per answer token. A
            panel with one curve may leave both names empty.
        first_step, every: training steps before the first loss, and from one loss to the next.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(9, 3.9), sharey=True, squeeze=False)
    styles = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (RED, ":"), (INK, "-"))
    for ax, (name, curves) in zip(axes[0], panels.items(), strict=True):
        for (label, losses), (color, line) in zip(curves.items(), styles, strict=False):
            steps = [first_step + every * i for i in range(len(losses))]
            ax.plot(steps, losses, line, color=color, label=label)
        ax.set_title(name, size=11, weight="normal")
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel("training step")
        if any(curves):
            ax.legend(fontsize=9.5)
    axes[0][0].set_ylabel("loss (nats per answer token)")
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    return figure


def mask_as_html(
    tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int], answer: Sequence[int], tail: int = 24
) -> str:
    """Tokens as boxes: the end of the prompt in grey, the answer, which is learned, in blue."""
    boxes = [f"<div>… {len(prompt) - tail} more tokens of the prompt</div>"]
    style = (
        "display:inline-block;margin:2px 1px;padding:2px 4px;border-radius:3px;"
        "font-family:monospace;color:#1b1b1b;"
    )
    looks = {
        False: "background:#e4e4e4",
        True: "background:#b9d2f3;border-bottom:3px solid #1f4e9c",
    }
    shown = [(token, False) for token in prompt[-tail:]] + [(token, True) for token in answer]
    for token, learned in shown:
        piece = html.escape(tokenizer.decode([token])).replace(" ", "&middot;")
        piece = piece.replace("\n", "&#9166;")
        boxes.append(f'<span style="{style}{looks[learned]}">{piece}</span>')
    boxes.append(
        f"<div>Grey: {len(prompt)} tokens of the prompt, read but not learned. Blue, underlined: "
        f"{len(answer)} tokens of the answer, learned.</div>"
    )
    return "".join(boxes)


def plot_calculator(
    model: str,
    method: Method,
    r: int,
    lora_alpha: int,
    targets: str,
    num_tokens: int,
    answers: int,
    checkpointing: bool,
    card: str,
) -> Figure:
    """Memory of one training step against a card; the title also says what is trained.

    `lora_alpha` costs nothing; the title shows the scale that it makes. `answers` is the share of
    the tokens that the loss looks at, in percent.
    """
    shape = TRAIN_SHAPES[model]
    modules = TARGETS[targets]
    memory = training_memory(
        shape,
        method,
        num_tokens,
        num_predicted=num_tokens * answers // 100,
        r=r,
        target_modules=modules,
        checkpointing=checkpointing,
    )
    full = method == "full"
    trained = shape.num_parameters() if full else shape.lora_parameters(r, modules)
    size = CARDS[card] * 2**30 / GB - NOT_OURS_GB
    fits = memory.total / GB < size
    name, (kind, gib) = METHOD_NAMES[method], card.split(", ")
    title = (
        f"{model}, {name}: {trained / 1e6:,.1f} million trained "
        f"({trained / shape.num_parameters():.2%})"
        f"{'' if full else f', scale alpha/r = {lora_alpha / r:g}'}\n"
        f"{memory.total / GB:,.1f} GB {'fits' if fits else 'does not fit'} on {kind} "
        f"({gib} = {CARDS[card] * 2**30 / GB:,.1f} GB)"
    )
    figure = plot_training_memory({name: memory}, title)
    axes = figure.axes[0]
    axes.axvline(size, color=INK if fits else RED, linewidth=3)
    axes.set_xlim(0, 1.15 * max(size, memory.total / GB))
    axes.set_xlabel(
        f"GB (the line is the card, less {NOT_OURS_GB} GB for driver and gaps: {size:,.1f} GB)"
    )
    if legend := axes.get_legend():
        legend.set_bbox_to_anchor((0.45, -0.45))
    return figure


def training_calculator() -> Explorer:
    """`plot_calculator` with a control for each of its arguments."""
    return Explorer(
        plot_calculator,
        model=ipywidgets.Dropdown(
            options=list(TRAIN_SHAPES), value="Mistral-7B", description="model"
        ),
        method=ipywidgets.ToggleButtons(
            options=["full", "lora", "qlora"], value="qlora", description="method"
        ),
        r=ipywidgets.SelectionSlider(options=[2**i for i in range(9)], value=16, description="r"),
        lora_alpha=ipywidgets.SelectionSlider(
            options=[2**i for i in range(10)], value=32, description="alpha"
        ),
        targets=ipywidgets.Dropdown(
            options=list(TARGETS), value="all linear", description="targets"
        ),
        num_tokens=ipywidgets.SelectionSlider(
            options=[2**i for i in range(7, 15)], value=4096, description="tokens"
        ),
        answers=ipywidgets.SelectionSlider(
            options=[5, 10, 20, 50, 100], value=20, description="% answers"
        ),
        checkpointing=ipywidgets.Checkbox(value=True, description="checkpointing"),
        card=ipywidgets.Dropdown(options=list(CARDS), value="T4, 16 GiB", description="card"),
    )
