"""Every station of the chain can be drawn, with vLLM's lines and ours."""

from __future__ import annotations

from utils.viz.engine.chain import chain_explorer, plot_station
from utils.viz.figure_text import figure_text
from utils.vllm.chain import STATIONS


def test_every_station_is_drawn_with_its_functions() -> None:
    for number, station in enumerate(STATIONS, start=1):
        figure = plot_station(number)
        axes = figure.axes[0]
        numbers = {text.get_text(): text for text in axes.texts[: len(STATIONS)]}
        assert list(numbers) == [str(n) for n in range(1, len(STATIONS) + 1)]
        bold = [name for name, text in numbers.items() if text.get_weight() == "bold"]
        assert bold == [str(number)]
        texts = "\n".join(text.get_text() for text in axes.texts)
        assert station.what in axes.get_title(loc="left") and station.theirs.function in texts
        assert (station.ours.function if station.ours else station.why) in texts
        said = figure_text(figure)  # what is read out has no code, but both functions
        assert station.what.rstrip(".") in said and station.theirs.function in said


def test_the_slider_reaches_the_last_station() -> None:
    explorer = chain_explorer()
    explorer.controls["number"].value = len(STATIONS)
    assert explorer.error is None and explorer.controls["number"].max == len(STATIONS)
