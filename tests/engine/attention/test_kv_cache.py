"""The contiguous cache returns what was put in, as views, and refuses what does not fit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from utils.engine import ContiguousKVCache, ModelConfig

CONFIG = ModelConfig(
    vocab_size=10,
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_returns_all_tokens_so_far(chunks: list[int]) -> None:
    total = sum(chunks)
    cache = ContiguousKVCache(CONFIG, total)
    keys, values = torch.randn(2, 2, total, 2, 6)
    end = 0
    for size in chunks:
        start, end = end, end + size
        for layer in range(2):
            got = cache.append(layer, keys[layer, start:end], values[layer, start:end])
            assert torch.equal(got[0], keys[layer, :end])
            assert torch.equal(got[1], values[layer, :end])
        assert cache.num_tokens == end


def test_returns_views() -> None:
    cache = ContiguousKVCache(CONFIG, 4)
    key, value = cache.append(1, torch.ones(3, 2, 6), torch.ones(3, 2, 6))
    cache.keys[1, 0, 0, 0] = cache.values[1, 2, 1, 5] = 7.0
    assert key[0, 0, 0] == value[2, 1, 5] == 7.0


def test_counts_tokens_only_when_every_layer_has_them() -> None:
    cache = ContiguousKVCache(CONFIG, 4)
    cache.append(0, torch.ones(3, 2, 6), torch.ones(3, 2, 6))
    assert cache.num_tokens == 0
    cache.append(1, torch.ones(3, 2, 6), torch.ones(3, 2, 6))
    assert cache.num_tokens == 3


@pytest.mark.parametrize("dtype, itemsize", [(torch.float32, 4), (torch.bfloat16, 2)])
def test_nbytes_is_the_formula(dtype: torch.dtype, itemsize: int) -> None:
    assert ContiguousKVCache(CONFIG, 50, dtype).nbytes == 2 * 2 * 50 * 2 * 6 * itemsize


def test_overflow_is_refused_and_changes_nothing() -> None:
    cache = ContiguousKVCache(CONFIG, 3)
    for layer in range(2):
        cache.append(layer, torch.zeros(2, 2, 6), torch.zeros(2, 2, 6))
    before = cache.keys[:, :2].clone()
    with pytest.raises(ValueError, match="2 tokens are stored and 2 more do not fit"):
        cache.append(0, torch.ones(2, 2, 6), torch.ones(2, 2, 6))
    assert cache.num_tokens == 2
    assert torch.equal(cache.keys[:, :2], before)


def test_truncate_forgets_the_end() -> None:
    cache = ContiguousKVCache(CONFIG, 4)
    old, new = torch.randn(2, 4, 2, 6)
    for layer in range(2):
        cache.append(layer, old, old)
    cache.truncate(2)
    assert cache.num_tokens == 2
    for layer in range(2):
        key, _ = cache.append(layer, new[:1], new[:1])
        assert torch.equal(key, torch.cat((old[:2], new[:1])))


@pytest.mark.parametrize("num_tokens", [-1, 1])
def test_truncate_refuses_what_is_not_stored(num_tokens: int) -> None:
    with pytest.raises(ValueError, match="expected 0 to 0"):
        ContiguousKVCache(CONFIG, 4).truncate(num_tokens)


def test_an_empty_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ContiguousKVCache(CONFIG, 0)
