"""Who holds which block of a prefix cache: a picture, and a widget that sends prompts."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import get_hash_fn_by_name, get_request_block_hasher
from utils.engine.input_processor import InputProcessor
from utils.engine.request import Request
from utils.engine.sampling_params import SamplingParams
from utils.viz.explore import CSS, show
from utils.viz.style import BLUE, GREY, INK, MAX_HEIGHT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Dark to light, so that they can be told apart in grey.
SHARED, USED, CACHED, EMPTY = BLUE, "#a9c4e8", "#dcdcdc", "white"
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
    be reused, counted from 1. A block that is not full has a dashed border.

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
            note = f"reused as no. {order[block.block_id]}"
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
    labels = {"held by several": SHARED, "held by one": USED, "free, can be found": CACHED,
              "free": EMPTY}  # fmt: skip
    figure.legend(
        handles=[Patch(facecolor=c, edgecolor=INK, label=name) for name, c in labels.items()],
        loc="outside lower center", ncols=4,
    )  # fmt: skip
    return figure


def _label(axes: Axes, row: int, text: str) -> None:
    axes.text(0, -1.02 * row, text, va="center", weight="bold")


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
    axes.text(middle, bottom + 0.5, text, ha="center", va="center",
              fontsize=8.5, color=ink, parse_math=False)  # fmt: skip
    axes.text(middle, bottom + 0.09, note, ha="center", va="center", fontsize=8, color=ink)


EXAMPLES = (
    "A gentle breeze stirred the leaves as children laughed in the distance.",
    "A gentle breeze stirred the leaves as children slept.",
    "A gentle breeze stirred the sea.",
    "A gentle storm stirred the leaves as children laughed in the distance.",
    "Hello.",
)


class PrefixBlocksWidget(ipywidgets.VBox):
    """Send prompts to a small prefix cache and watch its blocks. No model runs.

    The decisions are those of the engine's own `KVCacheManager`. An error is shown in words and
    kept in `error`, for tests to look at.

    Args:
        inputs: turns texts into requests, as `llm.llm_engine.inputs`.
        num_blocks: blocks in the pool.
        block_size: tokens per block.
        examples: prompts to choose from.
    """

    def __init__(
        self,
        inputs: InputProcessor,
        num_blocks: int = 12,
        block_size: int = 4,
        examples: Sequence[str] = EXAMPLES,
    ) -> None:
        self.inputs, self.num_blocks, self.block_size = inputs, num_blocks, block_size
        self.error: Exception | None = None
        wide = ipywidgets.Layout(width="70%")
        self.examples = ipywidgets.Dropdown(options=examples, description="examples", layout=wide)
        self.prompt = ipywidgets.Text(value=examples[0], description="prompt", layout=wide)
        self.send = ipywidgets.Button(description="Send")
        self.finish = ipywidgets.Button(description="Finish the oldest")
        self.restart = ipywidgets.Button(description="Start again")
        self._message = ipywidgets.HTML()
        self._image = ipywidgets.Image(format="png")
        buttons = ipywidgets.HBox([self.send, self.finish, self.restart])
        super().__init__(
            [
                self.examples,
                self.prompt,
                buttons,
                self._message,
                self._image,
                ipywidgets.HTML(CSS),
            ]
        )
        self.examples.observe(self._copy_example, names="value")
        for button, action in (
            (self.send, self.send_prompt),
            (self.finish, self.finish_oldest),
            (self.restart, self.start_again),
        ):
            button.on_click(lambda _, action=action: self._do(action))
        self._do(self.start_again)

    def _copy_example(self, change: object) -> None:
        self.prompt.value = self.examples.value

    def _do(self, action: Callable[[], str]) -> None:
        try:
            words = action()
            self.error = None
        except ValueError as error:
            self.error, words = error, str(error)
        self._message.value = html.escape(words)
        show(self.draw(), self._image)

    def draw(self) -> Figure:
        """The blocks as they are now."""
        title = f"{len(self.running)} running, {self.manager.prefix_cache_stats.hits} tokens found"
        title += f" of {self.manager.prefix_cache_stats.queries} so far"
        tokenizer = self.inputs.tokenizer
        return plot_prefix_blocks(self.manager, self.running, tokenizer, title, self.ended)

    def start_again(self) -> str:
        """Empty the pool. This and the two below return what there is to say."""
        hasher = get_request_block_hasher(self.block_size, get_hash_fn_by_name("sha256"))
        self.manager = KVCacheManager(self.num_blocks, self.block_size, block_hasher=hasher)
        self.running: dict[str, Request] = {}
        self.ended: list[Request] = []
        self._num_sent = 0
        return f"An empty pool of {self.num_blocks} blocks of {self.block_size} tokens."

    def send_prompt(self) -> str:
        """Send what stands in the field.

        Raises:
            ValueError: there is no room for it.
        """
        [state] = self.inputs.from_prompts([self.prompt.value], SamplingParams(max_tokens=1))
        request = state.request
        num_tokens = request.num_tokens
        if num_tokens > self.num_blocks * self.block_size:
            raise ValueError(
                f"This prompt has {num_tokens} tokens, and the whole pool has room for "
                f"{self.num_blocks * self.block_size}. Send a shorter one."
            )
        blocks, num_found = self.manager.get_computed_blocks(request)
        if self.manager.allocate_slots(request, num_tokens - num_found, blocks) is None:
            raise ValueError("Too few blocks are free. Finish a request first.")
        request.num_computed_tokens, request.num_cached_tokens = num_tokens, num_found
        name = chr(ord("A") + self._num_sent % 26)
        self._num_sent += 1
        self.running[name] = request
        return (
            f"{name} has {num_tokens} tokens: {num_found} found, {num_tokens - num_found} computed."
        )

    def finish_oldest(self) -> str:
        """Give the blocks of the oldest request back.

        Raises:
            ValueError: none is running.
        """
        if not self.running:
            raise ValueError("No request is running. Send one first.")
        name = next(iter(self.running))
        self.ended.append(self.running.pop(name))
        self.manager.free(self.ended[-1])
        return f"{name} is finished. Its full blocks can still be found until they are reused."
