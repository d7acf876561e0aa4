"""Small floats are, bit for bit, those of torch and of ml_dtypes."""

from __future__ import annotations

import ml_dtypes
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


def test_too_large_numbers_saturate_as_in_torch_where_others_give_nan() -> None:
    large = torch.tensor([1e6, -1e6, torch.inf])
    assert E4M3.round(large).tolist() == [448.0, -448.0, 448.0]
    assert large.to(torch.float8_e4m3fn).float().tolist() == [448.0, -448.0, 448.0]
    assert np.isnan(large.numpy().astype(ml_dtypes.float8_e4m3fn).astype(np.float32)).all()
