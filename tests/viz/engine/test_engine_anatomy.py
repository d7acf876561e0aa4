"""The pictures of notebook 08, drawn from real steps of a tiny engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import same_color

from tests.engine.tiny_engines import tiny_llama
from utils.engine import LLM, ContiguousKVCache, LLMEngine, SamplingParams, SpeculativeConfig
from utils.engine.attention.paged_kv_cache import slot_mapping
from utils.viz.engine import step_time
from utils.viz.engine.anatomy_record import StepAnatomy, record_anatomy
from utils.viz.engine.step_anatomy import (
    REQUEST_COLORS,
    anatomy_explorer,
    distinct_colors,
    plot_anatomy,
)
from utils.viz.engine.step_time import BARS, PARTS, measure_step_parts, plot_step_parts
from utils.viz.engine.throughput import (
    FILES,
    RESULTS,
    plot_throughput,
    read_report,
    rounds_range,
    throughput_finding,
)
from utils.viz.model.logit_gaps import plot_noise
from utils.vllm.recipe import describe

CONFIG = dict(
    num_gpu_blocks=24, block_size=4, max_model_len=64, max_num_batched_tokens=12, max_num_seqs=4
)
LONG = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama(folder, seed=3)
    return LLM(folder, device="cpu")


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def busy(llm: LLM, **changes: object) -> LLMEngine:
    """An engine with three prompts, one longer than its budget, two with the same beginning."""
    engine = llm.new_engine(changes=CONFIG | changes)
    for name, prompt in (("a", [3, 4, 5, 6, 7]), ("b", list(range(3, 12)) * 3), ("c", [3, 4, 5])):
        engine.add_request(name, prompt, LONG)
    return engine


def record(engine: LLMEngine) -> list[StepAnatomy]:
    with record_anatomy(engine) as steps:
        while engine.has_unfinished_requests():
            engine.step()
    return steps


def test_anatomy_is_what_the_requests_were(tiny: LLM) -> None:
    engine = busy(tiny)
    requests = {request.request_id: request for request in engine.scheduler.waiting}
    steps = record(engine)
    assert engine.step_trace is None  # as it was before
    computed = dict.fromkeys(requests, 0)
    for step in steps:
        begin = 0
        for name, new in step.record.tokens.items():
            end = begin + new.num_new
            place = slice(new.start, new.start + new.num_new)
            assert step.owners[begin:end] == [name] * new.num_new
            assert step.input_ids[begin:end] == requests[name].all_token_ids[place]
            assert step.positions[begin:end] == list(range(place.start, place.stop))
            slots = slot_mapping(step.block_tables[name], 4, place.start, place.stop)
            assert step.slots[begin:end] == slots
            computed[name] += new.num_new
            begin = end
        assert begin == len(step.input_ids)
    # The last token of each answer is never computed; b's first block is a's, and is found.
    assert computed == {name: r.num_tokens - 1 - (name == "b") * 4 for name, r in requests.items()}


def test_nothing_stays_hooked_when_a_step_fails(tiny: LLM) -> None:
    engine = busy(tiny)
    with pytest.raises(KeyboardInterrupt), record_anatomy(engine):
        engine.step()
        raise KeyboardInterrupt
    assert not tiny.model._forward_pre_hooks and engine.step_trace is None


def test_every_token_and_every_written_slot_is_drawn(tiny: LLM) -> None:
    step = record(busy(tiny))[2]
    figure = plot_anatomy(step, tiny.get_tokenizer(), num_blocks=24, block_size=4)
    batch, memory, times = figure.axes
    assert len(batch.patches) == len(step.input_ids)
    image = memory.images[0].get_array()
    written = {name: 0 for name in step.block_tables}
    for row in image.reshape(-1, 3):
        for name, color in zip(step.block_tables, REQUEST_COLORS, strict=False):
            written[name] += same_color(tuple(row), color)
    assert written == {name: new.num_new for name, new in step.record.tokens.items()}
    assert sum(bar.get_width() for bar in times.patches) == pytest.approx(
        1e3 * (step.record.end - step.record.start)
    )


def test_guesses_are_hatched(tiny: LLM) -> None:
    guess = SpeculativeConfig("ngram", num_speculative_tokens=3, prompt_lookup_min=1)
    steps = record(busy(tiny, speculative_config=guess))
    step = next(s for s in steps if any(new.num_draft for new in s.record.tokens.values()))
    figure = plot_anatomy(step, tiny.get_tokenizer(), num_blocks=24, block_size=4)
    hatched = [bool(patch.get_hatch()) for patch in figure.axes[0].patches]
    expected = [
        i >= new.num_new - new.num_draft
        for new in step.record.tokens.values()
        for i in range(new.num_new)
    ]
    assert hatched == expected and any(expected)


def test_explorer_draws_every_step(tiny: LLM) -> None:
    steps = record(busy(tiny, num_gpu_blocks=16))[::4]
    explorer = anatomy_explorer(steps, tiny.get_tokenizer(), num_blocks=16, block_size=4)
    pictures = set()
    for index in range(1, len(steps) + 1):
        explorer.controls["step"].value = index
        assert explorer.error is None
        pictures.add(bytes(explorer._image.value))
        batch = explorer.draw(step=index).axes[0]
        assert len(batch.patches) == len(steps[index - 1].input_ids)
    assert len(pictures) == len(steps) > 3


def test_explorer_begins_where_something_happens(tiny: LLM) -> None:
    steps = record(busy(tiny, num_gpu_blocks=16))
    explorer = anatomy_explorer(steps, tiny.get_tokenizer(), num_blocks=16, block_size=4)
    number = explorer.controls["step"].value
    shown = steps[number - 1].record
    assert shown.preempted_req_ids or shown.resumed_req_ids or shown.finished_req_ids
    title = explorer.draw(step=number).get_suptitle()
    assert all(f"request {name}" in title for name in shown.finished_req_ids[:1])


def test_requests_that_share_a_step_differ_in_color(tiny: LLM) -> None:
    engine = tiny.new_engine(changes=CONFIG)
    for i in range(12):
        engine.add_request(str(i), [3 + i % 9, 4, 5], LONG)
    steps = record(engine)
    colors = distinct_colors(steps)
    assert len(colors) == 12
    for step in steps:
        assert len({colors[name] for name in step.block_tables}) == len(step.block_tables)


def test_an_engine_without_blocks_is_refused(tiny: LLM) -> None:
    engine = tiny.new_engine(kv_cache_class=ContiguousKVCache)
    with pytest.raises(ValueError, match="paged"), record_anatomy(engine):
        pass


class Clock:
    """Each reading takes 1 s, and a slow part what it adds: so all steps are alike."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_a_slow_part_is_found(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a part takes longer is added to this part, all of it, and to no other."""
    clock = Clock()
    monkeypatch.setattr(step_time, "_now", clock)
    monkeypatch.setattr("utils.engine.llm_engine.perf_counter", clock)
    monkeypatch.setattr("utils.engine.worker.step_runner.perf_counter", clock)
    usual = measure_step_parts({"usual": busy(tiny)}, num_steps=3)["usual"]
    assert list(usual) == list(PARTS) and min(usual.values()) > 0

    engine = busy(tiny)
    schedule, layer = engine.scheduler.schedule, tiny.model.model.layers[0].mlp.down_proj
    forward = layer.forward

    def slow_schedule() -> object:
        clock.now += 500
        return schedule()

    def slow_forward(x: torch.Tensor) -> torch.Tensor:
        clock.now += 1000
        return forward(x)

    monkeypatch.setattr(engine.scheduler, "schedule", slow_schedule)
    monkeypatch.setattr(layer, "forward", slow_forward)
    slow = measure_step_parts({"slow": engine}, num_steps=3)["slow"]
    longer = {part: slow[part] - usual[part] for part in PARTS}
    assert longer == dict.fromkeys(PARTS, 0) | {"schedule": 500, "linear layers": 1000}
    assert not layer._forward_hooks and engine.step_trace is None


def test_measuring_needs_work_to_do(tiny: LLM) -> None:
    with pytest.raises(ValueError, match="has finished all its"):
        measure_step_parts({"idle": tiny.new_engine(changes=CONFIG)}, num_steps=1)


def test_bars_are_milliseconds_of_the_step() -> None:
    parts = {8: {part: 0.01 * (i + 1) for i, part in enumerate(PARTS)}}
    axes = plot_step_parts(parts, "title", least_ms=17).axes[0]
    widths = dict(zip(BARS, (bar.get_width() for bar in axes.patches), strict=True))
    expected = [10 + 20 + 80, 30, 60, 40, 50, 70]  # the first is three parts of `PARTS`
    assert widths == pytest.approx(dict(zip(BARS, expected, strict=True)))
    assert sorted(part for _, of in BARS.values() for part in of) == sorted(PARTS)
    assert "360 ms" in axes.get_yticklabels()[0].get_text()
    assert set(axes.lines[0].get_xdata()) == {17}


def test_changed_tokens_stand_out() -> None:
    points = {"HF": [(0.1, 0.3, True), (2.0, 0.1, False)], "ours": [(3.0, -0.1, False)]}
    axes = plot_noise(points, "title").axes[0]
    placed = [dots.get_offsets().tolist() for dots in axes.collections]
    assert placed[:4] == [[[2.0, 0.1]], [[0.1, 0.3]], [[3.0, -0.1]], []]
    assert [text.get_text() for text in axes.get_legend().get_texts()][:2] == [
        "HF: another token",
        "ours: another token",
    ]


def report(engines: dict[str, Any]) -> dict[str, Any]:
    return {"results": {"engines": engines}, "machine": {"threads": 2}, "vllm": describe()}


def test_an_engine_that_failed_has_no_bar() -> None:
    speeds = {"ours": {"tokens_per_s": 30.0}, "HF": {"tokens_per_s": 20.0}}
    failed = {"ours": {"tokens_per_s": 50.0}, "HF": {"error": "out of memory"}}
    figure = plot_throughput(report({"float32": {"batch 1": speeds, "batch 8": failed}}))
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [30.0, 50.0, 20.0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ours", "HF"]


def test_rounds_range_around_their_median() -> None:
    result = {"tokens_per_s": 50.0, "seconds": [2.0, 1.0, 4.0]}
    assert rounds_range(result) == (25.0, 100.0)
    assert rounds_range({"tokens_per_s": 50.0}) == (50.0, 50.0)


def test_the_finding_is_that_of_the_largest_batch() -> None:
    found = {"ours": {"ours_is_faster": 1.0}, "vLLM": {"ours_is_faster": 1.5}, "HF": {"error": "x"}}
    engines = {"float32": {"batch 64": found, "batch 8": {}, "ShareGPT-like": {}}}
    assert throughput_finding(engines) == "float32, batch 64: ours is 1.50 times as fast as vLLM"


@pytest.mark.parametrize("file", FILES)
def test_the_committed_benchmarks_can_be_drawn(file: str) -> None:
    measured = read_report(RESULTS / file)
    engines = measured["results"]["engines"]
    assert engines and throughput_finding(engines).count("as fast as vLLM") == len(engines)
    assert plot_throughput(measured).axes


def test_a_missing_benchmark_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"benchmarks/throughput\.py"):
        read_report(tmp_path / "throughput.json")
