"""Which tokens of real prompts a prefix cache finds: the engine's block manager without a model."""

from __future__ import annotations

from collections.abc import Sequence

from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import get_hash_fn_by_name, get_request_block_hasher
from utils.engine.request import Request
from utils.engine.sampling_params import SamplingParams


class PromptTooLong(ValueError):
    """A prompt needs more blocks than the cache has."""


def bare_request(number: int, token_ids: list[int], salt: str | None = None) -> Request:
    """A request for one token, with all that a block manager asks of it, and no text."""
    return Request(
        request_id=str(number),
        prompt_token_ids=token_ids,
        sampling_params=SamplingParams(max_tokens=1),
        max_num_tokens=len(token_ids) + 1,
        eos_token_ids=(),
        cache_salt=salt,
    )


def find_cached_tokens(
    prompts: Sequence[Sequence[int]],
    block_size: int,
    num_blocks: int | None = None,
    salts: Sequence[str | None] | None = None,
) -> list[int]:
    """How many tokens of each prompt are found, when they are sent one after another.

    Each request asks for one token, which leaves nothing behind. The decisions are those of
    `utils.engine.KVCacheManager`: chained hashes, full blocks, one token left to compute, and the
    least recently used block evicted first, of one request the tail first.

    Args:
        prompts: token ids of each prompt.
        block_size: tokens in a block.
        num_blocks: blocks in the cache; None for room for everything.
        salts: a `cache_salt` for each prompt, or None.

    Raises:
        PromptTooLong: a prompt does not fit into the whole cache.
        ValueError: another number of salts than of prompts, or a size that is not positive.
    """
    blocks_of = [-(-len(prompt) // block_size) for prompt in prompts]
    room = sum(blocks_of) + 1 if num_blocks is None else num_blocks
    if prompts and max(blocks_of) > room:
        longest = max(range(len(prompts)), key=blocks_of.__getitem__)
        raise PromptTooLong(
            f"Prompt {longest} has {len(prompts[longest])} tokens and needs {blocks_of[longest]} "
            f"blocks of {block_size}, but the cache has {room}. Give it more blocks."
        )
    hasher = get_request_block_hasher(block_size, get_hash_fn_by_name("sha256"))
    manager = KVCacheManager(room, block_size, True, hasher)
    found = []
    every_salt = salts if salts is not None else [None] * len(prompts)
    for number, (prompt, salt) in enumerate(zip(prompts, every_salt, strict=True)):
        request = bare_request(number, list(prompt), salt)
        blocks, num_computed = manager.get_computed_blocks(request)
        manager.allocate_slots(request, request.num_tokens - num_computed, blocks)
        manager.free(request)
        found.append(num_computed)
    return found
