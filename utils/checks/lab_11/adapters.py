"""Small models and LoRA adapters as peft writes them, drawn at random; and what is right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Given
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out

Tensors = dict[str, Tensor]
Config = dict[str, Any]
Pairs = dict[str, tuple[Tensor, Tensor]]

PREFIX = "base_model.model."
A, B = ".lora_A.weight", ".lora_B.weight"
KEY = re.compile(re.escape(PREFIX) + r"(?P<layer>.+)\.lora_(?P<which>[AB])\.weight")
DTYPES = (torch.bfloat16, torch.float32, torch.float16)
UNIMPORTANT = ("target_modules", "lora_dropout", "inference_mode")
SPECIAL = ("use_dora", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern")
# Layer 1 beside layer 10; names in which a part of the adapter's own keys occurs.
LAYERS = (
    "model.layers.0.self_attn.q_proj",
    "lm_head",
    "model.layers.1.mlp.down_proj",
    "model.layers.10.mlp.down_proj",
    "tower.base_model.model.proj",
    "model.lora_A.proj",
    "base_model.model.vision-tower.proj",
)
OTHERS = ("model.embed_tokens", "model.norm")  # never with matrices
RELATIVES = ("vision.{}", "{}.inner", "vision.{}.inner")  # names of which {} is a part


class Model(Given):
    """The arguments config, tensors, base. Two names in `base` may hold one tensor: `tied`."""

    tied: tuple[str, ...] = ()

    def copied(self) -> Given:
        """For the learner: what was one tensor is one tensor again."""
        theirs = super().copied()
        if self.tied:
            base = theirs.args[2]
            base[self.tied[1]] = base[self.tied[0]]
        return theirs


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
    return config | {key: value for key, value in optional.items() if c.integer(0, 4)}


def draw_name(c: Choices, base: Tensors) -> str:
    """A layer's name that is still free; often the layer before is a part of it."""
    last = next(reversed(base), OTHERS[0]).removesuffix(".bias").removesuffix(".weight")
    names = [*LAYERS[c.integer(0, len(LAYERS) - 1) :], *LAYERS]
    if last not in OTHERS and c.rarely(2):
        names.insert(0, c.pick(RELATIVES).format(last))
    return next(name for name in names if f"{name}.weight" not in base)


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
    base = {f"{n}.weight": numbers(c, 5, 4).to(dtype) for n in OTHERS if c.rarely(2)}
    of_all = (c.size(1, largest), c.size(1, largest)) if c.rarely(3) else None

    def layer() -> None:
        name = draw_name(c, base)
        width, out = of_all or (c.size(1, largest), c.size(1, largest))
        shape = (width, out) if config.get("fan_in_fan_out") else (out, width)
        base[f"{name}.weight"] = laid_out(numbers(c, *shape).to(dtype), c.pick(LAYOUTS))
        if c.rarely(4):
            base[f"{name}.bias"] = numbers(c, out).to(dtype)
        if not tensors or not c.rarely(3):
            pair = draw_matrices(c, r, width, out)
            both = [f"{PREFIX}{name}{A}", f"{PREFIX}{name}{B}"]
            tensors.update(zip(both, pair, strict=True))

    c.some(layer, 1, 5)
    return config, in_any_order(c, tensors), in_any_order(c, base)


def in_any_order(c: Choices, tensors: Tensors) -> Tensors:
    """Half of the time as they are."""
    return dict(c.shuffled(list(tensors.items()))) if c.rarely(2) else tensors


def by_expression(config: Config, tensors: Tensors, base: Tensors) -> Pairs:
    """Names by a regular expression.

    Raises:
        ValueError: anything is unknown, alone or too much; its text is quoted to the learner.
    """
    if config.get("peft_type") != "LORA":
        raise ValueError(f"The `peft_type` of this config is {config.get('peft_type')!r}")
    if config.get("bias", "none") != "none":
        raise ValueError(f"The `bias` of this config is {config['bias']!r}, not 'none'")
    if odd := [key for key in SPECIAL if config.get(key)]:
        raise ValueError(f"`{odd[0]}` is {config[odd[0]]!r} in this config")
    if not tensors:
        raise ValueError("The adapter has no tensors")
    halves: dict[str, Tensors] = {}
    for key, tensor in tensors.items():
        if not (match := KEY.fullmatch(key)):
            raise ValueError(f"The name `{key}` has neither of the two forms")
        halves.setdefault(match["layer"], {})[match["which"]] = tensor
    pairs = {}
    for layer, both in halves.items():
        if set(both) != {"A", "B"}:
            raise ValueError(f"`{layer}` has only {', '.join(both)}, so a half is missing")
        if f"{layer}.weight" not in base:
            raise ValueError(f"The base has no `{layer}.weight`")
        a, b, weight = both["A"], both["B"], base[f"{layer}.weight"]
        refuse_shapes(layer, a.shape, b.shape, weight.shape, config)
        pairs[f"{layer}.weight"] = (a, b)
    return pairs


def refuse_shapes(
    layer: str, a: Sequence[int], b: Sequence[int], weight: Sequence[int], config: Config
) -> None:
    """Raise a ValueError unless the three shapes and the config's r fit each other."""
    r = config["r"]
    out_in = tuple(weight[::-1] if config.get("fan_in_fan_out") else weight)
    if len(out_in) != 2 or (tuple(a), tuple(b)) != ((r, out_in[1]), (out_in[0], r)):
        raise ValueError(
            f"The shapes of `{layer}` don't fit each other and r = {r}: A {list(a)}, B {list(b)}, "
            f"weight {list(weight)}{', with fan_in_fan_out' * bool(config.get('fan_in_fan_out'))}"
        )


def scale_of(config: Config) -> float:
    """alpha / r, or alpha / sqrt(r) of rsLoRA."""
    power = 0.5 if config.get("use_rslora") else 1.0
    return float(config["lora_alpha"] * config["r"] ** -power)


def exact_delta(a: Tensor, b: Tensor, config: Config) -> Tensor:
    """What is added to the weight, float64, in the weight's orientation."""
    product = torch.einsum("or,ri->oi", b.double(), a.double())
    return scale_of(config) * (product.T if config.get("fan_in_fan_out") else product)


def dtype_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def told(given: Given) -> str:
    """An input in words: the config's keys that matter, and each tensor's name, dtype and shape."""
    config, *groups = given.args
    parts = [f"config { {k: v for k, v in config.items() if k not in UNIMPORTANT} }"]
    for label, tensors in zip(("tensors", "base", "merged"), groups, strict=False):
        shown = [f"{name} {dtype_of(t)} {list(t.shape)}" for name, t in tensors.items()]
        parts.append(f"{label}: " + (", ".join(shown) or "none"))
    if isinstance(given, Model) and given.tied:
        parts.append(f"in base, {' and '.join(given.tied)} are one tensor")
    return "; ".join(parts)
