"""Drawn tensors cover what breaks careless code, and keep their numbers in any layout."""

from __future__ import annotations

import random

import pytest
import torch

from utils.checks.kit.contracts.choices import Choices
from utils.checks.kit.contracts.inputs import laid_out, tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def test_all_kinds_come_up_in_a_hundred_inputs():
    made = [tensor(Choices(random.Random(n)), (3, 4), DTYPES) for n in range(100)]
    assert {t.dtype for t in made} == set(DTYPES)
    assert any(t.is_contiguous() for t in made) and any(not t.is_contiguous() for t in made)
    assert any(0 < t.abs().max() < 1e-4 for t in made)
    assert any(t.abs().max() > 5e3 for t in made)
    assert any((t < -199).all() for t in made)
    assert any(t.unique().numel() < 7 for t in made)
    assert all(t.isfinite().all() and t.shape == (3, 4) for t in made)
    halves = [t for t in made if t.dtype == torch.float16]
    assert any((t * t).isinf().any() for t in halves)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "a slice"])
@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 0, 3), ()])
def test_a_layout_keeps_the_numbers(layout, shape):
    made = torch.randn(shape)
    assert torch.equal(laid_out(made, layout), made)
