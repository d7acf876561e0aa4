"""The picture of what the course builds."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from utils.viz.style import BLUE, GREEN, INK, ORANGE

# (left, bottom, width, text, colour); bottom counts floors.
_BLOCKS = (
    (0.0, 0, 9.0, "01  prefill and decode: the Llama forward pass, token by token", BLUE),
    (0.0, 1, 9.0, "02  KV cache", BLUE),
    (0.0, 2, 4.4, "03 · 04  paged allocator", BLUE),
    (4.6, 2, 4.4, "06  continuous batching", BLUE),
    (0.0, 3, 4.4, "05  prefix caching", BLUE),
    (4.6, 3, 4.4, "07  speculative decoding", BLUE),
    (0.0, 4, 9.0, "08  the engine: all parts together", BLUE),
    (10.0, 0, 5.0, "10  QLoRA fine-tuning", ORANGE),
    (10.0, 1, 5.0, "11  merge", ORANGE),
    (10.0, 2, 5.0, "09 · 12  4 bits: GPTQ, AWQ", ORANGE),
    (10.0, 3, 5.0, "13  vLLM with prefix caching", ORANGE),
    (10.0, 4, 5.0, "14  a server under load", ORANGE),
    (0.0, 5.35, 15.0, "15 · 16 · 17  many GPUs, many servers", GREEN),
)


def draw_course_map() -> Figure:
    """Draw the notebooks as the floors of a house: each stands on those below it."""
    figure, axes = plt.subplots(figsize=(9, 4.6))
    for left, bottom, width, text, color in _BLOCKS:
        box = FancyBboxPatch(
            (left, bottom), width, 0.82, boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=color, edgecolor="none",
        )  # fmt: skip
        axes.add_patch(box)
        ink = INK if color == GREEN else "white"
        axes.text(left + width / 2, bottom + 0.41, text, ha="center", va="center", color=ink)
    axes.text(0, -0.45, "Part I: build the engine", color=BLUE, weight="bold")
    axes.text(10, -0.45, "Part II: run the real pipeline", color=ORANGE, weight="bold")
    axes.text(0, 6.32, "Part III: scale out", color="#3f7d30", weight="bold")
    axes.set_xlim(-0.1, 15.1)
    axes.set_ylim(-0.7, 6.7)
    axes.axis("off")
    return figure


if __name__ == "__main__":
    # Writes the picture that README.md shows: python -m utils.viz.course_map
    from pathlib import Path

    picture = Path(__file__).parents[2] / "notebooks" / "images" / "course_map.png"
    picture.parent.mkdir(exist_ok=True)
    draw_course_map().savefig(picture, dpi=100)
