"""Figure 1 of DistServe: what was published, and what the simulator says.

Zhong et al., OSDI 2024, https://arxiv.org/abs/2401.09670
"""

from __future__ import annotations

from collections.abc import Callable

from utils.disaggregation.goodput import (
    KV_TOKENS,
    PAPERS_SLO,
    Latencies,
    Slo,
    StepTimes,
    Workload,
    highest_rate,
    serve_apart,
    serve_decode,
    serve_prefill,
    serve_together,
)

# Measured by the paper's authors on one A100 with 80 GB, and published with their simulator:
# github.com/LLMServe/DistServe, simdistserve/estimators/profile_data, there in milliseconds.
VLLM_A100_13B = StepTimes(
    23.627e-3, 0.15055e-3, 8.6535e-9, 19.5625e-3, 0.49411e-6, 0.050606e-3, KV_TOKENS
)
DISTSERVE_A100_13B = StepTimes(
    16.457e-3, 0.092648e-3, 6.4748e-9, 19.9347e-3, 0.62694e-6, 0.038507e-3, KV_TOKENS
)
# Requests per second and GPU, as the paper's authors report them for figure 1.
PUBLISHED = {"together": 1.6, "prefill alone": 5.6, "decode alone": 10.0, "2 + 1 GPUs": 10 / 3}


def figure(times: StepTimes, work: Workload, slo: Slo = PAPERS_SLO) -> dict[str, float]:
    """The four rates of figure 1, per GPU: together, each phase alone, 2 prefill + 1 decode."""
    serve: dict[str, tuple[Callable[[float], Latencies], int]] = {
        "together": (lambda rate: serve_together(times, work, rate), 1),
        "prefill alone": (lambda rate: serve_prefill(times, work, rate), 1),
        "decode alone": (lambda rate: serve_decode(times, work, rate), 1),
        "2 + 1 GPUs": (lambda rate: serve_apart(times, work, rate, 2, 1), 3),
    }
    return {name: highest_rate(f, slo) / gpus for name, (f, gpus) in serve.items()}


def fit_slowdown(times: StepTimes, work: Workload, together: float | None = None) -> float:
    """The factor by which all steps must be slower, to serve `together` requests/s colocated.

    None: the published rate.
    """
    target = PUBLISHED["together"] if together is None else together
    low, high = 0.2, 5.0
    while high - low > 0.005:
        middle = (low + high) / 2
        slower = times.slower(middle)
        fits = highest_rate(lambda rate, t=slower: serve_together(t, work, rate)) >= target  # type: ignore[misc]
        low, high = (middle, high) if fits else (low, middle)
    return low
