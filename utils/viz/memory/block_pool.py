"""Pictures of block tables, of the memory behind them, and of how many blocks are in use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from utils.engine import KVCacheManager, Request, SamplingParams
from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREY, INK, ORANGE

SLOTS_PER_LINE = 8
# Each brighter than the one before, so that they differ in grey as well.
SHARED, ALONE, EMPTY = "#e8a04c", "#cfe0f5", "white"


@dataclass(frozen=True)
class PoolState:
    """A block pool at one moment.

    Attributes:
        block_size: tokens per block.
        ref_cnts: for each block of the memory, how many tables hold it.
        tables: block numbers by the name of the request.
        texts: for each block in use, its tokens as text, at most `block_size`.
        free_queue: numbers of the free blocks, the next to be handed out first.
    """

    block_size: int
    ref_cnts: Sequence[int]
    tables: Mapping[str, Sequence[int]]
    texts: Mapping[int, Sequence[str]]
    free_queue: Sequence[int]

    @classmethod
    def of(
        cls,
        block_size: int,
        ref_cnts: Sequence[int],
        tables: Mapping[str, Sequence[int]],
        words: Mapping[str, Sequence[str]],
        free_queue: Iterable[int],
    ) -> PoolState:
        """A pool in which each request's tokens, as text in `words`, fill its blocks in order."""
        texts = {
            block: words[name][i * block_size : (i + 1) * block_size]
            for name, table in tables.items()
            for i, block in enumerate(table)
        }
        return cls(block_size, ref_cnts, tables, texts, list(free_queue))


def plot_pool(
    state: PoolState,
    title: str,
    changed: Sequence[int] = (),
    copies: Sequence[tuple[int, int]] = (),
) -> Figure:
    """Block tables on the left, the memory on the right, the free queue below.

    Args:
        state: what to draw.
        title: the finding.
        changed: blocks to draw with a thick edge.
        copies: arrows from block to block.
    """
    slots = len(state.ref_cnts) * state.block_size
    lines = -(-slots // max(SLOTS_PER_LINE, state.block_size))
    figure = plt.figure(figsize=(10, 0.72 * lines + 1.9))
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.9), height_ratios=(lines + 0.3, 0.9))
    _draw_tables(figure.add_subplot(grid[0, 0]), state, lines, changed)
    _draw_memory(figure.add_subplot(grid[0, 1]), state, lines, changed, copies)
    _draw_queue(figure.add_subplot(grid[1, :]), state)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold")
    labels = ((ALONE, "in one table"), (SHARED, "in several tables"), (EMPTY, "free"))
    patches = [Patch(facecolor=c, edgecolor=INK, linewidth=0.8, label=text) for c, text in labels]
    patches.append(
        Patch(facecolor=EMPTY, edgecolor=GREY, hatch="////", label="allocated, not filled yet")
    )
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=9.5)
    return figure


def _color(state: PoolState, block: int) -> str:
    return (EMPTY, ALONE, SHARED)[min(state.ref_cnts[block], 2)]


def _bare(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10.5, weight="normal")
    axes.axis("off")


def _draw_tables(axes: Axes, state: PoolState, lines: int, changed: Sequence[int]) -> None:
    longest = max([5, *(len(table) for table in state.tables.values())])
    for row, (name, table) in enumerate(state.tables.items()):
        axes.text(-0.15, row + 0.4, name, ha="right", va="center", weight="bold")
        for column, block in enumerate(table):
            _box(axes, column, row, 0.9, 0.8, _color(state, block), block in changed)
            axes.text(column + 0.45, row + 0.4, str(block), ha="center", va="center")
    axes.set_xlim(-1.0, longest)
    axes.set_ylim(max(lines, len(state.tables)), -0.1)
    _bare(axes, "block tables")


def _draw_memory(
    axes: Axes,
    state: PoolState,
    lines: int,
    changed: Sequence[int],
    copies: Sequence[tuple[int, int]],
) -> None:
    size = state.block_size
    width = max(SLOTS_PER_LINE, size)
    corners = {b: (b * size % width, b * size // width) for b in range(len(state.ref_cnts))}
    for block, (left, line) in corners.items():
        texts = state.texts.get(block, ())
        for i in range(size):
            filled = i < len(texts)
            axes.add_patch(Rectangle(
                (left + i, line + 0.3), 1, 0.55, linewidth=0.6, edgecolor=GREY,
                facecolor=_color(state, block) if filled else EMPTY,
                hatch="////" if state.ref_cnts[block] and not filled else None,
            ))  # fmt: skip
            if filled:
                axes.text(left + i + 0.5, line + 0.57, texts[i], ha="center", va="center",
                          fontsize=8.5)  # fmt: skip
        _box(axes, left, line + 0.3, size, 0.55, "none", block in changed)
        label = (
            f"{block}" if not state.ref_cnts[block] else f"{block}: ref_cnt {state.ref_cnts[block]}"
        )
        axes.text(left + 0.06, line + 0.26, label, fontsize=8, va="bottom")
    for source, target in copies:
        (left, line), (to_left, to_line) = corners[source], corners[target]
        downwards = line <= to_line  # leave through the edge that faces the target
        start = (left + 0.5, line + (0.85 if downwards else 0.3))
        end = (to_left + 0.5, to_line + (0.3 if line < to_line else 0.85))
        axes.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=16, linewidth=2.4, color=BLUE,
                connectionstyle=f"arc3,rad={0.18 if line == to_line else 0.05}", zorder=5,
            )
        )  # fmt: skip
    axes.set_xlim(-0.1, width + 0.1)
    axes.set_ylim(lines, -0.05)
    _bare(axes, f"KV memory: {len(state.ref_cnts)} blocks of {size} slots")


def _draw_queue(axes: Axes, state: PoolState) -> None:
    for place, block in enumerate(state.free_queue):
        _box(axes, place, 0, 0.85, 0.8, EMPTY, False)
        axes.text(place + 0.42, 0.4, str(block), ha="center", va="center", fontsize=9.5)
    if not state.free_queue:
        axes.text(0, 0.4, "empty: nobody can get a block", va="center")
    axes.set_xlim(-0.1, max(16, len(state.free_queue)))
    axes.set_ylim(0.9, -0.1)
    _bare(axes, "free queue, the next to be handed out on the left")


def _box(
    axes: Axes, left: float, top: float, width: float, height: float, color: str, thick: bool
) -> None:
    axes.add_patch(Rectangle(
        (left, top), width, height, facecolor=color, edgecolor=INK,
        linewidth=2.8 if thick else 1.0, zorder=3 if thick else 2 if color == "none" else 1,
    ))  # fmt: skip


# --- the widget: a story, told by the engine's own manager ---------------------------------------


@dataclass(frozen=True)
class Moment:
    """One step of the story: what happened, and how the pool looks afterwards."""

    caption: str
    state: PoolState
    changed: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)


class BlockStory:
    """Requests arrive, write, fork and end; `KVCacheManager` answers. Words stand for tokens.

    Args:
        block_size: words per block.
        num_slots: words that the whole memory can hold.

    Raises:
        ValueError: `num_slots` is no multiple of `block_size`.
    """

    def __init__(self, block_size: int, num_slots: int = 32) -> None:
        if num_slots % block_size:
            raise ValueError(f"{num_slots} slots cannot be cut into blocks of {block_size}.")
        num_blocks = num_slots // block_size
        self.manager = KVCacheManager(num_blocks, block_size, enable_caching=False)
        self.requests: dict[str, Request] = {}
        self.words: dict[str, list[str]] = {}
        self.moments: list[Moment] = []
        self._tell(f"The memory is cut into {num_blocks} blocks. All of them are free")

    def arrive(self, name: str, prompt: str) -> bool:
        """Admit a prompt, if there is room for it. False: it has to wait."""
        words = prompt.split()
        request = Request(
            name, list(range(len(words))), SamplingParams(max_tokens=None), 10**6, (),
        )  # fmt: skip
        blocks = self.manager.allocate_slots(request, len(words))
        if blocks is None:
            free = self.manager.block_pool.get_num_free_blocks()
            needed = -(-len(words) // self.manager.block_size)
            self._tell(f"{name} arrives and must wait: {needed} needed, {free} free")
            return False
        request.num_computed_tokens = len(words)
        self.requests[name], self.words[name] = request, words
        ids = [block.block_id for block in blocks]
        self._tell(f"{name} arrives: {len(words)} words get {_blocks(ids)}", ids)
        return True

    def write(self, name: str, word: str) -> None:
        """Add a word to a request's text."""
        request = self.requests[name]
        request.all_token_ids.append(0)
        blocks = self.manager.allocate_slots(request, 1)
        if blocks is None:
            raise RuntimeError(f"The story has no room for {name}'s next word.")
        request.num_computed_tokens += 1
        self.words[name].append(word)
        copies = self.manager.take_block_copies().copy
        last = self.manager.get_block_ids(name)[-1]
        if copies:
            caption = f"{name} writes {word!r}, but others read block {copies[0][0]}: copy-on-write"
        elif blocks:
            caption = f"{name} writes {word!r}: its last block is full, so it gets block {last}"
        else:
            caption = f"{name} writes {word!r}: there is room in its last block"
        self._tell(caption, [last], copies)

    def fork(self, parent: str, child: str) -> None:
        """Let a second answer begin where the parent stands."""
        request = self.requests[parent]
        twin = Request(
            child, list(request.all_token_ids), request.sampling_params, 10**6, (),
        )  # fmt: skip
        self.manager.fork(request, twin)
        self.requests[child], self.words[child] = twin, list(self.words[parent])
        ids = self.manager.get_block_ids(child)
        self._tell(f"{parent} forks {child}: both tables name the same blocks, none is copied", ids)

    def finish(self, name: str, verb: str) -> None:
        """Take a request's blocks back."""
        held = self.manager.get_block_ids(name)
        self.manager.free(self.requests.pop(name))
        del self.words[name]
        freed = [b for b in held if not self.manager.block_pool.blocks[b].ref_cnt]
        kept = [b for b in held if b not in freed]
        rest = f"; {_blocks(kept)} still in use" if kept else ""
        self._tell(f"{name} {verb}: {_blocks(freed)} free again{rest}", freed)

    def _tell(
        self,
        caption: str,
        changed: Sequence[int] = (),
        copies: Sequence[tuple[int, int]] = (),
    ) -> None:
        pool, size = self.manager.block_pool, self.manager.block_size
        tables = {name: self.manager.get_block_ids(name) for name in self.requests}
        state = PoolState.of(
            size, [block.ref_cnt for block in pool.blocks], tables, self.words,
            [block.block_id for block in pool.free_block_queue],
        )  # fmt: skip
        self.moments.append(Moment(caption, state, list(changed), list(copies)))


def _blocks(ids: Sequence[int]) -> str:
    numbers = ", ".join(str(block) for block in ids)
    return f"block {numbers}" if len(ids) == 1 else f"blocks {numbers}"


def tell_story(block_size: int) -> list[Moment]:
    """The widget's story, from an empty pool to an empty pool."""
    story = BlockStory(block_size)
    story.arrive("A", "once upon a time there was a")
    story.arrive("B", "the cat sat on the")
    story.write("A", "king")
    story.write("A", "who")
    story.fork("A", "A2")
    story.write("A", "loved")
    story.write("A2", "feared")
    admitted = story.arrive("C", "roses are red and violets are")
    story.write("B", "mat")
    story.finish("B", "is done")
    if admitted:
        story.write("C", "blue")
    else:
        story.arrive("C", "roses are red and violets are")
    story.finish("A2", "is dropped")
    story.write("A", "cake")
    story.finish("A", "is done")
    story.finish("C", "is done")
    return story.moments


def block_pool_explorer() -> Explorer:
    """The story with a slider for its steps, and a choice of block sizes."""
    stories = {size: tell_story(size) for size in (2, 4, 8)}

    def draw(step: int, block_size: int) -> Figure:
        moment = stories[block_size][step]
        return plot_pool(moment.state, f"{step}. {moment.caption}", moment.changed, moment.copies)

    return Explorer(
        draw,
        step=ipywidgets.IntSlider(6, min=0, max=len(stories[4]) - 1, description="step"),
        block_size=ipywidgets.ToggleButtons(
            options=list(stories), value=4, description="block size"
        ),
    )


# --- counts --------------------------------------------------------------------------------------


def plot_blocks_over_steps(
    in_use: Sequence[int],
    with_copies: Sequence[int],
    title: str,
    block_size: int,
    each: str = "answer",
) -> Figure:
    """Blocks held after each step: shared, and what separate copies would have taken.

    Args:
        in_use: different blocks in all tables together.
        with_copies: the sum of the tables' lengths.
        title: the finding.
        block_size: tokens per block, for the label.
        each: what has a table of its own: an answer, or a beam.
    """
    figure, axes = plt.subplots()
    steps = range(1, len(in_use) + 1)
    for values, label, color, style in (
        (with_copies, f"a copy for each {each}", ORANGE, "--"),
        (in_use, "shared, as measured", BLUE, "-"),
    ):
        axes.step(steps, values, where="post", color=color, linestyle=style, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"step (one token more for each {each})")
    axes.set_ylabel(f"blocks of {block_size} tokens")
    axes.set_title(title)
    axes.legend()
    return figure


def plot_block_size_tradeoff(
    block_sizes: Sequence[int],
    predicted_waste: Sequence[float],
    waste: Sequence[float],
    seconds: Mapping[str, Sequence[float]],
) -> Figure:
    """Waste on the left, time of attention on the right, over block sizes.

    Args:
        block_sizes: tokens per block.
        predicted_waste, waste: part of the allocated slots that holds no token, 0 to 1.
        seconds: of attention for one token in one layer, by the name of the method.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4))
    left.plot(block_sizes, [100 * w for w in predicted_waste], "--", color=GREY, label="predicted")
    left.plot(block_sizes, [100 * w for w in waste], "o", color=BLUE, label="counted")
    left.set_title("Small blocks waste little")
    left.set_ylabel("% of allocated slots without a token")
    styles = ((ORANGE, "s"), (BLUE, "o"), (GREY, "^"))
    for (name, values), (color, marker) in zip(seconds.items(), styles, strict=False):
        right.plot(block_sizes, [1e3 * s for s in values], marker=marker, color=color, label=name)
    right.set_yscale("log")
    right.set_title("The loop is faster with large blocks")
    right.set_ylabel("milliseconds, one token, one layer")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(block_sizes, [str(size) for size in block_sizes])
        axes.set_xlabel("block size (tokens)")
        axes.legend()
    return figure
