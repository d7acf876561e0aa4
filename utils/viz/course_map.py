"""The picture of what the course builds, and of how much of it somebody has built."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from utils.viz.style import BLUE, GREEN, INK, ORANGE

# (left, bottom, width, text, colour); bottom counts floors.
_BLOCKS = (
    (0.0, 0, 9.6, "01  prefill and decode", BLUE),
    (0.0, 1, 9.6, "02  the KV cache", BLUE),
    (0.0, 2, 9.6, "03  KV memory and its waste", BLUE),
    (0.0, 3, 9.6, "04  the paged allocator", BLUE),
    (0.0, 4, 2.3, "05  prefix\ncaching", BLUE),
    (2.43, 4, 2.3, "06  continuous\nbatching", BLUE),
    (4.87, 4, 2.3, "07  speculative\ndecoding", BLUE),
    (7.3, 4, 2.3, "07b  Medusa\nto EAGLE", BLUE),
    (0.0, 5, 2.3, "08  the\nengine", BLUE),
    (2.43, 5, 2.3, "08b  async\nscheduling", BLUE),
    (4.87, 5, 2.3, "08c  two\nengines", BLUE),
    (7.3, 5, 2.3, "08d  making\nit fast", BLUE),
    (10.4, 0, 2.4, "09  number\nformats, NF4", ORANGE),
    (13.0, 0, 2.4, "09b  GPTQ\nand AWQ", ORANGE),
    (10.4, 1, 5.0, "10  QLoRA fine-tuning", ORANGE),
    (10.4, 2, 5.0, "11  merge", ORANGE),
    (10.4, 3, 2.4, "12  4-bit\ncheckpoints", ORANGE),
    (13.0, 3, 2.4, "12b  formats\nof today", ORANGE),
    (10.4, 4, 2.4, "13  vLLM,\nprefix caching", ORANGE),
    (13.0, 4, 2.4, "13b  structured\noutput", ORANGE),
    (10.4, 5, 2.4, "14  a server\nunder load", ORANGE),
    (13.0, 5, 2.4, "14b  cards\nand dollars", ORANGE),
    (0.0, 6.4, 3.7, "15  many GPUs", GREEN),
    (3.9, 6.4, 3.7, "16  prefill and\ndecode apart", GREEN),
    (7.8, 6.4, 3.7, "17  routing", GREEN),
    (11.7, 6.4, 3.7, "18  vLLM by hand", GREEN),
)
# From a floor that another part needs first: (x, y) of the arrow's tail and of its head.
_ARROWS = (
    ((9.55, 0.41), (10.45, 0.41)),  # 01 -> 09
    ((9.68, 4.41), (10.45, 4.41)),  # 05 to 07 -> 13
    ((9.68, 5.41), (10.45, 5.41)),  # 08 -> 14
    ((1.85, 5.9), (1.85, 6.45)),  # 08 -> 15
    ((5.0, 5.9), (5.0, 6.45)),  # 08 -> 16
    ((8.7, 5.9), (8.7, 6.45)),  # 08 -> 17
    ((10.95, 5.8), (10.95, 6.45)),  # 14 -> 17
    ((12.4, 5.8), (12.4, 6.45)),  # 14 -> 18
)
_SHARED_FLOORS = (4, 5)  # of Part I, of several notebooks each
# Lessons whose exercises are in another one's lab.
SHARED_LABS = {"08b": "08", "08c": "08", "08d": "08", "09b": "09", "13b": "13", "14b": "14"}
_PART_OF = {
    BLUE: "Part I: build the engine",
    ORANGE: "Part II: run the real pipeline",
    GREEN: "Part III: scale out",
}
HEIGHT = 0.82  # of a block
BAND = 0.08  # of the band behind a shared floor, around its blocks
BAR = 0.17  # of the bar at a block's foot
PALE = 0.82  # how much of a block's colour is white before its lab is done


def lesson_titles() -> dict[str, str]:
    """`02` -> `the KV cache`, for every lesson in the picture."""
    split = (text.partition("  ") for _, _, _, text, _ in _BLOCKS)
    return {number: title.replace("\n", " ") for number, _, title in split}


PARTS = {
    part: tuple(text.partition("  ")[0] for *_, text, own in _BLOCKS if own == color)
    for color, part in _PART_OF.items()
}


def draw_course_map() -> Figure:
    """Draw the notebooks as the floors of three buildings, with arrows from one to another."""
    figure, axes = _house()
    for floor in _SHARED_FLOORS:
        look = {"facecolor": _pale(BLUE), "edgecolor": "none", "zorder": 0.5}
        band = (-BAND, floor - BAND), 9.6 + 2 * BAND, HEIGHT + 2 * BAND
        axes.add_patch(Rectangle(*band, **look))  # type: ignore[arg-type]
    for left, bottom, width, text, color in _BLOCKS:
        axes.add_patch(_block(left, bottom, width, facecolor=color, edgecolor="none"))
        ink = INK if color == GREEN else "white"
        axes.text(left + width / 2, bottom + 0.41, text, ha="center", va="center", color=ink)
    for tail, head in _ARROWS:
        look = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.6, "mutation_scale": 13}
        axes.annotate("", xy=head, xytext=tail, arrowprops={**look, "shrinkA": 0, "shrinkB": 0})
    axes.set_title("Start at the bottom, and finish a floor before you follow its arrow")
    return figure


def draw_progress(points: Mapping[str, tuple[float, float]]) -> Figure:
    """The same house, each floor filled as far as its lab is solved.

    Args:
        points: for each lab, such as "02", the points so far and the points that there are.
            A lesson that is not named has no lab, and an outline of dots.
    """
    figure, axes = _house()
    for left, bottom, width, text, color in _BLOCKS:
        number = text.partition("  ")[0]
        so_far, of = points.get(number, (0.0, 0.0))
        share = so_far / of if of else 0.0
        box = _block(
            left,
            bottom,
            width,
            facecolor=color if share == 1 else _pale(color),
            edgecolor=color,
            linewidth=1.0,
            linestyle="-" if of else ":",
        )
        axes.add_patch(box)
        bar = Rectangle((left, bottom), width * share, BAR, facecolor=color, edgecolor="none")
        axes.add_patch(bar)
        bar.set_clip_path(box)
        ink = "white" if share == 1 and color == BLUE else INK
        score = f"({so_far:g}/{of:g})" if of else "(no lab)"
        if number in SHARED_LABS:
            score = f"(lab {SHARED_LABS[number]})"
        # Where there are two lines, the score stands on the first, behind the number.
        _, _, title = text.partition("  ")
        narrow = "\n" in title
        title = title.replace("\n", " ")
        axes.text(
            left + width / 2,
            bottom + 0.47,
            f"{number}  {score}\n{title}" if narrow else f"{text}  {score}",
            ha="center",
            va="center",
            color=ink,
            size=8 if narrow else 9,
        )
    complete = sum(so_far == of for so_far, of in points.values())
    so_far, of = (sum(column) for column in zip(*points.values(), strict=True))
    axes.set_title(
        f"{so_far:g} of {of:g} points, {complete} of {len(points)} labs complete. "
        "A solved lab fills its floor"
    )
    return figure


def _house() -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(9, 5.2))
    axes.text(0, -0.45, _PART_OF[BLUE], color=BLUE, weight="bold")
    axes.text(10.4, -0.45, _PART_OF[ORANGE], color=ORANGE, weight="bold")
    axes.text(0, 7.37, _PART_OF[GREEN], color="#3f7d30", weight="bold")
    axes.set_xlim(-0.1, 15.5)
    axes.set_ylim(-0.7, 7.75)
    axes.axis("off")
    return figure, axes


def _block(left: float, bottom: float, width: float, **look: object) -> FancyBboxPatch:
    style = "round,pad=0,rounding_size=0.12"
    return FancyBboxPatch((left, bottom), width, HEIGHT, boxstyle=style, **look)  # type: ignore[arg-type]


def _pale(color: str) -> tuple[float, float, float]:
    red, green, blue = (part + PALE * (1 - part) for part in to_rgb(color))
    return red, green, blue


if __name__ == "__main__":
    # Writes the picture that README.md shows: python -m utils.viz.course_map
    from pathlib import Path

    from utils.viz.style import use_course_style

    use_course_style()
    picture = Path(__file__).parents[2] / "notebooks" / "images" / "course_map.png"
    picture.parent.mkdir(exist_ok=True)
    draw_course_map().savefig(picture, dpi=100)
