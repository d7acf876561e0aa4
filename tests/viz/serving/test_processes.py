"""The drawing of vLLM's processes."""

from __future__ import annotations

import pytest

from utils.viz.figure_text import figure_text
from utils.viz.serving.processes import PARTS, plot_processes, shapes


@pytest.mark.parametrize("on_gpu", [False, True])
def test_each_way_holds_all_parts_and_one_server_is_marked(on_gpu: bool) -> None:
    rows = shapes(on_gpu)
    assert all(sum(count for _, count in row.processes) == len(PARTS) for row in rows)
    assert [row.here for row in rows] == [on_gpu, not on_gpu, True]
    figure = plot_processes(rows)
    texts = [text.get_text() for text in figure.axes[0].texts]
    for row in rows:
        for name, _ in row.processes:
            assert f"process {name}" in texts
    assert sum("(runs here)" in text for text in texts) == 2
    assert "2, 3 or 1 processes" in figure_text(figure)
