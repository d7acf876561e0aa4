"""AWQ by autoawq 0.2.9. Runs as a subprocess in the archived tools' environment.

Lin et al., "AWQ: Activation-aware Weight Quantization for On-Device LLM Compression and
Acceleration", 2023, https://arxiv.org/abs/2306.00978
"""

from __future__ import annotations

from typing import Any

import torch
from patches import restore_weights_in_autoawq, use_fast_clip_search_in_autoawq
from worker import report_layers, run_job


def awq(job: dict[str, Any]) -> None:
    """Quantize `job["model_dir"]` into `job["out_dir"]` (see `worker.run_job`).

    `job["patched"]` is False in one test, which shows what autoawq does unaided.
    """
    from awq import AutoAWQForCausalLM

    use_fast_clip_search_in_autoawq()
    if job.get("patched", True):
        restore_weights_in_autoawq()
    windows = job["calibration"]
    model = AutoAWQForCausalLM.from_pretrained(
        job["model_dir"], torch_dtype=fast_dtype(), device_map="cpu", trust_remote_code=False
    )
    report_layers(model.model)
    model.quantize(
        quant_config={
            "w_bit": 4,
            "q_group_size": job["group_size"],
            "zero_point": True,
            "version": "GEMM",
        },
        calib_data=windows,
        max_calib_samples=len(windows),
        max_calib_seq_len=len(windows[0]),
    )
    model.save_quantized(job["out_dir"])


def fast_dtype() -> torch.dtype:
    """bfloat16 where the CPU multiplies it in hardware, else float32.

    autoawq's default, float16, is the slowest type on most CPUs.
    """
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


if __name__ == "__main__":
    run_job(awq)
