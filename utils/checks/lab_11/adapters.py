"""Small models and LoRA adapters as peft writes them, drawn at random."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Given
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out

Tensors = dict[str, Tensor]
Config = dict[str, Any]

PREFIX = "base_model.model."
A, B = ".lora_A.weight", ".lora_B.weight"
DTYPES = (torch.bfloat16, torch.float32, torch.float16)
UNIMPORTANT = ("target_modules", "lora_dropout", "inference_mode")
# Layer 1 beside layer 10; names in which a part of the adapter's own keys occurs.
LAYERS = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.1.mlp.down_proj",
    "model.layers.10.mlp.down_proj",
    "model.layers.1.self_attn.q_proj",
    "lm_head",
    "tower.base_model.model.proj",
    "model.lora_A.proj",
    "base_model.model.vision-tower.proj",
)


def numbers(c: Choices, *shape: int, scale: float = 1.0) -> Tensor:
    """float32, normal."""
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    return scale * torch.randn(shape, generator=generator)


def draw_config(c: Choices, r: int) -> Config:
    """Plain LoRA with what peft writes beside it; keys that may be missing sometimes are."""
    config: Config = {"peft_type": "LORA", "r": r, "lora_alpha": c.pick((16, 1, r, 2 * r, 0.5, 24))}
    optional = {
        "use_rslora": c.rarely(3),
        "fan_in_fan_out": c.rarely(4),
        "use_dora": False,
        "bias": "none",
        "lora_bias": False,
        "modules_to_save": c.pick((None, [])),
        "rank_pattern": {},
        "alpha_pattern": c.pick(({}, None)),
        "target_modules": ["down_proj", "q_proj"],
        "lora_dropout": 0.1,
        "inference_mode": c.pick((True, False)),
    }
    for key, value in optional.items():
        if not c.rarely(5):
            config[key] = value
    return config


def draw_matrices(c: Choices, r: int, width: int, out: int) -> tuple[Tensor, Tensor]:
    """A [r, in] and B [out, r]; often in 16 bits."""
    dtype = c.pick((torch.float32, torch.float32, torch.bfloat16, torch.float16))
    a = numbers(c, r, width, scale=c.pick((1.0, 0.1, 0.01)))
    b = numbers(c, out, r, scale=c.pick((1.0, 0.1, 0.01)))
    return (laid_out(a.to(dtype), c.pick(LAYOUTS)), laid_out(b.to(dtype), c.pick(LAYOUTS)))


def draw_model(c: Choices, largest: int = 12) -> tuple[Config, Tensors, Tensors]:
    """config, the adapter's tensors and the base's: some layers with an adapter, others without."""
    r = c.size(1, 70, small=4)
    config, dtype = draw_config(c, r), c.pick(DTYPES)
    tensors: Tensors = {}
    base = {
        "model.embed_tokens.weight": numbers(c, 5, 4).to(dtype),
        "model.norm.weight": numbers(c, 4).to(dtype),
    }
    layers = c.shuffled(LAYERS)[: c.integer(1, 5)]
    of_all = (c.size(1, largest), c.size(1, largest)) if c.rarely(3) else None
    for number, layer in enumerate(layers):
        width, out = of_all or (c.size(1, largest), c.size(1, largest))
        shape = (width, out) if config.get("fan_in_fan_out") else (out, width)
        base[f"{layer}.weight"] = laid_out(numbers(c, *shape).to(dtype), c.pick(LAYOUTS))
        if c.rarely(4):
            base[f"{layer}.bias"] = numbers(c, out).to(dtype)
        if number == 0 or not c.rarely(3):
            pair = draw_matrices(c, r, width, out)
            keys = [f"{PREFIX}{layer}{A}", f"{PREFIX}{layer}{B}"]
            tensors |= dict(c.shuffled(list(zip(keys, pair, strict=True))))
    return config, dict(c.shuffled(list(tensors.items()))), base


def scale_of(config: Config) -> float:
    """alpha / r, or alpha / sqrt(r) of rsLoRA."""
    power = 0.5 if config.get("use_rslora") else 1.0
    return float(config["lora_alpha"] * config["r"] ** -power)


def exact_delta(a: Tensor, b: Tensor, config: Config) -> Tensor:
    """What is added to the weight, float64, in the weight's orientation."""
    product = torch.einsum("or,ri->oi", b.double(), a.double())
    return scale_of(config) * (product.T if config.get("fan_in_fan_out") else product)


def float32_error(weight: Tensor, a: Tensor, b: Tensor, config: Config) -> Tensor:
    """How far a sum in float32 may be from the exact one, float64 (Higham, section 3.1)."""
    sizes = exact_delta(a.abs(), b.abs(), config | {"lora_alpha": abs(config["lora_alpha"])})
    return (config["r"] + 8) * torch.finfo(torch.float32).eps * (weight.double().abs() + sizes)


def told(given: Given) -> str:
    """An input in words: the config's keys that matter, and each tensor's name, dtype and shape."""
    config, *groups = given.args
    matter = {k: v for k, v in config.items() if k not in UNIMPORTANT and v}
    parts = [f"config {matter}"]
    for label, tensors in zip(("tensors", "base", "merged"), groups, strict=False):
        shown = [
            f"{name} {str(t.dtype).removeprefix('torch.')} {list(t.shape)}"
            for name, t in tensors.items()
        ]
        parts.append(f"{label}: " + (", ".join(shown) or "none"))
    return "; ".join(parts)
