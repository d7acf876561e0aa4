"""QLoRA: the base in 4-bit NF4 and frozen, small LoRA matrices on top, loss on the answer only.

Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023,
https://arxiv.org/abs/2305.14314
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm.auto import tqdm

from utils.pipeline.stages.packed_batches import ATTENTION, answer_loss, batches, encode, pad
from utils.pipeline.task.data import Example

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

MAX_GRAD_NORM = 1.0
CURVE = "loss.json"
FIGURE = "loss.png"


@dataclass(frozen=True)
class TrainSettings:
    """What training depends on, besides the model and the data. `dtype` is that of the compute."""

    steps: int
    batch_size: int
    learning_rate: float
    lora_r: int
    lora_alpha: int
    dtype: str = "bfloat16"
    device: str = "cpu"
    gradient_checkpointing: bool = False
    seed: int = 0


def load_nf4(model_dir: Path, settings: TrainSettings) -> PreTrainedModel:
    """Load the base with its linear layers in NF4, double-quantized, ready for training."""
    import bitsandbytes as bnb
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    dtype = getattr(torch, settings.dtype)
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    model = AutoModelForCausalLM.from_pretrained(
        model_dir,
        quantization_config=config,
        dtype=dtype,
        device_map={"": settings.device},
        attn_implementation=ATTENTION,
        trust_remote_code=False,
        use_safetensors=True,
    )
    for layer in model.modules():
        if isinstance(layer, bnb.nn.Linear4bit):
            # On CPUs with AVX512-BF16 the first forward pass without gradients repacks the weight
            # for a faster kernel. That kernel has no backward pass: gradients would be wrong from
            # then on, without a word (cosine to the true gradient 0.16 instead of 1.00).
            layer.support_avx512bf16_for_cpu = False
    return model


def add_lora(model: PreTrainedModel, settings: TrainSettings) -> PeftModel:
    """Freeze `model` and add trainable LoRA matrices to all its linear layers.

    They get the model's dtype: CPUs and GPUs multiply bfloat16 several times faster than float32.
    `finetune` keeps the float32 copies that the optimizer needs.

    Hu et al., "LoRA", 2021, https://arxiv.org/abs/2106.09685: y = W x + (alpha / r) B A x.
    """
    from peft import LoraConfig, get_peft_model

    quiet_peft()
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        target_modules="all-linear",
    )
    torch.manual_seed(settings.seed)  # A is random, B is zero
    lora = get_peft_model(model, config, autocast_adapter_dtype=False)
    for parameter in lora.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(model.dtype)
    return lora


def quiet_peft() -> None:
    """Keep peft from asking for packages that nothing here needs.

    It asks of every plain layer whether gptqmodel or torchao made it. Where gptqmodel is installed,
    it then insists on the package optimum, and where torchao is older than peft likes, as on Colab,
    it raises an ImportError; only to answer no. None of the layers we adapt is theirs.
    """
    from peft.tuners.lora import awq, gptq, torchao

    for module in (awq, gptq):
        module.is_gptqmodel_available = lambda: False
    torchao.is_torchao_available = lambda: False


def finetune(
    model_dir: Path, train: list[Example], out_dir: Path, settings: TrainSettings
) -> dict[str, Any]:
    """Train a LoRA adapter on `train` and save it, with its loss curve, into `out_dir`.

    Returns:
        The measures: first and last loss, trained parameters, tokens seen.

    Raises:
        ValueError: fewer examples than one batch.
        RuntimeError: the loss became NaN or infinite.
    """
    import bitsandbytes as bnb
    from transformers import AutoTokenizer
    from transformers.utils import logging

    if len(train) < settings.batch_size:
        raise ValueError(
            f"{len(train)} training examples, but one batch needs {settings.batch_size}."
        )
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False)
    model = add_lora(load_nf4(model_dir, settings), settings)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # On a GPU the optimizer's state may be paged out to the host, as in QLoRA, section 3.
    adamw = bnb.optim.PagedAdamW32bit if settings.device == "cuda" else torch.optim.AdamW
    # Steps are small against the weights: added up in bfloat16, most would be rounded away.
    masters = [parameter.detach().float() for parameter in trained]
    optimizer = adamw(masters, lr=settings.learning_rate, weight_decay=0.0)
    schedule = one_cycle(optimizer, settings.learning_rate, settings.steps, warmup=0.1)
    # float16 gradients underflow without it; for other types it does nothing.
    scaler = torch.amp.GradScaler(settings.device, enabled=settings.dtype == "float16")
    source = batches(encode(tokenizer, train), settings.batch_size, settings.seed)
    losses: list[float] = []
    tokens = 0
    progress = tqdm(range(settings.steps), desc="finetune", unit="step")
    for _ in progress:
        batch = next(source)
        loss = answer_loss(model, pad(batch))
        losses.append(loss.item())
        if not torch.isfinite(loss):
            raise RuntimeError(
                f"The loss became {loss.item()} at step {len(losses)}. Lower the learning rate "
                f"(now {settings.learning_rate:g})."
            )
        scaler.scale(loss).backward()
        for master, parameter in zip(masters, trained, strict=True):
            master.grad, parameter.grad = parameter.grad.float(), None
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(masters, MAX_GRAD_NORM)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        for master, parameter in zip(masters, trained, strict=True):
            parameter.data.copy_(master)
        tokens += batch.input_ids.shape[1]
        del loss
        _return_free_memory()
        progress.set_postfix(loss=f"{losses[-1]:.3f}")
    model.save_pretrained(out_dir)  # adapter_config.json and adapter_model.safetensors
    (out_dir / CURVE).write_text(json.dumps({"loss": losses}))
    draw_loss(losses, out_dir / FIGURE)
    tail = losses[-5:]
    return {
        "first_loss": losses[0],
        "last_loss": sum(tail) / len(tail),
        "trained_parameters": sum(parameter.numel() for parameter in trained),
        "tokens": tokens,
    }


def one_cycle(
    optimizer: torch.optim.Optimizer, learning_rate: float, steps: int, warmup: float
) -> torch.optim.lr_scheduler.OneCycleLR:
    """Let the learning rate rise to `learning_rate` in a share of the steps, and then fall.

    Smith and Topin, "Super-Convergence", 2017, https://arxiv.org/abs/1708.07120
    """
    # PyTorch divides by zero if the rise takes exactly one step.
    share = min(0.9, max(warmup, 2 / steps))
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=steps, pct_start=share, cycle_momentum=False
    )


def _return_free_memory() -> None:
    """Give what is free between the tensors back to the system, where the C library can (glibc).

    Each step lays its tensors elsewhere between the gaps that others left. Without this, a process
    keeps every page that any step has touched.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def draw_loss(losses: list[float], path: Path) -> None:
    """Draw the loss curve: each step, on a logarithmic axis."""
    from matplotlib.figure import Figure

    from utils.viz.style import BLUE

    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(losses) + 1), losses, color=BLUE)
    axes.set_yscale("log")
    axes.set_title(
        f"Loss on the answers falls from {losses[0]:.2f} to {losses[-1]:.3f} "
        f"in {len(losses)} steps",
        loc="left",
        weight="bold",
    )
    axes.set_xlabel("training step")
    axes.set_ylabel("cross-entropy (nats per token)")
    axes.grid(True, color="#dddddd")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
