"""Pictures of prefix caching for notebook 05: hit rates by cache size, and trees of shared text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from utils.sim.radix_cache import RadixNode, RadixTree
from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE, RED

Decode = Callable[[list[int]], str]

# Markers and dashes tell the lines apart in grey, where colours do not.
_LINES = (
    (BLUE, "o", "-"),
    (RED, "v", "--"),
    (ORANGE, "s", "-"),
    (GREY, "x", ":"),
    (INK, "*", "-."),
    (GREEN, "D", "-"),
)


def plot_hit_rates(
    rates: Mapping[str, Sequence[float]],
    num_tokens: Sequence[int],
    bound: float,
    title: str,
    lowest: float = 0.0,
) -> Figure:
    """Hit rate against cache size, a line per policy. The first one is a wide band.

    Args:
        rates: policy -> hit rates in 0..1, one per cache size.
        num_tokens: the cache sizes, in tokens.
        bound: hit rate of a cache without a limit.
        title: the finding.
        lowest: where the axis begins, in 0..1. Beyond 0, it says so.

    Raises:
        ValueError: no policy, more than six, or a list of another length than `num_tokens`.
    """
    if not 1 <= len(rates) <= len(_LINES):
        raise ValueError(f"plot_hit_rates draws 1 to {len(_LINES)} policies, not {len(rates)}")
    for name, values in rates.items():
        if len(values) != len(num_tokens):
            raise ValueError(f"{name}: {len(values)} hit rates for {len(num_tokens)} cache sizes")
    figure, axes = plt.subplots(figsize=(8, 4.4))
    for (name, values), (color, marker, dashes) in zip(rates.items(), _LINES, strict=False):
        percent = [100 * value for value in values]
        (line,) = axes.plot(num_tokens, percent, dashes, color=color, marker=marker, label=name)
        if not axes.lines[1:]:  # a wide band, so that lines upon it can be seen
            line.set(linewidth=9, alpha=0.35, marker="", label=f"{name} (drawn wide)")
    axes.axhline(100 * bound, color=INK, linewidth=1, label="no limit (whole blocks)")
    axes.set_xscale("log", base=2)
    axes.set_xticks(num_tokens, [f"{n:,}" for n in num_tokens])
    axes.minorticks_off()
    axes.set_ylim(100 * lowest, 100)
    axes.set_xlabel("cache size (tokens)")
    cut = f", from {100 * lowest:.0f}" if lowest else ""
    axes.set_ylabel(f"prompt tokens found in the cache (%{cut})")
    axes.set_title(title)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


@dataclass
class _Box:
    """A node to draw: its text, the line below it, and what follows it."""

    text: str
    note: str
    shared: bool
    cached: bool = True
    children: list[_Box] = field(default_factory=list)


def plot_radix_tree(tree: RadixTree, decode: Decode) -> Figure:
    """A radix tree, from left to right: each node with its text, tokens and reference count.

    Args:
        tree: what to draw; `RadixNode.ref_cnt` is set by `tree.lock(tree.insert(ids))`.
        decode: token ids -> text, such as `tokenizer.decode`.

    Raises:
        ValueError: the tree is empty.
    """

    def box(node: RadixNode) -> _Box:
        ids = node.tokens.tolist()
        note = f"{_count(len(ids), 'token')}, ref_cnt {node.ref_cnt}"
        children = [box(child) for child in node.children.values()]
        return _Box(decode(ids), note, bool(children), children=children)

    roots = [box(child) for child in tree.root.children.values()]
    shared = sum(len(n.tokens) for n in tree.nodes() if n.children)
    return _draw(roots, f"{tree.num_tokens} tokens stored, {shared} of them for several prompts")


def plot_block_tree(prompts: Sequence[Sequence[int]], block_size: int, decode: Decode) -> Figure:
    """Prompts cut into blocks, equal beginnings drawn once: what a block hash table can share.

    The reference count of a block is the number of prompts that use it. The tokens after the last
    full block are drawn with a dashed border: they cannot be shared.

    Args:
        prompts: token ids of each prompt.
        block_size: tokens per block.
        decode: token ids -> text, such as `tokenizer.decode`.

    Raises:
        ValueError: no prompt, or a block size below 1.
    """
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1 token, not {block_size}")
    full: dict[tuple[int, ...], tuple[_Box, list[int]]] = {}  # prefix -> box, users
    roots: list[_Box] = []
    for number, prompt in enumerate(prompts):
        siblings = roots
        for start in range(0, len(prompt), block_size):
            ids = list(prompt[start : start + block_size])
            prefix = tuple(prompt[: start + len(ids)])
            if len(ids) < block_size:
                siblings.append(_Box(decode(ids), "not full", False, cached=False))
                break
            if prefix not in full:
                full[prefix] = (_Box(decode(ids), "", False), [])
                siblings.append(full[prefix][0])
            box, users = full[prefix]
            users.append(number)
            siblings = box.children
    for box, users in full.values():
        box.note, box.shared = f"ref_cnt {len(users)}", len(users) > 1
    shared = block_size * sum(box.shared for box, _ in full.values())
    stored = block_size * len(full) + sum(len(prompt) % block_size for prompt in prompts)
    return _draw(roots, f"{stored} tokens stored, {shared} of them for several prompts")


_WIDTH, _GAP, _LETTERS = 3.0, 0.55, 24


def _draw(roots: list[_Box], title: str) -> Figure:
    if not roots:
        raise ValueError("there is nothing to draw: insert at least one prompt of one token")
    rows, depth = _extent(roots)
    figure, axes = plt.subplots(figsize=(min(14, 0.6 + 2.3 * depth), 0.7 + 0.72 * rows))
    top = 0.0
    for root in roots:
        _, top = _place(axes, root, 0, top)
    axes.set_xlim(-0.1, depth * (_WIDTH + _GAP))
    axes.set_ylim(rows - 0.4, -0.6)
    axes.axis("off")
    axes.set_title(title)
    return figure


def _extent(boxes: Sequence[_Box]) -> tuple[int, int]:
    """Leaves and levels."""
    below = [_extent(box.children) if box.children else (1, 0) for box in boxes]
    return sum(rows for rows, _ in below), 1 + max(depth for _, depth in below)


def _place(axes: Axes, box: _Box, level: int, top: float) -> tuple[float, float]:
    """Draw a box and all after it from row `top` down; its own row, and the next free one."""
    x = level * (_WIDTH + _GAP)
    rows = []
    bottom = top if box.children else top + 1
    for child in box.children:
        row, bottom = _place(axes, child, level + 1, bottom)
        rows.append(row)
    y = (rows[0] + rows[-1]) / 2 if rows else top
    for row in rows:
        axes.plot(
            [x + _WIDTH, x + _WIDTH + _GAP / 2, x + _WIDTH + _GAP / 2, x + _WIDTH + _GAP],
            [y, y, row, row],
            color=GREY,
            linewidth=1.2,
        )
    axes.add_patch(
        plt.Rectangle(
            (x, y - 0.36),
            _WIDTH,
            0.72,
            facecolor="#cfe0f5" if box.shared else "white",
            edgecolor=BLUE if box.cached else GREY,
            linewidth=2.2 if box.shared else 1.2,
            linestyle="-" if box.cached else "--",
        )
    )
    style: dict[str, Any] = {"parse_math": False, "clip_on": True, "ha": "center", "va": "center"}
    axes.text(x + _WIDTH / 2, y - 0.12, _shorten(box.text), fontsize=9, family="monospace", **style)
    axes.text(x + _WIDTH / 2, y + 0.2, box.note, fontsize=8, color="#555555", **style)
    return y, bottom


def _shorten(text: str) -> str:
    """One line of at most 24 characters, spaces and line ends visible, the middle left out."""
    text = text.replace("\n", "↵").replace(" ", "·")
    if len(text) <= _LETTERS:
        return text
    half = (_LETTERS - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
