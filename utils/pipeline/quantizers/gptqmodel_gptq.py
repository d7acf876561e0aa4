"""GPTQ by gptqmodel, the maintained successor of auto-gptq. Runs as a subprocess.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", 2022, https://arxiv.org/abs/2210.17323
"""

from __future__ import annotations

from typing import Any

import torch

from utils.pipeline.float32_products import multiply_in_float32
from utils.pipeline.quantizers.classic.worker import report_layers, run_job


def gptq(job: dict[str, Any]) -> None:
    """Quantize `job["model_dir"]` into `job["out_dir"]` (see `worker.run_job`)."""
    from gptqmodel import GPTQModel, QuantizeConfig

    config = QuantizeConfig(
        bits=4,
        group_size=job["group_size"],
        sym=True,
        desc_act=False,  # vLLM's CPU kernels need the columns in their natural order
        offload_to_disk=False,
    )
    multiply_in_float32()
    model = GPTQModel.load(job["model_dir"], config, dtype=getattr(torch, job["dtype"]))
    report_layers(model.model)
    model.quantize(job["calibration"], batch_size=1)
    model.save(job["out_dir"])


if __name__ == "__main__":
    run_job(gptq)
