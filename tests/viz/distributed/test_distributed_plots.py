"""The figures of notebook 15: what they say is what was given, and the widget never fails."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_hex

from utils.distributed.hardware import LINKS, START_LATENCY, cluster
from utils.distributed.layouts import Layout
from utils.distributed.shapes import SHAPES
from utils.distributed.step_time import decode_step
from utils.distributed.traffic import (
    batches_in_flight,
    bubble,
    micro_batch_steps,
    pipeline_schedule,
)
from utils.engine.distributed.worker import StageRun
from utils.viz.distributed.cut import plot_cut
from utils.viz.distributed.experts import imbalance, plot_experts
from utils.viz.distributed.layout_widget import layout_explorer, plot_layout
from utils.viz.distributed.links import permitted, plot_links, step_over
from utils.viz.distributed.pipeline import idle_share, pass_time, plot_pipelines
from utils.viz.distributed.rank_memory import plot_rank_memory
from utils.viz.distributed.ring import plot_ring, ring_states
from utils.viz.distributed.scaling import (
    crossing,
    plot_equal_hardware,
    plot_tp_latency,
    throughputs,
)
from utils.viz.style import BLUE, ORANGE, use_course_style

LESS = "Less bubble below than above, "


@pytest.fixture(autouse=True)
def _style():
    use_course_style()  # puts titles on the left
    yield
    plt.close("all")


def title(figure) -> str:
    return figure.axes[0].get_title(loc="left")


def test_links_are_counted_in_the_title() -> None:
    shape, layout = SHAPES["Llama-3-70B"], Layout(8)
    figure = plot_links({"TP=8": ("Llama-3-70B", layout), "PP=8": ("Llama-3-70B", Layout(1, 8))})
    steps = {n: step_over(shape, layout, "H100", link, 32, 2048) for n, link in LINKS.items()}
    fast = permitted(steps)
    assert "NVLink 4" in fast and "Ethernet 10G" not in fast
    assert f"TP=8: {len(fast)} of {len(LINKS)}, PP=8: {len(LINKS)} of" in title(figure)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 1), (4, 6)])
def test_the_bubble_is_in_the_title(stages: int, micro_batches: int) -> None:
    runs = pipeline_schedule(stages, micro_batches)
    assert idle_share(runs) == pytest.approx(bubble(stages, micro_batches))
    figure = plot_pipelines({"a": runs, "b": runs}, "steps", 1)
    assert f"steps, {bubble(stages, micro_batches):.0%} of it bubble" in title(figure)


def test_a_measured_pipeline_begins_at_zero() -> None:
    runs = [StageRun(0, 0, 100.0, 100.2), StageRun(1, 0, 100.2, 100.5)]
    axes = plot_pipelines({"a": runs, "b": runs}).axes[0]
    assert axes.get_xlim() == pytest.approx((0, 1.01 * 500))
    assert min(bar.get_x() for bar in axes.patches) == 0


def test_a_smaller_bubble_is_not_a_shorter_time() -> None:
    """The title says both, so that a reader cannot take one for the other."""
    slow = [StageRun(0, 0, 0, 2), StageRun(0, 1, 2, 4), StageRun(1, 0, 2, 4), StageRun(1, 1, 4, 6)]
    runs = {"one": pipeline_schedule(2, 1, 2.0), "two": slow}
    assert pass_time(runs["one"]) == 4 and pass_time(slow) == 6
    assert plot_pipelines(runs, "s", 1).get_suptitle() == LESS + "but 50% more time"
    equal = {"one": pipeline_schedule(2, 1, 3.05), "two": slow}
    assert plot_pipelines(equal, "s", 1).get_suptitle() == LESS + "but about the same time"
    rules = {"steps": micro_batch_steps(2, 2, 4), "in flight": batches_in_flight(2, 4)}
    figure = plot_pipelines(rules, "units", 1)
    assert figure.get_suptitle() == LESS + "and 25% less time"
    assert title(figure).startswith("steps: 12 units, 33% of it bubble")
    three = plot_pipelines(rules | {"again": rules["in flight"]}, "units", 1).get_suptitle()
    assert three == "Less bubble in the last chart than in the first, and 25% less time"
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_pipelines({"none": []})


def test_who_leads_on_equal_hardware() -> None:
    shape, requests = SHAPES["Llama-3-70B"], (8, 16, 32, 64, 128, 256, 512)
    one, two = Layout(tensor_parallel_size=8), Layout(tensor_parallel_size=4, data_parallel_size=2)
    clusters = {
        "NVLink": cluster("H100", "NVLink 4", "InfiniBand NDR"),
        "PCIe": cluster("H100", "PCIe 5 x16", "InfiniBand NDR"),
    }
    rows = [throughputs(shape, layout, clusters["PCIe"], requests, 2048) for layout in (one, two)]
    assert crossing(requests, *rows) == 128  # what the lesson says
    figure = plot_equal_hardware(shape, {"TP 8": one, "DP 2": two}, clusters, requests)
    assert title(figure) == "NVLink: TP 8 leads throughout"
    assert figure.axes[1].get_title(loc="left") == "PCIe: DP 2 leads from 128 on"
    assert "depends on the links" in figure.get_suptitle()
    latency = plot_tp_latency(shape, clusters, (1, 64))
    assert latency.get_suptitle() == "By formula, a token is fastest with 8 ranks"
    with pytest.raises(ValueError, match="equally many cards"):
        plot_equal_hardware(shape, {"a": one, "b": Layout()}, clusters)


def test_why_replicas_win_over_pcie() -> None:
    """From 128 requests on, TP 8 pays more on the links than it saves by reading less."""
    one, two = Layout(tensor_parallel_size=8), Layout(tensor_parallel_size=4, data_parallel_size=2)
    pcie = cluster("H100", "PCIe 5 x16", "InfiniBand NDR")
    for requests, replicas_win in ((64, False), (128, True)):
        tp8 = decode_step(SHAPES["Llama-3-70B"], one, pcie, requests, 2048)
        replica = decode_step(SHAPES["Llama-3-70B"], two, pcie, requests // 2, 2048)
        pays = tp8.communication["tp"] - replica.communication["tp"]
        assert (pays > replica.work - tp8.work) == replicas_win


@pytest.mark.parametrize("size", [2, 4, 16])
def test_a_ring_adds_up_and_hands_out(size: int) -> None:
    states = ring_states(size)
    assert len(states) == 2 * size - 1
    halfway, end = states[size - 1][0], states[-1][0]
    assert all(halfway[rank][rank] == size for rank in range(size))
    assert sum(row.count(size) for row in halfway) == size
    assert end == [[size] * size] * size
    with pytest.raises(ValueError, match="two ranks or more"):
        ring_states(1)


def test_the_ring_in_the_figure() -> None:
    figure = plot_ring(4)
    assert figure.get_suptitle() == (
        "After 3 steps each rank has one complete chunk, after 6 all of them"
    )
    numbers = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert numbers[0] == ["1"] * 16 and numbers[-1] == ["4"] * 16


def test_sixteen_ranks_in_two_servers_cross_four_times() -> None:
    """Even if only these hops are slow, a token isn't faster than on the 8 ranks of one server."""
    crossings = [0] * 16
    for _, arriving in ring_states(16)[1:]:
        for rank in (0, 8):  # what arrives there comes from the other server
            crossings[arriving[rank]] += 1
    assert sorted(set(crossings)) == [3, 4]
    where, shape = cluster("H100", "NVLink 4", "InfiniBand NDR"), SHAPES["Llama-3-70B"]
    wait = 161 * (START_LATENCY + 26 * 0.6e-6 + 4 * 2.7e-6)
    work = decode_step(shape, Layout(tensor_parallel_size=16), where, 1, 2048).work
    eight = decode_step(shape, Layout(tensor_parallel_size=8), where, 1, 2048).seconds
    assert wait + work == pytest.approx(8.0e-3, abs=5e-5) and wait + work > eight


def test_the_two_ranks_share_the_matrices_equally() -> None:
    axes = plot_cut(576, 1536).axes[0]
    areas: dict[str, float] = {}
    for patch in axes.patches:
        color = to_hex(patch.get_facecolor())
        areas[color] = areas.get(color, 0) + patch.get_width() * patch.get_height()
    assert areas[BLUE] == pytest.approx(areas[ORANGE])
    assert "W1\n1536 x 576" in {text.get_text() for text in axes.texts}
    with pytest.raises(ValueError, match="two halves"):
        plot_cut(4, 3)


def test_imbalance() -> None:
    routed = torch.tensor([[10, 10, 10, 10], [30, 10, 0, 0]])
    assert imbalance(routed, 2).tolist() == [1, 2]
    assert imbalance(routed, 4).tolist() == [1, 3]
    assert "1.50 x" in plot_experts(routed, 2).axes[1].get_title(loc="left")
    with pytest.raises(ValueError, match="cannot be divided"):
        plot_experts(routed, 3)


def test_memory_of_ranks() -> None:
    one, parts = {"one": [(300, 100)]}, {"two": [(160, 40), (140, 50)]}
    figure = plot_rank_memory(one | parts, one | parts)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["one", "two, rank 0", "two, rank 1"]
    assert title(figure) == "The fullest rank holds 50% of what one holds"
    equal = plot_rank_memory(one | {"two": [(150, 50), (150, 50)]})
    assert title(equal) == "Each rank holds 50% of what one holds"


def test_the_figures_say_how_long_the_requests_are() -> None:
    shape, where = SHAPES["Llama-3-70B"], {"N": cluster("H100", "NVLink 4", "InfiniBand NDR")}
    layout = Layout(tensor_parallel_size=8)
    latency = plot_tp_latency(shape, where, (64,))
    equal = plot_equal_hardware(shape, {"a": layout, "b": layout}, where)
    links = plot_links({"TP 8": ("Llama-3-70B", layout)})
    controls = ("Llama-3-70B", "H100", "NVLink 4", "InfiniBand NDR")
    widget = plot_layout(*controls, 4, 1, 1, False, 32, 2048)
    texts = (
        title(latency),
        equal.axes[0].get_xlabel(),
        links.axes[0].get_xlabel(),
        widget.axes[2].texts[0].get_text(),
    )
    assert all("2,048 tokens" in text for text in texts)


def test_a_refused_layout_is_told_in_words() -> None:
    figure = plot_layout(
        "Llama-3-70B", "H100", "NVLink 4", "InfiniBand NDR", 3, 1, 1, False, 32, 2048
    )
    assert "refused" in figure.get_suptitle()
    assert "64 query heads" in figure.axes[0].texts[0].get_text()


def test_the_widget() -> None:
    explorer = layout_explorer()
    pictures = set()
    for model in explorer.controls["model"].options:
        explorer.controls["model"].value = model
        assert explorer.error is None, model
    for name, control in explorer.controls.items():
        values = getattr(control, "options", (False, True))
        for value in (values[0], values[-1]):
            control.value = value
            assert explorer.error is None, f"{name}={value}: {explorer.error}"
            pictures.add(bytes(explorer._image.value))
    assert len(pictures) > 5  # not always the same one
    assert plt.get_fignums() == []
