"""Round to nearest, and the packed layouts: properties, and vLLM's own packing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.quant import (
    QuantizedWeight,
    pack_awq,
    pack_gptq,
    pack_int4,
    pack_int4_awq,
    quantize_nf4,
    rtn,
    search_range,
    unpack_awq,
    unpack_gptq,
    unpack_int4,
    unpack_int4_awq,
)
from utils.quant.packing import dequantize_awq, dequantize_gptq
from utils.quant.rtn import round_trip

weights = st.tuples(
    st.integers(0, 10_000),
    st.sampled_from([1e-30, 1e-6, 0.03, 1.0, 1e4]),
    st.sampled_from(["normal", "positive", "outlier", "sparse", "constant"]),
)


def make_weight(
    seed: int, size: float, kind: str, shape: tuple[int, int] = (8, 64)
) -> torch.Tensor:
    w = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * size
    if kind == "positive":
        w = w.abs() + size
    elif kind == "outlier":
        w[0, 3] *= 100
    elif kind == "sparse":
        w[:, :40] = 0
    elif kind == "constant":
        w[:] = -size
    return w


@given(weights, st.integers(2, 8), st.booleans(), st.sampled_from([16, 32, 64, -1]))
@settings(max_examples=150)
def test_every_weight_is_within_half_a_step(weight, bits: int, sym: bool, group_size: int) -> None:
    w = make_weight(*weight)
    quantized = rtn(w, bits=bits, group_size=group_size, sym=sym)
    assert int(quantized.q.max()) <= 2**bits - 1
    steps = quantized.scales[:, quantized.g_idx.long()]
    assert ((quantized.dequantize() - w).abs() <= 0.5001 * steps).all()
    # What was on the grid stays: 0 is on every grid.
    assert (quantized.dequantize()[w == 0] == 0).all()
    groups = w.unflatten(1, (-1, quantized.group_size))
    assert torch.equal(round_trip(groups, bits, sym).flatten(1), quantized.dequantize())


def test_symmetric_and_asymmetric_by_hand() -> None:
    w = torch.tensor([[-1.5, 0.0, 0.4, 0.75]])
    symmetric = rtn(w, group_size=4)  # step 3 / 15 = 0.2, zero 8
    assert symmetric.zeros.tolist() == [[8]]
    torch.testing.assert_close(symmetric.scales, torch.tensor([[0.2]]))
    assert symmetric.q.tolist() == [[0, 8, 10, 12]]
    asymmetric = rtn(w, group_size=4, sym=False)  # step 2.25 / 15 = 0.15, zero 10
    assert asymmetric.zeros.tolist() == [[10]]
    assert asymmetric.q.tolist() == [[0, 10, 13, 15]]
    torch.testing.assert_close(asymmetric.dequantize()[0, 3], torch.tensor(0.75))


def test_smaller_groups_and_more_bits_are_better(real_layers) -> None:
    w = real_layers["mlp.up_proj"].weight

    def error(**settings) -> float:
        return float((rtn(w, **settings).dequantize() - w).norm())

    assert error(group_size=32) < error(group_size=64) < error(group_size=192)
    assert error(group_size=64, sym=False) < error(group_size=64)
    for bits in range(3, 9):
        assert error(bits=bits) < 0.65 * error(bits=bits - 1)


@given(weights, st.integers(2, 8), st.booleans())
def test_a_searched_range_is_never_worse(weight, bits: int, sym: bool) -> None:
    w = make_weight(*weight).double()  # so that squares of tiny weights don't vanish

    def errors(**settings) -> torch.Tensor:
        read_back = rtn(w.float(), bits=bits, group_size=16, sym=sym, **settings).dequantize()
        return (read_back - w).square().unflatten(1, (-1, 16)).sum(-1)

    full = errors()
    assert (errors(search=True) <= full * (1 + 1e-4) + 1e-12 * w.square().max()).all()


@pytest.mark.parametrize("bits", [3, 4])  # with 2 asymmetric bits gptqmodel tries two zeros
@pytest.mark.parametrize("sym", [True, False])
def test_a_searched_range_is_that_of_gptqmodel(real_layers, bits: int, sym: bool) -> None:
    from gptqmodel.quantization import QuantizeConfig
    from gptqmodel.quantization.quantizer import Quantizer

    groups = real_layers["mlp.up_proj"].weight.float().unflatten(1, (-1, 64)).flatten(0, 1)
    theirs = Quantizer(QuantizeConfig(bits=bits, group_size=64, sym=sym, mse=2.0))
    theirs.configure(perchannel=True, grid=40, maxshrink=0.5)  # 1 - i / 40, down to 0.525
    theirs.find_params(groups, weight=True)
    scales, zeros = search_range(groups, bits, sym, num_shares=20, least=0.525)
    # The two compute a share of the range differently: a tie may be broken either way.
    assert torch.isclose(scales, theirs.scale.flatten(), rtol=1e-5).float().mean() > 0.999
    assert (zeros == theirs.zero.flatten()).float().mean() > 0.99


def test_searching_the_range_lowers_the_error_by_a_tenth_or_more(real_layers) -> None:
    w = real_layers["mlp.up_proj"].weight.float()
    for sym in (True, False):
        full, searched = (
            float((rtn(w, sym=sym, search=search).dequantize() - w).square().sum())
            for search in (False, True)
        )
        assert searched < 0.9 * full


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_bits_per_weight_count_what_is_stored(group_size: int) -> None:
    quantized = rtn(torch.randn(64, 256), group_size=group_size)
    packed = pack_awq(quantized)
    stored = 8 * sum(tensor.nbytes for tensor in packed.values())
    assert quantized.bits_per_weight == stored / quantized.q.numel()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"group_size": 48}, r"does not divide.*128 input channels.*\[32, 64, 128\]"),
        ({"group_size": 0}, "does not divide"),
        ({"bits": 1}, "expected 2 to 8"),
        ({"bits": 9}, "expected 2 to 8"),
        ({"weight": torch.full((4, 128), torch.nan)}, "512 of 512 weights are not finite"),
        ({"weight": torch.zeros(4, 128, dtype=torch.int8)}, "floating point"),
        ({"weight": torch.zeros(128)}, r"\[out, in\]"),
    ],
)
def test_bad_arguments(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rtn(**{"weight": torch.zeros(4, 128)} | arguments)


# --- packing ------------------------------------------------------------------------------------

nibbles = st.integers(0, 10_000).map(
    lambda seed: torch.randint(16, (3, 16), generator=torch.Generator().manual_seed(seed))
)


@given(nibbles)
def test_unpacking_undoes_packing(values: torch.Tensor) -> None:
    assert torch.equal(unpack_int4(pack_int4(values)).long(), values)
    assert torch.equal(unpack_int4_awq(pack_int4_awq(values)).long(), values)


def test_nibbles_by_hand() -> None:
    values = torch.arange(8)[None]
    assert pack_int4(values).item() == 0x76543210
    # From the lowest nibble: channels 0 2 4 6 1 3 5 7.
    assert pack_int4_awq(values).item() == 0x75316420
    assert pack_int4(torch.full((1, 8), 15)).item() == -1


@pytest.mark.parametrize("values", [[[16] * 8], [[-1] * 8], [[1] * 7]])
@pytest.mark.parametrize("pack", [pack_int4, pack_int4_awq])
def test_what_cannot_be_packed(pack, values) -> None:
    with pytest.raises(ValueError, match=r"0 to 15|multiple of 8"):
        pack(torch.tensor(values))


def test_layouts_equal_vllms_own_packing() -> None:
    from vllm.model_executor.layers.quantization.utils.quant_utils import awq_pack, gptq_pack

    quantized = rtn(torch.randn(24, 64, generator=torch.Generator().manual_seed(0)))
    codes = quantized.q.t().int().contiguous()  # vLLM's functions take [in, out]
    assert torch.equal(pack_gptq(quantized)["qweight"], gptq_pack(codes, 4, 64, 24))
    assert torch.equal(pack_awq(quantized)["qweight"], awq_pack(codes, 4, 64, 24))


def same(a: QuantizedWeight, b: QuantizedWeight) -> bool:
    halves = a.scales.half().float()
    return (
        torch.equal(a.q, b.q)
        and torch.equal(halves, b.scales)
        and torch.equal(a.zeros, b.zeros)
        and torch.equal(a.g_idx, b.g_idx)
    )


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([16, 32, 64]))
@settings(max_examples=30)
def test_checkpoint_layouts_keep_everything(seed: int, sym: bool, group_size: int) -> None:
    w = make_weight(seed, 0.03, "normal", (24, 64))
    quantized = rtn(w, group_size=group_size, sym=sym)
    as_gptq = pack_gptq(quantized, zero_offset=int(sym))
    as_awq = pack_awq(quantized)
    assert same(quantized, unpack_gptq(as_gptq, zero_offset=int(sym)))
    assert same(quantized, unpack_awq(as_awq))
    wanted = unpack_awq(as_awq).dequantize()
    assert torch.equal(dequantize_gptq(**as_gptq, zero_offset=int(sym)), wanted)
    assert torch.equal(dequantize_awq(**as_awq, group_size=group_size), wanted)


def test_layouts_refuse_what_they_cannot_hold() -> None:
    w = torch.randn(8, 64).abs()  # all positive: the zeros are 0
    with pytest.raises(ValueError, match="zero - 1"):
        pack_gptq(rtn(w, sym=False))
    with pytest.raises(ValueError, match="3 bits"):
        pack_gptq(rtn(w, bits=3))
    with pytest.raises(ValueError, match="65504"):
        pack_awq(rtn(w * 1e7))
    plain = rtn(w, group_size=32)
    shuffled = QuantizedWeight(plain.q, plain.scales, plain.zeros, plain.g_idx.flip(0))
    with pytest.raises(ValueError, match="no g_idx"):
        pack_awq(shuffled)
    assert same(shuffled, unpack_gptq(pack_gptq(shuffled)))


def test_nf4_refuses_bad_weights() -> None:
    with pytest.raises(ValueError, match="not finite"):
        quantize_nf4(torch.tensor([1.0, torch.inf]))
    for bad in (torch.zeros(0), torch.zeros(3, dtype=torch.int32)):
        with pytest.raises(ValueError, match="floating-point weights"):
            quantize_nf4(bad)
