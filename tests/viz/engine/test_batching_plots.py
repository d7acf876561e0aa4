"""Pictures of batches show what the steps' records say."""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tests.viz.test_widgets import move_everything
from utils.engine import LLM, SamplingParams
from utils.engine.core.step_record import ScheduledTokens, StepRecord
from utils.viz.engine.batching import plot_batch_sweep, plot_padded_batch, plot_recovery
from utils.viz.engine.gantt import places_of, plot_gantt, plot_places, spans_of
from utils.viz.engine.step_scrubber import EngineRun, plot_step, states_at, step_scrubber
from utils.viz.style import RED


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


def test_plot_gantt_shows_tokens_and_pauses() -> None:
    # B's tokens come at 14, 15, 16 and 20: one pause of more than 2 s, of 4 s.
    arrivals = {"A": 9.0, "B": 11.0, "C": 11.0}
    arrivals = {name: when - 5 for name, when in arrivals.items()}
    figure = plot_gantt({"one": STEPS}, arrivals, "x", pause=2.0, starts={"one": 5.0})
    red = [p for p in figure.axes[0].patches if to_hex(p.get_facecolor()) == RED]
    assert [(p.get_x(), p.get_width()) for p in red] == [(11, 4)]
    assert "no new token for more than 2 s" in [t.get_text() for t in figure.legends[0].texts]


def test_padded_batch_counts_its_waste() -> None:
    # A rectangle of 2 x (4 + 6) positions for 4 + 2 + 1 + 6 tokens.
    figure = plot_padded_batch("AB", [4, 2], [1, 6])
    assert titles(figure) == ["35% of the positions in the rectangle are wasted"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["A", "B"]


def test_other_plots_show_what_they_are_given() -> None:
    sweep = plot_batch_sweep([1, 2, 8], lambda b: max(0.1, b / 30), [0.2, 0.2, 0.2], 3.0)
    assert [t.get_text() for t in sweep.legends[0].texts][-1].endswith("3 requests")
    for axes, at_knee, measured in zip(
        sweep.axes, (30, 100), ([5, 10, 40], [200, 200, 200]), strict=True
    ):
        bound, points = axes.lines[:2]
        # The bend stands on the dotted line, between two batch sizes that were measured.
        assert dict(zip(*bound.get_data(), strict=True))[3.0] == pytest.approx(at_knee)
        assert list(map(round, points.get_ydata())) == measured

    both = ([0.1, 0.2, 0.3], [0.1, 0.4, 0.5]), ([0.2, 0.2, 0.2], [0.2, 0.3, 0.4])
    recovery = plot_recovery([1, 2, 3], *both)
    assert titles(recovery) == ["Here swapping is cheaper at 2 of 3 lengths"]
    measured, predicted = (list(line.get_ydata()) for line in recovery.axes[0].lines[:2])  # ms
    assert measured == pytest.approx([100, 400, 500])
    assert predicted == pytest.approx([100, 200, 300])


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
    assert (crowded.max_num_batched_tokens, crowded.num_blocks) == (8, 10)
    assert any(s.preempted_req_ids for s in crowded.steps)
    with pytest.raises(ValueError, match="no step_trace"):
        EngineRun.of(llm.new_engine(), {})


def test_states_follow_the_tokens(crowded: EngineRun) -> None:
    computed = dict.fromkeys("ABCD", 0)
    most, before = dict.fromkeys("ABCD", 0), dict.fromkeys("ABCD", 0)
    gone: set[str] = set()
    for index, record in enumerate(crowded.steps):
        for name in record.preempted_req_ids:
            computed[name], before[name] = 0, most[name]
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
            again = state.num_new > 0 and state.num_computed < before[name]
            assert (state.status == "recompute") == again
        gone |= set(record.finished_req_ids)
    assert gone == set("ABCD")


def test_step_picture_and_widget(crowded: EngineRun) -> None:
    index = next(i for i, s in enumerate(crowded.steps) if s.preempted_req_ids)
    figure = plot_step(crowded, index)
    victim = crowded.steps[index].preempted_req_ids[0]
    assert f"request {victim} preempted" in figure.get_suptitle()
    assert figure.get_suptitle().startswith(f"Step {index + 1} of {len(crowded.steps)}")
    explorer = step_scrubber(
        {"long": crowded, "short": EngineRun(STEPS[:2], {"A": 5, "B": 4}, {"A": 2, "B": 5}, 8, 4)}
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
