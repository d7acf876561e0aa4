"""A widget that walks through the steps of an engine, drawn from its `step_trace`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from utils.engine import LLMEngine, RequestOutput
from utils.engine.core.step_record import StepRecord
from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREY, INK, ORANGE

COMPUTED, NOW, LOST = "#a9c6ea", BLUE, "#f7e3cf"


@dataclass(frozen=True)
class EngineRun:
    """What the scrubber shows.

    Attributes:
        steps: the engine's `step_trace`.
        prompt_lens: by request id, in order of arrival: tokens of the prompt.
        output_lens: by request id: tokens of the finished answer.
        max_num_batched_tokens: the budget of a step.
        num_blocks: of the KV cache.
    """

    steps: Sequence[StepRecord]
    prompt_lens: Mapping[str, int]
    output_lens: Mapping[str, int]
    max_num_batched_tokens: int
    num_blocks: int

    @classmethod
    def of(cls, engine: LLMEngine, outputs: Mapping[str, RequestOutput]) -> EngineRun:
        """The run of an engine whose `step_trace` was switched on, and what it answered.

        Raises:
            ValueError: the engine recorded no steps.
        """
        if not engine.step_trace:
            raise ValueError("The engine has no step_trace. Set it to [] before the first step.")
        ordered = sorted(outputs.items(), key=lambda item: item[1].metrics.arrival_time)
        return cls(
            list(engine.step_trace),
            {name: len(output.prompt_token_ids) for name, output in ordered},
            {name: len(output.outputs[0].token_ids) for name, output in ordered},
            engine.config.max_num_batched_tokens,
            engine.kv_cache_manager.block_pool.num_gpu_blocks,
        )


@dataclass(frozen=True)
class RequestState:
    """One request in one step.

    Attributes:
        status: "not running yet", "prefill", "decode", "preempted", "recompute" or "finished".
        num_computed: tokens whose keys and values were there before the step.
        num_new: tokens that the step computes.
        num_lost: tokens that were computed once and are not there now.
    """

    status: str
    num_computed: int = 0
    num_new: int = 0
    num_lost: int = 0


def states_at(run: EngineRun, index: int) -> dict[str, RequestState]:
    """The state of every request in step number `index`, from 0."""
    return {
        request_id: _state(run.steps[: index + 1], request_id) for request_id in run.prompt_lens
    }


def _state(steps: Sequence[StepRecord], request_id: str) -> RequestState:
    most, before, status, last = 0, 0, "not running yet", None
    for step in steps:
        if request_id in step.preempted_req_ids:
            status, before = "preempted", most
        if request_id in step.tokens:
            last = step.tokens[request_id]
            prefill = last.num_new - last.num_draft > 1 or last.num_sampled == 0
            status = "prefill" if prefill else "decode"
            if last.start < before:  # it comes back, and computes these tokens again
                status = "recompute"
            most = max(most, last.start + last.num_new)
    if last is not None and request_id in steps[-1].tokens:
        num_lost = max(0, most - last.start - last.num_new)
        return RequestState(status, last.start, last.num_new, num_lost)
    if any(request_id in step.finished_req_ids for step in steps):
        return RequestState("finished", most)
    return RequestState(status, 0, 0, most)


def plot_step(run: EngineRun, index: int) -> Figure:
    """One step: the requests with their tokens, the step's budget and the memory in use."""
    step, states = run.steps[index], states_at(run, index)
    figure = plt.figure(figsize=(10, 0.36 * len(states) + 2.0))
    grid = figure.add_gridspec(1, 2, width_ratios=(4.2, 1))
    _draw_requests(figure.add_subplot(grid[0]), run, states)
    _draw_meters(figure.add_subplot(grid[1]), run, step)
    num_tokens = sum(tokens.num_new for tokens in step.tokens.values())
    title = (
        f"Step {index + 1} of {len(run.steps)}: {len(step.tokens)} requests, {num_tokens} tokens, "
        f"{1e3 * (step.end - step.start):.0f} ms"
    )
    events = [
        f"{'request' if len(names) == 1 else 'requests'} {' and '.join(names)} {what}"
        for names, what in (
            (step.preempted_req_ids, "preempted"),
            (step.resumed_req_ids, "resumed"),
            (step.finished_req_ids, "finished"),
        )
        if names
    ]
    figure.suptitle("; ".join([title, *events]), x=0.01, ha="left", fontsize=12, weight="bold")
    labels = (
        (COMPUTED, "computed before"),
        (NOW, "computed in this step"),
        (LOST, "not in memory"),
    )
    patches = [Patch(facecolor=c, edgecolor=GREY, label=text) for c, text in labels]
    figure.legend(handles=patches, loc="outside lower left", ncols=3, fontsize=9.5)
    return figure


def step_scrubber(runs: Mapping[str, EngineRun]) -> Explorer:
    """A slider over the steps, and a choice of runs. It begins in the middle of the first one.

    Args:
        runs: name -> run.
    """
    most = max(len(run.steps) for run in runs.values())
    middle = (len(next(iter(runs.values())).steps) + 1) // 2
    slider = ipywidgets.IntSlider(
        middle, min=1, max=most, description="step", continuous_update=False
    )
    slider.layout.width = "520px"

    def draw(name: str, step: int) -> Figure:
        run = runs[name]
        return plot_step(run, min(step, len(run.steps)) - 1)

    choice = ipywidgets.Dropdown(options=list(runs), description="run")
    return Explorer(draw, name=choice, step=slider)


def _draw_requests(axes: Axes, run: EngineRun, states: Mapping[str, RequestState]) -> None:
    longest = max(run.prompt_lens[name] + run.output_lens[name] for name in states)
    for row, (name, state) in enumerate(states.items()):
        total = run.prompt_lens[name] + run.output_lens[name]
        axes.barh(row, total, height=0.7, color="white", edgecolor="#d0d0d0", linewidth=0.8)
        left = 0
        for length, color in (
            (state.num_computed, COMPUTED),
            (state.num_new, NOW),
            (state.num_lost, LOST),
        ):
            axes.barh(row, length, left=left, height=0.7, color=color)
            left += length
        prompt = run.prompt_lens[name]
        axes.vlines(prompt, row - 0.43, row + 0.43, color=INK, linewidth=1.4)
        color = ORANGE if state.status == "preempted" else GREY
        weight = "bold" if state.status == "preempted" else "normal"
        axes.text(
            longest * 1.02, row, state.status, va="center", fontsize=9, color=color, weight=weight
        )
    axes.set_yticks(range(len(states)), list(states))
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= longest])
    axes.set_xlim(0, longest * 1.22)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("token of the request (black line: end of the prompt)")


def _draw_meters(axes: Axes, run: EngineRun, step: StepRecord) -> None:
    num_tokens = sum(tokens.num_new for tokens in step.tokens.values())
    meters = {
        "token\nbudget": (
            num_tokens / run.max_num_batched_tokens,
            f"{num_tokens}/{run.max_num_batched_tokens}",
        ),
        "KV\nblocks": (
            step.kv_cache_usage,
            f"{round(step.kv_cache_usage * run.num_blocks)}/{run.num_blocks}",
        ),
    }
    for column, (share, text) in enumerate(meters.values()):
        axes.bar(column, 1, width=0.6, color="white", edgecolor="#d0d0d0")
        axes.bar(column, share, width=0.6, color=(NOW, GREY)[column])
        axes.text(column, 1.03, text, ha="center", fontsize=9.5)
    axes.set_xticks(range(len(meters)), list(meters))
    axes.set_yticks([])
    axes.set_ylim(0, 1.15)
    axes.grid(visible=False)
    axes.set_title(f"{step.num_waiting} waiting", fontsize=10.5, weight="normal", loc="center")
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
