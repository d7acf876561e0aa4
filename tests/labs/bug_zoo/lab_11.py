"""Wrong and right answers to lab 11, each as a learner might write it."""

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

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right
# 1 match_adapter


def refuse_special(config):
    plain = {"peft_type": "LORA", "use_dora": False, "lora_bias": False, "bias": "none"}
    for key, value in plain.items():
        if config.get(key, None if key == "peft_type" else value) != value:
            raise ValueError(key)
    for key in ("modules_to_save", "rank_pattern", "alpha_pattern"):
        if config.get(key):
            raise ValueError(key)


def halves(tensors):
    found = ({}, {})
    for key, tensor in tensors.items():
        match = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", key)
        if match is None:
            raise ValueError(key)
        found["AB".index(match[2])][match[1] + ".weight"] = tensor
    return found


def fits(a, b, weight, config):
    shape = tuple(weight.shape)
    if config.get("fan_in_fan_out"):
        shape = shape[::-1]
    r = config["r"]
    return len(shape) == 2 and (tuple(a.shape), tuple(b.shape)) == ((r, shape[1]), (shape[0], r))


@right("match_adapter")
def two_dicts(config, tensors, base):
    refuse_special(config)
    a, b = halves(tensors)
    if a.keys() != b.keys() or not a or a.keys() - base.keys():
        raise ValueError("not the same layers")
    for name in a:
        if not fits(a[name], b[name], base[name], config):
            raise ValueError(name)
    return {name: (a[name], b[name]) for name in sorted(a)}


@wrong("match_adapter", "stands alone")
def only_a_is_walked(config, tensors, base):
    refuse_special(config)
    a, b = halves(tensors)
    if not a:
        raise ValueError("empty")
    for name in a:
        if name not in b or name not in base or not fits(a[name], b[name], base[name], config):
            raise ValueError(name)
    return {name: (a[name], b[name]) for name in a}


@wrong("match_adapter", "raised ValueError")
def needs_every_key(config, tensors, base):
    if any(key not in config for key in ("use_dora", "bias", "rank_pattern")):
        raise ValueError("incomplete")
    return two_dicts(config, tensors, base)


@wrong("match_adapter", "raised ValueError")
def always_out_in(config, tensors, base):
    return two_dicts(config | {"fan_in_fan_out": False}, tensors, base)


@wrong("match_adapter", "The shapes of")
def either_orientation_will_do(config, tensors, base):
    try:
        return two_dicts(config, tensors, base)
    except ValueError:
        turned = {"fan_in_fan_out": not config.get("fan_in_fan_out")}
        return two_dicts(config | turned, tensors, base)


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


@right("merge_weight")
def column_by_column(weight, A, B, config):
    total = weight.to(torch.float32, copy=True)
    with torch.no_grad():
        for k in range(A.shape[0]):
            piece = torch.outer(B[:, k].float() * the_scale(config), A[k].float())
            total += piece.T if config.get("fan_in_fan_out") else piece
    total = total.to(weight.dtype)
    if not np.isfinite(total.double().numpy()).all():
        raise ValueError("not finite")
    return total


def summed(weight, A, B, config, scale=None, fan=None):
    fan = config.get("fan_in_fan_out", False) if fan is None else fan
    with torch.no_grad():
        update = B.float() @ A.float() * (the_scale(config) if scale is None else scale)
        total = weight.float() + (update.T if fan else update)
        if not total.to(weight.dtype).isfinite().all():
            raise ValueError("not finite")
        return total


@wrong("merge_weight", "weight is wrong")
def rounded_in_pieces(weight, A, B, config):
    total = summed(weight, A, B, config | {"lora_alpha": 0}).to(weight.dtype)
    with torch.no_grad():
        for k in range(A.shape[0]):
            piece = the_scale(config) * torch.outer(B[:, k].float(), A[k].float())
            total = total + (piece.T if config.get("fan_in_fan_out") else piece).to(weight.dtype)
    if not total.isfinite().all():
        raise ValueError("not finite")
    return total


@wrong("merge_weight", "weight is wrong")
def never_turned(weight, A, B, config):
    return summed(weight, A, B, config, fan=False).to(weight.dtype)


@wrong("merge_weight", "graph")
def keeps_the_graph(weight, A, B, config):
    summed(weight, A, B, config)
    update = B.float() @ A.float() * the_scale(config)
    update = update.T if config.get("fan_in_fan_out") else update
    return (weight.float() + update).to(weight.dtype)


@wrong("merge_weight", "changes in place")
def adds_in_place(weight, A, B, config):
    weight.copy_(summed(weight, A, B, config))
    return weight


@wrong("merge_weight", "weight is wrong")
def whole_numbers_of_scale(weight, A, B, config):
    return summed(
        weight,
        A,
        B,
        config,
        scale=config["lora_alpha"] // config["r"] if not config.get("use_rslora") else None,
    ).to(weight.dtype)


@wrong("merge_weight", "not finite")
def asks_before_rounding(weight, A, B, config):
    with torch.no_grad():
        update = B.float() @ A.float() * the_scale(config)
        total = weight.float() + (update.T if config.get("fan_in_fan_out") else update)
        if not total.isfinite().all():
            raise ValueError("not finite")
        return total.to(weight.dtype)


# 3 merge_state


def merged_one(weight, pair, config):
    return summed(weight, *pair, config).to(weight.dtype)


@wrong("merge_weight", "ValueError")
def asks_the_sum_of_all(weight, A, B, config):
    merged = summed(weight, A, B, config).to(weight.dtype)
    if not merged.sum().isfinite():  # of many large numbers it is infinite in float16
        raise ValueError("not finite")
    return merged


@right("merge_state")
def by_comprehension(config, tensors, base):
    pairs = two_dicts(config, tensors, base)
    return {
        name: merged_one(weight, pairs[name], config) if name in pairs else weight.clone()
        for name, weight in base.items()
    }


@wrong("merge_state", "order")
def merged_ones_come_first(config, tensors, base):
    pairs = two_dicts(config, tensors, base)
    merged = {name: merged_one(base[name], pair, config) for name, pair in pairs.items()}
    return merged | {name: weight for name, weight in base.items() if name not in merged}


@wrong("merge_state", "merged weight is wrong")
def all_layers_get_the_last_pair_of_their_shape(config, tensors, base):
    pairs = two_dicts(config, tensors, base)
    by_shape = {base[name].shape: pair for name, pair in pairs.items()}
    return {
        name: merged_one(weight, by_shape[weight.shape], config) if name in pairs else weight
        for name, weight in base.items()
    }


@wrong("merge_state", "no matrices in the adapter")
def adds_to_whatever_has_the_same_ending(config, tensors, base):
    pairs = two_dicts(config, tensors, base)
    merged = dict(base)
    for name, weight in base.items():
        for target, pair in pairs.items():
            if target.split(".")[-2] == name.split(".")[-2] and weight.shape == base[target].shape:
                merged[name] = merged_one(weight, pairs.get(name, pair), config)
    return merged


# 4 what_arrived


@wrong("merge_state", "no matrices in the adapter")
def one_dtype_for_all_numbers(config, tensors, base):
    merged = by_comprehension(config, tensors, base)
    return {n: t.float() if t.dtype == torch.float64 else t for n, t in merged.items()}


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


@wrong("what_arrived", "no share can arrive")
def no_update_gives_nan(before, after, delta):
    moved, d = after.double() - before.double(), delta.double()
    arrived = (moved * d).sum() / (d * d).sum()
    return (moved != 0).double().mean().item(), float((moved - d).norm() / d.norm()), float(arrived)


@wrong("what_arrived", "ValueError")
def updates_that_cancel_are_none(before, after, delta):
    if delta.double().sum() == 0:
        raise ValueError("no update")
    return with_numpy(before, after, delta)


@wrong("what_arrived", "`off` is wrong")
def in_float16(before, after, delta):
    if not delta.any():
        raise ValueError("no update")
    moved = (after - before).to(before.dtype)
    d = delta.to(before.dtype)
    share, off = (moved != 0).float().mean(), (moved - d).norm() / d.norm()
    return float(share), float(off), float((moved * d).sum() / (d * d).sum())


@wrong("what_arrived", "`changed` is wrong")
def changed_among_the_updated(before, after, delta):
    _, off, arrived = with_numpy(before, after, delta)
    touched = delta != 0
    return (before.double() != after.double())[touched].double().mean().item(), off, arrived


@wrong("what_arrived", "`arrived` is wrong")
def mean_of_the_ratios(before, after, delta):
    changed, off, _ = with_numpy(before, after, delta)
    touched = delta != 0
    ratio = (after.double() - before.double())[touched] / delta.double()[touched]
    return changed, off, float(ratio.mean())


# 5 check_merge


def room(stored, exact, sizes):
    info = torch.finfo(stored.dtype)
    return info.eps * exact.abs() + info.smallest_normal * info.eps + sizes * 2.0**-18


def checked(config, tensors, base, merged, is_it, alone=None):
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
            if not (alone or is_it)(stored, weight, weight.abs()):
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
def with_neighbours(config, tensors, base, merged):
    """Between the two neighbours of the nearest number of the dtype."""

    def is_it(stored, exact, sizes):
        slack = sizes * 2.0**-19
        low, high = ((exact + sign * slack).to(stored.dtype) for sign in (-1, 1))
        return bool(((low <= stored) & (stored <= high) & stored.isfinite()).all())

    return checked(config, tensors, base, merged, is_it)


@right("check_merge")
def with_three_steps(config, tensors, base, merged):
    def is_it(stored, exact, sizes):
        off = (stored.double() - exact).abs().nan_to_num(nan=math.inf, posinf=math.inf)
        return float((off - 3 * room(stored, exact, sizes / 3)).max()) <= 0

    return checked(config, tensors, base, merged, is_it)


@wrong("check_merge", "right weight is called wrong")
def with_allclose(config, tensors, base, merged):
    return checked(
        config,
        tensors,
        base,
        merged,
        lambda stored, exact, sizes: torch.allclose(stored.double(), exact),
    )


@wrong("check_merge", "right weight is called wrong")
def no_room_for_float32(config, tensors, base, merged):
    def is_it(stored, exact, sizes):
        return torch.equal(stored, exact.to(stored.dtype)) and bool(stored.isfinite().all())

    return checked(config, tensors, base, merged, is_it)


@wrong("check_merge", "right weight is called wrong")
def as_if_all_were_bfloat16(config, tensors, base, merged):
    def is_it(stored, exact, sizes):
        return bool(((stored.double() - exact).abs() <= room(exact.bfloat16(), exact, sizes)).all())

    return checked(config, tensors, base, merged, is_it)


@wrong("check_merge", "A fault is not seen")
def by_the_length_of_the_difference(config, tensors, base, merged):
    def is_it(stored, exact, sizes):
        return bool((stored.double() - exact).norm() <= room(stored, exact, sizes).norm())

    return checked(config, tensors, base, merged, is_it)


@wrong("check_merge", "right weight is called wrong")
def by_projection(config, tensors, base, merged):
    """How much of the update is there? On average that is 1, and not behind every rounding."""
    found, pairs = with_three_steps(config, tensors, base, merged), two_dicts(config, tensors, base)
    for name, (a, b) in pairs.items():
        if name in found or name not in merged:
            continue
        delta = the_scale(config) * b.double() @ a.double()
        delta = delta.T if config.get("fan_in_fan_out") else delta
        moved = merged[name].double() - base[name].double()
        if delta.any() and abs(float((moved * delta).sum() / (delta * delta).sum()) - 1) > 0.5:
            found[name] = "not merged"
    return found


@wrong("check_merge", "right weight is called wrong")
def untouched_weights_may_move(config, tensors, base, merged):
    def alone(stored, exact, sizes):
        return torch.allclose(stored.double(), exact, rtol=1e-2)

    def is_it(stored, exact, sizes):
        return bool(((stored.double() - exact).abs() <= room(stored, exact, sizes)).all())

    return checked(config, tensors, base, merged, is_it, alone)


@wrong("check_merge", "is merged twice; you say: not merged")
def without_signs(config, tensors, base, merged):
    def is_it(stored, exact, sizes):
        off = (stored.double().abs() - exact.abs()).abs()
        return bool((off <= room(stored, exact, sizes)).all())

    return checked(config, tensors, base, merged, is_it)


@wrong("check_merge", "A fault is not seen")
def nearly_all_numbers(config, tensors, base, merged):
    def is_it(stored, exact, sizes):
        near = (stored.double() - exact).abs() <= room(stored, exact, sizes)
        return bool(stored.isfinite().all()) and float(near.double().mean()) > 0.999

    return checked(config, tensors, base, merged, is_it)


@wrong("check_merge", "is shape; you say")
def numbers_are_counted(config, tensors, base, merged):
    shaped = {
        n: t.reshape(base[n].shape) if n in base and t.numel() == base[n].numel() else t
        for n, t in merged.items()
    }
    return with_three_steps(config, tensors, base, shaped)


# 6 merge_files


def files_of(folder):
    return sorted(folder.glob("*.safetensors"))


def write(tensors, base_dir, out_dir, metadata=True):
    out_dir.mkdir(parents=True, exist_ok=True)
    save_file(
        {n: t.contiguous() for n, t in tensors.items()},
        out_dir / "model.safetensors",
        metadata={"format": "pt"} if metadata else None,
    )
    shutil.copy2(base_dir / "config.json", out_dir / "config.json")


def read_adapter(adapter_dir):
    config = json.loads((adapter_dir / "adapter_config.json").read_bytes())
    return config, load_file(adapter_dir / "adapter_model.safetensors")


@right("engine")
def tensor_by_tensor(base_dir, adapter_dir, out_dir):
    base = {}
    for file in base_dir.iterdir():
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as opened:
                base |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    write(by_comprehension(*read_adapter(adapter_dir), base), base_dir, out_dir)


@wrong("engine", "raised ValueError")
def the_first_file_only(base_dir, adapter_dir, out_dir):
    base = load_file(files_of(base_dir)[0])
    write(by_comprehension(*read_adapter(adapter_dir), base), base_dir, out_dir)


@wrong("engine", "PyTorch's")
def without_metadata(base_dir, adapter_dir, out_dir):
    base = {n: t for file in files_of(base_dir) for n, t in load_file(file).items()}
    merged = by_comprehension(*read_adapter(adapter_dir), base)
    write(merged, base_dir, out_dir, metadata=False)


@wrong("engine", "is wrong in your file")
def in_float32(base_dir, adapter_dir, out_dir):
    base = {n: t.float() for file in files_of(base_dir) for n, t in load_file(file).items()}
    write(by_comprehension(*read_adapter(adapter_dir), base), base_dir, out_dir)


@wrong("engine", "a model was written")
def copies_before_it_merges(base_dir, adapter_dir, out_dir):
    shutil.copytree(base_dir, out_dir, dirs_exist_ok=True)
    tensor_by_tensor(base_dir, adapter_dir, out_dir)
    for file in files_of(out_dir):
        if file.name != "model.safetensors":
            file.unlink()


@wrong("engine", "has changed")
def writes_beside_the_base_and_moves(base_dir, adapter_dir, out_dir):
    base = {n: t for file in files_of(base_dir) for n, t in load_file(file).items()}
    merged = by_comprehension(*read_adapter(adapter_dir), base)
    save_file(merged, base_dir / "model.safetensors", metadata={"format": "pt"})
    out_dir.mkdir(parents=True, exist_ok=True)
    shutil.move(base_dir / "model.safetensors", out_dir)
    shutil.copy(base_dir / "config.json", out_dir)


@wrong("engine", "FileExistsError")
def wants_a_new_folder(base_dir, adapter_dir, out_dir):
    out_dir.mkdir(parents=True)
    tensor_by_tensor(base_dir, adapter_dir, out_dir)
