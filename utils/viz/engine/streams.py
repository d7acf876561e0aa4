"""What the users of an engine read, step by step: streams of text while requests come and go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from utils.engine.llm_engine import LLMEngine
from utils.engine.outputs import RequestOutput
from utils.engine.request import RequestStatus
from utils.viz.style import BLUE, GREY, INK

# By the kind of a cell: face color, hatch, and words for the legend.
KINDS = {
    "text": ("#cfe8c6", "", "text that the user reads after this step"),
    "held": ("#cfe8c6", "///", "a token, but no text yet"),
    "prompt": ("#b9d3ef", "", "tokens of a prompt"),
    "waits": ("white", "...", "waits"),
    "gave way": ("#f2a65a", "xx", "gave way: its blocks are taken"),
    "leaves": ("#c9c9c9", "", "the user is gone"),
}
STEP_INCHES, POINTS_PER_LETTER = 0.42, 0.56  # of a letter, per point of its size


@dataclass
class Streams:
    """Calls an engine's `step`, and keeps what its users see.

    Args:
        engine: whose requests come and go between the calls of `step`.

    Attributes:
        cells: by request and step, the kind of what happened, and words for it.
        texts: what the user of each request has read so far.
        outputs: the last output of each request.
        found: how many tokens of each prompt were in the prefix cache.
        blocks: how many KV blocks are in use after each step.
    """

    engine: LLMEngine
    cells: dict[str, dict[int, tuple[str, str]]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, RequestOutput] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)
    blocks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._live: set[str] = set()  # after the last step

    @property
    def num_steps(self) -> int:
        """How many steps there were."""
        return len(self.blocks)

    @property
    def preempted(self) -> list[str]:
        """The requests that had to give way."""
        kinds = {name: {kind for kind, _ in cells.values()} for name, cells in self.cells.items()}
        return [name for name, seen in kinds.items() if "gave way" in seen]

    def step(self) -> list[RequestOutput]:
        """One step of the engine."""
        scheduled: dict[str, int] = {}
        schedule, requests = self.engine.scheduler.schedule, dict(self.engine.requests)

        def kept() -> Any:
            output = schedule()
            scheduled.update(output.num_scheduled_tokens)
            return output

        number = self.num_steps
        for name in self._live - set(requests):
            self.cells[name][number] = "leaves", ""
        self.engine.scheduler.schedule = kept  # type: ignore[method-assign]
        try:
            outputs = self.engine.step()
        finally:
            self.engine.scheduler.schedule = schedule  # type: ignore[method-assign]
        came = {output.request_id: output for output in outputs}
        for name, request in requests.items():
            cell = "waits", ""
            if name in came:
                cell = self._read(name, came[name])
            elif name in scheduled:
                cell = "prompt", str(scheduled[name])
            elif request.status == RequestStatus.PREEMPTED:
                cell = "gave way", ""
            self.cells.setdefault(name, {})[number] = cell
        manager, config = self.engine.kv_cache_manager, self.engine.config
        self.blocks.append(round(manager.usage * config.num_gpu_blocks))
        self._live = set(self.engine.requests)
        return outputs

    def _read(self, name: str, output: RequestOutput) -> tuple[str, str]:
        before, text = self.texts.get(name, ""), output.outputs[0].text
        self.texts[name], self.outputs[name] = text, output
        self.found.setdefault(name, output.num_cached_tokens or 0)
        piece = text[len(before) :]
        return ("text", piece) if piece else ("held", "")

    def figure(self, title: str) -> Figure:
        """Requests as rows, steps as columns; below them, the blocks in use."""
        num_steps, names = self.num_steps, list(self.cells)
        size = (STEP_INCHES * num_steps + 1.6, 0.42 * len(names) + 2.6)
        figure, (ax, below) = plt.subplots(
            2, figsize=size, sharex=True, height_ratios=[len(names), 2.2], layout="constrained"
        )
        for row, name in enumerate(names):
            for number, (kind, words) in self.cells[name].items():
                _draw_cell(ax, number, row, kind, words)
        labels = [f"{n}: {self.found[n]} found" if self.found.get(n) else n for n in names]
        ax.set_yticks([row + 0.5 for row in range(len(names))], labels, size=9)
        ax.set_ylim(len(names), 0)
        ax.set_xlim(0, num_steps)
        ax.set_title(title)
        below.bar([n + 0.5 for n in range(num_steps)], self.blocks, width=0.88, color=BLUE)
        most = self.engine.config.num_gpu_blocks
        below.axhline(most, color=GREY, linewidth=1)
        below.set_ylim(0, 1.1 * most)
        below.set_ylabel("blocks in use", size=9)
        below.set_xticks([n + 0.5 for n in range(num_steps)], range(1, num_steps + 1), size=8)
        below.set_xlabel(f"step (grey line: all {most} blocks)", size=9)
        for axes in (ax, below):
            axes.grid(visible=False)
            axes.tick_params(length=0)
        ax.spines[:].set_visible(False)
        seen = {kind for cells in self.cells.values() for kind, _ in cells.values()}
        patches = [
            Patch(facecolor=color, hatch=hatch, edgecolor=INK, linewidth=0.6, label=words)
            for kind, (color, hatch, words) in KINDS.items()
            if kind in seen
        ]
        figure.legend(handles=patches, loc="outside lower center", ncols=3, fontsize=9)
        return figure


def _draw_cell(ax: Axes, x: int, y: int, kind: str, words: str) -> None:
    color, hatch, _ = KINDS[kind]
    box = Rectangle((x, y + 0.08), 1, 0.84, facecolor=color, hatch=hatch, edgecolor=INK)
    box.set_linewidth(0.6)
    ax.add_patch(box)
    words = words.replace("\n", "↵").replace("$", r"\$")
    fits = 72 * STEP_INCHES / (POINTS_PER_LETTER * max(len(words.strip()), 1))
    ax.text(x + 0.5, y + 0.5, words.strip(), ha="center", va="center", size=min(8.0, fits))
