"""Checkpoints for exercise 5: made sound, then damaged in some places."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Given

KEYS = ("bits", "group_size", "desc_act")
PARTS = ("scales", "qweight", "qzeros", "g_idx")
NAMES = (
    "model.layers.0.mlp.up_proj",
    "model.layers.1.self_attn.q_proj",
    "lm_head",
    "model.layers.10.mlp.up_proj",
    "model.layers.2.mlp.down_proj",
)
OUT, IN = (16, 32, 48), (16, 32, 64, 48, 80, 160)


def sound(
    shapes: dict[str, tuple[int, int]],
    bits: int,
    group_size: int,
    mixed: Collection[str],
    seed: int,
    scale: float = 0.01,
) -> dict[str, Tensor]:
    """The tensors of a sound checkpoint; in a mixed layer, inputs of a group are anywhere."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    per = 32 // bits
    for layer, (out, width) in shapes.items():
        size = width if group_size == -1 else group_size
        order = torch.arange(width)
        if layer in mixed:
            order = torch.randperm(width, generator=generator)
        tensors |= {
            f"{layer}.qweight": torch.full((width // per, out), seed - 5000, dtype=torch.int32),
            f"{layer}.qzeros": torch.zeros((width // size, out // per), dtype=torch.int32),
            f"{layer}.scales": torch.full((width // size, out), scale).half(),
            f"{layer}.g_idx": (order // size).to(torch.int32),
        }
    return tensors


def draw_damaged(c: Choices) -> Given:
    """Some layers; no damage, or some: keys, tensors, both; one thing in every layer."""
    layers = NAMES[: c.integer(1, 3) + 2 * c.rarely(5)]
    shapes = {layer: (c.pick(OUT), c.pick(IN)) for layer in layers}
    widths = [width for _, width in shapes.values()]
    # Mostly sizes that leave several groups
    sizes = [n for n in range(1, min(widths) + 1) if all(w % n == 0 for w in widths)]
    size = c.pick((*sizes[-3:], sizes[-1], -1, -1, *sizes))
    odd = [n for n in range(2, min(widths) + 1) if any(w % n == 0 for w in widths)]
    bits = c.pick((4, 8, 2))
    if c.rarely(8):  # stored consistently, in a way that no entry may name
        bits, size = c.pick(((3, size), (bits, c.pick(odd))))
    entry: dict[str, Any] = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": size,
        "desc_act": bool(c.integer(0, 1)),
    }
    mixed = [layer for layer in layers if entry["desc_act"] and c.integer(0, 1)]
    scale = c.pick((0.01, 6e-8, 65504.0))
    tensors = sound(shapes, bits, size, mixed, c.integer(0, 9999), scale)
    damages = c.some(lambda: c.integer(0, 13), 0, 3)
    for damage in (*c.pick(((), (), (1,), (0, 1, 2))), *damages):
        if damage < 6:
            wrong_key(c, entry, sizes, KEYS[damage % 3])
        elif damage == 6:
            layer = c.pick(layers)
            stored_otherwise(c, tensors, layer, shapes[layer], sizes)
        elif damage < 12:
            layer, part = c.pick(layers), c.pick(PARTS)
            name = f"{layer}.{part}"
            if name in tensors:
                hurt(c, tensors, name, part)
        else:
            in_every_layer(c, tensors)
    if c.rarely(3):
        others = ("model.norm.weight", "lm_head.bias", f"{layers[-1]}.weight", "lm.0.qweight")
        tensors |= {name: torch.ones(16) for name in others}
    return Given(dict(entry), dict(shapes), tensors)


def wrong_key(c: Choices, entry: dict[str, Any], sizes: list[int], key: str) -> None:
    """Another value that could be meant, one that cannot, or none."""
    allowed = dict(zip(KEYS, ((8, 4, 2), (sizes[-1], sizes[0], -1), (True, False)), strict=True))
    others: dict[str, tuple[Any, ...]] = {
        "bits": (3, 0, "4", [4], None),
        "group_size": (7, 0, -2, 10**6, "16", None),
        "desc_act": (None, "false"),
    }
    entry[key] = c.pick(others[key] if c.rarely(3) else allowed[key])
    if c.rarely(4):
        del entry[key]


def stored_otherwise(
    c: Choices, tensors: dict[str, Tensor], layer: str, shape: tuple[int, int], sizes: list[int]
) -> None:
    """One layer, as another entry would want it."""
    bits, size, mixed = c.pick((4, 8, 2)), c.pick((*sizes, -1)), c.pick(((), (layer,)))
    tensors |= sound({layer: shape}, bits, size, mixed, c.integer(0, 9999))


def hurt(c: Choices, tensors: dict[str, Tensor], name: str, part: str) -> None:
    """Damage one tensor; rarely in a way that a key could explain, too."""
    old = tensors[name]
    if not old.dim():
        return
    row = c.integer(0, max(0, len(old) - 1))
    damages: list[Callable[[], Tensor | None]] = [
        lambda: None,  # it is missing
        lambda: old.double() if part == "scales" else old.long(),
        lambda: old[1:],
        lambda: old.new_ones(()),
        lambda: torch.cat([old, old]),
        lambda: old.T.contiguous() if old.dim() == 2 else old[None],
        lambda: old.float() if c.rarely(2) else old.bfloat16(),
    ]
    if part == "scales" and old.numel():
        damages = [*damages[:4], *3 * [lambda: with_one(old, row, c.pick(BAD_SCALES))]]
    if part == "g_idx" and old.dim() == 1 and old.numel():
        some = c.integer(0, max(0, len(old) - 1))
        damages = [
            *damages[:4],
            damages[5],
            lambda: old.flip(0),
            lambda: old.roll(1),
            lambda: old * 0,
            *2 * [lambda: with_one(old, row, int(old[some])).sort().values],
            lambda: with_one(old, row, int(old[some])),
            lambda: with_one(old, row, -1),
            lambda: with_one(old, row, int(old.max()) + 1),
        ]
    new = c.pick(damages)()
    if new is None:
        del tensors[name]
    else:
        tensors[name] = new


BAD_SCALES = (float("nan"), float("inf"), 0.0, -0.01)


def with_one(old: Tensor, row: int, value: float) -> Tensor:
    """The same but for one number, in the last place of a row."""
    new = old.clone()
    if new.numel():
        new.view(len(new), -1)[row, -1] = value
    return new


def in_every_layer(c: Choices, tensors: dict[str, Tensor]) -> None:
    """The same fault everywhere: a tool's bug, not a key's."""
    part, gone = c.pick(PARTS), c.rarely(2)
    names = [name for name in tensors if name.endswith(f".{part}")]
    for name in names:
        if gone:
            del tensors[name]
        elif part == "g_idx":
            tensors[name] = tensors[name].flatten().flip(0)
        elif part == "scales":
            tensors[name] = tensors[name].bfloat16()
        else:
            tensors[name] = tensors[name].long()
