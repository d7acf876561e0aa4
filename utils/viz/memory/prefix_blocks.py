"""Who holds which block of a prefix cache: a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.request import Request
from utils.viz.style import BLUE, GREY, INK, MAX_HEIGHT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Dark to light, so that they can be told apart in grey.
SHARED, USED, CACHED, EMPTY = BLUE, "#a9c4e8", "#d0d0d0", "white"
COLUMNS = 6
BOX_WIDTH, BOX_HEIGHT, GAP = 1.0, 0.8, 0.08
LABEL_WIDTH = 0.75


def plot_prefix_blocks(
    manager: KVCacheManager,
    running: Mapping[str, Request],
    tokenizer: PreTrainedTokenizerBase,
    title: str,
    ended: Iterable[Request] = (),
) -> Figure:
    """The block tables of the running requests, and below them the pool with all its blocks.

    Each block shows its text, and a color: how many hold it. In the tables it also shows whether it
    was found or computed; in the pool, how many requests hold it, or, if it is free, when it will
    be reused: "reused 1st" is the next to go. A block that is not full has a dashed border.

    Args:
        manager: with a pool small enough to draw.
        running: name -> request that has blocks, in the order of the rows.
        tokenizer: turns tokens into text.
        title: the finding.
        ended: requests of before, whose blocks may still be found.
    """
    pool = manager.block_pool
    order = {block.block_id: n for n, block in enumerate(pool.free_block_queue, 1)}
    size = manager.block_size
    contents = {
        block_hash: request.all_token_ids[i * size : (i + 1) * size]
        for request in (*ended, *running.values())
        for i, block_hash in enumerate(request.block_hashes)
    }
    hashes = [block.block_hash for block in pool.blocks]
    texts = [tokenizer.decode(contents[name]) if name is not None else "" for name in hashes]
    tables = {}
    for name, request in running.items():
        tables[name] = manager.get_block_ids(request.request_id)
        for begin, block_id in enumerate(tables[name]):
            tokens = request.all_token_ids[begin * size : (begin + 1) * size]
            texts[block_id] = tokenizer.decode(tokens)

    columns = max([COLUMNS, *map(len, tables.values())])
    num_pool_rows = -(-len(pool.blocks) // columns)
    num_rows = len(tables) + num_pool_rows
    height = min(1.02 * num_rows + 1.5, MAX_HEIGHT)
    figure, axes = plt.subplots(figsize=(1.35 * (columns + LABEL_WIDTH), height))
    room = 3 if num_rows <= 5 else 2 if num_rows <= 8 else 1  # lines of text in a box
    texts = [_short(text, room) for text in texts]
    for row, (name, table) in enumerate(tables.items()):
        num_hits = (running[name].num_cached_tokens or 0) // manager.block_size
        _label(axes, row, name)
        for column, block_id in enumerate(table):
            found, full = column < num_hits, pool.blocks[block_id].block_hash is not None
            what = "found" if found else "computed" if full else "not full"
            color = SHARED if pool.blocks[block_id].ref_cnt > 1 else USED
            _box(axes, row, column, texts[block_id], f"block {block_id}, {what}", color, full)
    for block in pool.blocks:
        row, column = divmod(block.block_id, columns)
        row += len(tables)
        if column == 0:
            _label(axes, row, "the pool" if row == len(tables) else "")
        if block.ref_cnt:
            note, color = f"held by {block.ref_cnt}", SHARED if block.ref_cnt > 1 else USED
        else:
            note = f"reused {_ordinal(order[block.block_id])}"
            color = EMPTY if block.block_hash is None else CACHED
        full = block.block_hash is not None or block.ref_cnt == 0
        _box(axes, row, column, texts[block.block_id], f"{block.block_id}: {note}", color, full)
    if tables:
        y = -(len(tables) - 0.5) * 1.02
        axes.plot([0, LABEL_WIDTH + columns], [y, y], color=GREY, linewidth=0.8)
    axes.set_xlim(0, LABEL_WIDTH + columns)
    axes.set_ylim(-(num_rows - 0.45) * 1.02, 0.55)
    axes.axis("off")
    axes.set_title(title)
    labels = {
        "held by several": SHARED,
        "held by one": USED,
        "free, can still be found": CACHED,
        "free, can't be found": EMPTY,
    }
    figure.legend(
        handles=[Patch(facecolor=c, edgecolor=INK, label=name) for name, c in labels.items()],
        loc="outside lower center",
        ncols=4,
    )
    return figure


def _label(axes: Axes, row: int, text: str) -> None:
    axes.text(0, -1.02 * row, text, va="center", weight="bold")


def _ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th ... 11th, 12th, 13th ... 21st."""
    teen = 10 < number % 100 < 14
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _short(text: str, room: int) -> str:
    """Text for a box, in as many lines as it has room for."""
    lines = textwrap.wrap(text.replace("\n", "⏎").strip(), width=15, break_long_words=True)
    short = lines if len(lines) <= room else [*lines[: room - 1], lines[room - 1][:13] + " …"]
    return "\n".join(short)


def _box(axes: Axes, row: int, column: int, text: str, note: str, color: str, full: bool) -> None:
    left, bottom = LABEL_WIDTH + column, -1.02 * row - BOX_HEIGHT / 2
    ink = "white" if color == SHARED else INK
    axes.add_patch(
        FancyBboxPatch(
            (left + GAP, bottom),
            BOX_WIDTH - 2 * GAP,
            BOX_HEIGHT,
            boxstyle="round,pad=0.03",
            facecolor=color,
            edgecolor=INK,
            linewidth=0.8,
            linestyle="solid" if full else "dashed",
        )
    )
    middle = left + BOX_WIDTH / 2
    # A dollar sign in a prompt is no formula.
    axes.text(
        middle,
        bottom + 0.5,
        text,
        ha="center",
        va="center",
        fontsize=8.5,
        color=ink,
        parse_math=False,
    )
    axes.text(middle, bottom + 0.09, note, ha="center", va="center", fontsize=8, color=ink)
