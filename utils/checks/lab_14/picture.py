"""When each client of the learner's server read an event: the picture of exercise 7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from utils.viz.style import BLUE, ORANGE, RED

LABELS = {
    "r0": "client 1",
    "r1": "client 2",
    "r2": "client 3",
    "leaves": "leaves early",
    "too long": "prompt too long",
}


def plot_run(
    times: Mapping[str, Sequence[float]], in_use: Sequence[tuple[float, int]]
) -> tuple[Figure, str]:
    """A mark for each event, and the KV blocks in use below; and the same in words.

    Args:
        times: of each client's events, in seconds.
        in_use: a time, and the blocks in use from then on.
    """
    start = min([moment for moment, _ in in_use] + [m for row in times.values() for m in row])
    figure = Figure(figsize=(8, 4), layout="constrained")
    top, bottom = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    for row, (name, moments) in enumerate(times.items()):
        color = {"leaves": ORANGE, "too long": RED}.get(name, BLUE)
        top.scatter([m - start for m in moments], [row] * len(moments), color=color, s=22)
    top.set_yticks(range(len(times)), [LABELS[name] for name in times])
    top.invert_yaxis()
    top.set_title("Your server writes to all clients at once, and stops when one leaves")
    bottom.step([m - start for m, _ in in_use], [n for _, n in in_use], where="post", color=BLUE)
    bottom.set_ylim(0)
    bottom.set_ylabel("KV blocks in use")
    bottom.set_xlabel("seconds")
    counts = ", ".join(f"{LABELS[name]} {len(moments)}" for name, moments in times.items())
    most = max(n for _, n in in_use)
    return figure, f"Events over time: {counts}. At most {most} KV blocks in use, in the end none."
