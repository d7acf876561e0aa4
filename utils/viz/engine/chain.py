"""The widget of notebook 18: the stations of a request, vLLM's source beside ours."""

from __future__ import annotations

import textwrap
from pathlib import Path

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREY, INK, ORANGE
from utils.vllm.chain import STATIONS, Place, call_lines, our_folder, vllm_folder

WIDTH = 62  # letters in a column


def plot_station(number: int) -> Figure:
    """A station: what happens there, and the lines that lead on, in vLLM and in our engine.

    Above them a dot for each station: those on the way so far are dark.

    Args:
        number: of the station, 1 is the first.

    Raises:
        LostStation: the installed source has no such function or call.
    """
    station = STATIONS[number - 1]
    figure, axes = plt.subplots(figsize=(10.5, 3.0))
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    for i in range(len(STATIONS)):
        reached = i < number
        place, now = (i + 0.5) / len(STATIONS), i == number - 1
        axes.plot(
            place,
            0.97,
            "o",
            markersize=11 if now else 7,
            color=ORANGE if now else INK if reached else GREY,
        )
        axes.text(
            place,
            0.91,
            str(i + 1),
            ha="center",
            va="top",
            fontsize=9 if now else 8,
            color=INK if reached else GREY,
            weight="bold" if now else "normal",
        )
    axes.set_title(f"{number}. {station.what}", loc="left", x=0, y=0.75, weight="bold")
    # Not drawn, as the axes are off: for the figure's text, which is read out.
    ours = f"ours: {station.ours.function} in {station.ours.file}" if station.ours else "ours: none"
    axes.set_xlabel(f"vLLM: {station.theirs.function} in {station.theirs.file}, {ours}")
    for x, name, color, text in (
        (0.0, "vLLM", ORANGE, _text(vllm_folder(), station.theirs)),
        (
            0.52,
            "ours",
            BLUE,
            _text(our_folder(), station.ours) if station.ours else f"none: {station.why}",
        ),
    ):
        axes.text(x, 0.66, name, color=color, weight="bold")
        axes.text(x, 0.60, text, family="monospace", fontsize=8, va="top")
    return figure


def _text(folder: Path, place: Place) -> str:
    number, lines = call_lines(folder, place)
    wrapped = [
        part
        for line in lines.splitlines()
        for part in textwrap.wrap(line, WIDTH, subsequent_indent="      ", drop_whitespace=False)
    ]
    return "\n".join([place.function, f"{place.file}, line {number}", "", *wrapped])


def chain_explorer() -> Explorer:
    """A slider over the stations."""
    slider = ipywidgets.IntSlider(7, min=1, max=len(STATIONS), description="station")
    return Explorer(plot_station, number=slider)
