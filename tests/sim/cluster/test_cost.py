"""The cost of a step against the formulas and figures of the paper it comes from."""

from __future__ import annotations

import pytest

from utils.sim.cluster.cost import CostModel, llama3_70b_on_a800


def test_prefill_is_mooncakes_formula() -> None:
    """flops(n) = l (a n² d + b n d²) on 2,496 TFLOP/s; without the step's fixed cost."""
    cost = llama3_70b_on_a800()
    for n, cached in ((8192, 0), (12035, 4096), (1, 0)):
        flops = [80 * (4 * m**2 * 8192 + 22 * m * 8192**2) for m in (n, cached)]
        seconds = (flops[0] - flops[1]) / 2496e12
        assert cost.prefill_seconds(n, cached) - cost.per_step == pytest.approx(seconds)


def test_fetching_beats_computing_from_6_gb_per_second_on() -> None:
    """Mooncake's section 2: 8,192 tokens of 320 KB against computing them, on this machine."""
    cost = llama3_70b_on_a800()
    seconds = cost.prefill_seconds(8192) - cost.per_step
    assert 8192 * 320 * 1024 / seconds == pytest.approx(6e9, rel=0.05)


def test_a_prompt_in_pieces_costs_the_same_but_for_the_steps() -> None:
    cost = llama3_70b_on_a800(0.5)
    whole = cost.prefill_seconds(5000)
    pieces = cost.prefill_seconds(2000) + cost.prefill_seconds(5000, 2000)
    assert pieces - whole == pytest.approx(cost.per_step)


def test_decode_reads_weights_and_contexts() -> None:
    cost = llama3_70b_on_a800()
    one, many = cost.decode_seconds(1, 0), cost.decode_seconds(1, 100_000)
    assert one == pytest.approx(141e9 / (8 * 2.039e12), rel=0.01)
    assert many - one == pytest.approx(100_000 * 327_680 / (8 * 2.039e12))


def test_bad_costs_are_refused() -> None:
    for bad in (lambda: CostModel(0, 0), lambda: CostModel(-1, 1), lambda: llama3_70b_on_a800(0)):
        with pytest.raises(ValueError, match="0"):
            bad()
