"""Requests come, write, fork and end, told in pictures of the block pool: lesson 04's widget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import ipywidgets
from matplotlib.figure import Figure

from utils.engine import KVCacheManager, Request, SamplingParams
from utils.viz.explore import Explorer
from utils.viz.memory.block_pool import PoolState, plot_pool


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
        request = Request(name, list(range(len(words))), SamplingParams(max_tokens=None), 10**6, ())
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
            shared = copies[0][0]
            others = [n for n in self.requests if shared in self.manager.get_block_ids(n)]
            caption = f"{name} writes {word!r}, but {_use(others)} block {shared}: copy-on-write"
        elif blocks:
            caption = f"{name} writes {word!r}: its last block is full, so it gets block {last}"
        else:
            caption = f"{name} writes {word!r}: there is room in its last block"
        self._tell(caption, [last], copies)

    def fork(self, parent: str, child: str) -> None:
        """Let a second answer begin where the parent stands."""
        request = self.requests[parent]
        twin = Request(child, list(request.all_token_ids), request.sampling_params, 10**6, ())
        self.manager.fork(request, twin)
        self.requests[child], self.words[child] = twin, list(self.words[parent])
        ids = self.manager.get_block_ids(child)
        caption = f"{parent} is forked into {child}: both tables list the same blocks"
        self._tell(f"{caption}, and nothing is copied", ids)

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
        self, caption: str, changed: Sequence[int] = (), copies: Sequence[tuple[int, int]] = ()
    ) -> None:
        pool, size = self.manager.block_pool, self.manager.block_size
        tables = {name: self.manager.get_block_ids(name) for name in self.requests}
        state = PoolState.of(
            size,
            [block.ref_cnt for block in pool.blocks],
            tables,
            self.words,
            [block.block_id for block in pool.free_block_queue],
        )
        self.moments.append(Moment(caption, state, list(changed), list(copies)))


def _blocks(ids: Sequence[int]) -> str:
    numbers = ", ".join(str(block) for block in ids)
    return f"block {numbers}" if len(ids) == 1 else f"blocks {numbers}"


def _use(names: list[str]) -> str:
    return f"{' and '.join(names)} {'uses' if len(names) == 1 else 'use'}"


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
        step=ipywidgets.IntSlider(5, min=0, max=len(stories[4]) - 1, description="step"),
        block_size=ipywidgets.ToggleButtons(
            options=list(stories), value=4, description="block size"
        ),
    )
