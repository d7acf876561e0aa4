"""The simulator of goodput: against queueing theory, by hand, and the published figure."""

from __future__ import annotations

import json

import numpy as np
import pytest

from utils.disaggregation.distserve import PUBLISHED, VLLM_A100_13B, figure, fit_slowdown
from utils.disaggregation.goodput import (
    KV_TOKENS,
    Slo,
    StepTimes,
    Workload,
    highest_rate,
    serve_apart,
    serve_decode,
    serve_prefill,
    serve_together,
)
from utils.environments.pipeline import ROOT

ONE_AT_A_TIME = Workload(prompt_tokens=2048, output_tokens=5, num_requests=20_000)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_prompts_one_at_a_time_wait_as_long_as_the_formula_says(load: float) -> None:
    # Pollaczek-Khinchine for M/D/1: mean wait = load / (2 (1 - load)) service times.
    times = StepTimes(1.0, 0, 0, 1.0, 0, 0, KV_TOKENS)
    ttft = serve_prefill(times, ONE_AT_A_TIME, load).ttft
    assert ttft.mean() == pytest.approx(1 + load / (2 * (1 - load)), rel=0.06)


def test_one_request_by_hand() -> None:
    times = StepTimes(10, 0.5, 0.25, 1, 0.01, 0.1, 1000)
    work = Workload(prompt_tokens=4, output_tokens=3, num_requests=1)
    read = 10 + 0.5 * 4 + 0.25 * 16
    write = (1 + 0.01 * 5 + 0.1) + (1 + 0.01 * 6 + 0.1)
    both = serve_together(times, work, 1.0)
    assert both.ttft.tolist() == [pytest.approx(read)]
    assert both.tpot.tolist() == [pytest.approx(write / 2)]
    assert serve_prefill(times, work, 1.0).ttft.tolist() == [pytest.approx(read)]
    assert serve_decode(times, work, 1.0).tpot.tolist() == [pytest.approx(write / 2)]
    moved = 4 * 2 * 40 * 5120 * 2 / 1e6
    apart = serve_apart(times, work, 1.0, 1, 1, bytes_per_second=1e6)
    assert apart.tpot.tolist() == [pytest.approx((write + moved) / 2)]


def test_a_prompt_stops_the_decoding_of_others_together_and_not_apart() -> None:
    times = StepTimes(1.0, 0, 0, 0.1, 0, 0, KV_TOKENS)
    work = Workload(prompt_tokens=512, output_tokens=64, num_requests=200)
    together, apart = serve_together(times, work, 0.1), serve_apart(times, work, 0.1, 1, 1)
    assert np.quantile(apart.tpot, 0.9) == pytest.approx(0.1, rel=0.02)
    assert together.tpot.max() > 0.1 + 1 / 63


def test_memory_bounds_the_requests_at_a_time() -> None:
    times = StepTimes(0, 0, 0, 1.0, 0, 0, kv_tokens=2 * (512 + 64))
    work = Workload(num_requests=4)
    tpot = serve_decode(times, work, 1e6).tpot  # at once, and two have room
    assert tpot.tolist() == pytest.approx([1, 1, 2, 2], rel=0.02)


def test_the_published_figure() -> None:
    work = Workload()
    rates = figure(VLLM_A100_13B, work)
    assert rates["2 + 1 GPUs"] / rates["together"] == pytest.approx(3.33 / 1.6, rel=0.1)
    factor = fit_slowdown(VLLM_A100_13B, work)
    fitted = figure(VLLM_A100_13B.slower(factor), work)
    assert fitted["together"] == pytest.approx(PUBLISHED["together"], abs=0.05)
    for name, published in PUBLISHED.items():
        assert 0.8 < fitted[name] / published < 1.4, name
    saved = json.loads((ROOT / "benchmarks/results/distserve.json").read_text())["results"]
    assert saved["requests_per_second"]["simulated, vLLM's step times"] == pytest.approx(rates)


def test_apart_is_bound_by_the_slower_side() -> None:
    work = Workload()
    read, write = (
        highest_rate(lambda rate, f=f: f(VLLM_A100_13B, work, rate))
        for f in (serve_prefill, serve_decode)
    )
    pair = highest_rate(lambda rate: serve_apart(VLLM_A100_13B, work, rate, 1, 1))
    assert pair == pytest.approx(min(read, write), rel=0.05)


def test_a_stricter_limit_never_gives_a_higher_rate() -> None:
    work = Workload(num_requests=500)
    rates = [
        highest_rate(lambda rate: serve_together(VLLM_A100_13B, work, rate), Slo(0.4, tpot))
        for tpot in (0.02, 0.03, 0.04, 0.08)
    ]
    assert rates == sorted(rates)
    with pytest.raises(ValueError, match="expected 'ttft'"):
        highest_rate(lambda rate: serve_prefill(VLLM_A100_13B, work, rate), limit="both of them")
