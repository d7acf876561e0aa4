"""A dashboard of a running server: what its `/metrics` say, read twice a second and drawn live."""

from __future__ import annotations

import asyncio
import html
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.serving.scrape import Reading
from utils.viz.explore import show
from utils.viz.style import BLUE, GREY, INK, ORANGE

TTFT = "vllm:time_to_first_token_seconds"
WIDTH, HEIGHT = 215, 84  # pixels of a chart
Line = tuple[str, str, Sequence[float]]  # what it is, colour, values


@dataclass(frozen=True)
class Point:
    """What the dashboard knows at one moment. Rates are of the time since the point before.

    `ttft` is the 90th percentile of the requests that got their first token in that time, as the
    server's histogram tells it, in seconds; `hit_rate` is the part of the looked-up tokens that
    were found. Both are NaN when nothing happened.
    """

    time: float  # seconds since the first point
    running: float
    waiting: float
    tokens_per_second: float
    ttft: float
    hit_rate: float

    @classmethod
    def of(cls, now: Reading, before: Reading, start: float) -> Point:
        """From two readings, one after the other, and the time of the first of all."""
        gained = now.since(before)
        queries = gained.value("vllm:prefix_cache_queries_total")
        hits = gained.value("vllm:prefix_cache_hits_total")
        return cls(
            now.time - start,
            now.value("vllm:num_requests_running"),
            now.value("vllm:num_requests_waiting"),
            gained.value("vllm:generation_tokens_total") / max(gained.time, 1e-9),
            gained.quantile(TTFT, 0.9),
            hits / queries if queries else math.nan,
        )


class Dashboard(ipywidgets.VBox):
    """Live charts, and a button that puts the server under load.

    While something is watched, the charts are drawn as SVG, which costs next to nothing: the
    drawing shall not disturb what it shows. At the end they become a figure.

    Args:
        read: reads the metrics; called in a thread, so it may wait.
        load: what the button starts, given the number of users.
        interval: seconds between two readings.
    """

    def __init__(
        self,
        read: Callable[[], Reading],
        load: Callable[[int], Awaitable[object]],
        interval: float = 0.5,
    ) -> None:
        self._read, self._load, self.interval = read, load, interval
        self.points: list[Point] = []
        self.error: Exception | None = None
        self.task: asyncio.Task[None] | None = None
        self.users = ipywidgets.IntSlider(8, min=1, max=32, description="users")
        self.button = ipywidgets.Button(description="Start the load", button_style="primary")
        self.button.on_click(self._clicked)
        self._charts = ipywidgets.HTML()
        self._figure = ipywidgets.Image(format="png", layout=ipywidgets.Layout(display="none"))
        row = ipywidgets.HBox([self.users, self.button])
        super().__init__([row, self._charts, self._figure])

    async def watch(self) -> None:
        """Start the load, and show the metrics until a second after its end."""
        self.points, self.error = [], None
        self.button.disabled = True
        self._figure.layout.display, self._charts.layout.display = "none", "block"
        try:
            first = before = await asyncio.to_thread(self._read)
            work = asyncio.ensure_future(self._load(self.users.value))
            idle = 0.0
            while idle < 1.0:
                await asyncio.sleep(self.interval)
                now = await asyncio.to_thread(self._read)
                self.points.append(Point.of(now, before, first.time))
                self._charts.value = charts_as_html(self.points)
                before, idle = now, idle + self.interval if work.done() else 0.0
            await work  # its error, if there is one
            show(plot_dashboard(self.points), self._figure)
            self._figure.layout.display, self._charts.layout.display = "block", "none"
        except Exception as error:
            self.error = error
            self._charts.value = f"<b>{type(error).__name__}</b>: {html.escape(str(error))}"
        finally:
            self.button.disabled = False

    def _clicked(self, _: object) -> None:
        self.task = asyncio.ensure_future(self.watch())


def panels(points: Sequence[Point]) -> dict[str, list[Line]]:
    """The charts' titles and lines."""
    return {
        "requests": [
            ("running", BLUE, [p.running for p in points]),
            ("waiting", ORANGE, [p.waiting for p in points]),
        ],
        "tokens per second": [("generated", BLUE, [p.tokens_per_second for p in points])],
        "TTFT, 90th percentile (s)": [("p90", BLUE, [p.ttft for p in points])],
        "prefix cache: hit rate (%)": [("hits", BLUE, [100 * p.hit_rate for p in points])],
    }


def charts_as_html(points: Sequence[Point]) -> str:
    """The charts as small pictures in SVG."""
    times = [point.time for point in points]
    charts = [_chart(title, times, lines) for title, lines in panels(points).items()]
    return f'<div style="display:flex;flex-wrap:wrap;gap:14px">{"".join(charts)}</div>'


def _chart(title: str, times: Sequence[float], lines: Sequence[Line]) -> str:
    values = [v for _, _, line in lines for v in line if not math.isnan(v)]
    top, last = max([*values, 1e-9]), max(times[-1], 1e-9)
    paths, words = [], []
    for name, color, line in lines:
        known = [(t, v) for t, v in zip(times, line, strict=True) if not math.isnan(v)]
        dots = " ".join(f"{WIDTH * t / last:.1f},{HEIGHT * (1 - v / top):.1f}" for t, v in known)
        paths.append(f'<polyline points="{dots}" fill="none" stroke="{color}" stroke-width="2"/>')
        if known:
            words.append(f'<span style="color:{color}">{name} {known[-1][1]:.3g}</span>')
    return (
        f'<div style="font:12px sans-serif;color:{INK}"><b>{title}</b><br>{" · ".join(words)}'
        f'<br><svg width="{WIDTH}" height="{HEIGHT + 4}" style="border-bottom:1px solid {GREY}">'
        f'<text x="2" y="10" font-size="10" fill="{GREY}">{top:.3g}</text>{"".join(paths)}</svg>'
        "</div>"
    )


def plot_dashboard(points: Sequence[Point]) -> Figure:
    """The same charts as one figure, with axes."""
    times = [point.time for point in points]
    figure, axes = plt.subplots(2, 2, figsize=(10, 4.8), sharex=True)
    for ax, (title, lines) in zip(axes.flat, panels(points).items(), strict=True):
        for name, color, line in lines:
            style = "--" if name == "waiting" else "-"
            # Where nothing happened there is no value; the line goes on to the next one.
            known = [(t, v) for t, v in zip(times, line, strict=True) if not math.isnan(v)]
            ax.plot(
                [t for t, _ in known],
                [v for _, v in known],
                style,
                color=color,
                marker=".",
                label=name,
            )
        ax.set_title(title)
        ax.set_ylim(0, 104 if "%" in title else 1.08 * max(0.1, ax.get_ylim()[1]))
        if len(lines) > 1:
            ax.legend(loc="upper right", fontsize=9.5)
    for ax in axes[1]:
        ax.set_xlabel("time (s)")
    return figure
