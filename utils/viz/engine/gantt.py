"""Gantt charts: which request runs when, drawn from the records of the steps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from utils.engine.core.step_record import StepRecord
from utils.viz.style import BLUE, INK, ORANGE, RED

PREFILL, DECODE, IDLE, WAITING = BLUE, "#a9c6ea", "#f1f1f1", "#c8c8c8"
PATCHES = (Patch(color=PREFILL, label="prompt (prefill)"), Patch(color=DECODE, label="decode"))
GAP = 5e-3  # seconds between two steps that still look like one


def places_of(steps: Sequence[StepRecord]) -> dict[str, int]:
    """A place in the batch for each request: the lowest that is free when it first runs."""
    places: dict[str, int] = {}
    busy: dict[int, str] = {}
    for step in steps:
        for request_id in step.tokens:
            if request_id not in places:
                place = next(i for i in range(len(busy) + 1) if i not in busy)
                places[request_id], busy[place] = place, request_id
        for request_id in step.finished_req_ids:
            del busy[places[request_id]]
    return places


def spans_of(steps: Sequence[StepRecord], request_id: str) -> list[tuple[float, float, bool]]:
    """When a request runs, as (begin, end, prefill). Neighboring steps of a kind are one span."""
    spans: list[tuple[float, float, bool]] = []
    for step in steps:
        if request_id not in step.tokens:
            continue
        tokens = step.tokens[request_id]
        # A prompt's tokens come many at a time, or give no new token yet.
        prefill = tokens.num_new - tokens.num_draft > 1 or tokens.num_sampled == 0
        begin = step.start
        if spans and spans[-1][1] >= begin - GAP and spans[-1][2] == prefill:
            begin = spans.pop()[0]
        spans.append((begin, step.end, prefill))
    return spans


def plot_places(runs: Mapping[str, Sequence[StepRecord]], num_places: int, title: str) -> Figure:
    """The places of a batch over time, one panel per run, all on the same time axis.

    Args:
        runs: name -> steps. None of them preempts.
        num_places: the most requests that run at a time.
        title: the finding.
    """
    figure, panels = _panels(len(runs), 0.34 * num_places + 0.7)
    for axes, (name, steps) in zip(panels, runs.items(), strict=True):
        origin = steps[0].start
        end = steps[-1].end - origin
        axes.barh(
            range(num_places), end, height=0.86, color=IDLE, hatch="////", edgecolor="#d4d4d4"
        )
        busy = 0.0
        for request_id, place in places_of(steps).items():
            spans = [(b - origin, e - origin, kind) for b, e, kind in spans_of(steps, request_id)]
            _draw_spans(axes, place, spans)
            busy += sum(e - b for b, e, _ in spans)
            middle, last = (spans[-1][0] + spans[-1][1]) / 2, spans[-1][1]
            axes.vlines(last, place - 0.43, place + 0.43, color="white", linewidth=2, zorder=4)
            axes.text(
                middle,
                place,
                request_id,
                color=INK,
                weight="bold",
                fontsize=9,
                ha="center",
                va="center",
                zorder=5,
            )
        idle = 1 - busy / (num_places * end)
        axes.set_title(
            f"{name}: {end:.1f} s, places idle {idle:.0%} of the time", fontsize=11, weight="normal"
        )
        axes.set_yticks(range(num_places), [str(i) for i in range(num_places)])
        axes.set_ylabel("place")
    panels[-1].set_xlabel("time (s)")
    patches = [*PATCHES, Patch(facecolor=IDLE, edgecolor="#b0b0b0", hatch="////", label="idle")]
    _finish(figure, title, patches)
    return figure


def plot_gantt(
    runs: Mapping[str, Sequence[StepRecord]],
    arrival_times: Mapping[str, float],
    title: str,
    highlighted: Sequence[str] = (),
    pause: float | None = None,
    starts: Mapping[str, float] | None = None,
) -> Figure:
    """A row per request: a line while it waits, bars while it runs, one panel per run.

    Args:
        runs: name -> steps, on the same clock as the arrivals, unless `starts` says otherwise.
        arrival_times: by request id, in seconds.
        title: the finding.
        highlighted: requests whose bars are orange.
        pause: seconds. With it, every token of an answer has a tick, and where the next token
            takes longer than this, the bar is red.
        starts: name -> when the arrivals' time 0 was, on the clock of the steps.
    """
    figure, panels = _panels(len(runs), 0.2 * len(arrival_times) + 0.75)
    rows = {request_id: row for row, request_id in enumerate(arrival_times)}
    for axes, (name, records) in zip(panels, runs.items(), strict=True):
        origin = (starts or {}).get(name, 0.0)
        steps = [replace(s, start=s.start - origin, end=s.end - origin) for s in records]
        for request_id, row in rows.items():
            spans = spans_of(steps, request_id)
            axes.hlines(
                row, arrival_times[request_id], spans[-1][1], color=WAITING, linewidth=3, zorder=1
            )
            _draw_spans(axes, row, spans, request_id in highlighted)
            if pause is not None:
                _draw_tokens(axes, row, steps, request_id, pause)
        axes.set_title(name, fontsize=11, weight="normal")
        axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
        axes.set_ylabel("request")
    panels[-1].set_xlabel("time (s)")
    patches = [*PATCHES, Patch(color=WAITING, label="waiting")]
    if highlighted:
        patches.insert(2, Patch(color=ORANGE, label="decode, important request"))
    if pause is not None:
        patches.insert(2, Patch(color=RED, label=f"no new token for more than {pause:g} s"))
    _finish(figure, title, patches)
    return figure


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    size = (9.5, height * count + 0.8)
    figure, panels = plt.subplots(count, 1, figsize=size, sharex=True, squeeze=False)
    return figure, list(panels[:, 0])


def _draw_spans(
    axes: Axes, row: int, spans: Sequence[tuple[float, float, bool]], highlighted: bool = False
) -> None:
    decode = ORANGE if highlighted else DECODE
    for begin, end, prefill in spans:
        color = PREFILL if prefill else decode
        axes.barh(row, end - begin, left=begin, height=0.86, color=color, zorder=3)


def _draw_tokens(
    axes: Axes, row: int, steps: Sequence[StepRecord], request_id: str, pause: float
) -> None:
    times = [s.end for s in steps if request_id in s.tokens and s.tokens[request_id].num_sampled]
    for before, after in itertools.pairwise(times):
        if after - before > pause:
            axes.barh(row, after - before, left=before, height=0.86, color=RED, zorder=4)
    axes.vlines(times, row - 0.43, row + 0.43, color="white", linewidth=0.8, zorder=5)


def _finish(figure: Figure, title: str, patches: list[Patch]) -> None:
    for axes in figure.axes:
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlim(left=0)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold", color=INK)
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), fontsize=9.5)
