"""What lab 09 calls right is what the library, other algorithms and packed layers give."""

from __future__ import annotations

import pytest
import torch

from utils import quant
from utils.checks.kit.contracts import Given
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.lab_09 import checkpoint, columns, grids, nf4
from utils.checks.lab_09 import scales as awq
from utils.quant.nf4 import NF4Weight, quantize_blockwise
from utils.quant.rtn import QuantizedWeight, group_index


def given(draw, count=60):
    return [case.args for case in sample(draw, count)]


def test_the_grid_is_the_librarys():
    for groups, bits, sym in given(grids.draw_groups):
        scales, zeros = grids.params_by_hand(groups, bits, sym)
        right = quant.find_params(groups, bits, sym)
        torch.testing.assert_close(scales, right[0], rtol=1e-5, atol=0.0)
        assert (zeros - right[1]).abs().max() <= 1  # a tie


def test_codes_are_the_nearest_of_all():
    for weight, scales, zeros, bits in given(grids.draw_weight):
        group = torch.arange(weight.shape[1]) // (weight.shape[1] // scales.shape[1])
        every = torch.arange(2**bits).view(-1, 1, 1)
        grid_points = (every - zeros[:, group]).double() * scales[:, group].double()
        away = (grid_points - weight).abs()  # [codes, out, in]
        mine = away.gather(0, grids.nearest_codes(weight, scales, zeros, bits).long()[None])[0]
        assert (mine <= away.amin(0) + 1e-5 * scales[:, group]).all()


def test_what_is_read_back_is_the_librarys():
    for q, scales, zeros in given(grids.draw_codes):
        weight = QuantizedWeight(q, scales, zeros, group_index(q, q.shape[1] // scales.shape[1]))
        torch.testing.assert_close(grids.read_back(q, scales, zeros), weight.dequantize())


@pytest.mark.parametrize(("out", "width", "group_size"), [(8, 32, 32), (24, 128, 64)])
def test_bytes_are_those_of_a_packed_layer(out, width, group_size):
    q = torch.zeros(out, width, dtype=torch.uint8)
    scales = torch.ones(out, width // group_size)
    zeros = torch.zeros(scales.shape, dtype=torch.uint8)
    layer = QuantizedWeight(q, scales, zeros, group_index(q, group_size))
    packed = sum(tensor.nbytes for tensor in quant.pack_awq(layer).values())
    assert checkpoint.tensor_bytes([(out, width)], 5, 4, group_size) == packed + 10


def test_packed_layers_are_the_librarys():
    for q, zeros, layout in given(checkpoint.draw_layer):
        if layout == "gptq":
            right = quant.pack_int4(q).T, quant.pack_int4(zeros.T.int() - 1)
        else:
            right = quant.pack_int4_awq(q.T), quant.pack_int4_awq(zeros.T)
        assert all(map(torch.equal, checkpoint.by_hand(q, zeros, layout), right))


def test_block_codes_are_the_librarys():
    for values, levels, blocksize in given(nf4.draw_values):
        right, absmax = quantize_blockwise(values, levels, blocksize)
        mine = nf4.by_search(values, levels, blocksize)
        torch.testing.assert_close(mine[1], absmax)
        asked = Given(values, levels, blocksize)
        assert not nf4.no_nearest_level(asked, mine, (right, absmax)).any()


def test_nf4_is_read_back_as_bitsandbytes_does():
    for codes_, absmax, nested, offset, blocksize in given(nf4.draw_nf4):
        flat = codes_.flatten()
        flat = torch.cat([flat, flat.new_zeros(len(flat) % 2)])
        packed = (flat[::2] << 4) | flat[1::2]
        right = NF4Weight(packed, absmax, codes_.shape, blocksize, offset, nested).dequantize()
        mine = nf4.nf4_read_back(codes_, absmax, nested, offset, blocksize)
        size = float(nested.max() + offset.abs())
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-6 * size)


def test_the_hessian_is_the_librarys():
    for weight, inputs, damp_percent in given(columns.draw_inputs):
        hessian = quant.InputStats.of(inputs).hessian
        dead = hessian.diagonal() == 0
        hessian.diagonal()[dead] = 1
        hessian.diagonal().add_(damp_percent * hessian.diagonal().mean())
        ready, mine = columns.ready_by_hand(weight, inputs, damp_percent)
        assert torch.equal(ready, weight.masked_fill(dead, 0))
        size = float(inputs.abs().max()) ** 2
        torch.testing.assert_close(mine, hessian, rtol=1e-4, atol=1e-5 * size)


def by_elimination(weight, upper, bits, group_size):
    """GPTQ without a Cholesky factor: a fresh inverse for what is left, column by column.

    Section 2 of the paper (Optimal Brain Quantization).
    """
    hessian = torch.linalg.inv(upper.double().T @ upper.double())
    w, top = weight.double().clone(), 2**bits - 1
    q, scales = torch.zeros_like(w), []
    for i in range(w.shape[1]):
        if i % group_size == 0:
            scale = 2 * w[:, i : i + group_size].abs().amax(1) / top
            scale[scale == 0] = 1.0
            scales.append(scale)
        q[:, i] = (w[:, i] / scale + 2 ** (bits - 1)).round().clamp(0, top)
        error = w[:, i] - (q[:, i] - 2 ** (bits - 1)) * scale
        rest = torch.linalg.inv(hessian[i:, i:])  # of the columns from i on
        w[:, i:] -= error[:, None] * rest[0] / rest[0, 0]
    found = torch.stack(scales, 1).float()
    return q.to(torch.uint8), found, torch.full_like(found, 2 ** (bits - 1))


def test_elimination_is_right_column_by_column():
    for case in sample(columns.draw_columns, 40):
        found = by_elimination(*case.args)
        assert columns.wrong_column(found, found, case) is None


def test_the_lessons_rule_is_the_librarys():
    for weight, inputs, bits, size in given(awq.draw_channels):
        if not inputs.abs().mean(0).ge(1e-3).all():
            continue  # there the library has other floors
        stats = quant.InputStats.of(inputs)
        found = quant.search_scales(
            weight, stats, bits=bits, group_size=size, duo_scaling=False, n_grid=20
        ).scales
        tried = torch.stack([found, awq.the_lessons(weight, inputs, bits, size)])
        errors = awq.output_errors(weight.double(), inputs.double(), bits, size, tried.double())
        back = quant.rtn(weight * found, bits=bits, group_size=size, sym=False).dequantize()
        by_tokens = (inputs @ (back / found - weight).T).double().square().sum()
        nothing = 1e-6 * (inputs @ weight.T).double().square().sum()
        torch.testing.assert_close(errors[0], by_tokens, rtol=0.05, atol=float(nothing))
        assert errors[1] <= 1.05 * errors[0] + nothing


def test_the_rule_can_be_beaten_on_every_loud_layer():
    """Going through the channels once keeps the promise of exercise 10, with room."""
    for seed in range(60):
        weight, inputs, _ = awq.loud_layer(seed)
        best = awq.the_lessons(weight, inputs, 4, 16)
        least = before = awq.output_errors(weight, inputs, 4, 16, best[None])[0]
        for channel in range(32):
            tried = best.repeat(4, 1)
            tried[:, channel] *= torch.tensor([0.7, 0.85, 1.2, 1.4])
            errors = awq.output_errors(weight, inputs, 4, 16, tried)
            if errors.min() < least:
                best, least = tried[errors.argmin()], errors.min()
        assert least < 0.98 * awq.GAIN * before


def test_the_promised_gain_is_there():
    """A plain search over shares of the range keeps both promises of exercise 12, with room."""
    for bits, gain in grids.GAINS.items():
        groups = torch.randn(100, 64, generator=torch.Generator().manual_seed(3))
        best = before = grids.errors_of_the_range(groups, bits)
        for step in range(1, 15):
            scales, zeros = quant.find_params(groups * (1 - step / 20), bits, False)
            best = torch.minimum(best, grids.squared_errors(groups, bits, scales, zeros))
        assert best.sum() < 0.95 * gain * before.sum()


def test_inputs_reach_the_corners():
    groups = given(grids.draw_groups, 200)
    assert {bits for _, bits, _ in groups} == set(range(2, 9))
    assert {g.dim() for g, *_ in groups} == {1, 2, 3, 4}
    assert any((g == 0).all(-1).any() and g.any() for g, *_ in groups)
    values = given(nf4.draw_values, 200)
    assert any(not v.is_contiguous() and v.dim() > 1 for v, *_ in values)
    assert {len(levels) == 256 for _, levels, _ in values} == {True, False}
    assert any(v.numel() % size for v, _, size in values)
    assert any(len(levels) == 2 for _, levels, _ in values)
    blocks = [len(absmax) for (absmax,) in given(nf4.draw_absmax, 200)]
    assert 1 in blocks and max(blocks) > 512
    layers = given(columns.draw_inputs, 200)
    assert max(len(x) for _, x, _ in layers) > 2048
    assert max(weight.shape[1] for weight, *_ in given(columns.draw_columns, 40)) > 128
    assert any(len(x) < x.shape[1] for _, x, _ in layers)
    assert any(
        (x.sum(0) == 0).any() and (x.sum(0) == 0).ne((x == 0).all(0)).any() for _, x, _ in layers
    )
    layers = sample(awq.draw_channels, 200)
    assert sum(isinstance(case, awq.Loud) for case in layers) > 30
    assert any((case.args[1] == 0).all(0).any() for case in layers)
    assert {1} <= {len(case.args[0]) for case in layers} & {
        case.args[0].shape[1] for case in layers
    }
    assert any(len(case.args[1]) == 1 for case in layers)
    assert any(not z.all() for _, z, layout in given(checkpoint.draw_layer, 99) if layout == "awq")
