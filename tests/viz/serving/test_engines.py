"""The figure of four servers, from a report as the benchmark writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from utils.viz.serving.engines import plot_engines, read_engines
from utils.vllm.recipe import describe

LOADS = {
    load: {
        name: {
            "tokens_per_second": speed,
            "ttft": 1 / speed,
            "tpot": 2 / speed,
            "rounds": [0.9 * speed, 1.1 * speed],
        }
        for name, speed in (("ours", 50.0), ("vLLM", 40.0), ("llama.cpp", 20.0))
    }
    for load in ("1 user", "8 users")
}
WEIGHTS = {"ours": "bfloat16", "vLLM": "bfloat16", "llama.cpp": "Q4_1"}
REPORT = {"results": LOADS, "weights": WEIGHTS, "machine": {"threads": 2}, "vllm": describe()}


def test_bars_are_the_medians_in_their_units() -> None:
    figure = plot_engines(REPORT, "Finding")
    heights = [sorted({bar.get_height() for bar in axes.patches}) for axes in figure.axes]
    assert heights == [[20, 40, 50], [20, 25, 50], [40, 50, 100]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "ours (bfloat16)",
        "vLLM (bfloat16)",
        "llama.cpp (Q4_1)",
    ]
    assert figure.get_suptitle() == "Finding"
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "log", "linear"]


def test_lines_join_the_rounds_and_numbers_stand_above_them() -> None:
    axes = plot_engines(REPORT, "Finding").axes[0]
    lines = axes.lines
    assert len(lines) == 6 and list(lines[0].get_ydata()) == [45.0, pytest.approx(55.0)]
    numbers = [(text.get_text(), text.xy[1]) for text in axes.texts]
    assert numbers[:2] == [("50", pytest.approx(55.0)), ("50", pytest.approx(55.0))]


def test_a_missing_report_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"python benchmarks/engines_under_load\.py"):
        read_engines(tmp_path / "engines_under_load.json")
