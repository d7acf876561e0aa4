"""Where the time of a step goes: measured with hooks on the model's modules, drawn as bars."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import nn

from utils.engine import LLM, LLMEngine, ModelRunner, SamplingParams
from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE

# In the order of a step. The first and the last are the scheduler's and the engine's own work.
PARTS = (
    "schedule",
    "prepare the batch",
    "linear layers",
    "attention",
    "norms, gates, sums",
    "lm_head",
    "sample",
    "process",
)
# What a bar shows: three parts of Python, too short to be seen one by one, are drawn as one.
BARS = {
    "the engine's Python": (ORANGE, ("schedule", "prepare the batch", "process")),
    "linear layers": (BLUE, ("linear layers",)),
    "lm_head": (GREY, ("lm_head",)),
    "attention": ("#7aa6dc", ("attention",)),
    "norms, gates, sums": ("#c9dcf2", ("norms, gates, sums",)),
    "sample": (GREEN, ("sample",)),
}
LINEAR = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


@contextmanager
def _timed(modules: Mapping[str, Sequence[nn.Module]]) -> Iterator[dict[str, float]]:
    """Seconds spent in the named modules, what they call included. "model" also says when."""
    seconds: dict[str, float] = defaultdict(float)
    begun: dict[str, float] = {}

    def start(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            begun[name] = _now()
            seconds.setdefault(f"{name} began", begun[name])

        return hook

    def stop(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            end = _now()
            seconds[name] += end - begun[name]
            seconds[f"{name} ended"] = end

        return hook

    hooks = []
    for name, group in modules.items():
        for module in group:
            hooks.append(module.register_forward_pre_hook(start(name)))
            hooks.append(module.register_forward_hook(stop(name)))
    try:
        yield seconds
    finally:
        for hook in hooks:
            hook.remove()


def decoding(llm: LLM, batch_size: int, prompts: Sequence[list[int]]) -> LLMEngine:
    """An engine with so many requests, all in the middle of their answers of 60 tokens.

    Args:
        prompts: each request has one of them, behind a first token of its own.
    """
    engine = llm.new_engine()
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    for i in range(batch_size):
        prompt = [100 + i, *prompts[i % len(prompts)]]
        engine.add_request(str(i), {"prompt_token_ids": prompt}, params)
    while (
        any(len(r.output_token_ids) < 2 for r in engine.scheduler.running)
        or engine.scheduler.waiting
    ):
        engine.step()
    return engine


def measure_step_parts(
    engines: Mapping[str, LLMEngine], num_steps: int
) -> dict[str, dict[str, float]]:
    """Run steps of engines, by turns, and say how long each of `PARTS` takes.

    Hooks on modules cost a few microseconds each, which counts as "norms, gates, sums".

    Returns:
        By engine, for each part: the median, in seconds.

    Raises:
        ValueError: an engine has nothing left to do before so many steps are run.
    """
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for _ in range(num_steps):
        for name, engine in engines.items():
            if not engine.has_unfinished_requests():
                raise ValueError("An engine has finished all its requests. Give it longer ones.")
            samples[name].append(_step_parts(engine))
    return {
        name: {part: statistics.median(step[part] for step in steps) for part in PARTS}
        for name, steps in samples.items()
    }


def _step_parts(engine: LLMEngine) -> dict[str, float]:
    """The seconds of each part in the engine's next step."""
    assert isinstance(engine.executor, ModelRunner)  # in this process
    model = engine.executor.model
    modules: dict[str, list[nn.Module]] = {"model": [model], "lm_head": [model.lm_head]}
    for name in ("self_attn", *LINEAR):
        modules[name] = [m for path, m in model.named_modules() if path.endswith(name)]
    before, engine.step_trace = engine.step_trace, []
    with _timed(modules) as seconds:
        engine.advance()
    [record], engine.step_trace = engine.step_trace, before
    linear = sum(seconds[name] for name in LINEAR)
    attention = seconds["self_attn"] - seconds["qkv_proj"] - seconds["o_proj"]
    lasted = (
        record.scheduled - record.start,
        seconds["model began"] - record.scheduled,
        linear,
        attention,
        seconds["model"] - linear - attention,
        seconds["lm_head"],
        record.executed - seconds["lm_head ended"],
        record.processed - record.executed,
    )
    return dict(zip(PARTS, lasted, strict=True))


def plot_step_parts(
    parts: Mapping[int, Mapping[str, float]], title: str, least_ms: float
) -> Figure:
    """A bar for each batch size: its step, split into `BARS`, in milliseconds.

    Args:
        parts: batch size -> seconds of each of `PARTS`.
        title: the finding.
        least_ms: what reading the bytes of one request's step takes, drawn as a line.
    """
    figure, axes = plt.subplots(figsize=(9.5, 0.62 * len(parts) + 1.9))
    labels, longest = [], 1e3 * max(sum(seconds.values()) for seconds in parts.values())
    for row, (batch_size, seconds) in enumerate(parts.items()):
        left = 0.0
        for bar, (color, of) in BARS.items():
            ms = 1e3 * sum(seconds[part] for part in of)
            label = bar if row == 0 else None
            look = {"color": color, "edgecolor": "white", "linewidth": 0.7}
            axes.barh(row, ms, left=left, height=0.72, label=label, **look)
            if ms >= 0.02 * longest:
                dark = sum(plt.matplotlib.colors.to_rgb(color)) < 1.5
                place = {"ha": "center", "va": "center", "fontsize": 9}
                ink = "white" if dark else INK
                axes.text(left + ms / 2, row, f"{ms:.0f}", color=ink, **place)
            left += ms
        labels.append(f"{batch_size} request{'s'[: batch_size > 1]}\n{left:.0f} ms")
    limit = f"memory allows {least_ms:.0f} ms"
    halo = [withStroke(linewidth=3.5, foreground="white")]  # for dark bars behind it
    axes.axvline(least_ms, color=INK, linestyle="--", linewidth=1.6, label=limit, path_effects=halo)
    axes.set_yticks(range(len(parts)), labels)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, longest)
    axes.set_xlabel("milliseconds in a step")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold", color=INK)
    figure.legend(loc="outside lower center", ncols=4, fontsize=9.5)
    return figure


def _now() -> float:
    if torch.cuda.is_available():  # a GPU works on while Python goes ahead
        torch.cuda.synchronize()
    return time.perf_counter()
