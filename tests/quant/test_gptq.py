"""GPTQ against least squares, against itself in other blocks, and against gptqmodel."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.quant.conftest import import_gptqmodel, in_blocks
from utils.quant import InputStats, column_order, gptq, inverse_cholesky, relative_error, rtn
from utils.quant.rtn import find_params, to_codes


def small_case(
    tokens: int = 200, width: int = 12, rows: int = 5
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(width, width, generator=generator)
    return (
        torch.randn(rows, width, generator=generator),
        torch.randn(tokens, width, generator=generator) @ mix,
    )


def test_statistics_are_sums_over_tokens() -> None:
    _, x = small_case()
    stats = InputStats(12)
    for part in x.split(33):
        stats.add(part.unsqueeze(0))
    assert stats.num_tokens == len(x)
    torch.testing.assert_close(stats.hessian, 2 * x.t() @ x / len(x))
    torch.testing.assert_close(stats.mean_abs, x.abs().mean(0))
    torch.testing.assert_close(stats.hessian, InputStats.of(x).hessian)


def test_relative_error_needs_no_tokens() -> None:
    w, x = small_case()
    read_back = w + 0.1 * torch.randn(w.shape, generator=torch.Generator().manual_seed(1))
    direct = (x @ (read_back - w).t()).square().sum() / (x @ w.t()).square().sum()
    assert relative_error(w, read_back, InputStats.of(x)) == pytest.approx(float(direct), rel=1e-4)


def test_each_step_is_the_best_answer_to_the_error_so_far() -> None:
    """Brute force: fix the rounded channels, and fit the rest by least squares.

    GPTQ's shortcut must choose the same codes as a solver that knows nothing about Cholesky.
    """
    w, x = small_case()
    wanted = x @ w.t()  # [tokens, out]
    scales, zeros = find_params(w, 4, True)
    rounded = torch.empty_like(w)
    current = w.clone()
    for i in range(w.shape[1]):
        q = to_codes(current[:, i], scales, zeros, 4)
        rounded[:, i] = (q - zeros) * scales
        rest = wanted - x[:, : i + 1] @ rounded[:, : i + 1].t()
        if i + 1 < w.shape[1]:
            current[:, i + 1 :] = torch.linalg.lstsq(x[:, i + 1 :], rest).solution.t()
    ours = gptq(w, InputStats.of(x).hessian, group_size=-1, damp_percent=0.0)
    torch.testing.assert_close(ours.scales.flatten(), scales)
    torch.testing.assert_close(ours.dequantize(), rounded, atol=1e-5, rtol=1e-5)


def test_inverse_cholesky() -> None:
    _, x = small_case()
    hessian = InputStats.of(x).hessian
    upper = inverse_cholesky(hessian, 0.1)
    damped = hessian + 0.1 * hessian.diagonal().mean() * torch.eye(12)
    torch.testing.assert_close(upper.t() @ upper @ damped, torch.eye(12), atol=1e-4, rtol=1e-4)
    assert torch.equal(upper, upper.triu())


@pytest.mark.parametrize("order", [{}, {"desc_act": True}, {"act_group_aware": True}])
@pytest.mark.parametrize("sym", [True, False])
def test_identity_hessian_is_round_to_nearest(order: dict[str, bool], sym: bool) -> None:
    """Inputs that do not vary together leave nothing to make up for."""
    w = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    ours = gptq(w, torch.eye(64), group_size=16, sym=sym, **order)
    plain = rtn(w, group_size=16, sym=sym)
    assert torch.equal(ours.q, plain.q)
    assert torch.equal(ours.dequantize(), plain.dequantize())
    assert torch.equal(ours.g_idx, plain.g_idx)


def test_group_aware_order_puts_every_group_back() -> None:
    """Inputs of different magnitude that do not vary together: another order, the same codes."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(16, 64, generator=generator)
    hessian = torch.diag(torch.rand(64, generator=generator) + 0.1)
    ours = gptq(w, hessian, group_size=16, act_group_aware=True)
    plain = rtn(w, group_size=16)
    assert torch.equal(ours.q, plain.q)
    assert torch.equal(ours.scales, plain.scales)
    assert torch.equal(ours.g_idx, plain.g_idx)


@pytest.mark.parametrize("group_size", [16, 48, 64, 192, -1])
@pytest.mark.parametrize("sym", [True, False])
def test_lazy_blocks_change_speed_only(real_layers, group_size: int, sym: bool) -> None:
    layer = real_layers["self_attn.q_proj"]
    hessian = InputStats.of(layer.inputs).hessian[:192, :192]
    w = layer.weight[:32, :192]
    results = [
        gptq(w, hessian, group_size=group_size, sym=sym, block_size=size).dequantize()
        for size in (192, 64, 48)
    ]
    # One that forgets, at the end of a block, the columns behind it.
    broken = gptq(w, in_blocks(hessian), group_size=group_size, sym=sym).dequantize()

    def moved(result: torch.Tensor) -> float:
        return float((~torch.isclose(result, results[0], rtol=1e-3, atol=1e-5)).float().mean())

    def loss(result: torch.Tensor) -> float:
        return float(((result - w) @ hessian * (result - w)).sum())

    # Other sums round differently: a weight in the middle between two codes may move, and what
    # follows it in its row. Few do, and no move costs: next to what forgetting does.
    assert moved(broken) > 0.1 and loss(broken) > 1.2 * loss(results[0])
    for result in results[1:]:
        assert moved(result) < 0.5 * moved(broken)
        assert loss(result) - loss(results[0]) < 0.2 * (loss(broken) - loss(results[0]))


def test_orders() -> None:
    diagonal = torch.tensor([1.0, 5.0, 2.0, 4.0, 3.0, 9.0])
    assert column_order(diagonal, 2).tolist() == [0, 1, 2, 3, 4, 5]
    assert column_order(diagonal, 2, desc_act=True).tolist() == [5, 1, 3, 4, 2, 0]
    assert column_order(diagonal, 2, act_group_aware=True).tolist() == [5, 4, 1, 0, 3, 2]


def test_act_order_groups_follow_activity(real_layers) -> None:
    layer = real_layers["self_attn.q_proj"]
    stats = InputStats.of(layer.inputs)
    ours = gptq(layer.weight, stats.hessian, desc_act=True)
    busiest = stats.hessian.diagonal().argsort(descending=True)
    assert ours.g_idx[busiest[:64]].tolist() == [0] * 64
    assert ours.g_idx.bincount().tolist() == [64] * 9
    natural = gptq(layer.weight, stats.hessian, act_group_aware=True)
    assert torch.equal(natural.g_idx, rtn(layer.weight).g_idx)


def test_channels_that_are_never_active(real_layers) -> None:
    layer = real_layers["self_attn.q_proj"]
    x = layer.inputs.clone()
    x[:, 5] = 0
    ours = gptq(layer.weight, InputStats.of(x).hessian)
    assert (ours.dequantize()[:, 5] == 0).all()
    assert torch.isfinite(ours.dequantize()).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hessian": torch.eye(32)}, r"Hessian of \[64, 64\]"),
        ({"hessian": torch.eye(64) * torch.nan}, "Hessian is not finite"),
        ({"hessian": torch.ones(64, 64), "damp_percent": 0.0}, "no Cholesky factor"),
        ({"hessian": -torch.eye(64)}, "no Cholesky factor"),
        ({"desc_act": True, "act_group_aware": True}, "Choose one"),
        ({"group_size": 48}, "does not divide"),
        ({"block_size": 0}, "at least 1"),
        ({"weight": torch.full((2, 64), torch.inf)}, "not finite"),
    ],
)
def test_bad_arguments(arguments, message: str) -> None:
    good = {"weight": torch.ones(2, 64), "hessian": torch.eye(64)}
    with pytest.raises(ValueError, match=message):
        gptq(**good | arguments)


def test_statistics_of_two_texts_add_up() -> None:
    _, x = small_case()
    both, whole = InputStats.of(x[:70]) + InputStats.of(x[70:]), InputStats.of(x)
    assert both.num_tokens == len(x)
    torch.testing.assert_close(both.hessian, whole.hessian)
    torch.testing.assert_close(both.mean_abs, whole.mean_abs)
    with pytest.raises(ValueError, match="12 and of 4 channels"):
        both + InputStats(4)


def test_bad_statistics() -> None:
    stats = InputStats(4)
    with pytest.raises(ValueError, match="No calibration inputs"):
        stats.hessian  # noqa: B018
    with pytest.raises(ValueError, match="4 channels; got 5"):
        stats.add(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="not finite"):
        stats.add(torch.full((2, 4), torch.inf))


# --- the production tool ------------------------------------------------------------------------


def gptqmodel_gptq(w: torch.Tensor, x: torch.Tensor, group_size: int, **settings) -> torch.Tensor:
    """What gptqmodel's own GPTQ makes of a layer, read back."""
    import_gptqmodel()
    from gptqmodel import QuantizeConfig
    from gptqmodel.quantization.gptq import GPTQ

    linear = nn.Linear(w.shape[1], w.shape[0], bias=False)
    linear.weight.data = w.clone()
    config = QuantizeConfig(bits=4, group_size=group_size, damp_percent=0.05, **settings)
    tool = GPTQ(linear, config)
    tool.fallback = None
    tool.quantizer.configure(perchannel=True)
    tool.add_batch(x, None)
    return tool.quantize()[0].detach()


@pytest.mark.parametrize(
    "settings",
    [
        {"sym": True, "desc_act": False, "act_group_aware": False},
        {"sym": True, "desc_act": False, "act_group_aware": True},
        {"sym": True, "desc_act": True, "act_group_aware": False},
        {"sym": False, "desc_act": False, "act_group_aware": False},
    ],
    ids=["plain", "group-aware", "act-order", "asymmetric"],
)
@pytest.mark.parametrize("name", ["self_attn.q_proj", "self_attn.o_proj"])
def test_as_good_as_gptqmodel(real_layers, name: str, settings: dict[str, bool]) -> None:
    layer = copy.copy(real_layers[name])
    theirs = layer.error(gptqmodel_gptq(layer.weight, layer.inputs, 64, **settings))
    hessian = InputStats.of(layer.inputs).hessian
    ours = layer.error(gptq(layer.weight, hessian, **settings).dequantize())
    broken = layer.error(gptq(layer.weight, in_blocks(hessian), **settings).dequantize())
    plain = layer.error(rtn(layer.weight, sym=settings["sym"]).dequantize())
    # They round differently, which costs either of them little next to what a mistake would.
    assert ours - theirs < 0.25 * (broken - theirs)
    assert theirs - ours < 0.5 * (broken - ours)  # the tool was used as it is meant
    assert ours < 0.6 * plain
