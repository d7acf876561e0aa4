"""DistServe's first figure, simulated: goodput with prefill and decode together, and apart.

Published: a model of 13 billion parameters (OPT) on A100 GPUs, prompts of 512 tokens, answers of
64, TTFT within 0.4 s and TPOT within 0.04 s for 90 % of the requests. Zhong et al., OSDI 2024,
figure 1, https://arxiv.org/abs/2401.09670; the numbers stand in the text of the authors' summary,
https://hao-ai-lab.github.io/blogs/distserve

The simulator knows how long steps take: what the authors measured and published with their own
simulator. Twice: as it is, and with all steps slower by one factor, chosen so that the colocated
rate is the published one. The other rates are then predictions.

    python benchmarks/distserve.py

writes `results/distserve.json`.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import write_report  # noqa: E402
from utils.disaggregation.distserve import (  # noqa: E402
    DISTSERVE_A100_13B,
    PUBLISHED,
    VLLM_A100_13B,
    figure,
    fit_slowdown,
)
from utils.disaggregation.goodput import PAPERS_SLO, Workload  # noqa: E402


def main() -> None:
    work = Workload()
    factor = fit_slowdown(VLLM_A100_13B, work)
    rows = {
        "published": PUBLISHED,
        "simulated, vLLM's step times": figure(VLLM_A100_13B, work),
        "simulated, DistServe's step times": figure(DISTSERVE_A100_13B, work),
        f"simulated, vLLM's step times, {factor:.2f} times as long": figure(
            VLLM_A100_13B.slower(factor), work
        ),
    }
    for name, row in rows.items():
        print(f"{name:52}", " ".join(f"{key} {value:5.2f}" for key, value in row.items()))
    write_report(
        "distserve",
        {"requests_per_second": rows, "fitted_factor": factor},
        ["numpy"],
        benchmark="DistServe figure 1, simulated",
        published="https://arxiv.org/abs/2401.09670",
        workload=asdict(work),
        slo=asdict(PAPERS_SLO),
        step_times={"vllm": asdict(VLLM_A100_13B), "distserve": asdict(DISTSERVE_A100_13B)},
    )


if __name__ == "__main__":
    main()
