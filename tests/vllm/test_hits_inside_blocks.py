"""Lesson 05: vLLM's hits end inside a large block only where an earlier prompt ended."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

BLOCK, UNIT = 512, 16  # tokens of a block, and `--prefix-match-unit`


@pytest.fixture
def find() -> Callable[[list[int]], int]:
    """Send a prompt through vLLM's manager of a hybrid model; how many tokens are found."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1 import kv_cache_interface as kv
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.request import Request

    kv_cache_utils.init_none_hash(sha256)
    attention = kv.FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    state = kv.MambaSpec(
        block_size=BLOCK, shapes=((8,),), dtypes=(torch.float32,), mamba_cache_mode="align"
    )
    groups = [kv.KVCacheGroupSpec(["a"], attention), kv.KVCacheGroupSpec(["m"], state)]
    manager = KVCacheManager(
        kv.KVCacheConfig(num_blocks=100, kv_cache_tensors=[], kv_cache_groups=groups),
        max_model_len=4096,
        scheduler_block_size=BLOCK,
        hash_block_size=UNIT,
    )
    assert manager.coordinator.enable_partial_hash_hits
    count = iter(range(100))

    def found(prompt: list[int]) -> int:
        request = Request(
            request_id=str(next(count)),
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            block_hasher=kv_cache_utils.get_request_block_hasher(UNIT, sha256),
        )
        manager.new_step_starts()
        blocks, hit, _ = manager.get_computed_blocks(request)
        held: tuple = (hit, blocks)
        # As vLLM's scheduler splits it: up to the last boundary, and then the rest.
        for end in ((len(prompt) - 1) // UNIT * UNIT, len(prompt)):
            begin = max(request.num_computed_tokens, hit)
            if end > begin:
                assert manager.allocate_slots(request, end - begin, *held) is not None
                request.num_computed_tokens, held = end, ()
                manager.new_step_starts()
        manager.free(request)
        return hit

    return found


def test_a_shared_beginning_is_not_found_but_a_continued_prompt_is(
    find: Callable[[list[int]], int],
) -> None:
    draw = random.Random(0).randrange
    shared = [draw(9000) for _ in range(268)]
    customers = [shared + [draw(9000) for _ in range(94)] for _ in range(3)]
    assert [find(prompt) for prompt in customers] == [0, 0, 0]
    assert find(customers[0] + [draw(9000) for _ in range(60)]) == 352  # the next turn
