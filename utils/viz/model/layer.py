"""One layer of a Llama as a diagram, with the width of what travels along each arrow."""

from __future__ import annotations

from itertools import pairwise

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from utils.engine.config.model import ModelConfig
from utils.viz.style import BLUE, GREY, INK, ORANGE

STREAM, BRANCH = 0.9, 0.1  # heights of the residual stream, and of what branches off from it


def plot_layer(config: ModelConfig) -> Figure:
    """A layer from left to right: two branches leave the residual stream and are added to it.

    The numbers are widths: how many numbers a token's vector has at that place.
    """
    figure, axes = plt.subplots(figsize=(9.8, 3.1))
    axes.annotate("", (14, STREAM), (-0.6, STREAM), arrowprops={"arrowstyle": "->", "lw": 3})
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    wide = f"{config.intermediate_size:,}"
    _branch(
        axes,
        [
            (0.3, "RMSNorm", BLUE),
            (1.8, f"q, k, v\n{heads} + {kv_heads} + {kv_heads}\nheads", ORANGE),
            (3.3, "RoPE\n(q and k)", BLUE),
            (4.8, f"attention\n{heads} heads\nof {config.head_dim}", BLUE),
            (6.3, f"o_proj\n{config.hidden_size}", ORANGE),
        ],
        "attention mixes the tokens",
    )
    _branch(
        axes,
        [
            (8.5, "RMSNorm", BLUE),
            (10.0, f"gate, up\n2 × {wide}", ORANGE),
            (11.5, f"silu(gate)\n× up\n{wide}", BLUE),
            (13.0, f"down_proj\n{config.hidden_size}", ORANGE),
        ],
        "the MLP works on each token alone",
    )
    axes.text(-0.6, STREAM + 0.08, f"residual stream, {config.hidden_size} wide", color=INK)
    axes.text(14, 1.06, "orange: products with weight matrices", ha="right", color=ORANGE)
    axes.set_title(
        f"One of the {config.num_hidden_layers} layers: two branches read the stream of vectors "
        f"and add to it"
    )
    axes.set_xlim(-0.7, 14.1)
    axes.set_ylim(-0.35, 1.15)
    axes.axis("off")
    return figure


def _branch(axes: Axes, boxes: list[tuple[float, str, str]], name: str) -> None:
    down, up = boxes[0][0], boxes[-1][0]
    for x, text, color in boxes:
        axes.add_patch(
            FancyBboxPatch(
                (x - 0.52, BRANCH - 0.02),
                1.04,
                0.32,
                boxstyle="round,pad=0.08",
                facecolor="white",
                edgecolor=color,
                linewidth=1.8,
            )
        )
        axes.text(x, BRANCH + 0.14, text, ha="center", va="center", fontsize=8)
    for (left, *_), (right, *_) in pairwise(boxes):
        axes.annotate(
            "", (right - 0.6, BRANCH + 0.14), (left + 0.6, BRANCH + 0.14), arrowprops=_ARROW
        )
    axes.annotate("", (down, BRANCH + 0.36), (down, STREAM), arrowprops=_ARROW)
    axes.annotate("", (up, STREAM - 0.05), (up, BRANCH + 0.37), arrowprops=_ARROW)
    axes.text(up, STREAM, "+", ha="center", va="center", fontsize=13, bbox=_CIRCLE)
    axes.text((down + up) / 2, -0.2, name, ha="center", color=GREY)


_ARROW = {"arrowstyle": "->", "color": INK, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
_CIRCLE = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": INK}
