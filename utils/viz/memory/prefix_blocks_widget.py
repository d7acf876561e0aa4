"""Lesson 05's widget: send prompts, and see who holds which block of a prefix cache."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

import ipywidgets
from matplotlib.figure import Figure

from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import get_hash_fn_by_name, get_request_block_hasher
from utils.engine.input_processor import InputProcessor
from utils.engine.request import Request
from utils.engine.sampling_params import SamplingParams
from utils.viz.explore import CSS, show
from utils.viz.memory.prefix_blocks import plot_prefix_blocks

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
            [self.examples, self.prompt, buttons, self._message, self._image, ipywidgets.HTML(CSS)]
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

    def draw(self, title: str = "") -> Figure:
        """The blocks as they are now. Without a title, the picture counts what was found."""
        stats = self.manager.prefix_cache_stats
        found = f"Found so far: {stats.hits} of {stats.queries} tokens"
        tokenizer = self.inputs.tokenizer
        title = title or f"{len(self.running)} running. {found}"
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
