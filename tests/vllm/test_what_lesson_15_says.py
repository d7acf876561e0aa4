"""What notebook 15 says about vLLM's options, held against the installed vLLM."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("vllm")


def test_decode_context_parallel_lets_tp_ranks_divide_the_cache() -> None:
    import vllm.config.parallel

    code = inspect.getsource(vllm.config.parallel)  # of the field's docstring
    assert "Number of ranks that shard the decode KV cache" in code
    assert "DCP reuses TP ranks" in code
    fields = vllm.config.parallel.ParallelConfig.__dataclass_fields__
    assert "decode_context_parallel_size" in fields


def test_ranks_may_outnumber_kv_heads_if_they_are_a_multiple() -> None:
    import vllm.model_executor.layers.linear

    code = inspect.getsource(vllm.model_executor.layers.linear.QKVParallelLinear.__init__)
    assert "self.num_kv_head_replicas = divide(tp_size, self.total_num_kv_heads)" in code
