"""Prompts that are looked up in a pool: exercise 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit import prefix_pictures
from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Stage, mistake
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_utils import BlockHash
from utils.sim.prompt_cache import bare_request

SHOWN = 12  # blocks


@dataclass(frozen=True)
class Lookup:
    """A prompt, and for each of its full blocks: is it "gone", "free" or "in use"?"""

    num_tokens: int
    block_size: int
    blocks: tuple[str, ...]

    def __str__(self) -> str:
        some = ", ".join(
            "not there" if b == "gone" else f"there ({b})" for b in self.blocks[:SHOWN]
        )
        more = ", ..." if len(self.blocks) > SHOWN else ""
        return (
            f"{self.num_tokens} tokens, block_size {self.block_size}; full blocks: "
            f"{some or 'none'}{more}"
        )


def draw(c: Choices) -> Lookup:
    """Mostly found; whole prompts, gaps, and single blocks that are not there."""
    block_size = c.size(1, 40, 3)
    count = c.integer(30, 150) if c.rarely(10) else c.integer(0, 6)
    num_tokens = count * block_size + c.pick((0, c.integer(0, block_size - 1)))
    kinds = ("in use", "free", "gone") if c.rarely(2) else ("in use", "free")
    blocks = [c.pick(kinds) for _ in range(count)]
    if count and c.rarely(3):
        blocks[c.integer(0, count - 1)] = "gone"
    return Lookup(max(1, num_tokens), block_size, tuple(blocks))


def block_hash(number: int) -> BlockHash:
    """A hash that is equal to others of this number, and another object."""
    return BlockHash(b"block %d" % number)


def play(stage: Stage, function: Any, lookup: Lookup) -> None:
    count = len(lookup.blocks)
    pool = BlockPool(count + 2)
    blocks = pool.get_new_blocks(count + 1)[::-1]  # block numbers tell nothing about the order
    there = [i for i, kind in enumerate(lookup.blocks) if kind != "gone"]
    pool.cache_full_blocks(
        [blocks[i] for i in there], [block_hash(i) for i in there], 0, len(there)
    )
    pool.free_blocks([blocks[i] for i in range(count) if lookup.blocks[i] != "in use"])
    request = bare_request(0, list(range(lookup.num_tokens)))
    request.block_hashes = [block_hash(i) for i in range(count)]
    hashes, before = list(request.block_hashes), _state(pool)

    got = stage.do(function, request, lookup.block_size, pool)
    a_pair = isinstance(got, tuple | list) and len(got) == 2 and isinstance(got[0], list)
    stage.see("pair", "a pair: a list of blocks, and a number" if a_pair else got)
    state, same = _state(pool), len(request.block_hashes) == len(hashes)
    same = same and all(a is b for a, b in zip(request.block_hashes, hashes, strict=True))
    same = same and request.num_tokens == lookup.num_tokens
    stage.see("looks", "all as before" if state == before and same else "changed")
    numbers = {id(block): place for place, block in enumerate(blocks[:count])}
    found = [numbers.get(id(block), -1) if block is not None else None for block in got[0]]
    stage.see("found", (found, got[1]), _words, lambda want, yours: _picture(lookup, want, yours))


def _state(pool: BlockPool) -> Any:
    blocks = [(block.ref_cnt, block.block_hash) for block in pool.blocks]
    queue = [block.block_id for block in pool.free_block_queue]
    return blocks, queue, {k: list(v) for k, v in pool.cached_block_hash_to_block.items()}


def _words(found: Any) -> str:
    blocks, tokens = found
    shown = str(blocks[:SHOWN]).replace("-1", "another one")
    return f"blocks {shown}{' and more' if len(blocks) > SHOWN else ''}, {tokens} tokens"


def _picture(lookup: Lookup, want: Any, got: Any) -> tuple[Figure | None, str]:
    cached = [kind != "gone" for kind in lookup.blocks[: 2 * SHOWN]]
    if not cached:
        return None, ""
    figure = prefix_pictures.lookup(cached, want[0], got[0])
    return figure, "The blocks of the prompt: in the pool, expected, and yours."


def right_lookup(request: Any, block_size: int, block_pool: Any) -> Any:
    """Brute force: the longest of all prefixes of whole blocks that leave a token over."""
    best: list[Any] = []
    for count in range(len(request.block_hashes) + 1):
        blocks = [block_pool.get_cached_block(h) for h in request.block_hashes[:count]]
        if None in blocks:
            break
        best = blocks if count * block_size < request.num_tokens else best
    return best, len(best) * block_size


def variant(
    *,
    most: Callable[[int, int], int] = lambda n, s: (n - 1) // s,
    stop: str = "miss",
    keep: Callable[[list[Any]], list[Any]] = lambda b: b,
    tokens: Callable[[int, int, int], int] = lambda b, s, n: b * s,
    touch: bool = False,
) -> Callable[..., Any]:
    """The lookup with one switch per known mistake. Serves to recognise, never as oracle."""

    def lookup(request: Any, size: int, pool: Any) -> Any:
        found = [pool.get_cached_block(h) for h in request.block_hashes]
        found = found[: most(request.num_tokens, size)]
        if stop == "miss":
            found = found[: (*found, None).index(None)]
        elif stop == "never":
            found = [block for block in found if block is not None]
        while found and found[-1] is None:
            found.pop()
        run, found = len(found), keep(found)
        if touch:
            pool.touch(found)
        return found, tokens(run, size, request.num_tokens)

    return lookup


LAST = (
    "`max_num_blocks = (request.num_tokens - 1) // block_size`: the last token is never looked up."
)
STOP = "Leave the loop at the first block that is not there: `break`."
TOKENS = "`len(blocks) * block_size`."
ALL = 10**9
GET_COMPUTED_BLOCKS = Contract(
    inputs=draw,
    judge=InLockstep(play, right_lookup),
    passed="The longest computed prefix in 200 situations, gaps and fully cached prompts included. "
    "At least one token is always left to compute, and nothing is touched.",
    examples=200,
    clauses={
        "pair": Clause(
            "Your function returned {got}; expected a pair: a list of blocks, and how "
            "many tokens they hold.",
            "`return blocks, len(blocks) * block_size`.",
        ),
        "looks": Clause(
            "A lookup must not touch the blocks, nor change the pool or the request. "
            "The engine touches them when the request really starts; touched twice, "
            "they would never become free again.",
            "Only `get_cached_block` is needed.",
        ),
        "found": Clause(
            "These are not the blocks of the longest computed prefix, or not its tokens.",
            f"{STOP} {LAST}",
        ),
    },
    mistakes=(
        mistake(
            "When the whole prompt is found, no token is left to compute. Without one there "
            "are no logits, and the engine has nothing to sample from.",
            LAST,
            variant(most=lambda n, s: ALL),
        ),
        mistake(
            "Your lookup goes on after the first miss. The blocks behind a gap are no prefix: "
            "what lies in the gap is not computed.",
            STOP,
            variant(stop="never"),
        ),
        mistake(
            "You take all blocks before the last hit. Some of them are not in the pool: they "
            "were evicted.",
            STOP,
            variant(stop="at the end"),
        ),
        mistake(
            "The last found block is always thrown away. That is needed only when nothing else "
            "would be left to compute.",
            LAST,
            variant(
                most=lambda n, s: ALL,
                keep=lambda b: b[:-1],
                tokens=lambda b, s, n: max(0, b - 1) * s,
            ),
        ),
        mistake(
            "The prompt's last full block is never used, even when other tokens follow.",
            LAST,
            variant(most=lambda n, s: max(0, n // s - 1)),
        ),
        mistake(
            "You keep the last block and compute its last token again: that writes into a "
            "block that others may be reading.",
            LAST,
            variant(most=lambda n, s: ALL, tokens=lambda b, s, n: min(b * s, n - 1)),
        ),
        mistake(
            "The second value counts blocks. The engine expects tokens.",
            TOKENS,
            variant(tokens=lambda b, s, n: b),
        ),
        mistake(
            "The blocks are right, but you report 0 computed tokens: positions would restart "
            "at zero, and the prompt would be computed again.",
            TOKENS,
            variant(tokens=lambda b, s, n: 0),
        ),
    ),
)
