"""What notebook 13 says about vLLM's options, held against the installed vLLM."""

from __future__ import annotations

import inspect

import pytest

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
