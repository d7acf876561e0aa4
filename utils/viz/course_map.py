"""The picture of what the course builds."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from utils.viz.style import BLUE, GREEN, INK, ORANGE

# (left, bottom, width, text, colour); bottom counts floors.
_BLOCKS = (
    (0.0, 0, 9.6, "01  prefill and decode", BLUE),
    (0.0, 1, 9.6, "02  the KV cache", BLUE),
    (0.0, 2, 9.6, "03  KV memory and its waste", BLUE),
    (0.0, 3, 9.6, "04  the paged allocator", BLUE),
    (0.0, 4, 3.1, "05  prefix\ncaching", BLUE),
    (3.25, 4, 3.1, "06  continuous\nbatching", BLUE),
    (6.5, 4, 3.1, "07  speculative\ndecoding", BLUE),
    (0.0, 5, 9.6, "08  the engine: all parts together", BLUE),
    (10.4, 0, 2.4, "09  number\nformats, NF4", ORANGE),
    (13.0, 0, 2.4, "09b  GPTQ\nand AWQ", ORANGE),
    (10.4, 1, 5.0, "10  QLoRA fine-tuning", ORANGE),
    (10.4, 2, 5.0, "11  merge", ORANGE),
    (10.4, 3, 5.0, "12  4-bit checkpoints", ORANGE),
    (10.4, 4, 5.0, "13  vLLM with prefix caching", ORANGE),
    (10.4, 5, 5.0, "14  a server under load", ORANGE),
    (0.0, 6.4, 3.7, "15  many GPUs", GREEN),
    (3.9, 6.4, 3.7, "16  prefill and\ndecode apart", GREEN),
    (7.8, 6.4, 3.7, "17  routing", GREEN),
    (11.7, 6.4, 3.7, "18  vLLM by hand", GREEN),
)


def draw_course_map() -> Figure:
    """Draw the notebooks as the floors of a house: what one needs lies below it."""
    figure, axes = plt.subplots(figsize=(9, 5.2))
    for left, bottom, width, text, color in _BLOCKS:
        box = FancyBboxPatch(
            (left, bottom), width, 0.82, boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=color, edgecolor="none",
        )  # fmt: skip
        axes.add_patch(box)
        ink = INK if color == GREEN else "white"
        axes.text(left + width / 2, bottom + 0.41, text, ha="center", va="center", color=ink)
    axes.text(0, -0.45, "Part I: build the engine", color=BLUE, weight="bold")
    axes.text(10.4, -0.45, "Part II: run the real pipeline", color=ORANGE, weight="bold")
    axes.text(0, 7.37, "Part III: scale out", color="#3f7d30", weight="bold")
    axes.set_xlim(-0.1, 15.5)
    axes.set_ylim(-0.7, 7.75)
    axes.axis("off")
    return figure


if __name__ == "__main__":
    # Writes the picture that README.md shows: python -m utils.viz.course_map
    from pathlib import Path

    picture = Path(__file__).parents[2] / "notebooks" / "images" / "course_map.png"
    picture.parent.mkdir(exist_ok=True)
    draw_course_map().savefig(picture, dpi=100)
