"""What notebook 13 says about vLLM's options, held against the installed vLLM."""

from __future__ import annotations

import inspect

import pytest
import torch

pytest.importorskip("vllm")


def test_an_api_key_guards_these_paths_alone() -> None:
    from vllm.entrypoints.serve.middleware.authenticate import GUARDED_PREFIX

    assert GUARDED_PREFIX == ("/v1", "/v2", "/inference", "/cohere")


def test_enforce_eager_turns_off_compilation_and_graphs() -> None:
    import vllm.config.model

    code = inspect.getsource(vllm.config.model)  # of the field's docstring
    assert "This disables both `torch.compile` and CUDA graphs" in code


def test_async_scheduling_is_off_on_cpus_and_with_ngram_on_the_processor() -> None:
    from typing import get_args

    from vllm.config.speculative import NgramGPUTypes
    from vllm.platforms.cpu import CpuPlatform

    code = inspect.getsource(CpuPlatform.check_and_update_config)
    assert "scheduler_config.async_scheduling = False" in code
    assert "ngram" not in get_args(NgramGPUTypes) and "ngram_gpu" in get_args(NgramGPUTypes)


def test_the_kv_cache_variable_is_a_legacy_setting() -> None:
    from vllm.platforms.cpu import CpuPlatform

    code = inspect.getsource(CpuPlatform.check_and_update_config)
    legacy, variable = code.index("# Legacy setting"), code.index("VLLM_CPU_KVCACHE_SPACE")
    assert 0 < variable - legacy < 100


def test_blocks_without_a_name_are_evicted_first() -> None:
    from vllm.v1.core.block_pool import BlockPool

    code = inspect.getsource(BlockPool.free_blocks)
    assert "block.block_hash is None" in code
    assert "prepend_n(blocks_to_evict_first)" in code


def test_answers_fill_the_small_cache() -> None:
    """What the lesson's last run counts, with vLLM's own manager and no model."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    from utils.sim.prompt_cache import find_cached_tokens

    size, num_blocks, answer = 128, 11, 54
    prompts = [[i % 4] * 400 + [100 + i] * 60 for i in range(8)]
    fed = [prompt + [200 + i] * (answer - 1) for i, prompt in enumerate(prompts)]
    assert find_cached_tokens(prompts, size, num_blocks) == [0] * 4 + [128] * 4
    assert find_cached_tokens(fed, size, num_blocks) == [0] * 8

    kv_cache_utils.init_none_hash(sha256)
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    config = KVCacheConfig(num_blocks + 1, [], [KVCacheGroupSpec(["layer"], spec)])
    for length, expected in ((1, [0] * 4 + [128] * 4), (answer, [0] * 8)):
        manager = KVCacheManager(
            config, max_model_len=1024, scheduler_block_size=size, hash_block_size=size
        )
        found = []
        for i, prompt in enumerate(prompts):
            request = Request(
                request_id=str(i),
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(max_tokens=length),
                pooling_params=None,
                block_hasher=kv_cache_utils.get_request_block_hasher(size, sha256),
            )
            blocks, hits, _ = manager.get_computed_blocks(request)
            assert manager.allocate_slots(request, len(prompt) - hits, hits, blocks) is not None
            request.num_computed_tokens = len(prompt)
            for token in [200 + i] * (length - 1):  # the last token is never fed back
                request.append_output_token_ids(token)
                assert manager.allocate_slots(request, 1) is not None
                request.num_computed_tokens += 1
            manager.free(request)
            found.append(hits)
        assert found == expected


def test_how_many_pairs_a_token_is_worth() -> None:
    def pairs(hidden: int, keys: int, wide: int) -> float:
        return (2 * hidden * (hidden + keys) + 3 * hidden * wide) / (2 * hidden)

    assert pairs(576, 192, 1536) == 3072
    assert pairs(4096, 1024, 14336) == 26624  # Llama 3 8B
