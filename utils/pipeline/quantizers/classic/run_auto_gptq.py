"""GPTQ by auto-gptq 0.7.1. Runs as a subprocess in the archived tools' environment.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", 2022, https://arxiv.org/abs/2210.17323
"""

from __future__ import annotations

from typing import Any

import torch
from patches import let_auto_gptq_use_the_cpu
from worker import report_layers, run_job


def gptq(job: dict[str, Any]) -> None:
    """Quantize `job["model_dir"]` into `job["out_dir"]` (see `worker.run_job`)."""
    from auto_gptq import BaseQuantizeConfig
    from auto_gptq.modeling.auto import GPTQ_CAUSAL_LM_MODEL_MAP
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    let_auto_gptq_use_the_cpu()
    config = BaseQuantizeConfig(bits=4, group_size=job["group_size"], sym=True, desc_act=False)
    model = AutoModelForCausalLM.from_pretrained(
        job["model_dir"], torch_dtype=torch.float32, trust_remote_code=False, use_safetensors=True
    )
    model.eval()
    report_layers(model)
    with_bias = {n for n, m in model.named_modules() if getattr(m, "bias", None) is not None}
    # Not `from_pretrained`, which refuses to start without CUDA.
    wrapper = GPTQ_CAUSAL_LM_MODEL_MAP[model.config.model_type](model, False, config)
    wrapper.quantize([_example(window) for window in job["calibration"]], batch_size=1)
    # It gives every packed layer a bias, of zeros where the model has none.
    for name, module in model.named_modules():
        if hasattr(module, "qweight") and name not in with_bias:
            module.bias = None
    # Parameters are what was not quantized; the packed layers hold buffers. Keep the source's type.
    dtype = AutoConfig.from_pretrained(job["model_dir"], trust_remote_code=False).torch_dtype
    for parameter in wrapper.model.parameters():
        parameter.data = parameter.data.to(dtype)
    # Its own `save_quantized` would write the tied output layer twice, and the scales as float32.
    tensors = {
        name: tensor.contiguous().to(torch.float16 if name.endswith(".scales") else tensor.dtype)
        for name, tensor in wrapper.model.state_dict().items()
    }
    if wrapper.model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    save_file(tensors, f"{job['out_dir']}/model.safetensors", metadata={"format": "pt"})


def _example(token_ids: list[int]) -> dict[str, torch.Tensor]:
    input_ids = torch.tensor([token_ids])
    return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}


if __name__ == "__main__":
    run_job(gptq)
