"""Damaged checkpoints, and what is damaged in them: exercise 5, where many answers are right.

A judge decides whether a checkpoint is sound once what an answer names was replaced, and whether
fewer names would do. It goes through all entries that could be meant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Given

Entry = dict[str, Any]
Shapes = dict[str, tuple[int, int]]
Tensors = dict[str, Tensor]
KEYS = ("bits", "group_size", "desc_act")
PARTS = ("scales", "qweight", "qzeros", "g_idx", "scales", "g_idx")  # the last two are likely
NAMES = (
    *("model.layers.0.mlp.up_proj", "model.layers.1.self_attn.q_proj", "lm_head"),
    *("model.layers.10.mlp.up_proj", "model.layers.2.mlp.down_proj"),
    *(f"model.layers.{n}.mlp.gate_proj" for n in range(9)),
)
OUT, IN = (16, 32, 48), (16, 32, 64, 48, 80, 160, 144, 256)
BAD_SCALES = (float("nan"), float("inf"), 0.0, -0.01)

# What is damaged


class Way(NamedTuple):
    """One way to read a checkpoint."""

    bits: int
    group_size: int
    desc_act: bool

    def keys_against(self, entry: Entry) -> set[str]:
        """The keys of the entry that say something else."""
        return {
            key
            for key, value in zip(KEYS, self, strict=True)
            if key not in entry or type(entry[key]) is not type(value) or entry[key] != value
        }


def ways(shapes: Shapes) -> Iterator[Way]:
    """All entries that are allowed for layers of these shapes."""
    for bits, size, desc_act in product((4, 2, 8), [*common_sizes(shapes), -1], (False, True)):
        yield Way(bits, size, desc_act)


def common_sizes(shapes: Shapes) -> list[int]:
    """The group sizes that divide the inputs of every layer."""
    widths = [width for _, width in shapes.values()]
    return [n for n in range(1, min(widths) + 1) if all(width % n == 0 for width in widths)]


def damaged(shapes: Shapes, kinds: dict[str, Any], groups: dict[str, Any], way: Way) -> set[str]:
    """The names of the tensors that this way to read a checkpoint would have to replace."""
    found = set()
    for layer, (out, width) in shapes.items():
        size, per = width if way.group_size == -1 else way.group_size, 32 // way.bits
        right = {
            f"{layer}.qweight": (torch.int32, (width // per, out)),
            f"{layer}.qzeros": (torch.int32, (width // size, out // per)),
            f"{layer}.scales": (torch.float16, (width // size, out)),
            f"{layer}.g_idx": (torch.int32, (width,)),
        }
        found |= {name for name, kind in right.items() if kinds.get(name) != kind}
        if (name := f"{layer}.g_idx") not in found:
            g_idx = sorted(groups[name]) if way.desc_act else groups[name]
            found |= {name} if g_idx != [i // size for i in range(width)] else set()
    return found


def explanations(entry: Entry, shapes: Shapes, tensors: Tensors) -> list[set[str]]:
    """For each way to read the checkpoint: what would have to be replaced."""
    kinds = {
        name: (t.dtype, tuple(t.shape))
        for name, t in tensors.items()
        if not name.endswith(".scales") or bool(((t > 0) & (t < float("inf"))).all())
    }
    groups = {n: t.flatten().tolist() for n, t in tensors.items() if n.endswith(".g_idx")}
    return [way.keys_against(entry) | damaged(shapes, kinds, groups, way) for way in ways(shapes)]


def smallest(entry: Entry, shapes: Shapes, tensors: Tensors) -> set[str]:
    """One of the smallest explanations."""
    return min(explanations(entry, shapes, tensors), key=len)


# Checkpoints


def draw_damaged(c: Choices) -> Given:
    """Some layers; no damage, or some: keys, tensors, both; one thing in every layer."""
    layers = NAMES[: c.integer(1, 3) + 2 * c.rarely(5)]
    crowd = c.rarely(40)  # many layers, all damaged: all sets of names are too many to try
    if crowd:
        layers = NAMES
    shapes = {layer: (c.pick(OUT), c.pick(IN)) for layer in layers}
    widths = [width for _, width in shapes.values()]
    sizes = common_sizes(shapes)
    size = c.pick((*sizes[-3:], sizes[-1], -1, -1, *sizes))  # mostly ones that leave many groups
    bits = c.pick((4, 8, 2))
    if c.rarely(8):  # stored consistently, in a way that no entry may name
        odd = [n for n in range(2, min(widths) + 1) if any(w % n == 0 for w in widths)]
        bits, size = c.pick(((3, size), (bits, c.pick(odd))))
    desc_act = bool(c.integer(0, 1))
    entry = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": desc_act}
    some = [layer for layer in layers if desc_act and c.integer(0, 1)]
    tensors = sound(shapes, bits, size, some, c.integer(0, 9999), c.pick((0.01, 6e-8, 65504.0)))
    damages = [*c.some(lambda: c.integer(0, 14), 0, 3), *crowd * (12, 12)]
    for damage in (*c.pick(((), (), (1,), (0, 1, 2))), *damages):
        if damage < 6:
            wrong_key(c, entry, (sizes[-1], sizes[0], -1, max(widths)), KEYS[damage % 3])
        elif damage == 6:
            layer = c.pick(layers)  # stored as another entry would want it
            bits, size, mixed = c.pick((4, 8, 2)), c.pick((*sizes, -1)), c.pick(((), (layer,)))
            one = {layer: shapes[layer]}
            tensors |= sound(one, bits, size, mixed, c.integer(0, 9999), 0.01)
        elif damage < 12:
            layer, part = c.pick(layers), c.pick(PARTS)
            if f"{layer}.{part}" in tensors:
                hurt(c, tensors, f"{layer}.{part}", part)
        elif damage < 14:
            in_every_layer(c, tensors)
        elif (g_idx := tensors.get(name := f"{layers[0]}.g_idx")) is not None and g_idx.dim() == 1:
            tensors[name] = with_one(g_idx, 0, int(g_idx[-1]))  # each group, not equally large
    if c.rarely(3):
        others = ("model.norm.weight", "lm_head.bias", f"{layers[-1]}.weight", "lm.0.qweight")
        tensors |= {name: torch.ones(16) for name in others}
    return Given(dict(entry), dict(shapes), tensors)


def sound(
    shapes: Shapes, bits: int, group_size: int, mixed: Collection[str], seed: int, scale: float
) -> Tensors:
    """The tensors of a sound checkpoint; in a mixed layer, inputs of a group are anywhere."""
    generator = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
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


def wrong_key(c: Choices, entry: Entry, sizes: tuple[int, ...], key: str) -> None:
    """Another value that could be meant, one that cannot (such as the right one as a text), or
    none."""
    allowed = dict(zip(KEYS, ((8, 4, 2), sizes, (True, False)), strict=True))
    as_text = str(entry.get(key))
    others: dict[str, tuple[Any, ...]] = {
        "bits": (3, 0, as_text, [4], None),
        "group_size": (7, 0, -2, 10**6, as_text, None),
        "desc_act": (None, "false"),
    }
    entry[key] = c.pick(others[key] if c.rarely(3) else allowed[key])
    if c.rarely(4):
        del entry[key]


def hurt(c: Choices, tensors: Tensors, name: str, part: str) -> None:
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
        damages = [*damages[:4], damages[6], *8 * [lambda: with_one(old, row, c.pick(BAD_SCALES))]]
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


def with_one(old: Tensor, row: int, value: float) -> Tensor:
    """The same but for one number, in the last place of a row."""
    new = old.clone()
    if new.numel():
        new.view(len(new), -1)[row, -1] = value
    return new


def in_every_layer(c: Choices, tensors: Tensors) -> None:
    """The same fault everywhere: a tool's bug, not a key's."""
    part, gone = c.pick(PARTS), c.rarely(2)
    for name in [name for name in tensors if name.endswith(f".{part}")]:
        old = tensors.pop(name)
        if not gone:
            reversed_or_long = old.flatten().flip(0) if part == "g_idx" else old.long()
            tensors[name] = old.bfloat16() if part == "scales" else reversed_or_long
