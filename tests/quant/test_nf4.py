"""NF4 against bitsandbytes: code book, codes, double quantization and values are equal."""

from __future__ import annotations

import pytest
import torch
from bitsandbytes import functional as bnb
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.quant import create_dynamic_map, create_normal_map, quantize_nf4


def test_code_books_equal_bitsandbytes() -> None:
    assert torch.equal(create_normal_map(), bnb.get_4bit_type("nf4", device="cpu"))
    assert torch.equal(create_dynamic_map(), bnb.create_dynamic_map())


def assert_equal_to_bitsandbytes(w: torch.Tensor, blocksize: int, double: bool) -> None:
    packed, state = bnb.quantize_4bit(
        w, blocksize=blocksize, compress_statistics=double, quant_type="nf4"
    )
    ours = quantize_nf4(w, blocksize=blocksize, compress_statistics=double)
    assert torch.equal(ours.packed, packed.flatten())
    if not double:
        assert torch.equal(ours.absmax, state.absmax)
    stored = packed.nbytes + state.absmax.nbytes
    if double:
        # Where all absmax values equal their mean, bitsandbytes divides 0 by 0: which code that
        # gives depends on the processor, and is then multiplied by 0.
        scale = state.state2.absmax.repeat_interleave(256)[: len(state.absmax)]
        assert torch.equal(ours.absmax[scale > 0], state.absmax[scale > 0])
        assert torch.equal(ours.offset, state.offset)
        assert torch.equal(ours.nested_absmax, state.state2.absmax)
        stored += state.state2.absmax.nbytes + state.offset.nbytes
    assert ours.bits_per_weight == 8 * stored / w.numel()
    if w.shape[1] >= blocksize:  # its CPU kernel reads the wrong absmax where rows are shorter
        assert torch.equal(ours.dequantize().to(w.dtype), bnb.dequantize_4bit(packed, state))


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", ["self_attn.q_proj", "mlp.down_proj"])
def test_real_weights(real_layers, name: str, double: bool) -> None:
    w = real_layers[name].weight
    assert_equal_to_bitsandbytes(w, 64, double)
    assert_equal_to_bitsandbytes(w.bfloat16(), 64, double)


@given(
    st.integers(0, 10_000),
    st.integers(2, 40),
    st.sampled_from([64, 66, 130, 512]),
    st.sampled_from([64, 128]),
    st.booleans(),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
@settings(max_examples=60)
def test_any_weights(seed, rows, columns, blocksize, double, dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(rows, columns, generator=generator) * 0.05
    w[: rows // 3] = 0  # blocks of zeros
    assert_equal_to_bitsandbytes(w.to(dtype), blocksize, double)


def test_one_block_only() -> None:
    """Its absmax is the mean, so nothing is left to store; bitsandbytes divides 0 by 0 there."""
    w = torch.linspace(-0.3, 0.2, 64).view(2, 32)
    ours = quantize_nf4(w, compress_statistics=True)
    packed, state = bnb.quantize_4bit(w, compress_statistics=True, quant_type="nf4", blocksize=64)
    assert torch.equal(ours.dequantize(), bnb.dequantize_4bit(packed, state))
    assert torch.equal(ours.dequantize(), quantize_nf4(w).dequantize())


def test_many_absmax_values() -> None:
    """Enough of them that some lie next to the middle between two 8-bit levels."""
    w = torch.randn(2048, 4096, generator=torch.Generator().manual_seed(0))
    assert_equal_to_bitsandbytes(w, 64, double=True)


def test_codes_are_the_nearest_levels() -> None:
    levels = create_normal_map()
    w = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    ours = quantize_nf4(w)
    scaled = w / w.abs().amax(1, keepdim=True)  # rows are blocks
    nearest = (scaled[..., None] - levels).abs().argmin(-1)
    assert torch.equal(ours.codes.long(), nearest)
    assert torch.equal(ours.codes[w == 0], ours.codes.new_full((int((w == 0).sum()),), 7))
    # What the quantiles are for: on normal weights, every level is used.
    assert ours.codes.unique().numel() == 16


@pytest.mark.parametrize("double", [False, True])
def test_a_searched_absmax_is_better_and_read_by_bitsandbytes(real_layers, double: bool) -> None:
    w = real_layers["self_attn.q_proj"].weight.float()
    searched = quantize_nf4(w, compress_statistics=double, search=True)
    whole = quantize_nf4(w, compress_statistics=double)
    errors = [
        float((found.dequantize() - w).square().sum() / w.square().sum())
        for found in (searched, whole)
    ]
    assert errors[0] < 0.9 * errors[1]
    assert searched.bits_per_weight == whole.bits_per_weight
    if not double:
        state = bnb.quantize_4bit(w, blocksize=64, quant_type="nf4")[1]
        state.absmax = searched.absmax
        read = bnb.dequantize_4bit(searched.packed[:, None], state)
        torch.testing.assert_close(read, searched.dequantize())
        blocks = [
            (found.dequantize() - w).view(-1, 64).square().sum(1) for found in (searched, whole)
        ]
        assert (blocks[0] <= blocks[1] * (1 + 1e-5)).all()  # no block is worse off


@given(st.integers(0, 1000), st.sampled_from([64, 100, 130]))
@settings(max_examples=20)
def test_a_search_takes_any_shape_and_blocks_of_zeros(seed: int, columns: int) -> None:
    w = torch.randn(3, columns, generator=torch.Generator().manual_seed(seed))
    w[0] = 0
    assert (quantize_nf4(w, search=True).dequantize()[0] == 0).all()
