"""A prompt that gets another tenant's blocks, where digests are short: exercise 6."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice, product
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import BlockHash, get_request_block_hasher, hash_block_tokens
from utils.sim.prompt_cache import bare_request

# Block sizes and vocabularies: of this many prompts, 20 or more have any given digest.
SIZES = {1: ((2, 80), (1, 6000), (3, 18), (8, 3)), 2: ((2, 300), (1, 90_000), (4, 18))}
BITS = {1: 8, 2: 12}
PATIENCE = 40  # times the number of prompts that one has to try on average
VICTIM = "ada"  # her salt

HashBlock = Callable[[bytes | None, Sequence[int]], bytes]


@dataclass(frozen=True)
class Theft:
    """A pool whose digests have one byte or two (of these, 12 bits), a victim's prompt, and the
    thief's salt."""

    num_bytes: int
    block_size: int
    vocab_size: int
    prompt: tuple[int, ...]
    salt: str

    def __str__(self) -> str:
        num_blocks = len(self.prompt) // self.block_size
        return (
            f"{_many(num_blocks, 'block')} of {_many(self.block_size, 'token')}, a vocabulary of "
            f"{self.vocab_size} tokens, digests of {BITS[self.num_bytes]} bits"
        )


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)


def draw(c: Choices) -> Theft:
    num_bytes = 2 if c.rarely(12) else 1
    block_size, vocab_size = c.pick(SIZES[num_bytes])
    num_blocks = c.pick((1, 2, 3, 4)) if num_bytes == 1 else c.pick((1, 2))
    length = num_blocks * block_size + c.integer(0, block_size - 1)
    return Theft(
        num_bytes,
        block_size,
        vocab_size,
        tuple(c.integer(0, vocab_size - 1) for _ in range(length)),
        f"bob {c.integer(0, 9)}",
    )


class Engine:
    """The engine's own cache with a short digest. The victim's blocks are in it."""

    def __init__(self, theft: Theft) -> None:
        self.theft = theft
        hasher = get_request_block_hasher(theft.block_size, self.digest)
        self.manager = KVCacheManager(64, theft.block_size, True, hasher)
        self.victim = bare_request(0, [*theft.prompt], VICTIM)
        self.manager.allocate_slots(self.victim, len(theft.prompt))
        num_blocks = len(self.victim.block_hashes)
        self.tries_left = PATIENCE * 2 ** BITS[theft.num_bytes] * num_blocks

    def digest(self, data: bytes) -> bytes:
        short = sha256(data).digest()[: self.theft.num_bytes]
        return short if len(short) == 1 else bytes((short[0], short[1] & 15))

    def hash_block(self, parent: bytes | None, token_ids: Sequence[int]) -> BlockHash:
        """As the engine hashes a block of the thief's."""
        self.tries_left -= 1
        if self.tries_left < 0:
            raise ValueError(
                f"`hash_block` was called {PATIENCE} times as often as a search block by block "
                f"needs on average. Are all tokens of a block varied, is its parent the right one, "
                f"and is its hash compared with `==`?"
            )
        extra_keys = (None, self.theft.salt) if parent is None else None
        return hash_block_tokens(self.digest, parent, token_ids, extra_keys)


def play(stage: Stage, function: Any, theft: Theft) -> None:
    engine = Engine(theft)
    wanted = [bytes(block_hash) for block_hash in engine.victim.block_hashes]
    got = stage.do(function, engine.hash_block, wanted, theft.block_size, theft.vocab_size)
    if isinstance(got, Raised):
        stage.see("returned", got)
    numbers = isinstance(got, list) and all(isinstance(token, int) for token in got)
    stage.see("returned", "a list of token ids" if numbers else got)
    inside = all(0 <= token < theft.vocab_size for token in got)
    stage.see("vocabulary", "token ids of the vocabulary" if inside else got)
    request = bare_request(1, [*got, *([0] if not got else [])], theft.salt)
    blocks, _ = engine.manager.get_computed_blocks(request)
    mine = [block.block_id for block in blocks]
    theirs = engine.manager.get_block_ids(engine.victim.request_id)
    stage.see("stolen", sum(a == b for a, b in zip(mine, theirs, strict=False)), _blocks)


def _blocks(count: int) -> str:
    return _many(count, "block") + " of the victim's"


def right_thief(
    hash_block: HashBlock, wanted: Sequence[bytes], block_size: int, vocab_size: int
) -> list[int]:
    """Counts up in the base of the vocabulary, with a digit for each token of the block."""
    prompt: list[int] = []
    for place, digest in enumerate(wanted):
        parent = wanted[place - 1] if place else None
        number, tokens = 0, [0] * block_size
        while hash_block(parent, tokens) != digest:
            number += 1
            tokens = [number // vocab_size**i % vocab_size for i in range(block_size)]
        prompt += tokens
    return [*prompt, 0]


def variant(
    *,
    parent: str = "wanted",
    end: int = 1,
    last_only: bool = False,
    beyond: int = 0,
    same: Callable[[bytes, bytes], bool] = lambda a, b: a == b,
) -> Callable[..., list[int]]:
    """The search with one switch per known mistake. Serves to recognise, never as oracle."""

    def steal(
        hash_block: HashBlock, wanted: Sequence[bytes], block_size: int, vocab_size: int
    ) -> list[int]:
        prompt: list[int] = []
        above: bytes | None = None
        for digest in wanted:
            low = beyond and vocab_size
            tries: Iterator[tuple[int, ...]] = product(
                range(low, low + vocab_size), repeat=block_size
            )
            if last_only:
                tries = ((0,) * (block_size - 1) + (t,) for t in range(vocab_size))
            for tokens in islice(tries, 200_000):
                if same(hash_block(above if parent == "wanted" else None, tokens), digest):
                    break
            prompt += tokens
            above = digest
        return prompt + [0] * end

    return steal


PARENT = (
    "Go on with the next block, right behind the first. Its hash takes in the parent's: for block "
    "i, `wanted[i - 1]`; for the first one, None."
)
STEAL_BLOCKS = Contract(
    inputs=draw,
    judge=InLockstep(play, right_thief),
    passed="Your prompts were given all blocks of a tenant whose tokens you never saw, and whose "
    "salt you don't know. With one byte that took about 256 tries a block, with 12 bits 4,096. "
    "Each bit more doubles them: SHA-256 has 256 bits.",
    clauses={
        "returned": Clause(
            "Your function returned {got}; expected a list of token ids.",
            "One flat list of plain ints, with the tokens of all blocks in it.",
        ),
        "vocabulary": Clause(
            "Not all of these are token ids of the vocabulary.", "From 0 to `vocab_size - 1`."
        ),
        "stolen": Clause(
            "Your prompt is given {got}; expected {expected}.",
            "Search block by block, from the first on: tokens whose hash, behind the "
            "hash before, is the wanted one.",
        ),
    },
    mistakes=(
        mistake(
            "The last block isn't handed out.",
            "Is it in your prompt? And is there one more "
            "token behind it? One must be left to be computed (exercise 3).",
            variant(end=0),
        ),
        mistake("Only the first block is stolen.", PARENT, variant(parent="none")),
        mistake(
            "Only the last token of a block is varied. Where the vocabulary is smaller than "
            "the number of digests, none of them may fit.",
            "`itertools.product(range(vocab_size), repeat=block_size)` goes through all.",
            variant(last_only=True),
        ),
        mistake(
            "Only the first byte of the digests is compared.",
            "Compare them whole: `==`.",
            variant(same=lambda a, b: a[:1] == b[:1]),
        ),
    ),
)
