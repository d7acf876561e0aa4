"""Small floats are, bit for bit, those of torch and of ml_dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import nbformat
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from utils.quant.formats import E2M1, E4M3, E5M2, FloatFormat

THEIRS = {
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E5M2": ml_dtypes.float8_e5m2,
    "E2M1": ml_dtypes.float4_e2m1fn,
}
ROOT = Path(__file__).parents[3]
FORMATS = pytest.mark.parametrize("format", [E4M3, E5M2, E2M1], ids=lambda f: f.name)


@FORMATS
def test_every_code_means_what_it_means_to_others(format: FloatFormat) -> None:
    codes = torch.arange(2**format.bits, dtype=torch.uint8)
    theirs = codes.numpy().view(THEIRS[format.name]).astype(np.float32)
    ours = format.decode(codes)
    assert np.array_equal(ours.numpy(), theirs, equal_nan=True)
    signs = ~ours.isnan()  # -0 is not +0
    assert torch.equal(ours[signs].signbit(), torch.from_numpy(theirs)[signs].signbit())
    assert ours[ours.isfinite()].max() == format.max


@FORMATS
def test_numbers_midpoints_and_all_that_lies_between_round_as_elsewhere(
    format: FloatFormat,
) -> None:
    values = format.decode(torch.arange(2**format.bits))
    values = values[values.isfinite()].sort().values
    drawn = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    drawn = drawn * torch.logspace(-12, 6, 50_000)
    x = torch.cat([values, (values[1:] + values[:-1]) / 2, drawn]).clamp(-format.max, format.max)
    theirs = x.numpy().astype(THEIRS[format.name]).view(np.uint8)
    assert np.array_equal(format.encode(x).numpy(), theirs)


@given(st.floats(width=32, allow_nan=False))
def test_no_code_is_nearer(value: float) -> None:
    values = E2M1.decode(torch.arange(16))
    rounded = float(E2M1.round(torch.tensor([value])))
    clamped = min(max(value, -E2M1.max), E2M1.max)
    assert abs(rounded - clamped) == (values.double() - clamped).abs().min()


def test_too_large_numbers_saturate_whatever_this_version_of_torch_does() -> None:
    """torch 2.13 saturates, 2.11 gave NaN, and ml_dtypes gives NaN."""
    large = torch.tensor([1e6, -1e6, torch.inf])
    largest = torch.tensor([448.0, -448.0, 448.0])
    assert torch.equal(E4M3.round(large), largest)
    in_torch = large.to(torch.float8_e4m3fn).float()
    assert torch.equal(in_torch, largest) or in_torch.isnan().all()
    assert np.isnan(large.numpy().astype(ml_dtypes.float8_e4m3fn).astype(np.float32)).all()


def test_the_lesson_compares_with_torch_only_where_all_versions_agree() -> None:
    """Beyond E4M3's largest number, torch's answer depends on its version."""
    lesson = nbformat.read(ROOT / "notebooks/12b_formats_of_today.ipynb", as_version=4)
    cells = {cell.id: cell.source for cell in lesson.cells}
    scope: dict[str, Any] = {}
    for name in ("formats05", "formats07", "formats09"):
        exec(cells[name], scope)
    assert scope["x"].abs().max() <= E4M3.max
