"""Adapters that must be refused: each way to spoil one."""

from __future__ import annotations

from typing import Any

import torch

from utils.checks.kit.contracts import Choices
from utils.checks.lab_11.adapters import PREFIX, RELATIVES, A, B, Config, Tensors

ODD: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LOHA", None, "lora", "ADALORA"),
    "use_dora": (True,),
    "bias": ("all", "lora_only", None, False, "", "None"),
    "lora_bias": (True,),
    "modules_to_save": (["lm_head"],),
    "rank_pattern": ({"q_proj": 4},),
    "alpha_pattern": ({"q_proj": 4},),
}
# Each as (start, end) of both keys of a layer, instead of peft's prefix and no addition.
RENAMED = (
    (PREFIX, ".default"),
    ("", ""),
    ("base_model.", ""),
    ("base_model_model.", ""),
    ("tower." + PREFIX, ""),
)
KINDS = (
    *(4 * ("config",)),
    *("alone", "stranger", "stranger", "key", "key", "names"),
    *("rank", "larger", "larger", "turned", "orientation", "axes", "nothing"),
)


def spoil(c: Choices, config: Config, tensors: Tensors, base: Tensors) -> None:
    """Make one thing wrong with the adapter, in place."""
    key, kind = c.pick(list(tensors)), c.pick(KINDS)
    layer = key[len(PREFIX) : -len(A)]
    if kind == "config":
        name = c.pick((*ODD, "peft_type", "bias"))
        config[name] = c.pick(ODD[name])
        if name == "peft_type" and config[name] is None:
            del config[name]
    elif kind == "alone":
        _half_away(c, key, tensors)
    elif kind == "stranger":
        weight = base.pop(f"{layer}.weight")
        if c.rarely(2):  # a weight that has the missing name as a part
            base.setdefault(f"{c.pick(RELATIVES).format(layer)}.weight", weight)
    elif kind == "key":
        _another_key(c, key, layer, tensors)
    elif kind == "names":
        start, end = c.pick(RENAMED)
        for half in (A, B):
            new = f"{start}{layer}{half.removesuffix('.weight')}{end}.weight"
            tensors[new] = tensors.pop(PREFIX + layer + half)
    elif kind == "rank":
        config["r"] += c.pick((1, 3))
    elif kind == "larger":
        dim = c.integer(0, 1)
        tensors[key] = torch.cat([tensors[key], tensors[key].narrow(dim, 0, 1)], dim=dim)
    elif kind == "turned":
        tensors[key] = tensors[key].T
    elif kind == "orientation":
        config["fan_in_fan_out"] = not config.get("fan_in_fan_out")
    elif kind == "axes":  # of an embedding's vector, or of a convolution
        weight, matrix = base[f"{layer}.weight"], tensors[key]
        base[f"{layer}.weight"] = other = c.pick((weight[0], weight[..., None, None], weight))
        if other is weight or c.rarely(2):
            tensors[key] = c.pick((matrix[..., None, None], matrix[:, 0]))
    else:
        tensors.clear()


def _half_away(c: Choices, key: str, tensors: Tensors) -> None:
    """An A without B, or a B without A; or one of each, but of two layers."""
    del tensors[key]
    others = [other for other in tensors if other[-len(A) :] != key[-len(A) :]]
    others = [other for other in others if other[: -len(A)] != key[: -len(A)]]
    if others and c.rarely(2):
        del tensors[c.pick(others)]


def _another_key(c: Choices, key: str, layer: str, tensors: Tensors) -> None:
    """A key of no known form, beside the right one or instead of it."""
    new = c.pick(
        (
            f"{layer}.weight",
            key.replace(".lora_", ".lora_embedding_"),
            key.removesuffix(".weight"),
            f"{key}_scale",
            f"{PREFIX}{layer}.lora_magnitude_vector",
            f"{PREFIX}lm_head.modules_to_save.weight",
            f"{PREFIX}{layer}.lora_B.bias",
            f"{PREFIX}{layer}.lora_C.weight",
        )
    )
    tensors[new] = tensors[key] if c.rarely(2) else tensors.pop(key)
