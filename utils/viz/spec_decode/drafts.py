"""Guesses in memory and in trees: slots of the KV cache, and who may look at whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from utils.engine import (
    LLM,
    ContiguousBatch,
    ContiguousKVCache,
    LlamaForCausalLM,
    LLMEngine,
    PagedKVCache,
    Request,
    SamplingParams,
    SpeculativeConfig,
    slot_mapping,
)
from utils.engine.spec_decode.tree import tree_depths
from utils.viz.style import BLUE, GREY, INK

BEFORE, KEPT, REJECTED, EMPTY = "#cfe0f5", BLUE, "#f6d5d2", "white"


@dataclass(frozen=True)
class SlotsAfterStep:
    """One request's part of the KV cache, after one step.

    Args:
        block_ids: its block table.
        tokens: texts of the tokens whose keys and values are there, by position, rejected ones too.
        start: tokens that were computed before the step.
        num_new: tokens computed in it.
        num_kept: of these, tokens that stay.
    """

    block_ids: Sequence[int]
    tokens: Sequence[str]
    start: int
    num_new: int
    num_kept: int

    def color(self, position: int) -> str:
        """What the slot of a position holds after the step."""
        if position < self.start:
            return BEFORE
        if position < self.start + self.num_kept:
            return KEPT
        return REJECTED if position < len(self.tokens) else EMPTY


def slots_of_steps(
    llm: LLM, text: str, num_steps: int, spec: SpeculativeConfig
) -> tuple[list[SlotsAfterStep], LLMEngine, Request]:
    """One greedy request's slots after each of its first steps with guesses, in blocks of 4 tokens.

    Returns:
        The slots, the engine, and the request, which still runs in it.
    """
    changes = {"speculative_config": spec, "block_size": 4, "num_gpu_blocks": 256}
    engine, tokenizer = llm.new_engine(changes=changes), llm.get_tokenizer()
    engine.add_request("A", text, SamplingParams(temperature=0, max_tokens=40))
    engine.step()  # computes the prompt
    [request] = engine.scheduler.running
    written, steps = request.all_token_ids[:-1], []
    for _ in range(num_steps):
        new = request.all_token_ids[request.num_computed_tokens :] + request.spec_token_ids
        start = request.num_computed_tokens
        written = written[:start] + new + written[start + len(new) :]
        engine.step()
        kept = request.num_computed_tokens - start
        texts = [tokenizer.decode([token]) for token in written]
        blocks = engine.kv_cache_manager.get_block_ids("A")
        steps.append(SlotsAfterStep(blocks, texts, start, len(new), kept))
    return steps, engine, request


@torch.inference_mode()
def same_keys(
    model: LlamaForCausalLM,
    kv_cache: PagedKVCache,
    token_ids: Sequence[int],
    block_ids: Sequence[int],
) -> bool:
    """Whether the paged cache holds for these tokens the keys that a fresh pass computes."""
    device = kv_cache.keys.device
    ids = torch.tensor(token_ids, device=device)
    fresh = ContiguousKVCache(model.config, len(ids), kv_cache.keys.dtype, device)
    model(ids, torch.arange(len(ids), device=device), ContiguousBatch([len(ids)], [fresh]))
    slots = slot_mapping(list(block_ids), kv_cache.block_size, 0, len(ids))
    return torch.allclose(kv_cache.keys.flatten(1, 2)[:, slots], fresh.keys, atol=1e-3, rtol=1e-3)


def plot_slots(steps: Sequence[SlotsAfterStep], block_size: int, first: int, title: str) -> Figure:
    """A row of slots for each step, one below the other, from position `first` on.

    Args:
        block_size: tokens per block.
        first: a block's beginning; what comes before is not drawn.
    """
    last = max(len(step.block_ids) for step in steps) * block_size
    figure, axes = plt.subplots(figsize=(10, 0.8 * len(steps) + 1.2))
    for row, step in enumerate(steps):
        axes.text(
            first - 0.3, row + 0.55, f"after step {row + 1}", ha="right", va="center", fontsize=9.5
        )
        for number, block_id in enumerate(step.block_ids):
            if number * block_size < first:
                continue
            left = number * block_size
            axes.text(left + 0.05, row + 0.24, f"block {block_id}", fontsize=8, va="bottom")
            for position in range(left, left + block_size):
                _slot(axes, step, position, row)
            axes.add_patch(
                Rectangle(
                    (left, row + 0.27),
                    block_size,
                    0.55,
                    facecolor="none",
                    edgecolor=INK,
                    linewidth=1.8,
                )
            )
    axes.set_xlim(first - 2.2, last + 0.1)
    axes.set_ylim(len(steps), 0)
    axes.axis("off")
    axes.set_title(title)
    labels = {
        "computed before": BEFORE,
        "computed now, stays": KEPT,
        "rejected guess": REJECTED,
        "never written": EMPTY,
    }
    figure.legend(
        handles=[Patch(facecolor=c, edgecolor=INK, label=name) for name, c in labels.items()],
        loc="outside lower center",
        ncols=4,
        fontsize=9.5,
    )
    return figure


def _slot(axes: Axes, step: SlotsAfterStep, position: int, row: int) -> None:
    color = step.color(position)
    hatch = "////" if color == REJECTED else None
    axes.add_patch(
        Rectangle(
            (position, row + 0.27),
            1,
            0.55,
            facecolor=color,
            edgecolor=GREY,
            linewidth=0.7,
            hatch=hatch,
        )
    )
    if position < len(step.tokens):
        ink = "white" if color == KEPT else INK
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1} if color == REJECTED else None
        axes.text(
            position + 0.5,
            row + 0.55,
            step.tokens[position].replace(" ", "·")[:8],
            ha="center",
            va="center",
            fontsize=8.5 if len(step.tokens[position]) > 1 else 14,
            color=ink,
            bbox=box,
            parse_math=False,
        )


def plot_tree_mask(
    root: str, tokens: Sequence[str], parents: Sequence[int], mask: Tensor, title: str
) -> Figure:
    """A tree of guesses on the left, its attention mask on the right.

    Args:
        root, tokens: texts of the last confirmed token, and of the guesses.
        parents: of each guess: the index of an earlier one, or -1.
        mask: [1 + m, 1 + m], see `tree_attention_mask`.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), width_ratios=(1.15, 1))
    texts = [f"{text.strip() or text!r}" for text in (root, *tokens)]
    _draw_tree(left, texts, parents)
    size = len(texts)
    right.imshow(mask, cmap="Blues", vmin=0, vmax=1.25, aspect="equal")
    labels = [f"{text} {i}" for i, text in enumerate(texts)]
    right.set_xticks(range(size), labels, rotation=90, fontsize=8.5, parse_math=False)
    right.set_yticks(range(size), labels, fontsize=8.5, parse_math=False)
    right.set_xticks([i - 0.5 for i in range(size + 1)], minor=True)
    right.set_yticks([i - 0.5 for i in range(size + 1)], minor=True)
    right.grid(visible=False)
    right.grid(which="minor", color="#cccccc", linewidth=0.6)
    right.tick_params(which="both", length=0)
    right.set_xlabel("… at this one: blue means yes")
    right.set_ylabel("may this token look …")
    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=12)
    return figure


def _draw_tree(axes: Axes, texts: Sequence[str], parents: Sequence[int]) -> None:
    depths = [0, *tree_depths(parents)]
    above = [-1, *(parent + 1 for parent in parents)]  # node 0 is the root
    heights: dict[int, float] = {}
    leaves = iter(range(len(texts)))

    def place(node: int) -> float:
        children = [i for i, parent in enumerate(above) if parent == node]
        inner = [place(child) for child in children]
        heights[node] = sum(inner) / len(inner) if inner else float(next(leaves))
        return heights[node]

    place(0)
    for node, parent in enumerate(above):
        if parent >= 0:
            axes.plot(
                [depths[parent], depths[node]],
                [heights[parent], heights[node]],
                color=GREY,
                linewidth=1.2,
                zorder=1,
            )
    for node, text in enumerate(texts):
        axes.text(
            depths[node],
            heights[node],
            f"{text} {node}",
            ha="center",
            va="center",
            fontsize=9,
            parse_math=False,
            bbox={"boxstyle": "round", "facecolor": BEFORE, "edgecolor": INK},
        )
    axes.set_xlim(-0.5, max(depths) + 0.5)
    axes.set_ylim(max(heights.values()) + 0.7, -0.7)
    axes.axis("off")
    axes.set_title(
        "0: the last confirmed token (the text before it is not drawn)",
        fontsize=10.5,
        weight="normal",
    )
