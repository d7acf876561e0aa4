"""The pictures of lab 10: labels beside tokens, weights beside each other, a loss curve."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor

INK = "#1b1b1b"
GREY, BLUE, ORANGE = "#dddddd", "#9dc0ec", "#f2a65a"
IGNORE = -100


def labels(
    expected: tuple[Sequence[int], Sequence[int]], yours: tuple[Sequence[int], Sequence[int]]
) -> Figure:
    """What is read, what is learned (blue), what is passed over (grey); a wrong label hatched."""
    width = max(len(row) for pair in (expected, yours) for row in pair)
    figure = Figure(figsize=(max(5.0, 0.75 * width + 2.2), 2.5), layout="constrained")
    ax = figure.subplots()
    rows = [
        ("read", expected[0], None),
        ("expected label", expected[1], None),
        ("your input_ids", yours[0], expected[0]),
        ("your label", yours[1], expected[1]),
    ]
    for y, (_name, row, right) in enumerate(rows):
        for x, token in enumerate(row):
            wrong = right is not None and (x >= len(right) or right[x] != token)
            colour = ORANGE if wrong else GREY if y % 2 == 0 or token == IGNORE else BLUE
            ax.add_patch(_box(x, y, colour, "//" if wrong else ""))
            ax.text(x, y, str(token), ha="center", va="center", size=9, color=INK)
    ax.set_xlim(-0.5, width - 0.5)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    ax.set_xticks(range(width))
    ax.set_xlabel("place")
    ax.tick_params(length=0)
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.set_title("Blue: learned. Hatched: not as expected", size=10, loc="left")
    return figure


def _box(x: float, y: float, colour: str, hatch: str) -> Rectangle:
    return Rectangle(
        (x - 0.47, y - 0.42), 0.94, 0.84, facecolor=colour, hatch=hatch, edgecolor="white"
    )


def matrices(expected: Tensor, yours: Tensor, title: str, axes_names: tuple[str, str]) -> Figure:
    """Two small matrices [rows, columns] side by side, with their numbers."""
    rows, columns = expected.shape
    figure = Figure(figsize=(1.25 * columns + 2.4, 0.4 * rows + 1.4), layout="constrained")
    top = max(float(expected.abs().max()), float(yours.abs().max()), 1e-9)
    for ax, (name, matrix) in zip(
        figure.subplots(1, 2), (("expected", expected), ("yours", yours)), strict=True
    ):
        ax.imshow(matrix.detach().float().numpy(), cmap="PuOr", vmin=-top, vmax=top, aspect="auto")
        for i in range(rows):
            for j in range(columns):
                value = float(matrix[i, j])
                same = abs(value - float(expected[i, j])) < 1e-4 + 1e-3 * abs(value)
                ax.text(
                    j,
                    i,
                    f"{value:.2f}" + ("" if same else " ×"),
                    ha="center",
                    va="center",
                    size=8,
                    color="white" if abs(value) > 0.6 * top else INK,
                )
        ax.set_title(name, size=10)
        ax.grid(False)
        ax.set_xticks(range(columns))
        ax.set_yticks(range(rows))
        ax.set_xlabel(axes_names[1], size=9)
        ax.set_ylabel(axes_names[0], size=9)
        ax.tick_params(labelsize=8)
    figure.suptitle(title, size=11)
    return figure


def losses(values: Sequence[float], title: str) -> Figure:
    """A loss curve with a dot per step."""
    figure = Figure(figsize=(6.2, 2.9), layout="constrained")
    ax = figure.subplots()
    ax.plot(range(1, len(values) + 1), values, "o-", color="#1f5fa8")
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(which="both", labelsize=8)
    ax.set_xlabel("training step")
    ax.set_ylabel("loss (nats per token)")
    ax.set_title(title, size=11, loc="left")
    ax.grid(True, color="#e5e5e5")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return figure
