"""One right answer for each exercise, as in the solution. Mistakes in `words.yaml` edit them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


def match_adapter(
    config: dict[str, Any], tensors: dict[str, Tensor], base: dict[str, Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    special = ("use_dora", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern")
    odd = [key for key in special if config.get(key)]
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or odd:
        raise ValueError(f"Expected a plain LoRA, not {config.get('peft_type')} with {odd}.")
    if not tensors:
        raise ValueError("The adapter is empty.")
    start, pairs = "base_model.model.", {}
    for key in tensors:
        layer = key.removeprefix(start)[: -len(".lora_A.weight")]
        ours = [f"{start}{layer}.lora_{which}.weight" for which in "AB"]
        if key not in ours or not layer or any(name not in tensors for name in ours):
            raise ValueError(f"{key} is no A or B of peft, or stands alone.")
        A, B = (tensors[name] for name in ours)
        weight = base.get(f"{layer}.weight")
        if weight is None:
            raise ValueError(f"The base has no {layer}.weight: the adapter belongs to another.")
        out, width = weight.T.shape if config.get("fan_in_fan_out") else weight.shape
        if A.shape != (config["r"], width) or B.shape != (out, config["r"]):
            raise ValueError(f"The shapes of {layer} do not fit: {A.shape}, {B.shape}.")
        pairs[f"{layer}.weight"] = (A, B)
    return pairs


@torch.no_grad()
def merge_weight(weight: Tensor, A: Tensor, B: Tensor, config: dict[str, Any]) -> Tensor:
    r = config["r"]
    scale = config["lora_alpha"] / (r**0.5 if config.get("use_rslora") else r)
    delta = scale * (B.float() @ A.float())
    if config.get("fan_in_fan_out"):
        delta = delta.T
    merged = (weight.float() + delta).to(weight.dtype)
    if not merged.isfinite().all():
        raise ValueError(f"The merged weight is not finite in {weight.dtype}.")
    return merged


def merge_state(
    config: dict[str, Any], tensors: dict[str, Tensor], base: dict[str, Tensor]
) -> dict[str, Tensor]:
    merged = dict(base)
    for name, (A, B) in match_adapter(config, tensors, base).items():
        merged[name] = merge_weight(base[name], A, B, config)
    return merged


def what_arrived(before: Tensor, after: Tensor, delta: Tensor) -> tuple[float, float, float]:
    if not delta.any():
        raise ValueError("There is no update.")
    moved, delta = after.double() - before.double(), delta.double()
    changed = (moved != 0).double().mean()
    off = (moved - delta).norm() / delta.norm()
    arrived = (moved * delta).sum() / delta.square().sum()
    return float(changed), float(off), float(arrived)


def check_merge(
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    base: dict[str, Tensor],
    merged: dict[str, Tensor],
) -> dict[str, str]:
    pairs = match_adapter(config, tensors, base)
    r, alpha = config["r"], config["lora_alpha"]
    scale = alpha / (r**0.5 if config.get("use_rslora") else r)

    def product(A: Tensor, B: Tensor) -> Tensor:
        BA = B.double() @ A.double()
        return BA.T if config.get("fan_in_fan_out") else BA

    def fits(stored: Tensor, exact: Tensor, sizes: Tensor) -> bool:
        info = torch.finfo(stored.dtype)
        step = info.eps * exact.abs() + info.smallest_normal * info.eps
        return bool(((stored.double() - exact).abs() <= step + 2.0**-18 * sizes).all())

    found = {name: "extra" for name in merged if name not in base}
    for name, weight in base.items():
        W = weight.double()
        if name not in merged:
            found[name] = "missing"
        elif merged[name].shape != W.shape:
            found[name] = "shape"
        elif name not in pairs:
            if not fits(merged[name], W, W.abs()):
                found[name] = "changed"
        else:
            A, B = pairs[name]
            BA, sizes = product(A, B), W.abs() + scale * product(A.abs(), B.abs())
            candidates = {
                "": W + scale * BA,
                "not merged": W,
                "merged twice": W + 2 * scale * BA,
                "scale forgotten": W + BA,
            }
            words = (w for w, exact in candidates.items() if fits(merged[name], exact, sizes))
            if word := next(words, "other"):
                found[name] = word
    return found


def merge_files(base_dir: Path, adapter_dir: Path, out_dir: Path) -> None:
    config = json.loads((adapter_dir / "adapter_config.json").read_text())
    base: dict[str, Tensor] = {}
    for file in base_dir.glob("*.safetensors"):
        base.update(load_file(file))
    merged = merge_state(config, load_file(adapter_dir / "adapter_model.safetensors"), base)
    contiguous = {name: tensor.contiguous() for name, tensor in merged.items()}
    out_dir.mkdir(parents=True, exist_ok=True)
    save_file(contiguous, out_dir / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(base_dir / "config.json", out_dir)
