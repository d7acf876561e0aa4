"""A prompt that gets another tenant's blocks, where digests are short: exercise 7."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.kit.pictures.blocks import count
from utils.checks.kit.runner import Mismatch
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import BlockHash, get_request_block_hasher, hash_block_tokens
from utils.sim.prompt_cache import bare_request

# Block sizes and vocabularies: of this many prompts, 20 or more have any given digest.
SIZES = {1: ((2, 80), (1, 6000), (3, 18), (8, 3)), 2: ((2, 300), (1, 90_000), (4, 18))}
BITS = {1: 8, 2: 12}
PATIENCE = 40  # times the number of prompts that one has to try on average
VICTIM = "ada"  # her salt


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
        blocks = count(len(self.prompt) // self.block_size, "block")
        return (
            f"{blocks} of {count(self.block_size, 'token')}, a vocabulary of "
            f"{self.vocab_size} tokens, digests of {BITS[self.num_bytes]} bits"
        )


def draw(c: Choices) -> Theft:
    num_bytes = 2 if c.rarely(12) else 1
    block_size, vocab_size = c.pick(SIZES[num_bytes])
    num_blocks = c.pick((1, 2, 3, 4)) if num_bytes == 1 else c.pick((1, 2))
    length = num_blocks * block_size + c.integer(0, block_size - 1)
    prompt = tuple(c.integer(0, vocab_size - 1) for _ in range(length))
    return Theft(num_bytes, block_size, vocab_size, prompt, f"bob {c.integer(0, 9)}")


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
            raise Mismatch(
                f"`hash_block` was called {PATIENCE} times as often as a search block by block "
                f"needs on average, and the prompt isn't found.",
                look="Vary all tokens of a block, take the victim's hash before it as the parent, "
                "and compare hashes with `==`.",
            )
        extra_keys = (None, self.theft.salt) if parent is None else None
        return hash_block_tokens(self.digest, parent, token_ids, extra_keys)


def play(stage: Stage, function: Any, theft: Theft) -> None:
    engine = Engine(theft)
    wanted = [bytes(block_hash) for block_hash in engine.victim.block_hashes]
    got = stage.do(function, engine.hash_block, wanted, theft.block_size, theft.vocab_size)
    stage.see("raises", got if isinstance(got, Raised) else "no error")
    numbers = isinstance(got, list) and all(isinstance(token, int) for token in got)
    stage.see("returned", "a list of token ids" if numbers else got)
    inside = all(0 <= token < theft.vocab_size for token in got)
    stage.see("vocabulary", "token ids of the vocabulary" if inside else got)
    request = bare_request(1, [*got, *([0] if not got else [])], theft.salt)
    blocks, _ = engine.manager.get_computed_blocks(request)
    mine = [block.block_id for block in blocks]
    theirs = engine.manager.get_block_ids(engine.victim.request_id)
    stage.see("stolen", sum(a == b for a, b in zip(mine, theirs, strict=False)), _stolen)


def _stolen(number: int) -> str:
    return f"{count(number, 'block')} of the victim's"
