"""bfloat16 products in float32: the same numbers, and only where they are asked for."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from utils.pipeline import float32_products


@pytest.fixture
def slow_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional, "linear", functional.linear)  # put back afterwards
    monkeypatch.setattr(float32_products, "fast_dtype", lambda: "float32")


def test_linear_layers_give_the_same_bfloat16_numbers(slow_bfloat16: None) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 32).bfloat16(), torch.randn(5, 64).bfloat16()
    exact = x.double() @ layer.weight.double().T + layer.bias.double()
    plain = layer(x)
    float32_products.multiply_in_float32()
    got = layer(x)
    assert got.dtype == torch.bfloat16
    assert (got.double() - exact).abs().max() <= (plain.double() - exact).abs().max() + 1e-3
    assert torch.equal(got, (x.float() @ layer.weight.float().T + layer.bias.float()).bfloat16())


def test_other_types_are_left_alone(slow_bfloat16: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: torch.Tensor) -> torch.Tensor:
        raise AssertionError("these are multiplied as they are")

    monkeypatch.setattr(float32_products, "in_float32", never)
    float32_products.multiply_in_float32()
    for dtype in (torch.float32, torch.float64):
        assert nn.Linear(4, 2, dtype=dtype)(torch.ones(1, 4, dtype=dtype)).dtype == dtype
    with pytest.raises(AssertionError, match="as they are"):
        nn.Linear(4, 2).bfloat16()(torch.ones(1, 4).bfloat16())


def test_nothing_changes_where_bfloat16_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float32_products, "fast_dtype", lambda: "bfloat16")
    before = functional.linear
    float32_products.multiply_in_float32()
    assert functional.linear is before
