"""Pictures of batches show what the steps' records say."""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from tests.viz.test_widgets import move_everything
from utils.engine import LLM, SamplingParams
from utils.engine.core.step_record import ScheduledTokens, StepRecord
from utils.engine.outputs import RequestMetrics
from utils.viz.engine.batching import (
    plot_batch_sweep,
    plot_padded_batch,
    plot_recovery,
    plot_stalls,
    plot_waits,
)
from utils.viz.engine.gantt import places_of, plot_gantt, plot_places, spans_of
from utils.viz.engine.step_scrubber import EngineRun, plot_step, states_at, step_scrubber


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def step(start: float, end: float, tokens: dict[str, tuple[int, int, int]], **lists) -> StepRecord:
    """`tokens`: by request id, (computed before, computed now, sampled)."""
    records = {name: ScheduledTokens(a, n, 0, s) for name, (a, n, s) in tokens.items()}
    names = [lists.get(key, []) for key in ("preempted", "resumed", "finished")]
    return StepRecord(start, start, start, end, end, end, end, records, *names, 0, 0.5)


# A computes a prompt of 5 in two chunks; B joins; A leaves; C takes its place after a pause.
STEPS = [
    step(10, 12, {"A": (0, 3, 0)}),
    step(12, 14, {"A": (3, 2, 1), "B": (0, 4, 1)}),
    step(14, 15, {"A": (5, 1, 1), "B": (4, 1, 1)}, finished=["A"]),
    step(15, 16, {"B": (5, 1, 1)}),
    step(18, 20, {"C": (0, 2, 1), "B": (6, 1, 1)}, finished=["C", "B"]),
]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes]


def test_places_and_spans() -> None:
    assert places_of(STEPS) == {"A": 0, "B": 1, "C": 0}
    assert spans_of(STEPS, "A") == [(10, 14, True), (14, 15, False)]
    assert spans_of(STEPS, "B") == [(12, 14, True), (14, 16, False), (18, 20, False)]
    assert spans_of(STEPS, "C") == [(18, 20, True)]


def test_plot_places_counts_idle_time() -> None:
    # Two places for 10 s; A runs 5, B runs 6, C runs 2.
    figure = plot_places({"run": STEPS}, 2, "x")
    assert titles(figure) == ["run: 10.0 s, places idle 35% of the time"]


def test_plot_gantt_marks_who_is_important() -> None:
    arrivals = {"A": 9.0, "B": 11.0, "C": 11.0}
    for names, expected in ((["B"], 4), ([], 3)):
        figure = plot_gantt({"one": STEPS, "two": STEPS}, arrivals, "x", names)
        assert len(figure.legends[0].get_texts()) == expected
        assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["A", "B", "C"]


def test_padded_batch_counts_its_waste() -> None:
    # A rectangle of 2 x (4 + 6) slots for 4 + 2 + 1 + 6 tokens.
    figure = plot_padded_batch([4, 2], [1, 6])
    assert titles(figure) == ["35% of the rectangle is not anybody's token"]


def test_other_plots_show_what_they_are_given() -> None:
    sweep = plot_batch_sweep([1, 2, 4], [0.1, 0.1, 0.2], [0.2, 0.2, 0.2], {"predicted knee": 2})
    assert [text.get_text().strip() for text in sweep.axes[0].texts] == ["predicted knee"]
    throughput, seconds = ([line.get_ydata() for line in axes.lines] for axes in sweep.axes)
    assert [list(map(round, y)) for y in throughput[:2]] == [[10, 20, 20], [5, 10, 20]]
    assert [list(map(round, y)) for y in seconds[:2]] == [[100, 100, 200], [200, 200, 200]]

    metrics = {"A": RequestMetrics(0.0, 0.0, [2.0, 3.0]), "B": RequestMetrics(1.0, 1.0, [2.0])}
    waits = plot_waits({"x": metrics, "y": metrics}, "x")
    assert list(waits.axes[0].lines[0].get_ydata()) == [2, 1]
    assert waits.axes[1].lines[0].get_ydata()[0] == 1000
    # Requests have no order in which a line could go: only the two runs of one are joined.
    assert {line.get_linestyle() for axes in waits.axes for line in axes.lines} == {"None"}

    both = ([0.1, 0.2, 0.3], [0.1, 0.4, 0.5]), ([0.2, 0.2, 0.2], [0.2, 0.3, 0.4])
    recovery = plot_recovery([1, 2, 3], *both, bytes_moved=[1e6, 4e6, 5e6], links={"wire": 1e7})
    assert titles(recovery)[0] == "Swapping is cheaper at 2 of 3 lengths"
    even, predicted = (list(line.get_ydata()) for line in recovery.axes[1].lines[:2])  # MB/s
    assert even == pytest.approx([10, 10, 10]) and predicted == pytest.approx([10, 20, 50 / 3])

    stalls = plot_stalls({"64": ([0.1], [0.2])}, {"64": 1.5})
    assert stalls.axes[0].lines[0].get_ydata() == pytest.approx([200])
    assert stalls.axes[1].patches[0].get_height() == 1.5


@pytest.fixture(scope="module")
def crowded(llm: LLM) -> EngineRun:
    """Four requests, and blocks for two and a half of them: some are preempted and come back."""
    changes = {
        "max_model_len": 32,
        "num_gpu_blocks": 10,
        "block_size": 4,
        "max_num_batched_tokens": 8,
        "max_num_seqs": 4,
        "enable_prefix_caching": False,
    }
    engine = llm.new_engine(changes=changes)
    engine.step_trace = []
    for i, name in enumerate("ABCD"):
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        engine.add_request(name, [100 + i] * 6, params)
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    return EngineRun.of(engine, outputs)


def test_run_of_an_engine(crowded: EngineRun, llm: LLM) -> None:
    assert crowded.prompt_lens == dict.fromkeys("ABCD", 6)
    assert crowded.output_lens == dict.fromkeys("ABCD", 8)
    assert crowded.max_num_batched_tokens == 8
    assert any(s.preempted_req_ids for s in crowded.steps)
    with pytest.raises(ValueError, match="no step_trace"):
        EngineRun.of(llm.new_engine(), {})


def test_states_follow_the_tokens(crowded: EngineRun) -> None:
    computed = dict.fromkeys("ABCD", 0)
    most = dict.fromkeys("ABCD", 0)
    gone: set[str] = set()
    for index, record in enumerate(crowded.steps):
        for name in record.preempted_req_ids:
            computed[name] = 0
        states = states_at(crowded, index)
        for name, state in states.items():
            assert state.num_computed == (most[name] if name in gone else computed[name])
            assert state.num_new == (record.tokens[name].num_new if name in record.tokens else 0)
            computed[name] += state.num_new
            most[name] = max(most[name], computed[name])
            lost = 0 if name in gone else most[name] - computed[name]
            assert state.num_lost == lost
            assert (state.status == "finished") == (name in gone)
            assert (state.status == "preempted") == (lost > 0 and state.num_new == 0)
            assert (state.status == "not running yet") == (most[name] == 0)
        gone |= set(record.finished_req_ids)
    assert gone == set("ABCD")


def test_step_picture_and_widget(crowded: EngineRun) -> None:
    index = next(i for i, s in enumerate(crowded.steps) if s.preempted_req_ids)
    figure = plot_step(crowded, index)
    victim = crowded.steps[index].preempted_req_ids[0]
    assert f"{victim} preempted" in figure.get_suptitle()
    assert figure.get_suptitle().startswith(f"Step {index + 1} of {len(crowded.steps)}")
    explorer = step_scrubber(
        {"long": crowded, "short": EngineRun(STEPS[:2], {"A": 5, "B": 4}, {"A": 2, "B": 5}, 8)}
    )
    assert move_everything(explorer) >= 3
    for number in range(1, len(crowded.steps) + 1):
        explorer.controls["step"].value = number
        assert explorer.error is None


@given(st.lists(st.lists(st.sampled_from("ABCD"), min_size=1, unique=True), min_size=1, max_size=8))
def test_no_slot_holds_two_requests_at_a_time(batches: list[list[str]]) -> None:
    last = {name: i for i, batch in enumerate(batches) for name in batch}
    steps = [
        step(
            i,
            i + 1,
            {name: (0, 1, 1) for name in batch},
            finished=[name for name in batch if last[name] == i],
        )
        for i, batch in enumerate(batches)
    ]
    slots = places_of(steps)
    first = {name: i for i, batch in reversed(list(enumerate(batches))) for name in batch}
    for a, b in itertools.combinations(last, 2):
        if first[a] <= last[b] and first[b] <= last[a]:
            assert slots[a] != slots[b]
