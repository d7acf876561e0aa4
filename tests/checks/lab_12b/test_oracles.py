"""What lab 12b calls right is what torch, ml_dtypes and the course's own formats give."""

from __future__ import annotations

import pytest
import torch

from utils.checks import lab_12b
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.lab_12b import blocks, eight_bits, floats
from utils.quant.formats import E2M1, E4M3, FloatFormat, int8_channels, int8_tokens, smoothing
from utils.quant.formats import mxfp4 as library_mxfp4
from utils.quant.formats import nvfp4 as library_nvfp4

LIBRARYS = {
    (2, 1): E2M1,
    (4, 3): E4M3,
    (2, 3): FloatFormat("E2M3", 2, 3, bias=1, max=7.5, has_nan=False),
    (3, 2): FloatFormat("E3M2", 3, 2, bias=3, max=28.0, has_nan=False),
}


def given(draw, count=100):
    return [case.args for case in sample(draw, count)]


def test_numbers_are_those_of_torch_and_of_the_library():
    for small in floats.FORMATS:
        codes = torch.arange(2 ** (1 + small.exponent_bits + small.mantissa_bits))
        known = torch.tensor(small.values())
        right = LIBRARYS[small[1:3]].decode(codes)
        torch.testing.assert_close(known, right, rtol=0, atol=0, equal_nan=True)
        number = ~known.isnan()
        assert torch.equal(torch.signbit(known[number]), torch.signbit(right[number]))
        assert known[small.last] == LIBRARYS[small[1:3]].max
    in_torch = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float()
    known = torch.tensor(floats.E4M3.values())
    torch.testing.assert_close(known, in_torch, rtol=0, atol=0, equal_nan=True)


def test_codes_are_those_of_torch_of_ml_dtypes_and_of_the_library():
    for values, exponent_bits, mantissa_bits, largest in given(floats.draw_values, 300):
        codes = floats.searched(values, exponent_bits, mantissa_bits, largest)
        assert torch.equal(codes, LIBRARYS[exponent_bits, mantissa_bits].encode(values))
        inside = values.clamp(-largest, largest)  # beyond, ml_dtypes has NaN, and so had torch 2.11
        [small] = (f for f in floats.FORMATS if f[1:3] == (exponent_bits, mantissa_bits))
        in_jax = inside.numpy().astype(small.in_ml_dtypes).view("uint8")
        assert torch.equal(codes, torch.from_numpy(in_jax))
        if exponent_bits == 4:
            assert torch.equal(codes, inside.to(torch.float8_e4m3fn).view(torch.uint8))


def test_blocks_are_the_librarys():
    for [weight] in given(blocks.draw_mx):
        found = library_mxfp4(weight)
        codes = found.codes, found.stored_scales
        case = blocks.Given(weight)
        assert blocks.wrong_mx(blocks.mx_by_trying(weight), codes, case) is None
    for [weight] in given(blocks.draw_nv):
        found = library_nvfp4(weight)
        unused = (found.scales == 0).repeat_interleave(16, 1)  # the library has any code there
        codes = found.codes.masked_fill(unused, 0), found.stored_scales, found.global_scale
        case = blocks.Given(weight)
        if weight.any():
            assert blocks.wrong_nv(blocks.nv_by_trying(weight), codes, case) is None


def test_products_are_the_librarys():
    for inputs, weight in given(eight_bits.draw_layer):
        _, outputs = eight_bits.product_by_columns(inputs, weight)
        right = int8_tokens(inputs).double() @ int8_channels(weight).double().T
        size = inputs.abs().double() @ weight.abs().double().T
        assert ((outputs - right).abs() <= 1e-5 * size + 1e-30).all()


def test_shifts_are_the_librarys():
    for inputs, weight, alpha in given(eight_bits.draw_channels):
        x, w = eight_bits.channel_by_channel(inputs, weight, alpha)
        factors = smoothing(inputs.abs().amax(0), weight, alpha)
        torch.testing.assert_close(x, inputs / factors)
        torch.testing.assert_close(w, weight * factors)


def test_inputs_reach_the_corners():
    values = given(floats.draw_values, 300)
    assert any((v == 0).any() and torch.signbit(v[v == 0]).any() for v, *_ in values)
    assert any((v.abs() > largest).any() for v, _, _, largest in values)
    assert {bits for _, *bits, _ in values for bits in [tuple(bits)]} == LIBRARYS.keys()
    weights = [weight.unflatten(1, (-1, 16)) for [weight] in given(blocks.draw_nv)]
    assert any((w == 0).all() for w in weights)
    assert any((w == 0).all(-1).any() and w.any() for w in weights)
    stored = [blocks.nv_by_trying(w.flatten(1))[1] for w in weights if w.any()]
    largest = [w.abs().amax(-1) for w in weights if w.any()]
    pairs = zip(stored, largest, strict=True)
    assert any(((codes == 0) & (size > 0)).any() for codes, size in pairs)
    layers = given(eight_bits.draw_layer)
    assert max(inputs.shape[1] for inputs, _ in layers) > 300
    assert any((inputs == 0).all(1).any() for inputs, _ in layers)


@pytest.mark.parametrize("letter", lab_12b.LETTERS)
def test_each_letter_has_words_of_its_own(letter):
    feedback = lab_12b.why_not_one(lambda: letter)
    assert feedback.passed == (letter == lab_12b.RIGHT)
    clauses = lab_12b.LAB.words["why_not_one"]["clauses"]
    assert feedback.passed or feedback.headline == clauses[letter][0]
