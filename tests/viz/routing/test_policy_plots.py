"""The pictures of overload and of policies show the numbers that they were given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from utils.routing.policies import LeastLoaded
from utils.sim.cluster.compare import summary
from utils.sim.cluster.cost import llama3_70b_on_a800
from utils.sim.cluster.replica_config import ReplicaConfig
from utils.sim.cluster.simulate import ClusterResult, simulate
from utils.sim.cluster.trace import conversations
from utils.viz.routing.policies import plot_gain, plot_overload, plot_policies, plot_waiting

CONFIG = ReplicaConfig(llama3_70b_on_a800(), 1000)


@pytest.fixture(scope="module")
def runs() -> dict[float, ClusterResult]:
    return {
        rate: simulate(conversations(300, rate), LeastLoaded(), 2, CONFIG) for rate in (1.0, 3, 6)
    }


def test_overload(runs: dict[float, ClusterResult]) -> None:
    figure = plot_overload({rate: [run] for rate, run in runs.items()}, 2.0)
    left, right = figure.axes
    assert left.lines[1].get_ydata().tolist() == [r.ttft_percentile(99) for r in runs.values()]
    assert right.lines[2].get_ydata().tolist() == runs[6].samples.sum(axis=1).tolist()
    plt.close(figure)


def test_waiting_marks_the_busiest(runs: dict[float, ClusterResult]) -> None:
    figure = plot_waiting({"slow": runs[1.0], "fast": runs[6]}, "finding")
    assert len(figure.axes) == 2 and len(figure.axes[1].lines) == 3
    busiest = int(runs[1.0].busy.argmax())
    for axes in figure.axes:
        assert axes.get_legend_handles_labels()[1] == [f"replica {busiest}", "all others"]
    plt.close(figure)


def test_policies_and_gain(runs: dict[float, ClusterResult]) -> None:
    one, other = summary(runs[1.0]), summary(runs[6])
    figure = plot_policies({"one": [one], "other": [one, other, other]}, "finding")
    left, right = figure.axes
    assert [bar.get_width() / 100 for bar in left.patches] == pytest.approx(
        [one["hit_rate"], other["hit_rate"]]
    )
    assert list(right.lines[1].get_xdata()) == [one["ttft_p99"], other["ttft_p99"]]
    ranges = [segment[:, 0].tolist() for segment in right.collections[1].get_segments()]
    assert ranges[1] == sorted([one["ttft_p99"], other["ttft_p99"]])
    plt.close(figure)
    figure = plot_gain([1, 2], {"a": [[1.0], [2.0]], "b": [[3.0], [3.0, 4.0, 9.0]]}, "x", "finding")
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [[1, 2], [3, 4]]
    plt.close(figure)
