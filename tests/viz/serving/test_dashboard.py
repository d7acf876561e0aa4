"""The dashboard: a stand-in for the server, and a load that is over soon."""

from __future__ import annotations

import asyncio
import itertools
import math

import matplotlib.pyplot as plt
import pytest

from utils.serving.load_report import SLO, LoadReport, Timing
from utils.serving.metrics import ServerMetrics
from utils.serving.scrape import Reading, parse
from utils.viz.serving.dashboard import Dashboard, Point
from utils.viz.serving.load import plot_histogram, plot_knee, plot_omission, plot_time_per_token


class StandIn:
    """Metrics of a server that generates ten tokens between two readings."""

    def __init__(self) -> None:
        self.metrics = ServerMetrics("m")
        self.clock = itertools.count(0.0, 0.5)
        self.active = 0

    def read(self) -> Reading:
        if self.active:
            self.metrics.count("vllm:generation_tokens", 10)
            self.metrics.count("vllm:prefix_cache_queries", 100)
            self.metrics.count("vllm:prefix_cache_hits", 80)
            self.metrics.observe("vllm:time_to_first_token_seconds", 0.3)
        self.metrics.set("vllm:num_requests_running", self.active)
        return Reading(next(self.clock), parse(self.metrics.text()).samples)

    async def load(self, users: int) -> None:
        self.active = users
        await asyncio.sleep(0.2)
        self.active = 0


def test_the_dashboard_shows_the_load_live_and_then_as_a_figure() -> None:
    server = StandIn()
    dashboard = Dashboard(server.read, server.load, interval=0.05)
    seen: list[str] = []
    dashboard._charts.observe(lambda change: seen.append(change["new"]), names="value")
    dashboard.users.value = 5

    async def press() -> None:
        dashboard.button.click()
        assert dashboard.task is not None
        await asyncio.sleep(0)
        assert dashboard.button.disabled
        await dashboard.task

    asyncio.run(press())
    assert dashboard.error is None and not dashboard.button.disabled
    busy = [point for point in dashboard.points if point.running]
    assert busy and {point.running for point in busy} == {5}
    assert {point.tokens_per_second for point in busy} == {20.0}  # 10 in half a second
    assert {point.hit_rate for point in busy} == {0.8}
    assert 0.25 < busy[0].ttft <= 0.5
    assert math.isnan(dashboard.points[-1].ttft) and dashboard.points[-1].running == 0
    assert len(seen) >= len(busy) and "running 5" in seen[0] and "<svg" in seen[0]
    assert bytes(dashboard._figure.value[:4]) == b"\x89PNG"
    assert dashboard._charts.layout.display == "none" and plt.get_fignums() == []


@pytest.mark.parametrize("broken", ["server", "load"])
def test_what_goes_wrong_is_shown_in_words(broken: str) -> None:
    server = StandIn()

    def gone() -> Reading:
        raise OSError("nobody <answers>")

    async def fails(users: int) -> None:
        raise OSError("nobody <answers>")

    read, load = (gone, server.load) if broken == "server" else (server.read, fails)
    dashboard = Dashboard(read, load, interval=0.3)
    asyncio.run(dashboard.watch())
    assert isinstance(dashboard.error, OSError)
    assert "nobody &lt;answers&gt;" in dashboard._charts.value and not dashboard.button.disabled


def test_a_point_is_a_difference() -> None:
    server = StandIn()
    first = server.read()
    server.active = 2
    second = server.read()
    point = Point.of(second, first, first.time)
    assert point.time == 0.5 and point.running == 2 and point.waiting == 0


def report(ttft: float, tpot: float) -> LoadReport:
    times = [0.5 + ttft + i * tpot for i in range(3)]
    return LoadReport(
        [Timing(0.0, 0.5, times, 3), Timing(1.0, 1.0, [1 + t for t in times], 3)], 3.0
    )


def test_figures_of_a_load_test() -> None:
    slo = SLO(ttft=1.0, tpot=0.1)
    reports = {1.0: report(0.1, 0.03), 2.0: report(0.1, 0.05), 4.0: report(2.0, 0.3)}
    band = {1.0: (0.9, 1.0, 1.0), 2.0: (0.3, 0.5, 0.6), 9.0: (0.0, 0.0, 0.1)}
    figure = plot_knee(reports, slo, (0.03, 8.0), 2.1, band, titles=("Formula", "Promise"))
    left, right = figure.axes
    assert [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes] == [
        "Formula",
        "Promise",
    ]
    assert list(left.lines[1].get_ydata()) == pytest.approx([30, 50, 300])
    predicted = left.lines[0]
    at_zero, x, y = predicted.get_ydata()[0], predicted.get_xdata()[-1], predicted.get_ydata()[-1]
    assert at_zero == pytest.approx(30) and y == pytest.approx(30 / (1 - x / 8))
    assert left.get_ylim()[1] > 300  # what misses the formula is not cut off
    assert list(right.lines[0].get_ydata()) == [100, 50]  # 9/s lies beyond the axis
    [shade] = right.collections
    bounds = shade.get_paths()[0].vertices[:, 1]
    assert bounds.min() == pytest.approx(30) and bounds.max() == pytest.approx(100)
    assert list(right.lines[1].get_ydata()) == [100, 100, 0]
    figure = plot_omission(report(0.1, 0.03))
    assert list(figure.axes[0].lines[0].get_ydata()) == pytest.approx([0.6, 0.6])
    assert figure.axes[0].lines[1].get_ydata()[0] == pytest.approx(0.1)
    figure = plot_time_per_token({"execute": 0.02, "HTTP": 0.0001}, "execution is nearly all")
    whole, zoom = figure.axes
    assert [bar.get_width() for bar in whole.patches] == pytest.approx([20, 0.1])
    assert [text.get_text() for text in zoom.texts] == [" 0.1 ms"]
    assert {axes.get_xscale() for axes in figure.axes} == {"linear"}
    figure = plot_histogram([0.1, 0.25, 0.5], [1, 0, 2], [0.09, 0.3, 0.4])
    assert [bar.get_height() for bar in figure.axes[0].patches] == [1, 0, 2]
    plt.close("all")
