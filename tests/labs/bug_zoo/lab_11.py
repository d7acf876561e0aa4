"""Right answers to lab 11, written differently. The wrong ones are edits: see the YAML file."""

from __future__ import annotations

import json
import math
import re
import shutil

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.kit.lab.edits import edited
from utils.checks.lab_11 import answers

zoo = Zoo(answers)
right = zoo.right

# 1 match_adapter


PLAIN = {"use_dora": False, "lora_bias": False, "bias": "none"}


def shapes_that_fit(weight, config):
    """Of A and B."""
    shape = weight.shape[::-1] if config.get("fan_in_fan_out") else weight.shape
    out, width = shape  # of another number of axes, that is a ValueError
    return (config["r"], width), (out, config["r"])


@right("match_adapter")
def two_dicts(config, tensors, base):
    empty = [config.get(key) for key in ("modules_to_save", "rank_pattern", "alpha_pattern")]
    plain = all(config.get(key, value) == value for key, value in PLAIN.items())
    if config.get("peft_type") != "LORA" or not plain or any(empty):
        raise ValueError("no plain LoRA")
    found = {"A": {}, "B": {}}
    for key, tensor in tensors.items():
        match = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", key)
        if match is None:
            raise ValueError(key)
        found[match[2]][match[1] + ".weight"] = tensor
    a, b = found.values()
    if a.keys() != b.keys() or not a or a.keys() - base.keys():
        raise ValueError("not the same layers")
    for name in a:
        if (a[name].shape, b[name].shape) != shapes_that_fit(base[name], config):
            raise ValueError(name)
    return {name: (a[name], b[name]) for name in sorted(a)}


# 2 merge_weight


def the_scale(config):
    root = math.sqrt(config["r"]) if config.get("use_rslora") else config["r"]
    return config["lora_alpha"] / root


@right("merge_weight")
def with_addmm(weight, A, B, config):
    thin = [B.detach().float(), A.detach().float()]
    if config.get("fan_in_fan_out"):
        thin = [thin[1].T, thin[0].T]
    total = torch.addmm(weight.float(), *thin, alpha=the_scale(config)).to(weight.dtype)
    if total.isnan().any() or total.isinf().any():
        raise ValueError("not finite")
    return total


# 3 merge_state


@right("merge_state")
def by_comprehension(config, tensors, base):
    pairs = two_dicts(config, tensors, base)
    return {
        name: with_addmm(weight, *pairs[name], config) if name in pairs else weight.clone()
        for name, weight in base.items()
    }


# 4 what_arrived


@right("what_arrived")
def with_numpy(before, after, delta):
    old, new, d = (t.double().numpy().ravel() for t in (before, after, delta))
    if np.abs(d).max() == 0:
        raise ValueError("no update")
    moved = new - old
    return (
        float(np.count_nonzero(moved) / moved.size),
        float(np.linalg.norm(moved - d) / np.linalg.norm(d)),
        float(moved @ d / (d @ d)),
    )


# 5 check_merge


def checked(config, tensors, base, merged, is_it):
    pairs, found = two_dicts(config, tensors, base), {}
    for name in {**base, **merged}:
        if name not in base or name not in merged:
            found[name] = "extra" if name not in base else "missing"
            continue
        stored, weight = merged[name], base[name].double()
        if stored.shape != weight.shape:
            found[name] = "shape"
            continue
        if name not in pairs:
            if not is_it(stored, weight, weight.abs()):
                found[name] = "changed"
            continue
        a, b = (t.double() for t in pairs[name])
        plain, sizes = b @ a, b.abs() @ a.abs()
        if config.get("fan_in_fan_out"):
            plain, sizes = plain.T, sizes.T
        delta = the_scale(config) * plain
        sizes = weight.abs() + the_scale(config) * sizes
        for word, exact in (
            ("", weight + delta),
            ("not merged", weight),
            ("merged twice", weight + 2 * delta),
            ("scale forgotten", weight + plain),
            ("other", None),
        ):
            if exact is None or is_it(stored, exact, sizes):
                if word:
                    found[name] = word
                break
    return found


@right("check_merge")
def with_neighbors(config, tensors, base, merged):
    """Between the two neighbors of the nearest number of the dtype."""

    def is_it(stored, exact, sizes):
        slack = sizes * 2.0**-19
        low, high = ((exact + sign * slack).to(stored.dtype) for sign in (-1, 1))
        return bool(((low <= stored) & (stored <= high) & stored.isfinite()).all())

    return checked(config, tensors, base, merged, is_it)


@right("check_merge")
def with_nearly_four_steps(config, tensors, base, merged):
    """As much room as the contract leaves: 4 steps are at least 2 eps |x|."""

    def is_it(stored, exact, sizes):
        info = torch.finfo(stored.dtype)
        step = torch.maximum(info.eps * exact.abs() / 2, torch.tensor(info.tiny * info.eps))
        room = torch.maximum(4 * step, sizes * 2.0**-16)
        off = (stored.double() - exact).abs().nan_to_num(nan=math.inf, posinf=math.inf)
        return float((off - room).max()) <= 0

    return checked(config, tensors, base, merged, is_it)


# 6 engine


@right("engine")
def tensor_by_tensor(base_dir, adapter_dir, out_dir):
    base = {}
    for file in base_dir.iterdir():
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as opened:
                base |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    config = json.loads((adapter_dir / "adapter_config.json").read_bytes())
    tensors = load_file(adapter_dir / "adapter_model.safetensors")
    merged = by_comprehension(config, tensors, base)
    out_dir.mkdir(parents=True, exist_ok=True)
    merged = {name: tensor.contiguous() for name, tensor in merged.items()}
    save_file(merged, out_dir / "model.safetensors", metadata={"format": "pt"})
    shutil.copy2(base_dir / "config.json", out_dir / "config.json")


# 7 detective

right("detective")(with_neighbors)
zoo.wrong("detective", "Exercise 5 is not right yet", "of an rsLoRA wrong")(
    edited(answers.check_merge, ['(r**0.5 if config.get("use_rslora") else r) => r'])
)
