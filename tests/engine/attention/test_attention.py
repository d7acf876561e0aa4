"""The fast attention equals the reference, and the reference equals plain arithmetic."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.engine import attention, attention_reference


def by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> list:
    """One number at a time, in Python floats."""
    (num_queries, heads, dim), (num_keys, kv_heads, _) = query.shape, key.shape
    q, k, v = query.tolist(), key.tolist(), value.tolist()
    out = []
    for i in range(num_queries):
        row = []
        for h in range(heads):
            g = h * kv_heads // heads
            seen = range(num_keys - num_queries + i + 1)
            scores = [scale * sum(q[i][h][d] * k[j][g][d] for d in range(dim)) for j in seen]
            weights = [math.exp(s - max(scores)) for s in scores]
            row.append(
                [sum(weights[j] * v[j][g][d] for j in seen) / sum(weights) for d in range(dim)]
            )
        out.append(row)
    return out


shapes = st.tuples(
    st.integers(1, 7), st.integers(0, 9), st.sampled_from([(1, 1), (4, 1), (6, 2), (9, 3), (4, 4)])
)


@settings(max_examples=60, deadline=None)
@given(shapes, st.sampled_from([attention, attention_reference]))
def test_equals_arithmetic(shape: tuple, function) -> None:
    num_queries, num_cached, (heads, kv_heads) = shape
    generator = torch.Generator().manual_seed(num_queries * 100 + num_cached)
    query = torch.randn(num_queries, heads, 8, generator=generator)
    key = torch.randn(num_queries + num_cached, kv_heads, 8, generator=generator)
    value = torch.randn(num_queries + num_cached, kv_heads, 8, generator=generator)
    expected = torch.tensor(by_hand(query, key, value, 0.3))
    torch.testing.assert_close(function(query, key, value, 0.3), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("num_queries, num_keys", [(1, 1), (1, 700), (300, 300), (64, 700)])
def test_fast_path_equals_reference(
    num_queries: int, num_keys: int, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    query = torch.randn(num_queries, 9, 64).to(dtype)
    # As the cache gives them: a view of something longer.
    key, value = torch.randn(2, num_keys + 13, 3, 64).to(dtype)[:, :num_keys]
    torch.testing.assert_close(
        attention(query, key, value, 0.125),
        attention_reference(query, key, value, 0.125),
        atol=tolerance,
        rtol=tolerance,
    )


def test_accepts_a_query_that_is_not_contiguous() -> None:
    """The model passes a slice of the fused projection's output."""
    torch.manual_seed(0)
    qkv = torch.randn(1, 15, 64)
    key = value = torch.randn(10, 3, 64)
    torch.testing.assert_close(
        attention(qkv[:, :9], key, value, 0.125), attention_reference(qkv[:, :9], key, value, 0.125)
    )
