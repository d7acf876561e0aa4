"""Pictures of the memory formula of notebook 02."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from utils.sim.memory import (
    GIB,
    MODEL_SHAPES,
    ModelShape,
    kv_bytes_per_token,
    requests_that_fit,
    weight_bytes,
)
from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREY, INK, ORANGE, RED


def plot_kv_per_token(shapes: Sequence[ModelShape]) -> Figure:
    """KV bytes of one token, model by model, in 16 bit; the label names the attention variant."""
    ordered = sorted(shapes, key=kv_bytes_per_token)
    figure, axes = plt.subplots(figsize=(9.5, 4.4))
    values = [kv_bytes_per_token(shape) / 1024 for shape in ordered]
    colors = [ORANGE if shape.kind == "MHA" else BLUE for shape in ordered]
    labels = [f"{s.name}  ({_size(s.num_parameters)} parameters, {s.kind})" for s in ordered]
    axes.barh(labels, values, color=colors)
    for row, value in enumerate(values):
        axes.text(value, row, f" {value:,.1f}".removesuffix(".0"), va="center", fontsize=9.5)
    axes.set_xlim(right=max(values) * 1.12)
    axes.set_xlabel("KiB of KV cache per token (16 bit)")
    axes.set_title(
        "Among MHA models, larger ones need more;\nat equal size, sharing KV heads saves most of it"
    )
    patches = [
        Patch(facecolor=ORANGE, label="MHA: a KV head per query head"),
        Patch(facecolor=BLUE, label="fewer KV heads, or a latent"),
    ]
    axes.legend(handles=patches, loc="lower right")
    axes.grid(axis="y", visible=False)
    return figure


def _size(num_parameters: float) -> str:
    """As "8.0B" or "135M"."""
    if num_parameters < 1e9:
        return f"{num_parameters / 1e6:.0f}M"
    billions = num_parameters / 1e9
    return f"{billions:.0f}B" if billions >= 100 else f"{billions:.1f}B"


def plot_memory_split(
    model: str, memory_gib: float, num_tokens: int, batch: int, kv_bits: int, weight_bits: int
) -> Figure:
    """One bar: where a card's memory goes for a model, a context length and a batch.

    Args:
        model: a name in `utils.sim.memory.MODEL_SHAPES`.
        memory_gib: memory of the card in GiB.
        num_tokens: tokens per sequence.
        batch: sequences at once.
        kv_bits, weight_bits: bits per number (16, 8 or 4).
    """
    shape = MODEL_SHAPES[model]
    weights = weight_bytes(shape, weight_bits / 8) / GIB
    per_token = kv_bytes_per_token(shape, kv_bits / 8)
    kv = per_token * num_tokens * batch / GIB
    other = 0.05 * memory_gib
    used = weights + kv + other
    figure, axes = plt.subplots(figsize=(8.5, 2.5))
    left = 0.0
    for label, value, color in (
        ("weights", weights, BLUE),
        ("KV cache", kv, ORANGE),
        ("activations, runtime", other, GREY),
    ):
        axes.barh([0], [value], left=left, color=color, label=f"{label}: {value:,.1f} GiB")
        left += value
    axes.axvline(memory_gib, color=RED if used > memory_gib else INK, linewidth=3)
    axes.set_xlim(0, max(used, memory_gib) * 1.05)
    axes.set_yticks([])
    axes.set_xlabel(f"GiB (vertical line: the card, {memory_gib:g} GiB)")
    verdict = (
        "does not fit" if used > memory_gib else f"fits, {memory_gib - used:,.1f} GiB to spare"
    )
    room = requests_that_fit(
        shape,
        memory_gib * GIB,
        num_tokens,
        bytes_per_parameter=weight_bits / 8,
        bytes_per_value=kv_bits / 8,
    )
    requests = "request" if room == 1 else "requests"
    axes.set_title(
        f"{shape.name}, {batch} × {num_tokens:,} tokens: {verdict}\n"
        f"{shape.kind}: {per_token / 1024:,.1f} KiB of KV per token, "
        f"room for {room:,} {requests} of this length"
    )
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.45), ncols=3)
    return figure


# Memory per card as the vendors state it; 8 cards as one server.
CARDS = {
    "T4, 16 GiB": 16,
    "RTX 4090, 24 GiB": 24,
    "A100, 40 GiB": 40,
    "H100, 80 GiB": 80,
    "8 x H100, 640 GiB": 640,
    "8 x H200, 1128 GiB": 1128,
}


def memory_calculator() -> Explorer:
    """`plot_memory_split` with a control for each of its arguments."""
    return Explorer(
        plot_memory_split,
        model=ipywidgets.Dropdown(
            options=list(MODEL_SHAPES), value="Llama-3.1-8B", description="model"
        ),
        memory_gib=ipywidgets.Dropdown(options=list(CARDS.items()), value=24, description="card"),
        num_tokens=ipywidgets.SelectionSlider(
            options=[2**i for i in range(9, 18)], value=4096, description="tokens"
        ),
        batch=ipywidgets.SelectionSlider(
            options=[2**i for i in range(9)], value=8, description="requests"
        ),
        kv_bits=ipywidgets.ToggleButtons(options=[16, 8], description="KV bits"),
        weight_bits=ipywidgets.ToggleButtons(options=[16, 8, 4], description="weight bits"),
    )
